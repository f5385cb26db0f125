"""Make a large bundle from the files that were sent and from equal ones of earlier bundles, which share their disk space with it."""

from __future__ import annotations

import hashlib
import json
import os
import zlib

from orchestrator.node.endpoint.push import MANIFEST, add_bundle, bundle_folder, unpack
from orchestrator.node.protocol.operations import LACKING, PUT_PART, answers
from orchestrator.node.run.code_folder import BLOCK_BYTES, copy_file
from orchestrator.node.system.files import absolute_path, make_parents, open_plain, read_json, relative, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.push import BundleRequest, PutPartReply, PutPartRequest

    Manifest = List[Tuple[str, str, str]]  # name; l for a link, x for an executable file, - for another one; SHA-256

MOST_BUNDLES = 16  # the newest ones are searched


@answers(LACKING)
def lacking(request: BundleRequest, payload: bytes) -> Tuple[Empty, bytes]:
    """The names of a bundle's files that are in no earlier bundle; manifest and names are compressed JSON."""
    manifest = read_manifest(payload, request["digest"])
    known = known_files(os.path.dirname(bundle_folder(absolute_path(request["workdir"]), request["digest"])))
    names = [name for name, mode, digest in manifest if mode != "l" and (mode, digest) not in known]
    return {}, zlib.compress(json.dumps(names).encode(), 1)


@answers(PUT_PART)
def put_part(request: PutPartRequest, payload: bytes) -> Tuple[PutPartReply, bytes]:
    """As put_bundle, with the manifest before the archive; not complete if an earlier bundle has gone since."""
    split = request["manifest_bytes"]
    manifest = read_manifest(payload[:split], request["digest"])

    def fill(fresh: str) -> bool:
        unpack(payload[split:], fresh)
        known = known_files(os.path.dirname(fresh))
        for name, mode, digest in manifest:
            path = os.path.join(fresh, relative(name))
            if os.path.lexists(path):
                continue
            source = known.get((mode, digest))
            if source is None or file_digest(source) != digest:
                return False
            make_parents(fresh, os.path.dirname(path))
            try:
                os.link(source, path)  # as no file of a bundle is ever changed
            except OSError:  # the file system has no such names
                copy_file(source, path)
        sizes = (os.lstat(os.path.join(fresh, name)).st_size for name, _, _ in manifest if name.startswith("code/"))
        write_json(os.path.join(fresh, MANIFEST), {"files": manifest, "code_bytes": sum(sizes)})
        return True

    return {"is_complete": add_bundle(request, payload[split:], fill)}, b""


def known_files(bundles: str) -> Dict[Tuple[str, str], str]:
    """The files in the newest bundles that have a manifest, by mode and digest."""
    folders = [os.path.join(bundles, name) for name in os.listdir(bundles) if not name.startswith(".")]
    with_manifest = [folder for folder in folders if os.path.isfile(os.path.join(folder, MANIFEST))]
    found: Dict[Tuple[str, str], str] = {}
    for folder in sorted(with_manifest, key=os.path.getmtime)[-MOST_BUNDLES:]:
        entries: Manifest = (read_json(os.path.join(folder, MANIFEST)) or {}).get("files", [])
        found.update({(mode, digest): os.path.join(folder, name) for name, mode, digest in entries if mode != "l"})
    return found


def read_manifest(data: bytes, digest: str) -> Manifest:
    """Read a manifest; ValueError unless it is that of the bundle of this digest."""
    manifest: Manifest = json.loads(zlib.decompress(data))
    total = hashlib.sha256()
    for name, mode, content in manifest:
        total.update(f"{name}\0{mode}\0{content}\n".encode(errors="surrogateescape"))
    if total.hexdigest()[: len(digest)] != digest:
        raise ValueError(f"the list of files arrived damaged: it is not that of bundle {digest}")
    return manifest


def file_digest(path: str) -> str:
    """The SHA-256 of a file; empty if it is gone."""
    total = hashlib.sha256()
    try:
        with open(open_plain(path), "rb") as file:
            while block := file.read(BLOCK_BYTES):
                total.update(block)
    except OSError:
        return ""
    return total.hexdigest()
