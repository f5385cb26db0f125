"""
The standby of a restart, waiting without using a processor while an attempt runs:

    guard              the guard of the next attempt; is killed when the endpoint ends, and kills what is below it
     +- agent          its agent; forks the ranks when the attempt starts
         +- parent     has imported the modules of the ranks (warm.py)
"""

from __future__ import annotations

import os

from orchestrator.node.agent.environment import inherited_environment, rank_environments
from orchestrator.node.agent.guard import AgentOptions, block_signals, guard, run_agent
from orchestrator.node.agent.program import command_of, working_directory
from orchestrator.node.agent.warm import NoFork, WarmParent, late_names
from orchestrator.node.run.job import Refused, load_job
from orchestrator.node.run.run_folder import STANDBY_RECORD
from orchestrator.node.system.fast_stdlib import signal
from orchestrator.node.system.files import write_json
from orchestrator.node.system.machine import process_record
from orchestrator.node.system.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Inherited,
    name_process,
    prctl,
    raise_file_limit,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    TakeOrder = Callable[[bytes, Sequence[int]], tuple[AgentOptions, str]]
    """Enter the node folder of the order, with its environment and log and only these open files; return its options and folder."""

READY, STARTED = b"ready", b"started"
STDERR = 2


class Standby:
    """The settings of a standby, from the endpoint that forks it."""

    def __init__(
        self, options: AgentOptions, exports: Mapping[bytes, bytes], umask: int, take_order: TakeOrder
    ) -> None:
        self.options = options  # of the attempt that runs
        self.exports = exports
        self.umask = umask
        self.take_order = take_order
        self.endpoint_pid = 0
        self.order = self.status = -1  # pipes from the endpoint and to it
        folder = os.path.join(os.path.dirname(options.job), options.node)
        self.record = os.path.join(folder, STANDBY_RECORD)


def stand_by(standby: Standby) -> int:
    """Be the guard of the next attempt, once it is ordered; the agent's exit code. This returns in the agent, too."""
    die_with(standby.endpoint_pid)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_SETMASK, block_signals())  # until the order, a signal ends the standby
    name_process("orch-standby")
    reader, writer = os.pipe()
    record, agent_pid = process_record(), os.fork()
    if agent_pid == 0:
        die_with(record["pid"])
        os.close(writer)
        os.close(standby.order)
        return stand_by_as_agent(standby, reader, dict(record))
    os.close(reader)
    os.close(standby.status)
    order = read_all(standby.order)
    if not order:
        return 0
    os.unlink(standby.record)  # from now on, this is the guard of an attempt
    block_signals()
    prctl(PR_SET_PDEATHSIG, 0)
    with open(writer, "wb") as file:
        file.write(order)
    name_process("orch-guard")
    _, folder = standby.take_order(order, ())
    return guard(agent_pid, folder)


def stand_by_as_agent(standby: Standby, reader: int, record: Mapping[str, object]) -> int:
    """Start the parent of the ranks and report its state; then be the agent of the attempt that is ordered."""
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    raise_file_limit()
    inherited = Inherited(frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())), standby.umask)
    try:
        write_json(standby.record, record)
        warm = warm_parent(standby.options, {**os.environb, **standby.exports})
        warm.start(inherited, STDERR)
        warm.await_imports()
        os.write(standby.status, READY)
        # After the status: a start may be ordered as soon as this record is read.
        write_json(standby.record, {**record, "ready": True})
    except (NoFork, Refused, OSError) as error:
        os.write(standby.status, str(error).encode("utf-8", "backslashreplace"))
        return 0
    order = read_all(reader)
    if not order:
        return 0
    os.write(standby.status, STARTED)
    block_signals()
    options, folder = standby.take_order(order, [warm.link.fileno()])
    return run_agent(options, folder, inherited, warm=warm)


def warm_parent(options: AgentOptions, environ: Mapping[bytes, bytes]) -> WarmParent:
    """The parent of the ranks of the attempt after the one of these options; a spare node has the rank of another node until then."""
    job = load_job(options.job, "", options.node_rank)
    job.node, job.attempt = options.node, job.attempt + 1
    folder = os.path.join(os.path.dirname(options.job), options.node)
    kept, _ = inherited_environment(environ)
    environment = rank_environments(job, options.rendezvous or "", kept, folder)[0]
    late = late_names(job, options.rendezvous or "", folder)
    cwd = working_directory(job)
    return WarmParent(command_of(job, cwd), cwd, environment, late)


def die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before that took effect
        os._exit(1)


def read_all(descriptor: int) -> bytes:
    """Wait for the end of a pipe; return what was written to it."""
    with open(descriptor, "rb") as file:
        return file.read()
