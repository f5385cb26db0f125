"""
The agent's process and its guard, from the start to the last event:

    guard              the process that was started; a sub-reaper; ends the remaining processes if the agent is killed
     +- agent          leads its own session; a sub-reaper; agent.json records this process
         +- ranks      one process group each; killed when the agent ends
"""

from __future__ import annotations

import math
import os
import sys
import time

from orchestrator.node.agent.agent import EXIT_CODES, Agent
from orchestrator.node.agent.binding import Unbound, bind_ranks
from orchestrator.node.agent.environment import hostfile_text, inherited_environment, rank_environments, summary
from orchestrator.node.agent.program import clear_folder, command_of, working_directory
from orchestrator.node.cards import VISIBLE, kind_of_cards
from orchestrator.node.isolation import Isolation
from orchestrator.node.number_text import format_numbers, node_names, parse_numbers
from orchestrator.node.rendezvous import address_towards, hold_port, is_loopback, reserve
from orchestrator.node.run.events import PORT_TAKEN, REFUSAL, REFUSED, Clock, EventLog, Kind, State
from orchestrator.node.run.job import AlreadyRunning, Job, PortTaken, Refused, load_job
from orchestrator.node.run.oom_kills import kills_in, memory_cgroup, oom_kills
from orchestrator.node.run.run_folder import AGENT_RECORD, read_agent
from orchestrator.node.system.fast_stdlib import signal
from orchestrator.node.system.files import LEAST_FILE_BYTES, low_size_limit, open_for_write, write_json
from orchestrator.node.system.machine import host_id, is_alive, process_record
from orchestrator.node.system.processes import (
    CAUGHT,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Inherited,
    end_descendants,
    name_process,
    prctl,
    raise_file_limit,
    signal_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.node.agent.warm import WarmParent
    from orchestrator.node.run.agent_files import AgentBody, BindingBody
    from orchestrator.node.system.fast_stdlib import Socket

UNKILLABLE_S = 2.0  # the agent has ended its ranks; under Slurm, a longer wait for a tool in the driver keeps the job's nodes allocated


class AgentOptions:
    """The command line: the job, this node's name and rank, and the head's rendezvous record."""

    def __init__(self, job: str, node: str, node_rank: int, rendezvous: str | None) -> None:
        self.job, self.node, self.node_rank, self.rendezvous = job, node, node_rank, rendezvous


def join_rendezvous(job: Job, record: str | None) -> tuple[str, Socket | None]:
    """The rendezvous record that all nodes share and, on the head, the socket that holds the port."""
    if record is None:
        if job.node_rank != 0:
            raise Refused(f"{job.node}: node rank {job.node_rank} needs --rendezvous, the record of the head node")
        return reserve(job.addresses[:1], os.environ)
    try:
        address, port, head_host_id = record.split()
        holder = hold_port(int(port)) if job.node_rank == 0 else None
    except (ValueError, OverflowError) as error:
        raise Refused(f"--rendezvous: expected ADDR PORT HOST_ID, not {record!r}") from error
    except OSError as error:
        raise PortTaken(f"{error}; to be restarted on another port") from error
    if is_loopback(address) and head_host_id != host_id():
        head = job.nodes[0] if job.nodes else "the head node"
        hint = f"give {head} a routable address: in the inventory"
        raise Refused(f"rendezvous address {address} is loopback on {head}; {hint}")
    return record, holder


def write_agent_record(job: Job, folder: str, rendezvous: str, clock: Clock) -> BindingBody:
    """Record the owner of the node folder, the CPUs and the cards of the ranks, before any rank starts; return the latter."""
    try:
        cpus = bind_ranks(job, os.environ, os.sched_getaffinity(0))
        binding: BindingBody = {"cpus": list(map(format_numbers, cpus)), "reason": ""}
    except Unbound as error:
        binding = {"cpus": [], "reason": str(error)}
    cgroup, kind = memory_cgroup(), kind_of_cards(job.accelerator)
    record: AgentBody = {
        **process_record(),
        "pgid": os.getpgrp(),
        "host_id": host_id(),
        "hostname": os.uname().nodename,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "node": job.node,
        "node_rank": job.node_rank,
        "ranks": list(job.rank_numbers),
        "world_size": sum(job.ranks),
        "rendezvous": rendezvous,
        "address": address_towards(rendezvous.split(maxsplit=1)[0]),
        "started": clock.now(),
        "clock_ahead_s": clock.ahead_s,
        "binding": binding,
        "cards": None if kind is None else {"kind": kind, "visible": os.environ.get(VISIBLE[kind])},
        "oom_kills": oom_kills(),
        "memory_cgroup": cgroup,
        "cgroup_oom_kills": None if cgroup is None else kills_in(cgroup),
    }
    write_json(os.path.join(folder, AGENT_RECORD), record)
    return binding


def run_ranks(
    options: AgentOptions, folder: str, events: EventLog, inherited: Inherited, *, warm: WarmParent | None = None
) -> int:
    """Start the ranks and wait for their end, holding the rendezvous port; return the agent's exit code."""
    record = read_agent(folder)
    if record is not None and is_alive(record):
        raise AlreadyRunning(f"{folder}: the agent with pid {record['pid']} is alive; stop that run first")
    job = load_job(options.job, options.node, options.node_rank)
    if problem := low_size_limit(LEAST_FILE_BYTES, "an agent"):
        raise Refused(f"{job.node}: {problem}; raise the limit: ulimit -f unlimited")
    clear_folder(folder)
    cwd = working_directory(job)
    command = command_of(job, cwd)
    rendezvous, holder = join_rendezvous(job, options.rendezvous)
    if not job.addresses:
        job.addresses = node_names(os.environ.get("SLURM_STEP_NODELIST", ""))
    with open(open_for_write(job.hostfile, os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(hostfile_text(job, rendezvous))
    binding = write_agent_record(job, folder, rendezvous, events.clock)
    if job.restarted and job.node_rank == 0:
        events.write(Kind.RESTARTING, job.restarted)
    text = f"agent of {job.node} started as pid {os.getpid()} with {len(job.rank_numbers)} of {sum(job.ranks)} ranks"
    text += ", which the program starts" if job.is_per_node else ""
    text += ", bound to the CPUs near their cards" if binding["cpus"] else ""
    text += f", attempt {job.attempt}" if job.attempt > 1 else ""
    events.write(Kind.AGENT_STARTED, text, pid=os.getpid())
    kept, stale = inherited_environment(os.environb)
    if stale:
        text = f"left out variables that another launcher had set: {summary(stale)}"
        events.write(Kind.MESSAGE, text, dropped=stale)
    timeout_s = job.isolation_timeout_s or 0.0
    isolation = Isolation(folder, rendezvous, is_head=job.node_rank == 0, timeout_s=timeout_s)
    agent = Agent(job, folder, events, isolation)
    agent.cpus = [parse_numbers(cpus) or set() for cpus in binding["cpus"]]
    events.require_written()
    agent.start(command, cwd, rank_environments(job, rendezvous, kept, folder), inherited, warm=warm)
    code = agent.watch()
    if holder is not None:
        holder.close()
    return code


def run_agent(options: AgentOptions, folder: str, inherited: Inherited, *, warm: WarmParent | None = None) -> int:
    """
    Run the agent; REFUSED if it could not start its ranks or write its record, PORT_TAKEN if the head needs another port.
    `warm`: the process to fork the ranks from, if there is one; the agent then leads a session already.
    """
    if warm is None:
        os.setsid()
    name_process("orch-agent")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # if the guard is killed, the agent stops
    raise_file_limit()
    events: EventLog | None = None
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder)
        events = EventLog(folder, Clock())
        return run_ranks(options, folder, events, inherited, warm=warm)
    except (Refused, OSError) as error:
        end_descendants()
        print(f"{REFUSAL}{error}", file=sys.stderr, flush=True)
        if events is not None:
            write = events.write_message if isinstance(error, Refused) and not error.ends_run else events.write_failure
            write(str(error))
        if not isinstance(error, PortTaken):
            return REFUSED
        # A batch script cannot get the exit code from srun.
        write_json(os.path.join(folder, "port-taken"), {"time": time.time()})
        return PORT_TAKEN


def block_signals() -> frozenset[int]:
    """Block the signals that agent and guard wait for; return the mask before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    for number in CAUGHT:  # a shell's `&` and nohup ignore some signals, and the ranks would inherit that
        signal.signal(number, signal.SIG_DFL)
    return frozenset(mask)


def lead(options: AgentOptions, umask: int) -> int:
    """Become the guard in a new session, and fork the agent, in which this returns, too; the ranks get `umask`."""
    folder = os.path.join(os.path.dirname(os.path.abspath(options.job)), options.node)
    mask = block_signals()
    if os.getpgrp() != os.getpid():  # a group leader, as under a terminal, cannot lead a new session
        os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    name_process("orch-guard")
    agent_pid = os.fork()
    return guard(agent_pid, folder) if agent_pid else run_agent(options, folder, Inherited(mask, umask))


def guard(agent_pid: int, folder: str) -> int:
    """Pass signals on to the agent and return its exit code; if the agent is killed, end its remaining descendants."""
    clock = Clock()
    while True:
        ended, status = os.waitpid(agent_pid, os.WNOHANG)
        if ended:
            break
        number = signal.sigwait(CAUGHT)
        if number != signal.SIGCHLD:
            os.kill(agent_pid, number)
    end_descendants(UNKILLABLE_S if os.WIFEXITED(status) else math.inf)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    cause = f"the agent (pid {agent_pid}) was ended by {signal_name(os.WTERMSIG(status))}"
    EventLog(folder, clock).write_failure(f"{os.path.basename(folder)}: {cause}; nothing is left running")
    return EXIT_CODES[State.FAILED]
