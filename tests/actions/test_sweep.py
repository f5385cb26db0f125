"""The runs of a sweep, by the arguments of --sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.actions.sweep import combinations, with_values
from orchestrator.errors import UsageError
from tests.grounds.cli import Orch


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
