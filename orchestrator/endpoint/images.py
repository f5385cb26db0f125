"""Images of containers on a node: their ids, and loading them from an archive; by the runtime's client on the node itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.endpoint.container import ANSWER_S, client_failure, run_client
from orchestrator.errors import NodeError
from orchestrator.transports.base import Transport

LOAD_S = 3600.0  # for tens of GB on a slow disk, without output
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_ABSENT = re.compile(r"no such (?:image|object)|image not known|failed to find image|unable to find", re.IGNORECASE)


class NodeImages:
    """The images of one node's runtime; `client` is its command there, with sudo if that is needed."""

    def __init__(self, transport: Transport, client: Sequence[str]) -> None:
        self._transport = transport
        self._client = list(client)
        self.node = transport.node

    def id_of(self, image: str) -> str:
        """The id of an image, hexadecimal; empty if there is none of this name or id. NodeError if the runtime cannot be queried."""
        argv = ["image", "inspect", "--format", "{{.Id}}", image]
        status, printed, errors = self._run(argv, ANSWER_S)
        if status == 0:
            return printed.strip().removeprefix("sha256:")
        if _ABSENT.search(errors):
            return ""
        raise self._failure(argv, status, errors)

    def load(self, archive: str) -> None:
        self._require(["load", "--input", archive], LOAD_S)

    def tag(self, image_id: str, name: str) -> None:
        self._require(["tag", image_id, name], ANSWER_S)

    def remove_file(self, path: str) -> bool:
        """Remove an archive from the node; return whether it is gone."""
        return run_client(self._transport, self._client, ["rm", "-f", "--", path], answer_s=ANSWER_S)[0] == 0

    def _require(self, argv: list[str], answer_s: float) -> None:
        status, _, errors = self._run(argv, answer_s)
        if status != 0:
            raise self._failure(argv, status, errors)

    def _run(self, argv: list[str], answer_s: float) -> tuple[int | None, str, str]:
        return run_client(self._transport, self._client, [*self._client, *argv], answer_s=answer_s)

    def _failure(self, argv: Sequence[str], status: int | None, errors: str) -> NodeError:
        client = " ".join(self._client)
        if _NO_SPACE.search(errors):
            hint = f"on {self.node}: {client} system df shows what takes the space, {client} image prune removes unused images"
            return NodeError(self.node, f"the disk on which {self._client[-1]} keeps its images is full", hint=hint)
        if failure := client_failure(self.node, self._client, status, errors):
            return failure
        last = (errors.strip().splitlines() or [f"exit status {status}"])[-1]
        hint = f"try it on {self.node}: {client} {' '.join(argv)}"
        return NodeError(self.node, f"{client} {argv[0]}: {last}", hint=hint)
