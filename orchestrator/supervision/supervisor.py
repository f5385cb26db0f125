"""
The supervisor of a run over ssh: one process that outlives the terminal, hears every agent, and ends all when one fails.

It is started by ssh-launch and by attach, and refuses to be a second one. Without it the agents go on by themselves.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import LaunchError, LoginRefused, NodeError, OrchError, Unreachable
from orchestrator.fanout import each
from orchestrator.launchers import direct_launcher
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import GRACE_S, LaunchPlan, NodePlan
from orchestrator.run import RankExit, RunState
from orchestrator.store import RunFolder
from orchestrator.supervision.listeners import Ear, Hearing
from orchestrator.verdict.judge import Verdict, judge
from orchestrator.verdict.launching import launch_goes_on
from orchestrator.verdict.settle import settle

TICK_S = 0.5
RETRY_S = 1.0
SILENT_S = 7.0  # then the other nodes are asked whether they reach it
ASK_AGAIN_S = 5.0
WITNESSES = 3
LINGER_S = 30.0  # beyond the isolation timeout: by then a node that was cut off has ended its ranks itself
LAST_LINES, LAST_BYTES = 10, 8192


class Supervisor:
    """Hears the agents of one run until it is over, and sees to its end on every node."""

    def __init__(self, folder: RunFolder, launcher: DirectLauncher) -> None:
        self._folder = folder
        self._launcher = launcher
        self._plan: LaunchPlan = folder.read_plan()
        self._hearing = Hearing(folder, self._plan, launcher)
        self._ears = self._hearing.ears

    def run(self) -> None:
        """Supervise to the end; the record is final then."""
        with self._hearing.on():
            verdict = self._until_over()
            if verdict is not None:
                return self._linger(self._end(verdict))
        self._folder.note("run-unsupervised", "nothing is left that can be heard from here; orch status asks anew")
        return None

    def _until_over(self) -> Verdict | None:
        while True:
            self._hearing.news.wait(TICK_S)
            self._hearing.news.clear()
            self._hearing.check()
            record = self._folder.read()
            if record.state.final and record.state is not RunState.LOST:
                return Verdict(record.state, record.exit, record.message)
            verdict = self._judge()
            if verdict is not None and verdict.state.final and not launch_goes_on(record):
                return verdict
            if verdict is not None and not verdict.state.final:
                settle(self._folder, verdict)
            verdict = self._vanished()
            if verdict is not None:
                return verdict
            if all(ear.is_deaf or (ear.seen and ear.seen.finished) for ear in self._ears.values()):
                return None

    def _judge(self) -> Verdict | None:
        """By all that was heard; None while that is too little."""
        nodes = [ear.seen for ear in self._ears.values() if ear.seen is not None]
        verdict = judge(self._plan, nodes, None, stop_asked=self._folder.is_asked_to_stop())
        if verdict.state is RunState.LOST and len(nodes) < len(self._ears):
            return None
        return verdict

    def _vanished(self) -> Verdict | None:
        """A node that nobody hears any more; one that only this machine cannot hear goes on."""
        heard = [ear for ear in self._ears.values() if ear.seen and not ear.failure and ear.silent_s() < SILENT_S / 2]
        for ear in self._ears.values():
            witnesses = [other for other in heard[: WITNESSES + 1] if other is not ear][:WITNESSES]
            if not witnesses:
                # then it is this machine that is cut off: what nobody answers, or all refuse, proves nothing
                ear.asked_s, ear.refused_s = time.monotonic(), None
            elif not ear.is_deaf and ear.silent_s() >= SILENT_S:
                verdict = self._suspect(ear, witnesses)
                if verdict is not None:
                    return verdict
        return None

    def _suspect(self, ear: Ear, witnesses: Sequence[Ear]) -> Verdict | None:
        now, name, silent = time.monotonic(), ear.node.name, f"{ear.silent_s():.0f} s"
        if ear.refused_s is not None and now - ear.refused_s >= SILENT_S:
            return Verdict(RunState.FAILED, message=f"{name} refuses connections for {silent}: {ear.failure}")
        if now < ear.asked_s + ASK_AGAIN_S:
            return None
        ear.asked_s = now
        votes = self._votes(ear, witnesses)
        if votes and not any(votes.values()):
            word = f"{name} is gone: it was not heard for {silent}, and {', '.join(votes)} cannot reach it either"
            return Verdict(RunState.FAILED, message=word)
        vote = "but others reach it" if votes else "and no other node can tell whether it is there"
        if vote != ear.vote:
            ear.vote = vote
            self._folder.note("node-vouched", f"{name} is not heard from here, {vote}: the run goes on")
        return None

    def _votes(self, ear: Ear, witnesses: Sequence[Ear]) -> dict[str, bool]:
        """Whether the host of a silent node is reached, by each of the witnesses that can tell."""
        agents = [other.seen.agent for other in witnesses if other.seen and other.seen.agent]
        if not agents:
            return {}
        head, port, _ = agents[0].rendezvous.split()
        own = ear.seen.agent.address if ear.seen and ear.seen.agent else ""
        address = head if ear.node is self._plan.head else own or ear.node.address

        def ask(witness: Ear) -> bool:
            return address in self._launcher.reach(witness.node).reach([address], int(port))

        answers = zip(witnesses, each(witnesses, ask, limit=WITNESSES), strict=True)
        return {witness.node.name: answer for witness, answer in answers if not isinstance(answer, OrchError)}

    def _end(self, verdict: Verdict) -> list[NodePlan]:
        """End what still runs, and write down how it ended; returns the nodes that could not be reached."""
        self._hearing.enough()
        if verdict.state is RunState.DONE:
            self._record(verdict)
            return []
        if verdict.state is RunState.LOST:
            verdict = replace(verdict, state=RunState.FAILED)
        silent = [ear.node for ear in self._ears.values() if isinstance(ear.failure, Unreachable)]
        reached = [ear.node for ear in self._ears.values() if not isinstance(ear.failure, Unreachable)]
        outcomes = each(reached, self._stop, limit=int(self._plan.ssh["fanout"]))
        for node, outcome in zip(reached, outcomes, strict=True):
            if _may_pass(outcome):
                silent.append(node)
        last = judge(self._plan, [ear.seen for ear in self._ears.values() if ear.seen], None)
        if last.state is RunState.FAILED and last.exit is not None:
            verdict = last
        self._record(replace(verdict, exit=self._with_last_lines(verdict.exit)))
        return silent

    def _stop(self, node: NodePlan) -> None:
        endpoint = self._launcher.reach(node)
        endpoint.stop(self._plan.attempt_dir(node), [node.name], grace_s=GRACE_S)
        [self._ears[node.name].seen] = endpoint.observe(self._plan.attempt_dir(node), [node.name])

    def _record(self, verdict: Verdict) -> None:
        nodes = [ear.seen for ear in self._ears.values() if ear.seen]
        record = settle(self._folder, verdict, nodes)
        self._folder.note("run-ended", f"{record.state.value}: {record.message or 'nothing is left running'}")

    def _with_last_lines(self, found: RankExit | None) -> RankExit | None:
        """The exit with what its rank wrote last."""
        if found is None or found.rank is None:
            return found
        node = self._ears[found.node].node
        try:
            lines = _last_lines(self._launcher.reach(node), self._plan.attempt_dir(node), found)
        except NodeError as failure:
            self._folder.note("node-missed", f"{failure}; its last lines are not in the record")
            return found
        return replace(found, lines=tuple(lines))

    def _linger(self, left: Sequence[NodePlan]) -> None:
        """End a node that comes back; one that does not has ended its ranks itself by then."""
        deadline = time.monotonic() + (self._plan.isolation_timeout_s or 0.0) + LINGER_S
        while left and time.monotonic() < deadline:
            outcomes = each(left, self._stop, limit=int(self._plan.ssh["fanout"]))
            for node, outcome in zip(left, outcomes, strict=True):
                if not isinstance(outcome, Exception):
                    self._folder.note("node-heard", f"{node.name} is back, and what it still ran is ended")
            left = [node for node, outcome in zip(left, outcomes, strict=True) if _may_pass(outcome)]
            time.sleep(RETRY_S if left else 0.0)


def _may_pass(outcome: object) -> bool:
    """Whether a node that could not be stopped is worth another try."""
    return isinstance(outcome, OrchError) and not isinstance(outcome, LoginRefused)


def _last_lines(endpoint: Endpoint, attempt_dir: str, found: RankExit) -> Iterator[str]:
    """Of standard error, or of standard output where the rank left nothing there."""
    sizes = endpoint.files(attempt_dir, [found.node])
    for stream in ("err", "out"):
        file = f"{found.node}/rank-{found.rank}.{stream}"
        if sizes.get(file, 0):
            start = {file: max(0, sizes[file] - LAST_BYTES)}
            chunks = endpoint.read(attempt_dir, [found.node], start, wait_s=0.0, only=[file], max_bytes=LAST_BYTES)
            text = b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace")
            yield from text.splitlines()[-LAST_LINES:]
            return


def start(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor of the run as a process of its own, which no terminal ends."""
    with folder.supervisor_log() as log:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.supervision.supervisor", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",  # nothing of the user's folder is to be imported, or kept from being unmounted
            start_new_session=True,
        )


def main() -> int:
    """Supervise the run of the folder that is given; 4 where another supervisor has it."""
    os.umask(0o077)
    folder = RunFolder(Path(sys.argv[1]))
    with folder.supervision() as is_ours:
        if not is_ours:
            sys.stderr.write(f"orch: {folder.path.name} has a supervisor: {folder.supervisor()}\n")
            return LaunchError.exit_code
        folder.note("supervisor-started", f"pid {os.getpid()} supervises")
        launcher = direct_launcher(folder.read_plan())
        try:
            Supervisor(folder, launcher).run()
        except Exception as error:
            with contextlib.suppress(OSError):  # its disk may be the very reason
                folder.note("supervisor-failed", f"{error}; the run goes on without supervision")
            raise
        finally:
            launcher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
