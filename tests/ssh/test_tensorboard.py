"""`orch tensorboard`: a page of the node's TensorBoard arrives here, and nothing is left on the node."""

from __future__ import annotations

import re
import shutil
import signal
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.node.endpoint.board import events_folder, port_in
from orchestrator.usecases.reports.tensorboard import _failure
from tests.grounds.cli import Orch
from tests.grounds.sshd import Farm
from tests.until import until

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan

pytest.importorskip("tensorboard")


@pytest.mark.slow
def test_tensorboard_of_the_head_node_is_shown_here_until_ctrl_c(farm: Farm, tmp_path: Path) -> None:
    farm.inventory(tmp_path, nodes=1)
    orch = Orch(tmp_path)
    orch("ssh-launch", "--no-check", "--", "true")
    assert "has no logs for TensorBoard" in orch("tensorboard", code=2).stderr
    orch("ssh-launch", "--no-check", "--", "sh", "-c", "mkdir -p runs/a && touch runs/a/events.out.tfevents.1.n0")
    with orch.start("tensorboard", "--port", "0") as started:
        assert started.stdout is not None
        line = started.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+/) shows .*/runs/a$", line)
        assert found, line
        with urllib.request.urlopen(found[1], timeout=30) as page:  # noqa: S310  an http address, see above
            assert b"TensorBoard" in page.read()
        assert "tensorboard" in " ".join(_commands(farm))
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 0
    until(lambda: "tensorboard" not in " ".join(_commands(farm)), awaited="TensorBoard to end")


def test_folders_and_port_of_tensorboard(tmp_path: Path) -> None:
    assert events_folder(str(tmp_path)) == ""
    for name in ("lightning_logs/version_0", "lightning_logs/version_1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.out.tfevents.1.n0").touch()
    assert events_folder(str(tmp_path)) == str(tmp_path / "lightning_logs")
    printed = "TensorBoard 2.21.0 at http://127.0.0.1:43211/ (Press CTRL+C to quit)"
    assert [port_in(printed), port_in("loading")] == [43211, 0]


def test_missing_tensorboard_has_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cast("LaunchPlan", SimpleNamespace(head=SimpleNamespace(name="n0", python="/opt/python")))
    error = "/opt/python: Error while finding module specification (ModuleNotFoundError: No module named 'tensorboard')"
    for here, more in ((None, ""), ("/bin/tensorboard", "orch cp r:. logs && tensorboard --logdir logs")):
        monkeypatch.setattr(shutil, "which", lambda _name, here=here: here)
        failure = _failure(plan, "r", ["/x"], error)
        assert str(failure) == "n0: /opt/python has no TensorBoard"
        assert failure.hint.startswith("on n0: /opt/python -m pip install tensorboard")
        assert failure.hint.endswith(more)
    assert "does not start: bad value" in str(_failure(plan, "r", ["/x"], "usage\nbad value"))


def _commands(farm: Farm) -> list[str]:
    return [
        Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid in farm.processes()
        if Path(f"/proc/{pid}").exists()
    ]
