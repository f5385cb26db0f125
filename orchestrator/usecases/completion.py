"""Names that the shell completes: runs, nodes, settings and others. A name that cannot be found is not completed; nothing fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.node.run.run_id import RUN_ID
from orchestrator.records.cache.entries import list_entries
from orchestrator.records.runs import find_run, home_store
from orchestrator.resources import inventory_folder

SUFFIXES = (".yaml", ".yml")


def run_names() -> list[str]:
    """`latest`, the names and the ids of all runs, from the names of their folders."""
    with suppress(OSError):
        ids = [path.name for path in home_store().runs.iterdir() if RUN_ID.fullmatch(path.name)]
        return ["latest", *dict.fromkeys(run_id.rsplit("-", 3)[0] for run_id in ids), *ids]
    return []


def tags() -> list[str]:
    """The tags of all runs, each once, the newest first."""
    with suppress(OrchError, OSError):
        entries = [entry for _, entry in list_entries(home_store())[0]]
        return list(dict.fromkeys(tag for entry in reversed(entries) for tag in entry.tags))
    return []


def sweeps() -> list[str]:
    """The ids of all sweeps, the newest first."""
    with suppress(OrchError, OSError):
        entries = [entry for _, entry in list_entries(home_store())[0]]
        return list(dict.fromkeys(entry.sweep for entry in reversed(entries) if entry.sweep))
    return []


def settings() -> list[str]:
    from orchestrator.usecases.launch.settings import trainer_settings  # starts a Python

    with suppress(OrchError, OSError):
        return [setting["key"] for setting in trainer_settings(None)]
    return []


def checks() -> list[str]:
    from orchestrator.usecases.checks.check import known_checks

    return known_checks()


def nodes_of_run(run: str) -> list[str]:
    with suppress(OrchError, OSError):
        return [node.name for node in find_run(run).read_plan().nodes]
    return []


def nodes_of_inventory(given: str | None) -> list[str]:
    """The names of an inventory's nodes; of the one that a command would use, if none is given."""
    from orchestrator.usecases.inventory import load_inventory  # takes ten times as long as runs

    with suppress(OrchError, OSError):
        return [node.name for node in load_inventory(given, None).nodes]
    return []


def inventories(beginning: str) -> Iterator[str]:
    """The shipped inventories, then YAML files and folders whose paths begin with the text."""
    yield from sorted(path.stem for path in inventory_folder().glob("*.yaml"))
    folder = beginning.rpartition("/")[0]
    with suppress(OSError, RuntimeError):  # RuntimeError: ~name of no user
        for path in sorted(Path(f"{folder}/" if folder or beginning.startswith("/") else ".").expanduser().iterdir()):
            name = f"{folder}/{path.name}" if "/" in beginning else path.name
            if path.is_dir():
                yield f"{name}/"
            elif path.suffix in SUFFIXES:
                yield name
