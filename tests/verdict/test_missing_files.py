"""The explanation of a FileNotFoundError by the machine that launched the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, RankExit, Request, RunState
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.missing_files import explain

RUN = "/data/orch/runs/demo-20260102-030405-0abc"


def _plan(cwd: str | None = None, transport: str = "ssh") -> LaunchPlan:
    inventory = Inventory(name="demo", transport=transport, nodes=(Node(name="n0"), Node(name="n1")))  # type: ignore[arg-type]
    request = Request("ssh", Program("python", ("train.py",), cwd))
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b")


def _explain(missing: str | None, plan: LaunchPlan, folder: Path) -> Verdict:
    failure = RankExit("n1", 1, 1, None, "FileNotFoundError: …", missing=missing)
    verdict = Verdict(RunState.FAILED, failure, f"{failure}; 1 more")
    result = explain(verdict, plan, {"folder": str(folder)})
    if result is not verdict:
        assert result.exit is not None
        assert result.exit.missing is None
        assert result.message == f"{result.exit}; 1 more"
    return result


@pytest.mark.parametrize(
    ("cwd", "path"), [("", "data/x.bin"), ("sub", "sub/data/x.bin"), ("sub/deep", "sub/data/x.bin")]
)
def test_file_that_was_not_sent_is_named_where_the_run_was_launched(tmp_path: Path, cwd: str, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / cwd).mkdir(parents=True, exist_ok=True)
    verdict = _explain(f"{RUN}/code/{path}", _plan(cwd), tmp_path / cwd)
    assert f"FileNotFoundError: …; {file} exists on this machine, but is not in the code that was sent to n1" in str(
        verdict.exit
    )


def test_absolute_path_is_explained_unless_the_node_is_this_machine(tmp_path: Path) -> None:
    assert "it exists on this machine, but not on n1; copy it there" in str(
        _explain(str(tmp_path), _plan(), tmp_path).exit
    )
    assert "exists" not in str(_explain(str(tmp_path), _plan(transport="local"), tmp_path).exit)


def test_file_that_no_machine_has_and_other_failures_are_not_explained(tmp_path: Path) -> None:
    for missing in (f"{RUN}/code/data/x.bin", "/no/such/file", None):
        assert str(_explain(missing, _plan(), tmp_path).exit) == "rank 1 on n1 exited 1: FileNotFoundError: …"
