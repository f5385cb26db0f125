"""The files of a run on a node, checked before they are copied here."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.node.system.files import link_target, relative

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import EntryBody, FoundBody


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link; its path is relative to the root it was found below, and empty for the root itself."""

    path: str
    kind: str
    size: int
    mode: int
    target: str


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """A path of a run on a node, and everything below it; `identity` is equal on nodes that share the file system."""

    node: str
    root: str
    identity: str
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @classmethod
    def of(cls, body: FoundBody) -> FoundFiles:
        """
        From the endpoint's reply.

        Raises:
            ValueError: a path leads out of the folder that the files are copied to, or the node's name is no name of a file.
        """
        if "/" in relative(body["node"]):
            raise ValueError(f"{body['node']!r} is not a node name")
        links = {PurePosixPath(entry["path"]) for entry in body["entries"] if entry["kind"] == "link"}
        for entry in body["entries"]:
            if entry["path"]:
                relative(entry["path"])
            if links.intersection(PurePosixPath(entry["path"]).parents):
                raise ValueError(f"{entry['path']!r} is below a link")
        entries = tuple(Entry(**_resolved(entry)) for entry in body["entries"])
        return cls(body["node"], body["root"], body["identity"], entries, tuple(body["left_out"]))


def _resolved(entry: EntryBody) -> EntryBody:
    """The entry; a link without `..` after the name of another link, which could lead out. ValueError if it leads out itself."""
    if entry["kind"] != "link":
        return entry
    target = link_target(entry["path"], entry["target"])
    return {**entry, "target": posixpath.relpath(target, posixpath.dirname(entry["path"]) or ".")}
