"""A run in the containers of two hosts, each with its own docker daemon and network."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds.containers import IMAGE, Runtime, host_folders, open_docker
from tests.grounds.hosts import Hosts

pytestmark = [pytest.mark.processes, pytest.mark.containers, pytest.mark.slow]


@pytest.fixture
def dockers(hosts: Hosts, tmp_path: Path) -> Iterator[list[Runtime]]:
    """A daemon on each of the first two hosts, which the shell of a login knows."""
    with contextlib.ExitStack() as stack:
        found = []
        for host in hosts.hosts[:2]:
            folder = Path(tempfile.mkdtemp(prefix="orch-docker-"))
            docker = stack.enter_context(open_docker(folder, host.enter()))
            host.path(hosts.home / ".bashrc").write_text(f"export DOCKER_HOST={docker.env['DOCKER_HOST']}\n", "utf-8")
            found.append(docker)
        archive = tmp_path / "image.tar"
        found[0]("save", "--output", str(archive), IMAGE)
        found[1]("load", "--input", str(archive))
        yield found


@pytest.mark.train
@pytest.mark.parametrize("kind", ["name", pytest.param("image", marks=pytest.mark.extended)])
def test_shared_trainer_trains_over_the_network_of_two_hosts(
    hosts: Hosts, dockers: list[Runtime], tmp_path: Path, kind: str
) -> None:
    container: dict[str, object] = {"name": "train"}
    if kind == "image":
        mounts = [f"{folder}:{folder}:ro" for folder in (*host_folders(), hosts.folder / "python")]
        container = {"image": IMAGE, "mounts": mounts, "options": ["--ulimit=nofile=16384:16384"]}
    else:
        for docker in dockers:
            docker.start("train", folders=[hosts.folder, hosts.home])
    hosts.inventory(tmp_path, nodes=("h0", "h1"), container=container)
    orch = hosts.orch(tmp_path)
    done = orch("ssh-launch", "--skip", "nofile", "steps=2", timeout_s=280)
    assert "is DONE" in done.stderr
    assert "2/2 ranks ready" in done.stdout
    assert "container" not in orch("check", "--skip", "nofile").stdout
