"""
The folders of files that are shipped with orch: templates, inventories, and the sources that are sent to the nodes.

Templates, inventories and the trainer are top-level folders of the repository and folders of the package once installed.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_BESIDE = _PACKAGE.parent


def template_folder() -> Path:
    """The Jinja templates."""
    return _installed_or_beside("templates")


def inventory_folder() -> Path:
    """The shipped inventories."""
    return _installed_or_beside("inventories")


def node_folder() -> Path:
    """The sources that run on nodes; they import nothing else of orchestrator."""
    return _PACKAGE / "node"


def check_sources() -> list[tuple[str, Path]]:
    """The sources of the checks of nodes, each with its name in a bundle; they import nothing but each other and those on nodes."""
    return [(f"orchestrator/{path.relative_to(_PACKAGE)}", path) for path in (_PACKAGE / "portable").rglob("*.py")]


def trainer_folder() -> Path:
    """
    The sources of the shared trainer, a package that its own modules import as `trainer`.

    Its parent is on sys.path only of processes that run the trainer: the user may have installed another package of that
    name.
    """
    return _installed_or_beside("trainer", inside="payload")


def _installed_or_beside(name: str, *, inside: str = "") -> Path:
    installed = _PACKAGE / inside / name
    return installed if installed.is_dir() else _BESIDE / name
