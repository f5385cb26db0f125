"""The warning that ranks import modules from a working folder on the nodes, and not from the code that was sent."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.portable.names.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class SentCode(NamedTuple):
    """The code that a launch sends: its root there, the working folder of the ranks below it, and the first folder in Python's path below that."""

    root: str
    cwd: str
    start: str


def editable_warnings(
    code: SentCode, python_paths: Mapping[str, str], import_folders: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """
    The warnings about folders of the code from which Python imports on the nodes, as after `pip install -e`.

    The folder of the program comes first in Python's path, and the folders of PYTHONPATH come before installed ones, so that a folder which is
    one of these makes no difference.

    Args:
        code: a shared home has its root at the same path on the nodes.
        python_paths: PYTHONPATH of each node that has one, relative to the working folder.
        import_folders: those of each node, in the order of the nodes.
    """
    nodes_of: dict[str, list[str]] = {}
    for node, folders in import_folders.items():
        in_python_path = [path for path in python_paths.get(node, "").split(":") if path]
        first = {posixpath.normpath(posixpath.join(code.cwd, path)) for path in (code.start, *in_python_path)}
        for folder in folders:
            path = os.path.relpath(os.path.realpath(folder), os.path.realpath(code.root))
            if not path.startswith("..") and path not in first:
                nodes_of.setdefault(path, []).append(node)
    for path, names in nodes_of.items():
        from_cwd = posixpath.relpath(f"/{path}", f"/{code.cwd}")
        yield (
            f"{fold(names)}: the ranks import modules from {posixpath.join(code.root, path)}, as after `pip install -e`, and not from the code that is "
            f"sent; env: {{PYTHONPATH: {from_cwd}}} in the inventory lets them import the code that is sent"
        )
