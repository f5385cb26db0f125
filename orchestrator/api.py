"""
orch from Python: the same plan, launch and record as the commands make.

    run = orchestrator.submit(["train.py", "--lr", "1e-3"], "h800.yaml", shape="2x8")
    print(run.wait().state)
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from orchestrator.actions.request import Words
from orchestrator.commands.launch import plan_of, started
from orchestrator.commands.status import not_being_ended, refresh
from orchestrator.commands.stop import stop
from orchestrator.errors import LaunchError, UsageError
from orchestrator.run import LauncherName, RunRecord
from orchestrator.store import RunFolder, Store, home

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing itself from Python 3.11 on

Program = Sequence[str] | Callable[..., object] | None
"""Words as after `--`; or a function of a file that travels; None: the shared trainer."""
FIRST_LOOK_S, LAST_LOOK_S = 0.2, 5.0
# The file is run under another name, so what stands below `if __name__ == "__main__":` does not run on the nodes.
CALL = "import json, runpy, sys; file, name, args, kwargs = sys.argv[1:]; runpy.run_path(file, run_name='orch')[name](*json.loads(args), **json.loads(kwargs))"


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was launched from this machine."""

    id: str

    @property
    def record(self) -> RunRecord:
        """What was last known of it; nobody is asked."""
        return self._folder.read()

    def status(self) -> RunRecord:
        """How it stands now: nodes and scheduler are asked."""
        return refresh(self._folder)[0]

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """
        Wait until it is over; the record says how it ended.

        Raises:
            TimeoutError: it is not, after so long.
            LaunchError: it has failed on one node, and nobody ends it on the others.
        """
        deadline, pause_s = None if timeout_s is None else time.monotonic() + timeout_s, FIRST_LOOK_S
        while True:
            record, found = refresh(self._folder)
            if record.state.final:
                return record
            if warning := not_being_ended(self._folder, record, found):
                raise LaunchError(f"{record.message}: {warning}")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.id} is {record.state.value} after {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)

    def stop(self) -> RunRecord:
        """End it on every node."""
        stop(self.id)
        return self.record

    @property
    def _folder(self) -> RunFolder:
        return Store(home(os.environ)).find(self.id)


class Options(TypedDict, total=False):
    """What may be said besides."""

    args: Sequence[Any]
    """Of a function, as JSON can say them."""
    kwargs: Mapping[str, Any]
    """Of a function, as JSON can say them."""
    settings: Mapping[str, object]
    """Of the shared trainer, as in `{"optim.lr": 1e-3}`."""
    nodes: str
    """As after --nodes."""
    shape: str
    """As after -j."""
    bare: bool
    """As --bare."""


def submit(program: Program, inventory: str | Path | None = None, **options: Unpack[Options]) -> Run:
    """
    Start a run through Slurm, with the code of the working folder, and return at once.

    Raises:
        OrchError: as the command; nothing is left running.
    """
    return _launched("slurm", program, inventory, options)


def ssh_launch(program: Program, inventory: str | Path | None = None, **options: Unpack[Options]) -> Run:
    """Start a run over SSH, or on this machine (transport local). Otherwise as submit."""
    return _launched("ssh", program, inventory, options)


def _launched(launcher: LauncherName, program: Program, inventory: str | Path | None, options: Options) -> Run:
    words = Words(
        launcher,
        inventory=None if inventory is None else str(inventory),
        nodes=options.get("nodes"),
        shape=options.get("shape"),
        config=None,
        settings=tuple(f"{name}={value}" for name, value in options.get("settings", {}).items()),
        program=_words_of(program, options.get("args", ()), options.get("kwargs", {})),
        bare=options.get("bare", False),
    )
    with started(plan_of(words)) as (folder, _, _):
        return Run(folder.path.name)


def _words_of(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not callable(program):
        if args or kwargs:
            raise UsageError("args and kwargs are for a function", hint="put the words of a program into one list")
        return None if program is None else tuple(program)
    name = getattr(program, "__qualname__", "")
    file = inspect.getsourcefile(program) if inspect.isfunction(program) else None
    if file is None or not name.isidentifier():
        raise UsageError(f"{program!r} is no function of a file", hint="define it at the top level of one")
    path = os.path.relpath(Path(file).resolve(), Path.cwd().resolve())
    if path.startswith(".."):
        raise UsageError(f"{file} is not below {Path.cwd()}, so it would not travel", hint="start from its folder")
    try:
        return ("-c", CALL, path, name, json.dumps(list(args)), json.dumps(dict(kwargs)))
    except (TypeError, ValueError) as exc:
        raise UsageError(f"arguments of {name}: {exc}", hint="numbers, text, lists and mappings travel") from exc
