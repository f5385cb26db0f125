"""From the words that a user typed to a Request: the program, its code, the trainer's settings. Refuses, starts nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import bundle as bundles
from orchestrator.actions.durations import seconds
from orchestrator.errors import UsageError
from orchestrator.resources import trainer_folder
from orchestrator.run import LauncherName, Program, Request, Shape


@dataclass(frozen=True, slots=True)
class Words:
    """What the user typed. `settings` are the key=value words, `program` what stands after `--`."""

    launcher: LauncherName
    inventory: str | None
    nodes: str | None
    shape: str | None
    config: Path | None
    settings: tuple[str, ...]
    program: tuple[str, ...] | None
    orphan_timeout: str | None = None
    isolation_timeout: str | None = None
    bare: bool = False


def request_of(words: Words, private: Sequence[str] = ()) -> tuple[Request, bundles.Bundle]:
    """
    What is asked for, and what the nodes need for it; `private` files do not travel.

    Raises:
        UsageError: a word is wrong, the program does not exist, or the trainer refuses its configuration.
    """
    if words.program is not None and not any(words.program[:1]):
        raise UsageError("after -- stands no program", hint="-- train.py …, or leave -- away to run the shared trainer")
    settings = trainer_config(words) if words.program is None else None
    called = settings.called if settings else words.program
    code = bundles.find_code(Path.cwd(), called, private) if called else None
    program = _program(words, code)
    shape = _shape(words.shape) if words.shape else None
    config = settings.text if settings else None
    request = Request(words.launcher, program, nodes=words.nodes, shape=shape, config=config, **_timeouts(words))
    return request, bundles.build(trainer=program.needs_trainer, code=code)


def _shape(text: str) -> Shape:
    found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,3})", text)
    if found is None:
        raise UsageError(f"-j {text}: not a shape", hint="write NODESxRANKS, as in -j 2x8: two nodes of eight ranks")
    return Shape(int(found[1]), int(found[2]))


def _program(words: Words, code: bundles.Code | None) -> Program:
    cwd = code.cwd if code and code.files else None
    if code is None or words.program is None:
        if words.bare:
            raise UsageError("--bare is for a program of yours", hint="put it after --, or leave --bare away")
        return Program("trainer", words.settings, cwd)
    if words.settings or words.config:
        given = words.settings[0] if words.settings else "--config"
        raise UsageError(
            f"{given} is for the shared trainer, but a program of yours runs", hint="put its arguments after --"
        )
    first, *rest = words.program
    if first.endswith(".py"):
        _require_file(first, code)
    if first.endswith(".py") or (first in ("-m", "-c") and rest):
        return Program("python", words.program, cwd, words.bare)
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


def _timeouts(words: Words) -> dict[str, float]:
    typed = {"orphan_timeout": words.orphan_timeout, "isolation_timeout": words.isolation_timeout}
    return {
        f"{name}_s": seconds(f"--{name.replace('_', '-')}", text) for name, text in typed.items() if text is not None
    }


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The configuration file as JSON text, if there is one, and the task that it comes to together with the settings."""

    text: str | None
    task: str

    @property
    def called(self) -> tuple[str, ...] | None:
        """As a program's words, what of the user's code runs: the module of a task, if that is not the trainer's own."""
        module = self.task.partition(":")[0]
        return None if module.split(".")[0] == "trainer" else ("-m", module)


def trainer_config(words: Words) -> TrainerConfig:
    """
    The configuration, after the trainer itself has checked it together with the settings.

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
        # -m looks in the working folder first: a trainer.py of the user's there is not meant. With PYTHONSAFEPATH it does not.
        folder_above = str(trainer_folder().parent)
        path = os.pathsep.join(filter(None, (folder_above, os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=folder_above, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            message = done.stderr.strip().replace(str(file), str(words.config)).removeprefix("error: ")
            raise UsageError(message or "the trainer refused its configuration")
    return TrainerConfig(text, json.loads(done.stdout)["task"])


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
