"""The file system type of a folder, from the kernel's mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.endpoint.shared_folder import file_system, find_marker, remove_marker, write_marker
from orchestrator.node.system.mounts import mount_of

# /proc/self/mountinfo of a login node (man 5 proc): a remote home, a blank in a name, one mount on top of another.
MOUNTS = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 22 0:26 / /home rw,relatime shared:9 - nfs4 filer:/home rw,vers=4.2
31 22 0:27 / /home2 rw,relatime - xfs /dev/sdb rw
32 22 0:28 / /data\040sets rw,relatime shared:7 master:2 - lustre mds@tcp:/data rw
33 22 0:29 / /scratch rw - xfs /dev/sdc rw
34 33 0:30 / /scratch rw - beegfs beegfs_nodev rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/u/.orch", "nfs4"),
        ("/home2/u", "xfs"),
        ("/homes", "ext4"),
        ("/data sets/x", "lustre"),
        ("/scratch/u", "beegfs"),
        ("/", "ext4"),
    ],
)
def test_type_is_that_of_the_innermost_and_last_mount_above_a_path(path: str, kind: str) -> None:
    assert mount_of(path, MOUNTS)[2] == kind


def test_folder_in_shared_memory_is_local_and_one_in_proc_is_not(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    assert file_system({"path": str(tmp_path / "link" / "not-there-yet")}, b"")[0] == {"type": "tmpfs", "local": True}
    assert file_system({"path": "/proc/self"}, b"")[0] == {"type": "proc", "local": False}


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
