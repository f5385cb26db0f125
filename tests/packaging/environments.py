"""Environments with exactly the requirements of a distribution, linked from the tests' own, so without an index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def make_environment(folder: Path) -> Path:
    """Make an empty environment and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    """The site-packages folder of an environment."""
    (folder,) = python.parents[1].glob("lib/python3*/site-packages")
    return folder


def pip(python: Path, *args: str) -> str:
    """Run this environment's pip on another environment, which then needs none, and return its output."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python: Path, *args: str) -> None:
    pip(python, "install", "--no-deps", "--no-index", "--no-build-isolation", *args)


def link_requirements(python: Path, names: Iterable[str]) -> list[Path]:
    """Link the named distributions and all their requirements into an environment; return the new links."""
    target, links = packages_of(python), list[Path]()
    for distribution in _closure(names):
        for part in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            if not (target / part).exists():
                (target / part).symlink_to(Path(str(distribution.locate_file(part))))
                links.append(target / part)
    return links


def requirements_of(name: str, python: Path) -> list[str]:
    """The names of the requirements of an installed distribution, without extras."""
    (found,) = metadata.distributions(name=name, path=[str(packages_of(python))])
    return [requirement.name for requirement in required(found)]


def _closure(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    pending, known = list(names), set[str]()
    while pending:
        found = metadata.distribution(pending.pop())
        if found.name not in known:
            known.add(found.name)
            yield found
            pending += [requirement.name for requirement in required(found)]


def required(distribution: metadata.Distribution, extra: str = "") -> Iterator[Requirement]:
    """The requirements of a distribution that apply to this platform, with one extra or without."""
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def foreign_trainer(folder: Path) -> Path:
    """A double of PyPI's `trainer`: a wheel with a top-level package of that name, which has an OWNER."""
    info = "trainer-0.0.36.dist-info"
    files = {
        "trainer/__init__.py": "OWNER = 'somebody else'\n",
        "trainer/__main__.py": "raise SystemExit('the trainer of somebody else')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: trainer\nVersion: 0.0.36\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    path = folder / "trainer-0.0.36-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path
