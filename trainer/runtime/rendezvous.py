"""Rendezvous over a key-value store: counts the ranks, names the missing ones, and passes on why a rank failed."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple, Type

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in its __all__, but public

from ..errors import NetworkError, TrainerError, UserError  # relative: scripts import this package under another name
from ..text import by_rank, fold
from ..values import Foreign, JsonValue
from .rank import Rank

JOIN_TIMEOUT_S = 600.0  # torchrun's own limit for a static rendezvous
VERDICT_GRACE_S = 30.0
LEAVE_TIMEOUT_S = 10.0
CAUSE_TIMEOUT_S = 1.0
TIMED_OUT_SHARE = 0.9  # of a limit; an error that comes earlier is a lost connection


def _listen(host: str, port: int) -> Dict[str, Any]:
    """
    Bind the store of rank 0 to that address only; by default torch listens on every interface of the node.

    Returns:
        Keyword arguments of TCPStore; empty if torch is too old, or if the address is not an address of this node.
    """
    if "master_listen_fd" not in (TCPStore.__init__.__doc__ or ""):
        return {}
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # orch's agent holds the port without listening
        try:
            listener.bind(address)
        except OSError as exc:
            if exc.errno == errno.EADDRNOTAVAIL:  # NAT
                return {}
            raise
        listener.listen(socket.SOMAXCONN)
        return {"master_listen_fd": listener.detach()}


@dataclass(frozen=True)
class Failure:
    """The error that ended a rank: message, kind and exit code."""

    message: str
    kind: str
    code: int


@dataclass(frozen=True)
class Rendezvous:
    """
    Every rank reports to rank 0, which publishes the result: a few messages per rank, whatever the world size.

    The store is in rank 0, or in torchrun's agent (`agent_hosts_store`); `leave` keeps rank 0 until the others are done.
    """

    store: Any  # torch.distributed.Store; untyped in torch 1.10
    rank: Rank
    timeout_s: float
    address: str
    agent_hosts_store: bool

    @classmethod
    def open(cls, rank: Rank, env: Mapping[str, str], timeout_s: float) -> Rendezvous:
        """
        Host the store on rank 0, connect to it on the others, within `timeout_s` and torchrun's own limit.

        Raises:
            UserError: MASTER_ADDR or MASTER_PORT is missing or wrong.
            TrainerError: the port is taken, or rank 0 does not answer in time; includes torch's message.
        """
        host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
        if not host or not port.isdigit():
            raise UserError(
                f"WORLD_SIZE is set but MASTER_ADDR={host!r} MASTER_PORT={port!r}: start through orch or torchrun"
            )
        agent_hosts_store = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        hosts = rank.is_main and not agent_hosts_store
        timeout_s = min(timeout_s, JOIN_TIMEOUT_S)
        try:
            listener = _listen(host, int(port)) if hosts else {}
            # wait_for_workers=False: a store that waits cannot name the missing ranks.
            timeout = timedelta(seconds=timeout_s)
            store = TCPStore(
                host, int(port), rank.world_size, hosts, timeout=timeout, wait_for_workers=False, **listener
            )
        except (OSError, RuntimeError) as exc:
            verb = "host" if hosts else "reach"
            raise NetworkError(f"rank {rank.global_rank} cannot {verb} the rendezvous at {host}:{port}: {exc}") from exc
        # Only a store that outlives the attempt has keys of the one before. Agents of several nodes count restarts differently:
        # one that restarts its ranks because another node has joined again does not count that.
        restart = env.get("TORCHELASTIC_RESTART_COUNT", "0") if agent_hosts_store else "0"
        # A rank of an earlier attempt that still waits for its rank 0 may find the next one, if that has got the same port.
        attempt = env.get("ORCH_ATTEMPT", "")
        host = f"[{host}]" if ":" in host else host
        return cls(
            PrefixStore(f"orch/{attempt}-{restart}", store), rank, timeout_s, f"{host}:{port}", agent_hosts_store
        )

    def store_for(self, name: str) -> Foreign:
        return PrefixStore(name, self.store)

    def vendor_store_address(self) -> str:
        """
        host:port of rank 0 where a vendor's library can host its own store; all ranks must call.

        Under torchrun it is the address of torchrun's store, which such a library connects to.
        """
        if self.agent_hosts_store:
            return self.address
        host = self.address.rpartition(":")[0]
        if self.rank.is_main:
            with socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET) as probe:
                probe.bind(("", 0))
                self.store.set("vendor-store-port", str(probe.getsockname()[1]))
        with self._connection():
            self._wait("vendor-store-port", self.timeout_s)
            return f"{host}:{self.store.get('vendor-store-port').decode()}"

    def check_all(
        self, stage: str, problem: str, value: str, *, kind: Type[TrainerError] = UserError, device: str = ""
    ) -> None:
        """
        Wait until every rank has reported for this stage.

        Args:
            stage: its name, used once.
            problem: why this rank cannot continue, or "".
            value: must be equal on all ranks.
            kind: error class for a rank's problem.
            device: the only one that this rank sees (Accelerator.only_device), which no other rank of the machine may have; or "".

        Raises:
            TrainerError: the same on all ranks; names the ranks that are missing, failed or differ.
        """
        mine = {"problem": problem, "value": value, "node": self.rank.node, "device": device}
        if device:
            mine["machine"] = machine_id()
        with self._connection():
            self.store.set(f"{stage}/{self.rank.global_rank}", json.dumps(mine))
            if self.rank.is_main:
                reports = self.collect(stage, range(self.rank.world_size), self.timeout_s)
                self.store.set("present", json.dumps(list(reports)))
                reached = verdict_of(reports, self.rank.world_size, self.timeout_s)
                self.store.set(f"{stage}/verdict", json.dumps(reached))
            else:
                self._wait(f"{stage}/verdict", self.timeout_s + VERDICT_GRACE_S)
            verdict = json.loads(self.store.get(f"{stage}/verdict"))
        if verdict["missing"]:
            raise NetworkError.agreed(verdict["missing"])
        if verdict["problem"]:
            raise kind.agreed(verdict["problem"])

    def gather(self, stage: str, value: JsonValue) -> Dict[int, Any]:
        """Return the values of all ranks that report for this stage in time, on each of them."""
        with self._connection():
            self.store.set(f"{stage}/{self.rank.global_rank}", json.dumps(value))
            if self.rank.is_main:
                reports = self.collect(stage, range(self.rank.world_size), self.timeout_s)
                self.store.set("present", json.dumps(list(reports)))
                self.store.set(f"{stage}/all", json.dumps(reports))
                return reports
            self._wait(f"{stage}/all", self.timeout_s + VERDICT_GRACE_S)
            return {int(rank): report for rank, report in json.loads(self.store.get(f"{stage}/all")).items()}

    def leave(self, *, after_rank_0: bool = False) -> None:
        """
        Sign off, after check_all or gather. Rank 0 waits briefly for the ranks present, whose libraries may still use its store.

        after_rank_0: other ranks wait until rank 0 has signed off. A launcher ends all ranks as soon as one has failed, and
        rank 0 may still have to print or write.
        """
        # A rank that has ended cannot be waited for, and the work is done.
        with contextlib.suppress(RuntimeError):
            if after_rank_0 and not self.rank.is_main:
                self.store.wait(["left/0"], timedelta(seconds=self.timeout_s))
            self.store.set(f"left/{self.rank.global_rank}", "1")
            if self.rank.is_main:
                keys = [f"left/{rank}" for rank in json.loads(self.store.get("present"))]
                self.store.wait(keys, timedelta(seconds=LEAVE_TIMEOUT_S))

    def report_failure(self, failure: Failure) -> None:
        """Publish why this rank ends, and sign off: the other ranks see a lost connection only."""
        if not self._is_reachable():  # rank 0 has ended, and all others with it
            return
        record = {**asdict(failure), "message": f"rank {self.rank.global_rank}: {failure.message}"}
        with contextlib.suppress(RuntimeError):  # rank 0 ended meanwhile
            self.store.set("failure", json.dumps(record))
            self.store.set(f"left/{self.rank.global_rank}", "1")

    def find_cause(self, lost: Failure) -> Failure | None:
        """Return the failure of the rank to which the connection was `lost`; None if no rank published one in time."""
        if not self._is_reachable():
            why = f"rank 0 has ended or is unreachable, see its last lines for the reason: {lost.message}"
            return replace(lost, message=why)
        try:
            self.store.wait(["failure"], timedelta(seconds=CAUSE_TIMEOUT_S))
            return Failure(**json.loads(self.store.get("failure")))
        except RuntimeError:
            return None

    def _is_reachable(self) -> bool:
        """Connect to the address itself: with its store gone, torch prints C++ stack frames."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CAUSE_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def _connection(self) -> Iterator[None]:
        """A block that uses the store. Raises NetworkError if rank 0, which hosts it, has ended or is unreachable."""
        try:
            yield
        except RuntimeError as exc:
            raise NetworkError(
                f"rank {self.rank.global_rank} lost the connection to rank 0, at {self.address}: {exc}; "
                "rank 0 has ended or is unreachable: look at its last lines"
            ) from exc

    def _wait(self, key: str, timeout_s: float) -> None:
        """Raises RuntimeError if the connection is lost."""
        began_s = time.monotonic()
        try:
            self.store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as exc:
            if time.monotonic() - began_s < TIMED_OUT_SHARE * timeout_s:
                raise
            raise NetworkError(
                f"rank {self.rank.global_rank}: rank 0 did not answer at {self.address} within {timeout_s:g} s: {exc}"
            ) from exc

    def collect(self, stage: str, ranks: Iterable[int], timeout_s: float) -> Dict[int, Any]:
        """Wait for what each of the ranks sets under `stage`/RANK, as JSON; ranks without a value in time are absent."""
        deadline = time.monotonic() + timeout_s
        reports: Dict[int, Any] = {}
        for rank in ranks:
            try:
                left_s = max(deadline - time.monotonic(), 0.01)
                self.store.wait([f"{stage}/{rank}"], timedelta(seconds=left_s))
            except RuntimeError:
                continue
            reports[rank] = json.loads(self.store.get(f"{stage}/{rank}"))
        return reports


def machine_id() -> str:
    """Text that the processes of one machine have in common; containers with names of their own count as machines."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {socket.gethostname()}"


def _shared_devices(reports: Mapping[int, Mapping[str, str]]) -> str:
    """The problem that several ranks see the same device only, or ""."""
    ranks_of: Dict[Tuple[str, str], List[int]] = {}
    for rank, report in sorted(reports.items()):
        if report.get("device"):
            ranks_of.setdefault((report["machine"], report["device"]), []).append(rank)
    shared = [
        f"rank {fold(ranks)}{_on(reports[ranks[0]])} see one device only, {device.split()[0]}"
        for (_, device), ranks in ranks_of.items()
        if len(ranks) > 1
    ]
    remedy = "let each rank see a different one or all of them (leave the variable unset), or start one rank there"
    return f"{'; '.join(shared)}, and cannot share it: {remedy}" if shared else ""


def _on(report: Mapping[str, str]) -> str:
    return f" (on {report['node']})" if report["node"] else ""


def verdict_of(reports: Mapping[int, Mapping[str, str]], world_size: int, waited_s: float) -> dict[str, str]:
    """{"missing": message, "problem": message}; both are "" if all ranks can continue. Pure."""
    verdict = {"missing": "", "problem": ""}
    missing = [rank for rank in range(world_size) if rank not in reports]
    problems = {rank: report["problem"] + _on(report) for rank, report in reports.items() if report["problem"]}
    values: Dict[str, List[int]] = {}
    for rank, report in reports.items():
        values.setdefault(report["value"], []).append(rank)
    if problems:
        verdict["problem"] = by_rank(problems)
    elif missing:
        verdict["missing"] = (
            f"{len(reports)}/{world_size} ranks ready after {waited_s:g} s; missing: rank {fold(missing)}; "
            "look at the last lines of those ranks, and whether their nodes reach this one"
        )
    elif _shared_devices(reports):
        verdict["problem"] = _shared_devices(reports)
    elif len(values) > 1:
        found = "; ".join(f"{value} on rank {fold(ranks)}" for value, ranks in values.items())
        verdict["problem"] = f"the ranks found different devices: {found}; set device= or repair the nodes without one"
    return verdict
