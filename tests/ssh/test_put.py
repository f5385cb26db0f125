"""`orch put` over real sshd: once per file system, from node to node if they may log in, and further where a cut transfer was."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.inventory.model import Node
from orchestrator.progress import Progress
from orchestrator.usecases import put as action
from orchestrator.usecases.put import Put, put
from tests.grounds.cli import Orch
from tests.grounds.hosts import Host, Hosts
from tests.grounds.sshd import Farm

WEIGHTS_BYTES = 3_000_000


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(WEIGHTS_BYTES))
    return file


class Watched:
    """A call of the use case: its progress, its remarks, and the nodes that were sent to from here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.progress: list[Progress] = []
        self.on_progress: Callable[[Progress], None] = self.progress.append
        self.remarks: list[str] = []
        self.from_here: list[str] = []
        send = action.Sender._from_here

        def from_here(sender: action.Sender, node: Node, *rest: object) -> None:
            self.from_here.append(node.name)
            send(sender, node, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(action.Sender, "_from_here", from_here)

    def __call__(self, inventory: Path, path: Path, folder: Path | None = None) -> list[Put]:
        done, failure = put(
            str(inventory),
            None,
            [path],
            None if folder is None else str(folder),
            on_progress=self.on_progress,
            on_remark=self.remarks.append,
        )
        assert failure is None
        return done


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_nodes_that_cannot_log_in_to_each_other_get_all_from_here(farm: Farm, tmp_path: Path, weights: Path) -> None:
    farm.inventory(tmp_path, nodes=3)
    orch = Orch(tmp_path)
    done = orch("put", "weights.bin")
    folders = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    assert sorted(line[:2] for line in done.stdout.splitlines()) == ["n0", "n1", "n2"]
    assert "sending to each node from here: n0 cannot log in to n1: " in done.stderr
    assert {(Path(folder) / "weights.bin").read_bytes() for folder in folders} == {weights.read_bytes()}
    assert {path.name for folder in folders for path in Path(folder).iterdir()} == {"weights.bin"}


def test_shared_folder_gets_it_once(farm: Farm, tmp_path: Path, weights: Path, watched: Watched) -> None:
    [found] = watched(farm.inventory(tmp_path, nodes=3, shared=True), weights)
    assert found.nodes == "n[0-2]"
    assert len(watched.from_here) == 1
    assert [step.total for step in watched.progress if step.work == "sending"][-1] == 1
    assert (Path(found.folder) / "weights.bin").read_bytes() == weights.read_bytes()


@pytest.fixture
def trusting(farm: Farm) -> None:
    """Nodes whose account has a key and the host keys, so that each may log in to each."""
    if not farm.is_own_account:
        pytest.skip("ssh reads the keys in the home of the account that runs the tests")
    home = farm.home / ".ssh"
    home.mkdir()
    shutil.copyfile(farm.client_key, home / "id_ed25519")
    shutil.copyfile(farm.known_hosts, home / "known_hosts")
    for path in (home, *home.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.chown(path, farm.user)


@pytest.mark.usefixtures("trusting")
def test_nodes_send_it_to_each_other(farm: Farm, tmp_path: Path, weights: Path, watched: Watched) -> None:
    found = watched(farm.inventory(tmp_path, nodes=4), weights)
    assert watched.from_here == ["n0"]
    assert watched.remarks == []
    assert len(found) == 4
    for each in found:
        assert (Path(each.folder) / "weights.bin").read_bytes() == weights.read_bytes()
        assert [path.name for path in Path(each.folder).iterdir()] == ["weights.bin"]


def test_lost_connection_continues_where_it_was(farm: Farm, tmp_path: Path, weights: Path, watched: Watched) -> None:
    inventory = farm.inventory(tmp_path, nodes=1)
    weights.write_bytes(os.urandom(40_000_000))
    before: list[float] = []
    after: list[float] = []

    def cut_once(progress: Progress) -> None:
        if progress.work != "sending":
            return
        (after if before and before[-1] > 0.5 else before).append(progress.share)
        if before[-1] > 0.5 and not after:
            farm.drop_connections()

    watched.on_progress = cut_once
    [found] = watched(inventory, weights)
    assert (Path(found.folder) / "weights.bin").read_bytes() == weights.read_bytes()
    assert after[-1] == 1.0
    assert min(after) > 0.4, "all was sent once more"


@contextlib.contextmanager
def small_disk(hosts: Hosts, host: Host, folder: Path) -> Iterator[None]:
    """A folder of a host with a file system of 2 MB."""
    host.run("mkdir", "-p", str(folder))
    host.do("mount", "-t", "tmpfs", "-o", f"size=2m,uid={hosts.uid},mode=700", "tmpfs", str(folder))
    try:
        yield
    finally:
        host.do("umount", "--lazy", str(folder))


@pytest.mark.extended
def test_node_without_space_is_named_and_the_rest_get_it(hosts: Hosts, tmp_path: Path, weights: Path) -> None:
    hosts.inventory(tmp_path)
    orch = hosts.orch(tmp_path)
    folder = hosts.home / "data"
    with small_disk(hosts, hosts[1], folder):
        done = orch("put", "--to", str(folder), "weights.bin", code=4)
    assert done.stdout == f"h[0,2]: {folder}\n"
    assert re.search(
        rf"h1: {folder}: 3 MB are needed and \d MB are free on its file system: 1 MB are missing", done.stderr
    )
    assert "next: free space there, or name a folder on another disk: --to DIR" in done.stderr
    for host in (hosts[0], hosts[2]):
        assert host.path(folder / "weights.bin").read_bytes() == weights.read_bytes()
    refused = orch("put", "--to", "/etc/orch", "weights.bin", code=4).stderr
    assert "h[0-2]: /etc/orch: Permission denied (3 of 3)" in refused
    assert "next: name a folder in which you may write: --to DIR" in refused
    assert "--to data: not an absolute path" in orch("put", "--to", "data", "weights.bin", code=2).stderr
    assert "nowhere: no such file or folder" in orch("put", "nowhere", code=2).stderr
    hosts[2].kill()
    lost = orch("put", "--to", str(folder), "weights.bin", code=4)
    assert lost.stdout == f"h[0-1]: {folder}\n"
    assert "h2" in lost.stderr
