"""Report on the runs of a node: new content of their files, and the state of their agents."""

from __future__ import annotations

import os
import time

from orchestrator.node.endpoint.machine_use import machine_use
from orchestrator.node.isolation import PEER_ANSWERED, connect_error, leave_heartbeat, reachable_hosts
from orchestrator.node.protocol.operations import CONNECT, FILES, FIND, HEARTBEAT, OBSERVE, RANKS, REACH, answers
from orchestrator.node.run.events import EVENTS, OFFSETS, read_history
from orchestrator.node.run.run_folder import (
    AGENT_LOG,
    CARDS_REPORT,
    HANG_REPORT,
    NETWORK_REPORT,
    attempt_folder,
    newest_attempt,
    node_folders,
    output_stem,
    progress_file,
    read_agent,
    started_ranks,
)
from orchestrator.node.system.files import absolute_path, read_json, relative, tail
from orchestrator.node.system.machine import boot_id, is_alive, is_stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Optional, Tuple

    from orchestrator.node.protocol.agents import HeartbeatReply, HeartbeatRequest, NodeBody, ObserveReply, RanksReply
    from orchestrator.node.protocol.connection import ConnectReply, ConnectRequest, ReachReply, ReachRequest
    from orchestrator.node.protocol.operations import Steps
    from orchestrator.node.protocol.output import FilesReply, FilesRequest, Outputs
    from orchestrator.node.protocol.runs import BatchLogBody, FindReply, FindRequest
    from orchestrator.node.run.agent_files import AgentBody, NodeFolders, RankBody

LOG_TAIL_BYTES = 4096
NEWS_POLL_S = 0.2  # polling more often would take processor time from the training
READ_FIRST = (EVENTS, OFFSETS)


def clock_ahead_s(agent: Optional[AgentBody]) -> Optional[float]:
    """The agent's clock minus the clock since boot; None if it is unknown: the agent is of another boot or an older version."""
    if agent is None or agent.get("boot_id") != boot_id():
        return None
    return agent.get("clock_ahead_s")


@answers(FILES)
def files(request: FilesRequest, _payload: bytes) -> Tuple[FilesReply, bytes]:
    """The sizes of the files that can be read or followed, by name."""
    requested = Requested(request["outputs"])
    sizes = {
        f"{node}/{name}": size
        for node, folder in node_folders(request)
        for name, size in streams(folder)
        if requested(node, name)
    }
    return {"files": sizes}, b""


class Requested:
    """The requested files of node folders: the agents' own files, and some output files of ranks."""

    def __init__(self, outputs: Outputs) -> None:
        self._nodes, self._streams = outputs["nodes"], outputs["streams"]
        self._stems = None if outputs["ranks"] is None else frozenset(map(output_stem, outputs["ranks"]))

    def __call__(self, node: str, name: str) -> bool:
        if name in READ_FIRST:
            return True
        stem, _, stream = name.partition(".")
        return (
            (self._nodes is None or node in self._nodes)
            and (self._stems is None or stem in self._stems)
            and (self._streams is None or stream in self._streams)
        )


def is_stream(name: str) -> bool:
    """True for events.jsonl, offsets.jsonl, and the .out and .err of rank-N and program. A compiled regular expression is slower."""
    stem, _, suffix = name.partition(".")
    is_output = stem == output_stem(None) or (stem.startswith("rank-") and stem[5:].isdigit())
    return name in READ_FIRST or (is_output and suffix in ("out", "err"))


def streams(folder: str) -> Iterator[Tuple[str, int]]:
    """Name and size of the files of a node folder that a controller follows."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_stream(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return


@answers(HEARTBEAT)
def heartbeat(request: HeartbeatRequest, _payload: bytes) -> Steps[HeartbeatReply]:
    """Record a heartbeat of the supervisor, wait up to wait_s until an agent's state changes, and return the states."""
    deadline = time.monotonic() + request["wait_s"]
    for _, folder in node_folders(request):
        if os.path.isdir(folder):
            leave_heartbeat(folder, request["peers"])
    while True:
        known = []
        for _, folder in node_folders(request):
            size = dict(streams(folder)).get(EVENTS, 0)
            agent = read_agent(folder)
            alive = is_alive(agent)
            known.append([size, alive, alive and agent is not None and is_stopped(agent["pid"])])
        if known != request["known"] or time.monotonic() >= deadline:
            return {"known": known, "nodes": observe(request, b"")[0]["nodes"]}, b""
        yield NEWS_POLL_S


@answers(REACH)
def reach(request: ReachRequest, _payload: bytes) -> Tuple[ReachReply, bytes]:
    return {"addresses": reachable_hosts(request["addresses"], request["port"])}, b""


@answers(CONNECT)
def connect(request: ConnectRequest, _payload: bytes) -> Tuple[ConnectReply, bytes]:
    return {"error": connect_error(request["address"], request["port"])}, b""


@answers(OBSERVE)
def observe(request: NodeFolders, _payload: bytes) -> Tuple[ObserveReply, bytes]:
    return {"nodes": [observe_node(node, folder) for node, folder in node_folders(request)]}, b""


@answers(FIND)
def find(request: FindRequest, _payload: bytes) -> Tuple[FindReply, bytes]:
    """The newest attempt of a run in a working folder: its number, its job.json, and under Slurm the log of the batch script."""
    run = os.path.join(absolute_path(request["workdir"]), "runs", relative(request["run"]))
    newest = newest_attempt(run)
    if newest is None:
        return {"trace": None}, b""
    folder = attempt_folder(run, newest)
    first = attempt_folder(run, 1)
    by_slurm = os.path.exists(os.path.join(first, "submit.sbatch"))
    job = read_json(os.path.join(folder, "job.json"))
    log = batch_log(first, request["log_bytes"]) if by_slurm else None
    return {"trace": {"attempt": newest, "job": job, "by_slurm": by_slurm, "batch_log": log}}, b""


def batch_log(folder: str, size: int) -> Optional[BatchLogBody]:
    """The end of the newest log of a batch script in the folder; None if there is none."""
    import glob  # slow to import

    times = {path: os.lstat(path).st_mtime for path in glob.glob(os.path.join(glob.escape(folder), "slurm-*.log"))}
    if not times:
        return None
    newest = max(times, key=lambda path: times[path])
    return {"text": tail(newest, size), "written_s": times[newest]}


def observe_node(node: str, folder: str) -> NodeBody:
    from orchestrator.node.ranks.stacks import innermost_calls  # only supervised runs and `orch status` need it

    agent = read_agent(folder)
    alive = is_alive(agent)  # before its events are read: an agent that ends in between has its last event there
    history = read_history(folder)
    ranks = {rank: state for rank, state in history.ranks.items() if rank is not None}
    if None in history.ranks and agent is not None:  # a program that starts all ranks of the node
        ranks = dict.fromkeys(started_ranks(folder, agent["ranks"]), history.ranks[None])
    progress = {rank: read_json(progress_file(folder, rank)) for rank in ranks}
    needs_log = agent is None or (not alive and history.finished is None)
    return {
        "node": node,
        "agent": agent,
        "alive": alive,
        "stopped": alive and agent is not None and is_stopped(agent["pid"]),
        "same_boot": agent is not None and agent.get("boot_id") == boot_id(),
        "clock_ahead_s": clock_ahead_s(agent),
        "finished": history.finished,
        "ranks": ranks,
        "first_failure": history.first_failure,
        "progress": {rank: value for rank, value in progress.items() if value is not None},
        "cards": read_json(os.path.join(folder, CARDS_REPORT)),  # type: ignore[typeddict-item]  # it may hold any object
        "network": read_json(os.path.join(folder, NETWORK_REPORT)),  # type: ignore[typeddict-item]  # as above
        "hang": read_json(os.path.join(folder, HANG_REPORT)),  # type: ignore[typeddict-item]  # as above
        "peer_answered": os.path.exists(os.path.join(folder, PEER_ANSWERED)),
        "saving_ranks": history.saving_ranks,
        "machine": machine_use(folder),
        "stacks": innermost_calls(folder, ranks),
        "folder": folder,
        "log": tail(os.path.join(folder, AGENT_LOG), LOG_TAIL_BYTES) if needs_log else "",
    }


@answers(RANKS)
def ranks(request: NodeFolders, _payload: bytes) -> Tuple[RanksReply, bytes]:
    """The position of each rank of the agents that run on this machine, as it reports it itself."""
    from orchestrator.node.ranks.rank_channel import rank_bodies  # only `orch where` needs it

    nodes: Dict[str, Dict[int, RankBody]] = {}
    for node, folder in node_folders(request):
        agent = read_agent(folder)
        if agent is not None and is_alive(agent):
            nodes[node] = rank_bodies(folder, started_ranks(folder, agent["ranks"]))
    return {"nodes": nodes}, b""
