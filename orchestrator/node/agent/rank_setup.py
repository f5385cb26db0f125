"""The settings of a rank's process that no environment variable carries, between fork and exec."""

from __future__ import annotations

import os

from orchestrator.node.system.fast_stdlib import signal, suppress
from orchestrator.node.system.processes import PR_SET_PDEATHSIG, Inherited, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def rank_setup(
    inherited: Inherited, cwd: str, cpus: Iterable[int] | None = None, *, ignores_warning: bool = False
) -> Callable[[], None]:
    """
    Return the function that a rank runs between fork and exec.

    Args:
        cpus: the CPUs that it is bound to; None if it is not.
        ignores_warning: Slurm warns every process by SIGUSR2, whose default action ends the process.
    """
    agent_pid = os.getpid()

    def become_rank() -> None:
        os.setpgid(0, 0)
        os.chdir(cwd)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent_pid:  # the agent ended before PR_SET_PDEATHSIG took effect
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited.signal_mask)
        if ignores_warning:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        os.umask(inherited.umask)
        if cpus is not None:
            with suppress(OSError):  # the cgroup has just changed: an unbound rank is better than none
                os.sched_setaffinity(0, cpus)

    return become_rank
