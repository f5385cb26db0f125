"""Real trainings on gloo: the loss falls, resuming is exact, and failures end all ranks with the right error."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.grounds import held_task
from tests.grounds.metrics import read_metrics, step_numbers
from tests.train.conftest import DEADLINE_S, HELD, StartRanks, Torchrun
from tests.until import until
from trainer.config.config import OptimConfig
from trainer.optim.schedule import Schedule

pytestmark = pytest.mark.train


def test_loss_falls_under_torchrun(torchrun: Torchrun, tmp_path: Path) -> None:
    done = torchrun("steps=60", "save_steps=40", "log_steps=20", "lr=1e-2", "accumulation=2")
    assert done.returncode == 0, done.stderr
    assert "2/2 ranks ready, backend gloo, device cpu" in done.stdout
    assert "rank 1 ready, device cpu" in done.stdout
    losses = [record["loss"] for record in read_metrics(tmp_path / "out")]
    assert len(losses) == 60
    assert losses[0] > 5.4
    assert losses[-1] < 3.6
    rates = [record["lr"] for record in read_metrics(tmp_path / "out")]
    assert rates == pytest.approx(
        [5e-3, 1e-2, *(Schedule(OptimConfig(warmup_steps=2), 1e-2, 60).rate(step) for step in range(3, 61))]
    )
    assert len(re.findall(r"^step=20 loss=\d\.\d{4}", done.stdout, re.MULTILINE)) == 2
    assert re.search(
        r"^step=20 .* data_wait_s=\S+ peak_memory_gb=\d\.\d{3} eta=0:\d\d:\d\d$", done.stdout, re.MULTILINE
    )
    summary = re.search(r"^summary steps=60 first_loss=(\S+) last_loss=(\S+) tokens/s=\d+ wall_s=\S+ .*checkpoint=(\S+)$",
                        done.stdout, re.MULTILINE)  # fmt: skip
    assert summary is not None
    assert summary.groups() == (f"{losses[0]:.4f}", f"{losses[-1]:.4f}", str(tmp_path / "out" / "step_60"))


def test_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(start_ranks: StartRanks, tmp_path: Path) -> None:
    """Three ranks: a sum of two has only one order, and a change of DDP's buckets would go unnoticed."""
    words = ("steps=8", "save_steps=4", "accumulation=2")
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    assert [rank.wait() for rank in start_ranks(*words, f"out={uninterrupted}", world_size=3)] == [0, 0, 0]
    resumed.mkdir()
    shutil.copytree(uninterrupted / "step_4", resumed / "step_4")
    ranks = start_ranks(*words, f"out={resumed}", world_size=3)
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    assert f"resuming from {resumed / 'step_4'}, step 4" in ranks[0].out
    assert step_numbers(resumed) == step_numbers(uninterrupted)[4:]
    assert (resumed / "step_8" / "r00000.safetensors").read_bytes() == (
        uninterrupted / "step_8" / "r00000.safetensors"
    ).read_bytes()


def test_killed_run_resumes_from_its_checkpoint_under_orch(start_ranks: StartRanks, tmp_path: Path) -> None:
    words = ("steps=40", "save_steps=20", "micro_batch=8")
    uninterrupted, run_dir = tmp_path / "uninterrupted", tmp_path / "run"
    assert [rank.wait() for rank in start_ranks(*words, f"out={uninterrupted}", base=HELD)] == [0, 0]
    orch = {"ORCH_RUN_DIR": str(run_dir), "ORCH_NODE": "n0", "ORCH_ATTEMPT": "1"}
    out = run_dir / "checkpoints"
    held = held_task.hold(out)
    first = start_ranks(*words, env=orch, base=HELD)
    until((out / "step_20").exists, deadline_s=DEADLINE_S, awaited="the first checkpoint")
    first[1].process.kill()
    held.unlink()
    assert first[0].wait() not in (0, 2)  # the survivor fails at once, without waiting for ddp_timeout
    assert first[1].wait() == -signal.SIGKILL
    second = start_ranks(*words, env={**orch, "ORCH_ATTEMPT": "2"}, base=HELD)
    assert [rank.wait() for rank in second] == [0, 0]
    assert f"resuming from {out / 'step_20'}, step 20" in second[0].out
    assert step_numbers(out) == step_numbers(uninterrupted)
    progress = [json.loads((run_dir / "attempt-2/n0/progress" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [(record["phase"], record["step"], record["steps"]) for record in progress] == [("done", 40, 40)] * 2
    assert progress[0]["ready"] == "2/2 ranks ready, backend gloo, device cpu"
    assert progress[0]["summary"]["last_loss"] == read_metrics(uninterrupted)[-1]["loss"]
    assert [record["saved"] for record in progress] == [40, 40]
    times = list(progress[0]["times"].items())
    assert [name for name, _ in times] == ["restore", "restored", "first_step", "first_step_end"]
    assert times == sorted(times, key=lambda entry: entry[1])
    assert "times" not in progress[1]
    assert (progress[0]["resumed"], progress[0]["saves"]) == (20, 1)
    assert progress[0]["save_s"] > 0
    assert progress[0]["replicas"] == progress[1]["replicas"]
    assert list(progress[0]["replicas"]["steps"]) == ["40"]
    assert set(progress[0]["summary"]) == {
        *("steps", "first_loss", "last_loss", "tokens_per_s", "wall_s", "checkpoint"),
        *("step_time_p50_s", "step_time_p99_s", "data_wait_s", "peak_memory_bytes", "total_tokens"),
    }
    assert progress[0]["summary"]["total_tokens"] == 40 * 8 * 2 * 32  # those before the restart included


def test_restarted_finished_run_trains_no_step(start_ranks: StartRanks, tmp_path: Path) -> None:
    words = ("steps=2", f"out={tmp_path / 'out'}")
    assert start_ranks(*words, world_size=1)[0].wait() == 0
    (restarted,) = start_ranks(*words, world_size=1)
    assert restarted.wait() == 0
    assert f"checkpoint={tmp_path / 'out' / 'step_2'}" in restarted.out
    assert "step=" not in restarted.out.replace("steps=", "")


def test_data_missing_on_one_rank_makes_all_exit_2(start_ranks: StartRanks, tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "text.txt").write_text("only rank 0 has this " * 99)
    started = time.monotonic()
    ranks = start_ranks("data.paths=text.txt", "ddp_timeout=600")
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert time.monotonic() - started < 60  # torch's import included; far below any timeout
    assert ranks[0].err == "error: rank 1: data.paths: text.txt: no such file or folder\n"
    assert ranks[1].err == ""
    recorded = json.loads((ranks[1].folder / "1.json").read_text())
    assert recorded["message"]["message"] == "rank 1: data.paths: text.txt: no such file or folder"
    assert recorded["message"]["extraInfo"]["timestamp"].isdigit()


def test_rank_without_a_device_is_named_by_all(start_ranks: StartRanks) -> None:
    ranks = start_ranks("device=gcu", env={"ORCH_NODE": "n7"})
    assert [rank.wait() for rank in ranks] == [2, 2]
    assert "rank 0-1: device=gcu: torch_gcu is not installed" in ranks[0].err
    assert "(on n7)" in ranks[0].err


def test_missing_rank_is_named(start_ranks: StartRanks) -> None:
    (alone,) = start_ranks("ddp_timeout=1", world_size=2, only=0)
    assert alone.wait() == 1
    assert "error: 1/2 ranks ready after 1 s; missing: rank 1" in alone.err


def test_rendezvous_without_a_host_is_named(start_ranks: StartRanks) -> None:
    (alone,) = start_ranks("ddp_timeout=1", world_size=2, only=1)
    assert alone.wait() == 1
    assert "rank 1 cannot reach the rendezvous at 127.0.0.1:" in alone.err


def test_loss_that_explodes_stops_before_the_update(start_ranks: StartRanks, tmp_path: Path) -> None:
    ranks = start_ranks("lr=1e30", "steps=50", "optim.warmup_steps=0", f"out={tmp_path / 'out'}")
    assert [rank.wait() for rank in ranks] == [1, 1]
    assert re.match(r"error: rank 0-1: loss is (nan|inf) at step \d+; the weights were not updated", ranks[0].err)
    assert "Traceback" not in ranks[0].err + ranks[1].err
    assert not (tmp_path / "out" / "latest").exists()


def test_sigterm_ends_a_rank_that_waits_in_a_collective(start_ranks: StartRanks, tmp_path: Path) -> None:
    waiting, stopped = start_ranks("steps=1000000", f"out={tmp_path / 'out'}")
    metrics = tmp_path / "out" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.stat().st_size > 0, deadline_s=DEADLINE_S, awaited="the first step")
    stopped.process.send_signal(signal.SIGSTOP)
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.process.wait(timeout=5) == -signal.SIGTERM


@pytest.mark.parametrize("name", [pytest.param("USR2", marks=pytest.mark.extended), "TERM"])
def test_preemption_signal_to_one_rank_makes_all_save_and_exit_99(
    start_ranks: StartRanks, tmp_path: Path, name: str
) -> None:
    """A SIGTERM that is not from the launcher, such as Slurm's when it preempts a job."""
    words = ("steps=60", "save_steps=1000", "micro_batch=64")
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    assert [rank.wait() for rank in start_ranks(*words, f"out={uninterrupted}")] == [0, 0]
    ranks = start_ranks(*words, f"out={resumed}")
    metrics = resumed / "metrics.jsonl"
    until(lambda: metrics.exists() and len(read_metrics(resumed)) > 1, deadline_s=DEADLINE_S, awaited="the first steps")
    subprocess.run(["kill", f"-{name}", str(ranks[1].process.pid)], check=True)
    assert [rank.wait() for rank in ranks] == [99, 99]
    steps = len(read_metrics(resumed))
    assert steps < 60
    assert f"saved at step {steps}, to be restarted (exit code 99)" in ranks[0].out
    assert [rank.wait() for rank in start_ranks(*words, f"out={resumed}")] == [0, 0]
    assert step_numbers(resumed) == step_numbers(uninterrupted)


def test_unexpected_error_keeps_its_traceback_and_fills_the_error_file(start_ranks: StartRanks) -> None:
    """Out of memory would recur in another attempt, so its exit code forbids a retry."""
    words = (f"model.vocabulary={10**12}", f"model.width={10**18}")
    large, wrong = (start_ranks(word, f"out={word}", world_size=1)[0] for word in words)
    assert [rank.wait() for rank in (large, wrong)] == [93, 1]
    for rank, kind, message in ((large, "memory", "out of memory: "), (wrong, "code", "RuntimeError: ")):
        assert "Traceback" in rank.err
        recorded = json.loads((rank.folder / "0.json").read_text())["message"]
        assert recorded["message"].startswith(message)
        assert recorded["extraInfo"]["kind"] == kind
        assert "/trainer/" in recorded["extraInfo"]["py_callstack"]
    assert "take a smaller micro_batch" in large.err.splitlines()[-1]
