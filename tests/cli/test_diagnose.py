"""`orch diagnose`: logs of launchers as files, the output, and files that cannot be read."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.app import app
from orchestrator.errors import UsageError
from orchestrator.usecases.diagnose.log_files import diagnose_files
from orchestrator.usecases.diagnose.run import folded_remarks
from tests.paths import CASES

LOGS = CASES / "torchrun_logs"
# torchrun --nproc-per-node 2 of torch 2.13 with gloo; rank 1 failed, where the ranks differ
CAUSES = {
    "device-ids": ("ddp-model-on-cpu", [0, 1], "high"),
    "key": ("python-error", [1], "medium"),
    "kill": ("killed", [1], "low"),
    "missing-file": ("file-not-found", [0], "high"),
    "models": ("ddp-models-differ", [0, 1], "high"),
    "nccl": ("nccl-not-built-in", [0], "high"),
    "segv": ("segmentation-fault", [1], "low"),
    "stop": ("gloo-timeout", [0], "low"),
    "unused": ("ddp-unused-parameters", [0, 1], "high"),
}

# the same program under srun --label (but `unlabelled`) of Slurm 22.05 on two nodes, and the launcher of DeepSpeed 0.19
OF_LAUNCHERS = {
    "srun_logs/key": ("python-error", [1], [], "medium"),
    "srun_logs/kill": ("slurm-killed", [1], ["n0"], "low"),
    "srun_logs/missing-program": ("command-not-found", [0, 1], ["n1", "n0"], "high"),
    "srun_logs/missing-script": ("file-not-found", [0, 1, 2, 3], [], "high"),
    "srun_logs/segv": ("slurm-segfault", [1], ["n0"], "low"),
    "srun_logs/unlabelled": ("python-error", [1], [], "medium"),
    "deepspeed_logs/key": ("python-error", [1], [], "medium"),
    "deepspeed_logs/kill": ("killed", [], [], "low"),
    "deepspeed_logs/segv": ("segmentation-fault", [], [], "low"),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    return tmp_path


def orch(*words: str, stdin: bytes | None = None) -> Result:
    done = CliRunner().invoke(app, ["diagnose", *words], input=stdin, prog_name="orch", standalone_mode=False)
    if done.exception:
        raise done.exception
    assert done.return_value == 0
    return done


def test_every_log_has_a_cause() -> None:
    assert {file.stem for file in LOGS.iterdir()} == CAUSES.keys()


@pytest.mark.parametrize("name", CAUSES)
def test_a_log_of_torchrun(name: str) -> None:
    found = json.loads(orch(str(LOGS / f"{name}.txt"), "--json").stdout)
    assert (found["signature"], found["ranks"], found["confidence"]) == CAUSES[name]
    assert found["remedy"]
    assert found["proof"][0]["line"]


@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_a_log_of_srun_or_of_the_launcher_of_deepspeed(name: str) -> None:
    found = json.loads(orch(str(CASES / f"{name}.txt"), "--json").stdout)
    assert (found["signature"], found["ranks"], found["nodes"], found["confidence"]) == OF_LAUNCHERS[name]
    assert found["proof"][0]["line"]


@pytest.mark.parametrize("prefix", ["n0: ", "[n0:-] ", "2026-11-22T10:00:00.000Z ", "1: ", "\x1b[31m[n0:-]\x1b[0m "])
@pytest.mark.parametrize("name", ["key", "unused"])
def test_the_same_log_with_the_prefixes_of_other_launchers(name: str, prefix: str) -> None:
    log = "".join(f"{prefix}{line}\n" for line in (LOGS / f"{name}.txt").read_text().splitlines())
    found = json.loads(orch("-", "--json", stdin=log.encode()).stdout)
    assert (found["signature"], found["ranks"], found["confidence"]) == CAUSES[name]


def test_the_report(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "[n0:0] step=1\n[n1:3] KeyError: 'input\x1b[2Jids'\n[n0:0] BrokenPipeError: [Errno 32] Broken pipe\n"
    )
    done = orch(str(log))
    assert done.stdout.replace(str(tmp_path), "") == (
        "cause       the program raised KeyError: 'inputids'\n"
        "began on    rank 3 on n1\n"
        "proof       /train.log:2: [rank 3 on n1] KeyError: 'inputids'\n"
        "next        look at the traceback above this line in the log of that rank\n"
        "            the entry does not exist: print the keys that do at the last frame of the traceback; data, a checkpoint or a "
        "configuration of another kind has other names\n"
        "retry       no: the run fails the same way until that is corrected\n"
        "confidence  medium: it is the program's own error, the only one that follows from no other\n"
        "follows     the other side of a connection has ended (1 line, rank 0)\n"
    )
    assert done.stderr == "orch: searched 1 file, 93 B\n"


def test_number_of_a_card_is_no_rank() -> None:
    line = b"gpu02: gpu02:47:48 [0] ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory\n"
    assert "began on    gpu02\n" in orch("-", stdin=line).stdout


def test_an_unknown_cause_is_reported_as_unknown() -> None:
    assert (
        "cause       unknown: no line names one\nerrors      -:2: [ERROR] no tokenizer\n"
        in orch("-", stdin=b"ok\n[ERROR] no tokenizer\n").stdout
    )
    assert orch("-", stdin=b"step=1\n").stdout == "cause       unknown: no error was found\n"


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    """It was diagnosed as `no error was found`, as if its logs had been searched."""
    with pytest.raises(UsageError, match="the folder has no files"):
        orch(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(UsageError, match="Permission denied"):
        diagnose_files([str(tmp_path)], None)


def test_a_hanging_run_whose_lines_name_no_cause_refers_to_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's line about the accelerator, which is no error, hid the rank that was stopped by a signal."""
    (tmp_path / "rank-2.out").write_text("[WARNING] we were unable to detect an accelerator.\n")
    found = diagnose_files([str(tmp_path / "rank-2.out")], None)
    found = replace(found, run="demo-1", state="RUNNING", positions=("rank 2 on n1: stopped by a signal (state T)",))
    monkeypatch.setattr("orchestrator.usecases.diagnose.run.diagnose_run", lambda *_: found)
    printed = orch("latest").stdout
    assert printed.startswith("cause       unknown: no line names one; `ranks` shows where the ranks are\nerrors ")
    assert "ranks       rank 2 on n1: stopped by a signal" in printed


def test_a_folder_of_logs_whose_names_have_the_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("KeyError: 'a'\n")
    (folder / "stdout.log").write_text("step=1\n")
    found = json.loads(orch(str(tmp_path / "logs"), "--json").stdout)
    assert (found["ranks"], len(found["files"])) == ([3], 2)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.err", 3),
        ("node1_rank3.log", 3),
        ("job.rank_3.out.gz", 3),
        ("local_rank3.log", None),
        ("ranks.log", None),
    ],
)
def test_ranks_in_names_of_files(tmp_path: Path, name: str, rank: int | None) -> None:
    (tmp_path / name).write_text("KeyError: 'a'\n")
    assert json.loads(orch(str(tmp_path / name), "--json").stdout)["ranks"] == ([] if rank is None else [rank])


def test_a_line_that_names_its_rank_wins_over_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("[rank1]: KeyError: 'a'\n")
    assert json.loads(orch(str(tmp_path / "rank-0.log"), "--json").stdout)["ranks"] == [1]


def test_a_report_names_an_unknown_class_of_retry(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("RuntimeError: no answer\n")
    assert "retry       unknown: " in orch(str(tmp_path / "train.log")).stdout


def test_a_log_that_gzip_has_packed_is_searched_as_far_as_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "train.log.gz"
    packed = gzip.compress(b"x" * (1 << 18) + b"\nKeyError: 'a'\n") + gzip.compress(os.urandom(1 << 18))
    for cut in (len(packed), len(packed) - 1000):
        log.write_bytes(packed[:cut])
        found = json.loads(orch(str(log), "--json").stdout)
        assert [(hit["line"], hit["text"]) for hit in found["proof"]] == [(2, "KeyError: 'a'")]
        assert found["bytes"] > 3 << 17
    log.write_bytes(packed[:2] + b"\xff" * 200)
    with pytest.raises(UsageError, match=r"train\.log\.gz: is damaged"):
        orch(str(log))


def test_signatures_of_the_user(home: Path) -> None:
    text = "[site]\ntext: licence server * failed\ncause: no licence\nremedy: lmstat\nsample: licence server 1 failed\n"
    (home / "signatures").write_text(text)
    assert "cause       no licence\n" in orch("-", stdin=b"licence server 7 failed\n").stdout
    (home / "mine").write_text(text.replace("remedy: lmstat\n", ""))
    with pytest.raises(UsageError, match=r"mine:1: \[site\] has no remedy: line"):
        orch("-", "--signatures", str(home / "mine"), stdin=b"")
    with pytest.raises(UsageError, match="none: No such file or directory"):
        orch("-", "--signatures", str(home / "none"), stdin=b"")


def test_equal_remarks_of_several_nodes_are_one() -> None:
    remarks = ["n0: the disk of /data is full", "n1: little memory: 1 GB", "n2: the disk of /data is full"]
    assert folded_remarks(remarks) == ("n[0,2]: the disk of /data is full", "n1: little memory: 1 GB")


def test_standard_input_is_read_once() -> None:
    with pytest.raises(UsageError, match="standard input"):
        orch("-", "-", stdin=b"KeyError: 'a'\n")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: No such file or directory"):
        orch(str(tmp_path / "none"))
