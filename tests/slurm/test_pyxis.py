"""
Runs in the images of Slurm's jobs, by Pyxis and enroot themselves.

No package registry has them: `scripts/build-pyxis.sh` builds them from checkouts, and ORCH_PYXIS names the folder. All of a cluster's nodes are
this machine, where enroot would mix their containers: so each job has one node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.components import program
from tests.grounds.containers import host_folders, image_tar
from tests.grounds.keeper import kill
from tests.grounds.slurm import Cluster, open_cluster
from tests.until import until

BUILT = os.environ.get("ORCH_PYXIS", "")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not BUILT, reason="ORCH_PYXIS names no folder with Pyxis and enroot (scripts/build-pyxis.sh)"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("pyxis")
    settings = {name: folder / name.lower() for name in ("RUNTIME", "CACHE", "DATA", "TEMP", "CONFIG")}
    for path in settings.values():
        path.mkdir()
    conf = Path(BUILT, "etc/enroot/enroot.conf.d/orch-test.conf")
    conf.write_text("".join(f"ENROOT_{name}_PATH {path}\n" for name, path in settings.items()), "utf-8")
    (folder / "run").mkdir()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{BUILT}/bin:{os.environ['PATH']}")  # of slurmd, where Pyxis looks for enroot
            with open_cluster(plugin=f"required {BUILT}/spank_pyxis.so runtime_path={folder}/run\n") as cluster:
                yield cluster
    finally:
        conf.unlink()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    (folder / "root").mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder / "root")], input=image_tar(), check=True)
    image = folder / "image.sqsh"
    subprocess.run([program("mksquashfs"), str(folder / "root"), str(image), "-quiet", "-no-progress"], check=True)
    return image


@pytest.fixture
def orch(cluster: Cluster, image: Path, tmp_path: Path) -> Iterator[Orch]:
    mounts = [*map(str, host_folders()), str(cluster.folder / "python")]
    cluster.inventory(
        tmp_path, devices=2, slurm={"container": {"runtime": "pyxis", "image": str(image), "mounts": mounts}}
    )
    yield Orch(tmp_path, env=dict(cluster.env))
    cluster.end_jobs()


def _in_images(cluster: Cluster, command: str) -> list[int]:
    """The pids of jobs with this command whose root is that of an image."""
    found = []
    for pid, name in cluster.processes().items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name == command and not Path(f"/proc/{pid}/root/.").samefile("/"):
                found.append(pid)
    return found


def test_program_runs_in_the_image(orch: Orch, cluster: Cluster) -> None:
    orch("submit", "-j", "1x2", "--", "sh", "-c", 'ls / | tr "\\n" " "; echo "rank $RANK of $WORLD_SIZE"')
    printed = "".join(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert "rank 0 of 2" in printed
    assert "rank 1 of 2" in printed
    assert "boot" not in printed
    until(lambda: not cluster.processes(), awaited=lambda: f"no process, not {cluster.processes()}")


def test_shared_trainer_trains_in_the_image(orch: Orch) -> None:
    done = orch("submit", "-j", "1x2", "steps=4", "device=cpu", "model.layers=1", "model.width=32", "report=")
    assert "step=4" in done.stdout


def test_rank_that_is_killed_in_the_image_is_restarted(orch: Orch, cluster: Cluster) -> None:
    lines = """
        echo '{"step": 3, "phase": "step"}' >"$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"
        [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000
    """
    run = orch("submit", "--detach", "--max-retries", "2", "-j", "1x2", "--", "sh", "-c", lines).stdout.strip()
    [_, rank] = until(
        lambda: len(found := _in_images(cluster, "sleep")) == 2 and found, awaited="two ranks in the image"
    )
    kill(rank, signal.SIGKILL)
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 2


def test_stop_leaves_nothing_in_the_image(orch: Orch, cluster: Cluster) -> None:
    lines = "setsid sleep 1000 & exec sleep 1000"
    run = orch("submit", "--detach", "-j", "1x2", "--", "sh", "-c", lines).stdout.strip()
    until(lambda: len(_in_images(cluster, "sleep")) == 4, awaited=lambda: f"four sleeps, not {cluster.processes()}")
    orch("stop", run)
    until(lambda: not cluster.processes(), awaited=lambda: f"no process, not {cluster.processes()}")
    assert orch.status(run)["state"] == "STOPPED"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"python": "/opt/none/bin/python3"}, "the Python of the inventory, /opt/none/bin/python3"),
        ({"image": "/none.sqsh"}, "the image is not on this node"),
        ({"mounts": ["/none-here:/data"]}, "names a path that this node does not have"),
    ],
    ids=["python", "image", "mount"],
)
def test_what_the_image_lacks_is_named(
    changes: dict[str, object], cause: str, cluster: Cluster, image: Path, tmp_path: Path
) -> None:
    mounts = [*map(str, host_folders()), str(cluster.folder / "python")]
    container = {"runtime": "pyxis", "image": str(image), "mounts": mounts, **changes}
    cluster.inventory(tmp_path, slurm={"container": container})
    done = Orch(tmp_path, env=dict(cluster.env))("submit", "-j", "1x1", "--", "true", code=1)
    assert cause in done.stderr, done.stderr


def test_image_has_another_python_than_the_nodes(cluster: Cluster, image: Path, tmp_path: Path) -> None:
    mounts = [*map(str, host_folders()), f"{cluster.folder}/python:/opt/image"]
    container = {"runtime": "pyxis", "image": str(image), "mounts": mounts, "python": "/opt/image/bin/python3"}
    cluster.inventory(tmp_path, slurm={"container": container})
    orch = Orch(tmp_path, env=dict(cluster.env))
    orch("submit", "-j", "1x1", "--", "sh", "-c", "command -v python3")
    assert [line["text"] for line in orch.lines() if line["stream"] == "out"] == ["/opt/image/bin/python3"]
