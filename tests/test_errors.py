from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from orchestrator.errors import MOST_REASONS, NodeError, NodesError, OrchError, machine_error, os_error_text


def test_error_of_a_node_names_the_node() -> None:
    assert str(NodeError("n3", "no answer for 30 s")) == "n3: no answer for 30 s"
    assert str(NodeError("n3", "no route to host", at="10.0.0.3 port 22")) == "n3: 10.0.0.3 port 22: no route to host"


@pytest.mark.parametrize("at", ["n3", "n3 port 22"])
def test_node_named_by_its_address_is_named_once(at: str) -> None:
    assert str(NodeError("n3", "name not resolved", at=at)) == f"{at}: name not resolved"


def test_equal_reasons_are_folded_into_one_line_with_one_hint() -> None:
    failures = [
        NodeError(f"n{number}", "no route to host", at=f"10.0.0.{number} port 22", hint=f"`ssh 10.0.0.{number} true`")
        for number in (3, 7, 8, 9)
    ]
    error = NodesError(failures, 16)
    assert str(error) == "n[3,7-9]: no route to host (4 of 16)"
    assert error.hint == "`ssh 10.0.0.3 true`"


def test_address_shared_by_all_failures_is_named() -> None:
    error = NodesError([NodeError(name, "timed out", at="bastion port 22") for name in ("n0", "n1")], 2)
    assert str(error) == "n[0-1]: bastion port 22: timed out (2 of 2)"


def test_single_failure_of_many_nodes_is_shown_with_its_address() -> None:
    error = NodesError([NodeError("n3", "refused", at="10.0.0.3 port 22", hint="try")], 16)
    assert (str(error), error.hint) == ("n3: 10.0.0.3 port 22: refused (1 of 16)", "try")


def test_each_different_reason_has_its_own_line_and_hint() -> None:
    failures = [NodeError("n1", "x", hint="do x"), NodeError("n2", "y"), NodeError("n3", "x", hint="do x")]
    error = NodesError(failures, 4)
    assert str(error) == "3 of 4 nodes failed\n  n[1,3]: x (2 of 4)\n    next: do x\n  n2: y (1 of 4)"
    assert error.hint == ""


def test_number_of_lines_is_bounded_and_every_node_is_named() -> None:
    error: OrchError = NodesError([NodeError(f"n{number}", f"reason {number}") for number in range(1024)], 1024)
    *lines, last = str(error).splitlines()
    assert len(lines) == 1 + MOST_REASONS
    assert last == f"  n[{MOST_REASONS}-1023]: {1024 - MOST_REASONS} other reasons"


def test_count_is_on_the_first_line_of_a_reason() -> None:
    assert str(NodesError([NodeError("n0", "the agent exited\nno such program")], 2)) == (
        "n0: the agent exited (1 of 2)\nno such program"
    )


def test_full_disk_is_reported_with_file_and_size(tmp_path: Path) -> None:
    text = os_error_text(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "run.json")))
    assert re.fullmatch(rf"{tmp_path}/run\.json: No space left on device \([0-9.e+]+ of [0-9.e+]+ GB free\)", text)


@pytest.mark.parametrize(("file", "is_output"), [(None, True), ("/root/.orch/run.json", False)])
def test_full_disk_without_a_file_may_be_that_of_the_output(file: str | None, *, is_output: bool) -> None:
    """As in `orch list > /dev/full`: another ORCH_HOME would not help."""
    error = machine_error(OSError(errno.ENOSPC, "No space left on device", file))
    assert error is not None
    assert ("the output" in str(error.hint)) is is_output
