"""The cause of a rank's failure, from what is on the node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.node.agent.failure import failure_of, missing_file_of
from tests.grounds import components

if TYPE_CHECKING:
    from pathlib import Path

SHOW = """
import sys
from orchestrator.node.agent.failure import failure_of
print(failure_of(sys.argv[1], 0, None, [0]))
"""


def _on_small_disk(folder: Path, fill: str) -> str:
    argv = [components.program("unshare"), "--mount", "sh", "-ec"]
    argv += [f'mount -t tmpfs -o size=1m,nr_inodes=9 tmpfs "$1"; cd "$1"; {fill}; cd /; exec "$0" -c "$2" "$1"']
    done = subprocess.run([*argv, sys.executable, str(folder), SHOW], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_full_disk_is_named_with_its_size(tmp_path: Path) -> None:
    error = 'mkdir error; echo "{\\"message\\": \\"no progress\\"}" >error/0.json'
    fill = "head -c 2m /dev/zero >x 2>/dev/null || true"
    assert _on_small_disk(tmp_path, "true") == "(None, None)"
    assert _on_small_disk(tmp_path, f"{error}; {fill}") == (
        f"('no progress; the disk of {tmp_path} is full (0 of 0.00105 GB free)', None)"
    )
    inodes = "for i in 1 2 3 4 5 6 7 8 9; do touch $i || break; done 2>/dev/null"
    assert _on_small_disk(tmp_path, inodes) == f"('the disk of {tmp_path} has no inodes left', None)"


def test_failure_without_a_message_on_a_disk_with_space_has_none(tmp_path: Path) -> None:
    assert failure_of(str(tmp_path), 0, "SIGBUS", [0]) == (None, None)


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.bin'"
TRACEBACK = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n{MISSING}\n'


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (TRACEBACK, True),
        (TRACEBACK.replace("File", "[rank3]: File") + "[rank3]: W1122 a warning of torch at the exit\n", True),
        (f"{TRACEBACK}\nDuring handling of the above exception, another exception occurred:\nValueError: x\n", False),
        (f"{TRACEBACK}KeyError\n", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: b'data/x.bin'\n", False),
        ("FileNotFoundError: Couldn't find file 'data/x.bin'\n", False),
        ("cat: data/x.bin: No such file or directory\n", False),
    ],
)
def test_file_is_missing_if_the_last_exception_is_about_it(tmp_path: Path, text: str, is_found: bool) -> None:
    (tmp_path / "rank-3.err").write_text(text)
    found = (MISSING, str(tmp_path / "code" / "data" / "x.bin")) if is_found else (None, None)
    assert missing_file_of(str(tmp_path / "rank-3.err"), None, str(tmp_path / "code")) == found


def test_error_file_decides_and_a_file_that_exists_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "rank-3.err").write_text(TRACEBACK)
    assert missing_file_of(str(tmp_path / "rank-3.err"), "ValueError: x", str(tmp_path)) == (None, None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").touch()
    assert missing_file_of(str(tmp_path / "rank-3.err"), MISSING, str(tmp_path)) == (MISSING, None)
