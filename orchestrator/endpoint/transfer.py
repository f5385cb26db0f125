"""Send files to a folder of a node: over a connection from here, or from another node that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.endpoint.access import SshSettings, Target, container_of
from orchestrator.endpoint.client import Endpoint
from orchestrator.endpoint.program import FLAGS, MARKER, program
from orchestrator.errors import NodeError, UsageError, os_error_text
from orchestrator.node.protocol import operations
from orchestrator.node.sending import Peer, Transfer, TransferError, packed
from orchestrator.progress import OnShare
from orchestrator.transports.ssh.commands import FAST_CIPHERS, command_line

if TYPE_CHECKING:
    from orchestrator.node.protocol.transfer import (
        ClaimReply,
        ClaimRequest,
        FileEntry,
        ForwardedRequest,
        ForwardRequest,
    )

PUT_S = 3600.0  # to compare hundreds of GB with what a node has, on a slow disk
POLL_S = 1.0
FOLDER_HINT = "name a folder in which you may write: --to DIR"


class LoginBetweenNodesRefused(NodeError):
    """The node that has the files cannot log in to the one that needs them."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files, folders and links as the nodes get them, parents first, and the paths of all on this machine."""

    entries: Sequence[FileEntry]
    sources: Sequence[str]

    @property
    def size_bytes(self) -> int:
        return sum(entry["size"] for entry in self.entries)


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """A folder of a node, and the command that starts an endpoint there from another node."""

    node: str
    folder: str
    argv: list[str]


class _EndpointPeer(Peer):
    """A connection from here."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def begin(self, op: Any, request: Any, payload: bytes = b"") -> Any:  # noqa: ANN401  of an operation
        return self._endpoint.begin(op, request, payload)

    def end(self, ticket: Any) -> Any:  # noqa: ANN401
        return self._endpoint.end(ticket, answer_s=PUT_S, hint=FOLDER_HINT).reply


def claim_folder(endpoint: Endpoint, folder: str, token: str, *, is_workdir: bool) -> ClaimReply:
    """Make a folder of the node; nodes that share it get the same owner for the same token."""
    request: ClaimRequest = {"folder": folder, "is_workdir": is_workdir, "token": token, "node": endpoint.node}
    return endpoint.call(operations.CLAIM_FOLDER, request, hint=FOLDER_HINT).reply


def release_folder(endpoint: Endpoint, folder: str, token: str) -> None:
    request: ClaimRequest = {"folder": folder, "is_workdir": False, "token": token, "node": endpoint.node}
    endpoint.call(operations.RELEASE_FOLDER, request)


def send_files(endpoint: Endpoint, files: Files, folder: str, on_share: OnShare) -> None:
    """
    Send what the folder lacks, continuing what an earlier transfer has begun.

    Raises:
        Unreachable: the connection was lost; the next call continues.
        NodeError: the node has too little space, or cannot write.
        UsageError: a file here has changed or cannot be read.
    """
    try:
        Transfer(_EndpointPeer(endpoint), files.entries, files.sources, on_share).run(folder)
    except TransferError as error:
        raise NodeError(endpoint.node, str(error), hint=error.hint) from error
    except OSError as error:
        raise UsageError(os_error_text(error), hint="get permission to read it, or leave it out") from error


def forward_files(endpoint: Endpoint, files: Files, folder: str, *, target: ForwardTarget, on_share: OnShare) -> None:
    """
    Let a node that has the files in this folder send them to another node; wait until it has.

    Raises:
        LoginBetweenNodesRefused: it cannot log in there.
        NodeError: of either node.
    """
    entries = packed(files.entries)
    request: ForwardRequest = {
        "argv": target.argv,
        "marker": MARKER,
        "source": folder,
        "target": target.folder,
        "entries_bytes": len(entries),
    }
    endpoint.call(operations.FORWARD, request, entries + program(), answer_s=PUT_S)
    poll: ForwardedRequest = {"wait_s": POLL_S}
    while True:
        reply = endpoint.call_waiting(operations.FORWARDED, poll, answer_s=PUT_S).reply
        on_share(reply["share"])
        if reply["is_done"]:
            break
    if reply["error"]:
        kind = LoginBetweenNodesRefused if reply["is_refused"] else NodeError
        raise kind(target.node, reply["error"])


def login_from_node(node: Target, ssh: SshSettings, python: str) -> list[str]:
    """
    The ssh by which another node starts an endpoint on this one: to the address that its route ends at, without prompts.

    It knows neither the configuration nor the jump hosts of this machine.
    """
    from orchestrator.transports.ssh.transport import route_to  # imports paramiko

    hop, container = route_to(node, ssh)[-1], container_of(node)
    argv = [python, *FLAGS]
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "accept-new" if ssh.host_keys == "accept-new" else "yes",
        "ConnectTimeout": f"{max(1, round(ssh.connect_timeout_s))}",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "Ciphers": FAST_CIPHERS,
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    login = ["ssh", "-a", "-x", "-T", *words, "-l", hop.user, "-p", str(hop.port), "--", hop.host]
    return [*login, command_line(argv if container is None else container.inside(argv))]
