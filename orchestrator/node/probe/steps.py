"""
Run steps in groups: groups at the same time, each in a separate process with a deadline; the steps of a group one after the other.

A step that the kernel or a driver blocks delays only the later steps of the same group. A process per step would cost more CPU time
than the steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time

from orchestrator.node.system.files import error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Dict, List, NoReturn, Tuple, TypedDict

    from orchestrator.node.facts import Tool
    from orchestrator.node.probe.source import Source

    Step = Callable[[Source], object]
    Group = Tuple[Mapping[str, Step], float]  # and its deadline in seconds

    class StepResult(TypedDict, total=False):
        """`value` is absent if the step failed; `missing` then has the reason, under the step's name."""

        value: object
        missing: Dict[str, str]
        tools: List[Tool]


RESULT_BYTES = 16 << 20
END_S = 0.2
CLD_KILLED, CLD_DUMPED = 2, 3  # in os from Python 3.9 on


def run_step(name: str, step: Step, source: Source) -> StepResult:
    """
    The result of a step, run in this process; any exception is the reason why it has no value.

    Paths in `missing` get the name of the step in front: the first part of a key is always the fact.
    """
    source.missing, source.tools = {}, []
    result: StepResult = {"missing": {}, "tools": source.tools}
    try:
        result["value"] = step(source)
    except Exception as error:  # noqa: BLE001  reported as missing
        text = error_text(error)
        source.missing[name] = f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
    result["missing"].update(
        {f"{name}.{key}" if key.startswith("/") else key: why for key, why in source.missing.items()}
    )
    return result


def run_groups(groups: Sequence[Group], source: Source) -> Dict[str, StepResult]:
    """The result of each step, in their order. A group without one at its deadline is killed, and not waited for."""
    running: Dict[int, Child] = {}
    results: Dict[str, StepResult] = {}
    poller = select.poll()
    for steps, wait_s in groups:
        try:
            child = Child(steps, wait_s, source)
        except OSError as error:  # no more processes or files for this user
            reason = f"cannot start a process: {error.strerror}"
            results.update({name: {"missing": {name: reason}, "tools": []} for name in steps})
            continue
        running[child.pipe] = child
        poller.register(child.pipe, select.POLLIN | select.POLLHUP)
    while running:
        left_s = min(child.deadline for child in running.values()) - time.monotonic()
        ready = {pipe for pipe, _ in poller.poll(max(0.0, left_s) * 1000)}
        for child in list(running.values()):
            if child.pipe in ready:
                child.read()
            if not child.has_ended and time.monotonic() >= child.deadline:
                child.give_up()
            if child.has_ended:
                poller.unregister(child.pipe)
                results.update(child.close())
                del running[child.pipe]
    return {name: results[name] for steps, _ in groups for name in steps}


class Child:
    """The process of a group. It writes a line for each result into a pipe that programs which it starts do not inherit."""

    def __init__(self, steps: Mapping[str, Step], wait_s: float, source: Source) -> None:
        self._steps, self._wait_s, self.deadline = steps, wait_s, time.monotonic() + wait_s
        self.has_ended = False
        self._gave_up = False
        self._data = bytearray()
        self.pipe, write_end = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self.pipe)
            os.close(write_end)
            raise
        if self._pid == 0:
            self._work(source, write_end)
        os.close(write_end)

    def _work(self, source: Source, pipe: int) -> NoReturn:
        """Run the steps in the child and end it. Its alarm ends it if its parent has been killed."""
        try:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(self._wait_s) + 2)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):  # a killed step that does not end must not keep the probe's output open
                os.dup2(null, descriptor)
            for name, step in self._steps.items():
                line = json.dumps({name: run_step(name, step, source)}).encode() + b"\n"
                while line:
                    line = line[os.write(pipe, line) :]
        finally:
            os._exit(0)

    def read(self) -> None:
        """Take what has arrived; the pipe ends with the child."""
        data = os.read(self.pipe, 1 << 16)
        self._data += data
        self.has_ended = not data
        if len(self._data) > RESULT_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """Take no more results from the child."""
        self.has_ended = self._gave_up = True

    def close(self) -> Dict[str, StepResult]:
        """The results, and the reason for the steps that have none. Programs that the steps have started are killed."""
        os.close(self.pipe)
        end = "ended without a result" if self._gave_up else self._end()
        for target in (-self._pid, self._pid):
            with contextlib.suppress(OSError):  # mostly none is left
                os.kill(target, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        results: Dict[str, StepResult] = {}
        for line in self._data.split(b"\n")[:-1]:  # the last one is empty, or cut by the end of the child
            results.update(json.loads(line))
        reason = f"no answer in {self._wait_s:g} s" if self._gave_up else end
        for name in self._steps:
            results.setdefault(name, {"missing": {name: reason}, "tools": []})
        return results

    def _end(self) -> str:
        """The end of a child whose pipe has ended; not reaped, so that its pid remains its own."""
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                is_signal = found.si_code in (CLD_KILLED, CLD_DUMPED)
                return f"ended by signal {found.si_status}" if is_signal else "ended without a result"
            time.sleep(0.001)
        return "ended without a result"
