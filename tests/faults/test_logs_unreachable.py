"""Following a log when a node cannot be reached as it begins: the others are followed, and that one joins later or is a gap."""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.hosts import Hosts
from tests.until import until

COUNT = 'i=0; until [ -e "$ORCH_RUN_DIR/enough" ]; do i=$((i+1)); echo "line $i"; sleep 0.05; done'


@pytest.fixture
def orch(hosts: Hosts, tmp_path: Path) -> Orch:
    """orch on the controller, beside an inventory.yaml of three hosts that gives up a connection soon."""
    hosts.inventory(tmp_path, ssh={"connect_timeout_s": 2})
    return hosts.orch(tmp_path)


def _cut_off_one(orch: Orch, hosts: Hosts) -> str:
    """A run that goes on while h1 reaches the other hosts but not the controller."""
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT).stdout.strip()
    until(lambda: {"h0", "h1", "h2"} <= _speakers(orch, run), awaited="three ranks", deadline_s=30)
    hosts.block(hosts[1], hosts.controller)
    notes = orch.home / "runs" / run / "events.jsonl"
    until(lambda: "others reach it" in notes.read_text("utf-8"), awaited="the supervisor to know", deadline_s=40)
    return run


def _speakers(orch: Orch, run: str) -> set[str]:
    return {line["node"] for line in orch.lines(run) if line["stream"] == "out"}


def _finish(orch: Orch, hosts: Hosts, run: str) -> None:
    for host in hosts.hosts:
        (host.path(orch.node_folder(run, host.name).parents[1]) / "enough").touch()


def _read_until(following: subprocess.Popen[str], *marks: str) -> str:
    """What it prints, up to a line that holds one of the marks."""
    assert following.stdout is not None
    seen = ""
    while not any(mark in (line := following.stdout.readline()) for mark in marks):
        assert line, f"the log ended: {following.stderr.read() if following.stderr else ''}"
        seen += line
    return seen + line


def _rest(following: subprocess.Popen[str]) -> tuple[str, str]:
    assert following.stdout is not None
    assert following.stderr is not None
    return (
        following.stdout.read(),
        following.stderr.read(),
    )  # communicate() would leave out what readline() has buffered


def test_node_that_cannot_be_reached_at_first_joins_when_it_can(orch: Orch, hosts: Hosts) -> None:
    run = _cut_off_one(orch, hosts)
    with orch.start("logs", "--follow", run) as following:
        text = "".join(_read_until(following, f"[{name}:") for name in ("h0", "h2", "h0", "h2"))
        assert "[h1:" not in text
        hosts.unblock(hosts[1], hosts.controller)
        text += _read_until(following, "[h1:")
        _finish(orch, hosts, run)
        rest, said = _rest(following)
    assert following.returncode == 0, said
    assert "warning: h1: " in said
    assert "h1 answers again" in said
    for rank, host in enumerate(hosts.hosts):
        written = host.path(orch.node_folder(run, host.name)) / f"rank-{rank}.out"
        lines = re.findall(rf"^\[{host.name}:{rank}\] (.*)$", text + rest, re.MULTILINE)
        assert lines == written.read_text("utf-8").splitlines()


def test_what_tail_leaves_out_does_not_come_with_a_node_that_joins_later(orch: Orch, hosts: Hosts) -> None:
    run = _cut_off_one(orch, hosts)
    with orch.start("logs", "--follow", "--tail", "0", run) as following:
        _read_until(following, "[h0:")
        hosts.unblock(hosts[1], hosts.controller)
        text = _read_until(following, "[h1:")
        _finish(orch, hosts, run)
        text += _rest(following)[0]
    lines = re.findall(r"^\[h1:1\] (.*)$", text, re.MULTILINE)
    written = hosts[1].path(orch.node_folder(run, "h1")) / "rank-1.out"
    assert "line 1" not in lines
    assert lines == written.read_text("utf-8").splitlines()[-len(lines) :]


def test_node_that_stays_away_is_a_gap_and_exit_code_4(orch: Orch, hosts: Hosts) -> None:
    run = _cut_off_one(orch, hosts)
    with orch.start("logs", "--follow", run) as following:
        text = _read_until(following, "[h0:")
        hosts[1].kill()
        rest, said = _rest(following)
    assert following.returncode == 4, said
    assert re.search(r"^\[h1:-\] gap: h1 cannot be read", text + rest, re.MULTILINE), said
    assert re.search(r"h1: .*\(1 of 3\)$", said, re.MULTILINE)


def test_who_follows_elsewhere_is_told_of_a_node_that_vanished(orch: Orch, hosts: Hosts) -> None:
    """Nothing is known there of the supervisor, which fails the run; its nodes only say that they were stopped."""
    run = orch("ssh-launch", "--detach", "--", "sh", "-c", COUNT).stdout.strip()
    elsewhere = replace(orch, env={"ORCH_HOME": str(orch.cwd / "elsewhere")})
    with elsewhere.start("logs", "--follow", run, "-i", "inventory.yaml") as following:
        text = "".join(_read_until(following, f"[{name}:") for name in ("h0", "h1", "h2", "h1", "h0"))
        hosts[1].kill()
        rest, said = _rest(following)
    assert following.returncode == 4, said
    assert re.search(r"^\[h1:-\] gap: h1 cannot be read", text + rest, re.MULTILINE)
    assert re.search(r"h1: .*\(1 of 3\)$", said, re.MULTILINE)
    for rank, host in ((0, hosts[0]), (2, hosts[2])):
        written = host.path(orch.node_folder(run, host.name)) / f"rank-{rank}.out"
        lines = re.findall(rf"^\[{host.name}:{rank}\] (.*)$", text + rest, re.MULTILINE)
        assert lines == written.read_text("utf-8").splitlines()


def test_follow_ends_where_no_node_can_be_reached(orch: Orch, hosts: Hosts) -> None:
    run = _cut_off_one(orch, hosts)
    hosts.controller.link(up=False)
    assert "of 3" in orch("logs", "--follow", run, code=4).stderr
    hosts.controller.link(up=True)
    with orch.start("logs", "--follow", run) as following:
        _read_until(following, "[h0:")
        following.send_signal(signal.SIGINT)
        _, said = _rest(following)
    assert following.returncode == 130
    assert "the run continues" in said
