"""Scripts under DDP: a replica that differs is named, and a script that trains past its wrapper; correct ones are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.portable.findings import Finding
from orchestrator.verdict.replicas import differing_replicas
from tests.paths import ROOT
from tests.train.conftest import clean_environment
from trainer.scripts import replicas
from trainer.scripts.replicas import FIRST, DdpReplicas

pytestmark = [pytest.mark.train, pytest.mark.processes, pytest.mark.xdist_group("replicas")]  # all scripts run at once

RANKS = {"flipped": 3, "module": 2, "no-sync": 2, "accumulated": 2, "two-models": 2, "closure": 2, "nested": 2}

# Fork: torch is imported once, for all scripts and ranks; an optimizer's first step imports torch._dynamo.
PROGRAM = """
import gc, json, os, sys
import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trainer.scripts import progress, replicas

class Outer(torch.optim.Optimizer):  # as ZeroRedundancyOptimizer: a step of it is a step of another optimizer
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()

def train(kind, rank, ranks):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), ORCH_RUN_DIR=f"{sys.argv[1]}/{kind}")
    replicas.remember_models(torch.nn.parallel.distributed)
    progress.count_steps(sys.modules["torch.optim.optimizer"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{kind}.group", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    if kind == "two-models" and rank == 1:
        kept = [torch.nn.Linear(5, 3) for _ in range(9)]  # other addresses than on rank 0
    model = DistributedDataParallel(torch.nn.Linear(5, 3))
    teacher = DistributedDataParallel(torch.nn.Linear(4, 2)) if kind == "two-models" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "nested":
        optimizer = Outer(optimizer)
    for step in range(1, 12):
        optimizer.zero_grad()
        if kind == "closure":
            with model.no_sync():
                model(torch.randn(2, 5)).square().sum().backward()
            optimizer.step(lambda: model(torch.randn(2, 5)).square().sum().backward())
            continue
        if teacher is not None:
            with torch.no_grad():
                teacher(torch.randn(2, 4))
        if kind in ("no-sync", "accumulated"):
            with model.no_sync():
                model(torch.randn(2, 5)).square().sum().backward()
        if kind == "module":
            model.module(torch.randn(2, 5)).square().sum().backward()
        elif kind != "no-sync":
            model(torch.randn(2, 5)).square().sum().backward()
        optimizer.step()
        if kind == "flipped" and rank == 1 and step == 4:
            with torch.no_grad():
                model.module.weight.view(torch.int32)[0, 0] ^= 1
    dist.destroy_process_group()

gc.freeze()  # a search for garbage would copy pages in every child
for kind, ranks in json.loads(sys.argv[2]).items():
    for rank in range(ranks):
        if os.fork() == 0:
            train(kind, rank, ranks)
            sys.exit()
while True:
    try:
        assert os.wait()[1] == 0
    except ChildProcessError:
        break
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Finding | None]:
    """The finding about each script."""
    folder = tmp_path_factory.mktemp("scripts")
    for kind in RANKS:
        (folder / kind / "attempt-1/n0/progress").mkdir(parents=True)
    env = {**clean_environment(), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), json.dumps(RANKS)]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return {kind: differing_replicas([_node(folder / kind)]) for kind in RANKS}


def _node(run: Path) -> NodeObservation:
    files = (run / "attempt-1/n0/progress").glob("*.json")
    progress = {int(path.stem): json.loads(path.read_text("utf-8")) for path in files}
    assert {len(report["replicas"]["steps"]) for report in progress.values()} == {1}
    return NodeObservation("n0", None, True, True, None, None, progress=progress)  # alive, of the same boot


def test_one_flipped_bit_is_named_at_the_next_fingerprint(findings: Mapping[str, Finding | None]) -> None:
    found = findings["flipped"]
    assert found is not None
    assert found.text == f"rank 1 differs from the 2 others in the parameters after step {FIRST}"


@pytest.mark.parametrize(("kind", "cause"), [("module", replicas.BYPASSED), ("no-sync", replicas.NO_SYNC)])
def test_a_script_that_trains_past_its_wrapper_is_named(
    findings: Mapping[str, Finding | None], kind: str, cause: str
) -> None:
    found = findings[kind]
    assert found is not None
    assert found.text == f"each rank trains its own model: the parameters differ after step {FIRST}, as {cause}"


@pytest.mark.parametrize("kind", ["accumulated", "two-models", "closure", "nested"])
def test_a_correct_script_is_not_named(findings: Mapping[str, Finding | None], kind: str) -> None:
    """It accumulates gradients; has a model that is not trained; computes gradients in the step; has an optimizer in another one."""
    assert findings[kind] is None


class Times:
    """Clocks of a training whose steps take `step_s`, and its fingerprints `cost_s` of CPU."""

    def __init__(self, step_s: float, cost_s: float) -> None:
        self.step_s, self.cost_s = step_s, cost_s
        self.now_s, self.used_s = 1.0, 0.0

    def clock(self) -> float:
        return self.now_s

    def cpu(self) -> float:
        self.used_s += self.cost_s
        return self.used_s


@pytest.mark.parametrize(
    ("step_s", "cost_s", "expected"),
    [
        (1.0, 0.01, [10, 20, 30, 40, 50, 60, 70, 80]),
        (0.06, 0.0, [10, 20, 40, 60, 80]),  # at least a second between two
        (1.0, 0.15, [10, 40, 80]),  # at most 0.5 % of the steps
    ],
)
def test_distance_of_the_fingerprints_keeps_them_cheap(
    monkeypatch: pytest.MonkeyPatch, step_s: float, cost_s: float, expected: list[int]
) -> None:
    model = _model()
    monkeypatch.setattr(replicas, "_wrapped_models", lambda: [model])
    times = Times(step_s, cost_s)
    found = DdpReplicas(times.clock, times.cpu)
    optimizer = SimpleNamespace(param_groups=[{"params": model.module.parameters()}])
    steps: dict[str, Any] = {}
    for step in range(81):
        steps.update(found.before_step(optimizer, step, 2).get("replicas", {}).get("steps", {}))
        times.now_s += step_s
    assert [int(step) for step in steps] == expected


@pytest.mark.parametrize("change", ["hook", "group", "error", "alone"])
def test_models_whose_replicas_may_differ_have_no_fingerprints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    model = _model()
    if change == "hook":
        vars(model)["_comm_hooks"] = [(SimpleNamespace(__name__="post_localSGD_hook"), None)]
    elif change == "group":
        model.process_group = SimpleNamespace(size=lambda: 1)
    elif change == "error":
        del model.parameters_to_ignore
    monkeypatch.setattr(replicas, "_wrapped_models", lambda: [model])
    found = DdpReplicas()
    optimizer = SimpleNamespace(param_groups=[{"params": model.module.parameters()}])
    results = [found.before_step(optimizer, step, 1 if change == "alone" else 2) for step in range(FIRST * 4)]
    assert results == [{}] * FIRST * 4
    assert capsys.readouterr().err.count("WARNING: replicas that differ are not found") == (change == "error")


def _model() -> Any:  # a stand-in for the wrapper
    import torch  # noqa: PLC0415

    parameters = [torch.ones(3)]
    module = SimpleNamespace(parameters=lambda: parameters, named_parameters=lambda: [("weight", parameters[0])])
    return SimpleNamespace(
        module=module, parameters_to_ignore=set(), process_group=SimpleNamespace(size=lambda: 2), _comm_hooks=[],
        require_backward_grad_sync=True, require_forward_param_sync=True, _get_ddp_logging_data=lambda: {"iteration": 9},
    )  # fmt: skip
