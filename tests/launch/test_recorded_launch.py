"""The launch of a run, read from its record by a process that supervises it again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.code import bundle as bundles
from orchestrator.code.files import Code
from orchestrator.errors import LaunchError, OrchError
from orchestrator.inventory import model as inventories
from orchestrator.inventory.redaction import REDACTED
from orchestrator.launch.planned import Planned
from orchestrator.launch.recorded_launch import recorded_launch
from orchestrator.launch.start import keep_code, record_plan
from orchestrator.plan.make import make_plan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.store import Store
from orchestrator.run import Program, Request, RunRecord, RunState
from orchestrator.version import __version__
from tests.grounds.cli import Orch
from tests.grounds.components import unavailable
from tests.grounds.mounts import in_own_mounts, mount

INVENTORY = """\
name: here
accelerator: cpu
devices: 1
defaults: {env_file: secret.env, env: {A: "1", NCCL_DEBUG: INFO}}
nodes:
  - {name: n0, env: {A: "0"}}
  - {name: s0, tags: [spare]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with a secret, a spare node and code, which was launched in another folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "inventory.yaml").write_text(INVENTORY)
    _write_secret("s3cret")
    (work / "train.py").write_text("print(1)\n")
    (work / "link.py").symlink_to("train.py")
    inventory = inventories.load(Path("inventory.yaml"))
    bundle = bundles.build(trainer=False, code=Code(work, "", ("link.py", "train.py")))
    request = Request("ssh", Program("python", ("train.py",), ""), max_retries=2)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle=bundle.digest)
    versions = {"orch": __version__}
    made_from = {"name": "here", "file": inventory.file, "digest": inventory.digest}
    record = RunRecord(plan.run_id, "ssh", RunState.PENDING, "2999-01-02T03:04:05+00:00", {}, made_from, {}, versions)
    folder = Store(tmp_path / "home").create(record)
    planned = Planned(plan, bundle, record, (), (), cast("Any", None), {})
    record_plan(folder, planned)
    assert keep_code(folder, planned) == ()
    folder.write_plan(resolve(plan, Facts(defaults={"n0": {"NCCL_SOCKET_IFNAME": "eth0"}})))
    monkeypatch.chdir(tmp_path)
    return folder


def _write_secret(value: str) -> None:
    file = Path("secret.env")
    file.write_text(f"HF_TOKEN={value}\n")
    file.chmod(0o600)


def _kept(folder: RunFolder) -> Planned:
    return recorded_launch(folder, cast("Any", None))


def test_nodes_get_the_variables_of_the_launch(folder: RunFolder) -> None:
    planned = _kept(folder)
    [n0], [s0] = planned.plan.nodes, planned.plan.spares
    assert n0.env == {"A": "0", "NCCL_DEBUG": "INFO", "HF_TOKEN": "s3cret"}
    assert n0.defaults == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert s0.env == {"A": "1", "NCCL_DEBUG": "INFO", "HF_TOKEN": "s3cret"}
    assert s0.secrets == {"HF_TOKEN"}
    assert planned.warnings == ()
    assert not any("s3cret" in file.read_text() for file in folder.path.rglob("*.json"))


def test_code_is_that_of_the_launch(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "work" / "train.py").write_text("print(2)\n")
    bundle = _kept(folder).bundle
    assert bundle.digest == folder.read_plan().bundle
    assert bundle.archive[0] == folder.bundle_file.read_bytes()
    assert bundle.code_size_bytes == len("print(1)\n")


def test_changed_files_with_secrets_are_named(folder: RunFolder, tmp_path: Path) -> None:
    with (tmp_path / "work" / "inventory.yaml").open("a") as file:
        file.write("# changed\n")
    folder.update(created="2001-01-02T03:04:05+00:00")
    os.chdir(tmp_path / "work")
    _write_secret("other")
    planned = _kept(folder)
    assert "other" in planned.plan.nodes[0].env.values()
    [warning] = planned.warnings
    work = tmp_path / "work"
    assert warning == (
        f"{work}/secret.env and {work}/inventory.yaml have changed since the launch: a restart gives the ranks "
        "the present values of HF_TOKEN"
    )


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda folder: folder.bundle_file.unlink(), "its code cannot be read: "),
        (lambda folder: folder.bundle_file.write_bytes(b"PK"), "is damaged: "),
        (lambda folder: (folder.plan_folder / "environment.json").unlink(), "its variables are not in the record"),
        (
            lambda folder: folder.update(versions={"orch": "0.1"}),
            f"orch 0.1 launched it, and this is orch {__version__}",
        ),
        (lambda _: Path("work/secret.env").unlink(), "the values of HF_TOKEN cannot be read: "),
        (lambda _: Path("work/inventory.yaml").unlink(), "the values of HF_TOKEN cannot be read: "),
        (lambda _: Path("work/secret.env").write_text(""), "does not set HF_TOKEN for n0 any more"),
    ],
)
def test_missing_part_is_named(folder: RunFolder, broken: Any, reason: str) -> None:
    broken(folder)
    with pytest.raises(OrchError) as caught:
        _kept(folder)
    assert reason in str(caught.value)


def test_value_that_looks_hidden_is_not_used(folder: RunFolder) -> None:
    """A run without secrets needs no inventory."""
    plan = folder.read_plan()
    folder.write_plan(
        replace(
            plan,
            nodes=tuple(replace(node, env={"A": "1"}) for node in plan.nodes),
            spares=tuple(replace(node, env={"A": REDACTED}) for node in plan.spares),
        )
    )
    Path("work/inventory.yaml").unlink()
    with pytest.raises(LaunchError, match="the values of A cannot be read"):
        _kept(folder)


@pytest.mark.parametrize("state", [RunState.DONE, RunState.FAILED, RunState.STOPPED])
def test_code_is_kept_until_the_run_ends(folder: RunFolder, state: RunState) -> None:
    folder.update(state=RunState.RUNNING)
    folder.update(state=RunState.LOST)  # it may still be running
    assert folder.bundle_file.exists()
    folder.update(state=state)
    assert not folder.bundle_file.exists()


@pytest.mark.processes
def test_launch_without_space_for_the_code_in_the_record_continues_with_a_warning(tmp_path: Path) -> None:
    if os.getuid() != 0:
        unavailable("mounting a file system needs root")
    orch = Orch(tmp_path)
    node = f"{{name: n0, workdir: {tmp_path}/.work, python: {sys.executable}}}"
    text = f"accelerator: cpu\ndevices: 1\ntransport: local\nrestart: {{max_retries: 1}}\nnodes: [{node}]\n"
    (tmp_path / "inventory.yaml").write_text(text)
    (tmp_path / "train.sh").write_text("exit 0\n")
    (tmp_path / "weights").write_bytes(os.urandom(1 << 20))
    orch.home.mkdir()

    def launch() -> tuple[str, bool, dict[str, Any]]:
        mount(orch.home, size="512k")
        done = orch("ssh-launch", "--no-check", "--", "sh", "train.sh")
        status = orch.status()
        return done.stderr, RunFolder(orch.home / "runs" / status["id"]).bundle_file.exists(), status

    printed, is_kept, status = in_own_mounts(launch)
    assert "warning: the run cannot be restarted after `orch attach`, because its code cannot be kept: " in printed
    assert "bundle.tar.gz: No space left on device" in printed
    assert (is_kept, status["state"]) == (False, "DONE")


def test_code_in_a_damaged_archive_is_refused_or_whole(folder: RunFolder) -> None:
    archive, named = folder.bundle_file.read_bytes(), 0
    for position in range(10, len(archive), len(archive) // 60):  # after the header of gzip
        folder.bundle_file.write_bytes(archive[:position] + bytes([archive[position] ^ 0x55]) + archive[position + 1 :])
        try:  # the padding at the end may be damaged
            assert _kept(folder).bundle.digest == folder.read_plan().bundle
        except LaunchError as error:
            assert "its code cannot be read: " in str(error)  # noqa: PT017  not at every position
            named += 1
    assert named > 30
