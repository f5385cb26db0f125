"""Versions are those that the training Python finds, and the NCCL library is the file that torch's dynamic loader finds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.probe import software
from orchestrator.node.probe.source import Source
from tests.grounds.components import program

pytestmark = pytest.mark.processes


def _source(site: Path, **environ: str) -> Source:
    return Source("/", {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), **environ})


def _torch(site: Path, rpath: str, *flags: str) -> None:
    """Write a torch whose libtorch_cuda.so needs libnccl.so.2, as that of a wheel."""
    folder = site / "torch" / "lib"
    folder.mkdir(parents=True)
    (site / "torch" / "version.py").write_text(
        "__version__ = '2.7.1+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n"
    )
    (site / "torch-2.7.1.dist-info").mkdir()
    (site / "deepspeed-0.9.2+gcu.49.dist-info").mkdir()
    (site / "Odd_Name-1.0-py3.8.egg-info").write_text("Version: 1.0\n")
    (site / "linked.egg-info").mkdir()
    (site / "linked.egg-info" / "PKG-INFO").write_text("Name: linked\nVersion: 3.1\n")
    wheel = site / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    _library(wheel / "libnccl.so.2", 22703)
    source = site / "torch.c"
    source.write_text("int ncclGetVersion(int*); int torch(void) { int v; return ncclGetVersion(&v); }\n")
    argv = [program("gcc"), "-shared", "-fPIC", "-o", str(folder / "libtorch_cuda.so"), str(source), *flags]
    subprocess.run([*argv, f"-Wl,-rpath,{rpath}", str(wheel / "libnccl.so.2")], check=True)


def _library(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(f"int ncclGetVersion(int *version) {{ *version = {number}; return 0; }}\n")
    soname = "-Wl,-soname,libnccl.so.2"
    subprocess.run([program("gcc"), "-shared", "-fPIC", soname, "-o", str(path), str(source)], check=True)


WHEEL = "$ORIGIN/../../nvidia/nccl/lib"


def test_versions_are_read_without_an_import_of_torch(tmp_path: Path) -> None:
    _torch(tmp_path, WHEEL)
    found = software.installed(_source(tmp_path))
    assert found["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert found["torch_cuda"] == "12.8"
    versions = {name: found["packages"][name] for name in ("torch", "deepspeed", "odd-name", "linked", "pytest")}
    assert versions == {
        "torch": "2.7.1",
        "deepspeed": "0.9.2+gcu.49",
        "odd-name": "1.0",
        "linked": "3.1",
        "pytest": pytest.__version__,
    }
    without = software.installed(_source(tmp_path / "none"))
    assert without["packages_hash"] != found["packages_hash"] == software.installed(_source(tmp_path))["packages_hash"]


def test_folders_of_editable_installations_are_found(tmp_path: Path) -> None:
    """By a path, as of a .pth file, and by setuptools' finder, which has the folder of each package."""
    (tmp_path / "__editable___mine_0_1_finder.py").write_text(
        "import sys\nMAPPING: dict[str, str] = {'mypkg': '/home/u/proj/src/mypkg', 'tools': '/home/u/tools'}\nNAMESPACES = {}\n"
    )
    found = software.import_folders(
        [
            "/usr/lib/python3.11",
            "/usr/lib/python311.zip",
            "/usr/lib/python3.11/lib-dynload",
            str(tmp_path),
            "/opt/env/lib/python3.9/site-packages",
        ]
    )
    assert found == sorted([str(tmp_path), "/home/u", "/home/u/proj/src"])


def test_nccl_is_the_library_that_the_loader_finds(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH comes before the path of torch's wheel (RUNPATH), but not before an RPATH."""
    _torch(tmp_path, WHEEL, "-Wl,--enable-new-dtags")
    wheel = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    found = software.nccl(_source(tmp_path))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert found == {"path": str(wheel), "version": "2.27.3", "sha256": digest}

    site = tmp_path / "site" / "libnccl.so.2"
    _library(site, 2708)
    found = software.nccl(_source(tmp_path, LD_LIBRARY_PATH=str(site.parent)))
    assert found is not None
    assert (found["path"], found["version"]) == (str(site), "2.7.8")


def test_nccl_without_a_library_or_an_answer_is_missing(tmp_path: Path) -> None:
    assert software.nccl(_source(tmp_path)) is None  # no torch for CUDA
    _torch(tmp_path, WHEEL)
    wheel = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    wheel.write_bytes(b"\x7fELF cut")
    source = _source(tmp_path)
    found = software.nccl(source)
    assert found is None or found["version"] is None
    assert any("software.nccl" in key for key in source.missing)
    wheel.unlink()
    source = _source(tmp_path)
    assert software.nccl(source) is None
    assert source.missing["software.nccl"].endswith("the library is not found")


@pytest.mark.parametrize(
    ("number", "version"), [(22703, "2.27.3"), (21003, "2.10.3"), (2708, "2.7.8"), (2408, "2.4.8")]
)
def test_the_number_of_a_version_is_read_in_both_forms(number: int, version: str) -> None:
    assert software.version_text(number) == version


def test_a_python_that_prints_garbage_has_no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Illegal instruction\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    source = _source(tmp_path)
    found = software.installed(source)
    assert (found["packages"], found["packages_hash"]) == ({}, None)
    assert source.missing["software.torch"] == f"{python}: unreadable answer: 'Illegal instruction\\n'"
