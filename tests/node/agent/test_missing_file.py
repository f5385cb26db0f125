"""The file that a rank did not find."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.agent.missing_file import missing_file_of

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
