"""The end of a node's ranks: by signals within a grace, then by SIGKILL; and the end of what they have left running."""

from __future__ import annotations

import os
import time

from orchestrator.node.run.events import NO_RETRY, Kind, State, precedes
from orchestrator.node.system.fast_stdlib import signal, suppress
from orchestrator.node.system.processes import descendants, handles, send, signal_descendants, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.node.run.events import EventLog, RankResult, StateName
    from orchestrator.node.run.job import Job

SURVIVOR_S = 5.0  # a process that survives SIGKILL for longer hangs in the kernel, and is reported
SAME_SIGNAL_S = 1.0  # Slurm signals every process of a job: the guard's copy is not a second request
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


class Termination:
    """
    Ends the ranks, and their descendants once no rank is left.
    `running`: pid -> rank of the processes that the agent has started and that have not ended.
    """

    def __init__(self, job: Job, events: EventLog, running: dict[int, int | None]) -> None:
        self._job, self._events, self._running = job, events, running
        self._guard_pid = os.getppid()
        self.outcome: Outcome | None = None  # None until the ranks are being ended
        self.is_sweeping = False  # the ranks have ended; their remaining descendants are being ended
        self.signalled_s: float | None = None  # when the first request to stop arrived, by the clock of the events
        self.is_signalled_early = False  # SIGTERM arrived before all ranks were started
        self._requests: list[tuple[int, float]] = []  # signal and time; a second one kills at once
        self._kill_at_s: float | None = None  # monotonic; ranks and descendants alive then are killed
        self.is_save_requested = False
        """The ranks shall save and end, and no other attempt shall follow."""
        self._saved_by_s: float | None = None
        """Monotonic: ranks that are alive then are terminated; None if they need not save any more."""
        self._terminated: set[tuple[int, int]] = set()  # descendants that have been sent SIGTERM
        self._is_warned = self._has_named_survivors = self._has_killed = False

    def stop(self, outcome: Outcome, reason: str) -> None:
        """End the ranks within the grace."""
        self._begin(outcome, reason, self._job.grace_s)
        if not self.is_sweeping:
            self._terminate(self._job.grace_s)

    def fail(self, reason: str, *, no_retry: bool = False) -> None:
        """End the ranks for a reason that is no rank's exit."""
        self.stop(Outcome(State.FAILED, reason=reason, no_retry=no_retry), reason)

    def stop_with_slurm(self, outcome: Outcome, reason: str) -> None:
        """Wait for the end of the ranks, which get SIGTERM from Slurm itself; kill them after warn_s."""
        assert self._job.slurm is not None, "only Slurm restarts a job"
        self._begin(outcome, reason, self._job.slurm["warn_s"])
        self._kill_at_s = time.monotonic() + self._job.slurm["warn_s"]
        if self.is_signalled_early:
            self._terminate(self._job.grace_s)

    def kill(self, reason: str) -> None:
        """Kill the ranks, also those that are being stopped."""
        self._begin(Outcome(State.FAILED, reason=reason), reason, 0.0)
        self._kill_at_s = time.monotonic()

    def add_late_exit(self, result: RankResult) -> None:
        """
        A rank has ended after the stop, which is mostly a consequence.

        It failed first if the known failure is only that a rank lost its connection: another rank may take longer to end.
        """
        first = self.outcome and self.outcome.exit
        is_crash = result["signal"] not in (None, "SIGTERM") and not self._has_killed
        if first and (precedes(result, first) or (first.get("lost_peer") and is_crash)):
            self.outcome = Outcome(State.FAILED, exit=result)

    def save(self, grace_s: float) -> None:
        """Ask the ranks to save and end by SIGUSR2, as Slurm does before the time limit; end those that have not after the grace."""
        signalled = [rank for pid, rank in self._running.items() if self._signal_to_save(pid)]
        self.outcome, self.is_save_requested = Outcome(State.STOPPED, reason="stopped after a save"), True
        self._saved_by_s = time.monotonic() + grace_s
        names = (
            "the ranks are asked"
            if len(signalled) == len(self._running)
            else f"{len(signalled)} of {len(self._running)} ranks are asked"
        )
        text = f"{names} to save and end (SIGUSR2), within {grace_s:g} s"
        if not self._running:
            text = "the ranks have saved and ended"
        elif not signalled:
            text = "no rank can be asked to save: the program does not handle SIGUSR2"
        self._events.write(
            Kind.STOPPING, f"orch stop --save: {text}", reason="orch stop --save", saving_ranks=signalled
        )

    def _signal_to_save(self, pid: int) -> bool:
        """Signal the processes of a rank that handle the signal, whose default action would end the others; True if there are any."""
        family = {pid}
        for child, (_, parent, _) in sorted(descendants().items(), key=lambda item: item[1][2]):  # parents are older
            if parent in family:
                family.add(child)
        handling = [member for member in family if handles(member, signal.SIGUSR2)]
        for member in handling:
            send(member, signal.SIGUSR2)
        return bool(handling)

    def end_saving(self, reason: str) -> None:
        """End the ranks that are still saving, within the usual grace."""
        if self._saved_by_s is not None:
            self._saved_by_s = None
            self._events.write_message(f"the ranks are no longer waited for: {reason}")
            self._terminate(self._job.grace_s)

    def request_restart(self, text: str) -> None:
        """A rank has saved and requests another attempt, whether or not it was stopped."""
        if self.outcome is None:
            self.stop_with_slurm(Outcome(State.REQUEUE), f"{text}, which requests another attempt")
        elif self.outcome.state == State.STOPPED:
            self.outcome = Outcome(State.REQUEUE)

    def on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._on_stop_request(number)
        elif number == signal.SIGUSR2 and self._job.slurm:
            # It is not passed on: Slurm signals every process of a step, and a second one may end a rank that is exiting.
            if not self._is_warned:
                self._is_warned = True
                text = f"Slurm will end the job (at its time limit, in {self._job.slurm['warn_s']} s or a little more)"
                self._events.write(Kind.WARNED, f"{text}: the ranks are asked to save and end")
        elif number not in (signal.SIGCHLD, signal.SIGHUP):
            for pid in self._running:
                send(pid, number)

    def _on_stop_request(self, number: int) -> None:
        now = time.monotonic()
        is_copy = any(number == first and now <= first_s + SAME_SIGNAL_S for first, first_s in self._requests[:1])
        if not is_copy:
            self._requests.append((number, now))
        if self.signalled_s is None:
            self.signalled_s = self._events.clock.now()
        if self.outcome is not None:
            self.end_saving("the end of the run is requested")
            return
        reason = f"requested by {signal_name(number)}"
        if os.getppid() != self._guard_pid:  # the guard's death sends SIGTERM, too, but is not a request
            self.fail("the guard of the agent was killed")
        elif self._job.slurm:
            self.stop_with_slurm(Outcome(State.STOPPED), reason)
        else:
            self.stop(Outcome(State.STOPPED), reason)

    def _begin(self, outcome: Outcome, reason: str, within_s: float) -> None:
        self.outcome = outcome
        text = f"stopping the ranks: {reason}; processes still alive in {within_s:g} s are killed"
        self._events.write(Kind.STOPPING, text, reason=reason)

    def _terminate(self, grace_s: float) -> None:
        self._kill_at_s = max(self._kill_at_s or 0.0, time.monotonic() + grace_s)
        for pid in self._running:
            send(pid, signal.SIGTERM, group=True)

    def sweep(self) -> None:
        """End the descendants that the ranks have left running, in any group and session, and however late they are forked."""
        if not self.is_sweeping:
            self.is_sweeping = True
            # name the programs in sessions of their own that ranks which are done have left running: nothing outlives the agent
            session = os.getsid(0)
            left = []
            for pid in descendants() if self.outcome is None else ():
                with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:  # it may have just ended
                    if os.getsid(pid) != session:
                        left.append(f"pid {pid} ({file.read().strip()})")
            if left:
                text = f"warning: the ranks have ended, and these programs that they left running are ended, too: {', '.join(left)}"
                self._events.write_message(
                    f"{text}; a run lasts as long as its ranks: start such a program without setsid or nohup, and wait for it"
                )
            # After a stop the ranks have used up the grace: their descendants must not double it.
            self._terminate(self._job.grace_s if self.outcome is None else min(self._job.grace_s, AFTER_STOP_S))
        signal_descendants(signal.SIGTERM, self._terminated)

    def kill_if_due(self) -> None:
        if self._saved_by_s is not None and time.monotonic() >= self._saved_by_s:
            self.end_saving("the time for the save is over")
        is_forced = len(self._requests) > 1
        if self._kill_at_s is None or not (is_forced or time.monotonic() >= self._kill_at_s):
            return
        self._has_killed = True
        for pid in self._running:
            send(pid, signal.SIGKILL, group=True)
        # A rank that hangs in the kernel must not keep alive what other ranks left running.
        is_late = time.monotonic() > self._kill_at_s + SURVIVOR_S
        if self.is_sweeping or is_late:
            signal_descendants(signal.SIGKILL, set())
        if is_late and not self._has_named_survivors:
            self._has_named_survivors = True
            survivors = ", ".join(f"{pid} (state {stat[0]})" for pid, stat in descendants().items())
            self._events.write_message(f"killed, but still alive, and waited for: pid {survivors}")
