"""The values of a run: its id, request, states and record. Its files are in records/run_folder.py."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from orchestrator.failure_class import FailureClass, Retry
from orchestrator.node.ranks.rank_launchers import is_python
from orchestrator.node.run.events import NO_RETRY
from orchestrator.portable.names.hostlist import ranks_on_nodes
from orchestrator.stored import known_fields

LauncherName = Literal["ssh", "slurm"]
SCHEDULERS = ("slurm",)
"""The launchers that give a run to a scheduler."""
REFUSED = 3  # exit code: a check of the nodes failed
ISOLATION_TIMEOUT_S = 60.0
WAIT_FOR_NODES_S = 600.0


class RunState(str, Enum):
    """The state of a run; the last four are final."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"

    @property
    def final(self) -> bool:
        """True if the run has ended, or is lost."""
        return self in _EXIT_CODES

    @property
    def ended(self) -> bool:
        """True if the run is known to have ended; LOST only means that nothing better is known."""
        return self.final and self is not RunState.LOST

    @property
    def exit_code(self) -> int:
        """The exit code of an `orch` that has watched the run to this state; 0 if it is not final."""
        return _EXIT_CODES.get(self, 0)


_EXIT_CODES = {RunState.DONE: 0, RunState.FAILED: 1, RunState.LOST: 5, RunState.STOPPED: 6}


@dataclass(frozen=True, slots=True)
class Program:
    """The program that every rank runs, or with `per_node` every node. `args` are passed on unchanged."""

    kind: Literal["trainer", "python", "executable"]
    args: tuple[str, ...]
    cwd: str | None = None
    """Folder relative to the root of the code, "" for the root; None if no code is sent, as for the trainer's own tasks."""
    bare: bool = False
    """Run a Python program without the preparation of `is_prepared`."""
    per_node: bool = False
    """The program runs once per node and starts the node's ranks itself, as torchrun does."""
    until_head: bool = False
    """With `per_node`: the run is over when the program of the first node is; those of the others are ended then."""
    module: str = "trainer"
    """The module of the shared trainer that runs, if that is the program; trainer.comm is its benchmark of communication."""

    @property
    def is_prepared(self) -> bool:
        """True for a user's Python programs, also as `python train.py`, that trainer/scripts makes run without CUDA and report their progress."""
        names_python = self.kind == "executable" and any(map(is_python, self.args))
        return (self.kind == "python" or self.per_node or names_python) and not self.bare

    @property
    def runs_python(self) -> bool:
        """True if the ranks run the Python of the node's agent; another program may start any Python, or none."""
        return self.kind != "executable"

    @property
    def folder_on_nodes(self) -> str | None:
        """The folder of a Python file with an absolute path, which is on the nodes; None for code that the launch sends."""
        is_on_nodes = self.kind == "python" and self.args[0].startswith("/")
        return posixpath.dirname(self.args[0]) if is_on_nodes else None

    @property
    def import_folder(self) -> str:
        """The first folder in Python's path, relative to `cwd`: that of the script, or the working folder."""
        is_script = self.kind == "python" and self.args[0] not in ("-m", "-c")
        return posixpath.dirname(self.args[0]) if is_script else ""

    @property
    def needs_trainer(self) -> bool:
        """True if the program needs trainer/ on the nodes."""
        return self.kind == "trainer" or self.is_prepared


def trainer_setting(program: Program, config: str | None, name: str) -> object:
    """A top-level setting of the shared trainer, from its command line or else its configuration, as JSON; None without one."""
    if program.kind != "trainer":
        return None
    words = dict(word.partition("=")[::2] for word in program.args)
    return words.get(name, json.loads(config or "{}").get(name))


@dataclass(frozen=True, slots=True)
class Shape:
    """`-j NxR`: how many nodes, and how many ranks on each."""

    nodes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Elastic:
    """`--elastic MIN:MAX`: the least and the most nodes, and the settings by which the shared trainer computes its batch."""

    least: int
    most: int
    micro_batch: int | None = None
    """None for a program of the user."""
    accumulation: int | None = None
    """None if it follows from `batch`."""
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The Slurm job in which orch runs, and its nodes in the order of Slurm."""

    job: str
    nodes: tuple[str, ...]


class ByLauncher:
    """A value with a launcher, and the differences between launchers that do not depend on the name."""

    __slots__ = ()
    launcher: LauncherName

    @property
    def by_scheduler(self) -> bool:
        """True if a scheduler chooses the nodes, and queues and restarts the run; False if a process of orch owns it."""
        return self.launcher in SCHEDULERS

    @property
    def verb(self) -> str:
        """The command that launches."""
        return "submit" if self.by_scheduler else "ssh-launch"


@dataclass(frozen=True, slots=True)
class Request(ByLauncher):
    """The user's request; with an inventory, it becomes a plan."""

    launcher: LauncherName
    program: Program
    nodes: str | None = None
    """Host list as typed after --nodes."""
    shape: Shape | None = None
    config: str | None = None
    """The trainer's configuration file as JSON text."""
    slurm: tuple[str, ...] = ()
    """Fields of `slurm:` that were set on the command line, as FIELD=VALUE."""
    after: tuple[str, ...] = ()
    """Runs that the Slurm job waits for, as typed after --after."""
    allocation: Allocation | None = None
    """The Slurm job whose nodes are used; None to queue a job."""
    max_retries: int | None = None
    """The attempts after the first one, by --max-retries; None: the inventory decides."""
    elastic: Elastic | None = None
    """The numbers of nodes with which the run may continue; None: only with all."""
    debug: bool = False
    """The ranks get the debugging variables of their accelerator."""
    orphan_timeout_s: float | None = None
    """A node ends its ranks after this time without a supervisor; None: never."""
    no_check: bool = False
    """The nodes are not checked before the start."""
    skipped: tuple[str, ...] = ()
    """The names of checks that are left out."""
    exclude_suspects: bool = False
    """Nodes on which more runs have failed than chance explains are left out."""
    isolation_timeout_s: float = ISOLATION_TIMEOUT_S
    """A node ends its ranks after this time without a supervisor and without a connection to any other node."""
    wait_for_nodes_s: float = WAIT_FOR_NODES_S
    """A restart waits for this time for a lost node that no other can replace."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that the ranks get instead of those of the inventory, by --env or to prove a remedy; None: they do not get it."""
    is_trial: bool = False
    """A run of `orch ladder` or `--prove`, which may be made to fail: hooks do not report it, nor does it count against its nodes."""


@dataclass(frozen=True, slots=True)
class RankExit:
    """How the first failing rank ended, or with `per_node` the program that starts a node's ranks; `code` or `signal` is None."""

    node: str
    rank: int | None
    code: int | None
    signal: str | None
    error: str | None = None
    lines: tuple[str, ...] = ()
    """The last lines that the rank wrote."""
    kind: str | None = None
    """The class of the failure, by the shared trainer: config, storage, memory, network, numbers, hang or code."""
    per_node: bool = False
    """The program of a node failed; which rank failed is unknown."""
    missing: str | None = None
    """The path of a FileNotFoundError, on the node, as long as its cause is not known."""

    def __str__(self) -> str:
        process = "the program on" if self.per_node else "the agent of" if self.rank is None else f"rank {self.rank} on"
        failed = f"{process} {self.node}"
        how = f"was killed by {self.signal}" if self.signal else f"exited {self.code}"
        return f"{failed} {how}" + (f" ({self.kind})" if self.kind else "") + (f": {self.error}" if self.error else "")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed: its class and, once it is diagnosed, the fields of `orch diagnose --json`."""

    kind: FailureClass
    retry: Retry
    is_diagnosed: bool = False
    cause: str | None = None
    """One sentence; None if the cause is unknown."""
    signature: str | None = None
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    confidence: str | None = None
    reason: str = ""
    proof: tuple[str, ...] = ()
    """Lines of logs as text; if the cause is unknown, the earliest different errors."""
    remedy: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The rank and the node on which it began; empty if they are unknown."""
        return ranks_on_nodes(self.ranks, self.nodes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Read a failure written by any version; a class that this version does not know is unknown."""
        values = known_fields(cls, data)
        is_known = values["kind"] in set(FailureClass)
        values["kind"] = FailureClass(values["kind"]) if is_known else FailureClass.UNKNOWN
        lists = {name: tuple(values.get(name, ())) for name in ("nodes", "ranks", "proof", "remedy")}
        return cls(**{**values, **lists, "retry": Retry(values["retry"])})


@dataclass(frozen=True, slots=True)
class RunRecord(ByLauncher):
    """The content of run.json, which is replaced atomically on every change."""

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
    """The process that launches the run: pid, start_time, host and boot_id; None once the launch is over."""
    started: bool = False
    """The launch was completed; if False, a final state is the outcome of the launch itself."""
    unsupervised: dict[str, str] = field(default_factory=dict)
    """Node -> why the supervisor cannot log in to it."""
    replicas: str | None = None
    """The finding that ranks had different copies of the model; None if none was made."""
    slow: str | None = None
    """The finding about ranks that are slow, or were at the end; None if none is."""
    slow_nodes: tuple[str, ...] = ()
    """The nodes with ranks that were slow at some time of the run."""
    failing: dict[str, Any] | None = None
    """The failure of the newest attempt, as long as its supervisor ends it or waits before the next one: see verdict/failing.py."""
    attempt: int = 1
    attempts: tuple[dict[str, Any], ...] = ()
    """The attempts over SSH that were followed by another one: attempt, ended, message, exit, class, saved and decision."""
    slurm_job: str | None = None
    ended: str | None = None
    exit: RankExit | None = None
    message: str | None = None
    failure: Failure | None = None
    """Why a run that is FAILED or LOST failed; None in records of earlier versions."""
    refused: bool = False
    """The check of the nodes refused the start, so nothing was started."""
    summary: dict[str, Any] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """Folders of the program's own files in the run's code folder, which no other run sees, and their bytes."""
    sweep: str | None = None
    """The sweep's id, if the run belongs to a sweep."""
    swept: dict[str, str] = field(default_factory=dict)
    """Its values of the swept settings."""
    note: str | None = None
    """The user's own words about the run."""
    tags: tuple[str, ...] = ()
    node_count: int = 0
    """The number of nodes; 0 if an older version of orch launched the run."""
    rerun_of: str | None = None
    """The id of the run that this one repeats."""
    reported_state: str | None = None
    """The last state for which the hooks were run, and its attempt."""
    reported_conditions: tuple[str, ...] = ()
    """The conditions of that attempt for which the hooks were run, and which are not over."""
    unknown_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of another version of orch, which are kept when the record is written."""

    @property
    def is_undiagnosed(self) -> bool:
        """True if the run started and has failed, and has no diagnosis."""
        failure = self.failure
        return self.state is RunState.FAILED and self.started and failure is not None and not failure.is_diagnosed

    @property
    def is_trial(self) -> bool:
        """True for a run of `orch ladder` or `--prove`."""
        return bool(self.request.get("is_trial"))

    @property
    def outcome(self) -> str:
        """The state and its reason as a sentence."""
        return f"run {self.id} is {self.state.value}" + (f": {self.message}" if self.message else "")

    @property
    def exit_code(self) -> int:
        """The exit code of a command that watched this run to its end."""
        if self.state is RunState.FAILED and self.exit is not None and self.exit.code == NO_RETRY:
            return NO_RETRY
        if self.state is RunState.FAILED and self.refused:
            return REFUSED
        return self.state.exit_code

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; `from_json` is its inverse."""
        data = asdict(self)
        return {**data.pop("unknown_fields"), **data, "state": self.state.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRecord:
        """
        Read a record written by any version; a state that this version does not know is LOST.

        Raises:
            KeyError, TypeError, ValueError: the data is not a run record.
        """
        known = known_fields(cls, {name: value for name, value in data.items() if name != "unknown_fields"})
        if known["state"] in RunState.__members__:
            state, message = RunState(known["state"]), known.get("message")
        else:
            state = RunState.LOST
            message = f"its state is {known['state']}, which this version of orch does not know"
        unknown_fields = {name: value for name, value in data.items() if name not in known}
        changed = {
            "state": state,
            "message": message,
            "exit": _rank_exit(known["exit"]) if known.get("exit") else None,
            "failure": Failure.from_json(known["failure"]) if known.get("failure") else None,
            "slow_nodes": tuple(known.get("slow_nodes", ())),
            "tags": tuple(known.get("tags", ())),
            "reported_conditions": tuple(known.get("reported_conditions", ())),
            "attempts": tuple(known.get("attempts", ())),
        }
        return cls(**{**known, **changed, "unknown_fields": unknown_fields})


@dataclass(frozen=True, slots=True)
class RunEntry(ByLauncher):
    """The part of a run's record that a list of runs shows; message and note without further lines."""

    id: str
    launcher: LauncherName
    state: RunState
    created: str
    ended: str | None
    message: str
    note: str
    sweep: str | None
    tags: tuple[str, ...]

    @classmethod
    def of(cls, record: RunRecord) -> RunEntry:
        """The entry of a record."""
        message, note = ((text or "").partition("\n")[0] for text in (record.message, record.note))
        return cls(
            record.id,
            record.launcher,
            record.state,
            record.created,
            record.ended,
            message,
            note,
            record.sweep,
            record.tags,
        )


def _rank_exit(data: Mapping[str, Any]) -> RankExit:
    return RankExit(**{**known_fields(RankExit, data), "lines": tuple(data.get("lines", ()))})


def new_run_id(name: str, now: datetime, token: str) -> str:
    """`<name>-<yyyymmdd-hhmmss>-<4 hex>`; `token` is four hex digits."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{token}"
