"""Counts the ranks over a key-value store, before and after the process group exists, and names who is missing."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Dict, List, Mapping, Sequence, Type

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in its __all__, but public

from ..errors import NetworkError, TrainerError, UserError  # relative: as in place.py
from .rank import Place

JOIN_TIMEOUT_S = 600.0  # torchrun's own limit for a static rendezvous
VERDICT_GRACE_S = 30.0
LEAVE_TIMEOUT_S = 10.0
CAUSE_TIMEOUT_S = 1.0


def _listen(host: str, port: int) -> Dict[str, Any]:
    """
    Have the store of rank 0 listen at that address alone: by itself torch listens on every interface of the node.

    Returns:
        What TCPStore takes; nothing where an old torch takes none, or where the address is not one of this node's own.
    """
    if "master_listen_fd" not in (TCPStore.__init__.__doc__ or ""):
        return {}
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # orch's agent keeps the port, without listening
        try:
            listener.bind(address)
        except OSError as exc:
            if exc.errno == errno.EADDRNOTAVAIL:  # a translated address
                return {}
            raise
        listener.listen(socket.SOMAXCONN)
        return {"master_listen_fd": listener.detach()}


@dataclass(frozen=True)
class Failure:
    """What ended a rank: its message, kind and exit code."""

    message: str
    kind: str
    code: int


@dataclass(frozen=True)
class RollCall:
    """
    All ranks answer to rank 0, which tells all of them the outcome: a few messages a rank, whatever the world size.

    The store lives in rank 0, or in torchrun's agent; `leave` keeps rank 0 until the others need it no more.
    """

    store: Any  # torch.distributed.Store; untyped in torch 1.10
    place: Place
    timeout_s: float
    address: str
    agent_hosts: bool

    @classmethod
    def open(cls, place: Place, env: Mapping[str, str], timeout_s: float) -> RollCall:
        """
        Host the store on rank 0, or reach it; it waits for the others for `timeout_s`, but no longer than a launcher does.

        Raises:
            UserError: MASTER_ADDR or MASTER_PORT is missing or wrong.
            TrainerError: the port is taken, or rank 0 does not answer in time; keeps torch's own words.
        """
        host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
        if not host or not port.isdigit():
            raise UserError(
                f"WORLD_SIZE is set but MASTER_ADDR={host!r} MASTER_PORT={port!r}: start through orch or torchrun"
            )
        agent_hosts = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        hosts = place.is_main and not agent_hosts
        timeout_s = min(timeout_s, JOIN_TIMEOUT_S)
        try:
            listener = _listen(host, int(port)) if hosts else {}
            # Not waiting for the others here: a store that does cannot say who is missing.
            timeout = timedelta(seconds=timeout_s)
            store = TCPStore(
                host, int(port), place.world_size, hosts, timeout=timeout, wait_for_workers=False, **listener
            )
        except (OSError, RuntimeError) as exc:
            does = "host" if hosts else "reach"
            raise NetworkError(f"rank {place.rank} cannot {does} the rendezvous at {host}:{port}: {exc}") from exc
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        host = f"[{host}]" if ":" in host else host
        return cls(PrefixStore(f"orch/{attempt}", store), place, timeout_s, f"{host}:{port}", agent_hosts)

    def store_for(self, name: str) -> Any:  # noqa: ANN401 -- as `store`
        """A part of the store under its own prefix."""
        return PrefixStore(name, self.store)

    def address_for_others(self) -> str:
        """
        host:port of rank 0 where a store of another library can listen; all ranks must call.

        Under torchrun that is its own store, which such a library takes for the one to use.
        """
        if self.agent_hosts:
            return self.address
        host = self.address.rpartition(":")[0]
        if self.place.is_main:
            with socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET) as probe:
                probe.bind(("", 0))
                self.store.set("port-for-others", str(probe.getsockname()[1]))
        self._wait("port-for-others", self.timeout_s)
        return f"{host}:{self.store.get('port-for-others').decode()}"

    def check_all(self, stage: str, problem: str, word: str, *, kind: Type[TrainerError] = UserError) -> None:
        """
        Wait until every rank has answered this stage.

        Args:
            stage: names the question; each is asked once.
            problem: why this rank cannot go on, or "".
            word: must be the same on all ranks.
            kind: what to raise for a rank's problem.

        Raises:
            TrainerError: on all ranks alike; names the ranks that are missing, failed or differ.
        """
        mine = {"problem": problem, "word": word, "node": self.place.node}
        self.store.set(f"{stage}/{self.place.rank}", json.dumps(mine))
        if self.place.is_main:
            found = self._judge(stage)
            self.store.set("present", json.dumps(found["present"]))
            self.store.set(f"{stage}/verdict", json.dumps(found["verdict"]))
        else:
            self._wait(f"{stage}/verdict", self.timeout_s + VERDICT_GRACE_S)
        verdict = json.loads(self.store.get(f"{stage}/verdict"))
        if verdict["missing"]:
            raise NetworkError.agreed(verdict["missing"])
        if verdict["problem"]:
            raise kind.agreed(verdict["problem"])

    def leave(self, *, together: bool = False) -> None:
        """
        Say goodbye, after check_all; rank 0 waits a little for those who are there, whose libraries may still ask its store.

        together: the others wait for rank 0 first. A launcher ends all ranks as soon as one of them has failed, and rank 0
        may have something to tell or to write yet.
        """
        # Whoever is gone already cannot be waited for, and the work is done.
        with contextlib.suppress(RuntimeError):
            if together and not self.place.is_main:
                self.store.wait(["left/0"], timedelta(seconds=self.timeout_s))
            self.store.set(f"left/{self.place.rank}", "1")
            if self.place.is_main:
                keys = [f"left/{rank}" for rank in json.loads(self.store.get("present"))]
                self.store.wait(keys, timedelta(seconds=LEAVE_TIMEOUT_S))

    def tell(self, failure: Failure) -> None:
        """Leave word, and goodbye, for those to whom this rank's end is a lost connection."""
        if not self._is_hosted():  # rank 0 is gone, and all others with it
            return
        word = {**asdict(failure), "message": f"rank {self.place.rank}: {failure.message}"}
        with contextlib.suppress(RuntimeError):  # gone meanwhile
            self.store.set("failure", json.dumps(word))
            self.store.set(f"left/{self.place.rank}", "1")

    def cause(self, lost: Failure) -> Failure | None:
        """Why another rank has ended, to which this one has `lost` the connection; None where none told within a moment."""
        if not self._is_hosted():
            why = f"rank 0 has ended or is out of reach, its last lines tell why: {lost.message}"
            return replace(lost, message=why)
        try:
            self.store.wait(["failure"], timedelta(seconds=CAUSE_TIMEOUT_S))
            return Failure(**json.loads(self.store.get("failure")))
        except RuntimeError:
            return None

    def _is_hosted(self) -> bool:
        """Asked of the address, because torch prints the frames of its C++ where the store is gone."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CAUSE_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def _wait(self, key: str, timeout_s: float) -> None:
        try:
            self.store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as exc:
            raise NetworkError(
                f"rank {self.place.rank}: rank 0 did not answer at {self.address} within {timeout_s:g} s: {exc}"
            ) from exc

    def _judge(self, stage: str) -> Dict[str, Any]:
        deadline = time.monotonic() + self.timeout_s
        answers: Dict[int, Dict[str, str]] = {}
        for rank in range(self.place.world_size):
            try:
                left_s = max(deadline - time.monotonic(), 0.01)
                self.store.wait([f"{stage}/{rank}"], timedelta(seconds=left_s))
            except RuntimeError:
                continue  # missing; counted below
            answers[rank] = json.loads(self.store.get(f"{stage}/{rank}"))
        return {"present": list(answers), "verdict": judge(answers, self.place.world_size, self.timeout_s)}


def judge(answers: Mapping[int, Mapping[str, str]], world_size: int, waited_s: float) -> dict[str, str]:
    """{"missing": …, "problem": …} in the user's words, both "" when all ranks may go on. Pure."""
    verdict = {"missing": "", "problem": ""}
    missing = [rank for rank in range(world_size) if rank not in answers]
    problems = {
        rank: answer["problem"] + (f" (on {answer['node']})" if answer["node"] else "")
        for rank, answer in answers.items()
        if answer["problem"]
    }
    words: Dict[str, List[int]] = {}
    for rank, answer in answers.items():
        words.setdefault(answer["word"], []).append(rank)
    if problems:
        verdict["problem"] = by_rank(problems)
    elif missing:
        verdict["missing"] = (
            f"{len(answers)}/{world_size} ranks ready after {waited_s:g} s; missing: rank {fold(missing)}; "
            "look at the last lines of those ranks, and whether their nodes reach this one"
        )
    elif len(words) > 1:
        found = "; ".join(f"{word} on rank {fold(ranks)}" for word, ranks in words.items())
        verdict["problem"] = f"the ranks found different devices: {found}; set device= or repair the nodes without one"
    return verdict


def by_rank(problems: Mapping[int, str]) -> str:
    """One line a problem, with the ranks that have it."""
    ranks: Dict[str, List[int]] = {}
    for rank, text in problems.items():
        ranks.setdefault(text, []).append(rank)
    return "\n".join(f"rank {fold(some)}: {text}" for text, some in ranks.items())


def fold(ranks: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"; `ranks` ascending."""
    spans: List[List[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
