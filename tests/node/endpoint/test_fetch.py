"""The files of a run that `orch cp` lists and reads on a node."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from orchestrator.endpoint.files import FoundFiles
from orchestrator.node.endpoint.fetch import add, list_files, read_file, tree
from orchestrator.node.protocol.output import EntryBody, FoundBody, ListFilesRequest


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt with two nodes, of which n0 has a code folder; another file is outside of the run."""
    attempt = tmp_path / "run" / "attempt-1"
    for folder in ("n0/code/sub/res/deep", "n1"):
        (attempt / folder).mkdir(parents=True)
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "secret").write_text("of somebody")
    for node in ("n0", "n1"):
        (attempt / node / "rank.out").write_text(node)
    return attempt


def _found(attempt: Path, path: str, cwd: str = "sub") -> list[FoundBody]:
    request: ListFilesRequest = {"attempt_dir": str(attempt), "nodes": None, "path": path, "cwd": cwd}
    return list_files(request, b"")[0]["found"]


def test_path_is_searched_in_the_working_folder_then_the_nodes_then_the_runs(attempt: Path) -> None:
    (attempt / "n0" / "code" / "sub" / "rank.out").write_text("of the program")
    run = attempt.parent
    assert [body["root"] for body in _found(attempt, "rank.out")] == [
        str(attempt / "n0" / "code" / "sub" / "rank.out"),
        str(attempt / "n1" / "rank.out"),
    ]
    assert [(body["node"], body["root"]) for body in _found(attempt, "checkpoints")] == [
        ("n0", str(run / "checkpoints"))  # both nodes share it
    ]
    (run / "code" / "sub").mkdir(parents=True)
    (run / "code" / "sub" / "rank.out").touch()
    assert [body["root"] for body in _found(attempt, "rank.out")] == [str(run / "code" / "sub" / "rank.out")]
    assert _found(attempt, "nothing") == []


def test_folder_is_listed_with_its_links_and_links_that_lead_out_are_named(attempt: Path) -> None:
    res = attempt / "n0" / "code" / "sub" / "res"
    (res / "deep" / "a b\n").write_bytes(b"123")
    (res / "deep" / "a b\n").chmod(0o755)
    (res / "inside").symlink_to("deep")
    (res / "outside").symlink_to("../../../../../../secret")
    (res / "chained").symlink_to("outside")
    (res / "absolute").symlink_to(res / "deep")
    (res / "deep" / "last").symlink_to("../deep/./a b\n")
    (res / "above").symlink_to("../res/deep")  # below by its path on the node, but not in a copy of another name
    (res / "itself").symlink_to(".")
    os.mkfifo(res / "pipe")
    [body] = _found(attempt, "res")
    assert {(entry["path"], entry["kind"], entry["size"]) for entry in body["entries"]} == {
        ("", "folder", 0),
        ("deep", "folder", 0),
        ("deep/a b\n", "file", 3),
        ("deep/last", "link", 0),
        ("inside", "link", 0),
    }
    assert [entry["mode"] for entry in body["entries"] if entry["kind"] == "file"] == [0o700]
    assert sorted(body["left_out"]) == ["above", "absolute", "chained", "itself", "outside", "pipe"]
    assert len(FoundFiles.of(body).entries) == len(body["entries"])


def test_folder_that_cannot_be_read_is_an_error(attempt: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # also root cannot open a folder then
    try:
        with pytest.raises(OSError, match="Too many open files"):
            tree("n0", str(attempt))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_file_that_is_removed_while_its_folder_is_listed_is_skipped(attempt: Path) -> None:
    body = tree("n0", str(attempt / "n1"))
    before = len(body["entries"])
    add(body, "removed.tmp")
    assert (len(body["entries"]), body["left_out"]) == (before, [])


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "res/../../x", "out", "out/secret"])
def test_path_that_leads_out_of_the_run_is_refused(attempt: Path, path: str) -> None:
    (attempt / "n0" / "out").symlink_to(attempt.parent.parent)
    with pytest.raises(ValueError, match="leads out of"):
        _found(attempt, path)
    with pytest.raises(ValueError, match="leads out of"):
        read_file(
            {
                "attempt_dir": str(attempt),
                "nodes": None,
                "root": str(attempt / "n0"),
                "path": path,
                "offset": 0,
                "size": 9,
            },
            b"",
        )


@pytest.mark.parametrize(("path", "target"), [("../x", ""), ("/x", ""), ("a", "../b"), ("a", "/b"), ("d/a", "../../b")])
def test_reply_that_would_write_outside_of_the_target_is_refused(path: str, target: str) -> None:
    kind = "link" if target else "file"
    entry: EntryBody = {"path": path, "kind": kind, "size": 1, "mode": 0o600, "target": target}
    with pytest.raises(ValueError, match="leads out of the folder"):
        FoundFiles.of({"node": "n0", "root": "/r", "identity": "1", "entries": [entry], "left_out": []})


@pytest.mark.parametrize("node", ["", "..", "/tmp", "n0/../../x"])
def test_reply_with_a_node_that_is_no_name_is_refused(node: str) -> None:
    with pytest.raises(ValueError, match=r"leads out of the folder|is not a node name"):
        FoundFiles.of({"node": node, "root": "/r", "identity": "1", "entries": [], "left_out": []})


@pytest.mark.parametrize(
    "links", [{"": "a", "x": "b"}, {"d/e/q": "../../a", "d/e/q/l": "../../../x"}, {"q": "a", "q/d/f": "f"}]
)
def test_reply_with_an_entry_below_a_link_is_refused(links: dict[str, str]) -> None:
    entries: list[EntryBody] = [
        {"path": path, "kind": "link", "size": 0, "mode": 0o700, "target": target} for path, target in links.items()
    ]
    with pytest.raises(ValueError, match="is below a link"):
        FoundFiles.of({"node": "n0", "root": "/r", "identity": "1", "entries": entries, "left_out": []})


def test_link_of_a_reply_is_copied_without_the_names_of_other_links() -> None:
    """`e/q/..` is the folder of q by its text, and another one if q is a link."""
    entries: list[EntryBody] = [
        {"path": path, "kind": "link", "size": 0, "mode": 0o700, "target": target}
        for path, target in {"d/e/q": "../../a", "d/m": "e/q/../../y"}.items()
    ]
    found = FoundFiles.of({"node": "n0", "root": "/r", "identity": "1", "entries": entries, "left_out": []})
    assert [entry.target for entry in found.entries] == ["../../a", "y"]
