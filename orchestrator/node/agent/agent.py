"""The node agent: owns one node's ranks, from their start to the end of their last descendant."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from orchestrator.node.events import NO_RETRY, OFFSETS, REQUEUE, EventLog, Journal, Kind
from orchestrator.node.failure import failure_of
from orchestrator.node.files import open_for_write, read_json, write_json
from orchestrator.node.isolation import Contact
from orchestrator.node.job import Job, Refused
from orchestrator.node.processes import (
    CAUGHT,
    PR_SET_PDEATHSIG,
    TICK_S,
    Inherited,
    await_signal,
    descendants,
    prctl,
    reap,
    send,
    signal_descendants,
    signal_name,
    stat_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.node.events import RankResult

# On any other code than 0, srun would kill the ranks of the other nodes, which may still be saving.
EXIT_CODES = {"DONE": 0, "FAILED": 1, "STOPPED": 6, "REQUEUE": 0}
SURVIVOR_S = 5.0  # what outlives SIGKILL for so long hangs in the kernel, and is told about
SAME_SIGNAL_S = 1.0  # Slurm signals every process of a job: the guard's copy is not a second request
SHELL_TERM = 128 + signal.SIGTERM  # how a shell reports that its command was ended by SIGTERM
AFTER_STOP_S = 1.0  # for what the ranks leave behind, when they were stopped


class Agent:
    """Starts the ranks, watches them, and is done only when nothing below it is alive."""

    def __init__(self, job: Job, folder: str, events: EventLog, contact: Contact) -> None:
        self.job, self.folder, self.events, self.contact = job, folder, events, contact
        self.guard_pid = os.getppid()
        self.cut_off: str | None = None  # why the ranks are ended without anybody's word
        self.offsets = Journal(os.path.join(folder, OFFSETS), events.clock)
        self.logs: dict[str, int] = {}  # file name -> descriptor
        self.marked: dict[str, int] = {}  # file name -> size at the last mark
        self.next_mark_s = 0.0
        self.running: dict[int, int] = {}  # pid -> rank
        self.done: list[int] = []
        self.failure: RankResult | None = None
        self.stopping = self.forced = self.sweeping = self.survivors_told = False
        self.warned = False
        self.is_early = False  # the word to stop came before all ranks were there to hear it
        self.requeue = False  # a rank has saved, and asks to be started again
        self.asked: tuple[int, float] | None = None  # the first signal that asked to stop, and when
        self.told: set[tuple[int, int]] = set()  # descendants that have had their SIGTERM
        self.deadline_s: float | None = None  # monotonic; what is alive then is killed

    def start(
        self, command: Sequence[str], cwd: str, environments: Sequence[Mapping[bytes, bytes]], inherited: Inherited
    ) -> None:
        """Start every rank; Refused when one cannot be started."""
        agent_pid = os.getpid()

        def become_rank() -> None:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != agent_pid:  # the agent died before the line above
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited.signal_mask)
            if self.job.slurm:  # which warns all that runs; who does not listen must not die of it
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            os.umask(inherited.umask)

        for rank, environment in zip(self.job.rank_numbers, environments):
            for name in (f"rank-{rank}.out", f"rank-{rank}.err"):
                self.logs[name] = open_for_write(os.path.join(self.folder, name), os.O_APPEND)
            try:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self.logs[f"rank-{rank}.out"],
                    stderr=self.logs[f"rank-{rank}.err"],
                    preexec_fn=become_rank,  # noqa: PLW1509  (there are no threads here)
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise Refused(f"rank {rank} cannot be started: {error}") from error
            process.returncode = 0  # reap() waits for it, Popen must not
            self.running[process.pid] = rank
            stat = stat_of(process.pid)  # a zombie still has one
            text = f"rank {rank} started as pid {process.pid}"
            start_time = stat[2] if stat else None
            self.events.write(Kind.RANK_STARTED, text, rank=rank, pid=process.pid, start_time=start_time)
        self.is_early = signal.SIGTERM in signal.sigpending()

    def watch(self) -> int:
        """Wait until every rank and every descendant has ended; the agent's exit code."""
        while self.take_in_the_ended():
            self.end_what_is_due()
            self.events.flush()
            self.mark_offsets()
            self.mind_contact()
            number = await_signal(CAUGHT, TICK_S)
            if number is not None:
                self.on_signal(number)
        self.next_mark_s = 0.0
        self.mark_offsets()
        return self.finish()

    def take_in_the_ended(self) -> bool:
        try:
            for pid, status in reap():
                if pid in self.running:
                    self.on_rank_exit(pid, self.running.pop(pid), status)
        except ChildProcessError:
            return False
        return True

    def on_rank_exit(self, pid: int, rank: int, status: int) -> None:
        self.next_mark_s = 0.0
        self.mark_offsets()
        ended = self.events.clock.now()  # later than the mark: what it wrote comes before the word of its end
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        by_term = os.WTERMSIG(status) == signal.SIGTERM if os.WIFSIGNALED(status) else code == SHELL_TERM
        if by_term and not self.stopping:
            self.hear_of_a_stop()
        name = None if code is not None else signal_name(os.WTERMSIG(status))
        phase = (read_json(os.path.join(self.folder, "progress", f"{rank}.json")) or {}).get("phase")
        done = phase == "done" or (code == 0 and not self.stopping)
        error, kind = (None, None) if code == 0 else failure_of(self.folder, rank, name)
        text = f"rank {rank} (pid {pid}) " + (f"exited with code {code}" if name is None else f"was ended by {name}")
        text += f": {error}" if error else ""
        if done and code != 0:
            note = "; warning: its work was finished before, so it counts as done"
        else:
            note = ", after the stop" if self.stopping and not done else ""
        result: RankResult = {"time": ended, "rank": rank, "code": code, "signal": name, "error": error, "kind": kind}
        self.events.write(Kind.RANK_EXITED, text + note, pid=pid, done=done, **result)
        if done:
            self.done.append(rank)
        elif code == REQUEUE and self.job.slurm and not self.failure:
            self.requeue = True
            if not self.stopping:
                self.let_them_save(f"{text}, which asks for another attempt")
        elif not self.stopping:  # what fails after a stop is a consequence, not the cause
            self.failure = result
            self.stop(text)

    def hear_of_a_stop(self) -> None:
        """A rank ended by SIGTERM may have had it from who stops the whole job, a moment before the agent gets its own."""
        number = await_signal({signal.SIGTERM}, SAME_SIGNAL_S)
        if number is not None:
            self.on_signal(number)

    def stop(self, reason: str) -> None:
        self.note_stop(reason, self.job.grace_s)
        if not self.sweeping:
            self.terminate(self.job.grace_s)

    def note_stop(self, reason: str, within_s: float) -> None:
        self.stopping = True
        text = f"stopping the ranks: {reason}; what is alive in {within_s:g} s is killed"
        self.events.write(Kind.STOPPING, text, reason=reason)

    def let_them_save(self, reason: str) -> None:
        """Stop as Slurm does: it has sent its own TERM to all that runs here, and kills when its time is over."""
        assert self.job.slurm is not None, "only Slurm begins a job anew"
        self.note_stop(reason, self.job.slurm["warn_s"])
        self.deadline_s = time.monotonic() + self.job.slurm["warn_s"]
        if self.is_early:
            self.terminate(self.job.grace_s)

    def note_warning(self) -> None:
        """Nothing is passed on: Slurm tells every process of a step, and a second USR2 may hit a rank that is just leaving."""
        if not self.warned:
            self.warned = True
            assert self.job.slurm is not None, "only Slurm warns"
            text = f"Slurm will end the job (at its time limit, in {self.job.slurm['warn_s']} s or a little more)"
            self.events.write(Kind.WARNED, f"{text}: the ranks are asked to save and end")

    def terminate(self, grace_s: float) -> None:
        self.deadline_s = max(self.deadline_s or 0.0, time.monotonic() + grace_s)
        for pid in self.running:
            send(pid, signal.SIGTERM, group=True)

    def end_what_is_due(self) -> None:
        if not self.running and not self.sweeping:
            self.sweeping = True
            # After a stop the ranks have used the grace up: what they leave behind must not double it.
            self.terminate(min(self.job.grace_s, AFTER_STOP_S) if self.stopping else self.job.grace_s)
        if self.sweeping:  # whatever its group and session, and whatever was forked since the last look
            signal_descendants(signal.SIGTERM, self.told)
        if self.deadline_s is None or not (self.forced or time.monotonic() >= self.deadline_s):
            return
        for pid in self.running:
            send(pid, signal.SIGKILL, group=True)
        if self.sweeping:
            signal_descendants(signal.SIGKILL, set())
        if time.monotonic() > self.deadline_s + SURVIVOR_S and not self.survivors_told:
            self.survivors_told = True
            left = ", ".join(f"{pid} (state {stat[0]})" for pid, stat in descendants().items())
            self.events.note(f"killed, but still alive, and waited for: pid {left}")

    def on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            first, self.asked = self.asked, self.asked or (number, time.monotonic())
            self.forced = first is not None and (first[0] != number or time.monotonic() > first[1] + SAME_SIGNAL_S)
            if self.stopping:
                return
            if os.getppid() != self.guard_pid:  # its death comes as a SIGTERM too, but nobody asked for a stop
                self.cut_off = "the guard of the agent was killed"
            if self.job.slurm and not self.cut_off:
                self.let_them_save(f"asked to by {signal_name(number)}")
            else:
                self.stop(self.cut_off or f"asked to by {signal_name(number)}")
        elif number == signal.SIGUSR2 and self.job.slurm:
            self.note_warning()
        elif number not in (signal.SIGCHLD, signal.SIGHUP):
            for pid in self.running:
                send(pid, number)

    def mind_contact(self) -> None:
        """No half of a split world goes on, and no run without a supervisor if that was asked for."""
        isolation_s, orphan_s = self.job.isolation_timeout_s, self.job.orphan_timeout_s
        if self.stopping:
            return
        if orphan_s is not None and self.contact.unsupervised_s() >= orphan_s:
            self.cut_off = f"no supervisor was heard for {orphan_s:g} s (--orphan-timeout)"
            self.stop(self.cut_off)
        elif isolation_s is not None and self.contact.isolated_s() >= isolation_s:
            self.cut_off = f"cut off from the supervisor and from all other nodes for {isolation_s:g} s"
            self.stop(self.cut_off)

    def mark_offsets(self) -> None:
        """Note how far each log has grown: the index from time to bytes."""
        if time.monotonic() < self.next_mark_s or self.offsets.flush() is not None:
            return
        self.next_mark_s = time.monotonic() + TICK_S
        sizes = {name: os.fstat(descriptor).st_size for name, descriptor in self.logs.items()}
        grown = {name: size for name, size in sizes.items() if size != self.marked.get(name, 0)}
        if grown:
            self.offsets.add(size=grown)
            self.marked.update(grown)

    def finish(self) -> int:
        all_done = len(self.done) == len(self.job.rank_numbers)
        ended = "FAILED" if self.cut_off else "REQUEUE" if self.requeue else "STOPPED"
        state = "FAILED" if self.failure else ended if self.stopping and not all_done else "DONE"
        if state == "DONE":
            record = {"time": self.events.clock.now(), "ranks": sorted(self.done)}
            write_json(os.path.join(self.folder, "DONE"), record)
        text = f"{self.job.node}: {self.cut_off or state.lower()}, nothing is left running"
        self.events.write(Kind.AGENT_FINISHED, text, state=state, exit=self.failure)
        self.events.require_written()
        self.offsets.require_written()
        return NO_RETRY if self.failure and self.failure["code"] == NO_RETRY else EXIT_CODES[state]
