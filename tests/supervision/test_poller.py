"""The threads that poll nodes: how many log in at the same time, and how often they retry."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.endpoint.access import Destination
from orchestrator.endpoint.client import Endpoint, Heartbeat
from orchestrator.endpoint.observation import AgentRecord, NodeObservation
from orchestrator.errors import LoginRefused, NodeError, Unreachable
from orchestrator.inventory.model import Inventory, Node, SshOptions
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.supervision import poller as poller_module
from orchestrator.supervision.answers import Answers
from orchestrator.supervision.poller import Poller
from orchestrator.transports.local import LocalChannel, LocalTransport
from orchestrator.transports.ssh import login_queue
from orchestrator.transports.ssh.login_queue import LoginQueue
from orchestrator.usecases.runs.refresh import Refreshed
from tests.until import until


class Logins:
    """Counts logins, which fail when the gate opens."""

    def __init__(self, failure: type[NodeError] = Unreachable) -> None:
        self.failure = failure
        self.gate = threading.Event()
        self.begun: dict[str, list[float]] = defaultdict(list)
        self.ended = 0

    def transport(self, node: str) -> LocalTransport:
        logins = self

        class Slow(LocalTransport):
            def open(self, argv: Sequence[str]) -> LocalChannel:  # nothing is started
                logins.begun[node].append(time.monotonic())
                logins.gate.wait()
                logins.ended += 1
                raise logins.failure(node, "nobody there")

        return Slow(node)


def _plan(nodes: int, fanout: int) -> LaunchPlan:
    names = [Node(name=f"n{index}") for index in range(nodes)]
    inventory = Inventory(name="here", nodes=tuple(names), ssh=SshOptions(fanout=fanout))
    request = Request("ssh", Program("executable", ("true",)))
    return make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")


def test_refused_login_is_recorded_shown_and_retried_after_a_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the ssh agent of the terminal that launched the run is gone."""
    monkeypatch.setattr("orchestrator.supervision.poller.FIRST_LOGIN_RETRY_S", 0.02)
    logins, plan = Logins(LoginRefused), _plan(1, 1)
    logins.gate.set()
    unknown: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
    folder = Store(tmp_path).create(RunRecord(plan.run_id, "ssh", RunState.RUNNING, "", started=True, **unknown))
    poller = Poller(folder, plan, DirectLauncher(plan, lambda node: logins.transport(node.name)))
    with folder.supervision(), poller.running():
        until(lambda: len(logins.begun["n0"]) > 2, awaited="two retries")
        poller.check()
        assert folder.read().unsupervised == {"n0": "nobody there"}
        warning = Refreshed(folder, folder.read()).unsupervised()
        assert warning.startswith("n0 continue without supervision: the supervisor cannot log in: nobody there")
        assert f"`orch attach {plan.run_id}`" in warning
    assert (folder.path / "events.jsonl").read_text().count("n0 continues without supervision") == 1


def _poller(tmp_path: Path, logins: Logins, *, nodes: int, fanout: int) -> Poller:
    plan = _plan(nodes, fanout)
    launcher = DirectLauncher(plan, lambda node: logins.transport(node.name))
    return Poller(RunFolder(tmp_path), plan, launcher)


def test_node_whose_login_hangs_keeps_no_other_node_from_its_login(tmp_path: Path) -> None:
    """The transports limit the logins, and a silent node keeps no login slot."""
    logins = Logins()
    with _poller(tmp_path, logins, nodes=6, fanout=2).running():
        until(lambda: len(logins.begun) == 6, awaited=lambda: f"six logins: {logins.begun}")
        logins.gate.set()


def test_time_in_the_queue_for_a_login_does_not_count_as_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [1000.0]
    for module in (poller_module, login_queue):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    queued, freed = threading.Event(), threading.Event()

    @contextmanager
    def login_slots() -> Iterator[None]:
        queued.set()
        assert freed.wait(60)
        yield

    class Queued(LocalTransport):
        queue = LoginQueue(login_slots())

        @property
        def queued_s(self) -> float:  # type: ignore[override]  # constant for a local transport
            return self.queue.waited_s

        def open(self, argv: Sequence[str]) -> LocalChannel:  # nothing is started
            with self.queue.slot():
                logged_in.set()
                assert answers.wait(60)
            raise Unreachable("n0", "nobody there")

    logged_in, answers = threading.Event(), threading.Event()
    plan = _plan(1, 1)
    poller = Poller(RunFolder(tmp_path), plan, DirectLauncher(plan, lambda node: Queued(node.name)))
    with poller.running():
        assert queued.wait(60)
        clock_s[0] += 20
        assert poller.silent_s(poller.states["n0"]) == 0
        freed.set()
        assert logged_in.wait(60)
        clock_s[0] += 5
        assert poller.silent_s(poller.states["n0"]) == 5
        poller.stop()
        answers.set()


def test_unreachable_node_is_polled_after_growing_pauses_that_no_two_nodes_share(tmp_path: Path) -> None:
    logins = Logins()
    logins.gate.set()
    with _poller(tmp_path, logins, nodes=2, fanout=2).running():
        until(lambda: all(len(logins.begun[node]) > 5 for node in ("n0", "n1")), awaited="six tries each")
    first, second = ([end - begin for begin, end in pairwise(times[:6])] for times in logins.begun.values())
    assert first[3] > first[0]
    assert second[3] > second[0]
    assert any(abs(pause - peers_pause) > 0.05 for pause, peers_pause in zip(first, second, strict=True))


class AnsweringNode(Endpoint):
    """A connected endpoint that answers heartbeats with the states of a queue, and repeats the last one."""

    def __init__(self, states: list[object]) -> None:
        self.states = states
        self.heartbeats = 0

    @property
    def connected(self) -> bool:
        return True

    def heartbeat(self, attempt_dir: str, node: str, heartbeat: Heartbeat) -> tuple[NodeObservation, object]:
        self.heartbeats += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return NodeObservation(node, None, alive=True, same_boot=True, finished=None, first_failure=None), state

    def close(self) -> None:
        pass


def test_heartbeats_without_news_do_not_wake_the_supervisor(tmp_path: Path) -> None:
    """A thousand nodes answer hundreds of times per second, and the supervisor judges all nodes each time that it wakes."""
    plan, node = _plan(1, 1), AnsweringNode(["started"])
    poller = Poller(RunFolder(tmp_path), plan, DirectLauncher(plan, _unused, {"n0": node}))

    def heartbeats(count: int) -> None:
        before = node.heartbeats
        until(lambda: node.heartbeats > before + count, awaited="heartbeats")

    with poller.running():
        until(poller.changed.is_set, awaited="the first state")
        poller.changed.clear()
        heartbeats(3)
        assert not poller.changed.is_set()
        node.states += ["rank exited"]
        until(poller.changed.is_set, awaited="the second state")


def test_nodes_without_a_thread_are_named_and_polled_as_soon_as_the_user_may_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    plan, node = _plan(2, 2), AnsweringNode(["started"])
    launcher = DirectLauncher(plan, _unused, dict.fromkeys(("n0", "n1"), node))
    poller, start = Poller(RunFolder(tmp_path), plan, launcher), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with poller.running():
        poller.check()
        monkeypatch.setattr(threading.Thread, "start", start)
        answer = Answers(plan, launcher, poller.states).by_kind["observe"]()
        assert answer is not None
        reason = "it is not polled: can't start new thread: your user may have no more (ulimit -u)"
        assert [(each["node"], each["reason"]) for each in answer["failures"]] == [("n0", reason), ("n1", reason)]
        poller.check()
        until(lambda: all(state.observation for state in poller.states.values()), awaited="the answers")
        assert [state.failure for state in poller.states.values()] == [None, None]


def test_connection_that_gets_no_thread_is_retried(tmp_path: Path) -> None:
    """As at the limit of the user: each connection over SSH has a thread."""
    starts = []

    class Limited(LocalTransport):
        def open(self, argv: Sequence[str]) -> LocalChannel:
            starts.append(argv)
            raise RuntimeError("can't start new thread")

    plan = _plan(1, 1)
    with Poller(RunFolder(tmp_path), plan, DirectLauncher(plan, lambda node: Limited(node.name))).running():
        until(lambda: len(starts) > 1, awaited="a second start")
    assert "n0: can't start new thread" in (tmp_path / "events.jsonl").read_text()


def _unused(node: Destination) -> LocalTransport:
    raise AssertionError(node)


@pytest.mark.parametrize(
    ("phases", "prepared"),
    [({0: "step", 1: "save"}, ["n0"]), ({0: "step", 1: "init"}, []), ({0: "step"}, []), ({}, [])],
)
def test_a_node_prepares_a_restart_once_all_its_ranks_train(
    tmp_path: Path, phases: dict[int, str], prepared: list[str]
) -> None:
    names: list[str] = []

    class Launcher(DirectLauncher):
        def stand_by(self, name: str, rendezvous: str) -> None:
            assert rendezvous == "127.0.0.1 1 host"
            names.append(name)

    inventory = Inventory(name="here", nodes=(Node(name="n0", devices=2),))
    plan = make_plan(inventory, Request("ssh", Program("trainer", ())), run_id="here-20260102-030405-0abc", bundle="b")
    poller = Poller(RunFolder(tmp_path), plan, Launcher(plan, lambda node: LocalTransport(node.name)))
    agent = AgentRecord(1, 1, 1, "boot", "host", "n0", "3.11", "n0", 0, (0, 1), 2, "127.0.0.1 1 host", 0.0)
    progress = {rank: {"phase": phase} for rank, phase in phases.items()}
    observation = NodeObservation(
        "n0", agent, alive=True, same_boot=True, finished=None, first_failure=None, progress=progress
    )
    endpoint = Endpoint(LocalTransport("n0"), "python3")
    poller._prepare_restart(poller.states["n0"], endpoint, observation)  # after each answer
    assert names == prepared
    assert list(poller.prepared) == prepared
