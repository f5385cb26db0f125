"""`orch ssh-launch` and `orch submit`: from words to a plan, from the plan to a run, and watch it."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator import bundle as bundles
from orchestrator import plan as plans
from orchestrator import transcript
from orchestrator.commands.following import Watch
from orchestrator.commands.inventory import load_inventory
from orchestrator.console import LineWriter, print_text, say, say_error, say_summary
from orchestrator.errors import LaunchError, OrchError, UsageError
from orchestrator.inventory import Inventory
from orchestrator.launchers import launcher_for
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.probe import probed
from orchestrator.plan import LaunchPlan
from orchestrator.resources import trainer_folder
from orchestrator.run import LauncherName, Program, Request, RunRecord, RunState, Shape, new_run_id
from orchestrator.store import RunFolder, Store, home

WATCH_STOPPED = 130  # what a shell reports for a command ended by Ctrl-C


@dataclass(frozen=True, slots=True)
class Words:
    """What the user typed. `settings` are the key=value words, `program` what stands after `--`."""

    launcher: LauncherName
    inventory: str | None
    nodes: str | None
    shape: str | None
    config: Path | None
    settings: tuple[str, ...]
    program: tuple[str, ...]


def launch(words: Words, *, dry_run: bool, follow: bool) -> int:
    """Plan, then act; returns the exit code."""
    inventory = load_inventory(words.inventory, words.nodes if words.launcher == "ssh" else None)
    if words.launcher == "ssh" and inventory.accelerator == "auto" and inventory.devices is None:
        inventory = probed(inventory, words.nodes)
    code = bundles.find_code(Path.cwd(), words.program) if words.program else None
    program = _program(words, code)
    config = _trainer_config(words) if program.kind == "trainer" else None
    shape = _shape(words.shape) if words.shape else None
    request = Request(words.launcher, program, nodes=words.nodes, shape=shape, config=config)
    bundle = bundles.build(trainer=program.kind == "trainer", code=code)
    now = datetime.now(timezone.utc)
    run_id = new_run_id(inventory.name, now, secrets.token_hex(2))
    plan = plans.make_plan(inventory, request, run_id=run_id, bundle=bundle.digest, home=str(Path.home()))
    for warning in plan.warnings:
        say(f"warning: {warning}")
    if dry_run:
        print_text(transcript.of(plan))
        return 0
    launcher = launcher_for(plan)
    try:
        folder = _start(plan, launcher, bundle, _record(plan, request, inventory, now))
        if not follow:
            print_text(f"{plan.run_id}\n")
            return 0
        return _watch(folder, launcher)
    finally:
        launcher.close()


def _start(plan: LaunchPlan, launcher: Launcher, bundle: bundles.Bundle, record: RunRecord) -> RunFolder:
    """Write the record before anything starts; a launch that fails is a FAILED run with nothing left running."""
    folder = Store(home(os.environ)).create(record)
    try:
        with ThreadPoolExecutor(1) as aside:
            connecting = aside.submit(launcher.connect)  # waits for the network; the record is completed meanwhile
            folder.write_plan(plan)
            folder.update(state=RunState.STARTING, code=_code(folder))
            connecting.result()
        job = launcher.start(bundle)
    except OrchError as exc:
        folder.update(state=RunState.FAILED, message=str(exc), ended=datetime.now(timezone.utc).isoformat())
        raise
    except KeyboardInterrupt:
        for trouble in launcher.stop(None, grace_s=0.0):
            say(trouble)
        folder.update(state=RunState.STOPPED, message="interrupted during the launch")
        raise LaunchError("interrupted during the launch; what had started was stopped") from None
    folder.update(slurm_job=job)
    return folder


def _code(folder: RunFolder) -> dict[str, Any]:
    """Which code the user has here; what differs from its commit is kept beside the record."""
    commit, diff = bundles.revision(Path.cwd())
    if diff:
        folder.write_diff(diff)
    return {"commit": commit, "dirty": bool(diff)}


def _watch(folder: RunFolder, launcher: Launcher) -> int:
    run_id = folder.path.name
    say(f"run {run_id} started; Ctrl-C stops watching, the run goes on")
    try:
        record = Watch(folder, launcher, LineWriter(as_json=False), lambda _: True).to_end()
    except KeyboardInterrupt:
        say(f"stopped watching; the run goes on. `orch logs -f {run_id}` watches again, `orch stop {run_id}` ends it")
        return WATCH_STOPPED
    except LaunchError as exc:
        say_error(exc)
        say(
            f"stopped watching; the run goes on. `orch logs -f {run_id}` watches again, `orch status {run_id}` asks after it"
        )
        return exc.exit_code
    say(f"run {run_id} is {record.state.value}" + (f": {record.message}" if record.message else ""))
    say_summary(record.summary)
    return record.exit_code


def _shape(text: str) -> Shape:
    found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,3})", text)
    if found is None:
        raise UsageError(f"-j {text}: not a shape", hint="write NODESxRANKS, as in -j 2x8: two nodes of eight ranks")
    return Shape(int(found[1]), int(found[2]))


def _program(words: Words, code: bundles.Code | None) -> Program:
    if code is None:
        return Program("trainer", words.settings)
    if words.settings or words.config:
        given = words.settings[0] if words.settings else "--config"
        raise UsageError(
            f"{given} is for the shared trainer, but a program of yours runs", hint="put its arguments after --"
        )
    first, *rest = words.program
    cwd = code.cwd if code.holds_files else None
    if first == "-m" and rest:
        return Program("python", words.program, cwd)
    if first.endswith(".py"):
        _require_file(first, code)
        return Program("python", words.program, cwd)
    if first.startswith("-"):
        raise UsageError(
            f"after -- stands {first!r}, which is no program", hint="-- train.py …, -- -m pkg.mod …, -- ./run.sh …"
        )
    if "/" in first and not first.startswith("/"):
        _require_file(first, code)
    return Program("executable", words.program, cwd)


def _require_file(name: str, code: bundles.Code) -> None:
    """An absolute path is the node's own; a relative one must be among the files that travel."""
    if name.startswith("/"):
        return
    path = Path.cwd() / name
    if not path.is_file():
        raise UsageError(
            f"program {name} does not exist in {Path.cwd()}", hint="name a file of this folder, or an absolute path"
        )
    relative = os.path.relpath(path.resolve(), code.root.resolve())
    if relative not in code.files:
        raise UsageError(
            f"program {name} would not travel: git ignores it, or it is outside {code.root}", hint="git add it"
        )


def _trainer_config(words: Words) -> str | None:
    """
    The configuration file as JSON text, after the trainer itself has checked it together with the settings.

    Raises:
        UsageError: the trainer refuses the configuration.
    """
    for word in words.settings:
        if "=" not in word or word.startswith("-"):
            raise UsageError(
                f"{word!r} is not a key=value setting", hint="a program of yours goes after --: -- train.py …"
            )
    text = None if words.config is None else _as_json(words.config)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        if text is not None:
            file.write_text(text, "utf-8")
        config = [] if text is None else ["--config", str(file)]
        command = [sys.executable, "-m", "trainer", "--print-config", *config, *words.settings]
        done = subprocess.run(command, cwd=trainer_folder().parent, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            message = done.stderr.strip().replace(str(file), str(words.config)).removeprefix("trainer: error: ")
            raise UsageError(message or "the trainer refused its configuration")
    return text


def _as_json(path: Path) -> str:
    from ruamel.yaml import YAML  # noqa: PLC0415  only when a file is given
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        data: Any = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    except OSError as exc:
        raise UsageError(f"--config {path}: {exc.strerror}", hint="name an existing file") from exc
    except (YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"--config {path} is neither YAML nor JSON: {exc}") from exc
    return json.dumps(data, indent=1) + "\n"


def _record(plan: LaunchPlan, request: Request, inventory: Inventory, now: datetime) -> RunRecord:
    return RunRecord(
        id=plan.run_id,
        launcher=plan.launcher,
        state=RunState.PENDING,
        created=now.isoformat(),
        request=asdict(request),
        inventory={"name": inventory.name, "file": inventory.file, "digest": inventory.digest},
        code={},
        versions={"orch": orchestrator.__version__, "python": sys.version.split()[0]},
    )
