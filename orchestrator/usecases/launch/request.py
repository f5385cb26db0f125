"""Check the arguments of a launch and make a Request of them: the program, its code, the trainer's settings. Starts nothing."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.code import bundle as bundles
from orchestrator.code.exclusions import ORCHIGNORE
from orchestrator.code.files import Code, find_code, path_in_code
from orchestrator.errors import UsageError
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.node.system.executable import shell_syntax
from orchestrator.resources import trainer_folder
from orchestrator.run import Allocation, Elastic, Program, Request, Shape
from orchestrator.usecases.durations import seconds
from orchestrator.usecases.launch_arguments import LaunchArguments

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAG = re.compile(r"[^\s,]{1,64}")


def check_labels(arguments: LaunchArguments) -> None:
    """
    Check --name and --tag.

    Raises:
        UsageError: the name cannot begin a run id, or would be taken for something else; or a tag is not one word.
    """
    name = arguments.name
    if name is not None and (not _NAME.fullmatch(name) or name == "latest" or RUN_ID.fullmatch(name)):
        raise UsageError(
            f"--name {name!r} cannot name a run",
            hint="use up to 64 letters, digits, . _ - (a letter or digit first); not latest, and no run id",
        )
    for tag in arguments.tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"--tag {tag!r}: not one word", hint="as in --tag baseline --tag lr=1e-3")


def make_request(
    arguments: LaunchArguments,
    private: Sequence[str] = (),
    allocation: Allocation | None = None,
    *,
    orch_folders: Sequence[Path] = (),
    keep: Sequence[str] = (),
) -> tuple[Request, bundles.Bundle]:
    """
    Make the request and the bundle that the nodes need for it.

    `private` files, and those in folders of orch itself (`orch_folders`) and in folders that the nodes `keep`, are not sent.

    Raises:
        UsageError: an argument is wrong, the program does not exist, or the trainer refuses its configuration.
    """
    if arguments.program is not None and not any(arguments.program[:1]):
        raise UsageError("there is no program after --", hint="-- train.py …, or omit -- to run the shared trainer")
    settings = trainer_config(arguments) if arguments.program is None else None
    argv = settings.user_module if settings else arguments.program
    code = find_code(Path.cwd(), argv, private, orch_folders) if argv else None
    program = _program(arguments, code)
    sent = _without_kept(code, keep) if code and arguments.program is not None else code
    shape = _shape(arguments.shape) if arguments.shape else None
    config = settings.text if settings else None
    checks = arguments.launcher == "slurm" and not arguments.no_check
    request = Request(
        arguments.launcher,
        program,
        nodes=arguments.nodes,
        shape=shape,
        config=config,
        slurm=tuple(setting.word for setting in arguments.slurm_settings),
        after=arguments.after,
        allocation=allocation,
        debug=arguments.debug,
        max_retries=arguments.max_retries,
        elastic=_elastic(arguments, settings),
        no_check=arguments.no_check,
        skipped=arguments.skipped,
        exclude_suspects=arguments.exclude_suspects,
        variables=arguments.all_variables,
        is_trial=arguments.is_trial,
        **_timeouts(arguments),
    )
    bundle = bundles.build(trainer=program.needs_trainer, code=sent, checks=checks)
    if code and sent and (left_out := len(code.files) - len(sent.files)):
        are_not = "file is" if left_out == 1 else "files are"
        bundle.warnings += (f"{left_out} {are_not} not sent, in folders that the nodes keep (keep: {', '.join(keep)})",)
    return request, bundle


def _without_kept(code: Code, keep: Sequence[str]) -> Code:
    """
    The code without files in folders that are kept on the nodes.

    Raises:
        UsageError: one of the folders is a file of the code.
    """
    folders = [posixpath.normpath(posixpath.join(code.cwd, path)) for path in keep]
    for path, folder in zip(keep, folders, strict=True):
        if file := next((name for name in code.files if folder == name or folder.startswith(f"{name}/")), None):
            raise UsageError(
                f"keep: {path}: {code.root / file} is a file of the code, and no folder",
                hint="name another folder in keep: of the inventory",
            )
    return replace(
        code, files=tuple(n for n in code.files if not any(n.startswith(f"{folder}/") for folder in folders))
    )


def _shape(text: str) -> Shape:
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,3})", text)
    if match is None:
        raise UsageError(f"-j {text}: not a shape", hint="write NODESxRANKS, as in -j 2x8: two nodes of eight ranks")
    return Shape(int(match[1]), int(match[2]))


def _elastic(arguments: LaunchArguments, settings: TrainerConfig | None) -> Elastic | None:
    """
    The value of --elastic; None without it.

    Raises:
        UsageError: it is not MIN:MAX, or the run is started through Slurm.
    """
    text = arguments.elastic
    if text is None:
        return None
    if arguments.launcher == "slurm":
        raise UsageError(
            "--elastic is for runs over SSH: a Slurm job has as many nodes in each attempt as in the first",
            hint="omit it; --set slurm.spare_nodes=N replaces failed nodes",
        )
    match = re.fullmatch(r"([1-9]\d{0,4}):([1-9]\d{0,4})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(
            f"--elastic {text}: not MIN:MAX",
            hint="the least and the most nodes, as in --elastic 2:4, MIN not above MAX",
        )
    values = {} if settings is None else settings.batch_settings
    return Elastic(int(match[1]), int(match[2]), **values)


def _program(arguments: LaunchArguments, code: Code | None) -> Program:
    cwd = code.cwd if code and code.files else None
    if arguments.until_head and not arguments.per_node:
        raise UsageError(
            "--until-head is for programs that run once per node", hint="add --per-node, or omit --until-head"
        )
    if code is None or arguments.program is None:
        for option, is_given in (("--bare", arguments.bare), ("--per-node", arguments.per_node)):
            if is_given:
                hint = f"put the program after --, or omit {option}"
                raise UsageError(f"{option} is for a program of yours", hint=hint)
        return Program("trainer", arguments.settings, cwd, module=arguments.module)
    if arguments.settings or arguments.config:
        refused = arguments.settings[0] if arguments.settings else "--config"
        raise UsageError(
            f"{refused} is for the shared trainer, but a program of yours runs", hint="put its arguments after --"
        )
    first, *rest = arguments.program
    if first.endswith(".py"):
        _require_file(first, code)
    if first.endswith(".py") or (first in ("-m", "-c") and rest):
        return Program("python", arguments.program, cwd, arguments.bare, arguments.per_node, arguments.until_head)
    if first.startswith("-"):
        raise UsageError(f"{first!r} after -- is not a program", hint="-- train.py …, -- -m pkg.mod …, -- ./run.sh …")
    if "/" in first and not first.startswith("/"):
        _require_file(first, code)
    return Program("executable", arguments.program, cwd, arguments.bare, arguments.per_node, arguments.until_head)


def _require_file(name: str, code: Code) -> None:
    """Refuse a relative path that is not among the files sent to the nodes; an absolute path names a file of the node."""
    if name.startswith("/"):
        return
    path = Path.cwd() / name
    if not path.is_file():
        if line := shell_syntax([name]):
            raise UsageError(line, hint="orch starts programs, not lines of a shell")
        raise UsageError(
            f"program {name} does not exist in {Path.cwd()}", hint="name a file of this folder, or an absolute path"
        )
    sent_name = path_in_code(code.root, path)
    if {sent_name, path_in_code(code.root, path.resolve())} & {*code.files}:
        return
    if sent_name.startswith("../"):
        above = os.path.commonpath((code.root.resolve(), path.resolve()))
        hint = f"start orch in a folder that holds all of the code, such as {above}"
        raise UsageError(f"program {name} would not be sent to the nodes: it is outside of {code.root}", hint=hint)
    raise UsageError(
        f"program {name} would not be sent to the nodes: an ignore file lists it",
        hint=f"add the line !/{sent_name} to {code.root / ORCHIGNORE}",
    )


def _timeouts(arguments: LaunchArguments) -> dict[str, float]:
    names = ("orphan_timeout", "isolation_timeout", "wait_for_nodes")
    typed = {name: getattr(arguments, name) for name in names}
    return {
        f"{name}_s": seconds(f"--{name.replace('_', '-')}", text) for name, text in typed.items() if text is not None
    }


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The configuration file as JSON text, if there is one, and the task that file and settings together select."""

    text: str | None
    task: str
    batch_settings: dict[str, int | None] = field(default_factory=dict)
    """The values of micro_batch, accumulation and batch; None for what follows from the others."""

    @property
    def user_module(self) -> tuple[str, ...] | None:
        """The user's module that defines the task, as the arguments `-m MODULE`; None if the task is the trainer's own, or hf:FOLDER."""
        module = self.task.partition(":")[0]
        return None if module == "hf" or module.split(".")[0] == "trainer" else ("-m", module)


def trainer_config(arguments: LaunchArguments) -> TrainerConfig:
    """
    Let the trainer check the configuration file together with the settings, and return it.

    Raises:
        UsageError: the trainer refuses the configuration.
    """
    for word in arguments.settings:
        if "=" not in word or word.startswith("-"):
            line = shlex.join([arguments.verb, "--", word])
            is_key = (
                re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)*", word) and not word.endswith(".py") and not Path(word).exists()
            )
            setting = f"write {word}=VALUE, as in steps=20; or " if is_key else ""
            hint = f"{setting}put a program of yours after --: orch {line}"
            raise UsageError(f"{word!r} is not a key=value setting", hint=hint)
    text = None if arguments.config is None else _as_json(arguments.config)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        if text is not None:
            file.write_text(text, "utf-8")
        config = [] if text is None else ["--config", str(file)]
        result = run_trainer(arguments.module, ["--print-config", *config, *arguments.settings])
        if result.returncode != 0:
            message = result.stderr.strip().replace(str(file), str(arguments.config)).removeprefix("error: ")
            message = message.replace("python -m trainer --help", "orch settings")
            raise UsageError(message or "the trainer refused its configuration")
    values = json.loads(result.stdout)
    batch_settings = {name: values.get(name) for name in ("micro_batch", "accumulation", "batch")}
    return TrainerConfig(text, values.get("task", arguments.module), batch_settings)


def run_trainer(module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a module of the shared trainer here, without torch, to check or list its settings."""
    # -m searches the working folder first, where the user may have a trainer.py; with PYTHONSAFEPATH it does not
    parent = str(trainer_folder().parent)
    path = os.pathsep.join(filter(None, (parent, os.environ.get("PYTHONPATH"))))
    command, env = [sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=parent, env=env, capture_output=True, text=True, check=False)


def _as_json(path: Path) -> str:
    from ruamel.yaml import YAML  # only when a file is given
    from ruamel.yaml.error import YAMLError

    try:
        data: Any = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    except OSError as exc:
        raise UsageError(f"--config {path}: {exc.strerror}", hint="name an existing file") from exc
    except (YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"--config {path} is neither YAML nor JSON: {exc}") from exc
    return json.dumps(data, indent=1) + "\n"
