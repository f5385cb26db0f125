"""Versions of the training Python and of what it imports. torch is never imported: that takes seconds and memory of the cards."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys

from orchestrator.node.system.fast_stdlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Dict, List, Optional, Tuple, TypedDict

    from orchestrator.node.facts import Library
    from orchestrator.node.probe.source import Source

    class Installed(TypedDict):
        """The training Python: the version of each distribution by name, and the CUDA version that torch was built for."""

        python: str
        executable: str
        packages: Dict[str, str]
        packages_hash: Optional[str]
        import_folders: List[str]
        torch_cuda: Optional[str]


PYTHON_S = 10.0  # an environment on a busy shared file system
# The paths are those of site packages and of PYTHONPATH, as for the ranks; this process runs without them.
PATHS = """import os, sys
words = ["%d.%d.%d" % sys.version_info[:3], sys.executable, *filter(None, sys.path)]
os.write(1, b"\\n" + os.fsencode("\\0".join(words)))"""
VERSION_NUMBER = re.compile(r"\d+\.\d+\.\d+\Z")
METADATA = re.compile(r"(.+?)-([^-]+)(-py[\d.]+)?\.(dist|egg)-info\Z")
VERSION = re.compile(r"^Version:\s*(\S+)", re.MULTILINE)
PYTHONS_OWN = re.compile(r"/(site-packages|dist-packages|lib-dynload|python[\d.]+(\.zip)?)(/|\Z)")
FINDER = re.compile(r"__editable___.+_finder\.py\Z")  # of setuptools
MAPPING = re.compile(r"^MAPPING\b[^=]*= (\{.*\})", re.MULTILINE)
MAPPED = re.compile(r"'([^']*)': '([^']*)'")
TORCH_CUDA = re.compile(r"^cuda\b.*?=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


@functools.lru_cache(maxsize=1)  # two steps of one group need it
def paths_of(source: Source) -> Tuple[str, str, List[str]]:
    """Version, executable and import paths of this Python with its site packages."""
    text, error = source.run([sys.executable, "-c", PATHS], PYTHON_S)
    words = (text or "").rpartition("\n")[2].split("\0")  # a site package may print something before
    if len(words) > 2 and VERSION_NUMBER.match(words[0]):  # noqa: PLR2004  at least one path
        return words[0], words[1], words[2:]
    reason = error or f"unreadable answer: {text!r:.120}"
    for name in ("packages", "torch", "torch_cuda", "torch_gcu", "deepspeed", "nccl"):
        source.missing[f"software.{name}"] = f"{sys.executable}: {reason}"
    return "{}.{}.{}".format(*sys.version_info[:3]), sys.executable, []


def installed(source: Source) -> Installed:
    """The distributions, as importlib.metadata finds them: the first one of a name on the path."""
    version, executable, paths = paths_of(source)
    packages: Dict[str, str] = {}
    for path in paths:
        for entry in names_in(path):
            found = METADATA.match(entry)
            name, number = found.group(1, 2) if found else (entry.rpartition(".")[0], None)
            if number is None and entry.endswith((".egg-info", ".dist-info")):
                number = written_version(os.path.join(path, entry))
            if number is not None:
                packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), number)
    table = "".join(f"{name}=={number}\n" for name, number in sorted(packages.items()))
    return {
        "python": version,
        "executable": executable,
        "packages": packages,
        "packages_hash": hashlib.sha256(table.encode()).hexdigest() if paths else None,
        "import_folders": import_folders(paths),
        "torch_cuda": torch_cuda(source, paths),
    }


def import_folders(paths: Sequence[str]) -> List[str]:
    """The folders of sources from which Python also imports: those of editable installations, in .pth files and finders, and of PYTHONPATH."""
    found = [path for path in paths if os.path.isabs(path) and not PYTHONS_OWN.search(path)]
    for path in paths:
        with suppress(OSError):
            finders = [name for name in os.listdir(path) if FINDER.match(name)]
            for name in sorted(finders):
                with open(os.path.join(path, name), encoding="utf-8", errors="replace") as file:
                    mapping = MAPPING.search(file.read(1 << 16))
                found += [os.path.dirname(folder) for _, folder in MAPPED.findall(mapping.group(1) if mapping else "")]
    return sorted(set(found))


def names_in(path: str) -> List[str]:
    """The names of distributions' metadata in a folder; empty for a zip file and for a folder that is missing."""
    try:
        return sorted(name for name in os.listdir(path) if name.endswith((".dist-info", ".egg-info")))
    except OSError:
        return []


def written_version(path: str) -> Optional[str]:
    """The version in the metadata of a distribution whose folder does not have it in its name."""
    for file in (path, os.path.join(path, "PKG-INFO"), os.path.join(path, "METADATA")):
        try:
            with open(file, encoding="utf-8", errors="replace") as text:
                found = VERSION.search(text.read(1 << 14))
        except OSError:
            continue
        if found:
            return found.group(1)
    return None


def first(paths: Sequence[str], *parts: str) -> Optional[str]:
    """The first of these files on the import path."""
    return next((file for file in (os.path.join(path, *parts) for path in paths) if os.path.isfile(file)), None)


def torch_cuda(source: Source, paths: Sequence[str]) -> Optional[str]:
    """The CUDA version that torch was built for, from its version.py; None for a CPU build."""
    file = first(paths, "torch", "version.py")
    if file is None:
        return None
    try:
        with open(file, encoding="utf-8", errors="replace") as text:
            found = TORCH_CUDA.search(text.read(1 << 16))
    except OSError as error:
        source.missing["software.torch_cuda"] = f"{file}: {error.strerror}"
        return None
    return found.group(1) if found else None


LDD_LINE = re.compile(r"^\s*(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
LDD_S = 5.0
BLOCK_BYTES = 1 << 20


def nccl(source: Source) -> Optional[Library]:
    """
    The NCCL library that torch loads; None without torch for CUDA.

    The dynamic loader finds it, with torch's search path, LD_LIBRARY_PATH and LD_PRELOAD, as for the ranks. Its version is its own
    answer: the wheels for CUDA 12 and 13 install the same file, so that package metadata may be of the other one.
    """
    _, _, paths = paths_of(source)
    torch = first(paths, "torch", "lib", "libtorch_cuda.so")
    if torch is None:
        return None
    text, error = source.run(["ldd", torch], LDD_S)
    if text is None:
        source.missing["software.nccl"] = f"ldd: {error}"
        return None
    found = {os.path.basename(name): path for name, path in LDD_LINE.findall(text)}
    path = next((path for name, path in found.items() if name.startswith("libnccl.so")), None)
    if path is None:
        reason = "the library is not found" if "libnccl" in text else "built into torch"
        source.missing["software.nccl"] = f"{torch}: {reason}"
        return None
    return {"path": os.path.realpath(path), "version": nccl_version(source, path), "sha256": sha256(source, path)}


def nccl_version(source: Source, path: str) -> Optional[str]:
    import ctypes  # slow to import, and only this function needs it

    number = ctypes.c_int()
    try:
        code = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        source.missing["software.nccl.version"] = str(error)
        return None
    if code != 0 or number.value <= 0:
        source.missing["software.nccl.version"] = f"ncclGetVersion returned {code}"
        return None
    return version_text(number.value)


def version_text(number: int) -> str:
    """2.27.3 for 22703; up to 2.8 the number has one digit less for the minor version (nccl.h)."""
    scale = 10000 if number >= 10000 else 1000  # noqa: PLR2004
    return f"{number // scale}.{number % scale // 100}.{number % 100}"


def sha256(source: Source, path: str) -> Optional[str]:
    total = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                total.update(block)
    except OSError as error:
        source.missing["software.nccl.sha256"] = error.strerror or str(error)
        return None
    return total.hexdigest()


def cuda_version(source: Source) -> Optional[str]:
    """The newest CUDA version that the driver supports, by its library; None without a driver."""
    import ctypes

    number = ctypes.c_int()
    try:
        code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return None
    except AttributeError as error:
        source.missing["software.cuda"] = str(error)
        return None
    if code != 0 or number.value <= 0:
        source.missing["software.cuda"] = f"cuDriverGetVersion returned {code}"
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
