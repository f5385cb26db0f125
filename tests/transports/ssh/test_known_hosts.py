from __future__ import annotations

import base64
import errno
import fcntl
import hmac
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from orchestrator.transports.ssh import known_hosts
from orchestrator.transports.ssh.known_hosts import host_name, known_keys, pin
from tests.grounds import components

KEY = base64.b64encode(b"\0\0\0\x0bssh-ed25519 key").decode()


def lines_of(file: Path, name: str) -> list[int]:
    return [key.line for key in known_keys([file], name)]


@pytest.mark.parametrize(
    ("hosts", "name", "known"),
    [
        ("n0", "n0", True),
        ("n0", "n00", False),
        ("n0,10.0.0.1", "10.0.0.1", True),
        ("N0", "n0", True),
        ("n0", "[n0]:2222", False),
        ("[n0]:2222", "[n0]:2222", True),
        ("*.cluster", "n0.cluster", True),
        ("10.0.0.?", "10.0.0.7", True),
        ("10.0.0.?", "10.0.0.77", False),
        ("*.cluster,!bad.cluster", "bad.cluster", False),
        ("[10.0.*]:2222", "[10.0.0.1]:2222", True),
        ("[10.0.*]:2222", "1", False),
    ],
)
def test_line_matches_the_names_and_patterns_that_it_lists(
    tmp_path: Path, hosts: str, name: str, *, known: bool
) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"# comment\n\n{hosts} ssh-ed25519 {KEY} a comment\n")
    assert lines_of(file, name) == ([3] if known else [])


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    return "|".join(
        ["|1", *(base64.b64encode(data).decode() for data in (salt, hmac.digest(salt, name.encode(), "sha1")))]
    )


def test_hashed_lines_are_compared_with_each_name_once_and_not_after_their_name_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 hashed lines and nodes took four seconds."""
    compared: list[bytes] = []
    hashed_line = known_hosts._HashedLine  # its comparisons are counted
    is_of = hashed_line.is_of

    def counted(line: known_hosts._HashedLine, name: bytes) -> bool:
        compared.append(name)
        return is_of(line, name)

    monkeypatch.setattr(hashed_line, "is_of", counted)
    names = [f"n{index}" for index in range(20)]
    file = tmp_path / "known_hosts"
    lines = [f"{marker}{_hashed(name)} ssh-ed25519 {KEY}\n" for marker in ("", "@revoked ") for name in names]
    file.write_text("".join(lines))
    for _ in range(3):
        assert [lines_of(file, name) for name in names] == [[index + 1, index + 21] for index in range(20)]
    assert lines_of(file, "other") == []
    assert len(compared) == sum(range(2, 42, 2))
    file.write_text(lines[3])
    assert (lines_of(file, "n3"), lines_of(file, "n4")) == ([1], [])


def test_hashed_names_are_found(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    subprocess.run(
        [components.program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    key = (tmp_path / "key.pub").read_text()
    file.write_text(f"[10.0.0.1]:2222 {key}other {key}")
    subprocess.run([components.program("ssh-keygen"), "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "10.0.0.1" not in file.read_text()
    assert lines_of(file, "[10.0.0.1]:2222") == [1]
    assert lines_of(file, "other") == [2]
    assert lines_of(file, "10.0.0.1") == []


def test_invalid_lines_are_skipped_and_authorities_and_revoked_keys_flagged(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        f"n0\nn0 ssh-rsa\nn0 ssh-rsa !!!\n@cert-authority n? ssh-rsa {KEY}\n@revoked n0 ssh-rsa {KEY}\n"
        f"|1|x n0 x\n|1|x ssh-rsa {KEY}\n|1|é|é ssh-rsa {KEY}\nn0 ssh-rsa é\n@unheard-of n0 ssh-rsa {KEY}\n"
    )
    found = known_keys([file, tmp_path / "none"], "n0")
    assert [(key.line, key.authority, key.revoked) for key in found] == [(4, True, False), (5, False, True)]


def test_change_of_the_file_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("")
    assert lines_of(file, "n0") == []
    file.write_text(f"n0 ssh-ed25519 {KEY}\n")
    assert lines_of(file, "n0") == [1]


def test_a_new_key_is_pinned_once_by_many_at_once(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    threads = [threading.Thread(target=pin, args=(file, f"n{i % 4}", "ssh-ed25519", b"key")) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == ["n0", "n1", "n2", "n3"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (key,) = known_keys([file], "n3")
    assert key.blob == b"key"


def test_key_is_added_after_a_line_without_newline_and_replaces_none(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"n0 ssh-ed25519 {KEY}")
    assert [key.line for key in pin(file, "n1", "ssh-ed25519", b"key")] == [2]
    assert [key.blob for key in pin(file, "n0", "ssh-ed25519", b"key")] == [base64.b64decode(KEY)]
    assert len(file.read_text().splitlines()) == 2


def test_key_is_added_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert [key.line for key in pin(tmp_path / "known_hosts", "n1", "ssh-ed25519", b"key")] == [1]


def test_the_port_is_part_of_the_name_unless_it_is_22() -> None:
    assert host_name("N0", 22) == "n0"
    assert host_name("::1", 2222) == "[::1]:2222"
