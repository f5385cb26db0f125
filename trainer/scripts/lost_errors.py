"""The failure of a rank that a script has started by hand: `wait` of a shell ends with 0 nevertheless, and the agent does not see the rank."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from ..io import replace_text

_RANK: Dict[str, Any] = {"is_joined": False, "exit_code": None}  # the process is one rank


def is_by_hand() -> bool:
    """This process is a rank that neither orch nor torchrun has started."""
    env = os.environ
    return all(name in env for name in ("RANK", "PET_NNODES", "ORCH_RUN_DIR")) and "TORCHELASTIC_RUN_ID" not in env


def watch() -> None:
    """Note the error with which this process ends, if it is a rank that was started by hand."""
    if not is_by_hand():
        return
    remember_exit_code(functools.partial(_RANK.__setitem__, "exit_code"))
    atexit.register(note)


def remember_exit_code(remember: Callable[[object], None]) -> None:
    """Call `remember` with the code that the script passes to sys.exit(): an exit handler cannot find it."""
    exit_ = sys.exit

    @functools.wraps(exit_)
    def exit_with(status: object = None, /) -> None:
        remember(status)
        exit_(status)  # type: ignore[arg-type]

    sys.exit = exit_with  # type: ignore[assignment]


def watch_groups(module: Any) -> None:
    """Remember that this process has joined a group: a script may destroy it before its error ends the process."""
    if not is_by_hand():
        return
    make = module.init_process_group

    @functools.wraps(make)
    def make_and_remember(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        _RANK["is_joined"] = True
        _warn_on_failure(_path("joined").touch)
        _write_note(None)  # `note` removes it, unless a signal ends the rank
        return result

    module.init_process_group = make_and_remember


def note() -> None:
    """
    Write the error with which a rank ends; remove it if a later process of the rank has not failed.

    That of a script before it joined a group is kept apart: it is the failure of the run only if no rank of the node joins one. A line such as
    `python -c 'import x' || …` is no rank.
    """
    exception, code = getattr(sys, "last_value", None), _RANK["exit_code"]
    error = _words(exception) if exception is not None else ""
    if exception is None and code not in (None, 0):
        error = f"exit code {code}" if isinstance(code, int) else str(code)
    if error and _RANK["is_joined"]:
        _write_note(error[:1000])
    elif error and os.path.isfile(sys.argv[0]):
        _write_note(error[:1000], kind="unjoined")
    for kind in () if error else ("lost", "unjoined"):
        if _path(kind).exists():
            _warn_on_failure(_path(kind).unlink)


def _words(exception: BaseException) -> str:
    """The first line of an exception, and of the one that it began with."""
    first, known = exception, {id(exception)}
    while (earlier := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        if id(earlier) in known:  # a program can make a circle
            break
        known.add(id(earlier))
        first = earlier
    lines = [f"{type(error).__name__}: {error}".partition("\n")[0] for error in (exception, first)]
    return lines[0] if first is exception else f"{lines[0]}, after {lines[1]}"


def _path(kind: str) -> Path:
    env = os.environ
    node = Path(env["ORCH_RUN_DIR"], f"attempt-{env.get('ORCH_ATTEMPT', '')}", env.get("ORCH_NODE", ""))
    return node / "error" / f"{kind}-{env['RANK']}.json"


def _write_note(error: str | None, *, kind: str = "lost") -> None:
    report = {"rank": os.environ["RANK"], "error": error}
    _warn_on_failure(lambda: replace_text(_path(kind), json.dumps(report)))


def _warn_on_failure(write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as exc:
        sys.stderr.write(f"WARNING: the failure of rank {os.environ['RANK']} cannot be noted: {exc}\n")
