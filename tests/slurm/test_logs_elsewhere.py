"""orch logs RUN -i FILE for a run through Slurm: on a machine that shares the working folder, without a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.until import until


@pytest.fixture
def here(cluster: Cluster, tmp_path: Path) -> Orch:
    """The submitting orch, beside an inventory.yaml of the cluster."""
    cluster.inventory(tmp_path)
    return Orch(tmp_path, env=cluster.env)


@pytest.fixture
def elsewhere(here: Orch, cluster: Cluster) -> Orch:
    """Another orch with the same inventory and folder and no records."""
    return Orch(here.cwd, env={**cluster.env, "ORCH_HOME": str(here.cwd / "elsewhere")})


@pytest.mark.extended
@pytest.mark.parametrize("options", [("-j", "2x1"), ("--nodes", "n1,n3")])
def test_log_is_the_same_without_a_record(here: Orch, elsewhere: Orch, options: tuple[str, str]) -> None:
    here("submit", *options, "--", "sh", "-c", 'echo "out of $RANK"')
    run = here.records()[-1]["id"]
    lines = elsewhere.lines(run, "-i", "inventory.yaml")
    assert lines == here.lines(run)
    assert sorted(line["text"] for line in lines if line["stream"] == "out") == ["out of 0", "out of 1"]
    assert f"run {run} is DONE" in elsewhere("logs", "-f", run, "-i", "inventory.yaml").stderr


def test_job_is_followed_to_its_end(here: Orch, elsewhere: Orch) -> None:
    script = 'i=0; until [ -e "$ORCH_RUN_DIR/enough" ]; do i=$((i+1)); echo "line $i"; sleep 0.1; done'
    run = here("submit", "--detach", "-j", "2x1", "--", "sh", "-c", script).stdout.strip()
    until(lambda: here.printed(run).splitlines().count("line 1") == 2, awaited="two ranks")
    with elsewhere.start("logs", "-f", run, "-i", "inventory.yaml") as following:
        assert following.stdout is not None
        assert following.stderr is not None
        text = "".join(following.stdout.readline() for _ in range(30))
        attempt = here.node_folders(run)[0].parent
        (attempt.parent / "enough").touch()
        text += following.stdout.read()
        stderr = following.stderr.read()
    assert following.returncode == 0, stderr
    assert f"run {run} is DONE" in stderr
    written = [line for file in attempt.glob("*/rank-*.out") for line in file.read_text("utf-8").splitlines()]
    assert sorted(line.partition("] ")[2] for line in text.splitlines() if ":-]" not in line) == sorted(written)


@pytest.mark.extended
def test_log_of_a_job_whose_folder_is_only_on_its_nodes_is_refused_with_the_next_step(
    farm: Farm, here: Orch, elsewhere: Orch
) -> None:
    """Nodes reached over ssh have the run's folder under a path that is another folder on this machine."""
    here("submit", "-j", "1x1", "--", "true")
    run = here.records()[-1]["id"]
    attempt = here.node_folders(run)[0].parent
    farm.inventory(elsewhere.cwd, nodes=1)
    workdir = (elsewhere.cwd / "inventory.yaml").read_text("utf-8").partition("workdir: ")[2].split()[0]
    copied = farm.home / "copied" / "runs" / run
    copied.mkdir(parents=True)
    (copied / "attempt-1").mkdir()
    for name in ("job.json", "submit.sbatch"):
        (copied / "attempt-1" / name).write_bytes((attempt / name).read_bytes())
        (copied / "attempt-1" / name).chmod(0o644)
    text = (elsewhere.cwd / "inventory.yaml").read_text("utf-8").replace(workdir, "~/copied")
    (elsewhere.cwd / "inventory.yaml").write_text(text, "utf-8")
    done = elsewhere("logs", run, "-i", "inventory.yaml", code=2)
    assert "was submitted through Slurm" in done.stderr
    assert "shares ~/copied/runs" in done.stderr
