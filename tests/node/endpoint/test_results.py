"""Which files of a run's folder are results."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.endpoint.garbage import Size

OF_ORCH = [
    "config.json",
    ".claimed",
    "comm.json",
    "facts/0/n0.json",
    "code.new-0a1b/train.py",
    "attempt-1/job.json",
    "attempt-1/node.sh",
    "attempt-1/submit.sbatch",
    "attempt-1/slurm-17.log",
    "attempt-1/17_submission.sh",
    "heartbeat",
    "attempt-1/head-done",
    "attempt-1/n0/hostfile",
    "attempt-2.4711/job.json",
    "attempt-1/standby.json.tmp",
    "attempt-1/n0/agent.json",
    "attempt-1/n0/agent.json.tmp",
    "attempt-1/n0/rank-12.err",
    "attempt-1/n0/program.out",
    "attempt-1/n0/progress/0.json",
    "attempt-1/n0/stacks/nccl_trace_rank_0",
    "attempt-1/n0/error/program.json",
    "attempt-1/n0/DONE",
]
RECORD = [
    "plan/n0/node.sh",
    "events.jsonl",
    "findings.json",
    "run.lock",
    "supervisor.log",
    "stop-asked",
    ".run.json.ab_12xyz",
    "queries/1.json",
]
CACHES = [
    "code/__pycache__/train.cpython-311.pyc",
    "code/pkg/__pycache__/a.pyc",
    "code/.triton/cache/k.so",
    "shared/torch_extensions/x/x.so",
]
RESULTS = [
    "checkpoints/step_20/state.pt",
    "results.csv",
    "model.onnx",
    "shared/features.h5",
    "stats.json",
    "plan/figure.png",
    "code/adapter_model.bin",
    "code/outputs/model.pkl",
    "code/lightning_logs/version_0/events.out.tfevents.1",
    "code/wandb/run-1/run.wandb",
    "code/.cache/features.npz",
    "code/core.4711",
    "attempt-1/n0/core",
    "attempt-1/n0/rank-0.npz",
    "attempt-1/predictions.json",
    "rank-0.out",
]


def _results(run: Path, names: list[str]) -> list[str]:
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    return Size(str(run), ()).results.names


@pytest.mark.parametrize("name", OF_ORCH + CACHES)
def test_file_of_orch_or_of_a_cache_is_no_result(tmp_path: Path, name: str) -> None:
    assert _results(tmp_path, [name]) == []


@pytest.mark.parametrize("name", RESULTS)
def test_any_other_file_is_a_result(tmp_path: Path, name: str) -> None:
    assert len(_results(tmp_path, [name])) == 1


def test_file_of_a_record_is_no_result_beside_the_record_alone(tmp_path: Path) -> None:
    assert _results(tmp_path, [*RECORD, "run.json"]) == []
    (tmp_path / "run.json").unlink()
    assert Size(str(tmp_path), ()).results


def test_folder_that_declares_itself_a_cache_is_no_result_but_one_without_the_signature_is(tmp_path: Path) -> None:
    for folder, text in (("a", "Signature: 8a477f597d28d172789f06886806bc55\n"), ("b", "mine")):
        (tmp_path / "code" / folder / "v" / "deep").mkdir(parents=True)
        (tmp_path / "code" / folder / "v" / "deep" / "x.bin").touch()
        (tmp_path / "code" / folder / "CACHEDIR.TAG").write_text(text)
    assert Size(str(tmp_path), ()).results.names == ["code/b/"]


def test_links_empty_folders_and_pipes_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "code" / "outputs").mkdir(parents=True)
    (tmp_path / "code" / "data").symlink_to("/")
    assert not Size(str(tmp_path), ()).results


def test_results_are_named_by_their_folders_the_largest_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    _results(tmp_path, [f"code/out{number}/a/b.bin" for number in range(7)])
    (tmp_path / "code" / "best.pt").write_text("xx")
    results = Size(str(tmp_path), ()).results
    assert results.names == ["code/best.pt", "code/out0/", "code/out1/", "code/out2/", "code/out3/", "3 more"]
    assert results.bytes == 9
