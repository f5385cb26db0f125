"""
Run the hooks of a run when its state changes, or something is wrong while it continues, in the process that owns the run.

Each hook has its own thread, so a slow one delays neither the supervision nor the other hooks. The record names the last state and the conditions
that were reported, so that another owner of the run does not report them once more.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from orchestrator.endpoint.observation import NodeObservation
from orchestrator.inventory.hooks import Hook
from orchestrator.records.run_folder import RunFolder
from orchestrator.run import RunRecord
from orchestrator.supervision.delivery import deliver
from orchestrator.supervision.notification import Notification
from orchestrator.verdict.conditions import WORDS, conditions

END_S = 120.0
"""How long the owner of a run that has ended waits for its hooks."""


class Hooks:
    """The hooks of one run."""

    def __init__(self, folder: RunFolder, hooks: Sequence[Mapping[str, Any]]) -> None:
        self._folder = folder
        record = folder.read()
        found = [Hook.model_validate(hook) for hook in hooks]
        self._workers = [
            _Worker(folder, hook) for hook in found if not hook.tags or not set(hook.tags).isdisjoint(record.tags)
        ]
        self._has_conditions = any(not set(WORDS).isdisjoint(hook.on) for hook in found)
        self._reported = record.reported_state
        self._conditions = record.reported_conditions

    def observe(self, record: RunRecord, nodes: Sequence[NodeObservation] = ()) -> None:
        """Report the state of the record, if it is not the last one that was reported, and conditions that have begun or are over."""
        state = f"{record.state.value} {record.attempt}"
        if state != self._reported:
            is_restart = (self._reported or state).split()[1] != str(record.attempt)
            self._reported = state
            if is_restart or record.state.ended:
                self._conditions = ()  # of another attempt: its end is reported as a state
            self._keep(reported_state=state, reported_conditions=self._conditions)
            self._add(replace(self._notification(record), is_restart=is_restart))
        elif self._has_conditions and nodes:
            self._observe_conditions(record, conditions(record, nodes))

    def _observe_conditions(self, record: RunRecord, found: Mapping[str, str]) -> None:
        if set(found) == set(self._conditions):
            return
        changed = [name for name in WORDS if (name in found) != (name in self._conditions)]
        self._conditions = tuple(found)
        self._keep(reported_conditions=self._conditions)
        for name in changed:
            self._add(replace(self._notification(record), condition=name, evidence=found.get(name, "")))

    def _keep(self, **fields: Any) -> None:  # of the record
        with suppress(OSError):  # a full disk must not end the supervision
            self._folder.update(**fields)

    def _notification(self, record: RunRecord) -> Notification:
        nodes = [node.name for node in self._folder.read_plan().nodes]  # those of this attempt
        return Notification(record, nodes, socket.gethostname(), str(self._folder.path))

    def _add(self, notification: Notification) -> None:
        for worker in self._workers:
            worker.add(notification)

    def close(self) -> None:
        """Wait until everything is delivered, for END_S at most."""
        deadline_s = time.monotonic() + END_S
        for worker in self._workers:
            worker.close(deadline_s)


class _Worker:
    """Delivers the notifications for one hook, one after the other."""

    def __init__(self, folder: RunFolder, hook: Hook) -> None:
        self._folder = folder
        self._hook = hook
        self._notifications: SimpleQueue[Notification | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, notification: Notification) -> None:
        """Deliver the notification if the hook is for it."""
        if set(notification.events).isdisjoint(self._hook.on):
            return
        self._notifications.put(notification)
        if self._thread is None:
            thread = threading.Thread(target=self._deliver, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the user may have no more threads
                self._add_event("hook-failed", str(error))
            else:
                self._thread = thread

    def close(self, deadline_s: float) -> None:
        """Wait until everything is delivered, until the deadline on the monotonic clock."""
        if self._thread is None:
            return
        self._notifications.put(None)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            self._add_event("hook-failed", f"it was not finished {END_S:g} s after the run")

    def _deliver(self) -> None:
        for notification in iter(self._notifications.get, None):
            try:
                failure = deliver(self._hook, notification, self._folder.hook_log_file)
            except Exception as error:  # noqa: BLE001  its text and its traceback may contain a URL
                failure = f"a bug in orch: {type(error).__name__}"
            word = notification.condition or notification.record.state.value
            state = f"{word}, attempt {notification.record.attempt}"
            event, text = ("hook-failed", f"{state}: {failure}") if failure else ("hook-ran", state)
            self._add_event(event, text)

    def _add_event(self, event: str, text: str) -> None:
        """Record the event; if that fails, the supervision and the following deliveries continue."""
        with suppress(OSError):
            self._folder.add_event(event, f"{self._hook}: {text}")


@contextmanager
def running_hooks(
    folder: RunFolder, hooks_of_plan: Sequence[Mapping[str, Any]]
) -> Iterator[Callable[[RunRecord, Sequence[NodeObservation]], None]]:
    """Yield the function that reports a new state of the run and its conditions; at the end, the last state is reported."""
    hooks = Hooks(folder, hooks_of_plan)
    try:
        yield hooks.observe
    finally:
        with suppress(Exception):  # the cause is an exception that is raised already, or a record that cannot be read
            hooks.observe(folder.read())
        hooks.close()
