"""The launcher without a scheduler, on this machine."""

from __future__ import annotations

import resource
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.code.files import Code
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import NodeObservation
from orchestrator.endpoint.replies import StopResult
from orchestrator.errors import LaunchError, NodesError, Unreachable
from orchestrator.inventory.model import Inventory, Node, SshOptions
from orchestrator.launchers.direct import PORT_TRIES, DirectLauncher
from orchestrator.launchers.push import space_warnings
from orchestrator.node.protocol.push import PutRunReply
from orchestrator.node.run.memory_folder import memory_folder
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import resolve
from orchestrator.progress import OnShare, no_progress
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport
from orchestrator.verdict.observe import observe_reachable, observe_run
from tests.launchers.starting import push_and_start
from tests.until import until

pytestmark = pytest.mark.processes


class PortTakenLauncher(DirectLauncher):
    """Another program listens on the rendezvous port right after it was reserved, `times_taken` times, with SO_REUSEADDR set."""

    times_taken = 1
    records: list[str]
    listeners: list[socket.socket]

    def _reserve(self) -> str:
        record = super()._reserve()
        self.records.append(record)
        if len(self.records) <= self.times_taken:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(record.split()[1])))
            listener.listen()
            self.listeners.append(listener)
        return record


def _launcher(
    tmp_path: Path, *, times_taken: int = 0, code: Code | None = None
) -> tuple[PortTakenLauncher, LaunchPlan, bundles.Bundle]:
    nodes = tuple(Node(name=name, python=sys.executable, workdir=str(tmp_path / "work")) for name in ("n0", "n1"))
    inventory = Inventory(name="here", transport="local", nodes=nodes)
    bundle = bundles.build(trainer=False, code=code)
    request = Request("ssh", Program("executable", ("sh", "-c", "echo $ORCH_SHARED_DIR $MASTER_PORT")))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle=bundle.digest)
    launcher = PortTakenLauncher(plan, lambda node: LocalTransport(node.name))
    launcher.times_taken, launcher.records, launcher.listeners = times_taken, [], []
    return launcher, plan, bundle


class AnsweringTogether(Endpoint):
    """A connected endpoint that answers a request once all of them have got it."""

    def __init__(self, together: threading.Barrier) -> None:
        self.together = together

    @property
    def connected(self) -> bool:
        return True

    def stop(
        self,
        attempt_dir: str,
        nodes: Sequence[str] | None,
        *,
        grace_s: float,
        keeps_standby: bool = False,
    ) -> list[StopResult]:
        self.together.wait()
        return []

    def observe(self, attempt_dir: str, nodes: Sequence[str] | None) -> list[NodeObservation]:
        self.together.wait()
        return []

    def put_files(self, folder: str, files: object) -> None:
        self.together.wait()

    def close(self) -> None:
        self.together.wait()


def test_requests_over_open_connections_go_to_all_nodes_at_once_whatever_the_limit_of_logins(tmp_path: Path) -> None:
    nodes = tuple(Node(name=f"n{index}") for index in range(3))
    inventory = Inventory(name="here", transport="local", nodes=nodes, ssh=SshOptions(fanout=1))
    request = Request("ssh", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    together = threading.Barrier(3, timeout=10)
    connected = {node.name: AnsweringTogether(together) for node in nodes}
    launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name), connected)
    launcher.write(plan, {node.name: [] for node in nodes})
    for observe in (observe_run, observe_reachable):
        assert observe(RunFolder(tmp_path), plan, launcher, None).missing is None
    assert launcher.stop(None, grace_s=0.0) == []
    launcher.close()


def _alive(launcher: PortTakenLauncher) -> list[str]:
    observations = [
        node
        for folder in launcher.attempt_folders(launcher.attempt())
        for node in folder.endpoint.observe(folder.attempt_dir, folder.nodes)
    ]
    return [node.node for node in observations if node.alive]


def _close(launcher: PortTakenLauncher) -> None:
    for listener in launcher.listeners:
        listener.close()
    launcher.close()


def test_taken_port_is_retried_on_another_one(tmp_path: Path) -> None:
    launcher, plan, bundle = _launcher(tmp_path, times_taken=1)
    try:
        push_and_start(launcher, bundle)
        first, second = (record.split()[1] for record in launcher.records)
        assert first != second
        outputs = [tmp_path / f"work/runs/{plan.run_id}/attempt-1/n{rank}/rank-{rank}.out" for rank in (0, 1)]
        # the other node did not need the port and may have run once before
        until(
            lambda: [path.is_file() and path.read_text().split()[-1:] for path in outputs] == [[second]] * 2,
            awaited="all",
        )
        until(lambda: not _alive(launcher), awaited="both agents to end")
        shared = f"{tmp_path}/work/runs/{plan.run_id}/shared"
        assert [path.read_text().split()[0] for path in outputs] == [shared] * 2
    finally:
        _close(launcher)


def test_port_that_is_taken_every_time_fails_the_launch_and_undo_ends_the_agents(tmp_path: Path) -> None:
    launcher, _, bundle = _launcher(tmp_path, times_taken=PORT_TRIES)
    try:
        with pytest.raises(LaunchError, match="rendezvous port"):
            push_and_start(launcher, bundle)
        assert len(launcher.records) == PORT_TRIES
        assert launcher.undo() == []
        assert not _alive(launcher)
    finally:
        _close(launcher)


def test_start_of_a_restart_that_fails_keeps_the_states_in_memory(tmp_path: Path) -> None:
    """It may be begun once more, on another port or with another spare node; the owner frees them if it gives up."""
    launcher, plan, bundle = _launcher(tmp_path, times_taken=PORT_TRIES)
    run = f"here-20260102-030405-{secrets.token_hex(2)}"
    launcher.begin_attempt(replace(plan, run_id=run, attempt=2, earlier=(("n0", "n1"),)))
    memory = Path(memory_folder(run, "n0"))
    memory.mkdir(mode=0o700)
    try:
        with pytest.raises(LaunchError, match="rendezvous port"):
            push_and_start(launcher, bundle)
        assert launcher.undo() == []
        assert not _alive(launcher)
        assert memory.is_dir()
        assert launcher.stop(None, grace_s=0.0) == []
        assert not memory.exists()
    finally:
        _close(launcher)
        if memory.exists():
            memory.rmdir()


def test_node_with_a_limit_of_the_size_of_files_is_named_and_gets_no_damaged_byte_code(tmp_path: Path) -> None:
    """Its endpoint starts the agent in a fork, which imports the rest from the folder that all runs of the code share."""
    launcher, plan, bundle = _launcher(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))  # enough for the code
    try:
        launcher.connect(launcher.plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    try:
        with pytest.raises(NodesError, match="files may have 256 KiB here, too little for an agent"):
            push_and_start(launcher, bundle)
        assert launcher.undo() == []
    finally:
        _close(launcher)
    assert (tmp_path / "work/bundles" / plan.bundle).is_dir()
    assert list(tmp_path.rglob("*.pyc")) == []


def test_much_space_for_code_is_named_once_for_the_fullest_node() -> None:
    def sentences(*sizes: int) -> tuple[str, ...]:
        inventory = Inventory(
            name="here", nodes=tuple(Node(name=f"n{index}", workdir="/w") for index in range(len(sizes)))
        )
        request = Request("ssh", Program("executable", ("true",)))
        plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
        replies = [PutRunReply(is_first=True, is_written=True, runs=20, runs_code_bytes=size) for size in sizes]
        return space_warnings(list(zip(plan.nodes, replies, strict=True)))

    assert sentences(0, 1_999_999_999) == ()
    expected = "n1: the code of 20 runs takes up to 3.25 GB in /w; `orch gc` removes runs that have ended"
    assert sentences(2 * 10**9, 3_250_000_000, 0) == (expected,)


class PushedEndpoint(Endpoint):
    """Records the nodes to which a bundle is sent."""

    pushed: ClassVar[list[str]] = []

    def put_bundle(self, workdir: str, digest: str, tar: bytes, sha256: str, *, on_sent: OnShare = no_progress) -> None:
        self.pushed.append(self.node)
        super().put_bundle(workdir, digest, tar, sha256, on_sent=on_sent)


@pytest.mark.parametrize("workdirs", [("a", "a", "a"), ("a", "b", "b")])
def test_code_is_sent_once_per_file_system(tmp_path: Path, workdirs: tuple[str, ...]) -> None:
    nodes = tuple(
        Node(name=f"n{rank}", python=sys.executable, workdir=str(tmp_path / folder))
        for rank, folder in enumerate(workdirs)
    )
    bundle = bundles.build(trainer=False, code=None)
    request = Request("ssh", Program("executable", ("true",)))
    inventory = Inventory(name="here", transport="local", nodes=nodes)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle=bundle.digest)
    PushedEndpoint.pushed.clear()
    endpoints = {node.name: PushedEndpoint.connect(LocalTransport(node.name), sys.executable) for node in nodes}
    launcher = DirectLauncher(plan, lambda node: LocalTransport(node.name), endpoints)
    try:
        launcher.push(plan, bundle)
    finally:
        launcher.close()
    assert len(PushedEndpoint.pushed) == len(set(workdirs))
    for node in plan.nodes:
        assert (Path(plan.run_dir(node)) / "code").is_dir()
        assert (Path(plan.run_dir(node)) / "shared").exists() == (len(set(workdirs)) == 1)


def test_code_that_is_saved_after_the_plan_is_not_pushed_under_its_digest(tmp_path: Path) -> None:
    """The plan's digest names a folder on the nodes, which later runs of the same code use without a push."""
    code = Code(tmp_path / "project", "", ("train.py",))
    code.root.mkdir()
    (code.root / "train.py").write_text("old")
    launcher, plan, bundle = _launcher(tmp_path, code=code)
    (code.root / "train.py").write_text("new")
    try:
        launcher.push(plan, bundle)
    finally:
        launcher.close()
    pushed = tmp_path / "work/bundles" / plan.bundle / "code"
    assert (pushed / "train.py").read_text() == "old"
    assert bundles.build(trainer=False, code=Code(pushed, "", ("train.py",))).digest == plan.bundle


def test_new_node_without_the_shared_folder_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    launcher, plan, bundle = _launcher(tmp_path)
    with closing(launcher):
        launcher.connect(launcher.plan)
        plan = resolve(plan, launcher.push(plan, bundle))
        assert plan.is_shared
        stranger = replace(plan.nodes[1], name="s0", workdir=str(tmp_path / "elsewhere"))
        following = replace(plan, attempt=2, nodes=(plan.nodes[0], stranger))
        launcher.connect(following)
        launcher.begin_attempt(following)
        with pytest.raises(NodesError, match="s0: does not share the folder of the run"):
            launcher.push(following, bundle)
    assert not list((tmp_path / "elsewhere").rglob("job.json"))


def test_launcher_without_reconnects_leaves_them_to_the_other_until_the_event(tmp_path: Path) -> None:
    launcher, plan, _ = _launcher(tmp_path)
    with closing(launcher):
        may_reconnect = threading.Event()
        reader = launcher.without_reconnects(may_reconnect)
        launcher.reach(plan.head).close()
        with pytest.raises(Unreachable, match="the connection was lost"):
            reader.reach(plan.head)
        assert reader.reach(plan.nodes[1]) is launcher.reach(plan.nodes[1])
        may_reconnect.set()
        assert reader.reach(plan.head) is launcher.reach(plan.head)


def test_attempt_that_was_begun_here_is_not_learnt_from_an_older_record(tmp_path: Path) -> None:
    launcher, plan, _ = _launcher(tmp_path)
    with closing(launcher):
        reader = launcher.without_reconnects(threading.Event())
        spares = [replace(plan.nodes[1], name=name, env={"TOKEN": "1"}) for name in ("s0", "s1")]
        begun = [replace(plan, attempt=2, nodes=(plan.nodes[0], spare)) for spare in spares]
        for following in begun:  # the start on s0 has failed
            launcher.begin_attempt(following)
        recorded = replace(begun[0], nodes=tuple(replace(node, env={}) for node in begun[0].nodes))
        reader.learn_attempt(recorded)
        assert launcher.plan == begun[1]
        reader.learn_attempt(replace(recorded, attempt=3))
        assert reader.attempt() == 3
