"""Plan a run from the arguments of a command; nothing is started or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.client import Endpoint
from orchestrator.inventory.model import Inventory
from orchestrator.inventory.redaction import REDACTED, is_secret
from orchestrator.inventory.slurm_settings import with_slurm_settings
from orchestrator.launch.planned import Planned
from orchestrator.launch.preflight import checked_nodes
from orchestrator.launchers.cards import close_all, detect_cards
from orchestrator.node.system.files import absolute_path, user_name
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress, no_progress
from orchestrator.records.runs import home_store
from orchestrator.run import Request, RunRecord, RunState, new_run_id
from orchestrator.usecases.inventory import load_inventory
from orchestrator.usecases.launch.allocation import for_steps, queued_warning, this_allocation
from orchestrator.usecases.launch.request import check_labels, make_request
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.verdict.launching import this_process
from orchestrator.version import __version__


def plan_launch(
    arguments: LaunchArguments, on_progress: OnProgress = no_progress, terminal: Terminal | None = None
) -> Planned:
    """
    Plan a run; nothing is started or written. Nodes are connected to if their cards are not known.

    Args:
        terminal: for the prompts of logins; by default this process's terminal.
    """
    check_labels(arguments)
    if arguments.skipped:
        from orchestrator.usecases.checks.check import require_known  # few launches skip a check

        require_known(arguments.skipped)
    inventory = load_inventory(arguments.inventory, arguments.nodes if not arguments.by_scheduler else None)
    inventory = with_slurm_settings(inventory, arguments.slurm_settings)
    excluded: tuple[str, ...] = ()
    if arguments.exclude_suspects:
        from orchestrator.usecases.launch.suspects import without_suspects  # few launches exclude any

        inventory, arguments, excluded = without_suspects(inventory, arguments)
    terminal, connected = terminal or Terminal(), dict[str, Endpoint]()
    if not arguments.by_scheduler and inventory.accelerator == "auto" and inventory.devices is None:
        inventory, connected = detect_cards(inventory, arguments.nodes, terminal, on_progress)
    try:
        planned = _planned(arguments, inventory, terminal, connected)
        return replace(planned, warnings=(*excluded, *planned.warnings))
    except BaseException:
        close_all(connected)
        raise


def _planned(
    arguments: LaunchArguments, inventory: Inventory, terminal: Terminal, connected: Mapping[str, Endpoint]
) -> Planned:
    allocation = this_allocation(arguments, os.environ) if arguments.here else None
    warnings: Sequence[str] = ()
    if arguments.after:
        from orchestrator.usecases.launch.dependencies import with_dependencies  # imports Slurm's modules

        inventory, warnings = with_dependencies(inventory, arguments.after)
    if allocation is not None:
        inventory = for_steps(inventory)
    elif arguments.launcher == "slurm":
        warnings = [*warnings, *queued_warning(os.environ)]
    orch_folders = [home_store().path, *{Path(absolute_path(node.workdir)) for node in inventory.nodes}]
    request, bundle = make_request(
        arguments, inventory.private_files, allocation, orch_folders=orch_folders, keep=inventory.keep
    )
    now = datetime.now(timezone.utc)
    run_id = new_run_id(arguments.name or inventory.name, now, os.urandom(2).hex())
    slurm_home = slurm_user = None
    if arguments.launcher == "slurm":
        from orchestrator.launchers.slurm.host import home_of_slurm  # see launchers/__init__.py

        slurm_home = home_of_slurm(inventory)
        slurm_user = user_name() if slurm_home is not None else None
    plan = make_plan(
        inventory,
        request,
        run_id=run_id,
        bundle=bundle.digest,
        commit=bundle.commit,
        code_root="" if bundle.root is None else str(bundle.root),
        folder=str(Path.cwd()),
        home=slurm_home,
        user=slurm_user,
    )
    if plan.keep:
        from orchestrator.usecases.launch.keep_folders import require_unused  # few inventories keep folders

        require_unused(plan, arguments.after)
    for hook in () if arguments.is_trial else inventory.hooks:
        hook.require_deliverable(os.environ)
    record = replace(_record(plan, request, inventory, now), note=arguments.note, tags=arguments.tags)
    record = replace(record, rerun_of=arguments.rerun_of)
    warnings = (
        *warnings,
        *bundle.warnings,
        *_environment_warning(inventory),
        *plan.warnings,
        *_script_warnings(plan),
    )
    if arguments.rerun_of is not None:
        from orchestrator.usecases.launch.rerun import changes_since  # most launches repeat no run

        warnings += tuple(changes_since(arguments.rerun_of, bundle, inventory))
    checked = checked_nodes(plan) if not arguments.by_scheduler and not arguments.no_check else ()
    if arguments.no_check:
        warnings += ("--no-check: the nodes are not checked before the start, and no network variables are discovered",)
    files = inventory.private_files
    return Planned(
        plan, bundle, record, files, warnings, terminal, connected, checked, arguments.skipped,
        shares_cards=arguments.share, wait_free_s=arguments.wait_free_s,
    )  # fmt: skip


def _script_warnings(plan: LaunchPlan) -> Sequence[str]:
    if not plan.program.per_node:
        return ()
    from orchestrator.usecases.launch.script_ranks import script_warnings  # imports the parser of shell

    return script_warnings(plan, Path.cwd())


def _environment_warning(inventory: Inventory) -> tuple[str, ...]:
    if not inventory.env and not any(node.env for node in inventory.nodes):
        return ()
    from orchestrator.usecases.checks.lint import environment_warning  # the table takes 20 ms to import

    return environment_warning(inventory)


def _without_secrets(variables: Mapping[str, str | None], inventory: Inventory) -> dict[str, str | None]:
    secret = frozenset().union(*map(inventory.secret_names, inventory.nodes))
    return {name: REDACTED if name in secret or is_secret(name) else value for name, value in variables.items()}


def _record(plan: LaunchPlan, request: Request, inventory: Inventory, now: datetime) -> RunRecord:
    return RunRecord(
        id=plan.run_id,
        launcher=plan.launcher,
        state=RunState.PENDING,
        created=now.isoformat(),
        request={**asdict(request), "variables": _without_secrets(request.variables, inventory)},
        inventory={"name": inventory.name, "file": inventory.file, "digest": inventory.digest},
        code={},
        launching=this_process(),
        node_count=plan.node_count,
        versions={"orch": __version__, "python": sys.version.split()[0]},
    )
