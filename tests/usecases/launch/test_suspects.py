"""The past of nodes: what is kept of runs, when a node is a suspect, and launches without suspects."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import LaunchError, UsageError
from orchestrator.failure_class import FailureClass
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.portable.findings import Finding, Severity
from orchestrator.records.cache import nodes as node_cache
from orchestrator.records.cache.nodes import NodeHistory, keep_cause, keep_findings, node_histories
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import home_store
from orchestrator.run import Failure, Program, RankExit, Request, RunRecord, RunState
from orchestrator.supervision.restart import DirectAttempt, Restarts
from orchestrator.usecases.checks.nodes import history_rows, suspicions
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch.suspects import without_suspects
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.record_outcome import record_outcome
from tests.supervision.attempts import StubAttempts

NODES = tuple(Node(name=f"n{index}", address=f"10.0.0.{index}", workdir="/w") for index in range(8))
PROGRAM = Program("executable", ("true",))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def _started(number: int, nodes: str = "n[0-7]", **inventory: Any) -> RunFolder:  # fields of Inventory
    plan = make_plan(
        Inventory(name="demo", nodes=NODES, **inventory),
        Request("ssh", PROGRAM, nodes=nodes),
        run_id=f"demo-20260102-120000-{number:04x}",
        bundle="b",
    )
    empty: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
    folder = home_store().create(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", started=True, **empty))
    folder.write_plan(plan)
    return folder


def _fail(number: int, node: str, kind: FailureClass = FailureClass.NODE, nodes: str = "n[0-7]") -> RunFolder:
    """A run that failed on this node; the scheduler or the supervisor knew the class."""
    folder = _started(number, nodes)
    record_outcome(
        folder, Verdict(RunState.FAILED, RankExit(node, 3, 1, None), f"{node} broke", failure=(kind, kind.retry))
    )
    return folder


def _suspects() -> list[str]:
    return [address for address, history in node_histories(home_store()).items() if history.is_suspect]


def test_end_of_a_run_is_kept_once_with_its_nodes_and_only_if_it_started_elsewhere(home: Path) -> None:
    done = _started(1)
    for _ in range(2):
        record_outcome(done, Verdict(RunState.DONE))
    record_outcome(_started(2, transport="local"), Verdict(RunState.DONE))
    unstarted = _started(3)
    unstarted.update(started=False)
    record_outcome(unstarted, Verdict(RunState.FAILED, message="refused"))
    [line] = (home / "nodes.jsonl").read_text().splitlines()
    assert (
        json.loads(line).items()
        >= {"run": done.path.name, "nodes": "10.0.0.[0-7]", "class": None, "failed": []}.items()
    )
    assert (home / "nodes.jsonl").stat().st_mode & 0o777 == 0o600


def test_node_that_is_gone_is_kept_although_no_rank_reported_its_exit() -> None:
    kind = FailureClass.NODE
    record_outcome(
        _started(1), Verdict(RunState.FAILED, message="n2 is gone", failure=(kind, kind.retry), failed_nodes=("n2",))
    )
    [failure] = node_histories(home_store())["10.0.0.2"].failures
    assert (failure.kind, failure.text) == (kind, "n2 is gone")


def test_attempts_that_were_followed_by_another_one_are_kept_too() -> None:
    folder = _started(1)
    verdict = Verdict(RunState.FAILED, RankExit("n3", 3, None, "SIGKILL"), "rank 3 was killed")
    attempt = DirectAttempt.of(verdict, [], (), ("n3",))
    assert Restarts(folder, 3, StubAttempts()).begin(folder.read_plan(), verdict, attempt) == ""
    record_outcome(folder, Verdict(RunState.DONE), attempt=2)
    histories = node_histories(home_store())
    assert [(failure.run, failure.kind) for failure in histories["10.0.0.3"].failures] == [
        (folder.path.name, FailureClass.UNKNOWN)
    ]
    assert {history.attempts for history in histories.values()} == {2}


def test_failure_counts_once_if_the_next_attempt_cannot_start() -> None:
    folder = _started(1)
    verdict = Verdict(RunState.FAILED, RankExit("n3", 3, None, "SIGKILL"), "rank 3 was killed")

    def refuse(_: LaunchPlan) -> None:
        raise LaunchError("no port is free")

    attempt = DirectAttempt.of(verdict, [], (), ("n3",))
    reason = Restarts(folder, 3, StubAttempts(start=refuse)).begin(folder.read_plan(), verdict, attempt)
    assert reason == "attempt 2 could not be started: no port is free"
    record = record_outcome(folder, verdict, attempt=1)
    assert record.attempt == 2
    failure = Failure(
        FailureClass.NODE, FailureClass.NODE.retry, is_diagnosed=True, cause="a card is gone", nodes=("n3",)
    )
    keep_cause(folder, replace(record, failure=failure))
    histories = node_histories(home_store())
    assert [failure.text for failure in histories["10.0.0.3"].failures] == ["a card is gone"]
    assert {history.attempts for history in histories.values()} == {1}


def test_slow_runs_of_a_node_are_shown_and_make_it_no_suspect() -> None:
    for number in range(1, 9):
        folder = _started(number)
        folder.update(slow_nodes=("n3",))
        record_outcome(folder, Verdict(RunState.DONE))
    record_outcome(_started(9), Verdict(RunState.DONE))
    histories = node_histories(home_store())
    assert {address: len(history.slow_runs) for address, history in histories.items() if history.slow_runs} == {
        "10.0.0.3": 8
    }
    assert history_rows({"n3": histories["10.0.0.3"]}) == [("n3", 9, "-", "-", 8, "")]
    assert _suspects() == []


def test_diagnosis_replaces_the_cause_of_the_end() -> None:
    folder = _fail(1, "n0", FailureClass.UNKNOWN)
    record = folder.update(
        failure=Failure(
            FailureClass.NETWORK, FailureClass.NETWORK.retry, is_diagnosed=True, cause="link down", nodes=("n1",)
        )
    )
    keep_cause(folder, record)
    histories = node_histories(home_store())
    assert histories["10.0.0.0"].failures == []
    assert [(failure.kind, failure.text) for failure in histories["10.0.0.1"].failures] == [
        (FailureClass.NETWORK, "link down")
    ]
    assert {history.attempts for history in histories.values()} == {1}


def test_node_is_a_suspect_if_chance_does_not_explain_its_failures() -> None:
    _fail(1, "n3")
    assert _suspects() == []
    _fail(2, "n3", FailureClass.HANG)
    history = node_histories(home_store())["10.0.0.3"]
    # two failures on one of eight nodes: 1/64 for one node, 1/8 for any of them
    assert (history.expected, history.is_suspect) == (0.25, False)
    assert history.chance == pytest.approx(1 / 8)
    _fail(3, "n3", FailureClass.NETWORK)
    assert _suspects() == ["10.0.0.3"]


@pytest.mark.parametrize("kind", [FailureClass.CODE, FailureClass.CONFIG, FailureClass.MEMORY, FailureClass.PREEMPTION])
def test_failures_of_the_program_or_the_scheduler_make_no_suspect(kind: FailureClass) -> None:
    for number in range(6):
        _fail(number, "n3", kind)
    assert len(node_histories(home_store())["10.0.0.3"].failures) == 6
    assert _suspects() == []


def test_failures_everywhere_and_those_of_runs_on_one_node_make_no_suspect() -> None:
    for number in range(16):
        _fail(number, f"n{number % 8}")
    for number in range(16, 32):
        _fail(number, "n5", nodes="n5")
    assert _suspects() == []


def test_node_that_failed_before_it_was_observed_took_part() -> None:
    for number in range(2):
        kind = FailureClass.NODE
        folder = _started(number, "n[3-4]")
        record = folder.update(failure=Failure(kind, kind.retry, nodes=("n4", "n4")), state=RunState.FAILED)
        node_cache.keep_end(folder, record, ("n3",))
    history = node_histories(home_store())["10.0.0.4"]
    assert (history.attempts, len(history.failures), history.chances) == (2, 2, [0.5, 0.5])
    assert _suspects() == []


def test_trial_leaves_nothing_in_the_history_of_its_nodes(home: Path) -> None:
    folder = _started(1)
    failure = Failure(FailureClass.NODE, FailureClass.NODE.retry, nodes=("n3",))
    record = folder.update(request={"is_trial": True}, state=RunState.FAILED, failure=failure)
    node_cache.keep_end(folder, record)
    keep_cause(folder, record)
    keep_findings(folder, [Finding(Severity.WARN, "clock", "off", ("n1",))])
    assert not (home / "nodes.jsonl").exists()


def test_only_the_last_four_weeks_count(home: Path) -> None:
    for number in range(4):
        _fail(number, "n3")
    assert _suspects() == ["10.0.0.3"]
    file = home / "nodes.jsonl"
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**entry, "time": entry["time"] - 29 * 86400}) + "\n" for entry in entries))
    assert node_histories(home_store()) == {}


def test_full_file_becomes_the_older_one_and_both_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "LIMIT_BYTES", 300)
    for number in range(3):
        _fail(number, "n3")
    assert node_histories(home_store())["10.0.0.3"].attempts >= 2
    assert sum(path.stat().st_size for path in home.glob("nodes*.jsonl")) < 3 * 300


def test_damaged_lines_are_left_out(home: Path) -> None:
    _fail(1, "n3")
    with (home / "nodes.jsonl").open("a") as file:
        file.write('[]\n{"time": "?"}\n{"time": 1.0}\n\xff{"time"\n')
        file.write(json.dumps({"time": time.time(), "run": "r", "findings": [{"check": "clock"}]}) + "\n")
        end = {"run": "r", "attempt": 1, "class": None, "failed": [], "text": "", "nodes": "n[3-"}
        file.write(json.dumps({"time": time.time(), **end}) + "\n")
    assert node_histories(home_store())["10.0.0.3"].attempts == 1


def test_findings_of_checks_are_counted_per_node() -> None:
    folder = _started(1)
    keep_findings(
        folder, [Finding(Severity.WARN, "clock", "off", ("n1", "n2")), Finding(Severity.WARN, "all", "no node")]
    )
    histories = node_histories(home_store())
    assert {address: history.findings for address, history in histories.items()} == {
        "10.0.0.1": {"clock": 1},
        "10.0.0.2": {"clock": 1},
    }


def _row(history: NodeHistory) -> Sequence[object]:
    [row] = history_rows({"n3": history})
    return row


def test_nodes_show_their_past_and_the_evidence() -> None:
    for number in range(3):
        _fail(number, "n3")
    history = node_histories(home_store())["10.0.0.3"]
    assert _row(history) == ("n3", 3, "3 node", "-", "-", "n3 broke")
    [text] = suspicions({"n3": history})
    assert text.startswith(
        "n3 is a suspect: 3 failures of the last 28 days began on it, where chance explains 0.4 (probability 0.02)"
    )
    assert "demo-20260102-120000-0002; a launch with --exclude-suspects leaves it out" in text


INVENTORY = """\
name: demo
devices: 1
accelerator: cpu
slurm: {login: login0}
nodes: [{name: "n[0-7]", address: "10.0.0.[0-7]", workdir: /w}]
"""


def _planned(tmp_path: Path, nodes: str | None) -> tuple[list[str], tuple[str, ...]]:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    arguments = LaunchArguments("ssh", "inventory.yaml", nodes, None, None, (), ("/bin/true",), exclude_suspects=True)
    planned = plan_launch(arguments)
    return [node.name for node in planned.plan.nodes], planned.warnings


def test_launch_excludes_suspects_and_reports_it(tmp_path: Path) -> None:
    assert _planned(tmp_path, "n[3-4]") == (["n3", "n4"], ())
    for number in range(3):
        _fail(number, "n3")
    names, [warning] = _planned(tmp_path, None)
    assert names == ["n0", "n1", "n2", "n4", "n5", "n6", "n7"]
    assert warning.startswith("--exclude-suspects: n3 is a suspect: 3 failures of the last 28 days")
    assert _planned(tmp_path, "n4,n3,n0")[0] == ["n0", "n4"]
    with pytest.raises(UsageError, match="--exclude-suspects leaves no node: n3"):
        _planned(tmp_path, "n3")


def test_slurm_does_not_choose_suspects_either() -> None:
    for number in range(3):
        _fail(number, "n3")
    inventory = Inventory(name="demo", nodes=NODES, slurm=SlurmOptions(exclude="n[6-7]"))
    arguments = LaunchArguments("slurm", None, None, None, None, (), ("/bin/true",))
    changed, same, _ = without_suspects(inventory, arguments)
    assert (changed.slurm.exclude, same.nodes, len(changed.nodes)) == ("n6,n7,n3", None, 7)
    changed, named, _ = without_suspects(inventory, replace(arguments, nodes="n[2-3]"))
    assert (changed.slurm.exclude, named.nodes) == ("n[6-7]", "n2")
    by_option = inventory.model_copy(update={"slurm": SlurmOptions(options=("--exclude=n6", "--nice"))})
    merged = without_suspects(by_option, arguments)[0].slurm
    assert (merged.exclude, merged.options) == ("n6,n3", ("--nice",))
    with pytest.raises(UsageError, match="--here uses the nodes of the allocation"):
        without_suspects(inventory, replace(arguments, here=True))
