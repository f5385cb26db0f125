"""The environment that every rank gets from orch, by the code of the agent. Nodes are queried to explain it, and nothing starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.access import Terminal, transport_factory
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import OrchError, UsageError
from orchestrator.fanout import map_parallel
from orchestrator.inventory.redaction import REDACTED, is_secret
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.inventory.variables import parse_variables
from orchestrator.launch.node_check import nothing_to_discover
from orchestrator.launch.preflight import checked_nodes
from orchestrator.launchers.cards import close_all, detect_cards
from orchestrator.node.agent.environment import defaults, node_environment, rank_variables
from orchestrator.node.facts import read_facts
from orchestrator.node.run.job import Job
from orchestrator.plan import files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, NodePlan, redacted
from orchestrator.plan.shell import shell_quote
from orchestrator.portable.checks.cluster import nodes_to_resolve
from orchestrator.portable.environment.cpus import cpus_of_ranks
from orchestrator.portable.environment.debugging import debugging_variables
from orchestrator.portable.environment.discovery import Discovery, discover
from orchestrator.portable.environment.variable import Origin, Variable
from orchestrator.portable.findings import Finding
from orchestrator.portable.names.hostlist import fold, fold_by_value
from orchestrator.progress import no_progress
from orchestrator.run import Program, Request
from orchestrator.usecases.checks.lint import read_text
from orchestrator.usecases.checks.sides import side_lines
from orchestrator.usecases.inventory import load_inventory
from orchestrator.variables import VARIABLES as TABLE

if TYPE_CHECKING:
    from orchestrator.inventory.model import Inventory, Node
    from orchestrator.lint.inherited import Setting
    from orchestrator.node.facts import NodeFacts

_PROGRAM = Program("executable", ("true",))
_UNKNOWN = "<known-at-the-launch>"  # without spaces, as the parts of a rendezvous record
_AT_LAUNCH = "(at the launch)"
# Reasons for the variables that orch itself sets; by name, else by prefix.
_REASONS = {
    "MASTER_ADDR": "the address of the head for the rendezvous",
    "MASTER_PORT": "a port that is free on the head",
    "PYTHONUNBUFFERED": "lines appear in the log at once",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "torch's own default; 1, which torchrun sets, may hang in the abort",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "a collective that times out leaves a flight record",
    "TORCH_FR_DUMP_TEMP_FILE": "the flight record in the run's folder, from torch 2.9 on",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "the flight record in the run's folder, up to torch 2.8",
    "OMP_NUM_THREADS": "as torchrun sets it for more than one rank on a node",
    "PATH": "begins with the folder of the inventory's python",
    "TORCHELASTIC_USE_AGENT_STORE": "rank 0 hosts the store, as there is no torchrun",
}
_REASONS_BY_PREFIX = {"ORCH_": "this run and node", "TORCHELASTIC_": "as torchrun sets it"}
_NUMBERS = "numbers the ranks and nodes, as torchrun does"


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """One node's environment; secrets are redacted."""

    node: str
    env: Mapping[str, str]
    """From the inventory."""
    orch: Mapping[str, str]
    """Set by orch, the same for all ranks of the node."""
    ranks: tuple[Mapping[str, str], ...]
    """Set by orch for each rank, in local order."""
    unless_set: Mapping[str, str]
    """Set by orch unless the node's own environment sets it."""
    at_launch: tuple[str, ...]
    """Set by orch to a value that is known only at the launch."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the ranks, which inherit what the lines export."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The variables of every selected node with their reasons, what is wrong with them, and the facts of all nodes."""

    variables: Mapping[str, Sequence[Variable]]
    findings: Sequence[Finding]
    facts: Mapping[str, NodeFacts]
    warnings: Sequence[str]
    setup: Sequence[str]
    cpus: Mapping[str, str]
    """The CPUs of the ranks of each selected node whose facts are known, as text."""
    overrides: Sequence[Override] = ()
    """The variables that the launch script sets instead."""
    sides: Sequence[str] = ()
    """Which facts come from inside containers, as sentences."""

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """The names of the columns, and one row for each variable and value."""
        return ("VARIABLE", "VALUE", "NODES", "ORIGIN", "REASON"), [_cells(row) for row in _folded(self.variables)]

    def cpu_lines(self) -> Iterator[str]:
        """The CPUs of ranks, equal nodes as one line."""
        return (f"binding of {nodes}: {text}" for text, nodes in fold_by_value(self.cpus.items()).items())

    def exports(self) -> str:
        """Lines of shell for a launch by hand: without variables that number ranks, secrets named; UsageError if nodes differ."""
        first = next(iter(self.variables))
        variables = _for_export(self.variables[first])
        for node, every in self.variables.items():
            of_node = _for_export(every)
            if of_node != variables:
                name = next(name for name in {**variables, **of_node} if variables.get(name) != of_node.get(name))
                raise UsageError(f"{first} and {node} differ in {name}", hint=f"export for one node: --node {first}")
        return "".join(
            f"# {name} is a secret: set it yourself\n" if value == REDACTED else f"export {name}={shell_quote(value)}\n"
            for name, value in variables.items()
        )

    def to_json(self) -> dict[str, Any]:
        """`facts` can be read again."""
        return {
            "variables": [{**asdict(row.variable), "nodes": list(row.nodes)} for row in _folded(self.variables)],
            "findings": [finding.to_json() for finding in self.findings],
            "setup": list(self.setup),
            "cpus": dict(self.cpus),
            "overrides": [asdict(override) for override in self.overrides],
            "sides": list(self.sides),
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Override:
    """
    A variable that the launch script exports, on the nodes where it replaces the same.

    `value` None: the script removes it. `replaces` None: the ranks get none from orch or the node. `is_certain` is False if a branch decides.
    """

    name: str
    value: str | None
    file: str
    line: int
    replaces: str | None
    origin: str
    nodes: Sequence[str]
    is_certain: bool

    def text(self) -> str:
        """One sentence with the place in the script."""
        verb = "sets" if self.is_certain else "may set"
        written = f"{verb} {self.name}={printable(self.value)}" if self.value is not None else f"unsets {self.name}"
        if self.replaces is None:
            effect = f"which stays unset otherwise ({self.origin})" if self.origin else "which orch does not set"
        else:
            effect = f"which replaces {printable(self.replaces)} ({self.origin})"
        return f"{self.file}:{self.line} {written}, {effect} on {fold(self.nodes)}"


def with_overrides(explanation: Explanation, script: Path, text: str) -> Explanation:
    """Add what a launch script does with the variables, and a warning for each one that it replaces."""
    from orchestrator.lint.inherited import read_inherited
    from orchestrator.lint.rank_counts import EXPECTED, rank_remarks
    from orchestrator.usecases.checks.lint import sourced_texts

    sourced = sourced_texts(script)
    nodes_of: dict[tuple[Setting, str | None, str], list[str]] = {}
    given_to: dict[str, Mapping[str, str]] = {}
    warnings: dict[str, None] = {}
    for node, variables in explanation.variables.items():
        known = {variable.name: variable for variable in variables}
        given = {name: variable.value for name, variable in known.items() if variable.value is not None}
        if EXPECTED in given:
            given_to[node] = given
        inherited = read_inherited(text, str(script), given, sourced)
        for setting in inherited.settings:
            variable = known.get(setting.name)
            if variable is not None or setting.name in TABLE:
                origin = "" if variable is None else variable.origin.value
                value = None if variable is None else variable.value
                nodes_of.setdefault((setting, value, origin), []).append(node)
        for path, file, line in inherited.unread_files:
            warnings[f"{file}:{line} sources {path}, which was not read"] = None
        warnings |= {f"{file}:{line}: not understood as shell": None for file, line in inherited.unread}
    overrides = [
        Override(
            setting.name,
            REDACTED if is_secret(setting.name) else setting.value,
            setting.file,
            setting.line,
            value,
            origin,
            tuple(nodes),
            setting.is_certain,
        )
        for (setting, value, origin), nodes in nodes_of.items()
    ]
    texts = [override.text() for override in overrides]
    remarks = rank_remarks(text, str(script), given_to, sourced)
    return replace(explanation, overrides=overrides, warnings=[*explanation.warnings, *texts, *warnings, *remarks])


@dataclass(frozen=True)
class _Row:
    """A variable on the nodes where value, origin and reason are equal."""

    variable: Variable
    nodes: Sequence[str]


def _cells(row: _Row) -> Sequence[str]:
    variable = row.variable
    value = "(unset)" if variable.value is None else printable(variable.value)
    reason = f"{variable.reason}; replaces {variable.replaces}" if variable.replaces else variable.reason
    return variable.name, value, fold(row.nodes), variable.origin.value, reason


def printable(value: str) -> str:
    """The value; as a JSON string if it holds unprintable characters."""
    return value if value.isprintable() else json.dumps(value)


def _for_export(variables: Sequence[Variable]) -> dict[str, str]:
    return {
        variable.name: variable.value
        for variable in sorted(variables, key=lambda variable: variable.name)
        if variable.origin is not Origin.ORCH and variable.value is not None and variable.value != _AT_LAUNCH
    }


def _orch_variable(name: str, value: str | None, origin: Origin = Origin.ORCH) -> Variable:
    """A variable that orch sets; `value` None is known at the launch."""
    by_prefix = (reason for prefix, reason in _REASONS_BY_PREFIX.items() if name.startswith(prefix))
    reason = _REASONS.get(name) or next(by_prefix, _NUMBERS)
    return Variable(name, _AT_LAUNCH if value is None else value, origin, reason)


def _folded(variables: Mapping[str, Sequence[Variable]]) -> list[_Row]:
    """
    The variables of all nodes, sorted by origin and name; equal ones of several nodes as one row.

    Variables that orch gives another value on each node are one row, too, with the first and the last value.
    """
    nodes_of: dict[Variable, list[str]] = {}
    for node, of_node in variables.items():
        for variable in of_node:
            nodes_of.setdefault(variable, []).append(node)
    numbered: dict[str, list[Variable]] = {}
    for variable, nodes in nodes_of.items():
        if variable.origin is Origin.ORCH and len(nodes) == 1 and len(variables) > 1:
            numbered.setdefault(variable.name, []).append(variable)
    rows = [_Row(variable, nodes) for variable, nodes in nodes_of.items() if variable.name not in numbered]
    for name, values in numbered.items():
        text = f"{values[0].value} … {values[-1].value}" if len(values) > 1 else values[0].value
        merged = Variable(name, text, Origin.ORCH, values[0].reason)
        rows.append(_Row(merged, [node for variable in values for node in nodes_of[variable]]))
    order = list(Origin)
    return sorted(rows, key=lambda row: (order.index(row.variable.origin), row.variable.name))


def environments(
    inventory: str | None, nodes: str | None, selected: str | None
) -> tuple[list[NodeEnvironment], tuple[str, ...]]:
    """The environments of a launch on `nodes`, of the `selected` ones or all, and the plan's warnings; UsageError if one takes no part."""
    loaded = load_inventory(inventory, nodes)
    plan = redacted(_plan(loaded, Request("ssh", _PROGRAM, nodes=nodes)))
    shown = _shown(plan, loaded, selected)
    return [_of_node(plan, node) for node in plan.nodes if node.name in shown], plan.warnings


def explain(
    inventory: str | None,
    nodes: str | None,
    selected: str | None,
    *,
    facts_file: Path | None,
    debug: bool,
    given: Sequence[str] = (),
    script: Path | None = None,
) -> Explanation:
    """
    Explain the environments of a launch on `nodes`, with the variables that are discovered from the facts of all of them.

    Args:
        facts_file: the facts by node, as `to_json` writes them; None queries the nodes.
        debug, given: as --debug and --env of the launch.
        script: the program, a shell script: the variables that it replaces or removes are in `overrides`.

    Raises:
        UsageError: a selected node takes no part in the launch, the file does not hold facts, `given` is wrong, or the script cannot be read.
    """
    variables = parse_variables(given)
    text = None if script is None else read_text(script)
    loaded = load_inventory(inventory, nodes)
    connected: dict[str, Endpoint] = {}
    if facts_file is None and loaded.accelerator == "auto" and loaded.devices is None:  # as a launch does
        loaded, connected = detect_cards(loaded, nodes, Terminal(), no_progress)
    try:
        request = Request("ssh", _PROGRAM, nodes=nodes, debug=debug, variables=variables)
        explanation = _explanation(loaded, request, selected, connected, facts_file=facts_file)
        return explanation if script is None or text is None else with_overrides(explanation, script, text)
    finally:
        close_all(connected)


def _explanation(
    loaded: Inventory,
    request: Request,
    selected: str | None,
    connected: Mapping[str, Endpoint],
    *,
    facts_file: Path | None,
) -> Explanation:
    plan = _plan(loaded, request)
    shown = _shown(plan, loaded, selected)
    warnings = list(plan.warnings)
    facts: dict[str, NodeFacts] = {}
    nothing = nothing_to_discover(plan)
    if nothing:
        warnings.append(f"nothing is discovered: {nothing}")
        discovery = Discovery({}, ())
    else:
        facts, failures = _saved_facts(facts_file) if facts_file else _query(loaded, plan, connected)
        warnings += failures
        discovery = discover(facts, {node.name: node.expected for node in checked_nodes(plan)})
        warnings += map(str, discovery.findings)
        if loaded.slurm != SlurmOptions():
            source = "in its allocation, from the facts of the nodes that Slurm chooses"
            warnings.append(f"a job of `orch submit` discovers these variables {source}")
        environments_of = {node.name: {**discovery.environment(node.name), **node.env} for node in plan.nodes}
        plan = replace(plan, nodes=tuple(replace(node, env=environments_of[node.name]) for node in plan.nodes))
    plan = redacted(plan)
    nodes = [node for node in plan.nodes if node.name in shown]
    variables = {node.name: _variables(plan, node, loaded, discovery, request=request) for node in nodes}
    cpus = {
        node.name: cpus_of_ranks(facts[node.name], plan.accelerator, len(node.ranks), node.env, bind=plan.bind)
        for node in nodes
        if node.name in facts
    }
    sides = side_lines(plan.nodes, facts)
    return Explanation(variables, discovery.findings, facts, warnings, plan.setup, cpus, sides=sides)


def _query(
    inventory: Inventory, plan: LaunchPlan, connected: Mapping[str, Endpoint]
) -> tuple[dict[str, NodeFacts], list[str]]:
    """The facts of the plan's nodes that answer, and a warning about each other one; closes the connections in `connected`."""
    transport = transport_factory(inventory.transport, inventory.ssh, Terminal())

    def probe(node: NodePlan) -> NodeFacts:
        names = [named.address for named in nodes_to_resolve(plan.nodes, node)]
        existing = connected.get(node.name)
        with existing or Endpoint.connect(transport(node), node.python) as endpoint:
            return endpoint.probe(names, {}, None)

    results = map_parallel(plan.nodes, probe, limit=inventory.ssh.fanout)
    facts: dict[str, NodeFacts] = {}
    warnings: list[str] = []
    for node, result in zip(plan.nodes, results, strict=True):
        if isinstance(result, OrchError):
            warnings.append(f"{result}; the network is left to NCCL and gloo")
        else:
            facts[node.name] = result
    return facts, warnings


def _saved_facts(file: Path) -> tuple[dict[str, NodeFacts], list[str]]:
    """Read the facts by node from the output of `orch env --explain --json`; UsageError if the file does not hold them."""
    hint = "write the file with: orch env --explain --json >FILE"
    try:
        value = json.loads(file.read_text("utf-8"))
        return {name: read_facts(facts) for name, facts in value["facts"].items()}, []
    except OSError as error:
        raise UsageError(f"--facts {file}: {error.strerror}", hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--facts {file} holds no facts of nodes: {error}", hint=hint) from error


def _plan(inventory: Inventory, request: Request) -> LaunchPlan:
    return make_plan(inventory, request, run_id=_UNKNOWN, bundle=_UNKNOWN)


def _shown(plan: LaunchPlan, inventory: Inventory, selected: str | None) -> set[str]:
    planned = {node.name for node in plan.nodes}
    shown = {node.name for node in inventory.select(selected)} if selected is not None else planned
    if absent := sorted(shown - planned):
        raise UsageError(f"{absent[0]} takes no part in this launch", hint="name it with --nodes too")
    return shown


def _variables(
    plan: LaunchPlan, node: NodePlan, inventory: Inventory, discovery: Discovery, *, request: Request
) -> list[Variable]:
    """All variables of a node's ranks, also those that discovery leaves unset."""
    of_inventory = inventory.node(node.name)
    known = {variable.name: variable for variable in discovery.variables.get(node.name, ())}
    if request.debug:
        given = {name: text for name, text in request.variables.items() if text is not None}
        user = {**inventory.environment(of_inventory), **given}
        known.update((variable.name, variable) for variable in debugging_variables(of_inventory.accelerator, user))
    environment = _of_node(plan, node)
    variables = []
    for name, value in environment.env.items():
        if name in request.variables and value in (request.variables[name], REDACTED):  # else --debug has replaced it
            known.pop(name, None)
            replaced = inventory.environment(of_inventory).get(name)
            shown = REDACTED if name in inventory.secret_names(of_inventory) else replaced
            replaces = "" if replaced is None else f"{shown} ({Origin.INVENTORY.value})"
            variables.append(Variable(name, value, Origin.FLAG, "--env", replaces))
            continue
        origin = Variable(name, value, Origin.INVENTORY, _field(name, inventory, of_inventory))
        variables.append(replace(known.pop(name, origin), value=value))
    variables += known.values()
    variables += [_orch_variable(name, value) for name, value in environment.orch.items()]
    variables += [_orch_variable(name, value, Origin.DEFAULT) for name, value in environment.unless_set.items()]
    by_default = {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
    origins = {name: Origin.DEFAULT if name in by_default else Origin.ORCH for name in environment.at_launch}
    variables += [_orch_variable(name, None, origin) for name, origin in origins.items()]
    first, last = environment.ranks[0], environment.ranks[-1]
    spans = {name: f"{value}-{last[name]}" if len(environment.ranks) > 1 else value for name, value in first.items()}
    variables += [_orch_variable(name, value) for name, value in spans.items()]
    return variables


def _field(name: str, inventory: Inventory, node: Node) -> str:
    if name in node.secrets:
        return "env_file: of the node or of defaults"
    if name in node.env:
        return "env: of the node or of defaults"
    return "env_file: in the inventory" if name in inventory.secrets else "env: in the inventory"


def _of_node(plan: LaunchPlan, node: NodePlan) -> NodeEnvironment:
    fields = {name: value for name, value in files.job_json(plan).items() if name != "version"}
    job = Job(node=node.name, node_rank=node.node_rank, **fields)
    orch = _decoded(node_environment(job, f"{_UNKNOWN} {_UNKNOWN} -"))
    ranks = [_decoded(environment) for environment in rank_variables(job, _UNKNOWN)]
    unless_set = _decoded(defaults(job, _UNKNOWN, {os.fsencode(name): b"" for name in node.env}))
    unknown = [name for name, value in {**unless_set, **orch, **ranks[0]}.items() if _UNKNOWN in value]
    unknown += ["PATH"] if node.python_folder and "PATH" not in node.env else []  # it begins with that folder
    return NodeEnvironment(
        node=node.name,
        env=dict(sorted(node.env.items())),
        orch={name: value for name, value in sorted(orch.items()) if name not in unknown},
        ranks=tuple({name: value for name, value in rank.items() if name not in unknown} for rank in ranks),
        unless_set={name: value for name, value in sorted(unless_set.items()) if name not in unknown},
        at_launch=tuple(sorted(unknown)),
        setup=plan.setup,
    )


def _decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
