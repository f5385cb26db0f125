"""
The inventory: the cluster as its user wrote it down, checked, with patterns expanded and defaults applied.

The only validation of what users write about machines; a value of these types needs no further checks. How a file is
read, and how problems are worded, is inventory_file.py.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from orchestrator import inventory_fields as fields
from orchestrator.accelerators import default_ranks
from orchestrator.errors import UsageError
from orchestrator.hostlist import MAX_NAMES, expand, fold, repeated
from orchestrator.inventory_file import Document, FieldPath, Problem, Tree, beside, did_you_mean, problem_of, read
from orchestrator.redaction import REDACTED, is_secret

_PYTHON = {"ssh": "python3", "local": sys.executable}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SshOptions(_Model):
    """How nodes are reached; `config` None is ssh's own default, a leading `~` is left in place."""

    config: fields.File | None = None
    proxy_jump: fields.Jump | None = None
    host_keys: fields.HostKeys = "strict"
    fanout: fields.FanOut = 64
    connect_timeout_s: fields.Seconds = 10.0


class SlurmOptions(_Model):
    """What sbatch is told; `login` is the host to run it on, None this one."""

    partition: fields.SlurmWord | None = None
    account: fields.SlurmWord | None = None
    qos: fields.SlurmWord | None = None
    time: fields.SlurmTime | None = None
    login: fields.Address | None = None
    options: tuple[fields.SlurmOption, ...] = ()


class Node(_Model):
    """One host; user and port None leave the choice to the ssh configuration, `env` is its own part only."""

    name: fields.Name
    address: fields.Address = ""
    user: fields.User | None = None
    port: fields.Port | None = None
    python: fields.Program = "python3"
    workdir: fields.Folder = "~/.orch"
    devices: fields.RankCount = 1
    accelerator: fields.AcceleratorKind = "auto"
    network: fields.Network = "auto"
    env: fields.Environment = {}
    tags: tuple[fields.Name, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _address_is_the_name(cls, given: object) -> object:
        return {"address": given["name"], **given} if isinstance(given, dict) and "name" in given else given


class _Cluster(_Model):
    """The fields that the file and the resolved inventory share."""

    name: fields.Name = "inventory"
    accelerator: fields.AcceleratorKind = "auto"
    devices: fields.RankCount | None = None
    network: fields.Network = "auto"
    transport: fields.TransportKind = "ssh"
    env: fields.Environment = {}
    ssh: SshOptions = SshOptions()
    slurm: SlurmOptions = SlurmOptions()


class Inventory(_Cluster):
    """The cluster; `devices` None means the number of ranks followed from each node's accelerator."""

    nodes: tuple[Node, ...]
    file: str = ""
    digest: str = ""  # sha256 of the file's bytes, hexadecimal

    def environment(self, node: Node) -> dict[str, str]:
        """Give the variables of a node: everyone's, overlaid by its own."""
        return {**self.env, **node.env}

    def node(self, name: str) -> Node:
        """Find a node by its name; a UsageError when there is none."""
        return self._chosen([name])[0]

    def select(self, names: str) -> tuple[Node, ...]:
        """
        Give the nodes of a host list such as `n[0-3],x`, in inventory order: ranks do not depend on how it was typed.

        Raises:
            UsageError: the list cannot be read, names a node twice, or names one that is not in the inventory.
        """
        return self._chosen(_expanded(names))

    def _chosen(self, names: Sequence[str]) -> tuple[Node, ...]:
        known = [node.name for node in self.nodes]
        wanted = set(names)
        if unknown := wanted.difference(known):
            source = self.file or f"inventory {self.name}"
            hint = f"{did_you_mean(min(unknown), known)}known nodes: {fold(known)}"
            raise UsageError(f"{fold(unknown)}: not in {source}", hint=hint)
        _refuse_twice(names)
        return tuple(node for node in self.nodes if node.name in wanted)


class _Settings(_Model):
    """The node fields that `defaults:` may hold; what is absent stays unset."""

    user: fields.User | None = None
    port: fields.Port | None = None
    python: fields.Program | None = None
    workdir: fields.Folder | None = None
    devices: fields.RankCount | None = None
    accelerator: fields.AcceleratorKind | None = None
    network: fields.Network | None = None
    env: fields.Environment = {}
    tags: tuple[fields.Name, ...] | None = None


class _Entry(_Settings):
    """One item of `nodes:`, which may stand for many nodes."""

    name: fields.NamePattern
    address: fields.AddressPattern | None = None


def _some(entries: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    if not entries:
        raise ValueError("is empty; name at least one node")
    return entries


class _Written(_Cluster):
    """The file, field by field."""

    defaults: _Settings = _Settings()
    nodes: Annotated[tuple[_Entry, ...], AfterValidator(_some)]


def load(path: Path) -> Inventory:
    """
    Read an inventory file.

    Raises:
        InventoryError: with every problem that was found, a line each.
    """
    document = read(path)
    written, problems = _parse(document)
    problems = [*document.problems, *problems, *_name_problems(document)]
    if written is None or problems:
        raise document.error(problems)
    return _resolve(written, document)


def from_names(
    names: Sequence[str],
    *,
    transport: fields.TransportKind = "ssh",
    accelerator: fields.AcceleratorKind = "auto",
    devices: int | None = None,
) -> Inventory:
    """
    Make the inventory of hosts that are only named, as `--nodes n0,n1` or several such lists; ssh knows the rest.

    Raises:
        UsageError: there is no name, one is no host name, or one is given twice.
    """
    listed = [name for text in names for name in _expanded(text)]
    if not listed:
        raise UsageError("no node is named", hint="name some: --nodes n0,n1 or an inventory with -i FILE")
    _refuse_twice(listed)
    python, ranks = _PYTHON[transport], devices or default_ranks(accelerator)
    try:
        nodes = tuple(Node(name=name, python=python, devices=ranks, accelerator=accelerator) for name in listed)
    except ValidationError as error:
        wrong = problem_of(error.errors()[0], ())
        hint = "hosts that need more than a name go into an inventory"
        raise UsageError(f"--nodes: {wrong.text}", hint=hint) from error
    digest = hashlib.sha256("\n".join(listed).encode()).hexdigest()
    return Inventory(
        name="adhoc", accelerator=accelerator, devices=devices, transport=transport, nodes=nodes, digest=digest
    )


def describe(inventory: Inventory) -> dict[str, Any]:  # Any: JSON
    """Give the resolved inventory as JSON values, secrets by name redacted."""
    described = inventory.model_dump(mode="json")
    for holder in (described, *described["nodes"]):
        holder["env"] = {name: REDACTED if is_secret(name) else value for name, value in holder["env"].items()}
    return described


def _parse(document: Document) -> tuple[_Written | None, list[Problem]]:
    """Check field by field; a field that the reader refused already is not reported again."""
    try:
        return _Written.model_validate(document.tree), []
    except ValidationError as error:
        problems = [problem_of(details, _allowed(details["loc"])) for details in error.errors()]
    refused = {problem.path for problem in document.problems}
    return None, [problem for problem in problems if problem.path not in refused]


def _allowed(path: FieldPath) -> list[str]:
    """List the keys that can stand where the last part of `path` does."""
    sections: dict[str, type[BaseModel]] = {
        "ssh": SshOptions,
        "slurm": SlurmOptions,
        "defaults": _Settings,
        "nodes": Node,
    }
    model = sections.get(str(path[0]), _Written) if len(path) > 1 else _Written
    return list(model.model_fields)


def _name_problems(document: Document) -> Iterator[Problem]:
    """Find what no single field shows: lists of unequal length, and a name that is given twice."""
    entries = document.tree.get("nodes")
    first: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict):
            continue
        try:
            names, addresses = _expanded_or_empty(entry.get("name")), _expanded_or_empty(entry.get("address"))
        except ValueError:
            continue  # reported as the field's own problem
        if addresses and names and len(addresses) != len(names):
            text = f"stands for {len(addresses)} nodes, name for {len(names)}; both must list the same number"
            yield Problem(("nodes", index, "address"), text)
        for where in sorted({first[name] for name in names if name in first}):
            twice = fold(name for name in names if first.get(name) == where)
            line = document.line(("nodes", where, "name"))
            yield Problem(("nodes", index, "name"), f"{twice} is named already in nodes[{where}], line {line}")
        if twice := fold(repeated(names)):
            yield Problem(("nodes", index, "name"), f"{twice} is named twice")
        first.update({name: index for name in names if name not in first})
        if len(first) > MAX_NAMES:
            yield Problem(("nodes",), f"more than {MAX_NAMES} nodes")
            return


def _resolve(written: _Written, document: Document) -> Inventory:
    """Expand the patterns and apply the defaults; nothing can be wrong any more."""
    ssh = written.ssh
    if ssh.config is not None:
        ssh = ssh.model_copy(update={"config": beside(document.file, ssh.config)})
    shared = {key: getattr(written, key) for key in _Cluster.model_fields}
    nodes = tuple(node for entry in written.nodes for node in _nodes_of(entry, written))
    return Inventory(**{**shared, "ssh": ssh}, nodes=nodes, file=document.file, digest=document.digest)


def _nodes_of(entry: _Entry, written: _Written) -> Iterator[Node]:
    settings: dict[str, Any] = {  # Any: fields of Node
        "accelerator": written.accelerator,
        "network": written.network,
        "python": _PYTHON[written.transport],
    }
    if written.devices is not None:
        settings["devices"] = written.devices
    for source in (written.defaults, entry):
        settings.update(source.model_dump(exclude_none=True, exclude={"name", "address", "env"}))
    settings.setdefault("devices", default_ranks(settings["accelerator"]))
    settings["env"] = {**written.defaults.env, **entry.env}
    names = expand(entry.name)
    addresses = expand(entry.address) if entry.address is not None else names
    for name, address in zip(names, addresses, strict=True):
        yield Node(name=name, address=address, **settings)


def _expanded_or_empty(pattern: Tree) -> list[str]:
    return expand(pattern) if isinstance(pattern, str) else []


def _expanded(names: str) -> list[str]:
    try:
        return expand(names)
    except ValueError as error:
        raise UsageError(f"--nodes: {error}", hint="write a list such as n[0-3],x") from error


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := fold(repeated(names)):
        raise UsageError(f"--nodes: {twice} is named twice", hint="name every node once")
