"""The scripts that are in a file: by its name and first line a shell script, Python, a Dockerfile, YAML, a Markdown document or lines of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from orchestrator.lint.assignment import Script
from orchestrator.lint.dockerfile import read_dockerfile
from orchestrator.lint.embedded import placed
from orchestrator.lint.files import read_env_file, read_nccl_conf
from orchestrator.lint.markdown import Block, blocks
from orchestrator.lint.python_env import read_python
from orchestrator.lint.shell import SourcedText, nothing, read_shell
from orchestrator.lint.yaml_env import read_yaml

_ENV_NAMES = (".env", ".deepspeed_env")
_ENV_LINE = re.compile(r"\s*(?:#.*|(?:export\s+)?[A-Za-z_]\w*=.*)?")
_SCRIPT_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
_PYTHON_LINE = re.compile(r"#!.*\bpython[0-9.]*\b")
_INVENTORY = re.compile(r"^(?:nodes:[ \t]*(?:#.*)?$(?:\n[ \t]*(?:#.*)?)*\n[ \t]*-|workdir:|launcher:)", re.MULTILINE)
_OTHER_YAML = re.compile(r"^(?:apiVersion|jobs|services|kind|on):", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """
    One script of a file, with the scripts within it.

    `is_quoted`: its values are quoted as for a shell. `is_part`: it is a piece of a document, whose other pieces may set and export more.
    """

    script: Script
    is_quoted: bool = True
    is_part: bool = False


def is_inventory(text: str) -> bool:
    """True for YAML with the fields of an inventory of orch."""
    return _INVENTORY.search(text) is not None and _OTHER_YAML.search(text) is None


def is_shell_script(file: PurePath, text: str) -> bool:
    """True for a file that a shell or sbatch runs, by its name or first line."""
    return file.suffix in _SCRIPT_SUFFIXES or (text.startswith("#!") and _PYTHON_LINE.match(text) is None)


def sources(file: PurePath, text: str, name: str, sourced: SourcedText = nothing) -> Iterator[Source]:
    """The scripts of a file, which `name` names in findings; `sourced` reads the files that a shell script sources."""
    lower = file.name.lower()
    if lower.endswith("nccl.conf"):
        yield Source(Script(read_nccl_conf(text, name)), is_quoted=False)
    elif lower.startswith(("dockerfile", "containerfile")) or lower.endswith((".dockerfile", ".containerfile")):
        yield from map(Source, read_dockerfile(text, name))
    elif file.suffix in (".yaml", ".yml"):
        yield from map(Source, read_yaml(text, name))
    elif file.suffix in (".md", ".markdown", ".mdx") and not text.startswith("#!"):
        for block in blocks(text):
            for script in _block_scripts(block, name):
                yield Source(placed(script, block.start, block.removed), is_part=True)
    elif file.suffix == ".py" or _PYTHON_LINE.match(text):
        yield Source(read_python(text, name))
    elif _is_env_file(file, text):
        yield Source(Script(read_env_file(text, name)), is_quoted=False)
    else:
        yield Source(read_shell(text, name, sourced=sourced))


def _block_scripts(block: Block, name: str) -> tuple[Script, ...]:
    if block.kind == "docker":
        return read_dockerfile(block.text, name, first_line=block.line)
    if block.kind == "yaml":
        return tuple(placed(script, None) for script in read_yaml(block.text, name, first_line=block.line))
    if block.kind == "env":
        found = (replace(entry, line=entry.line + block.line - 1) for entry in read_env_file(block.text, name))
        return (Script(tuple(found)),)
    script = read_shell(block.text, name, first_line=block.line)
    return (script if block.is_named else replace(script, unread=()),)


def _is_env_file(file: PurePath, text: str) -> bool:
    """True for KEY=VALUE lines alone; a script has a first line with `#!`, or commands."""
    if file.name in _ENV_NAMES or file.suffix == ".env":
        return True
    if file.suffix in _SCRIPT_SUFFIXES or text.startswith("#!"):
        return False
    return all(_ENV_LINE.fullmatch(line) for line in text.splitlines()) and "export " not in text
