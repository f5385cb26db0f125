"""`orch diagnose --report`: an archive for a public issue, in which nothing names people, machines and folders."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.errors import UsageError
from orchestrator.usecases.diagnose.pseudonyms import Pseudonyms
from tests.paths import CASES

LOG = """\
[gpu017:0] connecting as ann@login.site.example to 10.20.30.40:29500 and fd00:1::7
[gpu017:0] WANDB_API_KEY=0123456789abcdef HF_TOKEN: 'hf_abcdefghijklmnop' Authorization: Bearer abc.def.ghi-jkl
[gpu018:1] mount https://ann:pa55word@store.site.example/models of 10.20.30.41
gpu018:4711:4712 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE; OOB eth0:10.20.30.41<0>
[gpu017:0]   File "/home/ann/secret-project/train.py", line 3, in <module>
[gpu017:0]   File "/home/ann/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call
[gpu017:0] FileNotFoundError: [Errno 2] No such file or directory: '/data/ann/tokens.bin'
srun: error: gpu018: task 1: Exited with exit code 1
"""
NAMES = (
    "ann",
    "gpu017",
    "gpu018",
    "10.20.",
    "fd00",
    "site.example",
    "hf_abc",
    "0123456789abcdef",
    "abc.def",
    "pa55word",
    "secret-project",
)


def orch(*words: str) -> str:
    return CliRunner().invoke(app, ["diagnose", *words], catch_exceptions=False, standalone_mode=False).output


def contents(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        assert all(member.mode == 0o600 and not member.uname for member in members)
        return {member.name: archive.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0")
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path / "train.log"


def test_report_can_be_read_and_names_nobody(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    printed = orch(str(log), "--report", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    texts = contents(file)
    everything = "".join(texts.values())
    for name in (*NAMES, str(tmp_path)):
        assert name not in everything, name
    lines = texts["orch-report/lines.txt"]
    assert "/site-packages/torch/nn/modules/module.py" in lines
    assert '/train.py", line 3' in lines
    nodes = {part.split(":")[0] for part in lines.split() if part.startswith("[node-")}
    assert len(nodes) == 2  # the same name everywhere
    assert "cause       the file '" in texts["orch-report/diagnosis.txt"]
    assert json.loads(texts["orch-report/setting.json"])["variables"]["NCCL_IB_HCA"] == "=mlx5_0"
    assert "lines.txt" in printed
    assert "3 IP addresses" in printed
    with pytest.raises(UsageError, match="exists"):
        orch(str(log), "--report", str(file))


def test_nothing_is_written_if_a_name_is_left(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pseudonyms, "replaced", lambda self, text: text)  # noqa: ARG005  as if it had a fault
    with pytest.raises(UsageError, match=r"would hold .*, which must not leave"):
        orch(str(log), "--report", str(tmp_path / "report.tar.gz"))
    assert not (tmp_path / "report.tar.gz").exists()


@pytest.mark.parametrize("folder", ["torchrun_logs", "srun_logs", "deepspeed_logs"])
def test_logs_of_launchers_keep_their_errors(folder: str, tmp_path: Path) -> None:
    for index, source in enumerate(sorted((CASES / folder).iterdir())):
        file = tmp_path / f"{index}.tar.gz"
        orch(str(source), "--report", str(file))
        assert str(CASES) not in "".join(contents(file).values())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("KeyError: 'lm_head.weight'", "KeyError: 'lm_head.weight'"),
        ("NCCL version 2.21.5+cuda12.4", "NCCL version 2.21.5+cuda12.4"),
        ("torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:542", "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:542"),
        ("listening on 127.0.0.1:29500", "listening on 127.0.0.1:29500"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        ("-L/root/env/lib/python3.10/site-packages/torch/lib", "-L/path-1/lib/python3.10/site-packages/torch/lib"),
        ("std::runtime_error at _ZN3c105ErrorC2ENS_14SourceLocationESs", "std::runtime_error at _ZN3c105ErrorC2ENS_14SourceLocationESs"),
    ],
)  # fmt: skip
def test_texts_without_names_stay(text: str, kept: str) -> None:
    assert Pseudonyms(users=(), hosts=()).replaced(text) == kept
