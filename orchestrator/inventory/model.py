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

from pydantic import AfterValidator, BaseModel, ValidationError, model_validator

from orchestrator.errors import UsageError
from orchestrator.inventory import fields
from orchestrator.inventory.document import Document, FieldPath, Problem, beside, did_you_mean, problem_of, read
from orchestrator.inventory.node_names import expanded, name_problems, refuse_twice
from orchestrator.inventory.redaction import REDACTED, is_secret
from orchestrator.inventory.secrets import EnvFiles, Place, read_env_files
from orchestrator.inventory.slurm import Container, SlurmOptions, template_problems
from orchestrator.names.hostlist import expand, fold

_PYTHON = {"ssh": "python3", "local": sys.executable}


class _Model(BaseModel):
    model_config = fields.STRICT


class SshOptions(_Model):
    """How nodes are reached; `config` None is ssh's own default, a leading `~` is left in place."""

    config: fields.File | None = None
    proxy_jump: fields.Jump | None = None
    host_keys: fields.HostKeys = "strict"
    fanout: fields.FanOut = 64
    connect_timeout_s: fields.Seconds = 10.0


class Node(_Model):
    """One host; user and port None leave the choice to the ssh configuration, `env` and `secrets` are its own part."""

    name: fields.Name
    address: fields.Address = ""
    user: fields.User | None = None
    port: fields.Port | None = None
    python: fields.Executable = "python3"
    workdir: fields.Folder = "~/.orch"
    devices: fields.RankCount = 1
    accelerator: fields.AcceleratorKind = "auto"
    network: fields.Network = "auto"
    env: fields.Environment = {}
    secrets: fields.Secrets = {}
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

    secrets: fields.Secrets = {}
    nodes: tuple[Node, ...]
    file: str = ""
    digest: str = ""  # sha256 of the file's bytes, hexadecimal
    env_files: tuple[str, ...] = ()

    def environment(self, node: Node) -> dict[str, str]:
        """Give the variables of a node: everyone's, overlaid by its own."""
        return {**self.env, **self.secrets, **node.env, **node.secrets}

    def secret_names(self, node: Node) -> frozenset[str]:
        """Give the names of a node's variables whose values nobody may see: out of an env_file, or by their name."""
        by_name = {name for name in self.environment(node) if is_secret(name)}
        return frozenset({*by_name, *self.secrets, *node.secrets})

    @property
    def private_files(self) -> tuple[str, ...]:
        """The files here that hold secrets: neither do they travel with the code, nor are they recorded."""
        written = {*self.env, *(name for node in self.nodes for name in node.env)}
        return (*self.env_files, *([self.file] if self.file and any(map(is_secret, written)) else []))

    def node(self, name: str) -> Node:
        """Find a node by its name; a UsageError when there is none."""
        return self._chosen([name])[0]

    def select(self, names: str) -> tuple[Node, ...]:
        """
        Give the nodes of a host list such as `n[0-3],x`, in inventory order: ranks do not depend on how it was typed.

        Raises:
            UsageError: the list cannot be read, names a node twice, or names one that is not in the inventory.
        """
        return self._chosen(expanded(names))

    def _chosen(self, names: Sequence[str]) -> tuple[Node, ...]:
        known = [node.name for node in self.nodes]
        wanted = set(names)
        if unknown := wanted.difference(known):
            source = self.file or f"inventory {self.name}"
            hint = f"{did_you_mean(min(unknown), known)}known nodes: {fold(known)}"
            raise UsageError(f"{fold(unknown)}: not in {source}", hint=hint)
        refuse_twice(names)
        return tuple(node for node in self.nodes if node.name in wanted)


class _Settings(_Model):
    """The node fields that `defaults:` may hold; what is absent stays unset."""

    user: fields.User | None = None
    port: fields.Port | None = None
    python: fields.Executable | None = None
    workdir: fields.Folder | None = None
    devices: fields.RankCount | None = None
    accelerator: fields.AcceleratorKind | None = None
    network: fields.Network | None = None
    env: fields.Environment = {}
    env_file: fields.File | None = None
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

    env_file: fields.File | None = None
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
    problems = [*document.problems, *problems, *name_problems(document)]
    if written is None or problems:
        raise document.error(problems)
    files, problems = read_env_files(document.file, _env_file_places(written))
    problems += template_problems(document.file, written.slurm)
    if problems:
        raise document.error(problems)
    return _resolve(written, document, files)


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
    listed = [name for text in names for name in expanded(text)]
    if not listed:
        raise UsageError("no node is named", hint="name some: --nodes n0,n1 or an inventory with -i FILE")
    refuse_twice(listed)
    python, ranks = _PYTHON[transport], devices or fields.DEFAULT_RANKS[accelerator]
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


def inventory_json(inventory: Inventory) -> dict[str, Any]:  # Any: JSON
    """Give the resolved inventory as JSON values, secrets redacted."""
    described = inventory.model_dump(mode="json")
    holders: tuple[Inventory | Node, ...] = (inventory, *inventory.nodes)
    for holder, shown in zip(holders, (described, *described["nodes"]), strict=True):
        secret = {*holder.secrets, *filter(is_secret, holder.env)}
        shown["env"] = {**shown["env"], **dict.fromkeys(sorted(secret), REDACTED)}
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
    sections: dict[FieldPath, type[BaseModel]] = {
        ("ssh",): SshOptions,
        ("slurm",): SlurmOptions,
        ("slurm", "container"): Container,
        ("defaults",): _Settings,
        ("nodes",): _Entry,
    }
    model = sections.get(tuple(part for part in path[:-1] if isinstance(part, str)), _Written)
    return sorted(model.model_fields, key=lambda name: name not in ("name", "address"))


def _env_file_places(written: _Written) -> Iterator[Place]:
    yield Place((), written.env_file, written.env)
    yield Place(("defaults",), written.defaults.env_file, written.defaults.env)
    for index, entry in enumerate(written.nodes):
        yield Place(("nodes", index), entry.env_file, entry.env)


def _resolve(written: _Written, document: Document, files: EnvFiles) -> Inventory:
    """Expand the patterns and apply the defaults; nothing can be wrong any more."""
    ssh, slurm = written.ssh, written.slurm
    if ssh.config is not None:
        ssh = ssh.model_copy(update={"config": beside(document.file, ssh.config)})
    if slurm.template is not None:
        slurm = slurm.model_copy(update={"template": beside(document.file, slurm.template)})
    shared = {key: getattr(written, key) for key in _Cluster.model_fields}
    nodes = tuple(node for entry in written.nodes for node in _nodes_of(entry, written, files))
    return Inventory(
        **{**shared, "ssh": ssh, "slurm": slurm},
        secrets=files.values[written.env_file],
        nodes=nodes,
        file=document.file,
        digest=document.digest,
        env_files=files.paths,
    )


def _nodes_of(entry: _Entry, written: _Written, files: EnvFiles) -> Iterator[Node]:
    settings: dict[str, Any] = {  # Any: fields of Node
        "accelerator": written.accelerator,
        "network": written.network,
        "python": _PYTHON[written.transport],
    }
    if written.devices is not None:
        settings["devices"] = written.devices
    for source in (written.defaults, entry):
        settings.update(source.model_dump(exclude_none=True, exclude={"name", "address", "env", "env_file"}))
    settings.setdefault("devices", fields.DEFAULT_RANKS[settings["accelerator"]])
    own = {**entry.env, **files.values[entry.env_file]}
    shared_env, shared_secrets = written.defaults.env, files.values[written.defaults.env_file]
    settings["env"] = {name: text for name, text in shared_env.items() if name not in own} | entry.env
    settings["secrets"] = {name: text for name, text in shared_secrets.items() if name not in own}
    settings["secrets"] |= files.values[entry.env_file]
    names = expand(entry.name)
    addresses = expand(entry.address) if entry.address is not None else names
    for name, address in zip(names, addresses, strict=True):
        yield Node(name=name, address=address, **settings)
