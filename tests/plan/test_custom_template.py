"""A user's batch script: rendered like orch's own, and refused if it is wrong or orch could not follow its job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory.model import Inventory, Node, load
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.plan import sbatch
from orchestrator.plan.make import make_plan
from orchestrator.resources import template_folder
from orchestrator.run import Program, Request

HEAD = "#!/bin/bash\n{% for option in options %}\n#SBATCH {{ option }}\n{% endfor %}\n"
BODY = "srun {{ run_dir | path }}/attempt-1/node.sh run\n"
PYXIS: dict[str, Any] = {"container": {"runtime": "pyxis", "image": "nvcr.io#nvidia/pytorch:24.01-py3"}}


def _rendered(folder: Path, text: str, slurm: dict[str, Any] | None = None) -> str:
    file = folder / "own.j2"
    file.write_text(text, "utf-8")
    options = SlurmOptions.model_validate({"template": str(file), "comment": "a b", **(slurm or {})})
    inventory = Inventory(name="demo", nodes=(Node(name="n0", workdir="/data/orch"),), slurm=options)
    request = Request("slurm", Program("executable", ("true",), ""))
    return sbatch.sbatch_script(make_plan(inventory, request, run_id="demo-1", bundle="b1", home="/home/u"))


def test_custom_template_gets_the_values_of_the_builtin_template(tmp_path: Path) -> None:
    text = (template_folder() / "slurm.sbatch.j2").read_text("utf-8")
    copied = _rendered(tmp_path, text, PYXIS)
    file = str(tmp_path / "own.j2")
    options = SlurmOptions.model_validate({"comment": "a b", **PYXIS})
    inventory = Inventory(name="demo", nodes=(Node(name="n0", workdir="/data/orch"),), slurm=options)
    plan = make_plan(
        inventory, Request("slurm", Program("executable", ("true",), "")), run_id="demo-1", bundle="b1", home="/home/u"
    )
    assert copied == sbatch.sbatch_script(plan)
    assert sbatch.sbatch_script(replace(plan, slurm={**plan.slurm, "template": file})) == copied


def test_custom_template_may_add_directives_and_include_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "part.sh").write_text("echo {{ run_id }}\n", "utf-8")
    text = _rendered(tmp_path, HEAD + "#SBATCH --nice 5\n#SBATCH --wckey=x\n{% include 'part.sh' %}\n" + BODY)
    assert "#SBATCH '--comment=a b'\n" in text
    assert "#SBATCH --nice 5\n" in text
    assert "echo demo-1\nsrun /data/orch/runs/demo-1/attempt-1/node.sh run" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "srun {{ rundir }}\n", ":5: 'rundir' is undefined"),
        (HEAD + "srun\n{% if %}\n", ":6: Expected an expression"),
        (HEAD + "srun {{ options[99] }}\n", ":5: "),
        (HEAD + "srun {{ 1 / 0 }}\n", ":5: division by zero"),
        (HEAD + "srun {{ run_id + 1 }}\n", ":5: can only concatenate str"),
        (HEAD + "srun {{ run_id.__class__.__mro__ }}\n", ":5: access to attribute '__class__'"),
        (HEAD + "srun {% include 'nowhere.sh' %}\n", ":5: 'nowhere.sh' not found"),
        (HEAD + "srun {% include 'own.j2' %}\n", ":5: maximum recursion depth exceeded"),
        (HEAD + "echo no agents\n# srun is what is missing\n", ": has no srun, which starts the agents"),
        (
            HEAD + "srun python train.py\n# node.sh run\n",
            ': starts no agent: srun has to run `/bin/sh "$folder/node.sh" run`',
        ),
        ("#!/bin/bash\n" + BODY, ": leaves out `#SBATCH --job-name=demo-1`"),
        ("#!/bin/bash\nset -e\n" + HEAD.partition("\n")[2] + BODY, ": leaves out `#SBATCH --job-name=demo-1`"),
        (HEAD.replace("{{ option", "{{ option.upper()") + BODY, ": leaves out `#SBATCH --job-name=demo-1`"),
        (HEAD.partition("\n")[2] + BODY, ": does not begin with #!/bin/bash"),
        ("", ": does not begin with #!/bin/bash"),
        (HEAD + "#SBATCH --nodes 7\n" + BODY, ": `#SBATCH --nodes 7`: --nodes=7: orch decides --nodes itself"),
        (HEAD + "#SBATCH --out=x\n" + BODY, ": `#SBATCH --out=x`: --out=x: orch decides --output itself"),
        (HEAD + "#SBATCH -N 7\n" + BODY, ": `#SBATCH -N 7`: '-N 7': orch decides --nodes itself"),
    ],
)
def test_template_whose_job_orch_cannot_follow_is_refused_with_file_and_line(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        _rendered(tmp_path, text)
    assert f"{tmp_path / 'own.j2'}{message}" in str(caught.value)
    assert "templates/slurm.sbatch.j2" in caught.value.hint


def test_template_without_the_container_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leaves out --container-image=nvcr"):
        _rendered(tmp_path, HEAD + BODY, PYXIS)


def test_template_path_is_relative_to_the_inventory_which_is_named_if_it_is_missing(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("slurm:\n  template: own.j2\nnodes: [{name: n0}]\n", "utf-8")
    with pytest.raises(InventoryError) as caught:
        load(inventory)
    assert str(caught.value) == f"{inventory}:2: slurm.template: {tmp_path / 'own.j2'}: No such file or directory"
    (tmp_path / "own.j2").write_text(HEAD, "utf-8")
    assert load(inventory).slurm.template == str(tmp_path / "own.j2")


def test_template_that_does_not_choose_nodes_is_refused_with_spares(tmp_path: Path) -> None:
    choice = 'nodes=$(/bin/sh "$folder/node.sh" nodes)\n'
    assert choice in _rendered(tmp_path, HEAD + choice + BODY, {"spare_nodes": 1})
    with pytest.raises(UsageError, match=r"own\.j2: does not run `node\.sh nodes`"):
        _rendered(tmp_path, HEAD + BODY, {"spare_nodes": 1})
