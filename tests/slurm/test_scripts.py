"""Users' changes to the scripts of a Slurm job: their own template, setup lines before the agent, a container image."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.resources import template_folder
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster

TEMPLATE = (template_folder() / "slurm.sbatch.j2").read_text("utf-8")
# Records its arguments, and sets variables as an image does; the "image" is this machine.
APPTAINER = """#!/bin/sh
echo "$SLURMD_NODENAME" "$@" >>"{calls}"
shift
while [ "$1" = --bind ]; do shift 2; done
shift
IMAGE_VALUE="of the image" FROM_BOTH="of the image" exec "$@"
"""


def _printed(orch: Orch) -> list[str]:
    return sorted(line["text"] for line in orch.lines() if line["stream"] == "out")


def test_own_template_is_run_and_stored_with_the_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"template": "own.j2"})
    (tmp_path / "own.j2").write_text(TEMPLATE.replace("set -euo", "export TEMPLATE='was here'\nset -euo"), "utf-8")
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "-j", "2x1", "--", "sh", "-c", 'echo "$TEMPLATE"')
    assert _printed(orch) == ["was here", "was here"]
    [script] = orch.home.rglob("submit.sbatch")
    assert "export TEMPLATE='was here'" in script.read_text("utf-8")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{ run_id }}", "{{ run }}", "own.j2:5: 'run' is undefined"),
        ("{% endfor %}\n# Run", "# Run", "own.j2:"),
        ("    srun ", "    mpirun ", "own.j2: has no srun, which starts the agents"),
        ("#SBATCH {{ option }}\n", "", "own.j2: leaves out `#SBATCH --job-name="),
    ],
)
def test_unusable_template_is_refused_and_no_job_is_submitted(
    old: str, new: str, message: str, cluster: Cluster, tmp_path: Path
) -> None:
    assert old in TEMPLATE
    cluster.inventory(tmp_path, slurm={"template": "own.j2"})
    (tmp_path / "own.j2").write_text(TEMPLATE.replace(old, new), "utf-8")
    orch = Orch(tmp_path, env=cluster.env)
    for words in (["--dry-run"], []):
        done = orch("submit", *words, "-j", "1x1", "--", "true", code=2)
        assert f"{tmp_path}/{message}" in done.stderr
    assert not cluster.jobs()


def test_setup_runs_in_bash_on_every_node_before_the_agent(cluster: Cluster, tmp_path: Path) -> None:
    """With everything that module and conda need: functions, arrays, sourced files without arguments, output, unset variables."""
    (tmp_path / "env.sh").write_text('[ $# = 0 ] && export SOURCED="$UNSET it\'s \\"set\\"" && false; true\n', "utf-8")
    lines = [
        'words=("in bash" on)',
        'say() { export SAID="${words[*]} $SLURMD_NODENAME"; }; say',
        f"source {tmp_path}/env.sh # a comment",
        "echo 'this is not the rendezvous'; declare -gx FROM_BOTH=setup",
    ]
    cluster.inventory(tmp_path, setup=lines[:2], slurm={"setup": lines[2:]}, env={"FROM_BOTH": "inventory"})
    orch = Orch(tmp_path, env=cluster.env)
    names = "ORCH_IS_SET_UP|ORCH_IN_IMAGE"
    show = f'echo "$SAID,$SOURCED,$FROM_BOTH"; env | grep -E "{names}"; true'
    orch("submit", "--nodes", "n0,n2", "--", "sh", "-c", show)
    assert _printed(orch) == [f'in bash on {node}, it\'s "set",inventory' for node in ("n0", "n2")]
    log = next(cluster.folder.glob(f"work/*/runs/{orch.status()['id']}/attempt-1/slurm-*.log"))
    # on the head also for its address, and for the steps after it
    assert log.read_text("utf-8").count("this is not the rendezvous") == 4


def test_failing_line_of_setup_ends_the_run_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Other lines that fail are in tests/plan/test_node_script.py."""
    line = '[ "$SLURMD_NODENAME" != n2 ]'
    after = f"touch {tmp_path}/after-$SLURMD_NODENAME"
    cluster.inventory(tmp_path, setup=["true", line, after])
    orch = Orch(tmp_path, env=cluster.env)
    done = orch("submit", "--nodes", "n1,n2", "--", "true", code=1)
    found = re.search(r"setup: this line ended with \d+ on (n[12]): (.*)", done.stderr)
    assert found is not None, done.stderr
    assert found[2] == line
    assert f"[batch:-] {found[0]}" in orch("logs").stdout, "the agent of n2 has written nothing"
    assert orch("logs", "--stream", "batch", "--grep", "this line ended", "--tail", "1").stdout.count("\n") == 1
    assert orch.status()["state"] == "FAILED"
    assert not (tmp_path / f"after-{found[1]}").exists()


def test_agent_runs_in_the_image_and_the_inventorys_values_override_the_images(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Apptainer is a stand-in here: the image is this machine."""
    program, calls = tmp_path / "bin" / "apptainer", tmp_path / "apptainer-calls"
    program.parent.mkdir()
    program.write_text(APPTAINER.format(calls=calls), "utf-8")
    program.chmod(0o755)
    container = {"runtime": "apptainer", "image": "/images/torch.sif", "mounts": ["/scratch", "/sets:/data/sets:ro"]}
    # a line of setup puts the stand-in on the PATH, as for an Apptainer that is a module
    setup = [f'export PATH={program.parent}:"$PATH"', f"echo once >>{tmp_path}/setups-$SLURMD_NODENAME"]
    slurm = {"container": container, "setup": setup}
    inventory = cluster.inventory(tmp_path, slurm=slurm, env={"FROM_BOTH": "of the inventory"})
    orch = Orch(tmp_path, env=cluster.env)
    names = "ORCH_IS_SET_UP|ORCH_IN_IMAGE"
    show = f'echo "$IMAGE_VALUE, $FROM_BOTH"; env | grep -E "{names}"; true'
    orch("submit", "--nodes", "n0,n1", "--", "sh", "-c", show)
    assert _printed(orch) == ["of the image, of the inventory"] * 2
    workdir = next(line.split()[-1] for line in inventory.read_text("utf-8").splitlines() if "workdir:" in line)
    folder = os.path.join(workdir, "runs", orch.status()["id"], "attempt-1")  # noqa: PTH118  as it is rendered
    binds = f"--bind {workdir}:{workdir} --bind /scratch:/scratch --bind /sets:/data/sets:ro"
    for line in calls.read_text("utf-8").splitlines():
        assert f"exec {binds} /images/torch.sif /bin/sh {folder}/node.sh run" in line
    assert sorted(line.split()[0] for line in calls.read_text("utf-8").splitlines()) == ["n0", "n1"]
    assert (tmp_path / "setups-n1").read_text("utf-8") == "once\n"  # outside the image, not a second time inside


def test_image_has_another_python_than_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Apptainer is a stand-in here: the image is this machine, where its Python has another path than that of the nodes."""
    program, image_python = tmp_path / "bin" / "apptainer", tmp_path / "the image's" / "python3"
    for path in (program, image_python):
        path.parent.mkdir()
    program.write_text(APPTAINER.format(calls=tmp_path / "calls"), "utf-8")
    program.chmod(0o755)
    image_python.symlink_to(cluster.python)
    container = {"runtime": "apptainer", "image": "/images/torch.sif", "python": str(image_python)}
    cluster.inventory(tmp_path, slurm={"container": container, "setup": [f'export PATH={program.parent}:"$PATH"']})
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "--nodes", "n0,n1", "--", "sh", "-c", "command -v python3")
    assert _printed(orch) == [str(image_python)] * 2
