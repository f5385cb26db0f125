"""Files that a script sources are read in their place, by the paths that they have beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.lint.inherited import read_inherited
from orchestrator.lint.rank_counts import rank_remarks
from orchestrator.usecases.checks.lint import LintOptions, lint, sourced_texts

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file below the folder in which orch runs."""
    monkeypatch.chdir(tmp_path)

    def text(name: str, content: str) -> Path:
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    return text


def _found(*files: Path) -> list[tuple[str, int, str]]:
    result = lint(None, files, LintOptions())
    return [(found.file, found.line, found.finding.check) for found in result.findings]


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("source env.sh", "train.sh"),
        (". ./env.sh", "train.sh"),
        ("source env.sh", "scripts/train.sh"),
        ('source "$(dirname "$0")/env.sh"', "train.sh"),
        ('DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$DIR/env.sh"', "train.sh"),
        ("if [ -f env.sh ]; then source env.sh; fi", "train.sh"),
    ],
)
def test_findings_in_a_sourced_file_have_its_name_and_line(write: Write, line: str, script: str) -> None:
    file = write(script, f"#!/bin/bash\n{line}\ntorchrun train.py\n")
    write(str(file.parent / "env.sh"), "# comment\nexport NCCL_IB_DISABLE=true\n")
    assert _found(file) == [(str(file.parent / "env.sh"), 2, "NCCL_IB_DISABLE")]


def test_sourced_file_that_is_named_too_is_judged_once(write: Write) -> None:
    script, env = write("train.sh", "source env.sh\n"), write("env.sh", "export NCCL_IB_DISABLE=true\n")
    assert _found(script, env) == [("env.sh", 1, "NCCL_IB_DISABLE")]


def test_what_the_script_exports_of_a_sourced_file_reaches_the_ranks(write: Write) -> None:
    """Alone, the file keeps the variable for the shell."""
    write("env.sh", "NCCL_DEBUG=WARN\n")
    assert _found(write("one.sh", "set -a; source env.sh; set +a\ntorchrun t.py\n")) == []
    assert _found(write("two.sh", "source env.sh\nexport NCCL_DEBUG\ntorchrun t.py\n")) == []
    assert _found(write("three.sh", "source env.sh\ntorchrun t.py\n")) == [("env.sh", 1, "NCCL_DEBUG")]


def test_contradiction_with_a_sourced_file_is_found(write: Write) -> None:
    write("env.sh", "export NCCL_P2P_DISABLE=1\n")
    assert ("train.sh", 2, "NCCL_P2P_LEVEL") in _found(write("train.sh", "source env.sh\nexport NCCL_P2P_LEVEL=NVL\n"))


def test_fix_changes_the_script_alone(write: Write) -> None:
    write("env.sh", "export NCCL_IB_DISABLE=true NCCL_DEBUG=INFO\n")
    script = write("train.sh", "source env.sh\nexport NCCL_IB_DISABLE=true\n")
    assert lint(None, [script], LintOptions()).fixed["train.sh"] == "source env.sh\nexport NCCL_IB_DISABLE=1\n"


@pytest.mark.parametrize(
    "line",
    ["source absent.sh", "source $WHERE/env.sh", "source /etc/profile", "source venv/bin/activate", ". train.sh"],
)
def test_other_files_are_not_read_and_named(write: Write, line: str) -> None:
    write("env.sh", "export NCCL_IB_DISABLE=true\n")
    write("venv/bin/activate", "export NCCL_IB_DISABLE=true\n")
    script = write("train.sh", f"{line}\n")
    assert _found(script) == []
    found = read_inherited(script.read_text(), str(script), {}, sourced_texts(script))
    assert [(file, number) for _, file, number in found.unread_files] == [("train.sh", 1)]


def test_files_that_source_each_other_end(write: Write) -> None:
    write("a.sh", "source b.sh\nexport NCCL_DEBUG=INFO\n")
    write("b.sh", "source a.sh\nexport NCCL_IB_DISABLE=true\n")
    assert ("b.sh", 2, "NCCL_IB_DISABLE") in _found(Path("a.sh"))


def test_settings_of_sourced_files_replace_those_of_orch_in_the_order_in_which_they_run(write: Write) -> None:
    write("env.sh", "export NCCL_IB_HCA=mlx5_9\nexport NCCL_DEBUG=INFO\nunset GLOO_SOCKET_IFNAME\n")
    script = write("train.sh", "source env.sh\nexport NCCL_IB_HCA=mlx5_1\n")
    given = {"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "eth0"}
    found = read_inherited(script.read_text(), "train.sh", given, sourced_texts(script))
    assert [(each.name, each.value, each.file, each.line) for each in found.settings] == [
        ("NCCL_IB_HCA", "mlx5_1", "train.sh", 2),
        ("NCCL_DEBUG", "INFO", "env.sh", 2),
        ("GLOO_SOCKET_IFNAME", None, "env.sh", 3),
    ]


def test_number_of_ranks_that_a_sourced_file_sets_is_known(write: Write) -> None:
    write("env.sh", "RANKS=4\n")
    script = write("train.sh", "source env.sh\ntorchrun --nproc_per_node=$RANKS t.py\n")
    [remark] = rank_remarks(script.read_text(), "train.sh", {"n0": {"NPROC_PER_NODE": "2"}}, sourced_texts(script))
    assert remark.startswith("train.sh:2 starts 4 ranks on n0")
