"""Idle cards: the rule by sequences of samples, and the agent's sampler with a fake tool that prints published output."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from orchestrator.node.agent.card_sampler import CardSampler, visible_cards
from orchestrator.node.agent.idle_cards import SAMPLES, SAMPLES_IN_DOUBT, IdleCards, Steps, reported_steps
from orchestrator.node.cards import kind_of_cards
from orchestrator.node.number_text import format_numbers, parse_numbers
from orchestrator.node.run.events import Clock, EventLog
from orchestrator.node.run.job import Job
from orchestrator.node.vendor.nvidia_smi import parse_gpus
from tests.grounds.components import unavailable
from tests.node.agent.test_agent_ground import Ground, ground
from tests.paths import CASES
from tests.until import until

__all__ = ["ground"]

ONE_BUSY = {0: 97.0, **dict.fromkeys(range(1, 8), 0.0)}
ALL_BUSY = dict.fromkeys(range(8), 90.0)
ALL_IDLE = dict.fromkeys(range(8), 0.0)


def _steps(newest: int | None, *, between: bool = False) -> Steps:
    return Steps(newest, is_between=between)


def _found_at(
    samples: Sequence[tuple[dict[int, Any], Steps]], *, ranks: int = 8, may_all_idle: bool = True
) -> int | None:
    """The number of the first sample that finds idle cards; None if none does."""
    idle_cards = IdleCards(ranks, may_all_idle=may_all_idle)
    return next((at for at, sample in enumerate(samples, 1) if idle_cards.add(*sample)), None)


def test_seven_idle_cards_are_found_in_the_third_sample_after_the_first_step() -> None:
    starting = [(ONE_BUSY, _steps(0, between=True))] * 10
    training = [(ONE_BUSY, _steps(step)) for step in range(1, 5)]
    assert _found_at([*starting, *training]) == len(starting) + SAMPLES
    idle_cards = IdleCards(8, may_all_idle=True)
    assert [idle_cards.add(*sample) for sample in training][-1] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("loads", "steps"),
    [
        pytest.param(ALL_BUSY, range(1, 21), id="all cards busy"),
        pytest.param(ONE_BUSY, [0] * 20, id="no step yet: loading, compiling"),
        pytest.param(ONE_BUSY, [5] * 20, id="no further step: a hang, or one rank compiles"),
        pytest.param(ALL_IDLE, [5] * 20, id="no card is busy and no further step"),
        pytest.param(ALL_IDLE, [None] * 20, id="a program that reports nothing loads"),
        pytest.param(dict.fromkeys(range(8)), range(1, 21), id="MIG: no utilisation"),
        pytest.param({**ONE_BUSY, 3: None}, range(1, 21), id="one value is unknown"),
        pytest.param({}, range(1, 21), id="no cards"),
    ],
)
def test_no_card_is_called_idle(loads: dict[int, Any], steps: Sequence[int | None]) -> None:
    assert _found_at([(loads, _steps(step)) for step in steps]) is None


def test_samples_while_a_rank_saves_or_evaluates_do_not_count() -> None:
    assert _found_at([(ONE_BUSY, _steps(step, between=True)) for step in range(1, 21)]) is None


def test_card_that_works_at_times_is_not_idle() -> None:
    samples = [({**ALL_BUSY, 3: 0.0 if step % 3 else 40.0}, _steps(step)) for step in range(1, 30)]
    assert _found_at(samples) is None


def test_two_ranks_on_eight_cards_need_two_cards_only() -> None:
    training = [({**ALL_IDLE, 2: 50.0, 5: 50.0}, _steps(step)) for step in range(1, 10)]
    assert _found_at(training, ranks=2) is None
    assert _found_at(training, ranks=3) == SAMPLES


def test_training_on_the_cpu_is_found_only_if_the_inventory_names_the_accelerator() -> None:
    training = [(ALL_IDLE, _steps(step)) for step in range(1, 10)]
    assert _found_at(training) == SAMPLES_IN_DOUBT
    assert _found_at(training, may_all_idle=False) is None


def test_program_without_reported_steps_needs_more_samples() -> None:
    assert _found_at([(ONE_BUSY, _steps(None))] * 10) == SAMPLES_IN_DOUBT


@pytest.mark.parametrize(
    ("reports", "newest", "is_between"),
    [
        ([], None, False),
        ([{"step": 3, "phase": "step"}, {"step": 4, "phase": "save"}], 4, True),
        ([{"step": "x"}], None, False),
    ],
)
def test_steps_are_those_of_the_progress_files(
    tmp_path: Path, reports: list[object], newest: int, is_between: bool
) -> None:
    (tmp_path / "progress").mkdir()
    for rank, report in enumerate(reports):
        (tmp_path / "progress" / f"{rank}.json").write_text(json.dumps(report))
    steps = reported_steps(str(tmp_path), range(8))
    assert (steps.newest, steps.is_between) == (newest, is_between)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1, 0", [1, 0]),
        ("GPU-272445e2-6643-78d8-f636-ba8881fd789d", [1]),
        ("", []),
        ("MIG-1c2d", []),
        ("7", []),
    ],
)
def test_cards_that_the_ranks_do_not_see_are_left_out(visible: str | None, expected: list[int]) -> None:
    cards = parse_gpus((CASES / "vendor" / "gpus-l20.csv").read_text())["cards"]
    assert [card["index"] for card in visible_cards(cards, visible)] == expected


def test_accelerator_of_the_inventory_decides_on_the_tool() -> None:
    assert [kind_of_cards(kind) for kind in ("cuda", "gcu", "cpu")] == ["cuda", "gcu", None]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,5", {0, 1, 2, 5}), ("", set()), ("3\n", {3}), ("2-1", None), ("a", None)]
)
def test_list_of_numbers(text: str, numbers: set[int] | None) -> None:
    assert parse_numbers(text) == numbers
    if numbers:
        assert format_numbers(numbers) == text.strip()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a fake vendor's tool on PATH that runs the script."""

    def put(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return put


def _job(accelerator: str, ranks: int) -> Job:
    fields = {"args": ["train.sh"], "python": False, "cwd": None, "pythonpath": None}
    return Job(
        node="n0", node_rank=0, run_id="r", attempt=1, run_dir="", bundle_dir="", nodes=None, addresses=[], ranks=[ranks],
        program=fields, grace_s=1.0, accelerator=accelerator, card_sample_s=0.0,
    )  # fmt: skip


def _sampled(sampler: CardSampler, folder: Path, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Poll a sampler, while a rank makes steps, until its report fulfils the condition."""
    path, progress = folder / "cards.json", folder / "progress" / "0.json"
    steps = itertools.count(json.loads(progress.read_text())["step"] if progress.exists() else 1)

    def report() -> dict[str, Any] | None:
        progress.write_text(json.dumps({"step": next(steps), "phase": "step"}))
        sampler.poll()
        body: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return body if body and condition(body) else None

    return until(report, awaited="a sample of the cards")


def _poll_until(sampler: CardSampler, file: Path) -> None:
    """Poll a sampler until there is the file."""

    def exists() -> bool:
        sampler.poll()
        return file.exists()

    until(exists, awaited=file.name)


def test_cards_of_a_t20_that_sleep_while_one_works_are_reported(
    tmp_path: Path, tool: Callable[[str, str], None]
) -> None:
    """The fake efsmi prints the published table of two T20, with the first card at work; then it fails; then both work."""
    one_busy = (
        (CASES / "vendor" / "efsmi-t20.txt").read_text().replace("0.0%     W28001210504", "85.0%    W28001210504")
    )
    table = tmp_path / "table"
    table.write_text(one_busy)
    tool("efsmi", f"exec cat '{table}'")
    (tmp_path / "progress").mkdir()
    sampler = CardSampler(_job("gcu", 2), str(tmp_path), EventLog(str(tmp_path), Clock()))
    body = _sampled(sampler, tmp_path, lambda body: body["idle"])
    assert (body["tool"], body["idle"], body["expected"], body["used"], body["error"]) == ("efsmi", [1], 2, 1, "")
    assert body["cards"][1]["state"] == "Sleep"
    assert body["mean_percent"] == 42.5
    assert body["samples"] >= 1
    table.unlink()
    assert _sampled(sampler, tmp_path, lambda body: body["error"])["idle"] == []
    table.write_text(one_busy)
    _sampled(sampler, tmp_path, lambda body: body["idle"])
    table.write_text(one_busy.replace("0.0%     W28001010604", "85.0%    W28001010604"))
    _sampled(
        sampler,
        tmp_path,
        lambda body: body["used"] == 2 and not body["error"] and body["cards"][1]["utilization_percent"],
    )
    events = [json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    warning = "warning: 1 of 2 cards idle: efsmi shows 0 % on 1 in several samples in a row"
    assert events == [warning, "the idle cards are in use now"]
    sampler.close()
    until(lambda: sampler.unkillable is None, awaited="the end of the tool")


def test_utilization_is_that_of_the_cards_that_the_ranks_should_use(
    tmp_path: Path, tool: Callable[[str, str], None]
) -> None:
    table = (CASES / "vendor" / "efsmi-t20.txt").read_text()
    (tmp_path / "table").write_text(table.replace("0.0%     W28001210504", "85.0%    W28001210504"))
    tool("efsmi", f"exec cat '{tmp_path}/table'")
    (tmp_path / "progress").mkdir()
    sampler = CardSampler(_job("gcu", 1), str(tmp_path), EventLog(str(tmp_path), Clock()))
    body = _sampled(sampler, tmp_path, lambda body: body["samples"])
    assert (body["mean_percent"], body["expected"]) == (85.0, 1)
    sampler.close()
    until(lambda: sampler.unkillable is None, awaited="the end of the tool")


def test_missing_tool_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("orchestrator.node.vendor.tool.FOLDERS", ())
    sampler = CardSampler(_job("gcu", 2), str(tmp_path), EventLog(str(tmp_path), Clock()))
    _poll_until(sampler, tmp_path / "cards.json")
    assert json.loads((tmp_path / "cards.json").read_text())["error"] == "not found"
    (tmp_path / "cards.json").unlink()
    for _ in range(5):
        sampler.poll()
    assert not (tmp_path / "cards.json").exists()


def test_tool_that_hangs_is_killed_when_the_ranks_have_ended(tmp_path: Path, tool: Callable[[str, str], None]) -> None:
    tool("efsmi", f"echo $$ > '{tmp_path}/pid'; exec sleep 1000")
    sampler = CardSampler(_job("gcu", 2), str(tmp_path), EventLog(str(tmp_path), Clock()))
    _poll_until(sampler, tmp_path / "pid")
    sampler.close()
    until(lambda: sampler.unkillable is None, awaited="the end of the tool")


@pytest.mark.processes
def test_agent_warns_of_idle_cards_and_ends_without_waiting_for_the_tool(
    ground: Ground, tmp_path: Path, tool: Callable[[str, str], None]
) -> None:
    """The fake nvidia-smi prints the published query of two L20, with the first card at work; later it hangs."""
    query = (CASES / "vendor" / "gpus-l20.csv").read_text().replace("56, 0, 42248", "56, 99, 42248")
    (tmp_path / "query").write_text(query)
    tool("nvidia-smi", f"[ -e '{tmp_path}/hang' ] && exec sleep 1000; cat '{tmp_path}/query'")
    progress, go = ground.folder() / "progress", tmp_path / "end"
    report = f'"{progress}/$RANK.json"'
    count = f'i=0; until [ -e {go} ]; do i=$((i+1)); echo "{{\\"step\\": $i, \\"phase\\": \\"step\\"}}" > {report}.tmp'
    script = f"{count}; mv {report}.tmp {report}; sleep 0.1; done"
    ground.job("sh", "-c", script, ranks=(2,), accelerator="cuda", card_sample_s=0.05)
    started = ground.start()
    [warning] = until(
        lambda: [event for event in ground.events("note") if "cards idle" in event["text"]], awaited="the warning"
    )
    assert warning["text"] == "warning: 1 of 2 cards idle: nvidia-smi shows 0 % on 1 in several samples in a row"
    (tmp_path / "hang").touch()
    go.touch()
    _, err = started.communicate(timeout=20)
    assert err == ""
    assert ground.finished()["state"] == "DONE"
    assert started.returncode == 0


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system on which a write waits in the kernel, where no signal ends it."""
    folder = tmp_path / "frozen"
    folder.mkdir()
    with ExitStack() as stack:
        image = stack.enter_context(NamedTemporaryFile(dir="/dev/shm"))
        image.truncate(4 << 20)
        steps: list[tuple[list[str], list[str]]] = [
            (["mkfs.ext4", "-q", image.name], []),
            (["mount", "-o", "loop", image.name, str(folder)], ["umount", "--lazy", str(folder)]),
            (["fsfreeze", "--freeze", str(folder)], ["fsfreeze", "--unfreeze", str(folder)]),
        ]
        for command, undo in steps:
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                unavailable(f"{command[0]}: {error}")
            if undo:
                stack.callback(subprocess.check_call, undo)
        yield folder


@pytest.mark.processes
def test_agent_and_guard_end_although_the_driver_keeps_a_killed_tool(
    ground: Ground, frozen: Path, tool: Callable[[str, str], None]
) -> None:
    tool("nvidia-smi", f"exec touch '{frozen}/file'")
    ground.job("sleep", "0.7", accelerator="cuda", card_sample_s=0.05)
    started = ground.start()
    until(lambda: ground.events("agent-finished"), awaited="the end of the agent")
    assert ground.finished()["state"] == "DONE"
    assert started.wait(timeout=10) == 0  # of the guard, which is the task that Slurm waits for
