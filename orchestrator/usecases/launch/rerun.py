"""The arguments to repeat the launch of a run, and the changes since."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.inventory.redaction import REDACTED
from orchestrator.inventory.slurm_settings import LISTS
from orchestrator.portable.names.hostlist import expand
from orchestrator.records.runs import find_newest
from orchestrator.run import ISOLATION_TIMEOUT_S, WAIT_FOR_NODES_S
from orchestrator.usecases.launch_arguments import LaunchArguments
from orchestrator.usecases.reports.diff import UNRECORDED, RecordedRun, changed_files
from orchestrator.version import __version__

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle
    from orchestrator.inventory.model import Inventory

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Changes:
    """The values that replace recorded ones in the new run, as typed; named like the fields of LaunchArguments."""

    program: tuple[str, ...] | None = None
    max_retries: int | None = None
    slurm: tuple[tuple[str, str], ...] = ()
    here: bool = False
    env: tuple[str, ...] = ()
    wait_for_nodes: str | None = None
    share: bool = False
    wait_free: str | None = None


def rerun_arguments(
    name: str, nodes: str | None, settings: tuple[str, ...] = (), changes: Changes = Changes()
) -> LaunchArguments:
    """
    The arguments of the recorded launch; the working folder becomes the one it was started in.

    Args:
        nodes: the host list of the new run; None for the recorded ones. The ranks per node stay the recorded ones.
        settings: settings of the shared trainer, which replace recorded ones.
        changes: what else replaces recorded values.

    Raises:
        RunNotFound: there is no such run.
        UsageError: it cannot be launched again.
    """
    run = RecordedRun.of(find_newest(name))  # not one that runs: it would run twice
    _require_repeatable(run, settings, changes)
    _enter_folder(run)
    return _arguments(run, nodes, settings, changes)


def _arguments(run: RecordedRun, nodes: str | None, settings: tuple[str, ...], changes: Changes) -> LaunchArguments:
    record, program, request = run.record, run.plan.program, run.record.request
    is_trainer = program.kind == "trainer"
    orphan_timeout, isolation_timeout = _timeouts(request)
    return LaunchArguments(
        record.launcher,
        inventory=record.inventory["file"] or None,
        nodes=nodes or request["nodes"],
        shape=_shape(request, nodes),
        config=_config_file(run),
        # not those of the plan, which an elastic run has changed
        settings=(*request["program"]["args"], *settings) if is_trainer else (),
        program=None if is_trainer else changes.program or program.args,
        orphan_timeout=orphan_timeout,
        isolation_timeout=isolation_timeout,
        wait_for_nodes=changes.wait_for_nodes or _wait_for_nodes(request),
        bare=program.bare,
        per_node=program.per_node,
        until_head=program.until_head,
        name=record.id.rsplit("-", 3)[0],
        note=record.note,
        tags=record.tags,
        debug=bool(request.get("debug")),
        max_retries=request.get("max_retries") if changes.max_retries is None else changes.max_retries,
        elastic=_elastic(request),
        slurm=(*_slurm(request, changes), *changes.slurm),
        here=request.get("allocation") is not None or changes.here,
        no_check=bool(request.get("no_check")),
        skipped=tuple(request.get("skipped", ())),
        exclude_suspects=bool(request.get("exclude_suspects")),
        rerun_of=record.id,
        variables=_variables(run, changes),
        env=changes.env,
        share=changes.share,
        wait_free=changes.wait_free,
        is_trial=record.is_trial,
    )


def _slurm(request: Mapping[str, Any], changes: Changes) -> list[tuple[str, str]]:
    """The recorded fields of `slurm:` that no new value replaces; the items of lists are added to those of the record."""
    replaced = {word.partition("=")[0] for _, word in changes.slurm} - {f"slurm.{field}" for field in LISTS}
    recorded = [f"slurm.{word}" for word in request.get("slurm", ())]
    return [("--set", word) for word in recorded if word.partition("=")[0] not in replaced]


def _variables(run: RecordedRun, changes: Changes) -> dict[str, str | None]:
    """The recorded variables of --env; UsageError if the value of a secret, which is not recorded, is not given again."""
    recorded: Mapping[str, str | None] = run.record.request.get("variables", {})
    given = {word.partition("=")[0] for word in changes.env}
    if missing := sorted(name for name, value in recorded.items() if value == REDACTED and name not in given):
        raise UsageError(
            f"{run.record.id} was launched with --env {missing[0]}, a secret, whose value is not recorded",
            hint=f"add --env {missing[0]}=VALUE, or keep it in an env_file: of the inventory",
        )
    return {name: value for name, value in recorded.items() if name not in given}


def _require_repeatable(run: RecordedRun, settings: tuple[str, ...], changes: Changes) -> None:
    program = run.plan.program
    if program.module != "trainer":
        raise UsageError(f"{run.record.id} is a benchmark, which `orch rerun` does not launch", hint="orch bench comm")
    if not run.record.request:
        raise UsageError(f"the record of {run.record.id} has no request", hint="type the launch again")
    if settings and program.kind != "trainer":
        message = f"{run.record.id} runs {program.args[0]}, and {settings[0]!r} is a setting of the shared trainer"
        line = shlex.join(["orch", "rerun", run.record.id, "--", *program.args])
        raise UsageError(message, hint=f"give the program with all its arguments, as in {line}")
    if changes.program is not None and program.kind == "trainer":
        message = f"{run.record.id} runs the shared trainer, and {' '.join(changes.program[:1])!r} is another program"
        raise UsageError(message, hint="orch ssh-launch or orch submit starts it; settings are KEY=VALUE, without --")
    if changes.program is not None and not any(changes.program[:1]):
        raise UsageError("there is no program after --", hint="omit -- to repeat the recorded one")
    if run.record.launcher != "slurm" and (changes.slurm or changes.here):
        option = changes.slurm[0][0] if changes.slurm else "--here"
        raise UsageError(
            f"{option} is for runs through Slurm, and {run.record.id} was launched over SSH", hint=f"omit {option}"
        )


def _enter_folder(run: RecordedRun) -> None:
    folder = run.record.code.get("folder")
    if folder is None:
        raise UsageError(f"{run.record.id} has not recorded its working folder", hint="its launch failed too early")
    try:
        os.chdir(folder)
    except OSError as exc:
        message = f"{run.record.id} was launched in {folder}, which cannot be entered: {exc.strerror}"
        raise UsageError(message, hint="restore that folder, or type the launch again in another one") from exc


def _config_file(run: RecordedRun) -> Path | None:
    """The configuration that the run got, as recorded: the user's file may have changed."""
    if run.plan.config is None:
        return None
    return run.folder.plan_folder / run.plan.head.name / "config.json"


def _shape(request: Mapping[str, Any], nodes: str | None) -> str | None:
    """-j as it is typed, for these nodes; None without it."""
    shape = request["shape"]
    if shape is None:
        return None
    count = len(expand(nodes)) if nodes else shape["nodes"]
    return f"{count}x{shape['ranks']}"


def _timeouts(request: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """--orphan-timeout and --isolation-timeout as they are typed; None for the defaults."""
    orphan_s, isolation_s = request.get("orphan_timeout_s"), request.get("isolation_timeout_s", ISOLATION_TIMEOUT_S)
    is_default = isolation_s == ISOLATION_TIMEOUT_S
    return None if orphan_s is None else f"{orphan_s:.0f}s", None if is_default else f"{isolation_s:.0f}s"


def _wait_for_nodes(request: Mapping[str, Any]) -> str | None:
    """--wait-for-nodes as it is typed; None for the default."""
    wait_s = request.get("wait_for_nodes_s", WAIT_FOR_NODES_S)
    return None if wait_s == WAIT_FOR_NODES_S else f"{wait_s:.0f}s"


def _elastic(request: Mapping[str, Any]) -> str | None:
    """--elastic as it is typed."""
    elastic = request.get("elastic")
    return None if elastic is None else f"{elastic['least']}:{elastic['most']}"


def changes_since(name: str, bundle: Bundle, inventory: Inventory) -> Iterator[str]:
    """One sentence for each part of a new run that differs from the run that it repeats."""
    run = RecordedRun.find(name)
    if run.plan.bundle != bundle.digest and (changes := code_changes(run, bundle)):
        yield f"the code has changed since {name}: {changes}"
    if run.record.inventory["digest"] != inventory.digest:
        yield f"the inventory has changed since {name}: {inventory.file or inventory.name}"
    if run.record.versions.get("orch") != __version__:
        yield f"{name} was launched by orch {run.record.versions.get('orch')}, and this is orch {__version__}"
    if left := [path for path in run.record.left if path not in inventory.keep]:
        listed = ", ".join(left)
        yield (
            f"{listed} of {name} {'is' if len(left) == 1 else 'are'} in the folder of that run, and the new run begins without; "
            f"keep: [{listed}] in the inventory makes such folders last from then on"
        )
    if run.record.request.get("after"):
        yield f"--after {' '.join(run.record.request['after'])} of {name} is not repeated"


def code_changes(run: RecordedRun, bundle: Bundle) -> str:
    """The changed files of the code, the first ones by name; empty if only files of orch differ."""
    files = changed_files(run.folder.read_code(), bundle.code)
    if files == {"files": UNRECORDED}:
        return f"its digest was {run.plan.bundle[:12]} and is {bundle.digest[:12]}"
    named = [f"{file} ({change})" for file, change in list(files.items())[:_MOST_NAMED]]
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return ", ".join(named) + more
