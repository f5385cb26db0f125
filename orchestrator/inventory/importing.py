"""
Import inventories from MPI and DeepSpeed hostfiles, an ssh configuration and `scontrol show node`.

Each function returns the text of a valid inventory; comments in it mark what the source does not contain.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.portable.names.addresses import check_address
from orchestrator.portable.names.hostlist import expand, fold

_SSH_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_MOST_INCLUDES = 16  # within each other, as for ssh
# Gres is "gpu" for the cards of any vendor; these types are Enflame's.
_ENFLAME_TYPE = re.compile(r"(t2\d|i2\d|s60|l300|gcu|enflame)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Host:
    """One host of the source; `devices` is None and `accelerator` "auto" if the source does not contain them."""

    name: str
    address: str
    devices: int | None = None
    accelerator: str = "auto"

    @property
    def stem(self) -> str:
        """The name with each number replaced by 0."""
        return re.sub(r"\d+", "0", self.name)


def import_hostfile(text: str, file: str = "hostfile") -> str:
    """
    Parse lines `host`, `host slots=8` or `host:8`, the slots of a host added up, as in Open MPI; UsageError for others, or no host.

    A line may have several hosts, `n0:8,n1:8` as for mpirun and horovodrun, or a host list, `n[00-03] slots=8`.
    """
    slots: dict[str, int] = {}
    with_count: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", re.sub(r"(?:#|(?:^|\s)//).*", "", line)).split()
        options = [word for word in words[1:] if not re.fullmatch(r"max[-_]slots=\d+", word)]
        for entry in _entries(words[0]) if words else ():
            host, colon, count = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
            counts = ([count] if colon else []) + [option.removeprefix("slots=") for option in options]
            if len(counts) > 1 or not all(re.fullmatch(r"[1-9]\d{0,3}", digits) for digits in counts):
                raise UsageError(f"{file}:{number}: {line.strip()!r} is not a host", hint=_hostfile_hint(line, text))
            if not _is_address(host):
                raise UsageError(
                    f"{file}:{number}: {host!r} is not a host name or address", hint=_hostfile_hint(line, text)
                )
            if counts or host in slots:
                with_count.add(host)
            slots[host] = slots.get(host, 0) + int(counts[0] if counts else 1)
    hosts = [_host(name, devices=count if name in with_count else None) for name, count in slots.items()]
    return _inventory("hostfile", hosts, "accelerator: auto            # edit: cuda | gcu | cpu")


def _entries(word: str) -> list[str]:
    """The hosts of a word, with their counts; the word itself if it is no host list."""
    try:
        return expand(word)
    except ValueError:
        return [word]


def _hostfile_hint(line: str, text: str) -> str:
    """The next step for a line that has no host: for other tools' files, how to get lines that have some."""
    if "ansible_" in text:
        return "write the hosts as lines: ansible all --list-hosts | tail -n +2 | orch inventory import hostfile"
    if "NodeName=" in line:
        return "on the cluster: scontrol show node | orch inventory import scontrol"
    if "@" in line:
        return "remove the user before @, and write `defaults: {user: NAME}` into the inventory that is printed"
    return "allowed: host, host slots=8, host:8 or a host list such as n[0-3], # for comments"


def import_ssh_config(path: Path) -> str:
    """Import the Host names without wildcards, also of included files; ssh reads the rest from `path` at run time. UsageError if there is none."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {problem}", hint="give a readable ssh configuration") from error
    if text.startswith("\ufeff"):
        hint = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(str(path))}"
        raise UsageError(f"{path}:1: begins with a byte order mark, which ssh refuses", hint=hint)
    names: dict[str, None] = {}
    comments = ["# Delete the hosts that are not for training."]
    _read_ssh_config(path, text, names, comments)
    if not names:
        hint = "hosts are taken from lines `Host NAME` without wildcards; add one for each node"
        raise UsageError(f"{path}: no host found in the ssh-config", hint=hint)
    head = ["accelerator: auto            # edit: cuda | gcu | cpu", f"ssh: {{config: {_quoted(str(path))}}}"]
    return _inventory("ssh-config", [_host(name) for name in names], *head, comments=comments)


def _read_ssh_config(path: Path, text: str, names: dict[str, None], comments: list[str], *, depth: int = 0) -> None:
    """Add the hosts of a configuration to `names`, and lines that are left out to `comments`."""
    for number, line in enumerate(text.splitlines(), start=1):
        found = _SSH_LINE.match(line)
        keyword, rest = (found[1].lower(), found[2]) if found else ("", "")
        words: list[str] = []
        with suppress(ValueError):  # an unclosed quote, which ssh also refuses
            words = shlex.split(rest, comments=True)
        if keyword == "include":
            included = [file for word in words for file in _included(word)] if depth < _MOST_INCLUDES else []
            if not included:
                comments.append(f"# {_comment_text(path)}:{number}: not followed: Include {_comment_text(rest)}")
            for file, content in included:
                _read_ssh_config(file, content, names, comments, depth=depth + 1)
        for name in words if keyword == "host" else ():
            if _is_address(name):
                names[name] = None
            elif not set(name) & set("*?!"):
                comments.append(f"# {_comment_text(path)}:{number}: left out, not a host name: {_comment_text(name)}")


def _included(pattern: str) -> list[tuple[Path, str]]:
    """The files of an Include that can be read, with their texts; ssh looks for relative ones in ~/.ssh."""
    files: list[tuple[Path, str]] = []
    with suppress(OSError, UnicodeDecodeError, RuntimeError, ValueError):  # no such user, or no pattern
        whole = Path("~/.ssh").expanduser() / Path(pattern).expanduser()
        found = sorted(Path(whole.anchor).glob(str(whole.relative_to(whole.anchor))))
        files.extend((file, file.read_text(encoding="utf-8")) for file in found)
    return files


def import_scontrol(text: str, file: str = "scontrol") -> str:
    """Parse the output of `scontrol show node`, with or without -o; UsageError if the text names no node."""
    records = [
        {key: _value(block, key) for key in ("NodeName", "NodeAddr", "Gres", "State", "Partitions")}
        for block in re.split(r"(?m)^(?=[ \t]*NodeName=)", text)
        if block.lstrip(" \t").startswith("NodeName=")
    ]
    hint = "on the cluster: scontrol show node | orch inventory import scontrol"
    for name in (record["NodeName"] for record in records):
        if name == "DEFAULT" or set(name) & set("[,"):
            number = text.count("\n", 0, text.index(f"NodeName={name}")) + 1
            raise UsageError(
                f"{file}:{number}: NodeName={_comment_text(name)} is a line of slurm.conf, which is not read", hint=hint
            )
    if not records:
        raise UsageError(f"{file}: no host found: no line begins with NodeName=", hint=hint)
    hosts = [_slurm_host(record) for record in records]
    kinds = Counter(host.accelerator for host in hosts)
    head = [f"accelerator: {kinds.most_common(1)[0][0] if kinds else 'auto'}"]
    if "auto" in kinds:
        unknown = fold(host.name for host in hosts if host.accelerator == "auto")
        head[0] += f"            # edit: Slurm lists no card on {unknown}"
    shared = set.intersection(*(set(record["Partitions"].split(",")) for record in records)) if records else set()
    partitions = sorted({name for record in records for name in record["Partitions"].split(",")} - {"", "(null)"})
    cards = {name for record in records for name, _, _ in _cards(record["Gres"])}
    gres = f", gres: {cards.pop()}" if len(cards) == 1 else ""  # one per rank; the type is left open
    if shared - {"", "(null)"}:
        head.append(f"slurm: {{partition: {_quoted(min(shared - {'', '(null)'}))}{gres}}}")
    elif partitions:
        edit = f"# edit: no partition has every node; there are {', '.join(partitions)}"
        head.append(f"# slurm: {{partition: …{gres}}}      {edit}")
    comments = [
        f"# Not usable when this was written: {_comment_text(record['NodeName'])} ({_comment_text(record['State'])})"
        for record in records
        if re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|INVALID|UNKNOWN", record["State"])
    ]
    return _inventory("slurm", hosts, *head, comments=comments)


def _value(block: str, key: str) -> str:
    """Return the value of `key` in a node's record, empty if absent. Reason, Comment and Extra come last, with free text."""
    before_reason = re.split(r"\s(?:Reason|Comment|Extra)=", block, maxsplit=1)[0]
    match = re.search(rf"(?:^|\s){key}=(\S*)", before_reason)
    return match[1] if match else ""


def _slurm_host(record: Mapping[str, str]) -> _Host:
    """Build a host from a record; its Gres, such as `gpu:h800:8(S:0-1),nic:2`, may list several types of cards."""
    cards = _cards(record["Gres"])
    accelerator = "auto"
    if cards:
        enflame = any(name == "gcu" or _ENFLAME_TYPE.match(kind) for name, kind, _ in cards)
        accelerator = "gcu" if enflame else "cuda"
    count = sum(int(number) for _, _, number in cards)
    return _host(record["NodeName"], address=record["NodeAddr"], devices=count or None, accelerator=accelerator)


def _cards(gres: str) -> list[tuple[str, str, str]]:
    """Name, type and count of each kind of cards in a node's Gres."""
    return re.findall(r"(?:^|,)(gpu|gcu)(?::([^:,()]+))??:(\d+)(?=[(,]|$)", gres)


def _host(source_name: str, *, address: str = "", devices: int | None = None, accelerator: str = "auto") -> _Host:
    """Build a host; its name becomes a folder name, so an IPv6 address is converted."""
    if not _is_address(source_name) or (address and not _is_address(address)):
        hint = "correct it in the imported file"
        raise UsageError(f"{address or source_name!r} is not a host name or address", hint=hint)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", source_name).lstrip("-._") or "host"
    return _Host(name, address or source_name, devices, accelerator)


def _is_address(text: str) -> bool:
    try:
        check_address(text)
    except ValueError:
        return False
    return True


def _inventory(name: str, hosts: Sequence[_Host], *head: str, comments: Iterable[str] = ()) -> str:
    if not hosts:
        raise UsageError(f"no host found in the {name}", hint="write the inventory by hand: see inventories/README.md")
    most_common = Counter(host.accelerator for host in hosts).most_common(1)[0][0]
    lines = [f"name: {name}                 # edit", *head, "transport: ssh", *comments, "nodes:"]
    # Only consecutive hosts with similar names are folded: the order of the source is the order of the ranks.
    group_key = attrgetter("devices", "accelerator", "stem")
    for (devices, accelerator, _), group in groupby(hosts, key=group_key):
        extra_fields = f", devices: {devices}" if devices else ""
        extra_fields += f", accelerator: {accelerator}" if accelerator != most_common else ""
        lines += [f"  - {{{item}{extra_fields}}}" for item in _folded(list(group))]
    return "\n".join(lines) + "\n"


def _folded(hosts: Sequence[_Host]) -> list[str]:
    """Format hosts as one host list if its names and addresses expand in the same order, else one entry each."""
    names, addresses = [host.name for host in hosts], [host.address for host in hosts]
    name, address = fold(names), fold(addresses)
    if len(hosts) > 1 and (expand(name) != names or (names != addresses and expand(address) != addresses)):
        return [item for host in hosts for item in _folded([host])]
    return [f"name: {_quoted(name)}" + ("" if names == addresses else f", address: {_quoted(address)}")]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is also valid YAML


def _comment_text(text: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(text))
