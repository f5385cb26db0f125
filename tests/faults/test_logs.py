"""Logs lose no line when connections are cut, readers are stuck and ranks write any bytes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.node.isolation import SUPERVISED
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

COUNT = 'i=0; while [ "$i" -lt 3000 ]; do i=$((i+1)); echo "line $i of $RANK"; [ $((i%10)) != 0 ] || sleep 0.03; done'
BOUND_KIB = 200 << 10


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of two nodes with one rank each."""
    farm.inventory(tmp_path, nodes=2)
    return Orch(tmp_path)


def _lines_of(text: str, node: str, rank: int) -> list[str]:
    return re.findall(rf"^\[{node}:{rank}\] (.*)$", text, re.MULTILINE)


def _written(orch: Orch, run: str, node: str, rank: int) -> list[str]:
    return (orch.node_folder(run, node) / f"rank-{rank}.out").read_text("utf-8").splitlines()


def test_cut_connections_lose_no_line_and_repeat_none(orch: Orch, farm: Farm) -> None:
    with orch.start("ssh-launch", "--", "sh", "-c", COUNT) as watcher:
        text, stderr = _follow_through_cuts(watcher, farm)
    assert watcher.returncode == 0, stderr
    assert "trying again" in stderr
    assert "answers again" in stderr
    run = orch.records()[-1]["id"]
    for rank, node in enumerate(("n0", "n1")):
        assert (
            _lines_of(text, node, rank)
            == _written(orch, run, node, rank)
            == [f"line {number} of {rank}" for number in range(1, 3001)]
        )


def _follow_through_cuts(watcher: subprocess.Popen[str], farm: Farm) -> tuple[str, str]:
    """Cut every connection three times; returns the standard output and error."""
    assert watcher.stdout is not None
    lines: list[str] = []
    for awaited_line in ("line 300 of 0", "line 900 of 0", "line 1500 of 0"):
        while awaited_line not in (line := watcher.stdout.readline()):
            assert line, "the log ended"
            lines.append(line)
        lines.append(line)
        farm.drop_connections()
    assert watcher.stderr is not None
    text = "".join(lines) + watcher.stdout.read()  # communicate() would leave out what readline() has buffered
    return text, watcher.stderr.read()


def test_stuck_reader_blocks_no_rank_and_loses_nothing(orch: Orch) -> None:
    """As a terminal that is stopped with Ctrl-S: orch's pipe is full, the ranks continue to write."""
    script = 'until [ -e "$ORCH_RUN_DIR/go" ]; do sleep 0.05; done; '
    script += 'i=0; while [ "$i" -lt 20000 ]; do i=$((i+1)); echo "line $i of $RANK padded to be long enough"; done'
    with orch.start("ssh-launch", "--", "sh", "-c", script) as watcher:
        until(lambda: len(_heartbeat_times(orch)) == 2, awaited="the supervisor's heartbeats")
        os.kill(watcher.pid, signal.SIGSTOP)
        for _ in range(2):
            before = max(_heartbeat_times(orch))
            until(lambda: min(_heartbeat_times(orch)) > before, awaited="another heartbeat to each node")
        [run] = [entry["id"] for entry in orch.records()]
        for folder in orch.node_folders(run):
            (folder.parents[1] / "go").touch()
        until(lambda: orch.records() and orch.records()[-1]["state"] == "DONE", awaited="the ranks to end")
        os.kill(watcher.pid, signal.SIGCONT)
        text, _ = watcher.communicate(timeout=60)
    for rank, node in enumerate(("n0", "n1")):
        assert len(_lines_of(text, node, rank)) == 20000


def _heartbeat_times(orch: Orch) -> list[float]:
    """When the only run's supervisor sent the last heartbeat to each node that has got one."""
    runs = [lock.parent.name for lock in (orch.home / "runs").glob("*/supervisor.lock")]
    files = [folder / SUPERVISED for run in runs for folder in orch.node_folders(run)]
    return [file.stat().st_mtime for file in files if file.exists()]


@pytest.mark.extended
def test_flood_of_one_node_does_not_starve_the_other(orch: Orch, farm: Farm) -> None:
    """
    Counts the lines of the flood that are printed after the other node has written a line and before that line is printed.

    The queue between reading and printing holds 16 MiB. The rest is printed while the other node waits for a processor.
    """
    written = farm.home / orch.cwd.name
    script = f'if [ "$RANK" = 0 ]; then exec yes flood; fi; sleep 1; echo drop; touch {written}; exec sleep 1000'
    printed = 0
    is_written = False
    with orch.start("ssh-launch", "--", "sh", "-c", script) as watcher:
        assert watcher.stdout is not None
        for number in itertools.count():
            line = watcher.stdout.readline()
            assert line, "the log ended"
            if "drop" in line:
                break
            if number % 1000 == 0 and not is_written:
                is_written = written.exists()
            printed += is_written
        until(written.exists, awaited="the file of the other node")
        orch("stop")
        os.killpg(watcher.pid, signal.SIGKILL)
        watcher.communicate()
    assert printed * len("flood\n") < 256 << 20


def test_log_that_became_shorter_is_a_gap_and_continues_from_its_new_end(orch: Orch) -> None:
    script = 'echo "written before"; until [ -e "$ORCH_RUN_DIR/go" ]; do sleep 0.1; done; echo "written after"'
    with orch.start("ssh-launch", "--nodes", "n0", "--", "sh", "-c", script) as watcher:
        assert watcher.stdout is not None
        while "written before" not in (line := watcher.stdout.readline()):
            assert line, "the log ended"
        [record] = orch.records()
        folder = orch.node_folder(record["id"], "n0")
        os.truncate(folder / "rank-0.out", len("writ"))
        while "shorter" not in (line := watcher.stdout.readline()):
            assert line, "the log ended"
        assert line == "[n0:-] rank-0.out became 11 bytes shorter; the lost bytes are not in this log\n"
        (folder.parents[1] / "go").touch()
        rest, stderr = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, stderr
    assert _lines_of(rest, "n0", 0) == ["written after"]


@pytest.mark.extended
def test_flood_leaves_memory_bounded_with_and_without_a_reader(orch: Orch) -> None:
    """80 MB of lines, then 3 MB without a newline: for a stuck follower, the supervisor and a later reader."""
    flood = "yes flood | head -c 80000000; head -c 3000000 /dev/zero"
    script = f'test "$RANK" = 0 || exit 0; {flood}; until [ -e "$ORCH_RUN_DIR/go" ]; do sleep 0.1; done'
    with orch.start("ssh-launch", "--", "sh", "-c", script) as watcher:
        [run] = until(lambda: [record["id"] for record in orch.records()], awaited="the run")
        supervisor = until(lambda: orch.supervisor(run), awaited="the supervisor")
        file = until(lambda: list(orch.node_folder(run, "n0").glob("rank-0.out")), awaited="the log")[0]
        until(lambda: file.stat().st_size == 83_000_000, awaited="the whole flood")
        assert _peak_kib(watcher.pid) < BOUND_KIB
        assert _peak_kib(supervisor) < BOUND_KIB
        (file.parents[2] / "go").touch()
        until(lambda: not orch.processes_of(run), awaited="the ranks to end")
        watcher.kill()
        watcher.communicate()
    probe = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=-3, check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    argv = [orch.argv(())[0], "-c", probe, *orch.argv(("logs", run))]
    done = subprocess.run(
        argv, cwd=orch.cwd, env=orch.environ(), check=True, capture_output=True, text=True, timeout=100
    )
    assert int(done.stdout) < BOUND_KIB


def _peak_kib(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def test_any_bytes_are_printed_escaped_and_stored_unchanged(orch: Orch) -> None:
    program = (
        "import sys; out = sys.stdout.buffer\n"
        r"out.write(b'\x1b]0;owned\x07\x1b[31mred\x1b[0m\n\xff\xfe\x00binary\n 1%\r 99%\r100%\n[n1:1] I am n1\n')"
        "\nout.write(b'no newline')\n"
    )
    (orch.cwd / "noisy.py").write_text(program)
    done = orch("ssh-launch", "--nodes", "n0", "--", "noisy.py")
    shown = _lines_of(done.stdout, "n0", 0)
    assert shown == ["\\x1b]0;owned\\x07red", "��\\x00binary", "100%", "[n1:1] I am n1", "no newline"]
    assert "\x1b" not in done.stdout
    raw = orch.node_folder(orch.records()[-1]["id"], "n0") / "rank-0.out"
    assert raw.read_bytes().startswith(b"\x1b]0;owned\x07\x1b[31mred\x1b[0m\n\xff\xfe\x00binary\n 1%\r 99%\r100%\n")


@pytest.mark.extended
def test_ten_megabyte_line_is_printed_in_pieces_and_memory_is_bounded(orch: Orch) -> None:
    (orch.cwd / "long.py").write_text("print('x' * (10 << 20)); print('after')")
    run = orch("ssh-launch", "--detach", "--nodes", "n0", "--", "long.py").stdout.strip()
    until(lambda: orch.recorded(run) == "DONE", awaited="the end")
    probe = "import resource, subprocess, sys; out = subprocess.run(sys.argv[1:], stdout=-1).stdout; print(len(out), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    argv = [orch.argv(())[0], "-c", probe, *orch.argv(("logs", "--stream", "out"))]
    done = subprocess.run(
        argv, cwd=orch.cwd, env=orch.environ(), check=True, capture_output=True, text=True, timeout=60
    )
    size, peak_kib = (int(word) for word in done.stdout.split())
    assert size > 10 << 20
    assert peak_kib < 200 << 10
    lines = orch.lines("--stream", "out")
    assert [line.get("goes_on", False) for line in lines] == [False, *[True] * 9, False]
    assert lines[-1]["text"] == "after"


@pytest.mark.parametrize(("stream", "texts"), [("out", {"to out"}), ("err", {"to err"})])
def test_one_stream_can_be_selected(orch: Orch, stream: str, texts: set[str]) -> None:
    orch("ssh-launch", "--", "sh", "-c", "echo to out; echo to err >&2")
    assert {line["text"] for line in orch.lines("--stream", stream)} == texts
    assert "no such stream" in orch("logs", "--stream", "both", code=2).stderr


@pytest.mark.extended
def test_two_followers_print_the_same_lines(orch: Orch) -> None:
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT.replace("3000", "300")).stdout.strip()
    with orch.start("logs", "-f", run, "--json") as first, orch.start("logs", "-f", run, "--json") as second:
        texts = [
            [json.loads(line) for line in reader.communicate(timeout=60)[0].splitlines()] for reader in (first, second)
        ]
    for lines in texts:
        for rank in (0, 1):
            rank_lines = [line["text"] for line in lines if line["rank"] == rank]
            assert rank_lines == [f"line {number} of {rank}" for number in range(1, 301)]


@pytest.mark.extended
@pytest.mark.parametrize("reachable_nodes", [2, 1])
def test_connections_cut_while_old_lines_are_read_lose_only_the_rest_of_an_unreachable_node(
    orch: Orch, farm: Farm, reachable_nodes: int
) -> None:
    run = orch("ssh-launch", "--detach", "--", "seq", "1000000", "1400000").stdout.strip()
    until(lambda: orch.recorded(run) == "DONE", awaited="the end")
    with orch.start("logs", run) as reader:  # it can read no further than the pipe holds
        assert reader.stdout is not None
        printed = reader.stdout.readline()
        with farm.only(reachable_nodes):
            printed += reader.stdout.read()
            assert reader.stderr is not None
            stderr = reader.stderr.read()
    assert reader.returncode == (0 if reachable_nodes == 2 else 4), stderr
    assert _lines_of(printed, "n0", 0) == _written(orch, run, "n0", 0)
    written, shown = _written(orch, run, "n1", 1), _lines_of(printed, "n1", 1)
    assert shown == written if reachable_nodes == 2 else shown == written[: len(shown)] != written
    assert ("[n1:-] gap: n1 cannot be read" in printed) == (reachable_nodes == 1)


def test_node_that_is_gone_is_a_gap_in_the_log(orch: Orch, farm: Farm) -> None:
    inventory = orch.cwd / "inventory.yaml"
    inventory.write_text(inventory.read_text("utf-8").replace("ssh:", "ssh:\n  refused_timeout_s: 3", 1))
    with orch.start("ssh-launch", "--", "sh", "-c", "echo up; exec sleep 1000") as watcher:
        assert watcher.stdout is not None
        for _ in range(2):
            while "] up" not in (line := watcher.stdout.readline()):
                assert line, "the log ended"
        with farm.only(1):
            text, stderr = watcher.communicate(timeout=100)
    assert watcher.returncode == 1, stderr
    assert re.search(r"^\[n1:-\] gap: n1 cannot be read", text, re.MULTILINE)
