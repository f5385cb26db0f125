"""
The inventory: the cluster as a user describes it, checked, with host lists expanded and defaults applied.

The only validation of what users write about machines; values of these types need no further checks. document.py parses the
file and words the problems.
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
from orchestrator.inventory.container import NodeContainer
from orchestrator.inventory.document import (
    Document,
    FieldPath,
    Problem,
    Tree,
    did_you_mean,
    problem_from_pydantic,
    read,
    resolve_path,
)
from orchestrator.inventory.hooks import Hook
from orchestrator.inventory.redaction import REDACTED, is_secret
from orchestrator.inventory.secrets import EnvFileField, EnvFiles, read_env_files
from orchestrator.inventory.slurm import Container, SlurmOptions, sbatch_option, template_problems
from orchestrator.portable.names.hostlist import MAX_NAMES, expand, fold, repeated

_PYTHON = {"ssh": "python3", "local": sys.executable}


class _Model(BaseModel):
    model_config = fields.STRICT


class SshOptions(_Model):
    """How to connect to nodes; `config` None is ssh's own default, and a leading `~` is not expanded."""

    config: fields.File | None = None
    proxy_jump: fields.Jump | None = None
    host_keys: fields.HostKeys = "strict"
    fanout: fields.FanOut = 64
    connect_timeout_s: fields.Seconds = 10.0
    refused_timeout_s: fields.Seconds | None = None
    """A run fails when a node has refused connections for this time while other nodes reach its host; None: never."""


class RestartOptions(_Model):
    """
    How often a failed run is restarted, and whether each node prepares that.

    `max_retries` None: never over SSH, 100 times under Slurm. `warm`: over SSH, each node keeps a process that has imported the
    shared trainer.
    """

    max_retries: fields.Retries | None = None
    warm: bool = True


class Requirements(_Model):
    """Paths that must be readable, modules that must import and lines of shell that must succeed on every node before a launch."""

    paths: tuple[fields.NodePath, ...] = ()
    imports: tuple[fields.Module, ...] = ()
    commands: tuple[fields.SetupLine, ...] = ()


class Node(_Model):
    """One host. If user or port is None, the ssh configuration decides; `env` and `secrets` apply to this node only."""

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
    container: NodeContainer | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_address(cls, given: object) -> object:
        return {"address": given["name"], **given} if isinstance(given, dict) and "name" in given else given


class _Cluster(_Model):
    """The fields that the file and the resolved inventory have in common."""

    name: fields.Name = "inventory"
    accelerator: fields.AcceleratorKind = "auto"
    devices: fields.RankCount | None = None
    network: fields.Network = "auto"
    bind: fields.Binding = "auto"  # of ranks to the CPUs near their cards
    transport: fields.TransportKind = "ssh"
    container: NodeContainer | None = None  # of each node that names no other
    env: fields.Environment = {}
    keep: fields.KeptFolders = ()  # folders of the program that its next runs see, too
    setup: tuple[fields.SetupLine, ...] = ()  # lines of shell that run on every node before its ranks
    checks: Requirements = Requirements()
    ssh: SshOptions = SshOptions()
    slurm: SlurmOptions = SlurmOptions()
    restart: RestartOptions = RestartOptions()
    hooks: tuple[Hook, ...] = ()


class Inventory(_Cluster):
    """The cluster; with `devices` None, each node's accelerator decides its number of ranks."""

    secrets: fields.Secrets = {}
    nodes: tuple[Node, ...]
    file: str = ""
    digest: str = ""  # sha256 of the file's bytes, hexadecimal
    env_files: tuple[str, ...] = ()

    def environment(self, node: Node) -> dict[str, str]:
        """Return a node's variables: the variables for all nodes, overridden by the node's own."""
        return {**self.env, **self.secrets, **node.env, **node.secrets}

    def secret_names(self, node: Node) -> frozenset[str]:
        """Return the names of a node's secret variables: those from an env_file, and those with a secret's name."""
        by_name = {name for name in self.environment(node) if is_secret(name)}
        return frozenset({*by_name, *self.secrets, *node.secrets})

    @property
    def private_files(self) -> tuple[str, ...]:
        """The files on this machine that hold secrets; they are neither sent to nodes with the code nor recorded."""
        names = {*self.env, *(name for node in self.nodes for name in node.env)}
        with_urls = (hook.private_file for hook in self.hooks if hook.private_file)
        return (*self.env_files, *with_urls, *([self.file] if self.file and any(map(is_secret, names)) else []))

    def node(self, name: str) -> Node:
        """Return a node by its name; UsageError if there is none."""
        return self._nodes_named([name])[0]

    def select(self, names: str | None) -> tuple[Node, ...]:
        """
        The nodes of a host list such as `n[0-3],x` in inventory order, so that ranks do not depend on its order; None: all nodes.

        Raises:
            UsageError: the list is not valid, names a node twice, or names a node that is not in the inventory.
        """
        return self.nodes if names is None else self._nodes_named(_expand_nodes_option(names))

    def _nodes_named(self, names: Sequence[str]) -> tuple[Node, ...]:
        known = [node.name for node in self.nodes]
        wanted = set(names)
        if unknown := wanted.difference(known):
            source = self.file or f"inventory {self.name}"
            hint = f"{did_you_mean(min(unknown), known)}known nodes: {fold(known)}"
            raise UsageError(f"{fold(unknown)}: not in {source}", hint=hint)
        _refuse_repeated(names)
        return tuple(node for node in self.nodes if node.name in wanted)


class _Defaults(_Model):
    """The fields of `defaults:`; absent fields stay unset."""

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
    container: NodeContainer | None = None


class _Entry(_Defaults):
    """One item of `nodes:`, whose name may be a host list."""

    name: fields.NamePattern
    address: fields.AddressPattern | None = None


def _check_not_empty(entries: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    if not entries:
        raise ValueError("is empty; name at least one node")
    return entries


class _InventoryFile(_Cluster):
    """The fields as they are written in the file."""

    env_file: fields.File | None = None
    defaults: _Defaults = _Defaults()
    nodes: Annotated[tuple[_Entry, ...], AfterValidator(_check_not_empty)]


def load(path: Path) -> Inventory:
    """Read an inventory file; InventoryError has every problem found, one per line."""
    document = read(path)
    written, problems = _parse(document)
    problems = [*document.problems, *problems, *_name_problems(document)]
    if written is None or problems:
        raise document.error(problems)
    sections = [EnvFileField((), written.env_file, written.env)]
    sections += [EnvFileField(("defaults",), written.defaults.env_file, written.defaults.env)]
    sections += [EnvFileField(("nodes", at), entry.env_file, entry.env) for at, entry in enumerate(written.nodes)]
    files, problems = read_env_files(document.file, sections)
    problems += template_problems(document.file, written.slurm)
    if problems:
        raise document.error(problems)
    return _resolve(written, document, files)


def from_names(names: Sequence[str]) -> Inventory:
    """Build an inventory from host lists alone, as ssh's configuration supplies the rest; UsageError if a name is missing or wrong."""
    listed = [name for text in names for name in _expand_nodes_option(text)]
    if not listed:
        raise UsageError("no node is named", hint="name nodes with --nodes n0,n1, or an inventory with -i FILE")
    _refuse_repeated(listed)
    try:
        nodes = tuple(Node(name=name) for name in listed)
    except ValidationError as error:
        problem = problem_from_pydantic(error.errors()[0], ())
        hint = "write hosts that need more than a name into an inventory"
        raise UsageError(f"--nodes: {problem.text}", hint=hint) from error
    digest = hashlib.sha256("\n".join(listed).encode()).hexdigest()
    return Inventory(name="adhoc", nodes=nodes, digest=digest)


def inventory_json(inventory: Inventory) -> dict[str, Any]:  # Any: JSON
    """Return the resolved inventory as JSON values with secrets redacted."""
    dump = inventory.model_dump(mode="json")
    models: tuple[Inventory | Node, ...] = (inventory, *inventory.nodes)
    for model, dumped in zip(models, (dump, *dump["nodes"]), strict=True):
        secret = {*model.secrets, *filter(is_secret, model.env)}
        dumped["env"] = {**dumped["env"], **dict.fromkeys(sorted(secret), REDACTED)}
    return dump


def _parse(document: Document) -> tuple[_InventoryFile | None, list[Problem]]:
    """Validate the fields; a field that the parser has refused is not reported twice."""
    try:
        return _InventoryFile.model_validate(document.tree), []
    except ValidationError as error:
        if _is_foreign(document):
            text = (
                "is no inventory: no key is one of an inventory, such as nodes; `orch inventory new local` prints one"
            )
            return None, [Problem((), text)]
        problems = [
            problem_from_pydantic(details, _allowed(details["loc"]), meant=_meant(details["loc"]))
            for details in error.errors()
        ]
    refused = {problem.path for problem in document.problems}
    return None, [problem for problem in problems if problem.path not in refused]


def _is_foreign(document: Document) -> bool:
    """True for a file of another tool: several keys, and none is one of an inventory or similar to one, but `name`."""
    allowed = list(_InventoryFile.model_fields)
    keys = [key for key in document.tree if key != "name"]
    return len(keys) > 1 and not any(key in allowed or did_you_mean(key, allowed) for key in keys)


def _meant(path: FieldPath) -> str:
    return sbatch_option(str(path[1])) if path[:-1] == ("slurm",) else ""


def _allowed(path: FieldPath) -> list[str]:
    """Return the keys that are valid in place of the last part of `path`."""
    sections: dict[FieldPath, type[BaseModel]] = {
        ("ssh",): SshOptions,
        ("slurm",): SlurmOptions,
        ("restart",): RestartOptions,
        ("checks",): Requirements,
        ("hooks",): Hook,
        ("slurm", "container"): Container,
        ("container",): NodeContainer,
        ("defaults",): _Defaults,
        ("defaults", "container"): NodeContainer,
        ("nodes", "container"): NodeContainer,
        ("nodes",): _Entry,
    }
    model = sections.get(tuple(part for part in path[:-1] if isinstance(part, str)), _InventoryFile)
    return sorted(model.model_fields, key=lambda name: name not in ("name", "address"))


def _resolve(written: _InventoryFile, document: Document, files: EnvFiles) -> Inventory:
    """Expand host lists and apply defaults; everything has been validated."""
    ssh, slurm = written.ssh, written.slurm
    if ssh.config is not None:
        ssh = ssh.model_copy(update={"config": resolve_path(document.file, ssh.config)})
    if slurm.template is not None:
        slurm = slurm.model_copy(update={"template": resolve_path(document.file, slurm.template)})
    hooks = tuple(hook.resolved(document.file) for hook in written.hooks)
    shared = {key: getattr(written, key) for key in _Cluster.model_fields}
    nodes = tuple(node for entry in written.nodes for node in _nodes_of(entry, written, files))
    return Inventory(
        **{**shared, "ssh": ssh, "slurm": slurm, "hooks": hooks},
        secrets=files.values[written.env_file],
        nodes=nodes,
        file=document.file,
        digest=document.digest,
        env_files=files.paths,
    )


def _nodes_of(entry: _Entry, written: _InventoryFile, files: EnvFiles) -> Iterator[Node]:
    """The nodes of one entry: the fields of the file, overridden by `defaults:`, overridden by the entry."""
    settings: dict[str, Any] = {  # Any: fields of Node
        "accelerator": written.accelerator,
        "network": written.network,
        "container": written.container,
    }
    if written.devices is not None:
        settings["devices"] = written.devices
    for source in (written.defaults, entry):
        settings.update(source.model_dump(exclude_none=True, exclude={"name", "address", "env", "env_file"}))
    settings.setdefault("devices", fields.DEFAULT_RANKS[settings["accelerator"]])
    settings.setdefault("python", _PYTHON["ssh" if settings["container"] else written.transport])
    overridden = {**entry.env, **files.values[entry.env_file]}
    shared_env, shared_secrets = written.defaults.env, files.values[written.defaults.env_file]
    settings["env"] = {name: text for name, text in shared_env.items() if name not in overridden} | entry.env
    settings["secrets"] = {name: text for name, text in shared_secrets.items() if name not in overridden}
    settings["secrets"] |= files.values[entry.env_file]
    names = expand(entry.name)
    addresses = expand(entry.address) if entry.address is not None else names
    for name, address in zip(names, addresses, strict=True):
        yield Node(name=name, address=address, **settings)


def _name_problems(document: Document) -> Iterator[Problem]:
    """Find problems across fields: names and addresses of unequal number, and names that occur twice."""
    entries = document.tree.get("nodes")
    first_entry: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict):
            continue
        try:
            names, addresses = _expand_or_empty(entry.get("name")), _expand_or_empty(entry.get("address"))
        except ValueError:
            continue  # reported as the field's own problem
        if addresses and names and len(addresses) != len(names):
            text = f"stands for {len(addresses)} nodes, name for {len(names)}; both must list the same number"
            yield Problem(("nodes", index, "address"), text)
        for earlier in sorted({first_entry[name] for name in names if name in first_entry}):
            twice = fold(name for name in names if first_entry.get(name) == earlier)
            line = document.line(("nodes", earlier, "name"))
            yield Problem(("nodes", index, "name"), f"{twice} is named already in nodes[{earlier}], line {line}")
        if twice := fold(repeated(names)):
            yield Problem(("nodes", index, "name"), f"{twice} is named twice")
        first_entry.update({name: index for name in names if name not in first_entry})
        if len(first_entry) > MAX_NAMES:
            yield Problem(("nodes",), f"more than {MAX_NAMES} nodes")
            return


def _expand_or_empty(pattern: Tree) -> list[str]:
    return expand(pattern) if isinstance(pattern, str) else []


def _expand_nodes_option(names: str) -> list[str]:
    """Expand the host list of --nodes; UsageError if it is not a host list."""
    try:
        return expand(names)
    except ValueError as error:
        raise UsageError(f"--nodes: {error}", hint="write a list such as n[0-3],x") from error


def _refuse_repeated(names: Sequence[str]) -> None:
    if twice := fold(repeated(names)):
        raise UsageError(f"--nodes: {twice} is named twice", hint="name every node once")
