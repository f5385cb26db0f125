"""The runs of a sweep, by the arguments of --sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.code.bundle import Bundle
from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.usecases.launch import sweep
from orchestrator.usecases.launch.sweep import combinations, stop_sweep, with_values
from orchestrator.usecases.launch_arguments import LaunchArguments
from tests.grounds.cli import Orch
from tests.paths import ROOT
from tests.until import until

# The process that launches two runs: it counts the SIGTERMs, and records a cancelled launch only after the time of a second one.
LAUNCH = """
import signal, sys, time
from pathlib import Path
from orchestrator.run import RunState
from orchestrator.records.run_folder import RunFolder
from orchestrator.verdict.launching import this_process
count, *paths = map(Path, sys.argv[1:])
def add(*_):
    with count.open("a") as file:
        file.write("SIGTERM\\n")
signal.signal(signal.SIGTERM, add)
for path in paths:
    RunFolder(path).update(launching=this_process())
count.touch()
while not count.read_text():
    time.sleep(0.02)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    time.sleep(0.02)
for path in paths:
    RunFolder(path).update(state=RunState.STOPPED, launching=None)
"""


def test_every_combination_is_one_run_and_the_last_setting_varies_fastest() -> None:
    assert combinations(["optim.lr=1e-3,3e-4", "model.layers=2,4"]) == [
        {"optim.lr": "1e-3", "model.layers": "2"},
        {"optim.lr": "1e-3", "model.layers": "4"},
        {"optim.lr": "3e-4", "model.layers": "2"},
        {"optim.lr": "3e-4", "model.layers": "4"},
    ]
    assert combinations(["seed=7"]) == [{"seed": "7"}]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lr"], "--sweep lr: not a setting"),
        (["lr="], "--sweep lr=: not a setting"),
        (["=1,2"], "--sweep =1,2: not a setting"),
        (["lr=1,,2"], "different values"),
        (["lr=1,2,1"], "different values"),
        (["l r=1"], "not a setting"),
        (["lr=1,2", "lr=3"], "swept twice"),
        (["steps=1,2"], "steps is swept and set as well"),
        ([f"{name}={','.join(map(str, range(11)))}" for name in "abc"], "1331 combinations; at most 1000"),
    ],
)
def test_invalid_sweep_is_refused_with_the_argument(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        combinations(words, ["steps=20"])


def test_values_replace_the_placeholders_in_the_arguments_of_a_program() -> None:
    program = ("train.py", "--lr={lr}", "{a.b}", "{lr}-{other}", '{"x": {lr}}', "{name}")
    values = {"lr": "1e-3", "a.b": "{lr}"}
    assert with_values(program, values) == ("train.py", "--lr=1e-3", "{lr}", "1e-3-{other}", '{"x": 1e-3}', "{name}")
    with pytest.raises(UsageError, match=r"no argument of the program contains \{seed\}") as caught:
        with_values(("{seed}.py", "--seed", "seed"), {"seed": "1"})
    assert "--seed {seed}" in caught.value.hint


@pytest.mark.processes
@pytest.mark.parametrize(("axis", "devices"), [("seed=1,2", ["gcu", "gcu"]), ("device=auto,cpu", ["auto", "cpu"])])
def test_every_run_of_a_sweep_gets_the_accelerator_of_the_inventory_unless_device_is_swept(
    tmp_path: Path, axis: str, devices: list[str]
) -> None:
    (tmp_path / "inventory.yaml").write_text("name: cards\naccelerator: gcu\nnodes: [{name: n0}]\n")
    planned = Orch(tmp_path)("submit", "--dry-run", "--sweep", axis).stdout
    jobs = [line for line in planned.splitlines() if '"-m", "trainer"' in line]
    assert [[word for word in line.split('"') if word.startswith("device=")] for line in jobs] == [
        [f"device={name}"] for name in devices
    ]


@pytest.mark.processes
def test_launch_of_a_sweep_is_cancelled_by_one_signal(tmp_path: Path) -> None:
    inventory = Inventory(name="demo", transport="local", nodes=(Node(name="n0", workdir=str(tmp_path / "w")),))
    request = Request("ssh", Program("executable", ("true",)))
    store, folders = Store(tmp_path), list[RunFolder]()
    for task in range(4):
        plan = make_plan(inventory, request, run_id=f"demo-20260102-030405-000{task}", bundle="b")
        unknown: dict[str, Any] = {"request": {}, "inventory": {}, "code": {}, "versions": {}}
        record = RunRecord(plan.run_id, "ssh", RunState.STARTING, "2026-01-02T03:04:05+00:00", **unknown)
        folders.append(store.create(record))
        folders[-1].write_plan(plan)
    count = tmp_path / "signals"
    argv = [sys.executable, "-c", LAUNCH, str(count), *(str(folder.path) for folder in folders)]
    with subprocess.Popen(argv, cwd=ROOT) as launch:
        until(count.exists, awaited="the launch to begin")
        messages: list[str] = []
        records = stop_sweep([(folder, folder.read()) for folder in folders], messages.append)
        launch.wait(10)
    assert [record.state for record in records] == [RunState.STOPPED] * 4
    assert count.read_text("utf-8") == "SIGTERM\n"
    assert len(messages) == 1


class Cluster:
    """A launcher for a cluster whose time limit is short; it queues nothing."""

    def __init__(self) -> None:
        self.written: list[LaunchPlan] = []

    def connect(self, _plan: LaunchPlan) -> Facts:
        return Facts(("the partition is small",), time_limit_s=120.0)

    def push(self, _plan: LaunchPlan, _bundle: Bundle) -> Facts:
        return Facts(is_shared=True)

    def write(self, plan: LaunchPlan, _bundle: Bundle) -> None:
        self.written.append(plan)

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str:
        self.write(plan, bundle)
        return "7"

    def close(self) -> None:
        """No connections."""


def test_each_run_of_a_sweep_is_resolved_and_a_warning_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, warnings = Cluster(), list[str]()
    monkeypatch.setattr(sweep, "SlurmLauncher", lambda *_: cluster)
    monkeypatch.setattr(sweep, "slurm_host", lambda *_: None)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory.yaml").write_text("name: demo\naccelerator: cpu\ndevices: 1\nnodes: [{name: n0}]\n")
    arguments = LaunchArguments("slurm", "inventory.yaml", None, None, None, (), ("sh", "-c", "echo {seed}"))
    sweep.submit(sweep.plan_sweep(arguments, ["seed=1,2"]), warnings.append)
    assert warnings == ["the partition is small"]
    assert [plan.slurm["warn_s"] for plan in cluster.written] == [30, 30]
    recorded = {folder.path.name: folder.read_plan().slurm["warn_s"] for folder in Store(tmp_path / "home").all()}
    assert recorded == {plan.run_id: 30 for plan in cluster.written}
