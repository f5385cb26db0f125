"""Let the process that owns a run over SSH (usecases/owner/owner.py) launch it, and show what it reports: the part of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator import errors
from orchestrator.endpoint.access import PromptCancelled, Terminal
from orchestrator.errors import LaunchError, OrchError, UsageError
from orchestrator.progress import OnProgress, Progress, no_progress
from orchestrator.run import RunRecord
from orchestrator.supervision.link import answer, frame, messages
from orchestrator.usecases.launch_arguments import WatchedLines
from orchestrator.usecases.owner.start import owner_process
from orchestrator.verdict.live_run import LiveRun

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from orchestrator.usecases.launch_arguments import LaunchArguments
    from orchestrator.usecases.reports.log_reader import Viewer

ALL_LINES = WatchedLines()
END_WAIT_S = 1.0
DIAGNOSIS_S = 8.0  # the owner needs less


def no_note(_text: str) -> None:
    """Leave out what is said about the code."""


class Owner:
    """The process that owns a run; leaving the `with` statement leaves the run to it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._terminal = Terminal()
        pythonpath = os.environ.get("PYTHONPATH")  # ranks on this machine inherit it
        common = {"cwd": _working_folder(), "pythonpath": pythonpath, "is_terminal": self._terminal.is_available()}
        self._request = frame({**request, **common})
        started = owner_process()
        self._link, self._process = started.link, started.process
        self._messages = messages(self._link)
        self._is_interrupted = False
        self._is_prompting = False
        self._hide_state: Callable[[], None] = lambda: None
        """Called before a prompt, which would be written into the state of the run."""
        self._diagnosed: RunRecord | None = None

    @property
    def is_interrupted(self) -> bool:
        """True if a signal has interrupted the launch."""
        return self._is_interrupted

    @classmethod
    def of_launch(
        cls,
        arguments: LaunchArguments,
        *,
        follow: bool,
        watched: WatchedLines = ALL_LINES,
        is_benchmark: bool = False,
    ) -> Owner:
        """Launch a run."""
        config = None if arguments.config is None else str(arguments.config)
        typed = {**asdict(arguments), "config": config}
        return cls({"arguments": typed, "is_benchmark": is_benchmark, "follow": follow, **asdict(watched)})

    @classmethod
    def of_run(cls, run: str, *, follow: bool, watched: WatchedLines = ALL_LINES, tail: int | None = None) -> Owner:
        """Supervise a run that has no owner; show the last `tail` lines so far, or all."""
        return cls({"run": run, "follow": follow, "tail": tail, **asdict(watched)})

    def until_launched(
        self,
        on_planned: Callable[[str], None],
        on_warning: Callable[[str], None],
        on_progress: OnProgress = no_progress,
        on_note: Callable[[str], None] = no_note,
    ) -> str:
        """
        Return the run's id when it has started and is supervised; Ctrl-C and SIGTERM cancel the launch.

        Args:
            on_planned: takes the warnings about the plan.
            on_warning: takes those of the launch.
            on_progress: takes the progress.
            on_note: takes what is said about the code.

        Raises:
            OrchError: the launch failed; what had started was stopped, or is named.
        """
        with self._passing_on(signal.SIGINT), self._passing_on(signal.SIGTERM):
            with suppress(ConnectionError):  # it has ended already, which is reported below
                self._link.sendall(self._request)  # only now: the owner of a viewer that ends before does nothing
            for message in self._reported():
                if message["kind"] == "planned":
                    for text in message["code_lines"]:
                        on_note(text)
                    for text in message["warnings"]:
                        on_planned(text)
                elif message["kind"] == "warning":
                    on_warning(message["text"])
                elif message["kind"] == "progress":
                    del message["kind"]
                    on_progress(Progress(**{**message, "names": tuple(message["names"])}))
                elif message["kind"] == "launched":
                    return str(message["run"])
        raise self._ended(
            OrchError, "the process that launches the run has ended", "orch list shows whether it has begun"
        )

    def to_end(self, viewer: Viewer) -> RunRecord:
        """
        Show the run to its end; return its record.

        Raises:
            LaunchError: the outcome of the run is open, or it has lost its owner.
        """
        if self._is_interrupted:  # just when the launch was complete
            raise KeyboardInterrupt
        self._hide_state = partial(viewer.show, None)
        for message in self._reported():
            if message["kind"] == "lines":
                viewer.write(message["lines"])
            elif message["kind"] == "inform":
                viewer.inform(message["text"])
            elif message["kind"] == "warning":
                viewer.warn(message["text"])
            elif message["kind"] == "live":
                viewer.show(LiveRun.from_json(message["live"]))
            elif message["kind"] == "ended":
                return RunRecord.from_json(message["record"])
            elif message["kind"] == "diagnosed":
                self._diagnosed = RunRecord.from_json(message["record"])
        raise self._ended(LaunchError, "the supervisor of the run has ended", "orch attach supervises it again")

    def diagnosed(self, on_warning: Callable[[str], None]) -> RunRecord | None:
        """The record of a run that has failed, with its diagnosis; None if there is none in time. `on_warning` takes its warnings."""
        self._link.settimeout(DIAGNOSIS_S)
        with suppress(OSError, OrchError):
            for message in self._reported() if self._diagnosed is None else ():
                if message["kind"] == "warning":
                    on_warning(message["text"])
                elif message["kind"] == "diagnosed":
                    return RunRecord.from_json(message["record"])
        return self._diagnosed

    def _reported(self) -> Iterator[dict[str, Any]]:
        """The messages for the caller; questions are answered, and errors raised."""
        with suppress(ConnectionError):
            for message in self._messages:
                if message["kind"] == "question":
                    self._prompt(message["question"], echo=message["echo"])
                elif message["kind"] == "error":
                    raise _error(message)
                elif message["kind"] == "interrupted":
                    raise KeyboardInterrupt
                else:
                    yield message

    def _prompt(self, question: str, *, echo: bool) -> None:
        text = None
        self._hide_state()
        self._is_prompting = True
        with suppress(PromptCancelled, OSError):
            text = self._terminal.prompt(question, echo=echo)
        self._is_prompting = False
        answer(self._link, text)

    @contextmanager
    def _passing_on(self, number: signal.Signals) -> Iterator[None]:
        """Pass a signal that would end or interrupt this process on to the owner."""
        is_main_thread = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(number)
        if before not in (signal.SIG_DFL, signal.default_int_handler) or not is_main_thread:
            yield
            return

        def pass_on(*_: object) -> None:
            self._is_interrupted = True
            self._process.send_signal(signal.SIGINT)
            if self._is_prompting:
                self._is_prompting = False
                raise PromptCancelled

        signal.signal(number, pass_on)
        try:
            yield
        finally:
            signal.signal(number, before)

    def _ended(self, kind: type[OrchError], text: str, hint: str) -> OrchError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WAIT_S)
        return kind(f"{text}, exit status {self._process.poll()}", hint=hint)

    def close(self) -> None:
        """Leave the run to its owner."""
        self._messages.close()
        self._link.close()
        with suppress(RuntimeError):  # the user's limit of threads is reached
            threading.Thread(target=self._process.wait, daemon=True).start()  # reaps it, if this process lives longer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError("the working folder has been deleted", hint="cd to one that exists") from None


def _error(message: Mapping[str, Any]) -> OrchError:
    """The error that the owner reports; one that names nodes becomes a LaunchError."""
    kind = getattr(errors, message["type"], LaunchError)  # the errors of a node may be defined elsewhere
    error: OrchError = (LaunchError if issubclass(kind, LaunchError) else kind)(message["text"], hint=message["hint"])
    error.exit_code = message["exit_code"]
    return error
