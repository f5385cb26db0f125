"""The supervisor's process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.access import Destination
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import AgentRecord, Finished, NodeObservation
from orchestrator.errors import LoginRefused, NotListening, OrchError, RunNotFound, Unreachable
from orchestrator.inventory.model import Inventory, Node, SshOptions
from orchestrator.launch.planned import Launched
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.node.isolation import SILENT_S
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Program, RankExit, Request, RunRecord, RunState
from orchestrator.supervision.link import OwnerLink, frame, messages
from orchestrator.supervision.poller import NodeState, Poller
from orchestrator.supervision.queries import STOP
from orchestrator.supervision.restart import DirectAttempt, Restarts
from orchestrator.supervision.silence import END_S
from orchestrator.supervision.spares import Spares
from orchestrator.supervision.supervisor import Supervisor, supervise
from orchestrator.supervision.termination import EndedAttempt
from orchestrator.transports.local import LocalTransport
from orchestrator.usecases.owner import owner
from orchestrator.verdict.failing import waits
from orchestrator.verdict.judge import Verdict
from orchestrator.verdict.launching import this_process
from orchestrator.verdict.observe import judge_observations
from tests.supervision.attempts import StubAttempts
from tests.until import until


class Answering(NodeState):
    """A refusing node that answers between two reads of the state."""

    __slots__ = ("reads",)

    @property
    def refusing_s(self) -> float | None:
        return next(self.reads)

    @refusing_s.setter
    def refusing_s(self, _: float | None) -> None:
        self.reads: Iterator[float | None] = chain([time.monotonic() - 60], repeat(None))


def test_node_that_answers_while_it_is_judged_does_not_end_the_supervision(tmp_path: Path) -> None:
    nodes = (Node(name="n0"), Node(name="n1"))
    inventory = Inventory(name="here", nodes=nodes, ssh=SshOptions(refused_timeout_s=60))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(tmp_path)
    folder.write_plan(plan)
    supervisor = Supervisor(folder, DirectLauncher(plan, lambda node: LocalTransport(node.name)))
    state = Answering(plan.nodes[1], time.monotonic() - 60, failure=NotListening("n1", "connection refused"))
    verdict = supervisor._silence._judge_silence(state, [])  # the poll thread cannot be timed
    assert verdict is not None
    text = "n1 has refused connections for 60 s, longer than ssh.refused_timeout_s: n1: connection refused"
    assert verdict.message == text


@dataclass(frozen=True, slots=True)
class FinishingFolder(RunFolder):
    """The folder of a run whose node finishes after the observations of the first judgement, while the run is launched."""

    nodes: list[NodeState] = field(default_factory=list)

    def is_stop_requested(self) -> bool:
        [node] = self.nodes
        if node.observation is None:
            finished = Finished("DONE", time.time(), None)
            node.observation = NodeObservation(
                "n0", None, alive=False, same_boot=True, finished=finished, first_failure=None
            )
        elif self.read().launching is not None:
            self.update(launching=None, started=True)
        return False


def test_supervisor_records_a_node_that_finishes_after_the_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory(name="here", nodes=(Node(name="n0"),))
    plan = make_plan(
        inventory, Request("ssh", Program("executable", ("true",))), run_id="here-20260102-030405-0abc", bundle="b"
    )
    folder = FinishingFolder(tmp_path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.STARTING, "", {}, {}, {}, {}, launching=this_process()))
    folder.write_plan(plan)
    supervisor = Supervisor(folder, DirectLauncher(plan, lambda node: LocalTransport(node.name)))
    monkeypatch.setattr(Poller, "check", lambda _: None)  # nothing is polled here
    folder.nodes.extend(supervisor._states.values())  # the poll thread cannot be timed
    verdict = supervisor._until_over()
    assert verdict is not None
    assert verdict.state is RunState.DONE


def _running(path: Path) -> RunFolder:
    """The folder of a running run on one node."""
    inventory = Inventory(name="here", nodes=(Node(name="n0"),))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    return folder


def _supervisor(folder: RunFolder) -> Supervisor:
    """A supervisor that has polled no node yet."""
    return Supervisor(folder, DirectLauncher(folder.read_plan(), lambda node: LocalTransport(node.name)))


@pytest.mark.processes
def test_lost_and_silent_nodes_delay_the_end_by_one_unanswered_query_and_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the answer to a stop would be 50 s, and that for the first answer after a login 30 s."""
    monkeypatch.setattr("orchestrator.supervision.termination.HEARTBEAT_ANSWER_S", 5.0)
    monkeypatch.setattr("orchestrator.transports.local.EXIT_WAIT_S", 0.1)
    inventory = Inventory(name="here", nodes=tuple(Node(name=f"n{index}") for index in range(4)))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(tmp_path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    logins: list[str] = []

    def transport(node: Destination) -> LocalTransport:
        logins.append(node.name)
        return LocalTransport(node.name)

    launcher = DirectLauncher(plan, transport)
    with closing(launcher):
        launcher.connect(launcher.plan)
        supervisor = Supervisor(folder, launcher)
        os.kill(launcher.reach(plan.nodes[1]).facts.pid, signal.SIGSTOP)  # it is killed when its channel is closed
        launcher.reach(plan.nodes[2]).close()
        supervisor._states["n3"].login_refused = True  # nothing is polled here
        begun = time.monotonic()
        failure = RankExit("n2", 2, 7, None)  # its last lines are on a lost node
        ended = supervisor._termination.end(Verdict(RunState.FAILED, failure, "n9 is gone"))  # the end alone
        assert time.monotonic() - begun < 25
    assert sorted(logins) == ["n0", "n1", "n2", "n3"]
    assert [node.name for node in ended.unreached] == ["n1", "n2", "n3"]
    assert not ended.running
    assert ended.verdict.message == "n9 is gone; the run may still run on n3, which refused the login"


def test_run_is_ended_after_the_nodes_have_been_stopped_by_a_query_and_not_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand nodes would get two requests at once, and late answers would count as lost connections."""
    folder, launcher = _run(tmp_path)
    folder.update(state=RunState.RUNNING, started=True)
    folder.request_stop()
    judgements, stopped = threading.Semaphore(0), list[str]()
    supervisor = Supervisor(folder, launcher)
    monkeypatch.setattr(Poller, "check", lambda _: judgements.release())  # nothing is polled here
    monkeypatch.setattr("orchestrator.supervision.supervisor.TICK_S", 0.01)

    def stop_nodes(*_: object, **__: object) -> list[str]:
        [state] = supervisor._states.values()  # the poll thread cannot be timed
        finished = Finished("STOPPED", time.time(), None)
        state.observation = NodeObservation(
            "n0", None, alive=False, same_boot=True, finished=finished, first_failure=None
        )
        for _judgement in range(3):
            assert judgements.acquire(timeout=60)
        stopped.append("n0")
        return []

    monkeypatch.setattr(launcher, "stop_nodes", stop_nodes)
    query = threading.Thread(target=supervisor._answers.by_kind[STOP])
    query.start()
    verdict = supervisor._until_over()
    assert stopped == ["n0"]
    query.join()
    assert verdict is not None
    assert verdict.state is RunState.STOPPED


def test_second_supervisor_of_a_run_does_nothing(tmp_path: Path) -> None:
    folder, launcher = _run(tmp_path)
    with folder.supervision() as is_ours:
        assert is_ours
        assert not supervise(folder, launcher, lambda: pytest.fail("it supervises"), lambda: None)


def test_supervisor_that_cannot_read_the_plan_records_why_it_has_ended(tmp_path: Path) -> None:
    folder, launcher = _run(tmp_path)
    folder.plan_folder.joinpath("plan.json").unlink()
    with pytest.raises(RunNotFound):
        supervise(folder, launcher, lambda: None, lambda: None)
    *_, last = map(json.loads, (tmp_path / "events.jsonl").read_text("utf-8").splitlines())
    assert last["event"] == "supervisor-failed"
    assert last["text"].startswith("RunNotFound: ")
    assert last["text"].endswith("; the supervisor has ended, see supervisor.log")


def test_full_disk_does_not_end_a_supervision_that_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poller, "running", lambda _: nullcontext())  # no node is queried
    folder, launcher = _run(tmp_path)
    folder.update(unsupervised={"n0": "the login was refused"})
    for name in ("supervisor.lock", "events.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    folder.change_lock.unlink()
    folder.change_lock.mkdir()  # the record cannot be changed

    class Started(Exception):
        """The supervision has begun."""

    def on_start() -> None:
        raise Started

    with pytest.raises(Started):
        supervise(folder, launcher, on_start, lambda: None)


def test_supervisor_that_fails_names_the_command_for_another_one(tmp_path: Path) -> None:
    folder, launcher = _run(tmp_path)
    (tmp_path / "supervisor.lock").mkdir()
    viewer, far = socket.socketpair()
    with viewer:
        viewer.sendall(frame({"follow": True}))
        link = OwnerLink(far)
        with pytest.raises(IsADirectoryError):
            owner._supervise(link, Launched(folder, launcher))
        link.end()
        [message] = messages(viewer)
    link.join()
    assert message["text"].startswith("the supervisor of the run has failed (")
    assert message["text"].endswith(f"); `orch attach {tmp_path.name}` starts another one")


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _end(folder: RunFolder) -> None:
    folder.update(state=RunState.FAILED)


@pytest.mark.processes
def test_supervisor_without_threads_continues_and_records_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, launcher = _run(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    monkeypatch.setattr("orchestrator.supervision.termination.RETURN_S", 0.0)
    failed: list[bool] = []
    with contextlib.closing(launcher):
        assert supervise(folder, launcher, partial(_end, folder), lambda: failed.append(True))
    assert failed == [True]
    texts = [json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert "n0: it is not polled: can't start new thread: your user may have no more (ulimit -u)" in texts
    assert "n0 answers again, and its remaining processes are ended" in texts
    assert "FAILED: nothing is left running" in texts


def test_run_whose_logs_get_no_thread_is_supervised_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, launcher = _run(tmp_path)
    viewer, end = socket.socketpair()
    with viewer:
        viewer.sendall(frame({"follow": True, "quiet": False}))
        link = OwnerLink(end)
        with monkeypatch.context() as patch:
            patch.setattr(owner, "supervise", lambda _, __, begin, ___, **____: begin() is None)
            patch.setattr(threading.Thread, "start", _refuse)
            assert owner._supervise(link, Launched(folder, launcher))  # the other threads must start
        link.end()
        launched, error = messages(viewer)
        assert launched["kind"] == "launched"
        assert error["type"] == "LaunchError"
        assert error["text"].endswith("cannot be shown: can't start new thread; the run continues")
        assert "ulimit -u" in error["hint"]
    link.join()


def _run(path: Path) -> tuple[RunFolder, DirectLauncher]:
    """A run of one node that has not begun."""
    inventory = Inventory(name="here", nodes=(Node(name="n0"),))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.STARTING, "", {}, {}, {}, {}))
    folder.write_plan(plan)
    return folder, DirectLauncher(plan, lambda node: LocalTransport(node.name))


def test_node_that_refuses_the_login_or_keeps_processes_after_it_was_lost_may_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = _supervisor_of(tmp_path, 4)
    outcomes: dict[str, list[str] | OrchError] = {
        "n0": [],
        "n1": ["pid 17"],
        "n2": LoginRefused("n2", "no key"),
        "n3": Unreachable("n3", "no route"),
    }
    monkeypatch.setattr("orchestrator.supervision.termination.RETRY_S", 0.01)
    monkeypatch.setattr(
        "orchestrator.supervision.termination.map_parallel", lambda nodes, *_, **__: [outcomes[n.name] for n in nodes]
    )
    unreached, running = supervisor._termination.end_returning_nodes(
        supervisor._plan.nodes, 0.1
    )  # the end of a run alone
    assert [node.name for node in unreached] == ["n3"]
    assert running == {"n1", "n2"}
    events = [json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert events == [
        "n0 answers again, and its remaining processes are ended",
        "n1 answers again, and these could not be ended: pid 17",
    ]


def test_processes_of_a_returning_node_are_ended_during_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = _supervisor_of(tmp_path, 2)
    verdict = Verdict(RunState.FAILED, message="n1 is gone")
    ended = EndedAttempt(verdict, supervisor._plan.nodes[1:], frozenset(), frozenset())
    monkeypatch.setattr(supervisor._termination, "end", lambda _: ended)
    has_returned, calls = threading.Event(), list[str]()

    def stop(_: DirectLauncher, node: NodePlan) -> list[str]:
        calls.append(node.name)
        has_returned.set()
        return []

    def diagnose() -> None:
        assert has_returned.wait(60)
        assert supervisor._folder.read().state is RunState.FAILED
        calls.append("diagnosed")

    monkeypatch.setattr(supervisor._termination, "stop", stop)
    assert not supervisor._finish(verdict, diagnose, None)  # the end of a run alone
    assert calls == ["n1", "diagnosed"]


@pytest.mark.parametrize("lost", [0, 1])
def test_diagnosis_that_fails_ends_the_supervision_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    supervisor = _supervisor_of(tmp_path, 2)
    verdict = Verdict(RunState.FAILED, message="n1 is gone")
    ended = EndedAttempt(verdict, supervisor._plan.nodes[:lost], frozenset(), frozenset())
    monkeypatch.setattr(supervisor._termination, "end", lambda _: ended)
    monkeypatch.setattr(supervisor._termination, "stop", lambda *_: [])

    def diagnose() -> None:
        raise RunNotFound("the record cannot be read")

    with pytest.raises(RunNotFound, match="the record cannot be read"):
        supervisor._finish(verdict, diagnose, None)  # the end of a run alone


def test_failure_is_diagnosed_without_another_thread_if_no_node_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = _supervisor_of(tmp_path, 1)
    verdict = Verdict(RunState.FAILED, message="rank 0 failed")
    monkeypatch.setattr(supervisor._termination, "end", lambda _: EndedAttempt(verdict, (), frozenset(), frozenset()))
    diagnosed = list[bool]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        assert not supervisor._finish(verdict, lambda: diagnosed.append(True), None)
    assert diagnosed == [True]


def test_wait_for_lost_nodes_ends_when_the_run_is_stopped(tmp_path: Path) -> None:
    supervisor = _supervisor_of(tmp_path, 1)
    supervisor._folder.request_stop()
    nodes = supervisor._plan.nodes
    assert supervisor._termination.end_returning_nodes(nodes, 600.0, supervisor._is_over) == (nodes, frozenset())


def test_node_that_reached_the_head_during_the_wait_may_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node measures its isolation from 0 again, so the end of the wait proves nothing."""
    supervisor = _supervisor_of(tmp_path, 2)
    supervisor._plan = replace(supervisor._plan, wait_for_nodes_s=0.0)
    monkeypatch.setattr("orchestrator.supervision.supervisor.BOOT_S", 0.0)
    monkeypatch.setattr(supervisor._silence, "isolation_wait_s", lambda *_: 0.0)
    isolated = {"n1"}
    monkeypatch.setattr(supervisor._silence, "isolated", lambda *_: set(isolated))

    def wait(nodes: Sequence[NodePlan], _: float, is_over: Callable[[], bool]) -> object:
        isolated.clear()
        assert not is_over()
        isolated.add("n1")
        return nodes, frozenset[str]()

    monkeypatch.setattr(supervisor._termination, "end_returning_nodes", wait)
    restarts = Restarts(supervisor._folder, 3, StubAttempts(connect=lambda _: pytest.fail("it restarts")))
    ended = EndedAttempt(Verdict(RunState.FAILED), supervisor._plan.nodes[1:], frozenset(), frozenset())
    assert supervisor._restart(restarts, ended) == "not restarted: processes of the run may still run on n1"


@pytest.mark.parametrize(
    ("names", "is_reached", "most_waits"),
    [(("n0", "n1"), True, 3), (("n0", "n1"), False, 3), (("n0", "n1", "s0"), True, 3), (("n0", "n1", "s0"), False, 1)],
    ids=["it boots at the end of the wait", "it boots later", "it boots, and there is a spare", "a spare replaces it"],
)
def test_lost_node_is_waited_for_until_it_is_back_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], *, is_reached: bool, most_waits: int
) -> None:
    """A node that boots is reached by the head before it answers. The record names what is waited for, and until when."""
    supervisor = _supervisor_of(tmp_path, names=names)
    folder, [_, lost] = supervisor._folder, supervisor._plan.nodes  # nothing is polled here
    answers = iter([(lost,), (lost,), ()])
    records, started = list[RunRecord](), list[list[str]]()
    monkeypatch.setattr(supervisor._silence, "isolated", lambda *_: set() if is_reached and records else {"n1"})

    def wait(*_: object) -> tuple[Sequence[NodePlan], frozenset[str]]:
        records.append(folder.read())
        return next(answers), frozenset()

    def start(plan: LaunchPlan) -> None:
        started.append([node.name for node in plan.nodes])

    monkeypatch.setattr(supervisor._termination, "end_returning_nodes", wait)
    verdict = Verdict(RunState.FAILED, message="n1 is gone", failed_nodes=("n1",))
    ended = EndedAttempt(verdict, [lost], frozenset(), frozenset())
    assert supervisor._restart(Restarts(folder, 3, StubAttempts(start=start)), ended) == ""
    assert len(records) == most_waits
    assert started == [["n0", "n1"] if most_waits > 1 else ["n0", "s0"]]
    has_spare = "s0" in names
    begins, clock = "attempt 2 begins when n1 answers", r"\d\d:\d\d:\d\d"
    otherwise = "; the run ends if it does not by {} (--wait-for-nodes)", ", at the latest at {}, without it"
    pattern = re.escape(begins + otherwise[has_spare]).replace(r"\{\}", clock)
    assert re.fullmatch(pattern, str(waits(records[0])))
    assert folder.read().failing is None


def test_lost_node_is_waited_for_no_longer_than_wait_for_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = _supervisor_of(tmp_path, 2)
    supervisor._plan = replace(supervisor._plan, wait_for_nodes_s=0.0)
    monkeypatch.setattr("orchestrator.supervision.supervisor.BOOT_S", 0.0)
    monkeypatch.setattr(supervisor._silence, "isolation_wait_s", lambda *_: 0.0)
    monkeypatch.setattr(supervisor._silence, "isolated", lambda *_: {"n1"})
    monkeypatch.setattr(supervisor._termination, "end_returning_nodes", lambda nodes, *_: (nodes, frozenset()))
    ended = EndedAttempt(Verdict(RunState.FAILED), supervisor._plan.nodes[1:], frozenset(), frozenset())
    reason = supervisor._restart(Restarts(supervisor._folder, 3, StubAttempts()), ended)
    text = "no spare node is left; waited for 0 s (--wait-for-nodes)"
    assert reason == f"not restarted: n1 cannot be reached, and {text}"


def test_cause_of_an_attempt_is_known_to_all_while_its_ranks_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a later supervisor: the agents that were stopped are a consequence."""
    supervisor = _supervisor_of(tmp_path, 2)
    folder, plan = supervisor._folder, supervisor._plan  # nothing is polled here
    cause = Verdict(RunState.FAILED, message="n1 is gone: it has not answered", failed_nodes=("n1",))
    stopped = NodeObservation(
        "n0", AGENT, alive=False, same_boot=True, finished=Finished("STOPPED", 1.0, None), first_failure=None
    )
    messages = list[str | None]()

    def end(verdict: Verdict) -> EndedAttempt:
        messages.append(judge_observations(folder, plan, (stopped,), None).verdict.message)
        later = Supervisor(folder, supervisor._launcher)
        for state in later._states.values():
            state.observation = replace(stopped, node=state.node.name)
        verdict_of_later = later._judge()
        assert verdict_of_later is not None
        messages.append(verdict_of_later.message)
        return EndedAttempt(verdict, (), frozenset(), frozenset())

    monkeypatch.setattr(supervisor._termination, "end", end)
    assert not supervisor._finish(cause, lambda: None, None)
    assert messages == [cause.message, cause.message]
    assert (folder.read().message, folder.read().failing) == (cause.message, None)


@pytest.mark.parametrize(
    ("progress", "lost", "change", "may_leave"),
    [
        ({"restart_at_once": True}, ("n1", "n2"), {}, True),
        ({"restart_at_once": 1}, ("n1",), {}, False),
        ({"step": 3}, ("n1",), {}, False),
        ({"restart_at_once": True}, (), {}, False),
        ({"restart_at_once": True}, ("n0", "n1"), {}, False),
        ({"restart_at_once": True}, ("n1",), {"running": {"n0"}}, False),
        ({"restart_at_once": True}, ("n1",), {"stopped": "n1"}, False),
        ({"restart_at_once": True}, ("n1", "n2"), {"reached": {"n2"}}, False),
        ({"restart_at_once": True}, ("n1", "n2"), {"refusing": {"n2"}}, False),
        ({"restart_at_once": True}, ("n1",), {"isolation_timeout_s": None}, False),
    ],
)
def test_ranks_of_lost_nodes_are_left_if_the_program_allows_it_and_they_will_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    progress: dict[str, Any],
    lost: Sequence[str],
    change: dict[str, Any],
    *,
    may_leave: bool,
) -> None:
    """n1 was found gone; whether n2 is, too, the node of rank 0 has to find out."""
    supervisor = _supervisor_of(tmp_path, 3)
    states = supervisor._states  # nothing is polled here
    for name, state in states.items():
        state.observation = NodeObservation(
            name,
            AGENT,
            alive=True,
            same_boot=True,
            finished=None,
            first_failure=None,
            progress={0: progress} if name == "n0" else {},
            stopped=change.get("stopped") == name,
        )
    states["n1"].unreached_s = time.monotonic()
    if "isolation_timeout_s" in change:
        supervisor._plan = replace(supervisor._plan, isolation_timeout_s=None)

    class Head:
        def reach(self, addresses: list[str], _: int) -> set[str]:
            return set(addresses).intersection(change.get("reached", ()))

    monkeypatch.setattr(supervisor._launcher, "reach", lambda _: Head())
    ended = EndedAttempt(
        Verdict(RunState.FAILED),
        [states[name].node for name in lost],
        frozenset(change.get("refusing", ())),
        frozenset(change.get("running", ())),
    )
    assert supervisor._may_leave_ranks(ended) is may_leave


@pytest.mark.parametrize(
    ("names", "waits"), [(("n0", "n1", "s0"), False), (("n0", "n1"), True)], ids=["spare node", "no spare node"]
)
def test_lost_node_is_waited_for_if_no_other_can_replace_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], *, waits: bool
) -> None:
    """It may answer, and is used again then."""
    supervisor = _supervisor_of(tmp_path, names=names)
    monkeypatch.setattr(supervisor, "_may_leave_ranks", lambda _: True)
    monkeypatch.setattr(supervisor._silence, "isolated", lambda *_: {"n1"})
    started, was_ended = list[list[str]](), threading.Event()

    def wait(*_: object) -> tuple[Sequence[NodePlan], frozenset[str]]:
        return (), frozenset()

    def end(_: DirectLauncher, node: NodePlan) -> list[int]:
        assert node.name == "n1"
        was_ended.set()
        return []

    def start(plan: LaunchPlan) -> None:
        started.append([node.name for node in plan.nodes])

    monkeypatch.setattr(supervisor, "_until_isolated", wait)
    monkeypatch.setattr(supervisor._termination, "stop", end)
    restarts = Restarts(supervisor._folder, 3, StubAttempts(start=start))
    ended = EndedAttempt(
        Verdict(RunState.FAILED, message="n1 is gone"),
        supervisor._plan.nodes[1:],
        frozenset(),
        frozenset(),
    )
    assert supervisor._restart(restarts, ended) == ""
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    texts = {event["event"]: event["text"] for event in events}
    remark = "it does not wait for n1, whose ranks save nothing without rank 0, which has ended on n0"
    assert (remark in texts["run-restarts"]) is not waits
    if waits:
        assert started == [["n0", "n1"]]
        lack = "not restarted: n1 cannot be reached, and no spare node is left"
        assert texts["restart-put-off"] == f"{lack}; n1 may answer again"
        assert supervisor.cleanup is None
    else:
        assert started == [["n0", "s0"]]
        assert was_ended.wait(60)
        assert supervisor.cleanup is not None
        supervisor.cleanup.join()


@pytest.mark.parametrize("is_used", [False, True], ids=["unused", "used again"])
def test_node_lost_in_a_restart_at_once_keeps_its_memory_only_if_a_later_attempt_runs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_used: bool
) -> None:
    supervisor, freed = _supervisor_of(tmp_path, names=("n0", "n1", "s0")), list[str]()
    launcher, plan = supervisor._launcher, supervisor._plan  # the cleanup alone
    nodes = plan.nodes if is_used else (plan.head, *plan.spares)
    launcher.begin_attempt(replace(plan, attempt=2, nodes=nodes))
    monkeypatch.setattr(supervisor._termination, "stop", lambda *_: [])
    monkeypatch.setattr(launcher, "end_standby", lambda node: freed.append(node.name))
    restarts = Restarts(supervisor._folder, 3, None)
    monkeypatch.setattr(restarts, "begin", lambda *_, **__: "")
    ended = EndedAttempt(Verdict(RunState.FAILED), plan.nodes[1:], frozenset(), frozenset())
    attempt = DirectAttempt.of(ended.verdict, [], ["n1"], ["n1"])
    assert supervisor._restart_at_once(restarts, ended, attempt) == ""
    assert supervisor.cleanup is not None
    supervisor.cleanup.join()
    assert freed == ([] if is_used else ["n1"])


@pytest.mark.parametrize("is_left", [False, True], ids=["ended before the restart", "ended by a cleanup"])
def test_lost_node_that_answers_before_the_restart_and_is_replaced_keeps_no_state_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_left: bool
) -> None:
    supervisor, freed = _supervisor_of(tmp_path, names=("n0", "n1", "s0")), list[str]()
    launcher, plan = supervisor._launcher, supervisor._plan  # the end of the attempt alone
    verdict = Verdict(RunState.FAILED, message="n1 is gone")

    def restart(*_: object) -> str:
        launcher.begin_attempt(replace(plan, attempt=2, nodes=(plan.head, *plan.spares)))
        supervisor.cleanup = threading.Thread() if is_left else None
        return ""

    monkeypatch.setattr(
        supervisor._termination, "end", lambda _: EndedAttempt(verdict, plan.nodes[1:], frozenset(), frozenset())
    )
    monkeypatch.setattr(supervisor, "_restart", restart)
    monkeypatch.setattr(launcher, "connected_endpoint", lambda node: node)
    monkeypatch.setattr(launcher, "end_standby", lambda node: freed.append(node.name))
    assert supervisor._finish(verdict, lambda: None, Restarts(supervisor._folder, 3, None))
    assert freed == ([] if is_left else ["n1"])


def test_node_whose_agent_is_stopped_does_not_end_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = _supervisor_of(tmp_path, 3)
    for name, state in supervisor._states.items():  # nothing is polled here
        state.observation = NodeObservation(
            name, AGENT, alive=True, same_boot=True, finished=None, first_failure=None, peer_answered=True
        )

    class Peer:
        def reach(self, _: list[str], __: int) -> set[str]:
            return set()

    monkeypatch.setattr(supervisor._launcher, "reach", lambda _: Peer())
    for name in ("n0", "n1"):
        state = supervisor._states[name]
        assert supervisor._silence.isolated({name}, ()) == {name}
        assert state.observation is not None
        state.observation = replace(state.observation, stopped=True)
        assert supervisor._silence.isolated({name}, ()) == set()
        state.observation = replace(state.observation, stopped=False)


@pytest.mark.parametrize(
    ("lost", "refusing", "reached", "isolated"),
    [
        ({"n1", "n2"}, (), {"n2"}, {"n1"}),
        ({"n1", "n2"}, ("n1",), set(), {"n2"}),
        ({"n0", "n1"}, (), set(), set()),
        ({"n1"}, (), None, set()),
    ],
)
def test_lost_node_ends_itself_only_if_the_head_answers_and_does_not_reach_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: set[str],
    refusing: tuple[str, ...],
    reached: set[str] | None,
    isolated: set[str],
) -> None:
    """A node that only this machine cannot reach keeps its ranks, so a second attempt would run beside them."""
    supervisor = _supervisor_of(tmp_path, 3)
    supervisor._states["n0"].observation = NodeObservation(  # nothing is polled here
        "n0", AGENT, alive=True, same_boot=True, finished=None, first_failure=None
    )

    class Head:
        def reach(self, addresses: list[str], port: int) -> set[str]:
            assert port == 29500
            if reached is None:
                raise Unreachable("n0", "no answer")
            return reached & set(addresses)

    monkeypatch.setattr(supervisor._launcher, "reach", lambda _: Head())
    assert supervisor._silence.isolated(lost, refusing) == isolated


@pytest.mark.parametrize(
    ("lost", "refusing", "peer_answered", "answers", "is_isolated"),
    [
        ({"n0"}, (), True, {}, True),
        ({"n0"}, (), False, {}, False),  # a firewall may drop each probe: it would continue
        ({"n0"}, (), True, {"n2": {"n0"}}, False),
        ({"n0"}, (), True, {"n1": {"127.0.0.1"}}, False),  # the address of the rendezvous
        ({"n0"}, (), True, {"n1": Unreachable("n1", "no answer")}, False),
        ({"n0"}, ("n0",), True, {}, False),  # its host is up
        ({"n0", "n1"}, (), True, {}, False),  # n1 may be one of the peers that it reaches
    ],
)
def test_lost_head_ends_itself_only_if_it_has_reached_a_peer_and_no_other_node_reaches_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: set[str],
    refusing: tuple[str, ...],
    *,
    peer_answered: bool,
    answers: dict[str, set[str] | Unreachable],
    is_isolated: bool,
) -> None:
    supervisor = _supervisor_of(tmp_path, 3)
    supervisor._states["n0"].observation = NodeObservation(  # nothing is polled here
        "n0", AGENT, alive=True, same_boot=True, finished=None, first_failure=None, peer_answered=peer_answered
    )

    class Peer:
        def __init__(self, node: NodePlan) -> None:
            self.name = node.name

        def reach(self, addresses: list[str], port: int) -> set[str]:
            assert (addresses, port) == (["127.0.0.1", "n0"], 29500)
            answer = answers.get(self.name, set())
            if isinstance(answer, Unreachable):
                raise answer
            return answer

    monkeypatch.setattr(supervisor._launcher, "reach", Peer)
    assert supervisor._silence.isolated(lost, refusing) == (lost if is_isolated else set())


def test_lost_node_that_answers_after_the_failure_keeps_no_state_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, freed = _supervisor_of(tmp_path, 4), list[str]()
    lost = supervisor._plan.nodes[1:]  # the end of a run alone
    verdict = Verdict(RunState.FAILED, message="n1-3 are gone")
    monkeypatch.setattr(supervisor._termination, "end", lambda _: EndedAttempt(verdict, lost, frozenset(), frozenset()))
    monkeypatch.setattr(supervisor._termination, "end_returning_nodes", lambda *_: (lost[1:2], frozenset(["n3"])))
    monkeypatch.setattr(supervisor._launcher, "connected_endpoint", lambda node: node)
    monkeypatch.setattr(supervisor._launcher, "end_standby", lambda node: freed.append(node.name))
    assert not supervisor._finish(verdict, lambda: None, None)
    assert freed == ["n0", "n1"], "n2 has not answered, and ranks may still run on n3"


def test_restart_waits_from_when_the_head_did_not_reach_the_lost_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes may need the grace to end, in which the lost one is cut off, too."""
    supervisor = _supervisor_of(tmp_path, 4)
    head, lost, lost_later = (supervisor._states[name] for name in ("n0", "n1", "n2"))  # nothing is polled here
    for witnesses, has_moment in (([lost_later], False), ([head, lost_later], True)):
        answers = {state.node.name: False for state in witnesses}
        monkeypatch.setattr(supervisor._silence, "_reached_from", lambda *_, answers=answers: answers)
        lost.witnesses_queried_s = float("-inf")
        verdict = supervisor._silence._judge_silence(lost, witnesses)
        assert verdict is not None
        assert (lost.unreached_s is not None) is has_moment
    lost.unreached_s = time.monotonic() - 30  # the end of the others took so long
    wait_s = supervisor._silence.isolation_wait_s
    waited = [wait_s([lost.node], 0.0)]
    waited.append(wait_s([lost.node, lost_later.node], 0.0))  # n2 was lost meanwhile
    whole_s = 60 + SILENT_S + GRACE_S + END_S
    assert waited[0] <= whole_s - 30
    assert waited[1] == whole_s
    lost.unreached_s = time.monotonic() - 74
    waited.append(wait_s([lost.node], time.monotonic()))  # a heartbeat may have arrived after the query
    assert waited[2] > waited[0] - 30


@pytest.mark.processes
def test_endpoints_of_the_other_nodes_get_requests_while_the_restart_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint ends after a minute without one, and the wait may be longer."""
    monkeypatch.setattr("orchestrator.connections.pool.KEEP_S", 0.01)
    supervisor = _supervisor_of(tmp_path, 3)
    launcher, (n0, lost, _) = supervisor._launcher, supervisor._plan.nodes
    times_s: list[float] = []

    def wait(nodes: Sequence[NodePlan], *_: object) -> tuple[Sequence[NodePlan], frozenset[str]]:
        until(lambda: len(times_s) > 2, awaited="requests to n0")
        return nodes, frozenset()

    def clock_ahead(endpoint: Endpoint, *, wait_s: float) -> tuple[float, float]:
        assert endpoint.node == "n0", "n1 is lost, and n2 has no connection"
        times_s.append(wait_s)
        return 0.0, 0.0

    with closing(launcher):
        launcher.reach(n0)
        launcher.reach(lost)
        monkeypatch.setattr(supervisor._termination, "end_returning_nodes", wait)
        monkeypatch.setattr(Endpoint, "clock_ahead", clock_ahead)
        assert supervisor._until_isolated([lost], 0.0, lambda: False) == ([lost], frozenset())  # the wait alone
        times_s.clear()
        monkeypatch.setattr(Spares, "nodes", [n0])
        supervisor._until_isolated([n0, lost], 0.0, lambda: False)  # a spare node's endpoint, too


AGENT = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0,), 1, "127.0.0.1 29500 host", 0.0)


def _supervisor_of(path: Path, count: int = 0, *, names: Sequence[str] = ()) -> Supervisor:
    """The supervisor of a run on this many nodes, or the named ones, whose agents have started; names of spare nodes begin with s."""
    chosen = names or [f"n{index}" for index in range(count)]
    nodes = [Node(name=name, tags=("spare",) if name[0] == "s" else ()) for name in chosen]
    inventory = Inventory(name="here", nodes=tuple(nodes))
    program = Program("executable", ("true",))
    request = Request("ssh", program, isolation_timeout_s=60.0, max_retries=3)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    folder = RunFolder(path)
    folder.write(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", {}, {}, {}, {}, started=True))
    folder.write_plan(plan)
    return Supervisor(folder, DirectLauncher(plan, lambda node: LocalTransport(node.name)))
