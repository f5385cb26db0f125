"""The node agent: owns one node's ranks, from their start to the end of their last descendant."""

from __future__ import annotations

import os
import time

from orchestrator.node.agent.card_sampler import CardSampler
from orchestrator.node.agent.failure import core_file, ended_early, failure_of, lost_error
from orchestrator.node.agent.hang_watch import HangWatch
from orchestrator.node.agent.log_index import LogIndex
from orchestrator.node.agent.nested_launcher import (
    LauncherSearch,
    hand_started_message,
    lone_world_message,
    nested_launcher_message,
    own_host_message,
)
from orchestrator.node.agent.network_watch import NetworkWatch
from orchestrator.node.agent.program import rank_setup
from orchestrator.node.agent.separate_watch import SeparateWatch
from orchestrator.node.ranks.rank_channel import remove_channels
from orchestrator.node.run.code_folder import CODE, shared_folder
from orchestrator.node.run.events import NO_RETRY, REQUEUE, EventLog, Kind, State
from orchestrator.node.run.fence import Fence
from orchestrator.node.run.job import Job, Refused
from orchestrator.node.run.memory_folder import memory_folder, remove_memory, remove_unused
from orchestrator.node.run.oom_kills import kills_of_run
from orchestrator.node.run.run_folder import HEAD_DONE, output_stem, process_name, read_agent, started_ranks
from orchestrator.node.system.fast_stdlib import signal, suppress
from orchestrator.node.system.files import read_json, write_json
from orchestrator.node.system.processes import (
    CAUGHT,
    TICK_S,
    Inherited,
    await_signal,
    descendants,
    reap,
    send,
    signal_descendants,
    signal_name,
    stat_of,
)
from orchestrator.node.system.spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.node.agent.warm import WarmParent
    from orchestrator.node.isolation import Isolation
    from orchestrator.node.run.events import Keys, RankResult, StateName

# REQUEUE is 0, too: on any other code srun would kill the ranks of the other nodes, which may still be saving.
EXIT_CODES = {State.DONE: 0, State.FAILED: 1, State.STOPPED: 6, State.REQUEUE: 0}
SURVIVOR_S = 5.0  # a process that survives SIGKILL for longer hangs in the kernel, and is reported
SAME_SIGNAL_S = 1.0  # Slurm signals every process of a job: the guard's copy is not a second request
# A signal to every process, as by scancel or a host's shutdown, may end a child of a shell before it reaches the agent.
LATE_SIGNAL_S = 0.2
SHELL_TERM = 128 + signal.SIGTERM  # the exit code of a shell whose command was ended by SIGTERM
CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")  # of a library's teardown; nobody sends these
AFTER_STOP_S = 1.0  # the grace, after a stop, of processes that the ranks left running


class Outcome:
    """The reason for ending the ranks, and the state that the agent reports unless all of them are done."""

    def __init__(
        self,
        state: StateName,
        *,
        exit: RankResult | None = None,  # noqa: A002  as in the event
        reason: str = "",
        no_retry: bool = False,
    ) -> None:
        self.state, self.exit, self.reason = state, exit, reason
        self.no_retry = no_retry or (exit is not None and exit["code"] == NO_RETRY)


class Agent:
    """Starts and watches the ranks, and exits only when no descendant is alive."""

    def __init__(self, job: Job, folder: str, events: EventLog, isolation: Isolation) -> None:
        self.job, self.folder, self.events, self.isolation = job, folder, events, isolation
        self.logs = LogIndex(folder, events.clock)
        self.launchers = LauncherSearch(job)
        self.cards = CardSampler(job, folder, events)
        self.network = NetworkWatch(job, folder, events)
        self.hangs = HangWatch(job, folder, events)
        self.separate = SeparateWatch(job, folder)
        self.fence = Fence(folder) if job.slurm is not None else None
        self.is_fenced = False  # a later attempt of the job has begun elsewhere
        self.cwd = folder  # of the ranks, once they are started
        self.cpus: Sequence[set[int]] = ()  # of each rank; empty if they are not bound
        self.guard_pid = os.getppid()
        self.outcome: Outcome | None = None  # None until the ranks are being ended
        self.is_sweeping = False  # the ranks have ended; their remaining descendants are being ended
        self.running: dict[int, int | None] = {}  # pid -> rank; None for a program that starts the node's ranks itself
        self.done: list[int | None] = []  # the ranks that have finished their work
        self.stop_requests: list[tuple[int, float]] = []  # signal and time; a second one kills at once
        self.signalled_s: float | None = None  # when the first of them arrived, by the clock of the events
        self.is_signalled_early = False  # SIGTERM arrived before all ranks were started
        self.kill_at_s: float | None = None  # monotonic; ranks and descendants alive then are killed
        self.terminated: set[tuple[int, int]] = set()  # descendants that have been sent SIGTERM
        self.reported: set[str] = set()  # names of reports that are made only once

    def start(
        self,
        command: Sequence[str],
        cwd: str,
        environments: Sequence[Mapping[bytes, bytes]],
        inherited: Inherited,
        *,
        warm: WarmParent | None = None,
    ) -> None:
        """Start every rank, or the program that starts them; Refused if one cannot be started."""
        self.cwd = cwd
        self.launchers.master = os.fsdecode(environments[0].get(b"MASTER_ADDR", b""))
        for problem in remove_unused():
            self.events.write_message(f"the memory of an ended run was not removed: {problem}")
        forked = self.fork_ranks(warm, command, environments) if warm is not None else []
        for local_rank, rank in enumerate(self.job.processes):
            name, cpus = process_name(rank), self.cpus[local_rank] if self.cpus else None
            setup = rank_setup(inherited, cwd, cpus, ignores_warning=self.job.slurm is not None)
            try:
                pid = (
                    forked[local_rank]
                    if forked
                    else spawn(command, environments[local_rank], self.open_output(rank), setup)
                )
            except OSError as error:
                from orchestrator.node.system.executable import why_not_started  # only if it is not

                reason = why_not_started(error, command, cwd)
                raise Refused(f"{name} cannot be started on {self.job.node}: {reason}") from error
            self.running[pid] = rank
            stat = stat_of(pid)  # of a zombie, too
            start_time = stat[2] if stat else None
            self.events.write(
                Kind.RANK_STARTED, f"{name} started as pid {pid}", rank=rank, pid=pid, start_time=start_time
            )
        self.is_signalled_early = signal.SIGTERM in signal.sigpending()

    def fork_ranks(
        self,
        warm: WarmParent,
        command: Sequence[str],
        environments: Sequence[Mapping[bytes, bytes]],
    ) -> Sequence[int]:
        """Fork the ranks from a process that has imported their modules; return their pids, none if that is not possible."""
        from orchestrator.node.agent.warm import NoFork  # most agents have no such process

        try:
            warm.check(command, self.cwd, environments[0], self.cpus)
            pids = warm.fork_ranks(environments, map(self.open_output, self.job.processes), self.cpus)
        except NoFork as error:
            self.events.write_message(f"the ranks are not forked but started by exec: {error}")
            return ()
        finally:
            warm.close()
        self.events.write_message("the ranks are forked from a process that has imported the trainer")
        return pids

    def open_output(self, rank: int | None) -> tuple[int, int]:
        """Open the files for the output of a process."""
        return self.logs.open(f"{output_stem(rank)}.out"), self.logs.open(f"{output_stem(rank)}.err")

    def watch(self) -> int:
        """Wait until every rank and every descendant has ended; return the agent's exit code."""
        while self.reap_children():
            self.sweep_if_ranks_ended()
            self.kill_if_due()
            self.events.flush()
            self.logs.record()
            self.check_fence()
            self.check_head()
            self.check_supervision()
            self.check_launchers()
            self.check_separate()
            self.watch_ranks()
            number = await_signal(CAUGHT, TICK_S)
            if number is not None:
                self.on_signal(number)
        self.logs.record(now=True)
        return self.finish()

    def reap_children(self) -> bool:
        """Handle the children that have ended; False if none is left that can be waited for."""
        ended: list[tuple[int, int | None, int]] = []
        has_children = True
        try:
            for pid, status in reap():
                if pid in self.running:
                    ended.append((pid, self.running.pop(pid), status))
        except ChildProcessError:
            has_children = False
        self.await_stop_request([(rank, status) for _, rank, status in ended])
        for pid, rank, status in ended:
            self.on_rank_exit(pid, rank, status)
        if not has_children:
            return False
        unkillable = self.cards.unkillable if self.is_sweeping else None
        return unkillable is None or set(descendants()) != {unkillable}

    def on_rank_exit(self, pid: int, rank: int | None, status: int) -> None:
        self.logs.record(now=True)
        exited_s = self.events.clock.now()  # after that record: the rank's output must precede its exit
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        name = None if code is not None else signal_name(os.WTERMSIG(status))
        is_stopped = self.outcome is not None
        is_done = self.has_reported_done(rank, crashed=name in CRASHES) or (code == 0 and not is_stopped)
        error, kind = (None, None) if code == 0 else failure_of(self.folder, rank, name, self.ranks_of(rank))
        missing = None
        if code:
            from orchestrator.node.agent.failure import missing_file_of  # slow to import

            missing_error, missing = missing_file_of(self.stderr_of(rank), error, self.cwd)
            error = error or missing_error
        core = core_file(self.cwd, pid) if os.WCOREDUMP(status) else None
        if core is not None:
            error = f"{error}; core file: {core}" if error else f"core file: {core}"
        text = f"{process_name(rank)} (pid {pid}) " + (
            f"exited with code {code}" if name is None else f"was ended by {name}"
        )
        text += f": {error}" if error else ""
        if rank is None and not is_stopped:
            is_done = self.is_program_done(code, text, is_done=is_done)
        text_end = ", after the stop" if is_stopped and not is_done else ""
        if is_done and code != 0 and not self.job.follows_head:
            text_end = "; warning: its work was finished before, so it counts as done"
        result: RankResult = {
            "time": exited_s,
            "rank": rank,
            "code": code,
            "signal": name,
            "error": error,
            "kind": kind,
        }
        if missing:
            result["missing"] = missing
        self.events.write(Kind.RANK_EXITED, text + text_end, pid=pid, done=is_done, **result)
        if is_done:
            self.done.append(rank)
        elif code == REQUEUE and self.job.slurm:
            self.on_restart_request(text)
        elif self.outcome is None:  # a failure after a stop is its consequence, not the cause
            self.stop(Outcome(State.FAILED, exit=result), text)

    def is_program_done(self, code: int | None, text: str, *, is_done: bool) -> bool:
        """True if a program that starts its ranks is done, as are those of other nodes than the first with --until-head."""
        lost = lost_error(self.folder) if code == 0 else ""
        if lost:
            self.stop(Outcome(State.FAILED, reason=lost), lost)
            return False
        if code == 0 and (warning := ended_early(self.folder)):
            self.events.write_message(warning)
        if not is_done and self.job.follows_head:
            self.events.write_message(f"warning: {text}; the run continues until the program of the first node ends")
        return is_done or self.job.follows_head

    def stderr_of(self, rank: int | None) -> str:
        return os.path.join(self.folder, f"{output_stem(rank)}.err")

    def ranks_of(self, rank: int | None) -> Sequence[int]:
        """The ranks of a process; of a program that starts the node's ranks, those ranks."""
        return started_ranks(self.folder, self.job.rank_numbers) if rank is None else (rank,)

    def has_reported_done(self, rank: int | None, *, crashed: bool = False) -> bool:
        """
        True if every rank of the process has reported that its work is done.

        An end that the rank's Python reports by itself counts only if it crashed: an exit code is the program's own word.
        """
        ranks = self.ranks_of(rank)
        if rank is None and len(ranks) < len(self.job.rank_numbers):  # not every rank has written its file
            return False
        files = (os.path.join(self.folder, "progress", f"{number}.json") for number in ranks)
        reports = [read_json(file) or {} for file in files]
        trusts_python = crashed and rank is not None
        return all(report.get("phase") == "done" and (trusts_python or "source" not in report) for report in reports)

    def on_restart_request(self, text: str) -> None:
        """A rank has saved and requests another attempt, whether or not it was stopped."""
        if self.outcome is None:
            self.stop_with_slurm(Outcome(State.REQUEUE), f"{text}, which requests another attempt")
        elif self.outcome.state == State.STOPPED:
            self.outcome = Outcome(State.REQUEUE)

    def await_stop_request(self, ended: Sequence[tuple[int | None, int]]) -> None:
        """
        If the whole node is stopped, a rank may receive SIGTERM just before the agent: wait briefly for the agent's.

        A rank that exits with 0 may be a shell whose command was ended by the signal. It needs no wait if its work was reported done.

        Args:
            ended: rank and wait status of each process that has just ended.
        """
        wait_s = 0.0
        for rank, status in ended:
            if status in (signal.SIGTERM, SHELL_TERM << 8):
                wait_s = SAME_SIGNAL_S
            elif status == 0 and not self.has_reported_done(rank):
                wait_s = max(wait_s, LATE_SIGNAL_S)
        number = await_signal({signal.SIGTERM}, wait_s) if wait_s and self.outcome is None else None
        if number is not None:
            self.on_signal(number)

    def stop(self, outcome: Outcome, reason: str) -> None:
        """End the ranks within the grace."""
        self.begin_stop(outcome, reason, self.job.grace_s)
        if not self.is_sweeping:
            self.terminate(self.job.grace_s)

    def stop_with_slurm(self, outcome: Outcome, reason: str) -> None:
        """Wait for the end of the ranks, which get SIGTERM from Slurm itself; kill them after warn_s."""
        assert self.job.slurm is not None, "only Slurm restarts a job"
        self.begin_stop(outcome, reason, self.job.slurm["warn_s"])
        self.kill_at_s = time.monotonic() + self.job.slurm["warn_s"]
        if self.is_signalled_early:
            self.terminate(self.job.grace_s)

    def begin_stop(self, outcome: Outcome, reason: str, within_s: float) -> None:
        self.outcome = outcome
        text = f"stopping the ranks: {reason}; processes still alive in {within_s:g} s are killed"
        self.events.write(Kind.STOPPING, text, reason=reason)

    def terminate(self, grace_s: float) -> None:
        self.kill_at_s = max(self.kill_at_s or 0.0, time.monotonic() + grace_s)
        for pid in self.running:
            send(pid, signal.SIGTERM, group=True)

    def sweep_if_ranks_ended(self) -> None:
        """End the descendants that the ranks have left running, in any group and session, and however late they are forked."""
        if self.running:
            return
        if not self.is_sweeping:
            self.is_sweeping = True
            self.cards.close()
            self.report_daemons()
            # After a stop the ranks have used up the grace: their descendants must not double it.
            self.terminate(self.job.grace_s if self.outcome is None else min(self.job.grace_s, AFTER_STOP_S))
        signal_descendants(signal.SIGTERM, self.terminated)

    def report_daemons(self) -> None:
        """Name the programs in sessions of their own that ranks which are done have left running: nothing outlives the agent."""
        session = os.getsid(0)
        left = []
        for pid in descendants() if self.outcome is None else ():
            with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:  # it may have just ended
                if os.getsid(pid) != session:
                    left.append(f"pid {pid} ({file.read().strip()})")
        if left:
            text = f"warning: the ranks have ended, and these programs that they left running are ended, too: {', '.join(left)}"
            self.events.write_message(
                f"{text}; a run lasts as long as its ranks: start such a program without setsid or nohup, and wait for it"
            )

    def kill_if_due(self) -> None:
        is_forced = len(self.stop_requests) > 1
        if self.kill_at_s is None or not (is_forced or time.monotonic() >= self.kill_at_s):
            return
        for pid in self.running:
            send(pid, signal.SIGKILL, group=True)
        # A rank that hangs in the kernel must not keep alive what other ranks left running.
        is_late = time.monotonic() > self.kill_at_s + SURVIVOR_S
        if self.is_sweeping or is_late:
            signal_descendants(signal.SIGKILL, set())
        if is_late and self.is_first("survivors"):
            survivors = ", ".join(f"{pid} (state {stat[0]})" for pid, stat in descendants().items())
            self.events.write_message(f"killed, but still alive, and waited for: pid {survivors}")

    def on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.on_stop_request(number)
        elif number == signal.SIGUSR2 and self.job.slurm:
            self.on_warning(self.job.slurm["warn_s"])
        elif number not in (signal.SIGCHLD, signal.SIGHUP):
            for pid in self.running:
                send(pid, number)

    def on_stop_request(self, number: int) -> None:
        now = time.monotonic()
        is_copy = any(number == first and now <= first_s + SAME_SIGNAL_S for first, first_s in self.stop_requests[:1])
        if not is_copy:
            self.stop_requests.append((number, now))
        if self.signalled_s is None:
            self.signalled_s = self.events.clock.now()
        if self.outcome is not None:
            return
        reason = f"requested by {signal_name(number)}"
        if os.getppid() != self.guard_pid:  # the guard's death sends SIGTERM, too, but is not a request
            self.stop_unrequested("the guard of the agent was killed")
        elif self.job.slurm:
            self.stop_with_slurm(Outcome(State.STOPPED), reason)
        else:
            self.stop(Outcome(State.STOPPED), reason)

    def on_warning(self, warn_s: int) -> None:
        """
        Record the warning. SIGUSR2 is not passed on: Slurm signals every process of a step.

        A second SIGUSR2 may end a rank that is exiting.
        """
        if self.is_first("warning"):
            text = f"Slurm will end the job (at its time limit, in {warn_s} s or a little more)"
            self.events.write(Kind.WARNED, f"{text}: the ranks are asked to save and end")

    def check_fence(self) -> None:
        """Kill the ranks, also those that are being stopped, if a later attempt of the job has begun elsewhere."""
        if self.fence is None or self.is_fenced or not self.fence.is_closed():
            return
        self.is_fenced = True
        reason = "Slurm has lost this node, and has started a later attempt of the run"
        self.begin_stop(Outcome(State.FAILED, reason=reason), reason, 0.0)
        self.kill_at_s = time.monotonic()

    def check_head(self) -> None:
        """End the program if that of the first node is done and decides the run (--until-head); over SSH, the supervisor does so."""
        if not self.job.follows_head or self.job.slurm is None or self.outcome is not None:
            return
        if os.path.exists(os.path.join(os.path.dirname(self.folder), HEAD_DONE)):
            self.stop(Outcome(State.DONE), "the program of the first node is done (--until-head)")

    def check_supervision(self) -> None:
        """Stop the ranks if the node is isolated, or (with --orphan-timeout) if it has no supervisor."""
        isolation_s, orphan_s = self.job.isolation_timeout_s, self.job.orphan_timeout_s
        if self.outcome is not None:
            return
        if orphan_s is not None and self.isolation.unsupervised_s() >= orphan_s:
            self.stop_unrequested(f"no supervisor for {orphan_s:g} s (--orphan-timeout)")
        elif isolation_s is not None and self.isolation.isolated_s() >= isolation_s:
            self.stop_unrequested(f"cut off from the supervisor and from all other nodes for {isolation_s:g} s")

    def check_launchers(self) -> None:
        """Stop the run if every rank has started a launcher such as torchrun; warn if a launcher leaves out the other nodes."""
        if self.outcome is not None or not self.launchers.is_due():
            return
        master = self.launchers.master_on_own_host()
        if master:
            reason = own_host_message(self.job, master)
            self.stop(Outcome(State.FAILED, reason=reason, no_retry=True), reason)
            return
        if self.job.is_per_node:
            if self.launchers.is_lone_world() and self.is_first("lone world"):
                self.events.write_message(lone_world_message(self.job))
            return
        launcher = self.launchers.found_in_ranks(self.running)
        numbers = "" if launcher is not None else self.launchers.hand_started(self.running)
        if launcher is not None or numbers:
            reason = (
                nested_launcher_message(self.job, launcher) if launcher else hand_started_message(self.job, numbers)
            )
            self.stop(Outcome(State.FAILED, reason=reason, no_retry=True), reason)

    def check_separate(self) -> None:
        """Stop the run if its ranks train separately, although one training was launched."""
        reason = self.separate.message() if self.outcome is None else ""
        if reason:
            self.stop(Outcome(State.FAILED, reason=reason, no_retry=True), reason)

    def watch_ranks(self) -> None:
        """Sample the cards, the network and the progress, if it is time. Whatever goes wrong, the ranks continue."""
        if self.outcome is not None or "not watched" in self.reported:
            return
        try:
            self.cards.poll()
            self.network.poll()
            self.hangs.poll()
        except OSError as error:  # as by a file system that is away for a moment
            if self.is_first("watch has failed"):
                self.events.write_message(
                    f"the cards, the network and the progress were not watched for a moment: {error}"
                )
        except Exception as error:  # noqa: BLE001  a surprise in a tool's output must not end the run
            self.reported.add("not watched")
            self.cards.close()
            self.events.write_message(f"the cards, the network and the progress are not watched any more: {error!r}")

    def stop_unrequested(self, reason: str) -> None:
        """End the ranks without a request: the agent has failed."""
        self.stop(Outcome(State.FAILED, reason=reason), reason)

    def is_first(self, report: str) -> bool:
        """Return whether this report has not been made before."""
        if report in self.reported:
            return False
        self.reported.add(report)
        return True

    def finish(self) -> int:
        """Write the agent's last event; return its exit code."""
        remove_channels(self.folder)
        outcome = self.outcome
        if outcome is None or len(self.done) == len(self.job.processes):
            outcome = Outcome(State.DONE)
            done = {"time": self.events.clock.now(), "ranks": list(self.job.rank_numbers)}
            try:
                write_json(os.path.join(self.folder, "DONE"), done)
                if self.job.program.get("until_head") and self.job.node_rank == 0:
                    write_json(os.path.join(os.path.dirname(self.folder), HEAD_DONE), done)
            except OSError as error:  # a disk that the ranks have filled; the last event has the outcome, too
                self.events.write_message(f"the file DONE was not written: {error}")
        self.settle_memory(outcome)
        text = f"{self.job.node}: {outcome.reason or outcome.state.lower()}, nothing is left running"
        record = read_agent(self.folder)
        kills = None if record is None else kills_of_run(record)
        end: Keys = {"state": outcome.state, "exit": outcome.exit, "no_retry": outcome.no_retry, "oom_kills": kills}
        end["signalled_s"] = self.signalled_s
        end["reported_done"] = all(map(self.has_reported_done, self.job.processes))
        if left := self.left_folders():
            end["left"] = left
        self.events.write(Kind.AGENT_FINISHED, text, **end)
        self.events.require_written()
        self.logs.require_written()
        if self.is_fenced:
            # --kill-on-bad-exit would have srun end the step by its number, which the step of the later attempt has as well
            return 0
        return NO_RETRY if outcome.no_retry else EXIT_CODES[outcome.state]

    def left_folders(self) -> dict[str, int]:
        """The folders that a program of the user leaves in the run's code folder; of nodes that share it, one reports them."""
        job = self.job
        is_trainer, was_started = job.program["pythonpath"] == "", self.cwd != self.folder  # the trainer has `out`
        if is_trainer or not was_started or (job.node_rank and shared_folder(job.run_dir)):
            return {}
        from orchestrator.node.agent.left_folders import left_folders  # not on the way to the start

        try:
            return left_folders(self.cwd, os.path.join(job.bundle_dir, CODE, job.program["cwd"] or ""))
        except OSError:  # the program removes files meanwhile
            return {}

    def settle_memory(self, outcome: Outcome) -> None:
        """Remove the states that the ranks have kept in the memory of this node, unless another attempt may use them."""
        memory, slurm = memory_folder(self.job.run_id, self.job.node), self.job.slurm
        # Ranks are stopped also because another node has failed: then another attempt may follow.
        is_last = slurm is not None and slurm.get("max_retries") == 0
        if outcome.state in (State.DONE, State.REQUEUE) or outcome.no_retry or is_last:
            problem = remove_memory(memory)
            if problem:
                self.events.write_message(f"the memory of this run was not removed: {problem}")
        elif slurm is not None and os.path.isdir(memory):
            try:
                write_json(os.path.join(self.folder, "memory-kept"), {"folder": memory})
            except OSError as error:  # such as a full disk, which may be why the ranks failed
                self.events.write_message(f"the batch script will not remove the memory of this run: {error}")
