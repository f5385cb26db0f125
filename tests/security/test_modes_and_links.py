"""orch's files are private to its user whatever the umask, never written through a foreign link, and complete or absent."""

from __future__ import annotations

import os
import re
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.endpoint import push
from tests.grounds.cli import Orch
from tests.grounds.held_launch import held_launch
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.until import until

pytestmark = pytest.mark.processes

INVENTORY = """\
env_file: .env
name: here
accelerator: cpu
devices: 1
transport: local
defaults: {workdir: WORKDIR, python: PYTHON}
nodes: [{name: n0}, {name: n1}]
"""
# A Python that waits, before it becomes the endpoint (connect) or the agent (start), until the file `gate` appears.
WAITING = """#!/bin/sh
case "$*" in *__main__.py*) at=start ;; *) at=connect ;; esac
if [ "$at" = STAGE ]; then touch FOLDER/.reached; while [ ! -e FOLDER/.gate ]; do sleep 0.05; done; fi
exec PYTHON "$@"
"""
WITH_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}


@pytest.fixture
def secret() -> str:
    """Random text: no source file holds it, as tests that push this repository leave one in the home of the farm."""
    return secrets.token_hex(16)


def _write_env_file(folder: Path, secret: str) -> None:
    (folder / ".env").touch(mode=0o600)
    (folder / ".env").write_text(f"X={secret}\n")


def _orch(folder: Path, python: str = sys.executable, secret: str = "") -> Orch:
    text = INVENTORY.replace("WORKDIR", f"{folder}/.work").replace("PYTHON", python)
    (folder / "inventory.yaml").write_text(text)
    _write_env_file(folder, secret)
    (folder / ".tmp").mkdir(exist_ok=True)
    return Orch(folder, env={"TMPDIR": str(folder / ".tmp"), **WITH_BYTE_CODE})


def _without_umask(orch: Orch, *words: str) -> None:
    """Run orch with umask 000."""
    script = 'umask 000; exec "$@"'
    argv = ["sh", "-c", script, "sh", *orch.argv(words)]
    done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _open_to_others(root: Path) -> list[str]:
    """The paths below a folder, itself included, that other users may read, write or enter."""
    found = [path for path in (root, *root.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o077]
    return [f"{path} {stat.filemode(path.stat().st_mode)}" for path in found]


def test_umask_000_gives_others_no_access_on_this_machine_or_a_node(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('hi')")
    orch = _orch(tmp_path)
    _without_umask(orch, "ssh-launch", "--", "x.py")
    assert _open_to_others(orch.home) == []
    assert _open_to_others(tmp_path / ".work") == []
    assert not list((tmp_path / ".tmp").iterdir())


def test_umask_000_gives_others_no_access_under_slurm(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's log and submitit's copy of the batch script have the job's umask, in a folder that is closed."""
    workdir = tmp_path / ".work"
    cluster.inventory(tmp_path, defaults={"workdir": str(workdir)})
    (tmp_path / "x.py").write_text("print('hi')")
    orch = Orch(tmp_path, env=cluster.env | WITH_BYTE_CODE)
    _without_umask(orch, "submit", "-j", "2x1", "--", "x.py")
    assert _open_to_others(orch.home) == []
    assert [
        path for path in _open_to_others(workdir) if not re.search(r"/(slurm-\d+\.log|\d+_submission\.sh) ", path)
    ] == []


@pytest.mark.parametrize("name", ["runs", ""])
def test_record_is_not_written_through_a_foreign_link(name: str, tmp_path: Path) -> None:
    orch = _orch(tmp_path)
    elsewhere = tmp_path / ".elsewhere"
    elsewhere.mkdir()
    # a home may be a link to the user's own folder, but not to one that everybody may write
    elsewhere.chmod(0o777 if not name else 0o700)
    if name:
        orch.home.mkdir()
    (orch.home / name).symlink_to(elsewhere)
    done = orch("ssh-launch", "--", "true", code=2)
    assert "cannot write the run's record" in done.stderr
    assert "set ORCH_HOME" in done.stderr
    assert not list(elsewhere.iterdir())


def test_home_for_records_may_be_the_users_own_link(tmp_path: Path) -> None:
    orch = _orch(tmp_path)
    (tmp_path / ".big-disk").mkdir(mode=0o700)
    orch.home.symlink_to(tmp_path / ".big-disk")
    orch("ssh-launch", "--", "true")
    assert orch.status()["state"] == "DONE"


@pytest.mark.parametrize("name", ["runs", "bundles"])
def test_node_does_not_write_through_a_planted_link(name: str, tmp_path: Path) -> None:
    orch = _orch(tmp_path)
    (tmp_path / ".work").mkdir()
    (tmp_path / ".elsewhere").mkdir()
    (tmp_path / ".work" / name).symlink_to(tmp_path / ".elsewhere")
    done = orch("ssh-launch", "--", "true", code=4)
    assert f".work/{name} is a symbolic link" in done.stderr
    assert not list((tmp_path / ".elsewhere").iterdir())


def _holders(root: Path, secret: str) -> dict[str, int]:
    """Name -> mode of the files that hold the secret, without the env_file itself."""
    paths = [path for path in root.rglob("*") if path.is_file() and path != root / ".env"]
    return {path.name: path.stat().st_mode & 0o777 for path in paths if secret.encode() in path.read_bytes()}


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("stage", ["connect", "start", "run"])
def test_interrupted_launch_leaves_the_secret_in_node_sh_at_most(
    stage: str, number: signal.Signals, tmp_path: Path, secret: str
) -> None:
    python = tmp_path / ".waiting-python"
    script = WAITING.replace("STAGE", stage).replace("FOLDER", str(tmp_path)).replace("PYTHON", sys.executable)
    python.write_text(script)
    python.chmod(0o700)
    orch = _orch(tmp_path, python=str(python), secret=secret)
    with orch.start("ssh-launch", "--", "sh", "-c", f"touch {tmp_path}/.reached; exec sleep 1000") as launch:
        until((tmp_path / ".reached").exists, awaited=f"the stage {stage}")
        os.kill(launch.pid, number)
        (tmp_path / ".gate").touch()
        launch.communicate(timeout=60)
    orch("stop", code=None)
    assert _holders(tmp_path, secret).items() <= {("node.sh", 0o600)}
    assert not list((tmp_path / ".tmp").iterdir())


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "kill"])
def test_interrupted_push_leaves_the_secret_in_node_sh_at_most(
    end: str, farm: Farm, tmp_path: Path, secret: str
) -> None:
    """The push to n0 is complete, the one to n1 is half done."""
    _write_env_file(tmp_path, secret)
    with held_launch("push", farm, tmp_path, env_file=".env") as launch:
        if end == "kill":
            launch.kill_owner()
        else:
            os.kill(launch.process.pid, signal.SIGINT)
            launch.process.communicate(timeout=60)
        launch.open_gate()
        until(lambda: not farm.processes(), awaited="the nodes' processes to end")
    assert _holders(tmp_path, secret) == {}
    assert _holders(farm.home, secret).items() <= {("node.sh", 0o600)}


@pytest.mark.parametrize("end", ["kill", "raise"])
def test_endpoint_that_ends_between_write_and_rename_leaves_no_readable_file(
    end: str, tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed endpoint leaves the unfinished file beside the finished ones, with the same mode; a failing one removes it."""

    def replace(_from: str, _to: str) -> None:
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the disk is full")

    pid = os.fork()
    if pid == 0:
        os.umask(0)
        monkeypatch.setattr(os, "replace", replace)
        folder = str(tmp_path / "attempt-1" / "n0")
        try:
            push.put_files(
                {"folder": folder, "files": [{"path": "node.sh", "size": len(secret), "mode": 0o600}]}, secret.encode()
            )
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    remaining = _holders(tmp_path, secret)
    assert len(remaining) == (1 if end == "kill" else 0)
    assert set(remaining.values()) <= {0o600}
    assert _open_to_others(tmp_path / "attempt-1" / "n0") == []
