"""The node agent with real processes: start, end, stop and kill; no process is left running."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.node.system.processes import OPEN_FILES, TICK_S, stat_of
from tests.grounds.components import unavailable
from tests.grounds.fuse import OneFile
from tests.grounds.mounts import in_own_mounts
from tests.node.agent.test_agent_ground import AGENT, PYTHONS, Ground, alive, ground
from tests.until import until

__all__ = ["ground"]

RUN = "$ORCH_RUN_DIR"
WAIT = "echo up; sleep 300 & wait"
# A grandchild in a new session, whose parent would be pid 1 without a sub-reaper; it writes its pid, and may ignore SIGTERM.
DAEMON = f"(setsid sh -c '{{trap}} echo $$ > \"{RUN}/daemon\"; sleep 300; sleep 300' >/dev/null 2>&1 &)"
DAEMON += f' ; until [ -s "{RUN}/daemon" ]; do :; done; '


def sh(script: str) -> tuple[str, str, str]:
    return "sh", "-c", script


def wait_until_ended(*pids: int) -> None:
    until(lambda: not any(alive(pid) for pid in pids), awaited=f"the end of {pids}")


def wait_for_output(ground: Ground, rank: int = 0, node_rank: int = 0) -> None:
    until(lambda: "up\n" in ground.out(rank, node_rank), awaited=f"output of rank {rank}")


# ---- the end of a run


def test_done_is_recorded_in_events_exit_code_and_file(ground: Ground) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ground.job(*sh(f"ulimit -Sn > {RUN}/open-files; echo out; echo err >&2"), ranks=[2])
    assert ground.run(before_exec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))) == (0, "")
    assert int((ground.run_dir / "open-files").read_text()) == min(hard, OPEN_FILES)
    assert ground.finished()["state"] == "DONE"
    assert ground.finished()["exit"] is None
    done = json.loads((ground.folder() / "DONE").read_text(encoding="utf-8"))
    assert done["ranks"] == [0, 1]
    assert abs(done["time"] - time.time()) < 60
    assert (ground.folder() / "rank-1.out").read_text(encoding="utf-8") == "out\n"
    assert (ground.folder() / "rank-1.err").read_text(encoding="utf-8") == "err\n"


def test_finished_work_is_done_although_the_file_done_cannot_be_written(ground: Ground) -> None:
    ground.job(*sh(f'mkdir "{RUN}/attempt-1/n0/DONE.tmp"'))  # in the way, as a full disk is
    assert ground.run() == (0, "")
    assert ground.finished()["state"] == "DONE"
    (message,) = [event["text"] for event in ground.events("note") if "DONE" in event["text"]]
    assert message.startswith("the file DONE was not written: [Errno 21] Is a directory")


def test_events_are_complete_and_in_order(ground: Ground) -> None:
    ground.job(*sh("exit 0"), ranks=[1])
    ground.run()
    events = ground.lines("events.jsonl")
    names = [event["event"] for event in events if event["event"] != "note"]
    assert names == ["agent-started", "rank-started", "rank-exited", "agent-finished"]
    assert all(event["text"] and event["time"] > 0 for event in events)
    (started,), (exited,) = ground.events("rank-started"), ground.events("rank-exited")
    assert {"rank", "pid", "start_time"} <= started.keys()
    kept = {name: exited[name] for name in ("rank", "pid", "code", "signal", "done", "error")}
    assert kept == {"rank": 0, "pid": started["pid"], "code": 0, "signal": None, "done": True, "error": None}


def test_everything_on_disk_is_the_owners_alone(ground: Ground) -> None:
    ground.job(*sh("exit 0"))
    ground.run()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (ground.folder(), *ground.folder().rglob("*"))}
    assert {modes.pop(name) for name in ("n0", "progress", "error", "stacks", "channel")} == {0o700}
    assert set(modes.values()) == {0o600}


def test_agent_record_names_the_agent_before_a_rank_runs(ground: Ground) -> None:
    ids = "sed 's/.*) //' /proc/$PPID/stat | cut -d' ' -f3,4"
    ground.job(*sh(f'cat "{RUN}/attempt-1/$ORCH_NODE/agent.json"; {ids}'), ranks=[2])
    ground.run()
    text, _, ids = ground.out().rpartition("}")
    record = json.loads(text + "}")
    assert record == ground.record()
    assert [int(field) for field in ids.split()] == [record["pid"], record["pid"]]
    assert (record["node"], record["node_rank"], record["ranks"], record["world_size"]) == ("n0", 0, [0, 1], 2)
    assert record["pgid"] == record["pid"]
    assert record["start_time"] > 0
    assert record["host_id"].startswith(record["boot_id"] + "/")


@pytest.mark.parametrize(("code", "expected"), [(7, 1), (93, 93)])
def test_a_failing_rank_ends_its_peers_and_is_named(ground: Ground, code: int, expected: int) -> None:
    ground.job(*sh(f"if [ $RANK = 1 ]; then exit {code}; fi; sleep 300"), ranks=[2])
    assert ground.run() == (expected, "")
    assert ground.finished()["state"] == "FAILED"
    assert ground.finished()["exit"].items() >= {"rank": 1, "code": code, "signal": None, "error": None}.items()
    (peer,) = (event for event in ground.events("rank-exited") if event["rank"] == 0)
    assert (peer["signal"], peer["done"]) == ("SIGTERM", False)
    assert len(ground.events("stopping")) == 1
    assert not (ground.folder() / "DONE").exists()


@pytest.mark.parametrize("ground", PYTHONS[:1], indirect=True)
def test_ranks_that_make_no_progress_are_reported_and_continue(ground: Ground) -> None:
    """If the agent is so slow that it measures no two steps, its limit is that of a first step."""
    progress = f'"{RUN}/attempt-1/$ORCH_NODE/progress/0.json"'
    step = f'printf \'{{"step": %s, "phase": "step"}}\' $step > new; mv new {progress}; sleep 0.3'
    ground.job(*sh(f"for step in 1 2 3 4 5 6 7 8 9 10 11 12; do {step}; done; {WAIT}"))
    agent = ground.start()
    until(lambda: ground.events("note"), deadline_s=240, awaited="the report")
    assert ground.events("note")[0]["text"].startswith("warning: the ranks of n0 have made no progress for ")
    assert ground.events("rank-exited") == []
    agent.terminate()
    assert agent.wait(timeout=30) == 6


def test_core_file_of_a_crash_is_named(ground: Ground) -> None:
    """In the run's code folder, unless the kernel's core_pattern says otherwise."""
    ground.job(*sh("ulimit -c unlimited; kill -SEGV $$"))
    assert ground.run()[0] == 1
    cores = [f"core file: {path}" for path in (ground.run_dir / "code").glob("core*")]
    assert ground.finished()["exit"]["error"] == (cores[0] if cores else None)


def test_cause_is_the_first_failure_not_a_consequence_of_the_stop(ground: Ground) -> None:
    ground.job(*sh("if [ $RANK = 1 ]; then kill -SEGV $$; fi; trap 'exit 5' TERM; sleep 300 & wait"), ranks=[2])
    assert ground.run()[0] == 1
    assert ground.finished()["exit"].items() >= {"rank": 1, "code": None, "signal": "SIGSEGV", "error": None}.items()


GLOO_CLOSED = (
    "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:5274. This is typically caused by a remote worker crashing."
)


def test_rank_that_lost_its_connection_is_not_the_first_failure(ground: Ground) -> None:
    """A rank that closes its group and then ends slowly has failed before the ranks that notice it."""
    first = "echo 'ValueError: bad sample' >&2; trap 'exit 1' TERM; echo up; sleep 300 & wait"
    then = f"until grep -q up \"{RUN}\"/attempt-1/n0/rank-1.out; do :; done; echo '{GLOO_CLOSED}' >&2; exit 1"
    ground.job(*sh(f"if [ $RANK = 1 ]; then {first}; fi; {then}"), ranks=[2])
    assert ground.run()[0] == 1
    assert ground.finished()["exit"].items() >= {"rank": 1, "exception": "ValueError: bad sample"}.items()


def test_rank_that_lost_its_connection_is_the_first_failure_if_no_other_rank_reports_one(ground: Ground) -> None:
    then = f"until grep -q up \"{RUN}\"/attempt-1/n0/rank-1.out; do :; done; echo '{GLOO_CLOSED}' >&2; exit 1"
    ground.job(*sh(f"if [ $RANK = 1 ]; then {WAIT}; fi; {then}"), ranks=[2])
    assert ground.run()[0] == 1
    error = "another rank had ended, or had closed its connection (Connection closed by peer [127.0.0.1]:5274)"
    assert ground.finished()["exit"].items() >= {"rank": 0, "code": 1, "lost_peer": True, "error": error}.items()


@pytest.mark.parametrize(
    ("written", "error", "kind"),
    [
        ('{"message": {"message": "ValueError: bad", "extraInfo": {"timestamp": "1"}}}', "ValueError: bad", None),
        ('{"message": {"message": "no room", "extraInfo": {"kind": "storage"}}}', "no room", "storage"),
        ('{"message": "plain"}', "plain", None),
        ('{"message": ', None, None),
        ("[]", None, None),
    ],
)
def test_error_file_is_read_in_both_of_torchruns_formats(
    ground: Ground, written: str, error: str | None, kind: str | None
) -> None:
    ground.job("sh", "-c", 'printf %s "$1" > "$TORCHELASTIC_ERROR_FILE"; exit 1', "sh", written)
    ground.run()
    for end in (ground.finished()["exit"], ground.events("rank-exited")[0]):
        assert (end["error"], end["kind"]) == (error, kind)


@pytest.mark.parametrize(("ranks", "state"), [("0 1", "DONE"), ("0", "FAILED"), ("4 5", "DONE")])
def test_a_crash_of_a_program_counts_as_done_if_all_its_ranks_were(ground: Ground, ranks: str, state: str) -> None:
    """A launcher may number the ranks in another order than orch would."""
    progress = f'"{RUN}/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$rank.json"'
    report = f'for rank in {ranks}; do echo \'{{"phase": "done"}}\' > {progress}; done; exit 3'
    ground.job(*sh(report), ranks=[2], program={"per_node": True})
    ground.run()
    assert ground.finished()["state"] == state
    assert (ground.finished()["exit"] is None) == (state == "DONE")


def test_a_crash_after_finished_work_is_done_with_a_warning(ground: Ground) -> None:
    progress = f'"{RUN}/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"'
    ground.job(*sh(f'echo \'{{"phase": "done"}}\' > {progress}; kill -ABRT $$'))
    assert ground.run() == (0, "")
    (exited,) = ground.events("rank-exited")
    assert (exited["signal"], exited["done"]) == ("SIGABRT", True)
    assert "warning" in exited["text"]
    assert (ground.folder() / "DONE").exists()


@pytest.mark.parametrize(
    ("end", "state"), [("kill -ABRT $$", "DONE"), ("kill -KILL $$", "FAILED"), ("exit 1", "FAILED")]
)
def test_end_that_python_reports_by_itself_counts_only_if_it_crashes_then(ground: Ground, end: str, state: str) -> None:
    """A crash of a library's teardown; an exit code may be the script's own, and SIGKILL that of memory which ran out later."""
    progress = f'"{RUN}/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"'
    ground.job(*sh(f'echo \'{{"phase": "done", "source": "optimizer"}}\' > {progress}; {end}'))
    ground.run()
    assert ground.finished()["state"] == state


def test_offsets_cover_every_byte_even_of_a_descendant_that_writes_last(ground: Ground) -> None:
    last = f'trap "echo last; exit" TERM; echo $$ > "{RUN}/daemon"; while :; do :; done'
    ground.job(*sh(f"echo first; (setsid sh -c '{last}' &); until [ -s \"{RUN}/daemon\" ]; do :; done"))
    assert ground.run() == (0, "")
    assert ground.out() == "first\nlast\n"
    recorded: dict[str, int] = {}
    for line in ground.lines("offsets.jsonl"):
        assert all(size > recorded.get(name, 0) for name, size in line["size"].items())
        recorded.update(line["size"])
    sizes = {path.name: path.stat().st_size for path in ground.folder().glob("rank-*")}
    assert recorded == {name: size for name, size in sizes.items() if size}


# ---- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_ends_the_ranks_and_exits_6(ground: Ground, number: int) -> None:
    ground.job(*sh(WAIT), ranks=[2])
    agent = ground.start()
    wait_for_output(ground, 0)
    wait_for_output(ground, 1)
    os.kill(ground.record()["pid"], number)
    assert agent.wait(timeout=10) == 6
    assert ground.finished()["state"] == "STOPPED"
    assert not (ground.folder() / "DONE").exists()
    wait_until_ended(*(event["pid"] for event in ground.events("rank-started")))


def test_stop_through_the_started_process_reaches_the_agent_once(ground: Ground) -> None:
    ground.job(*sh("trap 'echo term; sleep 0.5; exit 0' TERM; echo up; sleep 300 & wait"), grace_s=20)
    agent = ground.start()
    wait_for_output(ground)
    agent.terminate()
    assert agent.wait(timeout=10) == 6
    assert ground.out() == "up\nterm\n"
    assert ground.events("rank-exited")[0]["code"] == 0


def test_a_rank_that_ignores_the_stop_is_killed_after_the_grace(ground: Ground) -> None:
    ground.job(*sh(f"trap '' TERM; {WAIT}"), grace_s=0.3)
    agent = ground.start()
    wait_for_output(ground)
    agent.terminate()
    assert agent.wait(timeout=10) == 6
    assert ground.events("rank-exited")[0]["signal"] == "SIGKILL"


def test_a_stopped_process_dies_too(ground: Ground) -> None:
    ground.job(*sh(WAIT), grace_s=0.3)
    agent = ground.start()
    wait_for_output(ground)
    rank = ground.pid_of_rank()
    os.kill(rank, signal.SIGSTOP)
    until(lambda: (stat_of(rank) or "?")[0] == "T", awaited="the rank to stand still")
    agent.terminate()
    assert agent.wait(timeout=10) == 6
    assert ground.events("rank-exited")[0]["signal"] == "SIGKILL"


def test_a_second_signal_kills_at_once(ground: Ground) -> None:
    ground.job(*sh(f"trap '' TERM; {DAEMON.format(trap='trap : TERM;')} {WAIT}"), grace_s=300)
    agent = ground.start()
    wait_for_output(ground)
    agent.terminate()
    until(lambda: ground.events("stopping"), awaited="the stop")
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=10) == 6
    wait_until_ended(ground.pid_in("daemon"))


def test_hangup_is_ignored_and_other_signals_are_passed_on(ground: Ground) -> None:
    ground.job(
        *sh("trap 'echo usr1; exit 0' USR1; trap 'echo hup' HUP; echo up; while :; do sleep 300 & wait $!; done")
    )
    agent = ground.start()
    wait_for_output(ground)
    agent.send_signal(signal.SIGHUP)
    agent.send_signal(signal.SIGUSR1)
    assert agent.wait(timeout=10) == 0
    assert ground.out() == "up\nusr1\n"


# ---- nothing outlives the agent


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_a_daemonised_grandchild_is_gone_after_the_end(ground: Ground, trap: str) -> None:
    ground.job("sh", "-c", DAEMON.format(trap=trap.replace("'", "'\\''")), grace_s=0.5)
    assert ground.run() == (0, "")
    daemon = ground.pid_in("daemon")
    assert not alive(daemon)
    [warning] = [event["text"] for event in ground.events("note") if "left running" in event["text"]]
    assert f"pid {daemon} (sh)" in warning


def test_what_a_rank_left_running_is_killed_even_while_another_rank_waits_in_the_kernel(
    ground: Ground, tmp_path: Path
) -> None:
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        unavailable("mounting a FUSE file system needs root and /dev/fuse")
    data = tmp_path / "data"
    data.mkdir()
    left = DAEMON.format(trap='trap "" TERM;')
    ground.job(*sh(f'[ "$RANK" = 1 ] || exec cat "{data}/data"; {left} {WAIT}'), ranks=[2], grace_s=0.3)

    def act() -> None:
        served = OneFile(data)
        try:
            served.hold()
            agent = ground.start()
            wait_for_output(ground, rank=1)
            until(lambda: served.held == 1, awaited="a read without an answer")
            agent.terminate()
            wait_until_ended(ground.pid_in("daemon"))
            assert (stat_of(ground.events("rank-started")[0]["pid"]) or "?")[0] == "D"
            served.refuse(errno.EIO)
            assert agent.wait(timeout=10) == 6
        finally:
            served.close()

    in_own_mounts(act)


def test_kill_9_of_the_agent_leaves_neither_rank_nor_grandchild(ground: Ground) -> None:
    ground.job(*sh(DAEMON.format(trap="") + WAIT), ranks=[2])
    agent = ground.start()
    wait_for_output(ground, 0)
    wait_for_output(ground, 1)
    os.kill(ground.record()["pid"], signal.SIGKILL)
    assert agent.wait(timeout=10) == 1
    wait_until_ended(ground.pid_in("daemon"), *(event["pid"] for event in ground.events("rank-started")))
    assert (ground.finished()["state"], ground.finished()["exit"]) == ("FAILED", None)
    assert "SIGKILL" in ground.finished()["text"]


def test_ranks_die_with_the_agent_even_when_its_guard_died_before(ground: Ground) -> None:
    # no shell that waits for a child: with guard and agent killed, only the rank itself is sure to die
    ground.job(*sh("trap '' TERM; echo up; exec sleep 300"), grace_s=300)
    guard = ground.start()
    wait_for_output(ground)
    rank = ground.pid_of_rank()
    guard.kill()
    until(lambda: ground.events("stopping"), awaited="the agent to stop when its guard dies")
    os.kill(ground.record()["pid"], signal.SIGKILL)
    wait_until_ended(rank, ground.record()["pid"])


def test_kill_9_of_the_guard_stops_the_ranks(ground: Ground) -> None:
    ground.job(*sh(DAEMON.format(trap="") + WAIT))
    guard = ground.start()
    wait_for_output(ground)
    pids = [ground.record()["pid"], ground.pid_in("daemon"), ground.pid_of_rank()]
    guard.kill()
    wait_until_ended(*pids)
    assert ground.finished()["state"] == "FAILED"  # not STOPPED: there was no stop request
    assert "guard of the agent was killed" in ground.finished()["text"]


# ---- refusals


def refused(ground: Ground, why: str) -> None:
    code, err = ground.run()
    assert (code, why in err) == (4, True), err
    assert err.count("\n") == 1
    assert (ground.finished()["state"], why in ground.finished()["text"]) == ("FAILED", True)
    assert ground.events("rank-started") == []


def test_a_living_agent_is_not_joined_by_a_second(ground: Ground) -> None:
    ground.job(*sh(WAIT))
    first = ground.start()
    wait_for_output(ground)
    code, err = ground.run()
    assert code == 4
    assert f"pid {ground.record()['pid']} is alive" in err
    assert ground.events("agent-finished") == []
    assert any("is alive" in event["text"] for event in ground.events("note"))
    assert ground.out() == "up\n"
    assert first.poll() is None


@pytest.mark.parametrize("changed", ["start_time", "boot_id", "pid"])
def test_a_stale_record_does_not_block(ground: Ground, changed: str) -> None:
    ground.job(*sh("exit 0"))
    ground.run()
    own_start = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    record = {**ground.record(), "pid": os.getpid(), "start_time": own_start}
    path = ground.folder() / "agent.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    assert ground.run()[0] == 4
    path.write_text(json.dumps({**record, changed: "other" if changed == "boot_id" else 2**22 + 1}), encoding="utf-8")
    assert ground.run()[0] == 0


@pytest.mark.parametrize(
    ("args", "program", "why"),
    [
        (["no-such-program"], {}, "no-such-program: no such executable on the PATH"),
        (["./no-such-file"], {}, "./no-such-file: no such executable"),
        (
            ["/etc/passwd"],
            {},
            "/etc/passwd is not executable: chmod +x /etc/passwd, or for a script of bash: -- bash /etc/passwd",
        ),
        (["/etc"], {}, "/etc is a folder"),
        (
            ["FOO=1", "python3", "x.py"],
            {},
            "'FOO=1' is an assignment, which only a shell knows: -- env FOO=1 python3 x.py, or `env: {FOO: …}`",
        ),
        (
            ["module", "load", "cuda"],
            {},
            "module is a command of shells, and no program: `setup: ['module load cuda']` in the inventory runs it before the ranks",
        ),
        (["true && true"], {}, "'true && true' is a line for a shell: -- bash -c 'true && true'"),
        (["-u", "-W", "error", "gone.py", "--x"], {"python": True}, "gone.py: no such script"),
        (["true"], {"cwd": "../.."}, "../..: not a folder of the code"),
    ],
)
def test_a_missing_program_is_refused(ground: Ground, args: list[str], program: dict[str, object], why: str) -> None:
    ground.job(*args, ranks=[2], program=program)
    refused(ground, why)


def test_a_rank_that_cannot_be_executed_is_refused_and_leaves_none_running(ground: Ground) -> None:
    program = ground.bundle / "not-a-program"
    program.write_bytes(b"\x7fELF broken")
    program.chmod(0o700)
    ground.job(str(program), ranks=[3])
    refused(ground, "rank 0 cannot be started")


@pytest.mark.parametrize("ground", PYTHONS[:1], indirect=True)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/bash\r\necho hi\r\n", "ends its lines as Windows does (\\r\\n): sed -i 's/\\r$//' "),
        ("echo hi\n", "has no first line such as #!/bin/bash, so nothing names its interpreter: add one, or -- bash "),
        ("#!/nope/python\n", "names /nope/python, which does not exist there"),
    ],
)
def test_script_that_the_kernel_does_not_start_is_refused_with_the_reason(ground: Ground, text: str, why: str) -> None:
    script = ground.bundle / "run.sh"
    script.write_bytes(text.encode())
    script.chmod(0o700)
    ground.job(str(script))
    refused(ground, why)
    assert "rank 0 cannot be started on n0: " in ground.run()[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "not a job"),
        ({"version": 2}, "version 2"),
        ({"ranks": None}, "not a job"),
        ({"ranks": []}, "not the node of rank 0"),
        ({"nodes": ["other"]}, "n0 is not the node of rank 0"),
        ({"attempt": 2}, "attempt-2"),
        ({"surplus": 1}, "surplus"),
        ({"program": {"args": ["true"]}}, "program: expected"),
    ],
)
def test_an_invalid_job_is_refused(ground: Ground, change: bytes | dict[str, object], why: str) -> None:
    path = ground.job("true")
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    refused(ground, why)


def test_a_missing_job_is_refused_without_making_folders(ground: Ground) -> None:
    ground.attempt.rmdir()
    code, err = ground.run()
    assert (code, "No such file or directory" in err) == (4, True)
    assert not ground.attempt.exists()


def test_a_node_folder_that_cannot_be_written_is_refused_in_one_line(ground: Ground) -> None:
    ground.job("true")
    ground.folder().write_text("a file in the way")
    code, err = ground.run()
    assert (code, err.count("\n"), "File exists" in err) == (4, 1, True), err


@pytest.mark.parametrize("limit", [0, 4096])
def test_limit_of_the_size_of_files_is_refused_and_damages_no_byte_code(
    ground: Ground, tmp_path: Path, limit: int
) -> None:
    """Python keeps byte code that is cut off at the limit, and no agent of the bundle would start any more."""
    package = tmp_path / "copy/orchestrator/node"
    shutil.copytree(AGENT, package, ignore=shutil.ignore_patterns("__pycache__"))
    ground.job("true")
    argv = [ground.python, "-E", "-s", "-S", str(package / "__main__.py"), *ground.argv()[2:]]
    limited = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    problem = (
        f"n0: files may have {limit >> 10} KiB here, too little for an agent; raise the limit: ulimit -f unlimited"
    )
    assert (limited.returncode, limited.stderr) == (4, f"orch agent: {problem}\n")
    assert list(package.rglob("*.pyc")) == []
    assert subprocess.run(argv, check=False).returncode == 0
    assert list(package.rglob("*.pyc")) != []


def test_link_instead_of_a_log_file_is_refused(ground: Ground) -> None:
    ground.job("true")
    ground.folder().mkdir()
    (ground.folder() / "rank-0.out").symlink_to(ground.run_dir / "elsewhere")
    refused(ground, "rank-0.out")
    assert not (ground.run_dir / "elsewhere").exists()


def test_a_rank_that_did_start_is_ended_when_another_cannot(ground: Ground) -> None:
    ground.job(*sh(f"{DAEMON.format(trap='')} sleep 300"), ranks=[2])
    ground.folder().mkdir()
    (ground.folder() / "rank-1.err").symlink_to(ground.run_dir / "elsewhere")
    code, err = ground.run()
    assert (code, "rank-1.err" in err) == (4, True)
    assert ground.lines("events.jsonl")[-1]["event"] == "agent-finished"
    assert not alive(ground.pid_of_rank())


# ---- the working directory of the ranks


def test_files_of_an_earlier_agent_do_not_count_for_this_one(ground: Ground) -> None:
    ground.job(*sh('echo \'{"message": "old"}\' > "$TORCHELASTIC_ERROR_FILE"'))
    assert ground.run()[0] == 0
    (ground.folder() / "progress" / "0.json").write_text('{"phase": "done"}', encoding="utf-8")
    ground.job(*sh("exit 3"))
    assert ground.run()[0] == 1
    assert not (ground.folder() / "DONE").exists()
    assert (
        ground.events("agent-finished")[-1]["exit"].items()
        >= {"rank": 0, "code": 3, "signal": None, "error": None}.items()
    )


def test_code_is_copied_once_for_all_nodes_and_attempts_and_links_stay_links(ground: Ground) -> None:
    code = ground.bundle / "code"
    (code / "sub").mkdir()
    (code / "sub" / "x.py").write_text("import os; print(os.getcwd()); open('made', 'a').write('x')", encoding="utf-8")
    (code / "data").symlink_to("/nowhere")
    for _ in range(2):
        ground.job("x.py", program={"python": True, "cwd": "sub"})
        assert ground.run() == (0, "")
    copy = ground.run_dir / "code"
    assert ground.out().splitlines() == [str(copy / "sub")] * 2
    assert (copy / "data").readlink() == Path("/nowhere")
    assert (copy / "sub" / "made").read_text() == "xx"
    assert sorted(path.name for path in (code / "sub").iterdir()) == ["x.py"]


def test_without_code_ranks_of_all_nodes_run_in_one_empty_folder(ground: Ground) -> None:
    ground.job("pwd")
    ground.run()
    assert ground.out() == f"{ground.run_dir}/code\n"


def test_code_that_cannot_be_copied_is_an_error_with_the_folder_and_the_reason(ground: Ground) -> None:
    (ground.run_dir / "code").touch()
    ground.job("true")
    code, err = ground.run()
    assert code == 4
    assert f"{ground.run_dir}/code: the code cannot be copied: Not a directory" in err


def test_job_whose_every_process_is_signalled_is_stopped_not_failed(ground: Ground) -> None:
    """As by Slurm: ranks may get SIGTERM before the agent, and guard and agent each get one."""
    ground.job(*sh("trap 'sleep 1; touch in-peace; exit 0' TERM; echo up; while :; do sleep 0.1; done"), ranks=[2])
    agent = ground.start()
    until(lambda: ground.out(0) and ground.out(1) and len(ground.events("rank-started")) == 2, awaited="both ranks")
    ranks = [event["pid"] for event in ground.events("rank-started")]
    os.kill(ranks[0], signal.SIGTERM)
    for pid in (ground.record()["pid"], agent.pid):
        os.kill(pid, signal.SIGTERM)
    assert agent.wait(timeout=20) == 6
    assert ground.finished()["state"] == "STOPPED"
    assert (ground.run_dir / "code" / "in-peace").exists()


def test_rank_ended_by_sigterm_just_before_the_agent_gets_it_is_no_failure(ground: Ground) -> None:
    ground.job(*sh("echo up; exec sleep 1000"))
    agent = ground.start()
    until(lambda: ground.out(0) and ground.events("rank-started"), awaited="the rank and its start event")
    (rank,) = [event["pid"] for event in ground.events("rank-started")]
    os.kill(rank, signal.SIGTERM)
    until(lambda: not alive(rank), awaited="the rank to end")
    os.kill(ground.record()["pid"], signal.SIGTERM)
    assert agent.wait(timeout=20) == 6
    assert ground.finished()["state"] == "STOPPED"


def test_a_shell_that_outlives_its_child_in_a_stop_of_the_node_is_not_done(ground: Ground) -> None:
    """As by scancel or a host's shutdown: the child gets SIGTERM first, and the shell has exited with 0 before the agent gets it."""
    ground.job(*sh(f'sleep 1000 & echo $! > "{RUN}/child"; echo up; wait; echo finished'))
    agent = ground.start()
    wait_for_output(ground)
    rank = ground.pid_of_rank()
    os.kill(ground.pid_in("child"), signal.SIGTERM)
    until(lambda: not alive(rank), awaited="the end of the shell")
    os.kill(ground.record()["pid"], signal.SIGTERM)
    assert agent.wait(timeout=20) == 6
    (exited,) = ground.events("rank-exited")
    assert (exited["code"], exited["done"]) == (0, False)
    finished = ground.finished()
    assert (finished["state"], finished["reported_done"]) == ("STOPPED", False)
    assert ground.record()["started"] < finished["signalled_s"] <= finished["time"]


def test_work_that_was_reported_done_before_the_stop_is_done(ground: Ground) -> None:
    progress = f'"{RUN}/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"'
    ground.job(*sh(f'echo \'{{"phase": "done"}}\' > {progress}; {WAIT}'))
    agent = ground.start()
    wait_for_output(ground)
    agent.terminate()
    assert agent.wait(timeout=20) == 0
    finished = ground.finished()
    assert (finished["state"], finished["reported_done"]) == ("DONE", True)
    assert finished["signalled_s"] is not None


def test_suspended_agent_continues_after_sigcont(ground: Ground) -> None:
    """SIGSTOP and SIGCONT, as by a debugger or a frozen container, beyond the deadline of the agent's wait for a signal."""
    ground.job("sleep", "1000")
    agent = ground.start()
    pid = int(ground.record()["pid"])
    ground.pid_of_rank()
    for _ in range(10):
        os.kill(pid, signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda stopped=stopped: time.monotonic() > stopped + 2 * TICK_S, awaited="its deadline to pass")  # type: ignore[misc]
        os.kill(pid, signal.SIGCONT)
    assert agent.poll() is None
    assert not ground.events("agent-finished")
    agent.terminate()
    assert agent.wait(timeout=10) == 6
