"""The classes of failures, and if another attempt can help after each."""

from __future__ import annotations

from enum import Enum


class Retry(str, Enum):
    """If another attempt can help."""

    RETRY = "retry"
    """On the same nodes."""
    ELSEWHERE = "elsewhere"
    """Without the node on which the failure began."""
    NEVER = "never"
    """Not before something is changed."""


class FailureClass(str, Enum):
    """The class of a failure. Its value is in records, in JSON and in the `kind` of a rank's error file."""

    CONFIG = "config"
    CODE = "code"
    MEMORY = "memory"
    STORAGE = "storage"
    NETWORK = "network"
    NODE = "node"
    NUMBERS = "numbers"
    HANG = "hang"
    PREEMPTION = "preemption"
    UNKNOWN = "unknown"

    @property
    def text(self) -> str:
        """The class in one sentence."""
        return _CLASSES[self][0]

    @property
    def retry(self) -> Retry:
        """If another attempt can help, unless a known cause says otherwise."""
        return _CLASSES[self][1]


_CLASSES = {
    FailureClass.CONFIG: ("a setting, file, variable or installation is wrong or missing", Retry.NEVER),
    FailureClass.CODE: ("the program raised an error or crashed", Retry.NEVER),
    FailureClass.MEMORY: ("the memory of a card or node, or a limit of memory, was exhausted", Retry.NEVER),
    FailureClass.STORAGE: ("a file system is full, or cannot be read or written", Retry.NEVER),
    FailureClass.NETWORK: ("a connection between ranks or to a node failed or timed out", Retry.RETRY),
    FailureClass.NODE: ("a node, a card or a driver failed", Retry.ELSEWHERE),
    FailureClass.NUMBERS: ("a loss or gradient is not finite, or replicas differ", Retry.NEVER),
    FailureClass.HANG: ("ranks waited for a rank that did not arrive", Retry.RETRY),
    FailureClass.PREEMPTION: ("the scheduler ended the job", Retry.RETRY),
    FailureClass.UNKNOWN: ("nothing shows why the run failed", Retry.RETRY),
}
