"""The verdict on a run, from the reports of the nodes and of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orchestrator.endpoint.observation import AgentRecord, Finished, NodeObservation, ReportedExit
from orchestrator.failure_class import FailureClass, Retry
from orchestrator.inventory.model import Inventory, Node
from orchestrator.launchers.job import JobStatus
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import LauncherName, Program, Request, RunState
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.observe import recordable_verdict

if TYPE_CHECKING:
    from orchestrator.node.run.events import StateName

OVER = JobStatus("COMPLETED", over=True)


def _plan(launcher: LauncherName) -> LaunchPlan:
    inventory = Inventory(name="demo", nodes=(Node(name="n0"), Node(name="n1")))
    request = Request(launcher, Program("trainer", ()))
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b")


def _node(
    name: str,
    state: StateName | None = None,
    *,
    at: float = 1.0,
    alive: bool = True,
    same_boot: bool = True,
    code: int = 1,
) -> NodeObservation:
    rank = int(name[1:])
    agent = AgentRecord(1, 1, 1, "b", "h", name, "3.11.7", name, rank, (rank,), 2, "10.0.0.1 29500 h", 0.0)
    exit_ = ReportedExit(rank, code, None, None) if state == "FAILED" else None
    finished = Finished(state, at, exit_) if state else None
    return NodeObservation(name, agent, alive, same_boot, finished, exit_)


def _absent(name: str) -> NodeObservation:
    return NodeObservation(name, None, alive=False, same_boot=False, finished=None, first_failure=None)


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_done_only_when_every_node_is_done(launcher: LauncherName) -> None:
    plan = _plan(launcher)
    assert judge(plan, [_node("n0", "DONE"), _node("n1", "DONE")], OVER).state is RunState.DONE
    queue = JobStatus("RUNNING") if launcher == "slurm" else None
    assert judge(plan, [_node("n0", "DONE"), _node("n1")], queue).state is RunState.RUNNING


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_separate_trainings_are_never_done(launcher: LauncherName) -> None:
    plan = replace(_plan(launcher), program=Program("executable", ("trl", "sft"), per_node=True))
    progress = {0: {"step": 1, "time": 1.0, "group": [0, 1]}}
    done = [replace(_node(name, "DONE"), progress=progress) for name in ("n0", "n1")]
    verdict = judge(plan, done, OVER)
    assert verdict.state is RunState.FAILED
    assert str(verdict.message).startswith("2 trainings, not one")
    assert verdict.failure == (FailureClass.CONFIG, Retry.NEVER)
    assert judge(plan, [done[0], _node("n1", "DONE")], OVER).state is RunState.DONE
    until_head = replace(plan, program=replace(plan.program, until_head=True))
    assert judge(until_head, done, OVER).state is RunState.DONE
    stopped = [done[0], replace(done[1], finished=Finished("STOPPED", 1.0, None))]
    assert judge(plan, stopped, OVER, stop_requested=True).state is RunState.STOPPED
    if launcher == "ssh":  # whoever records the end first: the supervisor has stopped the ranks
        assert str(judge(plan, stopped, None).message).startswith("2 trainings, not one")


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_run_until_its_head_is_done_with_the_head_however_the_followers_end(launcher: LauncherName) -> None:
    plan, queue = _plan(launcher), JobStatus("RUNNING") if launcher == "slurm" else None
    plan = replace(plan, program=replace(plan.program, per_node=True, until_head=True))
    for follower in (_node("n1"), _node("n1", "STOPPED"), _node("n1", "FAILED")):
        assert judge(plan, [_node("n0", "DONE"), follower], queue).state is RunState.DONE
    assert judge(plan, [_node("n0"), _node("n1", "DONE")], queue).state is RunState.RUNNING
    assert judge(plan, [_node("n0", "FAILED"), _node("n1")], OVER).state is RunState.FAILED


def test_first_failure_is_the_earliest_and_names_rank_and_node() -> None:
    verdict = judge(_plan("ssh"), [_node("n0", "FAILED", at=9.0), _node("n1", "FAILED", at=3.0, code=7)], None)
    assert verdict.state is RunState.FAILED
    assert verdict.exit is not None
    assert (verdict.exit.node, verdict.exit.rank, verdict.exit.code) == ("n1", 1, 7)
    assert str(verdict.exit) == "rank 1 on n1 exited 7"


def _lost_peer(rank: int) -> ReportedExit:
    return ReportedExit(rank, 1, None, "another rank had ended (Connection closed by peer)", lost_peer=True)


def _failing(node: NodeObservation, exit_: ReportedExit, state: StateName = "FAILED") -> NodeObservation:
    finished = Finished(state, 1.0, exit_ if state == "FAILED" else None)
    return replace(node, finished=finished, first_failure=exit_)


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_first_failure_is_that_of_a_rank_which_lost_no_connection(launcher: LauncherName) -> None:
    """Its node may have been stopped, because the ranks of another node noticed its end earlier than its agent did."""
    suffers = _failing(_node("n0"), _lost_peer(0))
    raised = ReportedExit(1, None, "SIGTERM", None, exception="ValueError: bad sample")
    killed = ReportedExit(1, None, "SIGKILL", None)
    for failing, text in (
        (_failing(_node("n1"), raised, "STOPPED"), "rank 1 on n1 exited 1: ValueError: bad sample"),
        (_failing(_node("n1"), killed), "rank 1 on n1 was killed by SIGKILL"),
    ):
        verdict = judge(_plan(launcher), [suffers, failing], OVER if launcher == "slurm" else None)
        assert (verdict.state, verdict.message) == (RunState.FAILED, text)
    stopped = replace(_node("n1", "STOPPED"), first_failure=ReportedExit(1, None, "SIGTERM", None))
    verdict = judge(_plan(launcher), [suffers, stopped], OVER if launcher == "slurm" else None)
    assert verdict.message == "rank 0 on n0 exited 1: another rank had ended (Connection closed by peer)"


def test_error_of_a_rank_started_by_hand_precedes_those_that_lost_their_connection() -> None:
    suffers = replace(_node("n0"), finished=Finished("FAILED", 1.0, None, "n0: rank 0 failed", lost_peer=True))
    stopped = replace(_node("n1"), finished=Finished("STOPPED", 2.0, None, lost="rank 1 failed (ValueError: bad)"))
    assert judge(_plan("ssh"), [suffers, stopped], None).message == "n1: rank 1 failed (ValueError: bad)"
    assert judge(_plan("ssh"), [suffers, _node("n1", "STOPPED")], None).message == "n0: rank 0 failed"


def test_one_failed_node_fails_the_run_while_others_run() -> None:
    assert judge(_plan("ssh"), [_node("n0", "FAILED"), _node("n1")], None).state is RunState.FAILED


def test_dead_agent_without_an_exit_event_fails_the_run_by_name() -> None:
    verdict = judge(_plan("ssh"), [_node("n0"), _node("n1", alive=False)], None)
    assert verdict.state is RunState.FAILED
    assert "agent of n1 died" in str(verdict.message)


def test_processes_of_another_machine_are_not_judged_dead() -> None:
    nodes = [_node("n0", alive=False, same_boot=False), _node("n1", alive=False, same_boot=False)]
    assert judge(_plan("slurm"), nodes, JobStatus("RUNNING")).state is RunState.RUNNING


@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING", "UNKNOWN"])
def test_failed_ranks_do_not_end_the_run_while_slurm_may_restart_the_job(word: str) -> None:
    nodes = [_node("n0", "FAILED"), _node("n1", "STOPPED", alive=False)]
    assert judge(_plan("slurm"), nodes, JobStatus(word)).state is RunState.RUNNING
    assert judge(_plan("slurm"), nodes, JobStatus("FAILED", over=True)).state is RunState.FAILED


def test_requested_attempt_keeps_the_run_pending_until_slurm_ends_the_job() -> None:
    plan, nodes = _plan("slurm"), [_node("n0", "REQUEUE"), _node("n1", "FAILED", at=2.0)]
    assert judge(plan, nodes, JobStatus("RUNNING")).state is RunState.PENDING
    assert judge(plan, nodes[:1], JobStatus("COMPLETING")).state is RunState.PENDING
    requeued = [_node("n0", "REQUEUE"), _node("n1", "REQUEUE")]
    verdict = judge(plan, requeued, OVER)
    assert verdict.state is RunState.FAILED
    assert "Slurm did not start it" in str(verdict.message)
    assert judge(plan, requeued, JobStatus("CANCELLED", over=True)).state is RunState.STOPPED


def test_job_that_slurm_ended_is_reported_with_the_reason_for_no_restart() -> None:
    failed = replace(_node("n0"), finished=Finished("FAILED", 3.0, None, "no progress was saved"))
    verdict = judge(_plan("slurm"), [failed, _node("n1")], JobStatus("TIMEOUT", "TimeLimit", over=True))
    assert verdict.message == "Slurm ended the job: TIMEOUT TimeLimit; no progress was saved"


def test_ranks_that_fail_when_orch_stop_cancels_their_job_are_stopped() -> None:
    nodes, cancelled = [_node("n0", "FAILED"), _node("n1", "STOPPED")], JobStatus("CANCELLED", over=True)
    assert judge(_plan("slurm"), nodes, cancelled, stop_requested=True).state is RunState.STOPPED
    assert judge(_plan("slurm"), nodes[:1], cancelled, stop_requested=True).state is RunState.STOPPED
    assert judge(_plan("slurm"), nodes, cancelled).state is RunState.FAILED
    killed = _node("n0", alive=False)
    assert judge(_plan("slurm"), [killed], cancelled, stop_requested=True).state is RunState.STOPPED
    assert judge(_plan("slurm"), [killed], JobStatus("FAILED", over=True), stop_requested=True).state is RunState.FAILED
    assert judge(_plan("slurm"), nodes, JobStatus("FAILED", over=True), stop_requested=True).state is RunState.FAILED


CANCELLED_STEP = "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-24T16:39:42 ***\n"


@pytest.mark.parametrize(
    ("queue", "log", "state"),
    [
        (JobStatus("PREEMPTED", over=True), "", RunState.FAILED),
        (JobStatus("TIMEOUT", "TimeLimit", over=True), "", RunState.FAILED),
        (JobStatus("NODE_FAIL", over=True), "", RunState.FAILED),
        (JobStatus("PENDING", "BeginTime"), "", RunState.PENDING),
        (JobStatus("CANCELLED", over=True), CANCELLED_STEP, RunState.STOPPED),
        (JobStatus("CANCELLED", over=True), "", RunState.DONE),  # after its ranks had ended
        (JobStatus("COMPLETED", over=True), "", RunState.DONE),
    ],
)
def test_job_that_slurm_cut_short_is_done_only_if_its_ranks_reported_so(
    queue: JobStatus, log: str, state: RunState
) -> None:
    ends = [node.finished for node in (_node("n0", "DONE"), _node("n1", "DONE")) if node.finished is not None]
    for reported, expected in ((False, state), (True, RunState.DONE)):
        nodes = [
            replace(_node(name), finished=replace(end, reported_done=reported))
            for name, end in zip(("n0", "n1"), ends, strict=True)
        ]
        assert judge(_plan("slurm"), nodes, queue, batch_log=log).state is expected


def test_job_that_lost_the_node_of_its_batch_script_names_it_and_not_the_agents_that_died_with_it() -> None:
    nodes = [_node("n0", alive=False), _node("n1", "STOPPED")]
    verdict = judge(_plan("slurm"), nodes, JobStatus("FAILED", "JobLaunchFailure", over=True, lost_host="n0"))
    assert (verdict.state, verdict.exit, verdict.failed_nodes) == (RunState.FAILED, None, ("n0",))
    assert "n0, the node of the batch script, is lost" in str(verdict.message)


def test_queued_job_is_pending_even_if_it_has_run_before() -> None:
    nodes = [_node("n0", "STOPPED"), _node("n1", alive=False)]
    assert judge(_plan("slurm"), nodes, JobStatus("PENDING", "BeginTime")).state is RunState.PENDING


def test_node_without_a_trace_makes_the_run_lost_never_done() -> None:
    verdict = judge(_plan("ssh"), [_node("n0", "DONE"), _absent("n1")], None)
    assert (verdict.state, verdict.message) == (
        RunState.LOST,
        "no trace of the run on n1: never started, or its folder is gone",
    )


@pytest.mark.parametrize(
    ("queue", "state"),
    [
        (JobStatus("PENDING", "Resources"), "PENDING"),
        (JobStatus("CONFIGURING"), "PENDING"),
        (JobStatus("RUNNING"), "STARTING"),
        (JobStatus("INVENTED_LATER"), "STARTING"),
        (JobStatus("UNKNOWN", "squeue: no answer"), "PENDING"),
        (JobStatus("CANCELLED", over=True), "STOPPED"),
        (JobStatus("TIMEOUT", over=True), "FAILED"),
        (JobStatus("NODE_FAIL", over=True), "FAILED"),
        (JobStatus("GONE", over=True), "LOST"),
        (JobStatus("COMPLETED", over=True), "LOST"),
    ],
)
def test_job_without_agents_is_judged_by_the_queue(queue: JobStatus, state: str) -> None:
    assert judge(_plan("slurm"), [], queue).state.value == state


def test_reports_of_the_nodes_outrank_a_queue_that_no_longer_knows_the_job() -> None:
    nodes = [_node("n0", "DONE"), _node("n1", "DONE")]
    assert judge(_plan("slurm"), nodes, JobStatus("GONE", over=True)).state is RunState.DONE


def _died(name: str) -> NodeObservation:
    return replace(_node(name, alive=False), log="out of memory\n")


def _setup_failed(name: str) -> NodeObservation:
    return replace(_absent(name), log="module: not found\n")


def test_failure_is_kept_when_orch_stop_ends_the_other_nodes() -> None:
    verdict = judge(_plan("ssh"), [_node("n0", "FAILED"), _node("n1", "STOPPED")], None, stop_requested=True)
    assert (verdict.state, verdict.message) == (RunState.FAILED, "rank 0 on n0 exited 1")


def test_dead_agent_is_reported_unless_another_was_stopped() -> None:
    died = "the agent of n1 died without a last event; its log ends: out of memory"
    stopped = "n0 was stopped by a signal, not by `orch stop` on this machine"
    assert judge(_plan("ssh"), [_died("n1")], None).message == died, "without a report of n0"
    assert judge(_plan("ssh"), [_node("n0", "STOPPED"), _died("n1")], None).message == stopped
    assert judge(_plan("slurm"), [_died("n1")], OVER).message == died
    assert judge(_plan("slurm"), [_node("n0", "STOPPED"), _died("n1")], OVER).message == stopped


@pytest.mark.parametrize(
    ("word", "state", "message"),
    [
        ("RUNNING", RunState.STARTING, None),
        ("FAILED", RunState.FAILED, "module: not found"),
        ("GONE", RunState.FAILED, "module: not found"),
        ("COMPLETED", RunState.FAILED, "module: not found"),
        ("CANCELLED", RunState.STOPPED, "the job was cancelled"),
    ],
)
def test_output_of_a_node_without_an_agent_explains_a_job_that_ended(
    word: str, state: RunState, message: str | None
) -> None:
    verdict = judge(_plan("slurm"), [_setup_failed("n0")], JobStatus(word, over=word != "RUNNING"))
    assert (verdict.state, verdict.message) == (state, message)


def test_unsubmitted_job_is_lost_unless_a_node_reports() -> None:
    assert judge(_plan("slurm"), [], None) == Verdict(RunState.LOST, message="the job was never submitted")
    assert judge(_plan("slurm"), [_node("n0", "FAILED")], None).state is RunState.FAILED


def test_run_is_stopped_if_orch_stop_ended_its_agents() -> None:
    nodes = [_node("n0", "STOPPED"), _node("n1", "DONE")]
    assert judge(_plan("ssh"), nodes, None, stop_requested=True).state is RunState.STOPPED


def test_agents_stopped_without_orch_stop_fail_the_run_and_the_first_is_named() -> None:
    nodes = [_node("n0", "STOPPED", at=9.0), _node("n1", "STOPPED", at=3.0)]
    verdict = judge(_plan("ssh"), nodes, None)
    assert (verdict.state, verdict.message) == (
        RunState.FAILED,
        "n1 was stopped by a signal, not by `orch stop` on this machine",
    )


@pytest.mark.parametrize(
    ("word", "stop_requested", "state"),
    [
        ("CANCELLED", False, "STOPPED"),
        ("GONE", False, "STOPPED"),
        ("FAILED", True, "STOPPED"),
        ("FAILED", False, "FAILED"),
        ("TIMEOUT", True, "FAILED"),
    ],
)
def test_slurm_state_decides_whether_a_run_was_stopped(word: str, stop_requested: bool, state: str) -> None:
    nodes = [_node("n0", "STOPPED"), _node("n1", "STOPPED")]
    assert judge(_plan("slurm"), nodes, JobStatus(word, over=True), stop_requested=stop_requested).state.value == state


@pytest.mark.parametrize("word", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_job_that_slurm_ended_is_a_failure_even_if_its_agents_were_stopped(word: str) -> None:
    verdict = judge(_plan("slurm"), [_node("n0", "STOPPED"), _node("n1", "STOPPED")], JobStatus(word, over=True))
    assert (verdict.state, verdict.message) == (RunState.FAILED, f"Slurm ended the job: {word}")


def test_completing_job_is_not_judged_yet() -> None:
    """COMPLETING covers both a time limit and a cancelled job; the next state distinguishes them."""
    nodes = [_node("n0", "STOPPED"), _node("n1")]
    assert judge(_plan("slurm"), nodes, JobStatus("COMPLETING")).state is RunState.RUNNING


def test_failed_agent_without_a_failed_rank_is_reported_with_its_reason() -> None:
    finished = Finished("FAILED", 1.0, None, "the agent was ended by SIGKILL")
    dead = NodeObservation("n1", _node("n1").agent, alive=False, same_boot=True, finished=finished, first_failure=None)
    assert judge(_plan("ssh"), [_node("n0"), dead], None).message == "the agent was ended by SIGKILL"


def test_rank_failure_after_an_agent_was_killed_is_not_the_cause() -> None:
    killed = replace(_node("n1"), finished=Finished("FAILED", 1.0, None, "the agent was ended by SIGKILL"))
    for failed_s, message in [(2.0, "the agent was ended by SIGKILL"), (0.5, "rank 0 on n0 exited 1")]:
        verdict = judge(_plan("ssh"), [_node("n0", "FAILED", at=failed_s), killed], None)
        assert verdict.message == message


@pytest.mark.parametrize("absent", [False, True])
def test_silent_scheduler_does_not_make_a_running_job_lost(absent: bool) -> None:
    silent = JobStatus("UNKNOWN", "squeue: no answer", absent=absent)
    for nodes in ([_node("n0"), _node("n1")], [_node("n0", "FAILED"), _node("n1")], [_node("n0", "STOPPED")]):
        assert judge(_plan("slurm"), nodes, silent).state is RunState.RUNNING
    assert judge(_plan("slurm"), [_node("n0", "DONE"), _node("n1", "DONE")], silent).state is RunState.DONE


def test_without_a_scheduler_a_run_has_ended_once_all_its_nodes_have() -> None:
    nodes = [_node("n0", "FAILED"), _node("n1", "STOPPED")]
    assert judge(_plan("slurm"), nodes, JobStatus("UNKNOWN", absent=True)).state is RunState.FAILED
    assert judge(_plan("slurm"), nodes, JobStatus("UNKNOWN")).state is RunState.RUNNING
    stopped = [_node("n0", "STOPPED"), _node("n1", "STOPPED")]
    assert judge(_plan("slurm"), stopped, JobStatus("UNKNOWN", absent=True)).state is RunState.RUNNING
    assert (
        judge(_plan("slurm"), stopped, JobStatus("UNKNOWN", absent=True), stop_requested=True).state is RunState.STOPPED
    )


SIGNALLED = """\
slurmstepd-n0: error: *** JOB 4 ON n0 CANCELLED AT 2026-11-22T11:56:20 ***
srun: forcing job termination
slurmstepd-n0: error: *** STEP 4.0 ON n0 CANCELLED AT 2026-11-22T11:56:20 ***
srun: error: n1: task 1: Killed
"""
KILLED = [_node("n0", alive=False), _node("n1", alive=False)]
RANK_KILLED = _node("n1", "FAILED")
assert RANK_KILLED.finished is not None
RANK_KILLED = replace(
    RANK_KILLED, finished=replace(RANK_KILLED.finished, exit=ReportedExit(1, None, "SIGKILL", None)), alive=False
)


@pytest.mark.parametrize("nodes", [KILLED, [_node("n0", alive=False), RANK_KILLED]], ids=["agents", "rank"])
def test_signal_of_slurm_to_the_whole_job_is_blamed_on_no_rank(nodes: list[NodeObservation]) -> None:
    """The log is that of `scancel --full --signal=TERM` in Slurm 22.05."""
    failed = JobStatus("FAILED", "NonZeroExitCode", over=True)
    verdict = judge(_plan("slurm"), nodes, failed, batch_log=SIGNALLED)
    assert (verdict.state, verdict.exit) == (RunState.FAILED, None)
    assert "*** JOB 4 ON n0 CANCELLED AT 2026-11-22T11:56:20 ***" in str(verdict.message)
    for end in (" DUE TO JOB REQUEUE ***", " DUE TO PREEMPTION ***"):  # an attempt before the one that failed
        assert judge(_plan("slurm"), nodes, failed, batch_log=SIGNALLED.replace(" ***", end)).exit is not None
    exited = [_node("n0", alive=False), _node("n1", "FAILED")]
    assert str(judge(_plan("slurm"), exited, failed, batch_log=SIGNALLED).exit) == "rank 1 on n1 exited 1"


def test_agents_of_a_job_that_slurm_has_forgotten_are_blamed_on_no_rank() -> None:
    """As after a start of slurmctld without its saved state, which kills the jobs that it does not know."""
    verdict = judge(_plan("slurm"), KILLED, JobStatus("GONE", over=True))
    assert (verdict.state, verdict.exit) == (RunState.FAILED, None)
    assert "Slurm no longer lists the job: its agents on n[0-1] were killed" in str(verdict.message)


@pytest.mark.parametrize("same_boot", [True, False])
def test_agents_of_a_forgotten_job_that_orch_stopped_were_stopped(*, same_boot: bool) -> None:
    nodes = [_node("n0", alive=False, same_boot=same_boot), _node("n1", alive=False, same_boot=same_boot)]
    gone = JobStatus("GONE", over=True)
    assert judge(_plan("slurm"), nodes, gone, stop_requested=True).state is RunState.STOPPED
    assert judge(_plan("slurm"), nodes, gone).state is (RunState.FAILED if same_boot else RunState.LOST)
    assert judge(_plan("slurm"), [_node("n0"), _node("n1")], gone, stop_requested=True).state is RunState.LOST


def test_failure_before_any_agent_quotes_the_end_of_the_batch_log() -> None:
    failed = JobStatus("FAILED", "NonZeroExitCode", over=True)
    log = "".join(f"line {number}\n" for number in range(9)) + "bash: module: command not found\n\n"
    message = str(judge(_plan("slurm"), [], failed, batch_log=log).message)
    assert message.startswith("Slurm reports FAILED (NonZeroExitCode)")
    assert message.endswith("\n  line 8\n  bash: module: command not found")
    assert "line 4" not in message
    assert "slurm-*.log" in str(judge(_plan("slurm"), [], failed).message)


def test_user_who_cancelled_a_job_is_named_if_accounting_knows() -> None:
    cancelled = JobStatus("CANCELLED", "by user 1000", over=True)
    assert judge(_plan("slurm"), [], cancelled).message == "the job was cancelled by user 1000"
    nodes = [_node("n0", "STOPPED"), _node("n1", "STOPPED")]
    assert judge(_plan("slurm"), nodes, cancelled).message == "the job was cancelled by user 1000"
    assert judge(_plan("slurm"), [], JobStatus("CANCELLED", over=True)).message == "the job was cancelled"


def test_read_only_command_records_a_failure_only_once_every_node_has_ended() -> None:
    failed, plan = Verdict(RunState.FAILED, message="rank 3 on n0 exited 1"), _plan("ssh")
    verdict = recordable_verdict(plan, failed, [_node("n0", "FAILED"), _node("n1")])
    assert (verdict.state, verdict.message) == (RunState.RUNNING, "rank 3 on n0 exited 1; n1 may still run")
    assert recordable_verdict(plan, failed, [_node("n0", "FAILED")]).state is RunState.RUNNING, "n1 was not reached"
    assert recordable_verdict(plan, failed, [_node("n0", "FAILED"), _node("n1", alive=False)]) == failed
    assert recordable_verdict(_plan("slurm"), failed, [_node("n0", "FAILED"), _node("n1")]) == failed, "Slurm ends it"


def test_stopped_run_that_may_still_run_has_no_empty_cause_in_its_message() -> None:
    plan, nodes = _plan("ssh"), [_node("n0", "STOPPED"), _node("n1")]
    verdict = recordable_verdict(plan, judge(plan, nodes, None, stop_requested=True), nodes)
    assert (verdict.state, verdict.message) == (RunState.RUNNING, "n1 may still run")
