"""Runs over hosts that can be cut off: whatever dies or stops answering, the run continues or ends on every host, and no other process is harmed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.run.run_folder import STANDBY_RECORD
from orchestrator.node.system.files import read_json
from orchestrator.records.run_folder import RunFolder
from orchestrator.verdict.failing import waits
from tests.grounds.cli import Orch
from tests.grounds.hosts import Host, Hosts
from tests.grounds.keeper import kill
from tests.grounds.metrics import read_metrics
from tests.until import until

SLEEPERS = ("sh", "-c", "echo up; exec sleep 1000")
ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
total = torch.ones(1)
dist.all_reduce(total)
print("total", int(total), flush=True)
os._exit(0)  # gloo may abort in a normal exit
"""
OWN_TRAINING = "import time\nprint('training', flush=True)\nwhile True: time.sleep(1)\n"


WRITER = """
import os, time
begun = time.monotonic()
for number in range(30_000):
    print(os.environ["RANK"], number, flush=True)
    time.sleep(max(0, begun + number / 1000 - time.monotonic()))
"""


ENDLESS_TRAINING = ("model.layers=1", "model.width=32", "model.heads=1", "device=cpu", "report=", "steps=1000000", "save_steps=5",
                    "checkpoint=sharded")  # fmt: skip
RANKS_WITH_SPARE = ((0, 1, "h0"), (0, 2, "h0"), (1, 1, "h1"), (1, 2, "h2"))


@pytest.fixture
def orch(hosts: Hosts, tmp_path: Path) -> Orch:
    """orch on the controller, beside an inventory.yaml of three hosts with one rank each."""
    hosts.inventory(tmp_path)
    return hosts.orch(tmp_path)


@pytest.fixture
def own_training(hosts: Hosts) -> Iterator[subprocess.Popen[str]]:
    """The user's own training on h1, under the same account; it must survive the test."""
    script = hosts[1].path(hosts.home / "train.py")
    script.write_text(OWN_TRAINING, encoding="utf-8")
    script.chmod(0o644)
    argv = [*hosts[1].enter_as_account(), str(hosts.python), "train.py"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        yield process
        assert process.poll() is None, "the user's own training was ended"
        process.kill()


def _start(orch: Orch, hosts: Hosts, *options: str) -> str:
    """Start a detached run whose ranks all sleep, and wait for its supervisor and ranks."""
    run = orch("ssh-launch", "--detach", *options, "--", *SLEEPERS).stdout.strip()
    until(lambda: orch.supervisor(run), awaited="the supervisor")
    until(lambda: hosts.outputs(orch, run) == ["up\n"] * 3, awaited="the ranks")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    return run


def _record_at_end(orch: Orch, run: str, *, deadline_s: float = 60) -> dict[str, Any]:
    """Wait for the supervisor to record the end, and return the record."""
    until(lambda: orch.recorded(run) not in ("STARTING", "RUNNING"), awaited="the verdict", deadline_s=deadline_s)
    [record] = [entry for entry in orch.records() if entry["id"] == run]
    return record


def _events_text(orch: Orch, run: str) -> str:
    return (orch.home / "runs" / run / "events.jsonl").read_text("utf-8")


def _folders(orch: Orch, hosts: Hosts) -> list[tuple[Host, Path]]:
    """The hosts and the only run's node folders on them."""
    [record] = until(orch.records, awaited="the run")
    folders = until(lambda: orch.node_folders(record["id"]), awaited="its plan")
    return list(zip(hosts.hosts, folders, strict=True))


def _count(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _is_idle(host: Host, *expected_commands: str) -> bool:
    return sorted(host.processes().values()) == sorted(expected_commands)


def _last_step(out: Path) -> int:
    return int(read_metrics(out)[-1]["step"])


def _is_rank(pid: int) -> bool:
    """True while this process is a rank; a process that has ended has no environment."""
    try:
        return b"LOCAL_RANK=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _pid_of(orch: Orch, run: str, word: bytes) -> int:
    [pid] = [pid for pid in orch.processes_of(run) if word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    return pid


def test_ranks_run_on_their_hosts_with_the_address_of_the_first_as_master(orch: Orch, hosts: Hosts) -> None:
    orch("ssh-launch", "--", "sh", "-c", 'echo "$RANK $ORCH_NODE $(hostname) $MASTER_ADDR"')
    lines = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert lines == [f"{rank} h{rank} h{rank} {hosts[0].address}" for rank in range(3)]
    assert orch.status()["state"] == "DONE"
    until(lambda: all(_is_idle(host) for host in hosts.hosts), awaited="the hosts to be idle")


@pytest.mark.extended
def test_program_beside_the_workdir_in_a_shared_folder_starts_twice(hosts: Hosts, tmp_path: Path) -> None:
    """Each launch writes program files to the workdir while the nodes compare those of the program's folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # all hosts have it
        shared = Path(folder)
        os.chown(shared, hosts.uid, hosts.gid)
        (shared / "train.py").write_text("print('trained')\n", encoding="utf-8")
        (shared / "train.py").chmod(0o644)
        hosts.inventory(tmp_path, defaults={"workdir": f"{folder}/work"})
        orch = hosts.orch(tmp_path)
        for _ in range(2):
            orch("ssh-launch", "--", f"{folder}/train.py")
        assert [orch.recorded(record["id"]) for record in orch.records()] == ["DONE", "DONE"]


@pytest.mark.extended
@pytest.mark.train
def test_ranks_reduce_over_the_bridge(orch: Orch) -> None:
    (orch.cwd / "reduce.py").write_text(ALL_REDUCE, encoding="utf-8")
    orch("ssh-launch", "--", "reduce.py")
    lines = [line["text"] for line in orch.lines() if line["stream"] == "out" and "total" in line["text"]]
    assert lines == ["total 3"] * 3


def test_stopped_run_leaves_nothing_on_any_host(orch: Orch, hosts: Hosts) -> None:
    run = _start(orch, hosts)
    orch("stop", run)
    assert orch.processes_of(run) == []
    until(lambda: all(_is_idle(host) for host in hosts.hosts), awaited="orch's own connections to end")
    assert orch.status(run)["state"] == "STOPPED"


def test_stop_of_one_run_harms_neither_another_run_nor_the_users_own_training(
    orch: Orch, hosts: Hosts, own_training: subprocess.Popen[str]
) -> None:
    first, second = _start(orch, hosts), _start(orch, hosts)
    before = orch.processes_of(second)
    orch("stop", first)
    assert orch.processes_of(first) == []
    assert orch.processes_of(second) == before
    assert [orch.status(run)["state"] for run in (first, second)] == ["STOPPED", "RUNNING"]
    orch("stop", second)
    assert orch.processes_of(second) == []
    until(lambda: _is_idle(hosts[1], "python3"), awaited="orch's own connections to end")
    assert own_training.poll() is None


def test_attach_finds_a_rank_that_was_killed_after_the_supervisor(
    orch: Orch, hosts: Hosts, own_training: subprocess.Popen[str]
) -> None:
    run = _start(orch, hosts)
    orch.kill_supervisor(run)
    kill(_pid_of(orch, run, b"RANK=2"))
    assert "rank 2 on h2 was killed by SIGKILL" in orch("attach", run, code=1).stderr
    assert _record_at_end(orch, run)["exit"]["rank"] == 2
    until(lambda: orch.processes_of(run) == [], awaited="every process of the run to be gone")
    until(
        lambda: _is_idle(hosts[0]) and _is_idle(hosts[1], "python3") and _is_idle(hosts[2]),
        awaited="the hosts to be idle",
    )
    assert own_training.poll() is None


@pytest.mark.extended
def test_attach_supervises_a_run_whose_supervisors_machine_died(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path, nodes=["h1", "h2"])
    away, here = hosts.orch(tmp_path, on=hosts[0]), hosts.orch(tmp_path)
    run = away("ssh-launch", "--detach", "--", *SLEEPERS).stdout.strip()
    until(lambda: hosts.outputs(here, run) == ["up\n"] * 2, awaited="the ranks")
    hosts[0].kill()
    here("attach", "--detach", run)
    kill(_pid_of(here, run, b"RANK=1"))
    record = _record_at_end(here, run)
    assert (record["state"], record["exit"]["node"], record["exit"]["rank"]) == ("FAILED", "h2", 1)
    until(lambda: here.processes_of(run) == [], awaited="every process of the run to be gone")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 2])
def test_killed_host_fails_the_run_which_names_it_and_ends_on_the_others(
    orch: Orch, hosts: Hosts, own_training: subprocess.Popen[str], lost: int
) -> None:
    run = _start(orch, hosts)
    hosts[lost].kill()
    record = _record_at_end(orch, run)
    assert record["state"] == "FAILED"
    assert f"h{lost}" in record["message"]
    until(lambda: orch.processes_of(run) == [], awaited="every process of the run to be gone")
    assert own_training.poll() is None


@pytest.mark.slow
def test_host_that_is_cut_off_is_replaced_by_a_spare_one(hosts: Hosts, tmp_path: Path) -> None:
    """Only once it has ended its rank itself, because nobody reaches it; its log is read when it can be reached again."""
    hosts.inventory(tmp_path, spares=["h2"], restart={"max_retries": 1})
    orch = hosts.orch(tmp_path)
    script = 'echo "rank $RANK of attempt $ORCH_ATTEMPT on $ORCH_NODE"; [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000'
    run = orch("ssh-launch", "--detach", "--isolation-timeout", "2s", "--", "sh", "-c", script).stdout.strip()
    files = [hosts[rank].path(folder) / f"rank-{rank}.out" for rank, folder in enumerate(orch.node_folders(run))]
    until(lambda: all(_count(file) for file in files), awaited="the ranks")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    hosts[1].link(up=False)
    until(lambda: orch.recorded(run) in ("DONE", "FAILED"), awaited="the outcome", deadline_s=150)
    assert orch.processes_of(run) == []
    hosts[1].link(up=True)
    status = orch.status(run)
    assert (status["state"], status["attempt"]) == ("DONE", 2), _events_text(orch, run)
    assert "h1 is gone" in status["attempts"][0]["decision"]
    assert status["attempts"][0]["decision"].endswith("nothing was saved; h2 replaces h1")
    lines = [line["text"] for line in orch.lines(run) if line["stream"] == "out"]
    assert sorted(lines) == [f"rank {rank} of attempt {attempt} on {node}" for rank, attempt, node in RANKS_WITH_SPARE]


@pytest.mark.extended
@pytest.mark.slow
def test_host_that_reboots_is_waited_for_and_used_also_by_a_later_supervisor(hosts: Hosts, tmp_path: Path) -> None:
    """Status and a watching command name the failure and the end of the wait, not the stop of the other ranks."""
    hosts.inventory(tmp_path, restart={"max_retries": 1})
    orch = hosts.orch(tmp_path)
    script = 'echo up; [ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000'
    run = orch("ssh-launch", "--detach", "--isolation-timeout", "2s", "--", "sh", "-c", script).stdout.strip()
    until(lambda: hosts.outputs(orch, run) == ["up\n"] * 3, awaited="the ranks")
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    hosts[2].kill()
    record = RunFolder(orch.home / "runs" / run)
    until(lambda: waits(record.read()), awaited="the wait")
    printed = orch("status", run, code=None).stdout
    assert "RUNNING  restarting: attempt 2 begins when h2 answers; the run ends if it does not by " in printed
    assert "\nh2 is gone: " in printed
    orch.kill_supervisor(run)
    printed = orch("status", run, code=None).stdout
    assert "RUNNING  attempt 1 failed: h2 is gone: " in printed
    with orch.start("attach", run, "--wait-for-nodes", "1h") as attached:
        assert attached.stderr is not None
        line = ""
        while "attempt 2 begins" not in line:
            line = attached.stderr.readline()
            assert line, "the command ended"
        assert "h2 is gone" in line
        hosts[2].revive()
        assert attached.wait(timeout=100) == 0
    [failed] = record.read().attempts
    assert failed["message"].startswith("h2 is gone")


@pytest.mark.extended
@pytest.mark.train
@pytest.mark.slow
def test_shared_trainer_continues_on_a_spare_host_while_its_rank_on_the_lost_one_still_runs(
    hosts: Hosts, tmp_path: Path
) -> None:
    """Without rank 0, that rank saves nothing, so nothing waits for it; it is ended once its host answers again."""
    hosts.inventory(tmp_path, spares=["h2"], restart={"max_retries": 1}, env={"OMP_NUM_THREADS": 1})
    orch, out = hosts.orch(tmp_path), hosts.folder / "out-of-a-lost-host"
    out.mkdir(mode=0o700)
    os.chown(out, hosts.uid, hosts.gid)
    run = orch("ssh-launch", "--detach", *ENDLESS_TRAINING, f"out={out}").stdout.strip()
    until((out / "step_5").exists, awaited="a checkpoint", deadline_s=120)
    until(lambda: orch.recorded(run) == "RUNNING", awaited="all nodes to answer the supervisor")
    (left,) = (pid for pid in hosts[1].all_processes() if _is_rank(pid))
    standby = hosts[1].path(orch.node_folders(run)[1]) / STANDBY_RECORD
    until(lambda: (read_json(str(standby)) or {}).get("ready"), awaited="what waits on h1 for a restart")
    hosts[1].link(up=False)
    until(lambda: orch.status(run)["attempt"] == 2, awaited="the next attempt", deadline_s=60)
    before = _last_step(out)
    until(lambda: _last_step(out) > before, awaited="a step of the next attempt", deadline_s=60)
    assert _is_rank(left), "the restart has waited for it"
    decision = orch.status(run)["attempts"][0]["decision"]
    assert decision.endswith(
        "; h2 replaces h1; it does not wait for h1, whose ranks save nothing without rank 0, which has ended on h0"
    )
    hosts[1].link(up=True)
    ended = "h1 answers again, and its remaining processes are ended"
    until(lambda: ended in _events_text(orch, run), awaited="the host to answer", deadline_s=60)
    here = set(orch.processes_of(run))
    assert not here.intersection(hosts[1].all_processes()), "neither the rank nor what waited for a restart is left"
    orch("stop", run)
    assert orch.processes_of(run) == []


@pytest.mark.extended
def test_run_continues_after_a_host_was_frozen(orch: Orch, hosts: Hosts) -> None:
    """Its kernel answers, so the other nodes report it reachable."""
    run = _start(orch, hosts)
    before = orch.processes_of(run)
    hosts[1].freeze()
    until(
        lambda: "h1 does not answer this machine" in _events_text(orch, run),
        awaited="the silence to be noticed",
    )
    hosts[1].thaw()
    until(lambda: "h1 answers again" in _events_text(orch, run), awaited="the host to answer")
    assert orch.processes_of(run) == before, orch("logs", run, code=None).stdout + _events_text(orch, run)
    orch("stop", run)
    assert orch.processes_of(run) == []


@pytest.mark.extended
@pytest.mark.slow
def test_log_is_whole_after_the_controller_was_cut_off_for_20_s(orch: Orch, hosts: Hosts) -> None:
    (orch.cwd / "talk.py").write_text(WRITER, encoding="utf-8")
    with orch.start("ssh-launch", "--follow", "--", "talk.py") as following:
        files = [host.path(folder) / f"rank-{rank}.out" for rank, (host, folder) in enumerate(_folders(orch, hosts))]
        until(lambda: all(_count(file) > 1000 for file in files), awaited="log lines")
        hosts.controller.link(up=False)
        cut_at = _count(files[0])
        until(lambda: _count(files[0]) > cut_at + 20_000, awaited="20 s of lines")
        hosts.controller.link(up=True)
        out, err = following.communicate(timeout=100)
    assert following.returncode == 0, err
    for text in (out, orch("logs").stdout):
        for rank, file in enumerate(files):
            lines = re.findall(rf"^\[h{rank}:{rank}\] (.*)$", text, re.MULTILINE)
            assert lines == file.read_text("utf-8").splitlines()
            assert len(lines) == 30_000


def test_no_command_line_on_a_host_shows_an_environment_value(hosts: Hosts, tmp_path: Path) -> None:
    hosts.inventory(tmp_path, env={"API_TOKEN": "s3cret-value", "PLAIN": "plain-value"})
    orch = hosts.orch(tmp_path)
    run = _start(orch, hosts)
    for machine in (hosts.controller, *hosts.hosts):
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in machine.all_processes()]
        assert lines
        assert not [line for line in lines if b"s3cret-value" in line or b"plain-value" in line]
    for pid in orch.processes_of(run):
        assert b"PLAIN=plain-value" in Path(f"/proc/{pid}/environ").read_bytes()
    orch("stop", run)
