"""Job statuses from recorded output of Slurm's programs, in all versions; each case names its source."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from orchestrator.launchers.job import GONE, SILENT, JobStatus
from orchestrator.launchers.slurm.pending_reasons import SENTENCES, explanation
from orchestrator.launchers.slurm.poll import PollResult, change_message, next_pause_s
from orchestrator.launchers.slurm.queue import OVER, job_statuses, queue_position
from tests import paths

CASES: list[dict[str, Any]] = json.loads((paths.CASES / "slurm_states.json").read_text("utf-8"))


class Recorded:
    """A RunCommand that replays recorded output."""

    def __init__(self, programs: Mapping[str, Mapping[str, Any]]) -> None:
        self.programs = programs
        self.commands: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(argv)
        recorded = self.programs.get(argv[0], {"rc": 127, "err": f"{argv[0]} not found\n"})
        return subprocess.CompletedProcess(
            argv, recorded.get("rc", 0), recorded.get("out", ""), recorded.get("err", "")
        )

    def count(self, program: str) -> int:
        return sum(argv[0] == program for argv in self.commands)


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_job_status_is_parsed_in_every_version(case: dict[str, Any]) -> None:
    run_id = case.get("run", "run")
    queue = job_statuses(Recorded(case), {run_id: case["job"]})[run_id]
    if case["status"] is None:
        assert queue is None
    else:
        assert queue is not None
        fields = asdict(queue)
        assert {field: fields[field] for field in case["status"]} == case["status"]


def test_hundreds_of_jobs_cost_one_call_of_squeue_and_one_of_sacct() -> None:
    ids = [f"run-20260102-030405-{number:04x}" for number in range(200)]
    rows = "".join(
        f"{number}|PENDING|Priority||1|0:00|1:00|gpu|N/A||/w/runs/{ids[number]}/attempt-1|name\n"
        for number in range(100)
    )
    counted = "".join(f"{number}|TIMEOUT|n0|1|0:00|1:00|gpu|x|name\n" for number in range(100, 150))
    run = Recorded({"squeue": {"out": rows}, "sacct": {"out": counted}})
    jobs = {run_id: None if number < 50 else str(number) for number, run_id in enumerate(ids)}
    states = [queue.state if queue else None for queue in job_statuses(run, jobs).values()]
    assert states == ["PENDING"] * 100 + ["TIMEOUT"] * 50 + [GONE] * 50
    assert (run.count("squeue"), run.count("sacct"), len(run.commands)) == (1, 1, 2)


def test_without_jobs_no_command_is_run() -> None:
    run = Recorded({})
    assert job_statuses(run, {}) == {}
    assert run.commands == []


def test_position_follows_the_order_of_the_scheduler() -> None:
    run = Recorded({"squeue": {"out": "7\n5_[1-9]\n12\n"}})
    waits = JobStatus("PENDING", "Priority", job="12", partition="gpu")
    assert queue_position(run, waits) == "3 of 3 waiting in partition gpu"
    assert queue_position(run, JobStatus("PENDING", job="99", partition="gpu")) == ""
    assert queue_position(Recorded({"squeue": {"rc": 1}}), waits) == ""


REASONS = [
    ("Resources", "not free yet"),
    ("Priority", "higher priority"),
    ("QOSMaxJobsPerUserLimit", "as its QOS allows one user"),
    ("QOSMaxGRESPerUser", "as its QOS allows one user"),
    ("QOSMaxWallDurationPerJobLimit", "more than its QOS allows one job"),
    ("QOSMinGRES", "less than its QOS demands"),
    ("QOSGrpGRESMinutes", "the QOS's budget"),
    ("QOSGrpNodeLimit", "all jobs of the QOS together"),
    ("AssocGrpGRES", "all jobs of the account together"),
    ("AssocGrpCPURunMinutesLimit", "the account's budget"),
    ("AssocMaxWallDurationPerJobLimit", "more than your account allows one job"),
    ("PartitionTimeLimit", "more time than the partition allows"),
    ("PartitionNodeLimit", "more nodes than the partition allows"),
    ("PartitionDown", "partition is down"),
    ("PartitionInactive", "partition is inactive"),
    ("ReqNodeNotAvail, UnavailableNodes:n[1,3-4]", "do not answer: n[1,3-4];"),
    ("ReqNodeNotAvail,_UnavailableNodes:n1", "do not answer: n1;"),
    ("(ReqNodeNotAvail, UnavailableNodes:n1)", "do not answer: n1;"),
    ("ReqNodeNotAvail, Reserved for maintenance", "reserved, perhaps for maintenance"),
    ("ReqNodeNotAvail, May be reserved for other job", "in use or reserved"),
    ("ReqNodeNotAvail", "in use or reserved"),
    ("BeginTime", "scontrol update JobId=12 StartTime=now"),
    ("JobHeldUser", "scontrol release 12"),
    ("JobHeldAdmin", "held by an admin"),
    ("launch failed requeued held", "scontrol release 12"),
    ("launch_failed_requeued_held", "scontrol release 12"),
    ("job requeued in held state", "scontrol release 12"),
    ("Dependency", "another job"),
    ("DependencyNeverSatisfied", "will not start like this"),
    ("Reservation", "reservation has not begun"),
    ("Licenses", "licences"),
    ("BadConstraints", "no node has"),
    ("NodeDown", "is down"),
    ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "sinfo -R"),
    ("InvalidQOS", "QOS does not exist"),
    ("InvalidAccount", "account does not exist"),
]


@pytest.mark.parametrize(("reason", "part"), REASONS, ids=[reason for reason, _ in REASONS])
def test_explanation_of_a_reason_names_a_remedy(reason: str, part: str) -> None:
    assert part in explanation("PENDING", reason, "12")


def test_reason_of_a_later_version_is_shown_unchanged() -> None:
    assert explanation("PENDING", "MoonIsFull", "12") == ""
    assert JobStatus("PENDING", "MoonIsFull").why == "MoonIsFull"


def test_every_pattern_of_the_table_is_matched_by_its_reason() -> None:
    for pattern, sentence in SENTENCES.items():
        example = pattern.replace("*UnavailableNodes:*", ", UnavailableNodes:n1").replace("*", "")
        assert explanation("PENDING", example, "<id>") == sentence.replace("{nodes}", "n1"), pattern


PENDING = JobStatus("PENDING", "Priority", job="7", explanation="other jobs go first")
RUNNING = JobStatus("RUNNING", job="7")
SUSPENDED = JobStatus("SUSPENDED", job="7", explanation=explanation("SUSPENDED", "", "7"))
DOWN = JobStatus(SILENT, "squeue: no answer")


@pytest.mark.parametrize(
    ("before", "now", "has_log", "text"),
    [
        (None, PollResult(JobStatus(SILENT), 1), False, ""),
        (
            JobStatus(SILENT),
            PollResult(PENDING, 1, "3 of 9 waiting in partition gpu"),
            False,
            "other jobs go first; 3 of 9 waiting",
        ),
        (PENDING, PollResult(PENDING, 1, ""), False, ""),
        (PENDING, PollResult(PENDING, 1, "2 of 9"), False, "2 of 9"),
        (PENDING, PollResult(JobStatus("PENDING", "Resources", job="7"), 1), False, "is PENDING (Resources)"),
        (PENDING, PollResult(RUNNING, 1), False, "Slurm job 7 is RUNNING"),
        (PENDING, PollResult(RUNNING, 1), True, ""),
        (RUNNING, PollResult(DOWN, 1), True, "Slurm does not answer (squeue: no answer)"),
        (DOWN, PollResult(RUNNING, 1), True, "Slurm answers again: Slurm job 7 is RUNNING"),
        (RUNNING, PollResult(PENDING, 1), True, "is PENDING (Priority)"),
        (RUNNING, PollResult(JobStatus("COMPLETING", job="7"), 1), True, ""),
        (RUNNING, PollResult(SUSPENDED, 1), True, "Slurm job 7 is SUSPENDED: its processes are stopped"),
        (SUSPENDED, PollResult(RUNNING, 1), True, "Slurm job 7 is RUNNING"),
        (
            RUNNING,
            PollResult(replace(RUNNING, lost_host="n0", explanation="n0 is lost"), 1),
            True,
            "is RUNNING: n0 is lost",
        ),
        (RUNNING, PollResult(JobStatus(GONE, job="7"), 1), False, "Slurm no longer lists job 7"),
        (RUNNING, PollResult(None, 1), True, ""),
    ],
)
def test_only_changes_that_the_log_does_not_show_are_reported(
    before: JobStatus | None, now: PollResult, has_log: bool, text: str
) -> None:
    message = change_message(PollResult(before, 1), now, has_log=has_log)
    assert text in message
    assert bool(message) == bool(text)


@pytest.mark.parametrize(
    ("state", "queried_s", "agents_since_s", "is_outdated"),
    [
        ("PENDING", 10.0, 12.0, True),
        ("PENDING", 14.0, 12.0, False),  # requeued
        ("PENDING", 10.0, math.inf, False),
        ("RUNNING", 10.0, 12.0, False),
    ],
)
def test_job_whose_agents_appeared_after_the_query_is_not_reported_as_pending(
    state: str, queried_s: float, agents_since_s: float, is_outdated: bool
) -> None:
    assert PollResult(JobStatus(state), 1, queried_s=queried_s).is_outdated(agents_since_s) == is_outdated


def test_final_states_are_those_of_the_manual() -> None:
    assert {"PENDING", "COMPLETING", "REQUEUED", "SUSPENDED", SILENT}.isdisjoint(OVER)


def test_pauses_between_polls_grow_while_the_scheduler_does_not_answer() -> None:
    pauses = [2.0]
    for _ in range(6):
        pauses.append(next_pause_s(pauses[-1], DOWN))
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert next_pause_s(pauses[-1], RUNNING) == 2.0
