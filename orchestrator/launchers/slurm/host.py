"""Where Slurm's commands are: on this machine, or on a login node that is reached over SSH."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestrator.backoff import backoff
from orchestrator.endpoint.access import PlannedSsh, SshSettings, Terminal, TransportFactory, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.replies import CommandResult, RunTrace
from orchestrator.endpoint.this_machine import is_own_name
from orchestrator.errors import LaunchError, NodeError, Unreachable
from orchestrator.launchers.slurm import submit
from orchestrator.launchers.slurm.queue import ASK_S, run_here
from orchestrator.node.rendezvous import is_loopback
from orchestrator.plan.files import sbatch_path, submission_path
from orchestrator.plan.plan import LaunchPlan, NodePlan

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node

PATIENCE_S = 60.0  # a submission whose answer was lost is worth some waiting for the connection
LAST_RETRY_S = 5.0
SUBMIT_S = 120.0  # a controller that is busy or just starting is waited for by sbatch itself


class SlurmHost(Protocol):
    """The machine that submits, asks and cancels, and that has the workdir which the nodes share."""

    @property
    def name(self) -> str:
        """What to call it in a message."""
        ...

    @property
    def jump(self) -> str | None:
        """What ssh is to go through on its way to the nodes; None where it starts on that machine."""
        ...

    def is_at(self, node: NodePlan) -> bool:
        """Whether that machine is evidently the node itself."""
        ...

    def require(self) -> None:
        """
        Make sure that jobs can be submitted there.

        Raises:
            LaunchError: it cannot be reached, or has no sbatch.
        """
        ...

    def endpoint(self) -> Endpoint:
        """Its files, connected anew where the connection was lost."""
        ...

    def trace(self, plan: LaunchPlan) -> RunTrace | None:
        """
        What the run has left there by now.

        Raises:
            NodeError: the machine cannot be reached.
        """
        ...

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """
        Run a command of Slurm; 127 when there is none, 124 when it does not answer.

        Raises:
            NodeError: the machine cannot be reached.
        """
        ...

    def submit(self, plan: LaunchPlan) -> str:
        """
        Submit the plan's batch script, which is there, and return the job's id; never twice, however often it is asked.

        Raises:
            LaunchError: sbatch gave no id.
        """
        ...

    def withdraw(self, plan: LaunchPlan) -> str | None:
        """See to it that what was not yet submitted never is; the job's id if it was."""
        ...

    def close(self) -> None:
        """Close the connections; jobs go on."""
        ...


def slurm_host(plan: LaunchPlan, terminal: Terminal | None = None) -> SlurmHost:
    """The host of the plan's Slurm; a login asks its questions at `terminal`."""
    if plan.slurm["login"] is None:
        return ThisMachine(plan.head)
    login = login_node(plan.slurm["login"], plan.head, PlannedSsh(**plan.ssh))
    return ThisMachine(plan.head) if login is None else LoginNode(login, transport_factory("ssh", plan.ssh, terminal))


N = TypeVar("N", "Node", NodePlan)
T = TypeVar("T")


def login_node(login: str | None, node: N, ssh: SshSettings) -> N | None:
    """
    The machine to log in to for Slurm, `login`, in all else like one of the nodes; None where Slurm's commands are here.

    This machine is taken for the login node only where `login` names it and it has sbatch: a laptop with a Slurm client is none.
    """
    if login is None:
        return None
    from orchestrator.endpoint.this_machine import is_here  # noqa: PLC0415  reads ssh_config, as only this case needs

    target = _renamed(node, login)
    return None if shutil.which("sbatch") is not None and is_here(target, ssh) else target


def home_of_slurm(inventory: Inventory) -> str | None:
    """The user's home where Slurm's commands are; None where nobody knows it without asking."""
    here = login_node(inventory.slurm.login, inventory.nodes[0], inventory.ssh) is None
    return str(Path.home()) if here else None


def _renamed(node: N, name: str) -> N:
    if isinstance(node, NodePlan):
        return replace(node, name=name, address=name)
    return node.model_copy(update={"name": name, "address": name})


class ThisMachine:
    """It has sbatch, and shares the workdir with the nodes."""

    name = "this machine"
    jump = None

    def __init__(self, head: NodePlan) -> None:
        self._head = head
        self._connection: Endpoint | None = None
        self._connecting = threading.Lock()
        self._aside: threading.Thread | None = None

    def require(self) -> None:
        """By a look at PATH."""
        missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
        if missing:
            raise LaunchError(
                f"no {' and no '.join(missing)} on PATH: Slurm jobs cannot be submitted from this machine",
                hint="name the cluster's login node, slurm: {login: HOST}, or run orch there, or use orch ssh-launch",
            )
        self._aside = threading.Thread(target=self._prepare, daemon=True)
        self._aside.start()

    def _prepare(self) -> None:
        """Load what a submission needs, while the cluster is queried."""
        with contextlib.suppress(NodeError):  # reported when it is needed
            self.endpoint()
        submit.preload()

    def is_at(self, node: NodePlan) -> bool:
        """By a name or a loopback address, without a look at ssh's configuration."""
        return is_own_name(node.name) or is_own_name(node.address) or is_loopback(node.address)

    def endpoint(self) -> Endpoint:
        """A process here."""
        with self._connecting:
            if self._connection is None or not self._connection.connected:
                transport = transport_factory("local", {})(self._head)
                self._connection = Endpoint.connect(transport, self._head.python)
            return self._connection

    def trace(self, plan: LaunchPlan) -> RunTrace | None:
        """By a look at the folder."""
        return self.endpoint().find(plan.head.workdir, plan.run_id)

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """In the environment of orch."""
        return run_here(argv)

    def submit(self, plan: LaunchPlan) -> str:
        """By submitit, which waits for the answer, come what may."""
        if self._aside is not None:
            self._aside.join()  # submitit's modules import each other: two threads that load it wait for each other
        return submit.submit(plan)

    def withdraw(self, plan: LaunchPlan) -> str | None:  # noqa: ARG002  nothing of it is unknown
        """Nothing to withdraw: submit() has already returned."""
        return None

    def close(self) -> None:
        """End the process."""
        if self._aside is not None:
            self._aside.join()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class LoginNode:
    """
    Two endpoints over one SSH connection, for files and for commands, so that a slow scheduler never delays the logs.
    """

    def __init__(self, node: NodePlan, transport: TransportFactory) -> None:
        self._node = node
        self._transport = transport(node)
        self._lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._is_connected = False

    @property
    def name(self) -> str:
        """As the inventory has it."""
        return self._node.name

    @property
    def jump(self) -> str:
        """As ssh_config has it."""
        user, address, port = self._node.user, self._node.address, self._node.port
        host = f"[{address}]" if ":" in address else address
        return f"{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}"

    def is_at(self, node: NodePlan) -> bool:
        """By the name or address that the inventory has for both, or an address that nobody has to himself."""
        return self._node.address in (node.name, node.address) or is_loopback(node.address)

    def require(self) -> None:
        """By asking sbatch for its version."""
        answer = self._command(["sbatch", "--version"])
        if answer.code != 0:
            said = answer.err.strip().splitlines()
            raise LaunchError(
                f"{self.name}: sbatch cannot be run there: {said[-1] if said else f'exit code {answer.code}'}",
                hint=f"it is looked for as a login finds it: `ssh {self._node.address}`, then `which sbatch`",
            )

    def endpoint(self) -> Endpoint:
        """The endpoint that reads and writes files."""
        return self._endpoint("files")

    def trace(self, plan: LaunchPlan) -> RunTrace | None:
        """By a look at the folder there."""
        return self._ask("files", lambda one: one.find(plan.head.workdir, plan.run_id))

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """In the environment of a login. Must be safe to repeat: it is run once more if the connection is lost."""
        answer = self._command(argv)
        return subprocess.CompletedProcess(argv, answer.code, answer.out, answer.err)

    def submit(self, plan: LaunchPlan) -> str:
        """Over a new connection if the first is lost; the second returns the answer to what the first began."""
        answer = self._submission(plan, begin=True)
        if answer.code != 0:
            raise submit.refusal(answer.err)
        if job := submit.job_id(answer.out):
            return job
        raise LaunchError(f"{self.name}: sbatch gave no job id: {answer.out.strip()!r}")

    def withdraw(self, plan: LaunchPlan) -> str | None:
        """Waits for one that is under way."""
        answer = self._submission(plan, begin=False)
        return submit.job_id(answer.out) if answer.code == 0 else None

    def close(self) -> None:
        """Close the connection."""
        endpoints = list(self._endpoints.values())
        self._endpoints.clear()
        self._is_connected = False
        for endpoint in endpoints:
            endpoint.close()

    def _submission(self, plan: LaunchPlan, *, begin: bool) -> CommandResult:
        argv, mark = submit.sbatch_command(plan, sbatch_path(plan)), submission_path(plan)
        patience_s = PATIENCE_S if begin else 0.0
        return self._ask(
            "commands", lambda one: one.command_once(argv, mark, timeout_s=SUBMIT_S, begin=begin), patience_s
        )

    def _command(self, argv: Sequence[str]) -> CommandResult:
        return self._ask("commands", lambda one: one.command(argv, timeout_s=ASK_S))

    def _ask(self, use: str, ask: Callable[[Endpoint], T], patience_s: float = 0.0) -> T:
        """Repeat over a new connection if the connection is lost: once, and then until `patience_s` is over."""
        deadline, pauses, losses = time.monotonic() + patience_s, backoff(LAST_RETRY_S), 0
        while True:
            endpoint = None
            try:
                endpoint = self._endpoint(use)
                return ask(endpoint)
            except Unreachable:
                losses += endpoint is not None
                if time.monotonic() >= deadline and (endpoint is None or losses > 1):
                    raise
            time.sleep(next(pauses))

    def _endpoint(self, use: str) -> Endpoint:
        with self._lock:
            known = self._endpoints.get(use)
            if known is None or not known.connected:
                known = self._endpoints[use] = self._opened()
            return known

    def _opened(self) -> Endpoint:
        """Over the connection that there is; where that was lost, failing has closed it, and the second try makes another one."""
        was_connected, self._is_connected = self._is_connected, False
        try:
            endpoint = Endpoint.connect(self._transport, self._node.python)
        except Unreachable:
            if not was_connected:
                raise
            endpoint = Endpoint.connect(self._transport, self._node.python)
        self._is_connected = True
        return endpoint
