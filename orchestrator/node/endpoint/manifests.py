"""The manifests of large bundles: the files that a node has, and the space that their copies take."""

from __future__ import annotations

import os

from orchestrator.node.system.files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    Manifest = List[Tuple[str, str, str]]  # name; l for a link, x for an executable file, - for another one; SHA-256

MANIFEST = "manifest.json"  # in a bundle that was pushed with one
MOST_BUNDLES = 16  # the newest ones are searched


def known_files(bundles: str) -> Dict[Tuple[str, str], str]:
    """The files in the newest bundles that have a manifest, by mode and digest."""
    folders = [os.path.join(bundles, name) for name in os.listdir(bundles) if not name.startswith(".")]
    with_manifest = [folder for folder in folders if os.path.isfile(os.path.join(folder, MANIFEST))]
    found: Dict[Tuple[str, str], str] = {}
    for folder in sorted(with_manifest, key=os.path.getmtime)[-MOST_BUNDLES:]:
        entries: Manifest = (read_json(os.path.join(folder, MANIFEST)) or {}).get("files", [])
        found.update({(mode, digest): os.path.join(folder, name) for name, mode, digest in entries if mode != "l"})
    return found


def code_of_runs(workdir: str) -> Tuple[int, int]:
    """The number of runs with a copy of the code of a large bundle, and the bytes of all those copies."""
    sizes: Dict[str, int] = {}
    count = total = 0
    runs = os.path.join(workdir, "runs")
    for run in os.listdir(runs):
        job = read_json(os.path.join(runs, run, "attempt-1", "job.json")) or {}
        bundle = os.path.basename(str(job.get("bundle_dir", "")))
        if bundle and bundle not in sizes:
            manifest = read_json(os.path.join(workdir, "bundles", bundle, MANIFEST)) or {}
            sizes[bundle] = manifest.get("code_bytes", 0)
        if sizes.get(bundle):
            count += 1
            total += sizes[bundle]
    return count, total
