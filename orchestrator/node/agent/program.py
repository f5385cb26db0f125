"""The working directory and the command line of a node's ranks, and the settings of a rank's process between fork and exec."""

from __future__ import annotations

import os
import sys

from orchestrator.node.ranks.rank_channel import CHANNEL
from orchestrator.node.ranks.rank_launchers import SEPARATE, per_node_command
from orchestrator.node.ranks.stacks import STACKS
from orchestrator.node.run.code_folder import make_code_folder
from orchestrator.node.run.job import Job, Refused
from orchestrator.node.run.run_folder import CARDS_REPORT, HANG_REPORT, NETWORK_REPORT
from orchestrator.node.system.fast_stdlib import signal, suppress
from orchestrator.node.system.processes import PR_SET_PDEATHSIG, Inherited, prctl
from orchestrator.node.system.spawn import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LINKED_BYTES = 4 << 20  # an executable names its libraries near its beginning


def clear_folder(folder: str) -> None:
    """Remove the files of an earlier agent from a node folder, and make the folders that the ranks write to."""
    for name in ("progress", "error", STACKS, CHANNEL, "DONE", "port-taken", CARDS_REPORT, HANG_REPORT, NETWORK_REPORT):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            import shutil  # slow to import, and the first agent in a folder does not need it

            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    for name in ("progress", "error", STACKS, CHANNEL):
        os.mkdir(os.path.join(folder, name), 0o700)


def working_directory(job: Job) -> str:
    """
    The working directory of the ranks, in the run's code folder.

    That exists already: the launcher or, under Slurm, the head has made it. If neither could, the error is reported here.
    """
    try:
        code = make_code_folder(job.run_dir, job.bundle_dir)
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}") from error
    cwd = os.path.normpath(os.path.join(code, job.program["cwd"] or ""))
    if os.path.commonpath((cwd, code)) != code:
        raise Refused(f"{job.program['cwd']}: not a folder of the code that was sent to {job.node}")
    os.makedirs(cwd, exist_ok=True)  # a bundle has no empty folders
    keep_folders(job, cwd)
    return cwd


def keep_folders(job: Job, cwd: str) -> None:
    """Link the folders that outlive the run, as the inventory asks."""
    if not job.keep:
        return
    from orchestrator.node.run.code_folder import link_kept  # few inventories keep any

    try:
        replaced = link_kept(os.path.dirname(os.path.dirname(job.run_dir)), job.kept_dir, cwd, job.keep)
    except OSError as error:
        raise Refused(f"keep: {error.filename}: {error.strerror or error}") from error
    if replaced:
        raise Refused(
            f"keep: {replaced[0]} in {cwd} is no link to {job.kept_dir}/{replaced[0]} any more: the program has replaced it; "
            f"move its content there, and remove it"
        )


def script_of(args: Sequence[str]) -> str | None:
    """The script among a Python interpreter's arguments; None for -m, -c and standard input."""
    remaining = iter(args)
    for arg in remaining:
        if not arg.startswith("-"):
            return arg
        if arg in ("-W", "-X", "--check-hash-based-pycs"):
            next(remaining, None)
        elif not arg.startswith(("--", "-W", "-X")) and (arg == "-" or "m" in arg or "c" in arg):
            return None  # also -um pkg
    return None


def command_of(job: Job, cwd: str) -> list[str]:
    """The argv of a rank; Refused if there is no such program."""
    args = job.program["args"]
    if job.program["python"]:
        script = script_of(args)
        if script is not None and not os.path.exists(os.path.join(cwd, script)):
            raise Refused(f"{script}: no such script on {job.node}, looked for from {cwd}")
        return [sys.executable, *args]
    path = os.environ.get("PATH", os.defpath)
    file = os.path.join(cwd, args[0]) if "/" in args[0] else args[0]
    program = find_program(file, path)
    if program is None:
        from orchestrator.node.system.executable import why_not_found  # only if there is none

        raise Refused(why_not_found(args, path, file))
    is_joined = job.is_per_node or sum(job.ranks) == 1 or os.environ.get(SEPARATE) == "1"
    if not is_joined and needs_mpirun(program):
        command = per_node_command("submit" if job.slurm else "ssh-launch", ["mpirun", *args])
        raise Refused(
            f"{args[0]} is an MPI program: without mpirun, each of the {sum(job.ranks)} ranks is rank 0 of 1; start it with {command}"
        )
    return list(args)


def needs_mpirun(program: str) -> bool:
    """Return whether an executable is linked to an MPI library, whose ranks only mpirun (or srun --mpi) numbers."""
    try:
        with open(program, "rb") as file:
            head = file.read(LINKED_BYTES)
    except OSError:
        return False
    if not head.startswith(b"\x7fELF") or b"\0libmpi" not in head:
        return False
    import re  # slow to import, and few programs get here

    return re.search(rb"\0libmpi(ch|cxx|fort|_[a-z0-9_]+)?\.so", head) is not None


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
