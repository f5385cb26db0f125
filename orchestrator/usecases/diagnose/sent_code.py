"""The part of a diagnosis that follows from the code which was sent: a module is in it, but not where Python looks."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import replace

from orchestrator.diagnosis.rank_causes import Diagnosis
from orchestrator.records.store import KeptRun, RunFolder


def with_module_path(found: Diagnosis, run: KeptRun) -> Diagnosis:
    """Advise PYTHONPATH instead of an installation if the missing module is in a folder of the code, as with a src layout."""
    if found.signature != "module-not-found" or not found.proof or not isinstance(run, RunFolder):
        return found
    module = found.proof[0].values.get("module", "").strip("'\";,")
    cwd = run.read_plan().program.cwd or ""
    folder = module_folder(module, cwd, run.read_code() or {})
    if folder is None:
        return found
    path = posixpath.relpath(f"/{folder}", f"/{cwd}")
    name = module.partition(".")[0]
    step = f"env: {{PYTHONPATH: {path}}} in the inventory: the code that was sent has {name} in {path}, where Python does not look"
    return replace(found, remedy=(step,))


def module_folder(module: str, cwd: str, files: Collection[str]) -> str | None:
    """The shortest folder of the code, other than the working folder, from which Python can import the module; None without one."""
    name = module.partition(".")[0]
    if not name:
        return None
    folders = set()
    for file in files:
        *parents, last = file.split("/")
        if last == f"{name}.py":
            folders.add("/".join(parents))
        elif last.endswith(".py") and name in parents:
            folders.add("/".join(parents[: parents.index(name)]))
    return (
        min(folders - {cwd}, key=lambda folder: (folder.count("/"), folder), default=None)
        if cwd not in folders
        else None
    )
