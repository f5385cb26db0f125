"""`orch image push` into real docker daemons of hosts, and the errors of runtimes that cannot load."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from orchestrator.endpoint.images import NodeImages
from orchestrator.errors import NodeError, UsageError
from orchestrator.transports.base import Channel, ChannelClosed, Transport
from orchestrator.usecases.image import Archive
from tests.grounds.containers import Runtime, open_docker
from tests.grounds.hosts import Hosts

IMAGE = "demo-train:1"


@pytest.fixture
def dockers(hosts: Hosts) -> Iterator[list[Runtime]]:
    """A daemon on each of the first two hosts; that of the third does not run."""
    with contextlib.ExitStack() as stack:
        found: list[Runtime] = []
        for host in hosts.hosts:
            folder = Path(tempfile.mkdtemp(prefix="orch-docker-"))
            folder.chmod(0o755)
            if len(found) < 2:
                found.append(stack.enter_context(open_docker(folder, host.enter())))
            socket = found[-1].env["DOCKER_HOST"] if host is not hosts[2] else f"unix://{folder}/docker.sock"
            host.path(hosts.home / ".bashrc").write_text(f"export DOCKER_HOST={socket}\n", "utf-8")
        yield found


def layer(text: str) -> bytes:
    """A file system with one file."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        entry = tarfile.TarInfo("etc-version")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.mark.processes
@pytest.mark.containers
@pytest.mark.slow
def test_image_is_loaded_where_it_is_lacking(hosts: Hosts, dockers: list[Runtime], tmp_path: Path) -> None:
    first, second = dockers
    first("import", "-", IMAGE, stdin=layer("one"))
    second("import", "-", IMAGE, stdin=layer("another"))
    wanted = first("image", "inspect", "--format", "{{.Id}}", IMAGE)
    hosts.inventory(tmp_path, container={"name": "train"})
    orch = hosts.orch(tmp_path, DOCKER_HOST=first.env["DOCKER_HOST"])
    done = orch("image", "push", IMAGE, code=4)
    assert f"h0: {IMAGE} was there already" in done.stderr
    assert f"h[0-1]: {IMAGE}" in done.stderr
    assert "h2: the daemon of docker does not run" in done.stderr
    assert "next: on the node: sudo systemctl start docker" in done.stderr
    assert second("image", "inspect", "--format", "{{.Id}}", IMAGE) == wanted
    assert not list(hosts[1].path(hosts.home).rglob("*orch-image*"))
    [kept] = orch.home.glob("images/*.tar")
    assert "h[0-1]: demo-train:1 was there already" in orch("image", "push", "--nodes", "h[0-1]", IMAGE).stderr
    assert not kept.exists(), "all nodes have it"

    first("save", "--output", str(tmp_path / "image.tar"), IMAGE)
    second("rmi", IMAGE)
    assert f"h1: {IMAGE}" in orch("image", "push", "--nodes", "h1", "image.tar").stderr
    assert second("image", "inspect", "--format", "{{.Id}}", IMAGE) == wanted
    assert (tmp_path / "image.tar").exists()
    assert "neither a file nor an image of docker" in orch("image", "push", "no-such-image", code=2).stderr


def archive(path: Path, files: Mapping[str, object]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, value in files.items():
            data = json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_ids_of_an_archive_are_those_of_both_forms_of_storage(tmp_path: Path) -> None:
    config, manifest = "a" * 64, "b" * 64
    old = archive(tmp_path / "old.tar", {"manifest.json": [{"Config": f"{config}.json", "RepoTags": ["train:1"]}]})
    read = Archive.read(old)
    assert (read.image, read.ids, read.short_id) == ("train:1", frozenset({config}), config[:12])
    index = {"manifests": [{"digest": f"sha256:{manifest}"}]}
    new = {"manifest.json": [{"Config": f"blobs/sha256/{config}", "RepoTags": None}], "index.json": index}
    read = Archive.read(archive(tmp_path / "new.tar", new))
    assert (read.image, read.ids) == (config, frozenset({config, manifest}))


@pytest.mark.parametrize("files", [{}, {"manifest.json": []}, {"manifest.json": {}}, {"manifest.json": [{}]}])
def test_other_files_are_no_archives(tmp_path: Path, files: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="is no archive of an image"):
        Archive.read(archive(tmp_path / "x.tar", files))
    (tmp_path / "x.tar").write_bytes(b"no tar")
    with pytest.raises(UsageError, match="is no archive of an image"):
        Archive.read(tmp_path / "x.tar")


class Answer:
    """A transport whose programs end at once, with this status and these errors."""

    node = "n0"

    def __init__(self, status: int, errors: str) -> None:
        self._end = ChannelClosed(status, errors)

    def open(self, _argv: Sequence[str]) -> Channel:
        return cast("Channel", self)

    def read_some(self, *, timeout_s: float) -> bytes:
        assert timeout_s > 0
        raise self._end

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("client", "status", "errors", "reason", "hint"),
    [
        (["docker"], 1, "Error processing tar file(exit status 1): write /model: no space left on device", "the disk on which docker keeps its images is full", "docker system df"),
        (["docker"], 1, "permission denied while trying to connect to the Docker daemon socket", "this user may not use the Docker daemon", "usermod -aG docker"),
        (["sudo", "-n", "docker"], 1, "sudo: a password is required", "sudo starts no docker without a password", "NOPASSWD"),
        (["podman"], 127, "sh: 1: podman: not found", "no podman", "runtime:"),
        (["docker"], 1, "unexpected EOF", "docker load: unexpected EOF", "docker load --input /x.tar"),
    ],
)  # fmt: skip
def test_runtime_that_cannot_load_is_named(client: list[str], status: int, errors: str, reason: str, hint: str) -> None:
    images = NodeImages(cast("Transport", Answer(status, errors)), client)
    with pytest.raises(NodeError) as raised:
        images.load("/x.tar")
    assert reason in raised.value.reason
    assert hint in raised.value.hint
