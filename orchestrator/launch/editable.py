"""The warning that ranks import modules from a working folder on the nodes, and not from the code that was sent."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.names.hostlist import fold

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan


def editable_warnings(plan: LaunchPlan, root: Path, import_folders: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """
    The warnings about folders of the code from which Python imports on the nodes, as after `pip install -e`.

    The folder of the program comes first in Python's path, and the folders of PYTHONPATH come before installed ones, so that a folder which is
    one of these makes no difference.

    Args:
        plan: of the launch.
        root: the folder of the code here; a shared home has it at the same path on the nodes.
        import_folders: those of each node.
    """
    nodes_of: dict[str, list[str]] = {}
    for node in plan.nodes:
        cwd = plan.program.cwd or ""
        first = {posixpath.normpath(posixpath.join(cwd, path)) for path in (_start(plan), *_python_path(node.env))}
        for folder in import_folders.get(node.name, ()):
            path = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
            if not path.startswith("..") and path not in first:
                nodes_of.setdefault(path, []).append(node.name)
    for path, names in nodes_of.items():
        from_cwd = posixpath.relpath(f"/{path}", f"/{plan.program.cwd or ''}")
        yield (
            f"{fold(names)}: the ranks import modules from {root / path}, as after `pip install -e`, and not from the code that is sent; "
            f"env: {{PYTHONPATH: {from_cwd}}} in the inventory lets them import the code that is sent"
        )


def _start(plan: LaunchPlan) -> str:
    """The first folder in Python's path, relative to the working folder: that of the script, or the working folder."""
    program = plan.program
    is_script = program.kind == "python" and program.args[0] not in ("-m", "-c")
    return posixpath.dirname(program.args[0]) if is_script else ""


def _python_path(env: Mapping[str, str]) -> list[str]:
    return [path for path in env.get("PYTHONPATH", "").split(":") if path]
