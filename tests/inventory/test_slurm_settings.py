"""Fields of `slurm:` on the command line: checked like those of a file, and refused with the option and the allowed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.inventory.slurm_settings import parse_setting, with_slurm_settings
from orchestrator.plan.files import sbatch_command
from orchestrator.plan.make import make_plan
from orchestrator.plan.sbatch import sbatch_options
from orchestrator.run import Program, Request

FILE = SlurmOptions(partition="gpu", time="60", setup=("module load a",), options=("--nice=5", "--mem=1G"))


def _inventory(*words: str) -> Inventory:
    """An inventory whose fields are set by words such as `slurm.time=10`, or `--time slurm.time=10` for another option."""
    pairs = [word.split(" ", 1) if word.startswith("--") else ["--set", word] for word in words]
    settings = [parse_setting(option, word) for option, word in pairs]
    return with_slurm_settings(Inventory(name="demo", nodes=(Node(name="n0"),), slurm=FILE), settings)


def test_options_override_the_file_and_lists_are_extended() -> None:
    words = ("--time slurm.time=10", "slurm.mem=2G", "slurm.options=--wckey=x", "slurm.setup=module load b")
    slurm = _inventory(*words).slurm
    assert (slurm.partition, slurm.time, slurm.mem) == ("gpu", "10", "2G")
    assert slurm.options == ("--nice=5", "--wckey=x")  # --mem is replaced
    assert slurm.setup == ("module load a", "module load b")
    assert _inventory().slurm == FILE


def test_options_are_in_script_and_command() -> None:
    inventory = _inventory("slurm.time=10", "slurm.job_name=lr")
    request = Request("slurm", Program("executable", ("true",)))
    plan = make_plan(inventory, request, run_id="demo-1", bundle="b")
    assert {"--job-name=lr", "--partition=gpu", "--time=10"} <= set(sbatch_options(plan))
    assert "--job-name=lr" in sbatch_command(plan)
    assert plan.job_run == "demo-1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--time slurm.time=2h"], "--time: 2h is not a Slurm time; allowed: minutes, HH:MM:SS"),
        (["slurm.mem=64GB"], "--set slurm.mem: 64GB is not an amount of memory; allowed: megabytes"),
        (["slurm.memm=1"], "--set slurm.memm: unknown key; did you mean mem? allowed: partition"),
        (["slurm.cpus-per-task=8"], "--set slurm.cpus-per-task: unknown key; --cpus-per-task is the field cpus"),
        (["slurm.requeue=on"], "--set slurm.requeue: on is not known; allowed: auto, never"),
        (["slurm.options=--nodes=3"], "--set slurm.options: --nodes=3: orch decides --nodes itself"),
        (["slurm.options=--time=3"], "--set slurm.options: --time=3 is given twice: here, and as slurm.time"),
        (["slurm.container.image=x"], "--set slurm.container.image: slurm.container.runtime: is missing"),
        (["slurm.container=x"], "--set slurm.container: must be a mapping, not text"),
        (["--time slurm.time=1", "slurm.time=2"], "--set slurm.time: time is set by --time as well"),
        (["slurm.time"], "--set slurm.time: not a field of `slurm:` with a value"),
        (["time=3"], "--set time=3: not a field of `slurm:` with a value"),
        (["slurm.template=none.j2"], f"--set slurm.template: {Path.cwd()}/none.j2: No such file"),
    ],
)
def test_invalid_option_is_refused_with_its_name_and_what_is_allowed(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _inventory(*words)
    assert str(caught.value).startswith(message)
    assert caught.value.hint


def test_every_wrong_option_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        _inventory("slurm.time=x", "--qos slurm.qos=-")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["--qos", "--set slurm.time"]
