"""Runs Slurm's commands on a login node, over SSH."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from orchestrator.backoff import backoff
from orchestrator.endpoint.access import SshSettings, TransportFactory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import RunTrace
from orchestrator.endpoint.replies import CommandResult
from orchestrator.errors import LaunchError, Unreachable
from orchestrator.launchers.slurm import submit
from orchestrator.launchers.slurm.environment import FILTERS, removed_from_sbatch
from orchestrator.launchers.slurm.queue import COMMAND_S
from orchestrator.node.rendezvous import is_loopback
from orchestrator.plan.files import sbatch_command, submission_path
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.plan.sbatch import sbatch_options

if TYPE_CHECKING:
    from orchestrator.inventory.model import Node

RECONNECT_S = 60.0  # how long to reconnect for the lost reply of a submission
LAST_RETRY_S = 5.0
SUBMIT_S = 120.0  # sbatch itself waits for a controller that is busy or just starting

N = TypeVar("N", "Node", NodePlan)
T = TypeVar("T")


def login_node(login: str | None, node: N, ssh: SshSettings) -> N | None:
    """
    Return the host `login` with the other settings of `node`, or None if Slurm's commands are on this machine.

    This machine is the login node only if `login` names it and it has sbatch: a laptop with a Slurm client does not count.
    """
    if login is None:
        return None
    from orchestrator.endpoint.this_machine import is_this_machine  # reads ssh_config, which only this case needs

    host = _renamed(node, login)
    return None if shutil.which("sbatch") is not None and is_this_machine(host, ssh) else host


def _renamed(node: N, name: str) -> N:
    if isinstance(node, NodePlan):
        return replace(node, name=name, address=name, container=None)
    return node.model_copy(update={"name": name, "address": name, "container": None})


class LoginNode:
    """
    A SlurmHost over SSH.

    Two endpoints share one SSH connection, one for files and one for commands, so that a slow scheduler never delays the logs.
    """

    def __init__(self, node: NodePlan, transport: TransportFactory) -> None:
        self._node = node
        self._transport = transport(node)
        self._lock = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._is_connected = False

    @property
    def name(self) -> str:
        """The name in the inventory."""
        return self._node.name

    @property
    def jump(self) -> str:
        """The login node as ProxyJump in ssh_config takes it."""
        user, address, port = self._node.user, self._node.address, self._node.port
        host = f"[{address}]" if ":" in address else address
        return f"{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}"

    def is_node(self, node: NodePlan) -> bool:
        """Compare name and address in the inventory; a loopback address means the login node as well."""
        return self._node.address in (node.name, node.address) or is_loopback(node.address)

    def require_sbatch(self) -> None:
        """Run `sbatch --version`."""
        result = self._command(["sbatch", "--version"])
        if result.code != 0:
            lines = result.err.strip().splitlines()
            raise LaunchError(
                f"{self.name}: sbatch cannot be run there: {lines[-1] if lines else f'exit code {result.code}'}",
                hint=f"it is looked for as a login finds it: `ssh {self._node.address}`, then `which sbatch`",
            )

    def endpoint(self) -> Endpoint:
        """The endpoint that reads and writes files."""
        return self._endpoint("files")

    def trace(self, plan: LaunchPlan, *, log_bytes: int = 0) -> RunTrace | None:
        """Read the run's folder there."""
        return self._request(
            "files", lambda endpoint: endpoint.find(plan.head.workdir, plan.run_id, log_bytes=log_bytes)
        )

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run it in the environment of a login. It must be safe to repeat: a lost connection makes it run twice."""
        result = self._command(argv)
        return subprocess.CompletedProcess(argv, result.code, result.out, result.err)

    def environment(self) -> Mapping[str, str]:
        """The environment of a login."""
        listed = self._request("commands", lambda endpoint: endpoint.command(["env"], removed="", timeout_s=COMMAND_S))
        return dict(re.findall(r"^([A-Za-z_]\w*)=(.*)$", listed.out, re.MULTILINE))

    def submit(self, plan: LaunchPlan) -> str:
        """Run sbatch once. If the connection is lost, a second request returns the result of the first."""
        result = self._submission(plan, begin=True)
        if result.code != 0:
            raise submit.refusal(result.err)
        if job := submit.job_id(result.out):
            return job
        raise LaunchError(f"{self.name}: sbatch gave no job id: {result.out.strip()!r}")

    def withdraw(self, plan: LaunchPlan) -> str | None:
        """Prevent a later sbatch; wait for one that is running."""
        result = self._submission(plan, begin=False)
        return submit.job_id(result.out) if result.code == 0 else None

    def close(self) -> None:
        """Close the connection."""
        endpoints = list(self._endpoints.values())
        self._endpoints.clear()
        self._is_connected = False
        for endpoint in endpoints:
            endpoint.close()

    def _submission(self, plan: LaunchPlan, *, begin: bool) -> CommandResult:
        argv, record = sbatch_command(plan), submission_path(plan)
        removed = removed_from_sbatch(sbatch_options(plan))

        def sbatch_once(endpoint: Endpoint) -> CommandResult:
            return endpoint.command_once(argv, record, removed=removed, timeout_s=SUBMIT_S, begin=begin)

        return self._request("commands", sbatch_once, RECONNECT_S if begin else 0.0)

    def _command(self, argv: Sequence[str]) -> CommandResult:
        return self._request("commands", lambda endpoint: endpoint.command(argv, removed=FILTERS, timeout_s=COMMAND_S))

    def _request(
        self, use: Literal["files", "commands"], request: Callable[[Endpoint], T], reconnect_s: float = 0.0
    ) -> T:
        """Make a request; if the connection is lost, repeat it over a new one: once, then until `reconnect_s` have passed."""
        deadline, pauses, losses = time.monotonic() + reconnect_s, backoff(LAST_RETRY_S), 0
        while True:
            endpoint = None
            try:
                endpoint = self._endpoint(use)
                return request(endpoint)
            except Unreachable:
                if endpoint is not None and use not in self._endpoints:  # closed by another thread
                    raise
                losses += endpoint is not None
                if time.monotonic() >= deadline and (endpoint is None or losses > 1):
                    raise
            time.sleep(next(pauses))

    def _endpoint(self, use: Literal["files", "commands"]) -> Endpoint:
        with self._lock:
            endpoint = self._endpoints.get(use)
            if endpoint is None or not endpoint.connected:
                endpoint = self._endpoints[use] = self._connect()
            return endpoint

    def _connect(self) -> Endpoint:
        """Open an endpoint over the shared connection. If that was lost, the failure closes it, and a second try logs in."""
        was_connected = self._is_connected
        self._is_connected = False
        try:
            endpoint = Endpoint.connect(self._transport, self._node.python)
        except Unreachable:
            if not was_connected:
                raise
            endpoint = Endpoint.connect(self._transport, self._node.python)
        self._is_connected = True
        return endpoint
