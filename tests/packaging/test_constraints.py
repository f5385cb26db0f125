"""constraints.txt pins every package that the tests need at its installed version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.environments import required
from tests.paths import ROOT

OURS = "orch-launch"
WITH_CUDA = ("nvidia-", "cuda-", "triton")  # a CUDA build of torch requires them, each at one version


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="constraints.txt is for Python 3.11")
def test_constraints_pin_every_tested_version() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    pinned = {canonicalize_name(name): Version(version) for name, version in pins}
    tested = {name: _version(name) for name in _needed() if not name.startswith(WITH_CUDA)}
    assert tested == pinned, "the left side is installed, the right side pinned; `make dev` installs what is pinned"


def _version(name: str) -> Version:
    return Version(Version(metadata.version(name)).public)  # a CPU build of torch is 2.13.0+cpu


def _needed() -> set[str]:
    """The names of all requirements in setup.cfg with every extra, their requirements in turn, and pip."""
    pending, known = [*_direct_requirements(), Requirement("pip")], set[tuple[str, str]]()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name != OURS and (name, extra) not in known:
                known.add((name, extra))
                pending += required(metadata.distribution(name), extra)
    return {name for name, _ in known}


def _direct_requirements() -> Iterator[Requirement]:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    for text in (config["options"]["install_requires"], *config["options.extras_require"].values()):
        yield from (Requirement(line) for line in text.splitlines() if line and not line.startswith("#"))
