"""Finding the newest attempt of a run in a working folder through an endpoint."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.logs import BatchLog
from orchestrator.endpoint.observation import RunTrace
from orchestrator.errors import NodeError
from orchestrator.transports.local import LocalTransport

RUN = "gpt-20261121-101500-ab12"
JOB: dict[str, Any] = {"version": 1, "nodes": ["n0", "n1"], "ranks": [8, 4]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint.connect(LocalTransport("n0"), sys.executable) as endpoint:
        yield endpoint


def _attempt(workdir: Path, number: int, job: object) -> Path:
    folder = workdir / "runs" / RUN / f"attempt-{number}"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job))
    return folder


def test_newest_attempt_is_found_by_its_number(endpoint: Endpoint, tmp_path: Path) -> None:
    for number in (2, 10, 9):
        _attempt(tmp_path, number, {**JOB, "ranks": [number, number]})
    (tmp_path / "runs" / RUN / "attempt-11.old").mkdir()
    assert endpoint.find(str(tmp_path), RUN) == RunTrace(10, ("n0", "n1"), (10, 10), by_slurm=False)


def test_run_with_a_batch_script_is_a_slurm_run(endpoint: Endpoint, tmp_path: Path) -> None:
    (_attempt(tmp_path, 1, {**JOB, "nodes": None}) / "submit.sbatch").touch()
    assert endpoint.find(str(tmp_path), RUN) == RunTrace(1, None, (8, 4), by_slurm=True)


def test_end_of_the_newest_batch_log_is_returned(endpoint: Endpoint, tmp_path: Path) -> None:
    folder = _attempt(tmp_path, 1, {**JOB, "nodes": None})
    for name, text, written_s in (("submit.sbatch", "", 9), ("slurm-7.log", "new é", 8), ("slurm-8.log", "old", 7)):
        (folder / name).write_text(text, "utf-8")
        os.utime(folder / name, (written_s, written_s))
    trace = endpoint.find(str(tmp_path), RUN, log_bytes=4)
    assert trace is not None
    assert trace.batch_log == BatchLog("w é", 8)


def test_unknown_run_has_no_trace(endpoint: Endpoint, tmp_path: Path) -> None:
    assert endpoint.find(str(tmp_path), RUN) is None
    assert endpoint.find(str(tmp_path / "none"), RUN) is None
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    assert endpoint.find(str(tmp_path), RUN) is None


@pytest.mark.parametrize("run", ["../x", "..", "", "/etc", "a/../../b"])
def test_name_that_leads_elsewhere_is_refused(endpoint: Endpoint, tmp_path: Path, run: str) -> None:
    with pytest.raises(NodeError, match="leads out of the folder"):
        endpoint.find(str(tmp_path), run)


@pytest.mark.parametrize(
    "job",
    [
        None,
        [],
        {},
        {**JOB, "version": 2},
        {**JOB, "nodes": ["n0"]},
        {**JOB, "nodes": 3},
        {**JOB, "ranks": []},
        {**JOB, "ranks": ["x", "y"]},
        {**JOB, "ranks": None},
    ],
)
def test_invalid_job_is_named_with_its_folder(endpoint: Endpoint, tmp_path: Path, job: object) -> None:
    _attempt(tmp_path, 3, job)
    with pytest.raises(NodeError, match=rf"runs/{RUN}: attempt-3/job\.json is (missing or damaged|of another version)"):
        endpoint.find(str(tmp_path), RUN)
