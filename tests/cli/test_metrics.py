"""`orch metrics`: the same values as `orch status`, in the format that Prometheus reads; a file is replaced until the run ends."""

from __future__ import annotations

import math
import signal
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.app import run
from tests.cli.two_nodes import finished_run, open_gate
from tests.grounds.cli import Orch
from tests.until import until

PROGRAM = """
import os, time
from orch_progress import report
step = 0
while not os.path.exists(GATE):
    time.sleep(0.05)
    step += 1
    report(step, steps=100_000, loss=float("nan"))
"""
Series = tuple[str, tuple[tuple[str, str], ...]]


def samples(text: str) -> Mapping[Series, float]:
    """The samples by name and labels, as the client library of Prometheus reads them."""
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "gauge" and family.documentation for family in families)
    found = [sample for family in families for sample in family.samples]
    by_series = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
    assert len(by_series) == len(found), "no series twice"
    return by_series


def values_of(file: Path, name: str) -> list[float]:
    return [value for (sample, _), value in samples(file.read_text()).items() if sample == name]


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_file_is_replaced_until_the_run_ends(orch: Orch, tmp_path: Path) -> None:
    gate, file = orch.cwd / ".end", tmp_path / "orch.prom"
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(gate))))
    open_gate(orch)
    name = orch("ssh-launch", "--detach", "--no-check", "--", "train.py").stdout.strip()
    with orch.start("metrics", name, "--output", str(file), "--every", "1s") as writer:
        until(lambda: file.exists() and values_of(file, "orch_run_step"), awaited="the first step")
        first = max(values_of(file, "orch_run_step"))
        until(lambda: max(values_of(file, "orch_run_step")) > first, awaited="a newer step")
        until(lambda: values_of(file, "orch_run_steps_per_second"), awaited="a speed, which two looks show")
        found = samples(file.read_text())
        of_run = labelled(run=name, attempt="1")
        assert found["orch_run_state", labelled(run=name, attempt="1", state="RUNNING")] == 1
        assert found["orch_run_state", labelled(run=name, attempt="1", state="FAILED")] == 0
        assert found["orch_run_steps_planned", of_run] == 100_000
        assert math.isnan(found["orch_run_loss", of_run])
        for node, rank in (("n0", "0"), ("n1", "1")):
            assert found["orch_node_up", labelled(run=name, attempt="1", node=node)] == 1
            assert found["orch_rank_step", labelled(run=name, attempt="1", node=node, rank=rank)] > 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
        gate.touch()
        assert writer.wait(timeout=60) == 0
    found = samples(file.read_text())
    assert found["orch_run_state", labelled(run=name, attempt="1", state="DONE")] == 1
    assert [path.name for path in tmp_path.iterdir() if ".prom" in path.name] == ["orch.prom"]
    printed = samples(orch("metrics", name).stdout)
    assert {series for series, _ in printed} == {series for series, _ in found}


def test_ctrl_c_ends_the_writing_alone(orch: Orch, tmp_path: Path) -> None:
    gate, file = orch.cwd / ".end", tmp_path / "orch.prom"
    (orch.cwd / "train.py").write_text(PROGRAM.replace("GATE", repr(str(gate))))
    open_gate(orch)
    name = orch("ssh-launch", "--detach", "--no-check", "--", "train.py").stdout.strip()
    with orch.start("metrics", name, "--output", str(file), "--every", "1h") as writer:
        until(file.exists, awaited="the file")
        writer.send_signal(signal.SIGINT)
        _, errors = writer.communicate(timeout=60)
    assert writer.returncode == 130
    assert f"orch.prom is no longer replaced; run {name} continues" in errors
    assert orch.status(name)["state"] == "RUNNING"
    gate.touch()
    until(lambda: orch.recorded(name) == "DONE", awaited="the end")


def test_a_run_without_steps_has_no_step(orch: Orch) -> None:
    name = finished_run(orch, "true")
    names = {series for series, _ in samples(orch("metrics", name).stdout)}
    assert "orch_run_state" in names
    assert not any(series in names for series in ("orch_run_step", "orch_run_loss", "orch_rank_step"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--output", "run.txt"], "--output run.txt: node_exporter reads only files whose names end with .prom"),
        (["--output", "nowhere/run.prom"], "--output nowhere/run.prom: nowhere is no folder"),
        (
            ["--every", "15s"],
            "--every is for a file that is replaced\n  next: orch metrics --output FILE --every 15s",
        ),
        (["--output", "run.prom", "--every", "soon"], "--every soon: not a time span"),
        (["--output", "run.prom", "--every", "0s"], "--every 0s: less than one second"),
    ],
)
def test_refused_options(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["metrics", *words]) == 2
    assert text in capsys.readouterr().err
