"""`orch logs`: the lines of all ranks of all nodes as one log, filtered; during the run and after it."""

from __future__ import annotations

import time
from contextlib import closing

from orchestrator.actions.log_reader import LogReader
from orchestrator.actions.logs import (
    Filter,
    batch_log,
    find_on_nodes,
    missing_logs,
    recorded_run,
    selection,
)
from orchestrator.actions.watch import Watch
from orchestrator.cli.console import LogView, ProgressLine, inform, print_error, warn
from orchestrator.errors import CTRL_C, NodesError, UsageError


def logs(
    name: str, inventory: str | None, wanted: Filter, *, follow: bool, tail: int | None, fold: bool, as_json: bool
) -> int:
    """Print the lines so far; with `follow`, also new lines until the run ends."""
    if fold and as_json:
        raise UsageError("--fold and --json exclude each other", hint="--json prints each line with its node and rank")
    progress = ProgressLine()
    if inventory is None:
        run, launcher = recorded_run(name, progress.update)
    else:
        run, launcher = find_on_nodes(name, inventory, inform, warn)
    plan = run.read_plan()
    try:
        with (
            closing(launcher),
            closing(LogView(as_json=as_json, ranks_of=plan.rank_counts() if fold else None)) as view,
        ):
            chosen = selection(wanted, plan, time.time(), has_routine=as_json)
            if wanted.stream == "batch":
                view.write(batch_log(launcher, chosen, tail))
                return 0
            with progress:
                reader = LogReader(launcher, plan, view, chosen, only_wanted_nodes=not follow)
            reader.past(tail=tail, unfinished=not follow)
            if not follow and not reader.has_every_agent and wanted == Filter():
                view.write(batch_log(launcher, chosen, tail))  # the job may have failed before it started that agent
            if follow:
                record = Watch(run, launcher, reader, view, ends_failed=False).to_end()
                view.close()
                inform(record.outcome)
    except KeyboardInterrupt:
        command = f": orch status {plan.run_id}" if run.is_recorded else ""
        inform(f"stopped watching; the run continues unless it has ended{command}")
        return CTRL_C
    if missing := missing_logs(run, plan, reader):
        print_error(missing)
    if not reader.unreadable:
        return missing.exit_code if missing else 0
    error = NodesError(list(reader.unreadable.values()), reader.folder_count)
    print_error(error)
    return error.exit_code
