"""A failed attempt restarts in the same allocation: without queueing, and without the failed node if there are spares."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grounds import held_task
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.until import until

SAVE = """\
save() {
    echo "{\\"step\\": $1, \\"phase\\": \\"step\\"}" >"$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"
}
echo "rank $RANK on $ORCH_NODE in attempt $ORCH_ATTEMPT, head $MASTER_ADDR"
"""
TRAINING = (
    "task=tests.grounds.held_task:Held", "micro_batch=4", "optim.warmup_steps=2", "device=cpu", "ddp_timeout=60",
    "save_steps=5", "steps=100", "report=",
)  # fmt: skip


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Iterator[Orch]:
    """orch beside an inventory of n0 and n1 with the spares n2 and n3; a job gets one spare."""
    nodes = [
        {"name": "n[0-1]", "address": "127.0.0.[10-11]"},
        {"name": "n[2-3]", "address": "127.0.0.[12-13]", "tags": ["spare"]},
    ]
    cluster.inventory(tmp_path, env={"OMP_NUM_THREADS": "1"}, slurm={"spare_nodes": 1}, nodes=nodes)
    yield Orch(tmp_path, env=dict(cluster.env))
    cluster.repair()


def _submit(orch: Orch, lines: str) -> tuple[str, str]:
    """Submit two ranks on n0 and n1; returns run and job."""
    run = orch("submit", "--detach", "--nodes", "n0,n1", "--", "sh", "-c", SAVE + lines).stdout.strip()
    return run, orch.slurm_job(run)


def _run_dir(orch: Orch, run: str) -> Path:
    return orch.node_folders(run)[0].parent.parent


def _ranks(orch: Orch, run: str) -> list[str]:
    """The ranks' lines (`rank 0 on n0 in attempt 1, head 127.0.0.10`), sorted by attempt and rank."""
    lines = re.findall(r"^rank .*, head .*$", orch.printed(run), re.MULTILINE)
    return sorted(lines, key=lambda text: (text.split()[6], text.split()[1]))


def test_node_whose_rank_failed_is_replaced_and_the_head_moves_with_it(orch: Orch, cluster: Cluster) -> None:
    lines = """
        save "$ORCH_ATTEMPT"
        [ "$ORCH_ATTEMPT" = 2 ] && { [ -e there ] && [ -d "$ORCH_SHARED_DIR" ]; exit; }
        [ "$RANK" = 1 ] && touch there && exec sleep 1000
        until [ -e there ]; do sleep 0.1; done
        exit 7
    """
    run, job = _submit(orch, lines)
    status = cluster.wait_for(orch, run, "DONE")
    assert (status["attempt"], status["slurm_job"]) == (2, job)
    assert _ranks(orch, run) == [
        "rank 0 on n0 in attempt 1, head 127.0.0.10",
        "rank 1 on n1 in attempt 1, head 127.0.0.10",
        "rank 0 on n1 in attempt 2, head 127.0.0.11",
        "rank 1 on n2 in attempt 2, head 127.0.0.11",
    ]
    stats = json.loads(orch("stats", run, "--json").stdout)
    assert (stats["attempts"], stats["failures"], stats["queue_s"] >= 0) == (2, 1, True)
    assert stats["wall_s"] == pytest.approx(stats["productive_s"] + sum(stats["lost"].values()))
    assert stats["lost"]["check"] > 0
    assert (orch.home / "runs" / run / "stats.json").is_file()
    log = orch("logs", run).stdout
    assert "the job restarts in the same allocation, as attempt 2, without n0" in log


def test_program_that_starts_its_ranks_runs_once_per_node_and_is_restarted(orch: Orch, cluster: Cluster) -> None:
    lines = """
        echo "$NNODES $NODE_RANK $NPROC_PER_NODE ${RANK-none} $ORCH_ATTEMPT"
        cd "$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT"
        echo '{"step": 4, "phase": "step"}' >"$ORCH_NODE/progress/$NODE_RANK.json"
        peer=$((1 - NODE_RANK)) # a failure stops the peer, which may not have printed its line yet
        for _ in $(seq 600); do [ -e */progress/$peer.json ] && break || sleep 0.1; done # a spare node may be the peer
        [ "$ORCH_ATTEMPT" = 2 ]
    """
    run = orch("submit", "--detach", "--per-node", "--nodes", "n0,n1", "--", "sh", "-c", lines).stdout.strip()
    status = cluster.wait_for(orch, run, "DONE")
    assert status["attempt"] == 2
    assert [progress["step"] for node in status["nodes"] for progress in node["progress"].values()] == [4, 4]
    printed = [line["text"] for line in orch.lines(run, "--stream", "out")]
    assert sorted(printed)[-2:] == ["2 1 1 none 1", "2 1 1 none 2"]


def test_separate_trainings_of_a_job_are_stopped(orch: Orch, cluster: Cluster) -> None:
    lines = """
        cd "$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress"
        echo '{"step": 4, "phase": "step", "time": 1, "group": [0, 1]}' >"$NODE_RANK.json"
        sleep 1000
    """
    run = orch("submit", "--detach", "--per-node", "--nodes", "n0,n1", "--", "sh", "-c", lines).stdout.strip()
    status = cluster.wait_for(orch, run, "FAILED")
    assert status["attempt"] == 1
    assert "2 trainings, not one: each of 2 ranks takes optimizer steps in no process group" in status["message"]


@pytest.mark.extended
def test_head_ends_the_programs_of_the_other_nodes(orch: Orch, cluster: Cluster) -> None:
    lines = """
        case $NODE_RANK in
            0) until [ -e n1 ] && [ -e n2 ]; do sleep 0.1; done ;;
            1) touch n1; exit 7 ;;
            *) touch n2; sleep 1000 ;;
        esac
    """
    words = ("--per-node", "--until-head", "--nodes", "n[0-2]", "--", "sh", "-c", lines)
    run = orch("submit", "--detach", *words).stdout.strip()
    status = cluster.wait_for(orch, run, "DONE")
    assert status["attempt"] == 1
    until(lambda: not cluster.jobs(), awaited="the end of the job")
    log = orch("logs", run).stdout
    assert "[n1:-] warning: the program (pid " in log
    assert "exited with code 7; the run continues until the program of the first node ends" in log
    assert "[n2:-] stopping the ranks: the program of the first node is done (--until-head)" in log


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_lost_node_is_replaced_without_a_saved_step(orch: Orch, cluster: Cluster) -> None:
    run, job = _submit(orch, '[ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000')
    until(lambda: len(_ranks(orch, run)) == 2, awaited="the first attempt")
    cluster.lose_node("n1")
    status = cluster.wait_for(orch, run, "DONE")
    assert (status["attempt"], status["slurm_job"]) == (2, job)
    assert [text.split()[3] for text in _ranks(orch, run)[2:]] == ["n0", "n2"]


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_job_with_too_few_nodes_left_is_requeued(orch: Orch, cluster: Cluster) -> None:
    run, job = _submit(orch, '[ "$ORCH_ATTEMPT" = 3 ] || exec sleep 1000')
    for attempt, node in ((1, "n1"), (2, "n2")):
        until(lambda: len(_ranks(orch, run)) == 2 * attempt, awaited=f"attempt {attempt}")
        cluster.lose_node(node)
    cluster.repair()
    cluster.start_soon(job)
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 3
    log = orch("logs", run).stdout
    assert log.count("the job restarts in the same allocation, as attempt 2, without n1") == 1
    assert log.count("the job is requeued, for attempt 3") == 1


@pytest.mark.timeout(300)
def test_job_that_has_lost_the_node_of_its_batch_script_is_requeued_and_names_it(orch: Orch, cluster: Cluster) -> None:
    run, job = _submit(orch, '[ "$ORCH_ATTEMPT" = 2 ] || exec sleep 1000')
    until(lambda: len(_ranks(orch, run)) == 2, awaited="the first attempt")
    until(lambda: _is_watching(cluster, "n1"), awaited="the watch of the batch host")
    with orch.start("logs", "-f", run) as following:
        cluster.lose_node("n0", with_steps=True)
        cluster.wait_for(orch, run, "PENDING")
        cluster.repair()
        cluster.start_soon(job)
        text = following.stdout.read() if following.stdout else ""
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 2
    assert text.count("n0, the node of the batch script, is lost: the job is requeued, for attempt 2") == 1
    assert not (_run_dir(orch, run) / "heartbeat").exists()


def _is_watching(cluster: Cluster, node: str) -> bool:
    """True if orch's watch of the batch host runs on this node; it starts about as soon as the ranks."""
    for pid in cluster.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            is_there = f"SLURMD_NODENAME={node}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if is_there and b"watch" in words and b"python" in words[0]:
                return True
    return False


@pytest.mark.extended
def test_job_fails_after_three_attempts_without_progress(orch: Orch, cluster: Cluster) -> None:
    run, job = _submit(orch, "save 3; exit 7")
    status = cluster.wait_for(orch, run, "FAILED")
    assert (status["attempt"], status["slurm_job"]) == (4, job)  # the first one made progress
    assert "exited 7" in status["message"]
    log = orch("logs", run).stdout
    assert (
        log.count("3 attempts in a row made no progress, so the run is not restarted: the newest saved step is 3") == 1
    )


@pytest.mark.extended
def test_memory_of_nodes_is_given_back_after_a_failure_that_no_attempt_follows(orch: Orch, cluster: Cluster) -> None:
    lines = """
        mkdir -p "$ORCH_MEMORY_DIR" && touch "$ORCH_MEMORY_DIR/$RANK" && echo "kept $ORCH_MEMORY_DIR"
        [ "$RANK" = 0 ] && exec sleep 1000
        until [ -e "${ORCH_MEMORY_DIR%.*}.n0/0" ]; do sleep 0.1; done
        exit 7
    """
    run, _ = _submit(orch, lines)  # nothing is saved, so the job is not restarted
    cluster.wait_for(orch, run, "FAILED")
    kept = set(re.findall(r"^kept (.*)$", orch.printed(run), re.MULTILINE))
    assert {path.rpartition(".")[2] for path in kept} == {"n0", "n1"}
    assert not [path for path in kept if Path(path).exists()]


@pytest.mark.extended
def test_crash_after_finished_work_is_a_warning_without_a_restart(orch: Orch, cluster: Cluster) -> None:
    progress = '"$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json"'
    run, _ = _submit(orch, f'echo \'{{"step": 3, "phase": "done"}}\' >{progress}; kill -ABRT $$')
    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 1
    assert orch("logs", run).stdout.count("warning: ") == 2  # one per rank


@pytest.mark.extended
def test_job_that_is_cancelled_between_restarts_is_stopped(orch: Orch, cluster: Cluster) -> None:
    run, job = _submit(orch, 'save "$ORCH_ATTEMPT"; exit 7')
    until(lambda: "in attempt 3" in orch.printed(run), awaited="the third attempt")
    orch("stop", run)
    assert orch.status(run)["state"] == "STOPPED"
    assert job not in cluster.jobs()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(400)
def test_training_that_is_killed_warned_and_preempted_continues_bit_for_bit_each_time(
    orch: Orch, cluster: Cluster
) -> None:
    """Killed: on a spare in the same allocation. Warned, preempted: saved first, and requeued."""
    grounds = orch.cwd / "tests" / "grounds"
    grounds.mkdir(parents=True)
    shutil.copy(held_task.__file__, grounds)
    straight = orch("submit", "--detach", "--nodes", "n0,n1", *TRAINING).stdout.strip()
    cluster.wait_for(orch, straight, "DONE")
    out = cluster.folder / f"out-{straight}"
    held = held_task.hold(out, steps=12)
    run = orch("submit", "--detach", "--nodes", "n0,n1", *TRAINING, f"out={out}").stdout.strip()
    job = orch.slurm_job(run)

    until(lambda: len(_steps(out)) == 12, deadline_s=200, awaited="the first steps")
    events = (orch.node_folder(run, "n1") / "events.jsonl").read_text("utf-8").splitlines()
    [pid] = [event["pid"] for event in map(json.loads, events) if event["event"] == "rank-started"]
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    until(lambda: "resuming from" in orch.printed(run), deadline_s=200, awaited="the second attempt")
    _advance(held, out)
    started = _next_start(orch, run)
    assert started - killed < 90  # orch's part and Slurm's: under 2 s on an idle machine
    assert _first_step_after(out, started) - killed < 200

    cluster.signal(job, "USR2")
    _advance_until_saved(orch, run, held, out, count=1)
    cluster.start_soon(job)
    until(lambda: orch.printed(run).count("resuming from") == 2, deadline_s=200, awaited="the third attempt")
    _advance(held, out)
    cluster.preempt("n0", "n1")
    _advance_until_saved(orch, run, held, out, count=2)
    cluster.start_soon(job)
    held.unlink()

    assert cluster.wait_for(orch, run, "DONE")["attempt"] == 4
    assert len(_steps(out)) == 100
    assert _steps(out) == _steps(_run_dir(orch, straight) / "checkpoints")
    log = orch("logs", run).stdout
    assert log.count("as attempt 2, without n1") == 1
    assert log.count("Slurm will end the job") == 2  # once per node
    assert [log.count(f"the job is requeued, for attempt {attempt}") for attempt in (2, 3, 4)] == [0, 1, 1]
    assert log.count("resuming from") == 3


def _advance(held: Path, out: Path) -> None:
    """Let one more step run than have been made, and wait for it."""
    steps = len(_steps(out)) + 1
    held_task.allow(held, steps=steps)
    until(lambda: len(_steps(out)) >= steps, deadline_s=90, awaited=f"step {steps}")


def _advance_until_saved(orch: Orch, run: str, held: Path, out: Path, *, count: int) -> None:
    """Let steps run one by one until the signal has arrived, after which the ranks save and exit."""

    def saved() -> bool:
        held_task.allow(held, steps=len(_steps(out)) + 1)
        return orch.printed(run).count("preempted: saved at step") == count

    until(saved, deadline_s=200, awaited=lambda: f"the ranks to save, after:\n{orch.printed(run)[-4000:]}")


def _next_start(orch: Orch, run: str) -> float:
    """Start time of the first rank of attempt 2."""
    files = _run_dir(orch, run).glob("attempt-2/*/events.jsonl")
    events = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    return float(min(event["time"] for event in events if event["event"] == "rank-started"))


def _first_step_after(out: Path, moment: float) -> float:
    """Time of the first step after that moment."""
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    return float(min(time_s for time_s in (json.loads(line)["time"] for line in lines) if time_s > moment))


def _steps(out: Path) -> list[tuple[int, float, float, float]]:
    """Step, loss, learning rate and gradient norm, which must repeat bit for bit."""
    path = out / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return [(entry["step"], entry["loss"], entry["lr"], entry["grad_norm"]) for entry in lines]
