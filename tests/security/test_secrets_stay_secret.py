"""During a run a secret is in node.sh (0600) on the nodes and in the ranks' environment, and nowhere else."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.errors import InventoryError
from orchestrator.inventory import model as inventories
from tests.grounds.cli import Orch
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.until import until

# Waits with the secrets in its environment; prints none of them.
PROGRAM = 'test -n "$PLAIN$HF_TOKEN"; echo up; while [ ! -e GATE ]; do sleep 0.05; done'


@dataclass(frozen=True, slots=True)
class Canaries:
    """Two random secrets: one in an env_file under a harmless name, one in the inventory under a name that counts as secret."""

    from_file: str
    by_name: str

    def within(self, data: bytes) -> bool:
        """True if the data holds the beginning of a canary."""
        return any(canary.encode()[:16] in data for canary in (self.from_file, self.by_name))

    def files_below(self, root: Path) -> list[Path]:
        """All files that hold a canary."""
        return [path for path in root.rglob("*") if path.is_file() and self.within(path.read_bytes())]


@pytest.fixture
def canaries() -> Canaries:
    return Canaries(f"canary-{secrets.token_hex(20)}", f"canary-{secrets.token_hex(20)}")


def _keep_in_git(folder: Path, canaries: Canaries) -> None:
    """Commit the inventory and its env_file and change both: they would be in a diff, and tracked files are bundled."""
    inventory, env_file = folder / "inventory.yaml", folder / "team.env"
    text = inventory.read_text("utf-8")
    env_file.touch(mode=0o600)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for commit in (True, False):
        env_file.write_text(f"PLAIN={canaries.from_file}{'-old' if commit else ''}\n")
        tokens = f"env: {{HF_TOKEN: {canaries.by_name}{'-old' if commit else ''}}}\n"
        inventory.write_text(f"env_file: team.env\n{tokens}{text}", "utf-8")
        if commit:
            for words in (["init", "-q"], ["add", "inventory.yaml", "team.env"], [*identity, "commit", "-qm", "first"]):
                subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    (folder / ".gitignore").write_text(".orch-home\n")


@contextlib.contextmanager
def _watch_command_lines(canaries: Canaries) -> Iterator[list[bytes]]:
    """Poll the command lines of all new processes of this machine; collect those with a canary."""
    found: list[bytes] = []
    finished = threading.Event()
    before = set(Path("/proc").iterdir())

    def watch() -> None:
        while not finished.wait(0.01):
            for process in set(Path("/proc").iterdir()) - before:
                with contextlib.suppress(OSError):  # it has ended
                    line = (process / "cmdline").read_bytes()
                    found.extend([line] if canaries.within(line) else [])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        finished.set()
        watcher.join()


def _holders_of_environment(canaries: Canaries) -> set[int]:
    """The processes with a canary in their environment, as far as it is readable."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if canaries.within(path.read_bytes()):
                found.add(int(path.parent.name))
    return found


ABOUT_RUNS = (("status", "--json"), ("status",), ("list", "--json"), ("logs",), ("logs", "--json"))
ABOUT_THE_INVENTORY = (("env",), ("env", "--json"), ("inventory", "show"), ("inventory", "validate"))


def _printed(orch: Orch, *commands: tuple[str, ...]) -> str:
    output = ""
    for words in commands:
        done = orch(*words)
        output += done.stdout + done.stderr
    return output


def _check_nowhere_else(orch: Orch, canaries: Canaries, root: Path) -> None:
    scripts = canaries.files_below(root)
    assert scripts
    assert {path.name for path in scripts} == {"node.sh"}
    assert {path.stat().st_mode & 0o777 for path in scripts} == {0o600}
    assert canaries.files_below(orch.home) == []


def test_secret_is_nowhere_else_during_and_after_a_run_over_ssh(farm: Farm, tmp_path: Path, canaries: Canaries) -> None:
    farm.inventory(tmp_path, nodes=2)
    _keep_in_git(tmp_path, canaries)
    orch, gate = Orch(tmp_path), farm.home / "gate"
    with _watch_command_lines(canaries) as command_lines:
        run_id = orch("ssh-launch", "--detach", "--", "sh", "-c", PROGRAM.replace("GATE", str(gate))).stdout.strip()
        until(lambda: orch.printed(run_id).splitlines().count("up") == 2, awaited="both ranks")
        holders, node_processes = _holders_of_environment(canaries), farm.processes()
        assert holders & node_processes.keys()
        assert [pid for pid in holders if pid not in node_processes and Path(f"/proc/{pid}").exists()] == []
        output = _printed(orch, *ABOUT_RUNS, *ABOUT_THE_INVENTORY, ("ssh-launch", "--dry-run", "--", "true"))
        _check_nowhere_else(orch, canaries, farm.home)
        gate.touch()
        until(lambda: orch.recorded(run_id) == "DONE", awaited="the end")
    gate.unlink()
    output += _printed(orch, *ABOUT_RUNS)
    assert not canaries.within(output.encode())
    assert "HF_TOKEN='<redacted>'" in output
    assert "PLAIN='<redacted>'" in output
    assert command_lines == []
    _check_nowhere_else(orch, canaries, farm.home)


@pytest.mark.extended
def test_secret_is_nowhere_else_in_slurm(cluster: Cluster, tmp_path: Path, canaries: Canaries) -> None:
    """Neither in the batch script, nor in the files and answers of the controller and the daemons."""
    cluster.inventory(tmp_path)
    _keep_in_git(tmp_path, canaries)
    orch, gate = Orch(tmp_path, env=cluster.env), tmp_path / "gate"
    with _watch_command_lines(canaries) as command_lines:
        words = ("--detach", "-j", "2x1", "--", "sh", "-c", PROGRAM.replace("GATE", str(gate)))
        run_id = orch("submit", *words).stdout.strip()
        until(lambda: orch.printed(run_id).splitlines().count("up") == 2, awaited="both ranks")
        job = str(orch.status(run_id)["slurm_job"])
        shown = subprocess.run(
            ["scontrol", "show", "job", job], env=cluster.env, capture_output=True, check=True
        ).stdout
        assert job.encode() in shown
        assert not canaries.within(shown)
        output = _printed(orch, *ABOUT_RUNS, *ABOUT_THE_INVENTORY, ("submit", "--dry-run", "--", "true"))
        _check_nowhere_else(orch, canaries, cluster.folder)
        gate.touch()
        cluster.wait_for(orch, run_id, "DONE")
    assert not canaries.within(output.encode())
    assert command_lines == []
    _check_nowhere_else(orch, canaries, cluster.folder)


@pytest.mark.parametrize(
    "wrong",
    [
        "{by_name}",  # a line without =
        "{by_name}=x",  # no name
        "export X={by_name}",
        "X={by_name}\nX={by_name}",
        "RANK={by_name}",
        "X={by_name}\r",
        "=\n{by_name}",
    ],
)
def test_mistake_in_an_env_file_is_reported_without_its_text(wrong: str, tmp_path: Path, canaries: Canaries) -> None:
    (tmp_path / "inventory.yaml").write_text("env_file: .env\ntransport: local\nnodes: [{name: n0}]\n")
    (tmp_path / ".env").touch(mode=0o600)
    (tmp_path / ".env").write_text(wrong.format(by_name=canaries.by_name))
    with pytest.raises(InventoryError) as caught:
        inventories.load(tmp_path / "inventory.yaml")
    assert f"inventory.yaml:1: env_file: {tmp_path}/.env: line " in str(caught.value)
    assert not canaries.within(f"{caught.value!r} {caught.value} {caught.value.hint}".encode())


@pytest.mark.processes
def test_every_command_reports_a_mistake_in_an_env_file_without_its_text(tmp_path: Path, canaries: Canaries) -> None:
    (tmp_path / "inventory.yaml").write_text("env_file: .env\ntransport: local\nnodes: [{name: n0}]\n")
    (tmp_path / ".env").touch(mode=0o600)
    (tmp_path / ".env").write_text(canaries.by_name)
    orch = Orch(tmp_path)
    for words in (("inventory", "validate"), ("env",), ("ssh-launch", "--dry-run", "--", "true")):
        done = orch(*words, code=2)
        assert f"inventory.yaml:1: env_file: {tmp_path}/.env: line " in done.stderr
        assert not canaries.within((done.stdout + done.stderr).encode())


@pytest.mark.parametrize("field", ["HF_TOKEN: [{}]", "HF_TOKEN: !tag {}", 'X: "{}\\0"', "HF_TOKEN: {{a: {}}}"])
def test_mistake_in_env_is_reported_without_its_text(field: str, tmp_path: Path, canaries: Canaries) -> None:
    text = "env: {" + field.format(canaries.by_name) + "}\nnodes: [{name: n0}]\n"
    (tmp_path / "inventory.yaml").write_text(text)
    with pytest.raises(InventoryError) as caught:
        inventories.load(tmp_path / "inventory.yaml")
    assert not canaries.within(f"{caught.value!r} {caught.value} {caught.value.hint}".encode())


def test_no_text_form_of_an_inventory_holds_its_secrets(tmp_path: Path, canaries: Canaries) -> None:
    """Logs, debuggers and exceptions show repr(); records store model_dump()."""
    (tmp_path / "inventory.yaml").write_text("env_file: .env\nnodes: [{name: n0, env_file: .env}]\n")
    (tmp_path / ".env").touch(mode=0o600)
    (tmp_path / ".env").write_text(f"X={canaries.from_file}\n")
    inventory = inventories.load(tmp_path / "inventory.yaml")
    assert inventory.environment(inventory.nodes[0])["X"] == canaries.from_file
    output = f"{inventory!r} {inventory} {inventory.model_dump()} {inventory.model_dump_json()}"
    assert not canaries.within(output.encode())
