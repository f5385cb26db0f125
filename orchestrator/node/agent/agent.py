"""The node agent: owns one node's ranks, from their start to the end of their last descendant."""

from __future__ import annotations

import os
import time

from orchestrator.node.agent.card_sampler import CardSampler
from orchestrator.node.agent.failure import HIDDEN_FAILURE, ended_early, exit_of, lost_error, lost_peer
from orchestrator.node.agent.finish import left_folders, report_done, settle_memory
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
from orchestrator.node.agent.termination import SAME_SIGNAL_S, Outcome, Termination
from orchestrator.node.ranks.rank_channel import remove_channels
from orchestrator.node.run.events import NO_RETRY, REQUEUE, EventLog, Kind, State
from orchestrator.node.run.fence import Fence
from orchestrator.node.run.job import Job, Refused
from orchestrator.node.run.memory_folder import remove_unused
from orchestrator.node.run.oom_kills import kills_of_run
from orchestrator.node.run.run_folder import (
    HEAD_DONE,
    output_stem,
    process_name,
    progress_file,
    read_agent,
    started_ranks,
)
from orchestrator.node.run.save_request import SaveRequest
from orchestrator.node.system.fast_stdlib import signal
from orchestrator.node.system.files import read_json
from orchestrator.node.system.processes import CAUGHT, TICK_S, Inherited, await_signal, descendants, reap, stat_of
from orchestrator.node.system.spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.node.agent.warm import WarmParent
    from orchestrator.node.isolation import Isolation
    from orchestrator.node.run.events import Keys

# REQUEUE is 0, too: on any other code srun would kill the ranks of the other nodes, which may still be saving.
EXIT_CODES = {State.DONE: 0, State.FAILED: 1, State.STOPPED: 6, State.REQUEUE: 0}
# A signal to every process, as by scancel or a host's shutdown, may end a child of a shell before it reaches the agent.
LATE_SIGNAL_S = 0.2
# Nodes read the requests to save at different times, and ranks that save take the others along.
LATE_REQUEST_S = 2.0
SHELL_TERM = 128 + signal.SIGTERM  # the exit code of a shell whose command was ended by SIGTERM
CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")  # of a library's teardown; nobody sends these


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
        self.save_request = SaveRequest(folder)
        self.is_fenced = False  # a later attempt of the job has begun elsewhere
        self.cwd = folder  # of the ranks, once they are started
        self.cpus: Sequence[set[int]] = ()  # of each rank; empty if they are not bound
        self.running: dict[int, int | None] = {}  # pid -> rank; None for a program that starts the node's ranks itself
        self.termination = Termination(job, events, self.running)
        self.done: list[int | None] = []  # the ranks that have finished their work
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
                if forked:
                    pid = forked[local_rank]
                else:
                    pid = spawn(command, environments[local_rank], self.open_output(rank), setup)
            except OSError as error:
                from orchestrator.node.system.executable import why_not_started  # only if it is not

                reason = why_not_started(error, command, cwd)
                raise Refused(f"{name} cannot be started on {self.job.node}: {reason}") from error
            self.running[pid] = rank
            stat = stat_of(pid)  # of a zombie, too
            text, start_time = f"{name} started as pid {pid}", stat[2] if stat else None
            self.events.write(Kind.RANK_STARTED, text, rank=rank, pid=pid, start_time=start_time)
        self.termination.is_signalled_early = signal.SIGTERM in signal.sigpending()

    def fork_ranks(
        self, warm: WarmParent, command: Sequence[str], environments: Sequence[Mapping[bytes, bytes]]
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
        return self.logs.open(f"{output_stem(rank)}.out"), self.logs.open(f"{output_stem(rank)}.err")

    def watch(self) -> int:
        """Wait until every rank and every descendant has ended; return the agent's exit code."""
        while self.reap_children():
            if not self.running:
                if not self.termination.is_sweeping:
                    self.cards.close()
                self.termination.sweep()
            self.termination.kill_if_due()
            self.events.flush()
            self.logs.record()
            self.check_fence()
            self.check_save_request()
            for check in (self.check_supervision, self.check_launchers, self.check_separate, self.watch_ranks):
                if self.termination.outcome is None:
                    check()
            number = await_signal(CAUGHT, TICK_S)
            if number is not None:
                self.termination.on_signal(number)
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
        if any(status == REQUEUE << 8 for *_, status in ended):
            self.await_save_request()
        for process in ended:
            self.on_rank_exit(process)
        if not has_children:
            return False
        unkillable = self.cards.unkillable if self.termination.is_sweeping else None
        return unkillable is None or set(descendants()) != {unkillable}

    def on_rank_exit(self, process: tuple[int, int | None, int]) -> None:
        """Record the exit of a process, given by pid, rank and wait status, and decide what follows from it."""
        self.logs.record(now=True)
        exited_s = self.events.clock.now()  # after that record: the rank's output must precede its exit
        pid, rank, _ = process
        result, text = exit_of(process, exited_s, self.folder, cwd=self.cwd, ranks=self.ranks_of(rank))
        code, is_stopped = result["code"], self.termination.outcome is not None
        is_done = self.has_reported_done(rank, crashed=result["signal"] in CRASHES) or (code == 0 and not is_stopped)
        if rank is None and not is_stopped:
            is_done = self.is_program_done(code, text, is_done=is_done)
        text_end = ", after the stop" if is_stopped and not is_done else ""
        if is_done and code != 0 and not self.job.follows_head:
            text_end = "; warning: its work was finished before, so it counts as done"
        self.events.write(Kind.RANK_EXITED, text + text_end, pid=pid, done=is_done, **result)
        if is_done:
            self.done.append(rank)
        elif self.termination.is_save_requested:
            if code not in (0, REQUEUE):
                self.termination.end_saving(text)
        elif code == REQUEUE and self.job.slurm:
            self.termination.request_restart(text)
        elif self.termination.outcome is None:
            self.termination.stop(Outcome(State.FAILED, exit=result), text)
        else:
            self.termination.add_late_exit(result)

    def is_program_done(self, code: int | None, text: str, *, is_done: bool) -> bool:
        """True if a program that starts its ranks is done, as are those of other nodes than the first with --until-head."""
        lost = lost_error(self.folder) if code == 0 else ""
        if lost:
            self.termination.fail(f"{lost}{HIDDEN_FAILURE}")
            return False
        if code == 0 and (warning := ended_early(self.folder)):
            self.events.write_message(warning)
        if not is_done and self.job.follows_head:
            self.events.write_message(f"warning: {text}; the run continues until the program of the first node ends")
        return is_done or self.job.follows_head

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
        reports = [read_json(progress_file(self.folder, number)) or {} for number in ranks]
        trusts_python = crashed and rank is not None
        return all(report.get("phase") == "done" and (trusts_python or "source" not in report) for report in reports)

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
        number = await_signal({signal.SIGTERM}, wait_s) if wait_s and self.termination.outcome is None else None
        if number is not None:
            self.termination.on_signal(number)

    def check_fence(self) -> None:
        """Kill the ranks, also those that are being stopped, if a later attempt of the job has begun elsewhere."""
        if self.fence is not None and not self.is_fenced and self.fence.is_closed():
            self.is_fenced = True
            self.termination.kill("Slurm has lost this node, and has started a later attempt of the run")

    def check_save_request(self, *, now: bool = False) -> None:
        """Let the ranks save and end if `orch stop --save` requests it, and nothing else has ended them."""
        grace_s = self.save_request.grace_s(now=now) if self.termination.outcome is None else None
        if grace_s is not None:
            self.termination.save(grace_s)

    def await_save_request(self) -> None:
        """A rank has saved and ended, perhaps with those of another node, whose request was read first: wait briefly for the request."""
        deadline_s = time.monotonic() + (0.0 if self.job.slurm else LATE_REQUEST_S)
        self.check_save_request(now=True)
        while self.termination.outcome is None and time.monotonic() < deadline_s:
            time.sleep(LATE_REQUEST_S / 20)
            self.check_save_request(now=True)

    def check_supervision(self) -> None:
        """
        Stop the ranks if the node is isolated, or (with --orphan-timeout) if it has no supervisor.

        Under Slurm also if the program of the first node is done and decides the run (--until-head); over SSH, the supervisor does so.
        """
        isolation_s, orphan_s = self.job.isolation_timeout_s, self.job.orphan_timeout_s
        head_done = os.path.join(os.path.dirname(self.folder), HEAD_DONE)
        if self.job.follows_head and self.job.slurm is not None and os.path.exists(head_done):
            self.termination.stop(Outcome(State.DONE), "the program of the first node is done (--until-head)")
        elif orphan_s is not None and self.isolation.unsupervised_s() >= orphan_s:
            self.termination.fail(f"no supervisor for {orphan_s:g} s (--orphan-timeout)")
        elif isolation_s is not None and self.isolation.isolated_s() >= isolation_s:
            self.termination.fail(f"cut off from the supervisor and from all other nodes for {isolation_s:g} s")

    def check_launchers(self) -> None:
        """Stop the run if every rank has started a launcher such as torchrun; warn if a launcher leaves out the other nodes."""
        if not self.launchers.is_due():
            return
        master = self.launchers.master_on_own_host()
        if master:
            self.termination.fail(own_host_message(self.job, master), no_retry=True)
            return
        if self.job.is_per_node:
            if self.launchers.is_lone_world() and self.is_first("lone world"):
                self.events.write_message(lone_world_message(self.job))
            return
        launcher = self.launchers.found_in_ranks(self.running)
        if launcher is not None:
            self.termination.fail(nested_launcher_message(self.job, launcher), no_retry=True)
        elif numbers := self.launchers.hand_started(self.running):
            self.termination.fail(hand_started_message(self.job, numbers), no_retry=True)

    def check_separate(self) -> None:
        """Stop the run if its ranks train separately, although one training was launched."""
        if reason := self.separate.message():
            self.termination.fail(reason, no_retry=True)

    def watch_ranks(self) -> None:
        """Sample the cards, the network and the progress, if it is time. Whatever goes wrong, the ranks continue."""
        if "not watched" in self.reported:
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

    def is_first(self, report: str) -> bool:
        if report in self.reported:
            return False
        self.reported.add(report)
        return True

    def finish(self) -> int:
        """Write the agent's last event; return its exit code."""
        remove_channels(self.folder)
        outcome = self.termination.outcome
        if outcome is None or len(self.done) == len(self.job.processes):
            outcome = Outcome(State.DONE)
            report_done(self.job, self.folder, self.events)
        settle_memory(self.job, self.folder, outcome, self.events)
        text = f"{self.job.node}: {outcome.reason or outcome.state.lower()}, nothing is left running"
        record = read_agent(self.folder)
        kills = None if record is None else kills_of_run(record)
        end: Keys = {"state": outcome.state, "exit": outcome.exit, "no_retry": outcome.no_retry, "oom_kills": kills}
        end["signalled_s"] = self.termination.signalled_s
        end["reported_done"] = all(map(self.has_reported_done, self.job.processes))
        if self.job.is_per_node and outcome.state != State.DONE and (lost := lost_error(self.folder)):
            end["lost"], end["lost_peer"] = lost, bool(lost_peer(lost))
        was_started = self.cwd != self.folder
        if was_started and (left := left_folders(self.job, self.cwd)):
            end["left"] = left
        self.events.write(Kind.AGENT_FINISHED, text, **end)
        self.events.require_written()
        self.logs.require_written()
        if self.is_fenced or self.termination.is_save_requested:
            # --kill-on-bad-exit would have srun end the step by its number, which the step of the later attempt has as well
            return 0
        return NO_RETRY if outcome.no_retry else EXIT_CODES[outcome.state]
