"""The file by which nodes find out whether they share a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.endpoint.marker import find_marker, remove_marker, write_marker


def test_marker_is_private_and_in_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    path = Path(write_marker({"folder": str(tmp_path / "not" / "there"), "token": "abc"}, b"")[0]["path"])
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_marker({"path": str(path)}, b"")[0] == {"token": "abc"}
    remove_marker({"path": str(path)}, b"")
    with pytest.raises(FileNotFoundError):
        find_marker({"path": str(path)}, b"")


def test_only_markers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remove_marker({"path": str(tmp_path / "file")}, b"")
    assert (tmp_path / "file").exists()
