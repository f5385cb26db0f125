"""A redacted archive of a diagnosis, for a public issue."""

from __future__ import annotations

import getpass
import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.evidence import origin_of
from orchestrator.errors import OrchError, UsageError, os_error_text
from orchestrator.inventory.redaction import is_secret
from orchestrator.records.files import write_file
from orchestrator.records.runs import find_run
from orchestrator.usecases.diagnose.log_files import STDIN, Diagnosed, log_lines
from orchestrator.usecases.diagnose.pseudonyms import Pseudonyms
from orchestrator.variables import VARIABLES
from orchestrator.version import __version__

CONTEXT_LINES = 20
_NAME = r"[A-Za-z](?:[\w.-]*[A-Za-z0-9])?"
_HOSTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<![\w.-])(?P<host>{_NAME}):\d+:\d+ ",  # NCCL
        rf"(?:srun|sbatch|slurmstepd): error: (?P<host>{_NAME}): ",
        rf" (?i:on) (?P<host>(?=[\w.-]*\d){_NAME}) (?:CANCELLED|FAILED|ended|has)",
        rf"slurmstepd-(?P<host>{_NAME}): ",
        rf"\[(?P<host>(?=[\w.-]*[.\d]){_NAME})\]:\d+",  # torch's [host]:port
        rf"(?i:host(?:name)?|nodename|nodelist|server|master_addr(?:ess)?)['\"]?[=: ]+['\"]?(?P<host>(?=[\w.-]*\d){_NAME})",
        rf"\((?P<host>(?=[\w.-]*[.\d]){_NAME}), \d{{2,5}}\)",
        rf"@(?P<host>{_NAME})(?=[:\s])",
    )
)
_NOT_HOST = re.compile(
    r"(?i)error|exception|warning|\.(?:py|so|cc|cpp|cu|h|log|out|err|txt)$|^rank\d*$|^v?\d|^(?:torch|nccl|cuda|pyxis|spank|collect2)\b"
)
_NUMBER = re.compile(r"^\d+: |^(?:proof|errors|also|follows|or) +\S+:\d+: ")
_HOME_OF = re.compile(r"/(?:home|Users|public/home|data/home|root/home)/(?P<user>[\w.-]+)")
_KINDS = {"name": "names of runs and files", "node": "host names", "addr": "IP addresses", "/path": "folders", "host": "other hosts", "id": "UUIDs", "mac": "hardware addresses"}  # fmt: skip


@dataclass
class _Facts:
    """Facts of the run: its shape and variables, and the real names that must not leave."""

    shape: dict[str, Any] = field(default_factory=dict)
    users: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


def write_report(diagnosed: Diagnosed, shown: Sequence[str], file: Path) -> list[str]:
    """
    Write a gzipped tar archive, private, and return lines that list what it holds and what was replaced.

    Args:
        shown: the lines of the diagnosis, as they are printed.

    Raises:
        UsageError: the file exists or cannot be written, or a real name is left in the archive, which is then not written.
    """
    if file.exists():
        raise UsageError(f"{file} exists", hint="give a new file, such as report.tar.gz")
    facts = _facts(diagnosed)
    texts = {"diagnosis.txt": "\n".join(shown) + "\n", "lines.txt": "\n".join(_lines(diagnosed)) + "\n"}
    texts["setting.json"] = json.dumps(facts.shape, indent=1, sort_keys=True) + "\n"
    hosts = _hosts(line for text in texts.values() for line in text.splitlines())
    users = {found["user"] for text in texts.values() for found in _HOME_OF.finditer(text)}
    pseudonyms = Pseudonyms(users=facts.users | users, hosts=facts.hosts | hosts, names=facts.names)
    replaced = {name: pseudonyms.replaced(text) for name, text in texts.items()}
    for name, text in replaced.items():
        if left := pseudonyms.left(text):
            hint = "nothing was written; please report this as a fault of orch"
            raise UsageError(f"{name} would hold {left[0]!r}, which must not leave", hint=hint)
    try:
        write_file(file, _archive(replaced))
    except OSError as exc:
        raise UsageError(os_error_text(exc), hint="give a file that you can write") from exc
    parts = [f"{number} {_KINDS.get(kind, f'{kind}s')}" for kind, number in sorted(pseudonyms.count.items())]
    return [*_listed(replaced), f"replaced       {', '.join(parts) or 'nothing'}"]


def _hosts(lines: Iterable[str]) -> set[str]:
    """The host names that the prefixes of launchers and known messages contain."""
    found: set[str] = set()
    for line in lines:
        text = _NUMBER.sub("", line)
        found.add(origin_of(text).node or "")
        found |= {match["host"] for pattern in _HOSTS for match in pattern.finditer(text)}
    return {name for name in found if not _NOT_HOST.search(name)}


def _listed(texts: Mapping[str, str]) -> Iterable[str]:
    subjects = {"diagnosis.txt": "the diagnosis", "lines.txt": "the lines of errors with those around them", "setting.json": "versions, shape and variables"}  # fmt: skip
    return (f"{name:14} {subjects[name]}, {text.count(chr(10))} lines" for name, text in texts.items())


def _lines(diagnosed: Diagnosed) -> Iterable[str]:
    """The lines of the diagnosis, of log files with those around them; of a run, whose logs are on its nodes, the lines alone."""
    found = diagnosed.diagnosis
    hits = [*found.proof, *found.errors]
    if diagnosed.run is not None:
        yield from (hit.text for hit in hits)
        return
    by_file: dict[str, list[int]] = {}
    for hit in hits:
        by_file.setdefault(hit.file, []).append(hit.line)
    for file, numbers in by_file.items():
        if file == STDIN:
            yield from (hit.text for hit in hits if hit.file == STDIN)
            continue
        lines = log_lines(file)
        near = {line for number in numbers for line in range(number - CONTEXT_LINES, number + CONTEXT_LINES + 1)}
        yield f"==> {file}"
        yield from (f"{line}: {lines[line - 1]}" for line in sorted(near) if 1 <= line <= len(lines))


def _facts(diagnosed: Diagnosed) -> _Facts:
    facts = _Facts({"orch": __version__, "python": platform.python_version(), "system": platform.system()})
    facts.users |= {getpass.getuser(), Path.home().name}
    facts.hosts |= {platform.node(), platform.node().partition(".")[0], *diagnosed.diagnosis.nodes}
    if diagnosed.run is None:
        facts.shape["variables"] = _variables(os.environ)
        return facts
    with suppress(OrchError):
        folder = find_run(diagnosed.run)
        record, plan = folder.read(), folder.read_plan()
        nodes = {node.name: node for node in plan.nodes}
        environment = folder.read_environment() or {}
        facts.names |= {record.id, str(record.request.get("name") or "")}
        facts.hosts |= {name for node in nodes.values() for name in (node.name, node.address)}
        facts.users |= {user for node in nodes.values() if (user := getattr(node, "user", None))}
        facts.shape |= {
            "versions": record.versions,
            "launcher": record.launcher,
            "state": record.state.value,
            "nodes": len(nodes),
            "ranks": plan.world_size,
            "variables": _variables({name: value for env in environment.values() for name, value in env.items()}),
        }
    return facts


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that `orch lint` knows, without secrets: those of NCCL, torch, ECCL and gloo."""
    return {name: value for name, value in env.items() if name in VARIABLES and not is_secret(name)}


def _archive(texts: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in texts.items():
            content = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"orch-report/{name}")
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
