"""The requests that the controller makes to an endpoint: one method per operation of node/protocol/operations.py."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from orchestrator.endpoint.connection import ANSWER_S, Connection
from orchestrator.endpoint.container import container_state
from orchestrator.endpoint.files import FoundFiles
from orchestrator.endpoint.holders import Holder, holders_beside
from orchestrator.endpoint.logs import Chunk, Positions
from orchestrator.endpoint.observation import AgentRecord, NodeObservation, RunTrace
from orchestrator.endpoint.program import FLAGS, MARKER, probe_program
from orchestrator.endpoint.replies import CommandResult, StopResult
from orchestrator.errors import NodeError
from orchestrator.node.facts import read_facts
from orchestrator.node.protocol import operations
from orchestrator.node.requirements import MARKER as MARKER_OF_PROBLEMS
from orchestrator.progress import OnShare, no_progress
from orchestrator.resources import node_folder
from orchestrator.transports.base import Transport
from orchestrator.transports.container import APPTAINER, ContainerTransport

if TYPE_CHECKING:
    from orchestrator.endpoint.clock import ClockBounds
    from orchestrator.endpoint.stray_containers import StrayContainer
    from orchestrator.node.facts import NodeFacts
    from orchestrator.node.protocol import agents, board, connection, output, push, runs
    from orchestrator.node.run.agent_files import NodeFolders, RankBody
    from orchestrator.portable.checks.container_state import ContainerState

HEARTBEAT_ANSWER_S = 4.0  # a node that takes longer is silent; the supervisor decides how long it may be
UNPACK_S = 300.0  # for a bundle on a slow shared file system
STOP_MARGIN_S = 10.0  # that node/endpoint/stop.py adds to the grace
STRAYS_MARGIN_S = 20.0  # that node/endpoint/strays.py adds to the grace, including its wait for a vendor's tool
LIST_S = 120.0  # for a hundred thousand files on a busy file system
CLEAR_S = 3600.0  # for terabytes on a busy file system
PROBE_S = 20.0  # more than the longest deadline of node/probe/collect.py
PROBE_MARGIN_S = 2.0  # for the way of the answer
SEARCH_S = 60.0  # for the last lines of files that hardly have newlines
ALL_OUTPUTS: output.Outputs = {"nodes": None, "ranks": None, "streams": None}
WORKDIR_HINT = "set workdir: in the inventory to a folder of yours on that node, with enough space"


FileContent: TypeAlias = tuple[str, str | bytes, int]
"""A path below a folder, the content and the mode."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """
    A run as a node needs it: with the code of the bundle of this digest, and with files below the run's folder.

    `bytes_unpacked` of free disk space are needed if the bundle is not there, `bytes_more` in any case.
    """

    workdir: str
    run: str
    digest: str
    files: Sequence[FileContent]
    bytes_unpacked: int
    bytes_more: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    A heartbeat of the supervisor.

    `known` is the state of the last reply, `peers` are the addresses of the other nodes, `wait_s` is how long to wait for
    another state.
    """

    known: object
    peers: Sequence[str]
    wait_s: float


class Endpoint(Connection):
    """
    An endpoint on a node: a connection to it with one method per operation.

    One request at a time, beside `follow` and `heartbeat`: other threads wait. Every failure is a NodeError; Unreachable if the node did not answer.
    """

    @classmethod
    def connect(cls, transport: Transport, python: str) -> Endpoint:
        """Start an endpoint with the node's Python; on failure the transport is closed."""
        endpoint = cls(transport, python)
        endpoint.open()
        return endpoint

    def clock_ahead(self, *, wait_s: float = ANSWER_S) -> tuple[float, float]:
        """The least and the most seconds by which the node's clock is ahead of this machine's; they differ by the request's time."""
        request: connection.Empty = {}
        answer = self.call(operations.HELLO, request, answer_s=wait_s)
        return answer.clock.ahead_s(answer.reply["facts"]["clock_ahead_s"])

    def prepare(self, workdir: str, digest: str, *, bytes_unpacked: int = 0, bytes_more: int = 0) -> bool:
        """
        Make the working folder, with subfolders of mode 0700; return whether it has the bundle.

        Args:
            bytes_unpacked: the free disk space that the bundle needs if it is not there.
            bytes_more: the free disk space that is needed in any case.
        """
        request: push.PrepareRequest = {
            "workdir": workdir,
            "digest": digest,
            "bytes_unpacked": bytes_unpacked,
            "bytes_more": bytes_more,
        }
        return self.call(operations.PREPARE, request, hint=WORKDIR_HINT).reply["have_bundle"]

    def put_bundle(self, workdir: str, digest: str, tar: bytes, sha256: str, *, on_sent: OnShare = no_progress) -> None:
        """Unpack a tar.gz with this checksum as the bundle of this digest, unless another connection has done so."""
        request: push.PutBundleRequest = {"workdir": workdir, "digest": digest, "sha256": sha256}
        self.call(operations.PUT_BUNDLE, request, tar, answer_s=UNPACK_S, hint=WORKDIR_HINT, on_sent=on_sent)

    def lacking(self, workdir: str, digest: str, manifest: bytes) -> list[str]:
        """The names of the files in the manifest of a bundle that are in no bundle on the node."""
        request: push.BundleRequest = {"workdir": workdir, "digest": digest}
        answer = self.call(operations.LACKING, request, manifest, answer_s=UNPACK_S, hint=WORKDIR_HINT)
        names: list[str] = json.loads(zlib.decompress(answer.payload))
        return names

    def put_part(
        self, workdir: str, digest: str, manifest: bytes, part: tuple[bytes, str], *, on_sent: OnShare = no_progress
    ) -> bool:
        """Make a bundle of the files in a tar.gz, given with its checksum, and of files on the node; False if one of those is gone."""
        tar, sha256 = part
        request: push.PutPartRequest = {
            "workdir": workdir,
            "digest": digest,
            "sha256": sha256,
            "manifest_bytes": len(manifest),
        }
        payload = manifest + tar
        answer = self.call(operations.PUT_PART, request, payload, answer_s=UNPACK_S, hint=WORKDIR_HINT, on_sent=on_sent)
        return answer.reply["is_complete"]

    def put_run(self, run: RunContent, *, claim: bool) -> push.PutRunReply:
        """
        Make a run's folder with its code and files, in one request; nothing is written while the bundle is missing.

        Args:
            claim: write it only if no other node on this file system has begun to.
        """
        entries, content = _packed(run.files)
        request: push.PutRunRequest = {
            "workdir": run.workdir,
            "digest": run.digest,
            "bytes_unpacked": run.bytes_unpacked,
            "bytes_more": run.bytes_more,
            "run": run.run,
            "claim": claim,
            "files": entries,
        }
        return self.call(operations.PUT_RUN, request, content, answer_s=UNPACK_S, hint=WORKDIR_HINT).reply

    def put_files(self, folder: str, files: Sequence[FileContent]) -> None:
        """Write files, given as path below the folder, content and mode; each is written atomically."""
        entries, content = _packed(files)
        request: push.PutFilesRequest = {"folder": folder, "files": entries}
        self.call(operations.PUT_FILES, request, content, hint=WORKDIR_HINT)

    def reserve(self, candidates: Sequence[str], interfaces: Mapping[str, str], *, wait_s: float = ANSWER_S) -> str:
        """
        Find the node's address on the training network and a free port; hold the port until the endpoint is closed.

        Args:
            candidates: addresses or names that may be this node's, best first.
            interfaces: the ranks' NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; they take precedence over candidates.
        """
        request: connection.ReserveRequest = {"candidates": list(candidates), "interfaces": dict(interfaces)}
        return self.call(operations.RESERVE, request, answer_s=wait_s).reply["rendezvous"]

    def listen(self, candidates: Sequence[str], interfaces: Mapping[str, str], *, wait_s: float = ANSWER_S) -> str:
        """Listen on a free port at the address that `reserve` would find, until `stop_listening`; return the record of both."""
        request: connection.ReserveRequest = {"candidates": list(candidates), "interfaces": dict(interfaces)}
        return self.call(operations.LISTEN, request, answer_s=wait_s).reply["rendezvous"]

    def stop_listening(self, *, wait_s: float = ANSWER_S) -> None:
        empty: connection.Empty = {}
        self.call(operations.STOP_LISTENING, empty, answer_s=wait_s)

    def start(
        self, argv: Sequence[str], folder: str, *, agent: agents.AgentStart | None = None, wait_s: float = 30.0
    ) -> AgentRecord:
        """
        Start an agent that outlives the connection; wait until it has written its record, and return the record.

        Args:
            argv: starts the agent by its node.sh.
            agent: the values in node.sh, with which the endpoint may start the agent without a shell and a second Python.
        """
        request: agents.StartRequest = {"argv": list(argv), "agent": agent, "folder": folder, "wait_s": wait_s}
        return AgentRecord.of(self.call(operations.START, request, answer_s=wait_s + ANSWER_S).reply["agent"])

    def files(
        self, attempt_dir: str, nodes: Sequence[str] | None, outputs: output.Outputs = ALL_OUTPUTS
    ) -> dict[str, int]:
        """The sizes of the files that `read` reads, by name; of the ranks' files only `outputs`."""
        request: output.FilesRequest = {**_folders(attempt_dir, nodes), "outputs": outputs}
        return self.call(operations.FILES, request).reply["files"]

    def last_lines(
        self, attempt_dir: str, nodes: Sequence[str] | None, outputs: output.Outputs, lines: int
    ) -> Positions:
        """The positions of the last `lines` lines of each output file, and when they were written."""
        request: output.LastLinesRequest = {**_folders(attempt_dir, nodes), "outputs": outputs, "lines": lines}
        answer = self.call(operations.LAST_LINES, request, answer_s=SEARCH_S)
        return Positions.of(answer.reply, answer.clock)

    def lines_since(
        self, attempt_dir: str, nodes: Sequence[str] | None, outputs: output.Outputs, since_s: float
    ) -> Positions:
        """The positions of the lines of the last `since_s` seconds in each output file, and in the index of their times."""
        request: output.LinesSinceRequest = {**_folders(attempt_dir, nodes), "outputs": outputs, "since_s": since_s}
        answer = self.call(operations.LINES_SINCE, request, answer_s=SEARCH_S)
        return Positions.of(answer.reply, answer.clock)

    def read(self, attempt_dir: str, ranges: Mapping[str, tuple[int, int]], *, max_bytes: int = 1 << 20) -> list[Chunk]:
        """Parts of files, given as begin and end by file, such as `n0/rank-0.out`; max_bytes in total at most."""
        request: output.ReadRequest = {"attempt_dir": attempt_dir, "ranges": dict(ranges), "max_bytes": max_bytes}
        answer = self.call(operations.READ, request)
        return _chunks(answer.reply, answer.payload, answer.clock)

    def follow(
        self,
        attempt_dir: str,
        nodes: Sequence[str] | None,
        offsets: Mapping[str, int],
        *,
        position: str | None = None,
        outputs: output.Outputs = ALL_OUTPUTS,
        max_bytes: int = 1 << 20,
        wait_s: float = 1.0,
    ) -> tuple[list[Chunk], str | None]:
        """
        Wait until files of the node folders (of all, if `nodes` is None) grow beyond the offsets, at most wait_s.

        Args:
            offsets: files that are not in it begin at 0. Sent only if the node does not know the position.
            position: the position that the previous call returned, if the offsets contain the chunks that it returned.
            outputs: the ranks' files to read; the agents' files are read in any case.
            wait_s: with 0, the present content of all files is considered; else a quiet node's may be a second old.

        Returns:
            The new content of the files, max_bytes in total at most, less on a slow link, and the position for the next call.
        """
        request: output.FollowRequest = {
            "position": position,
            "begin": None,
            "max_bytes": min(max_bytes, self.reply_size.bytes),
            "wait_s": wait_s,
        }
        answer = None if position is None else self.call_waiting(operations.FOLLOW, request, answer_s=wait_s + ANSWER_S)
        if answer is None or answer.reply["position"] is None:
            request["begin"] = {**_folders(attempt_dir, nodes), "outputs": outputs, "offsets": dict(offsets)}
            answer = self.call_waiting(operations.FOLLOW, request, answer_s=wait_s + ANSWER_S)
        return _chunks(answer.reply, answer.payload, answer.clock), answer.reply["position"]

    def observe(self, attempt_dir: str, nodes: Sequence[str] | None) -> list[NodeObservation]:
        answer = self.call(operations.OBSERVE, _folders(attempt_dir, nodes))
        return [NodeObservation.of(body, answer.clock) for body in answer.reply["nodes"]]

    def find(self, workdir: str, run_id: str, *, log_bytes: int = 0) -> RunTrace | None:
        """The newest attempt of a run in the working folder, and the end of the batch log; None if there is none."""
        request: runs.FindRequest = {"workdir": workdir, "run": run_id, "log_bytes": log_bytes}
        reply = self.call(operations.FIND, request).reply
        try:
            return RunTrace.of(reply)
        except ValueError as error:
            raise NodeError(self.node, f"{workdir}/runs/{run_id}: {error}") from error

    def active_runs(self, workdir: str) -> list[str]:
        """The runs in the working folder that have a living process on the node."""
        request: runs.ActiveRunsRequest = {"workdir": workdir}
        return self.call(operations.ACTIVE_RUNS, request).reply["runs"]

    def is_local(self, path: str) -> bool:
        """Return whether a path is on a local file system of the node, which may still export it."""
        request: connection.FileSystemRequest = {"path": path}
        return self.call(operations.FILE_SYSTEM, request).reply["local"]

    def heartbeat(self, attempt_dir: str, node: str, heartbeat: Heartbeat) -> tuple[NodeObservation, object]:
        """
        Record a heartbeat of the supervisor in the node folder; wait up to heartbeat.wait_s until the agent's state changes.

        Returns:
            The state of the node, and `known` for the next heartbeat.
        """
        request: agents.HeartbeatRequest = {
            **_folders(attempt_dir, [node]),
            "known": heartbeat.known,
            "peers": list(heartbeat.peers),
            "wait_s": heartbeat.wait_s,
        }
        answer_s = heartbeat.wait_s + HEARTBEAT_ANSWER_S
        answer = self.call_waiting(operations.HEARTBEAT, request, answer_s=answer_s)
        return NodeObservation.of(answer.reply["nodes"][0], answer.clock), answer.reply["known"]

    def reach(self, addresses: Sequence[str], port: int) -> set[str]:
        """Return the addresses that the node can reach at this port: the connection is accepted or refused."""
        request: connection.ReachRequest = {"addresses": list(addresses), "port": port}
        return set(self.call(operations.REACH, request, answer_s=2 * HEARTBEAT_ANSWER_S).reply["addresses"])

    def connect_error(self, address: str, port: int) -> str:
        """Connect from the node to another one; return the reason if that fails, else an empty text."""
        request: connection.ConnectRequest = {"address": address, "port": port}
        return self.call(operations.CONNECT, request, answer_s=2 * HEARTBEAT_ANSWER_S).reply["error"]

    def stop(
        self, attempt_dir: str, nodes: Sequence[str] | None, *, grace_s: float, keeps_standby: bool = False
    ) -> list[StopResult]:
        """
        End the processes of the run on these nodes, and no others; by SIGKILL after the grace.

        Args:
            keeps_standby: the processes that wait for the next attempt continue, and its states in memory are kept.
        """
        request: agents.StopRequest = {
            **_folders(attempt_dir, nodes),
            "grace_s": grace_s,
            "keeps_standby": keeps_standby,
        }
        answer = self.call(operations.STOP, request, answer_s=grace_s + STOP_MARGIN_S + ANSWER_S)
        return [StopResult.of(body) for body in answer.reply["nodes"]]

    def request_save(self, attempt_dir: str, nodes: Sequence[str] | None, *, grace_s: float) -> list[str]:
        """Request that the ranks of these nodes save and end within the grace; return the nodes whose agents take the request."""
        request: agents.SaveRequestBody = {**_folders(attempt_dir, nodes), "grace_s": grace_s}
        return self.call(operations.REQUEST_SAVE, request).reply["nodes"]

    def stand_by(self, agent: agents.AgentStart | None, folder: str) -> None:
        """Let processes wait for the attempt after the one whose agent is described, in that node folder; None: end them."""
        request: agents.StandbyRequest = {"agent": agent, "folder": folder}
        self.call(operations.STAND_BY, request, answer_s=2 * HEARTBEAT_ANSWER_S)

    def write_marker(self, folder: str, token: str, *, wait_s: float = ANSWER_S) -> str:
        """Write a token to a new file in the folder, or in the nearest one above it that exists; return the file's path."""
        request: connection.WriteMarkerRequest = {"folder": folder, "token": token}
        return self.call(operations.WRITE_MARKER, request, answer_s=wait_s).reply["path"]

    def find_marker(self, path: str, *, wait_s: float = ANSWER_S) -> str:
        """Read the token that another node wrote; NodeError if this node does not see the file."""
        request: connection.MarkerRequest = {"path": path}
        return self.call(operations.FIND_MARKER, request, answer_s=wait_s).reply["token"]

    def remove_marker(self, path: str, *, wait_s: float = ANSWER_S) -> None:
        request: connection.MarkerRequest = {"path": path}
        self.call(operations.REMOVE_MARKER, request, answer_s=wait_s)

    def strays(self, *, min_age_s: float, grace_s: float, dry_run: bool) -> runs.StraysReply:
        """End this user's strays on the node, or only list them; list other users' processes on its cards."""
        request: runs.StraysRequest = {"min_age_s": min_age_s, "grace_s": grace_s, "dry_run": dry_run}
        return self.call(operations.STRAYS, request, answer_s=grace_s + STRAYS_MARGIN_S + ANSWER_S).reply

    def holders(self) -> list[Holder]:
        """This user's living runs that hold cards of the node; for a container, also those beside it, as far as this user may see them."""
        request: connection.Empty = {}
        found = [Holder.of(body) for body in self.call(operations.HOLDERS, request).reply["holders"]]
        if isinstance(self._transport, ContainerTransport):
            found += holders_beside(self._transport)
        return list({(holder.run, holder.node): holder for holder in found}.values())

    def clear_containers(self, min_age_s: float, *, dry_run: bool) -> list[tuple[StrayContainer, str]]:
        """
        Remove the node's other containers of orch that hold only processes of ended runs, or only list them (dry_run).

        Returns:
            Each with the reason why it could not be removed, else an empty text.
        """
        if not isinstance(self._transport, ContainerTransport) or self._transport.container.runtime == APPTAINER:
            return []
        from orchestrator.endpoint.stray_containers import remove_container, stray_containers  # only gc needs them

        found = list(stray_containers(self._transport, min_age_s))
        return [(stray, "" if dry_run else remove_container(self._transport, stray)) for stray in found]

    def clear(self, workdir: str, *, older_than_s: float, results: bool, dry_run: bool) -> list[runs.GarbageBody]:
        """Remove old runs that have ended and unused bundles, or only list them; runs with results only on request."""
        request: runs.ClearRequest = {
            "workdir": workdir,
            "older_than_s": older_than_s,
            "results": results,
            "dry_run": dry_run,
        }
        return self.call(operations.CLEAR, request, answer_s=CLEAR_S).reply["entries"]

    def list_files(self, attempt_dir: str, nodes: Sequence[str] | None, path: str, *, cwd: str) -> list[FoundFiles]:
        """The files below a path of the run, for each node that has it; nodes that share it are one."""
        request: output.ListFilesRequest = {**_folders(attempt_dir, nodes), "path": path, "cwd": cwd}
        reply = self.call(operations.LIST_FILES, request, answer_s=LIST_S).reply
        try:
            return [FoundFiles.of(body) for body in reply["found"]]
        except ValueError as error:
            raise NodeError(self.node, f"{path}: {error}") from error

    def search(
        self,
        attempt_dir: str,
        nodes: Sequence[str] | None,
        patterns: Sequence[output.PatternBody],
        kernel: Sequence[str],
        *,
        max_bytes: int,
        wait_s: float,
    ) -> output.SearchReply:
        """
        Search the output of the ranks: first the end of each file, then the files from their starts.

        Args:
            kernel: the ids of the patterns to search the log of the kernel for.
            max_bytes: of each file, half of it at its end at most, and half of it at its start.
            wait_s: the time after which the search ends with what it has.
        """
        request: output.SearchRequest = {
            **_folders(attempt_dir, nodes),
            "patterns": list(patterns),
            "kernel": list(kernel),
            "max_bytes": max_bytes,
            "wait_s": wait_s,
        }
        return self.call(operations.SEARCH, request, answer_s=wait_s + ANSWER_S).reply

    def ranks(self, attempt_dir: str, nodes: Sequence[str] | None) -> dict[str, dict[int, RankBody]]:
        """The positions of the ranks of each node whose agent runs on this machine."""
        reply = self.call(operations.RANKS, _folders(attempt_dir, nodes)).reply
        return {node: {int(rank): body for rank, body in bodies.items()} for node, bodies in reply["nodes"].items()}

    def read_file(self, attempt_dir: str, root: str, path: str, *, offset: int, size: int) -> bytes:
        """At most `size` bytes of a listed file; empty at its end."""
        request: output.ReadFileRequest = {
            **_folders(attempt_dir, None),
            "root": root,
            "path": path,
            "offset": offset,
            "size": size,
        }
        return self.call(operations.READ_FILE, request).payload

    def start_board(self, attempt_dir: str, python: str, setup: str, *, wait_s: float) -> board.BoardReply:
        """Start TensorBoard on the run of this attempt, with the node's Python after the lines of a `setup` file, if there is one."""
        request: board.BoardRequest = {
            "attempt_dir": attempt_dir,
            "nodes": None,
            "python": python,
            "setup": setup,
            "wait_s": wait_s,
        }
        return self.call_waiting(operations.BOARD_START, request, answer_s=wait_s + ANSWER_S).reply

    def connect_to_board(self) -> int:
        """Open a connection from the node to TensorBoard; return its number."""
        empty: connection.Empty = {}
        return self.call(operations.BOARD_CONNECT, empty).reply["connection"]

    def send_to_board(self, number: int, data: bytes) -> None:
        request: board.ConnectionRequest = {"connection": number}
        self.call(operations.BOARD_SEND, request, data)

    def receive_of_board(self, number: int, *, wait_s: float) -> tuple[bool, bytes]:
        """Wait for bytes from TensorBoard; return whether the connection is open, and the bytes."""
        request: board.ReceiveRequest = {"connection": number, "wait_s": wait_s}
        answer = self.call_waiting(operations.BOARD_RECEIVE, request, answer_s=wait_s + ANSWER_S)
        return answer.reply["is_open"], answer.payload

    def close_board_connection(self, number: int) -> None:
        request: board.ConnectionRequest = {"connection": number}
        self.call(operations.BOARD_CLOSE, request)

    def command(self, argv: Sequence[str], *, timeout_s: float, removed: str = "") -> CommandResult:
        """
        Run a command in the home folder, in the environment of a login; an argument that begins with `~/` is expanded.

        Args:
            removed: variables that the command does not get, as a regular expression of their names.
        """
        return self._command(argv, timeout_s=timeout_s, margin_s=ANSWER_S, is_login=True, removed=removed)

    def _command(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        timeout_s: float,
        margin_s: float,
        is_login: bool = False,
        removed: str = "",
    ) -> CommandResult:
        """Run a command in the home folder; the answer may come `margin_s` after the timeout."""
        request: connection.CommandRequest = {
            "argv": list(argv),
            "folder": "~",
            "login": is_login,
            "removed": removed,
            "timeout_s": timeout_s,
        }
        reply = self.call(operations.COMMAND, request, stdin, answer_s=timeout_s + margin_s).reply
        return CommandResult(reply["code"], reply["out"], reply["err"])

    def problems(
        self, required: Mapping[str, Sequence[str]], env: Mapping[str, str], setup: Sequence[str], *, each_s: float
    ) -> list[tuple[str, str, str]]:
        """
        Test paths, modules and commands on the node; kind, name and problem of everything that fails.

        Args:
            required: `paths`, `imports` and `commands`.
            env: the variables of the ranks.
            setup: the lines of shell before the ranks.
            each_s: the deadline of each module and command.
        """
        wanted = {name: list(required.get(name, ())) for name in ("paths", "imports", "commands")}
        environment = {"env": dict(env), "setup": list(setup), "python": self.python}
        wanted_json = json.dumps({**wanted, **environment, "each_s": each_s})
        source = (node_folder() / "requirements.py").read_text("utf-8")
        timeout_s = each_s * (1 + len(wanted["imports"]) + len(wanted["commands"]))
        stdin = f"{source}\nmain(json.loads({wanted_json!r}))\n".encode()
        result = self._command([self.python, "-"], stdin, timeout_s=timeout_s, margin_s=PROBE_MARGIN_S)
        try:
            found = json.loads(result.out.partition(MARKER_OF_PROBLEMS)[2])
            return [(str(kind), str(name), str(problem)) for kind, name, problem in found]
        except ValueError as error:
            last = (result.err.strip().splitlines() or ["no message"])[-1]
            raise NodeError(self.node, f"the test of checks: ended with exit code {result.code}: {last}") from error

    @property
    def container(self) -> str:
        """The container in which it runs, for messages and comparisons; empty on the node itself."""
        return str(self._transport.container) if isinstance(self._transport, ContainerTransport) else ""

    def container_state(self) -> ContainerState | None:
        """The container in which it runs, as its runtime describes it; None if that is the node itself."""
        return container_state(self._transport) if isinstance(self._transport, ContainerTransport) else None

    def probe(
        self, names: Sequence[str], folders: Mapping[str, str], code: str | None, *, wait_s: float = PROBE_S
    ) -> NodeFacts:
        """
        Collect the facts of the node, in the environment of the connection: that of the ranks, but for `setup:` lines.

        Args:
            names: host names that the node is to resolve.
            folders: paths by their use, such as workdir; the home folder, /tmp and /dev/shm are added.
            code: the user's code folder on the node.
            wait_s: the time for the whole probe; its steps have shorter deadlines.
        """
        wanted = {"node": self.node, "names": list(names), "folders": dict(folders), "code": code}
        stdin = probe_program() + json.dumps(wanted).encode()
        result = self._command([self.python, *FLAGS], stdin, timeout_s=wait_s, margin_s=PROBE_MARGIN_S)
        if result.code != 0:
            last = (result.err.strip().splitlines() or ["no message"])[-1]
            raise NodeError(self.node, f"the probe ended with exit code {result.code}: {last}")
        printed = result.out.partition(MARKER)[2].partition("\n")[2]
        try:
            facts = read_facts(json.loads(printed))
        except ValueError as error:
            reason = f"it printed {result.out.strip()!r:.80}" if isinstance(error, json.JSONDecodeError) else error
            raise NodeError(self.node, f"the probe's answer cannot be read: {reason}") from error
        if isinstance(self._transport, ContainerTransport) and any(tool["error"] for tool in facts["tools"]):
            from orchestrator.endpoint.host_tools import with_tools_of_node  # few containers lack a tool

            return with_tools_of_node(facts, self._transport)
        return facts

    def command_once(
        self, argv: Sequence[str], result_file: str, *, timeout_s: float, removed: str = "", begin: bool = True
    ) -> CommandResult:
        """
        Run a command in the folder of `result_file`, once: a later request, over any connection, returns the first result.

        Args:
            begin: False if the command must not begin any more; if it has begun, wait for its result.
        """
        request: connection.CommandOnceRequest = {
            "argv": list(argv),
            "folder": result_file.rpartition("/")[0],
            "login": True,
            "removed": removed,
            "timeout_s": timeout_s,
            "result_file": result_file,
            "begin": begin,
        }
        reply = self.call(operations.COMMAND_ONCE, request, answer_s=timeout_s + ANSWER_S).reply
        return CommandResult(reply["code"], reply["out"], reply["err"])


def _chunks(reply: output.ReadReply, payload: bytes, clock: ClockBounds) -> list[Chunk]:
    chunks, position = [], 0
    for entry in reply["chunks"]:
        size = entry.get("size", 0)
        data = payload[position : position + size]
        correction_s = clock.correction_s(reply["clocks_ahead_s"].get(entry["file"].partition("/")[0]))
        chunks.append(Chunk(entry["file"], entry["offset"], data, entry.get("gap", 0), correction_s))
        position += size
    return chunks


def _packed(files: Sequence[FileContent]) -> tuple[list[push.FileBody], bytes]:
    """The entries of the files, and their contents one after the other."""
    entries: list[push.FileBody] = []
    contents: list[bytes] = []
    for path, content, mode in files:
        contents.append(content.encode(errors="surrogateescape") if isinstance(content, str) else content)
        entries.append({"path": path, "size": len(contents[-1]), "mode": mode})
    return entries, b"".join(contents)


def _folders(attempt_dir: str, nodes: Sequence[str] | None) -> NodeFolders:
    return {"attempt_dir": attempt_dir, "nodes": None if nodes is None else list(nodes)}
