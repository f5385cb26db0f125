"""The machine and the program versions on which the figures were taken."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[1]
PACKAGES = (
    "click",
    "fabric",
    "paramiko",
    "submitit",
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "torchrunx",
    "torchx",
)


def describe() -> dict[str, str]:
    """Facts by name, in the order in which they are printed."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": _commit(),
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}",
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "programs": ", ".join(
            [_version_line(["ssh", "-V"]), _version_line(["clush", "--version"]), _version_line(["pdsh", "-V"])]
        ),
        "load before": f"{os.getloadavg()[0]:.1f} processes over the last minute",
    }


def _commit() -> str:
    """The measured commit and its date, with a remark if the work tree has uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = " with uncommitted changes" if git("status", "--porcelain") else ""
    return f"{git('rev-parse', '--short=12', 'HEAD')} of {git('log', '-1', '--format=%cs')}{changed}"


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is missing"


def _version_line(command: Sequence[str]) -> str:
    """The name and version on the first line that a program prints."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is missing"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return " ".join((done.stdout + done.stderr).split("\n", 1)[0].split("(")[0].split(",")[0].split())
