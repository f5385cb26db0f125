"""`orch diagnose --teach`: a signature from a line of a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.errors import UsageError
from orchestrator.usecases.diagnose.teach import generalised

LOG = "step=1 loss=2.0\n[n0:1] licence manager at lic7.site.example:27000 refused seat 41 of 64 for /home/ann/run\nstep=2 loss=1.0\n"
ANSWER = ("--teach", "--cause", "the licence server has no seat", "--remedy", "lmstat -a")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path / "train.log"


def orch(*words: str) -> str:
    result = CliRunner().invoke(app, ["diagnose", *words], catch_exceptions=False, standalone_mode=False)
    return result.output


def test_line_becomes_a_signature_that_the_next_diagnosis_uses(log: Path, tmp_path: Path) -> None:
    assert "text: licence manager at * refused seat * of * for\n" in orch(f"{log}:2", *ANSWER)
    file = tmp_path / "home/signatures"
    assert "[the-licence-server-has-no]\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    log.write_text(LOG.replace("lic7", "lic9").replace("seat 41", "seat 63"))
    assert "cause       the licence server has no seat\n" in orch(str(log))
    with pytest.raises(UsageError, match="is the id of another signature"):
        orch(f"{log}:2", *ANSWER)
    orch(f"{log}:2", *ANSWER, "--name", "seats")
    assert file.read_text().count("\nsample: ") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "has no text|the line is known"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", r"the line is known: \[cuda-oom"),
        ("1234 5678 /a/b", "the line has no text that stays the same"),
        ("seat refused", r"`seat refused` is also found in line 2: the seat refused a call"),
    ],
)
def test_line_that_makes_no_good_signature_is_refused(log: Path, tmp_path: Path, line: str, message: str) -> None:
    log.write_text(f"{line}\nthe seat refused a call\n")
    with pytest.raises(UsageError, match=message):
        orch(f"{log}:1", *ANSWER)
    assert not (tmp_path / "home/signatures").exists()


def test_usage_is_checked(log: Path) -> None:
    with pytest.raises(UsageError, match="has 3 lines, not 9"):
        orch(f"{log}:9", *ANSWER)
    with pytest.raises(UsageError, match="--teach needs one RUN"):
        orch(f"{log}:2", "--teach")
    with pytest.raises(UsageError, match="belong to --teach"):
        orch(str(log), "--cause", "x")
    with pytest.raises(UsageError, match="exclude each other"):
        orch(str(log), "--prove", "--teach")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("worker 3 on node17 lost lease 0xffab12 after 30.5 s", "on * lost lease * after * s"),
        ("cannot read '/data/a b.bin': code 7", "cannot read '* b.bin': code"),
        ("no seat at 10.0.0.7:2700 or [fe80::1:2:3:4]", "no seat at * or [*]"),
    ],
)
def test_parts_that_differ_each_time_are_generalised(line: str, text: str) -> None:
    assert text in generalised(line)
