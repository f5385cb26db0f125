"""Both sides of a transfer in one process: what arrives, what is continued after a cut, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.node import sending
from orchestrator.node.endpoint import incoming
from orchestrator.node.endpoint.incoming import Incoming
from orchestrator.node.protocol.operations import DIGEST, PUT_PIECES
from orchestrator.node.sending import Peer, Transfer, TransferError
from orchestrator.node.system.files import error_text
from orchestrator.usecases.put import list_files

SIZE = 300_000


class Cut(Exception):
    """The connection was lost."""


class Direct(Peer):
    """Calls the receiver; `change` may change a payload, or raise Cut, by the bytes that were sent so far."""

    def __init__(self, change: Callable[[int, bytes], bytes] = lambda _sent, payload: payload) -> None:
        self.receiver = Incoming()
        self.ops: list[Any] = []
        self.sent = 0
        self._change = change

    def begin(self, op: Any, request: Any, payload: bytes = b"") -> Any:
        """Call the handler with what JSON makes of the request."""
        self.ops.append(op)
        if op == PUT_PIECES:
            payload, self.sent = self._change(self.sent, payload), self.sent + len(payload)
        return getattr(self.receiver, op)(json.loads(json.dumps(request)), payload)[0]

    def end(self, ticket: Any) -> Any:
        """The reply."""
        return ticket


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The folder on the node."""
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a large file, many small ones, a script, a link and an empty folder."""
    folder = tmp_path / "model"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(os.urandom(SIZE))
    for index in range(1200):
        (folder / "deep" / f"{index}.txt").write_text("x" * (index % 7), "utf-8")
    (folder / "run.sh").write_text("#!/bin/sh\n", "utf-8")
    (folder / "run.sh").chmod(0o755)
    (folder / "weights.bin").chmod(0o640)
    (folder / "latest").symlink_to("weights.bin")
    return folder


def send(path: Path, target: Path, peer: Direct | None = None) -> Direct:
    peer = peer or Direct()
    files, _ = list_files([path])
    Transfer(peer, files.entries, files.sources).run(str(target))
    return peer


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder: contents, modes and times of files, targets of links."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = stat.S_IMODE(state.st_mode)
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (digest, stat.S_IMODE(state.st_mode), state.st_mtime_ns)
    return found


def test_folder_arrives_with_modes_times_and_links_and_is_not_sent_twice(model: Path, target: Path) -> None:
    peer = send(model, target)
    assert tree(target / "model") == tree(model)
    assert [path.name for path in target.iterdir()] == ["model"]
    assert peer.ops.count(PUT_PIECES) < 10, "small files share blocks"
    assert PUT_PIECES not in send(model, target).ops
    (model / "deep" / "7.txt").write_text("changed", "utf-8")
    assert send(model, target).sent == len("changed")
    assert tree(target / "model") == tree(model)


@pytest.mark.parametrize("cut", [0, 1, sending.LEAST_BYTES, 3 * sending.LEAST_BYTES, SIZE - 1])
def test_cut_file_is_never_complete_and_continues_where_it_was(
    tmp_path: Path, target: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "FIRST_BYTES", sending.LEAST_BYTES)
    monkeypatch.setattr(sending, "MOST_BYTES", sending.LEAST_BYTES)
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(SIZE))

    def end_at(sent: int, payload: bytes) -> bytes:
        if sent + len(payload) > cut:
            raise Cut
        return payload

    with pytest.raises(Cut):
        send(file, target, Direct(end_at))
    assert not (target / "weights.bin").exists()
    parts = list(target.glob(f".*{incoming.PART}"))
    if parts:  # an arriving block may itself be cut
        os.truncate(parts[0], max(0, parts[0].stat().st_size - 5))
    kept = parts[0].stat().st_size if parts else 0
    assert send(file, target).sent == SIZE - kept
    assert (target / "weights.bin").read_bytes() == file.read_bytes()
    assert [path.name for path in target.iterdir()] == ["weights.bin"]


def test_cut_folder_has_no_name_until_it_is_whole(model: Path, target: Path) -> None:
    def end(sent: int, payload: bytes) -> bytes:
        if sent:
            raise Cut
        return payload

    with pytest.raises(Cut):
        send(model, target, Direct(end))
    assert not (target / "model").exists()
    (left,) = target.iterdir()
    (left / "of-another-version.bin").write_text("x", "utf-8")
    (left / "old").mkdir()
    (left / "old" / "shard").write_text("x", "utf-8")
    send(model, target)
    assert tree(target / "model") == tree(model)
    assert [path.name for path in target.iterdir()] == ["model"]


def test_damaged_part_is_found_before_anything_is_sent_on_top(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(SIZE))
    entry = list_files([file])[0].entries[0]
    part = Path(incoming.part_path(str(target / "weights.bin"), entry))
    part.write_bytes(bytes(SIZE // 2))
    assert send(file, target).sent == SIZE
    assert (target / "weights.bin").read_bytes() == file.read_bytes()


def test_damage_on_the_way_is_sent_once_more_and_then_reported(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(SIZE))
    peer = send(file, target, Direct(lambda sent, payload: payload if sent else bytes(len(payload))))
    assert peer.sent == 2 * SIZE
    assert (target / "weights.bin").read_bytes() == file.read_bytes()
    (target / "weights.bin").unlink()
    with pytest.raises(TransferError, match="the content that arrived is not that which was sent"):
        send(file, target, Direct(lambda _sent, payload: bytes(len(payload))))
    assert list(target.iterdir()) == []


def test_equal_content_with_another_time_is_compared_not_sent(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(SIZE))
    (target / "weights.bin").write_bytes(file.read_bytes())
    assert send(file, target).ops.count(DIGEST) == 1
    assert (target / "weights.bin").stat().st_mtime_ns == file.stat().st_mtime_ns
    os.utime(file, (1, 1))
    (target / "weights.bin").write_bytes(bytes(SIZE))
    assert send(file, target).sent == SIZE
    assert (target / "weights.bin").read_bytes() == file.read_bytes()


def test_parts_of_earlier_versions_are_removed(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"old")
    entry = list_files([file])[0].entries[0]
    Path(incoming.part_path(str(target / "weights.bin"), entry)).write_bytes(b"ol")
    (target / ".weights.bin.someone-else").write_bytes(b"")
    file.write_bytes(b"newer")
    send(file, target)
    assert sorted(path.name for path in target.iterdir()) == [".weights.bin.someone-else", "weights.bin"]


def test_disk_space_is_required_before_anything_is_sent(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(3_000_000))
    monkeypatch.setattr(incoming, "free_bytes", lambda _folder: 1_000_000)
    with pytest.raises(TransferError, match=f"{target}: 3 MB are needed and 1 MB are free.*: 2 MB are missing"):
        send(file, target)


@pytest.mark.parametrize(
    ("there", "error"),
    [
        (lambda path: path.symlink_to("/etc"), "is a symbolic link, through which no files are sent"),
        (lambda path: path.write_text("x", "utf-8"), "is no folder"),
        (lambda path: (path / "run.sh").mkdir(parents=True), "is a folder here and a file there"),
    ],
    ids=["link", "file", "folder"],
)
def test_nothing_is_replaced_by_another_kind(
    model: Path, target: Path, there: Callable[[Path], object], error: str
) -> None:
    there(target / "model")
    with pytest.raises((IsADirectoryError, NotADirectoryError)) as raised:
        send(model, target)
    assert error in error_text(raised.value)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_receiver_refuses_paths_that_leave_its_folder(target: Path, path: str) -> None:
    entry = {"path": path, "kind": "file", "size": 0, "mode": 0o600, "mtime_ns": 0, "target": ""}
    with pytest.raises(ValueError, match="leads out of the folder"):
        Incoming().offer({"folder": str(target)}, sending.packed([entry]))  # type: ignore[list-item]


def test_file_that_changes_while_it_is_sent_is_an_error(tmp_path: Path, target: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"x" * SIZE)
    files, _ = list_files([file])
    for content in (b"x" * SIZE + b"more", b"x"):
        file.write_bytes(content)
        with pytest.raises(TransferError, match="has changed while it was sent"):
            Transfer(Direct(), files.entries, files.sources).run(str(target))
    assert not (target / "log").exists()


def test_first_node_on_a_file_system_owns_the_folder(target: Path) -> None:
    request = {"folder": str(target / "new"), "is_workdir": False, "token": "a1"}
    replies = [Incoming().claim_folder({**request, "node": node}, b"")[0] for node in ("n0", "n1")]  # type: ignore[typeddict-item]
    assert [reply["owner"] for reply in replies] == ["n0", "n0"]
    Incoming().release_folder({**request, "node": "n0"}, b"")  # type: ignore[typeddict-item]
    assert list((target / "new").iterdir()) == []


def test_long_names_have_parts(tmp_path: Path, target: Path) -> None:
    file = tmp_path / ("ä" * 127)
    file.write_bytes(b"x")
    send(file, target)
    assert (target / file.name).read_bytes() == b"x"


def test_paths_that_cannot_be_sent_are_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        list_files([tmp_path / "nowhere"])
    (tmp_path / "x" / "model").mkdir(parents=True)
    with pytest.raises(UsageError, match="two paths have the name model"):
        list_files([model, tmp_path / "x" / "model"])
    (model / "out").symlink_to("../elsewhere")
    (model / "absolute").symlink_to(model / "weights.bin")
    with pytest.raises(UsageError, match=r"(?m)links lead out of what is sent: .*absolute, .*out$"):
        list_files([model])


def test_special_files_are_left_out_and_a_link_as_the_path_is_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.mkfifo(tmp_path / "real" / "pipe")
    (tmp_path / "data").symlink_to("real")
    files, left_out = list_files([tmp_path / "data"])
    assert [entry["path"] for entry in files.entries] == ["data"]
    assert left_out == [str(tmp_path / "real" / "pipe")]
