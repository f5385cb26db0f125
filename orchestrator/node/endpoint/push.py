"""Receive pushed files: make the working folder, unpack bundles, write a run's files; never through a symbolic link."""

from __future__ import annotations

import errno
import io
import os

from orchestrator.node.protocol.operations import PREPARE, PUT_BUNDLE, PUT_FILES, PUT_RUN, answers
from orchestrator.node.run.code_folder import make_code_folder
from orchestrator.node.system.files import (
    PRIVATE_FOLDERS,
    absolute_path,
    check_private_folder,
    make_parents,
    make_private_folder,
    read_json,
    relative,
    working_folder,
    write_new,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Tuple

    from orchestrator.node.protocol.connection import Empty
    from orchestrator.node.protocol.push import (
        PrepareReply,
        PrepareRequest,
        PutBundleRequest,
        PutFilesRequest,
        PutRunReply,
        PutRunRequest,
    )


MANIFEST = "manifest.json"  # in a large bundle: the files that it has, and the space that copies of the code take
MUCH_CODE_BYTES = 20_000_000  # from here on, the code of some hundred runs fills disks
CLAIMED = ".claimed"  # in a run's folder, made by the first node on its file system


def bundle_folder(workdir: str, digest: str) -> str:
    if not (digest.isascii() and digest.isalnum()):
        raise ValueError(f"{digest!r} is not a digest")
    return os.path.join(workdir, "bundles", digest)


@answers(PUT_RUN)
def put_run(request: PutRunRequest, payload: bytes) -> Tuple[PutRunReply, bytes]:
    """
    Make the folder of a run, its code folder from the bundle, and its files, unless the bundle is missing.

    Of the nodes that claim the run, the first one on a file system begins. The others must not look for the code before it is there:
    an NFS client would remember that it is missing.
    """
    workdir = working_folder(request["workdir"])
    run = os.path.join(workdir, "runs", relative(request["run"]))
    nothing: PutRunReply = {"is_first": True, "is_written": False, "runs": 0, "runs_code_bytes": 0}
    make_parents(workdir, run)
    if request["claim"]:
        try:
            os.mkdir(os.path.join(run, CLAIMED))
        except FileExistsError:
            return {**nothing, "is_first": False}, b""
    if not prepare(request, b"")[0]["have_bundle"]:
        return nothing, b""
    make_code_folder(run, bundle_folder(workdir, request["digest"]))
    put_files({"folder": run, "files": request["files"]}, payload)
    count, total = 0, 0
    if request["bytes_more"] >= MUCH_CODE_BYTES:
        count, total = code_of_runs(workdir)
    return {"is_first": True, "is_written": True, "runs": count, "runs_code_bytes": total}, b""


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


@answers(PREPARE)
def prepare(request: PrepareRequest, _payload: bytes) -> Tuple[PrepareReply, bytes]:
    """Make the working folder and its subfolders, and require disk space; return whether it has the bundle."""
    workdir = working_folder(request["workdir"])
    bundle = bundle_folder(workdir, request["digest"])
    for name in PRIVATE_FOLDERS:
        make_private_folder(os.path.join(workdir, name))
    if os.path.lexists(bundle):
        check_private_folder(bundle)
        os.utime(bundle)  # in use: `orch gc` removes bundles by age
    have_bundle = os.path.isdir(bundle)
    size = request["bytes_more"] + (0 if have_bundle else request["bytes_unpacked"])
    state = os.statvfs(workdir)
    free = state.f_bavail * state.f_frsize
    if state.f_blocks and free < size:  # some file systems report no sizes
        text = f"{free >> 20} MiB are free on its file system, and the code needs {(size >> 20) + 1} MiB"
        raise OSError(errno.ENOSPC, text, workdir)
    return {"have_bundle": have_bundle}, b""


@answers(PUT_BUNDLE)
def put_bundle(request: PutBundleRequest, payload: bytes) -> Tuple[Empty, bytes]:

    def fill(fresh: str) -> bool:
        unpack(payload, fresh)
        return True

    add_bundle(request, payload, fill)
    return {}, b""


def add_bundle(request: PutBundleRequest, archive: bytes, fill: Callable[[str], bool]) -> bool:
    """
    Fill a bundle under a temporary name, and rename it if it is complete; if another connection was faster, its bundle is kept.

    `fill` returns whether the folder that it was given is complete.
    """
    import hashlib  # slow to import, and most connections push nothing
    import shutil
    import tempfile

    found = hashlib.sha256(archive).hexdigest()
    if found != request["sha256"]:
        raise ValueError(f"the bundle arrived damaged: sha256 {found}, expected {request['sha256']}")
    workdir = working_folder(request["workdir"])
    bundle = bundle_folder(workdir, request["digest"])
    bundles = os.path.dirname(bundle)
    make_private_folder(bundles)
    fresh = tempfile.mkdtemp(prefix=".new-", dir=bundles)
    try:
        if not fill(fresh):
            return False
        try:
            os.rename(fresh, bundle)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            check_private_folder(bundle)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(error.errno, f"{error.strerror}, while code was unpacked", workdir) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # exists only if it was not renamed
    return True


def unpack(payload: bytes, root: str) -> None:
    """Extract regular files, folders and links that stay below root; anything else is an error."""
    import tarfile

    links = []
    with tarfile.open(fileobj=io.BytesIO(payload), mode="r:gz") as archive:
        for member in archive:
            name = member.name[2:] if member.name.startswith("./") else member.name
            if name == "." and member.isdir():
                continue
            path = os.path.join(root, relative(name.rstrip("/")))
            make_parents(root, os.path.dirname(path))
            if member.isdir():
                make_private_folder(path)
            elif member.issym():
                os.symlink(member.linkname, path)
                links.append(path)
            elif member.isreg():
                content = archive.extractfile(member)
                assert content is not None
                write_new(path, content, 0o700 if member.mode & 0o100 else 0o600)
            else:
                raise ValueError(f"{member.name!r} is neither a file nor a folder nor a link")
    home = os.path.realpath(root) + os.sep
    for path in links:  # after all are made: a link may point to a later one
        target = os.readlink(path)
        if os.path.isabs(target) or not (os.path.realpath(path) + os.sep).startswith(home):
            raise ValueError(f"{os.path.relpath(path, root)!r} links out of the bundle, to {target!r}")


@answers(PUT_FILES)
def put_files(request: PutFilesRequest, payload: bytes) -> Tuple[Empty, bytes]:
    """Write files below a folder, each atomically."""
    folder, files = absolute_path(request["folder"]), request["files"]
    if sum(file["size"] for file in files) != len(payload):
        raise ValueError("the sizes of the files do not add up to what arrived")
    paths = [os.path.join(folder, relative(file["path"])) for file in files]
    os.makedirs(folder, 0o700, exist_ok=True)
    check_private_folder(folder)
    content = io.BytesIO(payload)
    for path, file in zip(paths, files):
        make_parents(folder, os.path.dirname(path))
        fresh = f"{path}.new-{os.urandom(8).hex()}"  # several nodes write the same file of a shared folder
        try:
            write_new(fresh, io.BytesIO(content.read(file["size"])), file["mode"] & 0o777)
            os.replace(fresh, path)
        except BaseException:
            if os.path.lexists(fresh):
                os.unlink(fresh)
            raise
    return {}, b""
