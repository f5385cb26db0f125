"""Runs Slurm's commands on this machine, which shares the workdir with the nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence

from orchestrator.endpoint.access import transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.observation import RunTrace
from orchestrator.endpoint.this_machine import is_this_host_name
from orchestrator.errors import LaunchError, NodeError
from orchestrator.launchers.slurm import submit
from orchestrator.launchers.slurm.queue import run_here
from orchestrator.node.rendezvous import is_loopback
from orchestrator.plan.plan import LaunchPlan, NodePlan


class ThisMachine:
    """A SlurmHost without a login: sbatch is installed here."""

    name = "this machine"
    jump = None

    def __init__(self, head: NodePlan) -> None:
        self._head = head
        self._connection: Endpoint | None = None
        self._connecting = threading.Lock()
        self._preparation: threading.Thread | None = None

    def require_sbatch(self) -> None:
        """Search PATH, and begin to load what a submission needs."""
        missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
        if missing:
            raise LaunchError(
                f"no {' and no '.join(missing)} on PATH: Slurm jobs cannot be submitted from this machine",
                hint="name the cluster's login node, slurm: {login: HOST}, or run orch there, or use orch ssh-launch",
            )
        self._preparation = threading.Thread(target=self._prepare, daemon=True)
        self._preparation.start()

    def _prepare(self) -> None:
        """Load what a submission needs, while the cluster is queried."""
        with contextlib.suppress(NodeError):  # reported when it is needed
            self.endpoint()
        submit.preload()

    def is_node(self, node: NodePlan) -> bool:
        """Compare host names and loopback addresses; ssh_config is not read."""
        return is_this_host_name(node.name) or is_this_host_name(node.address) or is_loopback(node.address)

    def endpoint(self) -> Endpoint:
        """An endpoint in a process on this machine."""
        with self._connecting:
            if self._connection is None or not self._connection.connected:
                transport = transport_factory("local", {})(self._head)
                self._connection = Endpoint.connect(transport, self._head.python)
            return self._connection

    def trace(self, plan: LaunchPlan, *, log_bytes: int = 0) -> RunTrace | None:
        """Read the run's folder."""
        return self.endpoint().find(plan.head.workdir, plan.run_id, log_bytes=log_bytes)

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run it in the environment of orch."""
        return run_here(argv)

    def environment(self) -> Mapping[str, str]:
        """The environment of orch."""
        return os.environ

    def submit(self, plan: LaunchPlan) -> str:
        """Submit through submitit, which waits until sbatch answers."""
        if self._preparation is not None:
            self._preparation.join()  # submitit's modules import each other: two threads that load them deadlock
        return submit.submit(plan)

    def withdraw(self, plan: LaunchPlan) -> str | None:  # submit() knows the outcome
        """Nothing to withdraw: submit() has already returned."""
        return None

    def close(self) -> None:
        """End the endpoint's process."""
        if self._preparation is not None:
            self._preparation.join()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
