"""Quoting: every value of an inventory reaches a process byte for byte, and is never executed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.plan import sbatch
from orchestrator.plan.files import node_script
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.shell import render, shell_path
from orchestrator.portable.names.slurm_options import OPTION_OF
from orchestrator.run import LauncherName, Program, Request
from orchestrator.usecases.launch import transcript

PRINT_X = "import os, sys; sys.stdout.buffer.write(os.environb[b'X'])"
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


def _plan(
    env: dict[str, str], launcher: LauncherName = "ssh", slurm: SlurmOptions | None = None, *, devices: int = 1
) -> LaunchPlan:
    first = Node(name="n0", python="/usr/bin/python3", env=env, devices=devices)
    nodes = (first, Node(name="n1", python="/usr/bin/python3", devices=devices))
    inventory = Inventory(name="demo", nodes=nodes, slurm=slurm or SlurmOptions())
    request = Request(launcher, Program("executable", ("true",), ""))
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")


def _value_of_x(script: str, **environ: str) -> bytes:
    """Run the script up to its exec, then print X in place of starting the agent."""
    lines = script.split("\nexec ", maxsplit=1)[0].split("\ncase $1", maxsplit=1)[0]
    text = f"{lines}\nexec \"$PRINTER\" -c '{PRINT_X.replace(chr(39), chr(34))}'\n"
    environ = {"PATH": os.defpath, "PRINTER": sys.executable, **environ}
    return subprocess.run(["/bin/sh", "-c", text], env=environ, capture_output=True, check=True).stdout


@settings(max_examples=40, deadline=None)
@given(values)
def test_any_value_arrives_byte_for_byte(value: str) -> None:
    plan = _plan({"X": value})
    assert _value_of_x(node_script(plan, plan.head)) == value.encode()


@pytest.mark.parametrize(
    "value",
    ['a,b "c" $d\n', "$(touch pwned)", "`id`", "it's", "\\", "\n\n", "%s %n", "-n", "é\U0001f600", "x" * 100_000],
)
def test_awkward_values_arrive_under_slurm_as_well(value: str) -> None:
    plan = _plan({"X": value}, "slurm")
    assert _value_of_x(sbatch.slurm_node_script(plan), SLURMD_NODENAME="n0") == value.encode()


def test_slurm_node_gets_its_own_values_and_no_others() -> None:
    script = sbatch.slurm_node_script(_plan({"X": "n0 only"}, "slurm"))
    assert _value_of_x(script, SLURMD_NODENAME="n0", X="before") == b"n0 only"
    assert _value_of_x(script, SLURMD_NODENAME="n1", X="before") == b"before"


def test_newline_cannot_add_a_directive_to_sbatch() -> None:
    plan = _plan({}, "slurm")
    malicious = replace(plan, slurm={**plan.slurm, "partition": "gpu\n#SBATCH --uid=0"})
    with pytest.raises(UsageError, match="control character"):
        sbatch.sbatch_script(malicious)


@pytest.mark.parametrize(
    ("path", "shell"),
    [
        ("/plain/path", "/plain/path"),
        ("~/.orch", '"$HOME"/.orch'),
        ("~/a b", "\"$HOME\"/'a b'"),
        ("/x y;$(z)", "'/x y;$(z)'"),
        ("a~/b", "'a~/b'"),
        ("/shared/$USER", '/shared/"$(id -un)"'),
        ("~/a b/$USER/x", '"$HOME"/\'a b/\'"$(id -un)"/x'),
        ("/$USER/$USERS/a$USER", "/\"$(id -un)\"'/$USERS/a$USER'"),
    ],
)
def test_path_is_one_word_whose_leading_tilde_is_home_and_folder_user_is_the_users_name(path: str, shell: str) -> None:
    assert shell_path(path) == shell


def test_dry_run_hides_values_of_secret_variables() -> None:
    text = transcript.dry_run_text(_plan({"API_TOKEN": "hush", "X": "shown"}))
    assert "hush" not in text
    assert "API_TOKEN='<redacted>'" in text
    assert "X='shown'" in text


def test_slurm_options_appear_only_if_set() -> None:
    plain = sbatch.sbatch_options(_plan({}, "slurm"))
    assert not [option for option in plain if option.startswith(("--partition", "--account", "--qos", "--time"))]
    given = SlurmOptions(partition="gpu", time="1-00:00:00", options=("--exclusive", "--comment=a b"))
    options = sbatch.sbatch_options(_plan({}, "slurm", given))
    assert {"--partition=gpu", "--time=1-00:00:00", "--exclusive", "'--comment=a b'"} <= set(options)


def test_every_slurm_field_is_an_option_of_sbatch() -> None:
    fields = {
        "partition": "gpu",
        "account": "proj",
        "qos": "high",
        "time": "1-00:00:00",
        "reservation": "week",
        "constraint": "h800&ib",
        "gres": "gpu:h800:4",
        "mem": "0",
        "exclusive": "user",
        "exclude": "n[2,1]",
        "dependency": "afterok:12:13",
        "mail_type": "END,FAIL",
        "mail_user": "a@b.example",
        "comment": 'it\'s "a" $b # c',
        "cpus": 4,
    }
    assert set(fields) == set(OPTION_OF)
    options = sbatch.sbatch_options(_plan({}, "slurm", SlurmOptions.model_validate(fields)))
    written = {**fields, "exclude": "n[1-2]"}
    assert {f"--{OPTION_OF[field]}={value}" for field, value in written.items()} <= {shlex.split(o)[0] for o in options}


@pytest.mark.parametrize(
    ("gres", "rendered"),
    [
        ("gpu", "gpu:2"),
        ("gpu:h800", "gpu:h800:2"),
        ("gpu:8", "gpu:8"),
        ("gpu:h800:8", "gpu:h800:8"),
        ("gcu,nvme:1", "gcu:2,nvme:1"),
    ],
)
def test_gres_without_a_count_is_one_per_rank_of_a_node(gres: str, rendered: str) -> None:
    options = sbatch.sbatch_options(_plan({}, "slurm", SlurmOptions(gres=gres), devices=2))
    assert f"--gres={rendered}" in options


@pytest.mark.parametrize(("exclusive", "rendered"), [("true", ["--exclusive"]), ("false", []), (None, [])])
def test_exclusive_is_a_flag(exclusive: Literal["true", "false"] | None, rendered: list[str]) -> None:
    options = sbatch.sbatch_options(_plan({}, "slurm", SlurmOptions(exclusive=exclusive)))
    assert [option for option in options if "exclusive" in option] == rendered


def test_task_of_a_node_gets_one_core_per_rank() -> None:
    """By default Slurm gives a task one core, which all ranks of the node would share."""
    assert "--cpus-per-task=1" in sbatch.sbatch_options(_plan({}, "slurm"))
    for whole in (SlurmOptions(options=("--exclusive",)), SlurmOptions(exclusive="true")):
        assert not [o for o in sbatch.sbatch_options(_plan({}, "slurm", whole)) if o.startswith("--cpus-per-task")]
    assert "--cpus-per-task=1" in sbatch.sbatch_options(_plan({}, "slurm", SlurmOptions(exclusive="user")))
    per_gpu = sbatch.sbatch_options(_plan({}, "slurm", SlurmOptions(options=("--cpus-per-gpu=4",))))
    assert not [option for option in per_gpu if option.startswith("--cpus-per-task")]


def test_unset_template_variable_is_an_error_not_an_empty_word() -> None:
    with pytest.raises(UndefinedError):
        render("node.sh.j2", run_id="x")
