"""The channel to this machine, and an endpoint with a missing, old or unusual Python."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.endpoint import connection
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.connection import frame
from orchestrator.endpoint.program import FLAGS, MARKER, program
from orchestrator.errors import NodeError, Unreachable
from orchestrator.node.system.machine import live_fields
from orchestrator.transports.base import ChannelClosed, ChannelReader
from orchestrator.transports.local import LocalChannel, LocalTransport
from tests.until import until

pytestmark = pytest.mark.processes


def channel(script: str) -> LocalChannel:
    return LocalTransport("n0").open(["sh", "-c", script])


def python(path: Path, script: str) -> str:
    """A program that stands in for a node's Python."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def test_megabytes_go_both_ways_at_once_with_a_noisy_stderr() -> None:
    opened = channel("head -c 3000000 /dev/zero >&2; exec cat")
    content = bytes(range(256)) * 200
    opened.write(content, timeout_s=10)
    assert ChannelReader(opened).read_exactly(len(content), timeout_s=10) == content
    opened.close()


def test_end_of_a_program_has_its_exit_status_and_the_tail_of_stderr() -> None:
    opened = channel("head -c 200000 /dev/zero >&2; echo last words >&2; exit 3")
    with pytest.raises(ChannelClosed) as caught:
        opened.read_some(timeout_s=10)
    assert caught.value.exit_status == 3
    assert caught.value.stderr.endswith("last words\n")
    assert len(caught.value.stderr) <= 65536
    opened.close()


def test_silence_times_out() -> None:
    opened = channel("exec cat")
    with pytest.raises(TimeoutError):
        opened.read_some(timeout_s=0.05)
    opened.close()


def test_a_program_that_reads_nothing_times_out_and_is_killed_on_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.transports.local.EXIT_WAIT_S", 0.1)
    opened = channel("echo $$; exec sleep 1000")
    pid = int(opened.read_some(timeout_s=10))
    with pytest.raises(TimeoutError):
        opened.write(b"x" * 10_000_000, timeout_s=0.05)
    opened.close()
    assert live_fields(pid) is None


def test_a_channel_that_another_thread_has_closed_is_not_an_error_of_orch() -> None:
    opened = channel("exec cat")
    opened.close()
    with pytest.raises(ChannelClosed, match="the channel was closed"):
        opened.write(b"x", timeout_s=10)
    with pytest.raises(ChannelClosed, match="the channel was closed"):
        opened.read_some(timeout_s=10)


def test_missing_program_has_a_shells_exit_status() -> None:
    with pytest.raises(ChannelClosed) as caught:
        LocalTransport("n0").open(["/nope/python3"])
    assert caught.value.exit_status == 127


def test_the_marker_is_found_wherever_the_pieces_break() -> None:
    opened = channel("printf 'junk MAR'; sleep 0.05; printf 'KER 3.1'; sleep 0.05; printf '1\\nrest'")
    reader = ChannelReader(opened)
    assert reader.skip_to(b"MARKER ", limit=100, timeout_s=10) == b"3.11"
    assert reader.read_exactly(4, timeout_s=10) == b"rest"
    opened.close()


@pytest.mark.parametrize("path", ["/nope/python3", "~/nope/python3", "nope-python3"])
def test_missing_python_is_reported(path: str) -> None:
    with pytest.raises(NodeError, match=f"no Python: {path} not found") as caught:
        Endpoint.connect(LocalTransport("n3"), path)
    assert caught.value.node == "n3"
    assert "python:" in caught.value.hint


def test_file_that_cannot_be_executed_is_reported() -> None:
    with pytest.raises(NodeError, match="no Python: /etc/passwd cannot be run"):
        Endpoint.connect(LocalTransport("n0"), "/etc/passwd")


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    fake = f"exec {sys.executable} -c 'import sys; sys.version_info = (3, 6, 8); exec(sys.argv[1])' \"$5\""
    with pytest.raises(NodeError, match=r"Python 3.6.8 is too old"):
        Endpoint.connect(LocalTransport("n0"), python(tmp_path / "python", fake))


def test_output_of_the_login_shell_is_skipped(tmp_path: Path) -> None:
    noise = f"echo Welcome; printf 'no newline'; echo oops >&2; exec {sys.executable} \"$@\""
    with Endpoint.connect(LocalTransport("n0"), python(tmp_path / "python", noise)) as endpoint:
        assert endpoint.facts.python


def test_login_shell_that_never_stops_printing_is_an_error(tmp_path: Path) -> None:
    endless = "exec 3<&0; cat <&3 >/dev/null & exec yes"  # it reads the program, so no write times out
    with pytest.raises(NodeError, match="the login shell printed 'y"):
        Endpoint.connect(LocalTransport("n0"), python(tmp_path / "python", endless))


@pytest.mark.parametrize("shell", ["exec yes", "echo yes; exec sleep 1000"])
def test_a_login_shell_that_reads_nothing_is_quoted_though_the_write_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    monkeypatch.setattr("orchestrator.transports.local.EXIT_WAIT_S", 0.1)
    monkeypatch.setattr(connection, "program", lambda: bytes(1 << 20))  # more than any pipe holds
    with pytest.raises(NodeError, match="the login shell printed 'y"):
        Endpoint.connect(LocalTransport("n0"), python(tmp_path / "python", shell))


def test_output_of_a_program_that_is_not_python_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="exit status 1: This account is currently not available"):
        Endpoint.connect(
            LocalTransport("n0"), python(tmp_path / "python", "echo This account is currently not available; exit 1")
        )


def test_a_home_folder_with_modules_of_standard_names_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        assert endpoint.facts.home == str(tmp_path)


def test_an_error_in_the_first_reply_is_reported(tmp_path: Path) -> None:
    reply = tmp_path / "reply"
    error = {
        "number": 0,
        "ok": False,
        "held_s": 0.0,
        "monotonic_s": 0.0,
        "bytes": 0,
        "kind": "PermissionError",
        "message": "/dev: Permission denied",
    }
    reply.write_bytes(f"{MARKER} 3.11.2\n".encode() + frame(error))
    with pytest.raises(NodeError, match="/dev: Permission denied"):
        Endpoint.connect(LocalTransport("n0"), python(tmp_path / "python", f"cat {reply}; exec cat >/dev/null"))


@pytest.mark.parametrize("second", [{"number": 0, "bytes": 0}, {"number": 7, "bytes": 0}, {"bytes": 0}, {"number": 1}])
def test_reply_that_answers_no_request_is_an_error(tmp_path: Path, second: dict[str, object]) -> None:
    names = dict.fromkeys(("python", "hostname", "host_id", "home", "user"), "")
    facts = {**names, "cards": {}, "pid": 1, "clock_ahead_s": 0.0}
    first = {"number": 0, "ok": True, "held_s": 0.0, "monotonic_s": 0.0, "bytes": 0, "facts": facts}
    replies = tmp_path / "replies"
    replies.write_bytes(f"{MARKER} 3.11.2\n".encode() + frame(first) + frame({"ok": True, "held_s": 0.0, **second}))
    with (
        Endpoint.connect(
            LocalTransport("n0"), python(tmp_path / "python", f"cat {replies}; exec cat >/dev/null")
        ) as node,
        pytest.raises(Unreachable, match="a frame header that is not that of a reply"),
    ):
        node.observe("/tmp", None)


def test_stdout_of_an_endpoint_is_redirected_to_stderr() -> None:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        streams = [Path(f"/proc/{endpoint.facts.pid}/fd/{number}").readlink() for number in (1, 2)]
    assert streams[0] == streams[1]


def test_an_endpoint_ends_with_its_connection() -> None:
    endpoint = Endpoint.connect(LocalTransport("n0"), sys.executable)
    endpoint.close()
    until(lambda: live_fields(endpoint.facts.pid) is None, awaited="the endpoint to end")
    with pytest.raises(Unreachable, match="the connection is closed"):
        endpoint.observe("/tmp", None)


def test_an_endpoint_counts_as_closed_while_its_process_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.transports.local.EXIT_WAIT_S", 60.0)
    endpoint = Endpoint.connect(LocalTransport("n0"), sys.executable)
    os.kill(endpoint.facts.pid, signal.SIGSTOP)
    closing = threading.Thread(target=endpoint.close)
    closing.start()
    try:
        until(lambda: not endpoint.connected, awaited="the endpoint to refuse requests")
        assert closing.is_alive()
    finally:
        os.kill(endpoint.facts.pid, signal.SIGCONT)
        closing.join()


def test_killed_endpoint_is_unreachable_for_all_later_requests() -> None:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        os.kill(endpoint.facts.pid, signal.SIGKILL)
        with pytest.raises(Unreachable, match="the endpoint ended, exit status -9"):
            endpoint.observe("/tmp", None)
        with pytest.raises(Unreachable, match="the connection is closed"):
            endpoint.observe("/tmp", None)


def test_a_node_that_stops_answering_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        monkeypatch.setattr("orchestrator.endpoint.client.ANSWER_S", 0.25)
        monkeypatch.setattr("orchestrator.transports.local.EXIT_WAIT_S", 0.1)
        os.kill(endpoint.facts.pid, signal.SIGSTOP)
        with pytest.raises(Unreachable, match=r"no answer for 0\.5 s"):
            endpoint.follow("/nope", None, {}, wait_s=0.25)


def test_invalid_request_gets_an_error_reply_and_the_next_one_is_served() -> None:
    opened = LocalTransport("n0").open([sys.executable, *FLAGS])
    requests: list[dict[str, object]] = [
        {"op": "rm", "bytes": 0},
        {"bytes": 0},
        {"op": "read", "bytes": 0},
        {"op": "observe", "bytes": 0, "attempt_dir": "/nope", "nodes": None},
    ]
    numbered = [{**request, "number": number} for number, request in enumerate(requests)]
    opened.write(program() + b"".join(map(frame, numbered)), timeout_s=10)
    reader = ChannelReader(opened)
    reader.skip_to(b"orch-endpoint", limit=1000, timeout_s=10)
    answers = []
    for _ in requests:
        size = int.from_bytes(reader.read_exactly(4, timeout_s=10), "big")
        answers.append(reader.read_exactly(size, timeout_s=10).decode())
    assert "no such request: 'rm'" in answers[0]
    assert ["KeyError" in answer for answer in answers] == [False, False, True, False]
    assert '"nodes": [], "number": 3, "ok": true' in answers[3]
    opened.close()
