"""The time to plan for many nodes: in this process, and as a command."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from pathlib import Path

from bench.processes import Job, time_job
from bench.rounds import Contestant, Measure, Target, run_rounds
from bench.workspace import Workspace
from orchestrator.inventory import model
from orchestrator.launch.preflight import checked_nodes
from orchestrator.node.facts import NodeFacts
from orchestrator.plan.files import node_files
from orchestrator.plan.make import make_plan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.portable.environment.discovery import discover
from orchestrator.run import Program, Request
from orchestrator.usecases.launch import transcript
from tests.grounds import nodes

NODES = 1024
_PLAN = f"plan, files and transcript of {NODES:,} nodes, in process"
_LOAD = f"reading the inventory of {NODES:,} nodes, in process"
_DRY_RUN = f"orch ssh-launch --dry-run, {NODES:,} nodes"
_DISCOVERY = f"discovery from the facts of {NODES:,} H800 nodes, and the plan, in process"
_FIGURE = "to the end"

# Like the shipped inventory of an H800 cluster, with one environment variable per group of 256 nodes.
_INVENTORY = """\
name: thousand
accelerator: cuda
devices: 8
network: infiniband
transport: ssh
defaults: {user: train, python: /opt/conda/bin/python3, workdir: /data/orch}
env:
  NCCL_NET: IB
  NCCL_IB_HCA: "=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7"
  NCCL_IB_TIMEOUT: 22
  NCCL_DEBUG: WARN
  TORCH_NCCL_ASYNC_ERROR_HANDLING: 3
  OMP_NUM_THREADS: 8
nodes:
"""


def measure(workspace: Workspace, *, repetitions: int) -> Measure:
    file = workspace.folder / "thousand.yaml"
    groups = (
        f'  - {{name: "h800-[{256 * group:04}-{256 * group + 255:04}]", address: "10.0.{group}.[0-255]", '
        f"env: {{NCCL_SOCKET_IFNAME: bond{group}}}}}\n"
        for group in range(NODES // 256)
    )
    file.write_text(_INVENTORY + "".join(groups), encoding="utf-8")
    return Measure(
        title="Planning",
        description="`make_plan`, every file of every node and the text of `--dry-run`; network variables from the nodes' facts.",
        reference=_PLAN,
        figures=(_FIGURE,),
        targets=(Target(_PLAN, _FIGURE, 1.0), Target(_DISCOVERY, _FIGURE, 2.0)),
        series=run_rounds(
            [_plan(file), _load(file), _dry_run(file, workspace), _discovery(file)], repetitions=repetitions
        ),
    )


def _plan(file: Path) -> Contestant:
    loaded = model.load(file)
    request = Request("ssh", Program("executable", ("echo", "hello")))

    def run() -> Mapping[str, float]:
        begun = time.monotonic()
        plan = make_plan(loaded, request, run_id="thousand-20261120-101500-ab12", bundle="0" * 32)
        files = node_files(plan)
        text = transcript.dry_run_text(plan)
        seconds = time.monotonic() - begun
        assert len(files) == NODES
        assert len(text) > NODES
        return {_FIGURE: seconds}

    return Contestant(_PLAN, run)


def _load(file: Path) -> Contestant:
    def run() -> Mapping[str, float]:
        begun = time.monotonic()
        loaded = model.load(file)
        seconds = time.monotonic() - begun
        assert len(loaded.nodes) == NODES
        return {_FIGURE: seconds}

    return Contestant(_LOAD, run)


def _dry_run(file: Path, workspace: Workspace) -> Contestant:
    command = [str(workspace.orch), "ssh-launch", "--dry-run", "-i", str(file), "--", "echo", "hello"]
    code = workspace.folder / "no-code"
    code.mkdir()

    def run() -> Mapping[str, float]:
        return {_FIGURE: time_job(Job([command], cwd=code, env=workspace.env)).end}

    return Contestant(_DRY_RUN, run)


def _discovery(file: Path) -> Contestant:
    loaded = model.load(file)
    request = Request("ssh", Program("executable", ("echo", "hello")))
    sample = nodes.facts("h800")
    facts = {node.name: _renumbered(sample, number) for number, node in enumerate(loaded.nodes)}

    def run() -> Mapping[str, float]:
        begun = time.monotonic()
        plan = make_plan(loaded, request, run_id="thousand-20261120-101500-ab12", bundle="0" * 32)
        found = discover(facts, {node.name: node.expected for node in checked_nodes(plan)})
        files = node_files(resolve(plan, Facts(defaults={name: found.environment(name) for name in facts})))
        seconds = time.monotonic() - begun
        assert all("GLOO_SOCKET_IFNAME" in scripts[-1].text for scripts in files.values())
        return {_FIGURE: seconds}

    return Contestant(_DISCOVERY, run)


def _renumbered(sample: NodeFacts, number: int) -> NodeFacts:
    """The facts with other addresses: of one node each, in the same subnets."""
    facts = copy.deepcopy(sample)
    for index, interface in enumerate(facts["interfaces"]):
        for entry in interface["addresses"]:
            entry["address"], entry["prefix"] = f"10.{100 + index}.{number // 256}.{number % 256}", 16
    return facts
