"""What a run is: its id, what was asked, its states and its record. Values only; files are store.py's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from orchestrator.node.events import NO_RETRY

LauncherName = Literal["ssh", "slurm"]
ISOLATION_TIMEOUT_S = 60.0


class RunState(str, Enum):
    """Where a run stands; the last four are final."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"

    @property
    def final(self) -> bool:
        """Nothing of the run is expected to happen any more."""
        return self in _EXIT_CODES

    @property
    def exit_code(self) -> int:
        """What `orch` ends with when it has watched the run up to here; 0 while the run goes on."""
        return _EXIT_CODES.get(self, 0)


_EXIT_CODES = {RunState.DONE: 0, RunState.FAILED: 1, RunState.LOST: 5, RunState.STOPPED: 6}


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank runs. `args` are the words after the program kind, untouched."""

    kind: Literal["trainer", "python", "executable"]
    args: tuple[str, ...]
    cwd: str | None = None
    """Folder below the root of the user's code, "" for the root; None when no code travels, as for the trainer's own task."""
    bare: bool = False
    """A Python program gets nothing of what would prepare it for the node."""

    @property
    def is_prepared(self) -> bool:
        """Whether it is a Python program of the user's, made to run where CUDA is not and to show its progress."""
        return self.kind == "python" and not self.bare

    @property
    def needs_trainer(self) -> bool:
        """Whether files of trainer/ have to be on the nodes."""
        return self.kind == "trainer" or self.is_prepared


@dataclass(frozen=True, slots=True)
class Shape:
    """`-j NxR`: how many nodes, and how many ranks on each."""

    nodes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; with an inventory it makes a plan."""

    launcher: LauncherName
    program: Program
    nodes: str | None = None
    """Host list as typed after --nodes."""
    shape: Shape | None = None
    config: str | None = None
    """The trainer's configuration file as JSON text."""
    orphan_timeout_s: float | None = None
    """After so long without a supervisor a node ends its ranks; None: never."""
    isolation_timeout_s: float = ISOLATION_TIMEOUT_S
    """After so long without a supervisor and without a way to any other node, a node ends its ranks."""


@dataclass(frozen=True, slots=True)
class RankExit:
    """How the first failing rank ended; `code` or `signal` is None."""

    node: str
    rank: int | None
    code: int | None
    signal: str | None
    error: str | None = None
    lines: tuple[str, ...] = ()
    """What the rank wrote last."""
    kind: str | None = None
    """What the shared trainer calls its failure: config, storage, memory, network, numbers, hang or code."""

    def __str__(self) -> str:
        who = f"rank {self.rank} on {self.node}" if self.rank is not None else f"the agent of {self.node}"
        how = f"was killed by {self.signal}" if self.signal else f"exited {self.code}"
        return f"{who} {how}" + (f" ({self.kind})" if self.kind else "") + (f": {self.error}" if self.error else "")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """run.json: readable after any crash, rewritten as a whole on every change."""

    id: str
    launcher: LauncherName
    state: RunState
    created: str
    """ISO 8601, UTC."""
    request: dict[str, Any]
    inventory: dict[str, str]
    code: dict[str, Any]
    versions: dict[str, str]
    launching: dict[str, Any] | None = None
    """The process that launches it: pid, start_time, host and boot_id, as long as it has not ended its work."""
    started: bool = False
    """Everything was started; without it a final state is that of the launch itself."""
    attended: bool = False
    """Somebody answered a question for its logins: a password, a code, a passphrase. Its supervisor cannot."""
    attempt: int = 1
    slurm_job: str | None = None
    ended: str | None = None
    exit: RankExit | None = None
    message: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    sweep: str | None = None
    """The sweep that it belongs to, and what it sets for that."""
    swept: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that watched this run to its end."""
        if self.state is RunState.FAILED and self.exit is not None and self.exit.code == NO_RETRY:
            return NO_RETRY
        return self.state.exit_code

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; `from_json` is its inverse."""
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRecord:
        """
        Read a record written by this or an earlier version.

        Raises:
            KeyError, TypeError, ValueError: the data is no run record.
        """
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        exit_ = (
            RankExit(**{**known["exit"], "lines": tuple(known["exit"].get("lines", ()))}) if known.get("exit") else None
        )
        return cls(**{**known, "state": RunState(known["state"]), "exit": exit_})


def new_run_id(name: str, now: datetime, token: str) -> str:
    """`<name>-<yyyymmdd-hhmmss>-<4 hex>`; `token` is four hex digits."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{token}"
