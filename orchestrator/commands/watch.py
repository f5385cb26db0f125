"""The screen of a run that is followed to its end, for ssh-launch, submit and attach."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from orchestrator.actions.log_reader import LogReader
from orchestrator.actions.watch import Watch, watched_lines
from orchestrator.console import LogView, inform, print_error, print_summary
from orchestrator.errors import CLOSED_PIPE, CTRL_C, LaunchError

if TYPE_CHECKING:
    from orchestrator.actions.launch import Launched  # at run time it would load what only a launch needs


def watch(launched: Launched, *, quiet: bool, stream: TextIO | None = None) -> int:
    """
    Follow a run that this command started or attached to, and print its outcome; return its exit code.

    Args:
        quiet: print only the lines of ranks, warnings, and the outcome of a run that is not done.
        stream: for the lines; by default stdout.
    """
    run_id = launched.folder.path.name
    folder, launcher, view = launched.folder, launched.launcher, LogView(as_json=False, quiet=quiet, stream=stream)
    view.inform(f"run {run_id} started; Ctrl-C stops watching, the run continues")
    try:
        reader = LogReader(launcher, folder.read_plan(), view, watched_lines(quiet=quiet))
        record = Watch(folder, launcher, reader, view, ends_failed=True).to_end()
    except KeyboardInterrupt:
        inform(
            f"stopped watching; the run continues. `orch logs -f {run_id}` watches again, `orch stop {run_id}` ends it"
        )
        return CTRL_C
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is closed; what is still buffered must go somewhere
        inform(f"nobody reads the output any more; the run continues: `orch logs -f {run_id}`")
        return CLOSED_PIPE
    except LaunchError as exc:
        print_error(exc)
        inform(
            f"stopped watching; the run continues. `orch logs -f {run_id}` watches again, `orch status {run_id}` shows its state"
        )
        return exc.exit_code
    outcome = f"run {run_id} is {record.state.value}" + (f": {record.message}" if record.message else "")
    if record.exit_code:
        inform(outcome)
    else:
        view.inform(outcome)
    if not quiet:
        print_summary(record.summary)
    return record.exit_code
