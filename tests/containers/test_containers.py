"""Runs in containers that exist already, on real docker and podman: over SSH and on this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orchestrator.inventory.model import load
from orchestrator.progress import no_progress
from orchestrator.usecases.runs.gc import Limits, collect
from tests.grounds.cli import Orch
from tests.grounds.containers import IMAGE, Runtime, host_folders
from tests.grounds.inventories import write_inventory
from tests.grounds.python import node_python
from tests.grounds.sshd import Farm
from tests.until import until

pytestmark = pytest.mark.processes

# prints its container, and runs until the file END is there
PROGRAM = """
import os, pathlib, time
print(f"rank {os.environ['RANK']} below {pathlib.Path('/proc/1/comm').read_text().strip()}: {os.environ['WORD']}", flush=True)
while not pathlib.Path(os.environ["END"]).exists():
    time.sleep(0.05)
"""
WORD = "as it is: '$HOME' \"x\""
STRANGER = "sleep 5000"


class Nodes:
    """Two nodes of the farm, each with a container in which a stranger's process runs, and the orch that reaches them."""

    def __init__(self, farm: Farm, docker: Runtime, folder: Path) -> None:
        self.farm, self.docker, self.folder = farm, docker, folder
        self.end = farm.home / f"end-{folder.name}"
        self.orch = Orch(folder)
        for name in ("c0", "c1"):
            docker.start(name, folders=[farm.folder])
            docker("exec", "--detach", name, *STRANGER.split())
        self.write_inventory()
        (folder / "train.py").write_text(PROGRAM, "utf-8")

    def write_inventory(self, **container: object) -> None:
        """Write the inventory with these fields of `container:` in addition to the names."""
        path = self.farm.inventory(self.folder, nodes=2, env={"END": str(self.end), "WORD": WORD})
        yaml = YAML(typ="safe", pure=True)
        data = yaml.load(path)
        for index, node in enumerate(data["nodes"]):
            fields = {"name": f"c{index}", **container}
            node["container"] = {key: value for key, value in fields.items() if value is not None}
        yaml.dump(data, path)

    def use_image(self, image: str, **container: object) -> None:
        """Write the inventory for containers that are created from this image."""
        mounts = [str(self.farm.folder), *(f"{folder}:{folder}:ro" for folder in host_folders())]
        options = ["--ulimit=nofile=16384:16384"]
        self.write_inventory(name=None, image=image, **{"mounts": mounts, "options": options, **container})

    def strangers_alone(self) -> bool:
        """Nothing but the strangers is left in the containers."""
        return all(self.docker.processes(name) == [STRANGER] for name in ("c0", "c1"))

    def left(self) -> str:
        return str({name: self.docker.processes(name) for name in ("c0", "c1")})

    def launch(self, *options: str, code: int = 0, first: str = "sleep") -> str:
        """Start the program and return the run, whose ranks have printed their line with the name of the first process."""
        run = self.orch("ssh-launch", "--no-check", "--detach", *options, "--", "train.py", code=code).stdout.strip()
        until(lambda: self.orch.printed(run).count(f"below {first}") >= 2, awaited="both ranks")
        return run


@pytest.fixture
def nodes(farm: Farm, docker: Runtime, tmp_path: Path) -> Iterator[Nodes]:
    with farm.restarted(SetEnv=_environment(farm, docker)):
        yield Nodes(farm, docker, tmp_path)
        (farm.home / f"end-{tmp_path.name}").touch()


def _environment(farm: Farm, docker: Runtime) -> str:
    home = [] if farm.is_own_account else [f"HOME={farm.home}"]
    return " ".join([*home, *(f"{name}={text}" for name, text in docker.env.items())])


def test_run_is_inside_the_containers_and_stop_leaves_the_strangers_alone(nodes: Nodes) -> None:
    run = nodes.launch()
    printed = nodes.orch.printed(run)
    assert [f"rank {rank} below sleep: {WORD}" in printed for rank in (0, 1)] == [True, True], printed
    assert nodes.orch.status(run)["state"] == "RUNNING"
    inside = nodes.orch("exec", "--", "cat", "/proc/1/comm").stdout.split()
    assert sorted(inside) == ["[n0]", "[n1]", "sleep", "sleep"]
    listed = nodes.orch("nodes").stderr
    assert "n0: inside docker container c0: software, disks," in listed
    outside = nodes.orch("exec", "--host", "--nodes", "n0", "--", "cat", "/proc/1/comm").stdout.split()
    assert outside == ["[n0]", Path("/proc/1/comm").read_text("utf-8").strip()]
    nodes.orch("stop", run)
    assert nodes.orch.status(run)["state"] == "STOPPED"
    until(nodes.strangers_alone, awaited=nodes.left)
    assert "below sleep" in nodes.orch("logs", run).stdout


@pytest.mark.extended
@pytest.mark.train
@pytest.mark.slow
def test_shared_trainer_trains_in_two_containers_after_the_checks(nodes: Nodes) -> None:
    done = nodes.orch("ssh-launch", "--skip", "nofile", "steps=2", timeout_s=280)
    assert "is DONE" in done.stderr
    assert nodes.orch.status()["state"] == "DONE"


def test_container_that_ends_fails_the_run_at_once_and_a_restart_waits_for_its_start(nodes: Nodes) -> None:
    run = nodes.launch("--max-retries", "1", "--wait-for-nodes", "60s")
    nodes.docker("kill", "c1")
    until(lambda: "restart-waits" in _events(nodes.orch, run), awaited=lambda: _events(nodes.orch, run))
    nodes.docker("start", "c1")
    until(lambda: nodes.orch.status(run)["attempt"] == 2, awaited="attempt 2")
    nodes.end.touch()
    until(lambda: nodes.orch.status(run)["state"] == "DONE", awaited=lambda: str(nodes.orch.status(run)))
    assert "docker container c1 is not running: it ended with exit code 137" in _events(nodes.orch, run)
    until(lambda: nodes.docker.processes("c1") == [], awaited=nodes.left)


def _events(orch: Orch, run: str) -> str:
    return (orch.home / "runs" / run / "events.jsonl").read_text("utf-8")


@pytest.mark.extended
def test_run_continues_without_the_supervisor_and_the_clients_of_exec(nodes: Nodes) -> None:
    run = nodes.launch()
    nodes.orch.kill_supervisor(run)
    until(lambda: not _clients(nodes.docker), awaited=lambda: f"the clients to end: {_clients(nodes.docker)}")
    assert nodes.orch.status(run)["state"] == "RUNNING"
    nodes.end.touch()
    until(lambda: nodes.orch.status(run)["state"] == "DONE", awaited=lambda: str(nodes.orch.status(run)))
    until(nodes.strangers_alone, awaited=nodes.left)


@pytest.mark.extended
def test_agent_that_is_killed_is_named_and_nothing_of_the_run_is_left(nodes: Nodes) -> None:
    run = nodes.launch()
    nodes.docker("exec", "c1", "kill", "-9", str(nodes.orch.agent_pid(run, "n1")))
    until(lambda: nodes.orch.status(run)["state"] == "FAILED", awaited=lambda: str(nodes.orch.status(run)))
    assert "the agent of orch on n1 was killed" in nodes.orch("status", run, code=1).stdout
    until(nodes.strangers_alone, awaited=nodes.left)


def _clients(docker: Runtime) -> list[str]:
    """The clients of `exec` that reach the containers of this daemon."""
    found = subprocess.run(["pgrep", "-af", "docker exec -i c[01] "], check=False, capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if "pgrep" not in line]


def test_each_reason_why_no_program_starts_is_named_with_what_helps(nodes: Nodes) -> None:
    def refused() -> str:
        return nodes.orch("ssh-launch", "--nodes", "n0", "--", "train.py", code=4).stderr

    nodes.docker("pause", "c0")
    assert "docker container c0 is paused" in (text := refused())
    assert "next: on n0: docker unpause c0" in text
    nodes.docker("unpause", "c0")
    nodes.docker("kill", "c0")
    assert "docker container c0 is not running: it ended with exit code 137" in (text := refused())
    assert "next: on n0: docker start c0" in text
    assert "docker container c0 is not running" in nodes.orch("exec", "--nodes", "n0", "--", "true", code=4).stderr
    check = nodes.orch("check", "--nodes", "n0", code=3).stdout
    assert "docker start c0" in check
    nodes.docker("rm", "c0")
    assert "there is no docker container c0" in (text := refused())
    assert "docker ps --all" in text
    nodes.write_inventory(sudo=True)
    assert "no sudo" in refused() or "sudo starts no docker without a password" in refused()
    nodes.write_inventory(runtime="apptainer")
    assert "no apptainer: it is not on the PATH of the node's login shell" in refused()


@pytest.mark.extended
def test_daemon_that_is_down_or_not_allowed_is_named(nodes: Nodes) -> None:
    socket = Path(nodes.docker.env["DOCKER_HOST"].removeprefix("unix://"))
    if nodes.farm.is_own_account:
        socket.chmod(0o600)
        text = nodes.orch("ssh-launch", "--", "train.py", code=4).stderr
        socket.chmod(0o666)
        assert "this user may not use the Docker daemon" in text
        assert "usermod -aG docker" in text
    hidden = socket.rename(socket.with_suffix(".hidden"))
    text = nodes.orch("ssh-launch", "--", "train.py", code=4).stderr
    hidden.rename(socket)
    assert "the daemon of docker does not run" in text


@pytest.mark.extended
def test_python_that_the_container_lacks_is_named_with_the_container(nodes: Nodes) -> None:
    path = nodes.folder / "inventory.yaml"
    path.write_text(path.read_text("utf-8").replace(str(nodes.farm.python), "/opt/none/python3"), "utf-8")
    text = nodes.orch("ssh-launch", "--nodes", "n0", "--", "train.py", code=4).stderr
    assert "no Python: /opt/none/python3 not found" in text
    assert "newer in the docker container c0" in text


def test_container_without_the_nodes_network_is_refused_and_the_line_in_the_hint_creates_the_right_one(
    nodes: Nodes,
) -> None:
    nodes.docker("rm", "--force", "c1")
    nodes.docker.start("c1", folders=[nodes.farm.folder], network="none")
    nodes.docker("exec", "c1", "touch", "/opt/installed-by-hand")
    text = nodes.orch("ssh-launch", "--skip", "nofile", "--", "train.py", code=3).stderr
    assert "docker container c1 has the network none, so ranks on other nodes cannot connect" in text
    line = next(line for line in text.splitlines() if "docker commit c1" in line).partition("next: ")[2]
    subprocess.run(["sh", "-ec", line], check=True, env={**os.environ, **nodes.docker.env}, capture_output=True)
    nodes.docker("exec", "c1", "test", "-e", "/opt/installed-by-hand")
    nodes.end.touch()
    nodes.orch("ssh-launch", "--skip", "nofile", "--", "train.py")
    nodes.docker("rm", "--force", "c1-before")


@pytest.mark.extended
def test_workdir_that_ends_with_the_container_is_warned_of(nodes: Nodes) -> None:
    path = nodes.folder / "inventory.yaml"
    for node in load(path).nodes:
        path.write_text(path.read_text("utf-8").replace(node.workdir, f"/var/tmp/{node.name}"), "utf-8")
    findings = nodes.orch("check", "--skip", "nofile", code=None).stdout
    assert "the workdir /var/tmp/n0 is in docker container c0 itself" in findings


def test_container_of_an_image_is_made_as_the_user_of_the_login_shows_its_runs_to_all_commands_and_ends_by_itself(
    nodes: Nodes,
) -> None:
    nodes.use_image(IMAGE)
    run = nodes.launch(first="docker-init")
    assert nodes.docker("ps", "--quiet", "--filter", "label=orch").split()
    assert (
        int(nodes.orch("exec", "--nodes", "n0", "--", "id", "-u").stdout.split()[-1]) == nodes.farm.home.stat().st_uid
    )
    elsewhere = Orch(nodes.folder / "elsewhere")  # without a record of the run
    elsewhere.cwd.mkdir()
    elsewhere("stop", run, "-i", "../inventory.yaml")  # the record here has no request to stop
    until(lambda: nodes.orch.status(run)["state"] == "FAILED", awaited=lambda: str(nodes.orch.status(run)))
    assert "below docker-init" in nodes.orch("logs", run).stdout
    output = nodes.orch.node_folder(run, "n0") / "rank-0.out"
    assert output.stat().st_uid == nodes.farm.home.stat().st_uid
    until(
        lambda: "orch-" not in nodes.docker("ps", "--all", "--format", "{{.Names}}"),
        deadline_s=100,
        awaited=lambda: nodes.docker("ps", "--all"),
    )


@pytest.mark.extended
def test_container_of_an_image_that_is_killed_is_made_once_more_for_the_next_attempt(nodes: Nodes) -> None:
    nodes.use_image(IMAGE)
    run = nodes.launch("--max-retries", "1", first="docker-init")
    nodes.docker("rm", "--force", *nodes.docker("ps", "--quiet", "--filter", "label=orch").split())
    until(lambda: nodes.orch.status(run)["attempt"] == 2, awaited=lambda: _events(nodes.orch, run))
    nodes.end.touch()
    until(lambda: nodes.orch.status(run)["state"] == "DONE", awaited=lambda: str(nodes.orch.status(run)))


def test_cards_that_a_run_in_another_container_of_the_node_holds_are_not_taken(nodes: Nodes) -> None:
    inventory = nodes.folder / "inventory.yaml"

    def use_options(*options: str) -> None:
        nodes.use_image(IMAGE, options=["--ulimit=nofile=16384:16384", *options])
        inventory.write_text(inventory.read_text("utf-8").replace("accelerator: cpu", "accelerator: cuda"), "utf-8")

    use_options()
    run = nodes.orch("ssh-launch", "--no-check", "--detach", "--nodes", "n0", "--", "train.py").stdout.strip()
    use_options("--env=OTHER=1")
    refused = nodes.orch("ssh-launch", "--no-check", "--nodes", "n1", "--", "true", code=3)
    assert f"n1: run {run} (farm) holds card 0 since" in refused.stderr
    nodes.orch("stop", run)
    nodes.orch("ssh-launch", "--no-check", "--nodes", "n1", "--", "true")


STRAYS = {  # by the name of the container: the command in it, and whether gc removes it
    "strays": ("ORCH_RUN_ID=big-20260101-010203-0abc setsid sleep 5000 &", True),
    "agent": ("ORCH_RUN_ID=big-20260101-010203-0abc setsid sleep 5000 2>/tmp/agent.log &", False),
    "entered": ("setsid sleep 5000 & ORCH_RUN_ID=big-20260101-010203-0abc setsid sleep 5000 & sleep 5000", False),
    "idle": ("true", False),
}


def test_gc_removes_containers_of_ended_runs_that_hold_strays_and_no_others(
    docker: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no record and no inventory any more, so that nothing else enters them."""
    names = {kind: f"orch-{kind}-{os.geteuid()}" for kind in STRAYS}
    foreign = [f"strays-{os.geteuid()}", f"orch-strays-{os.geteuid()}1"]
    for name in (*names.values(), *foreign):
        labels = [] if name == foreign[0] else ["--label=orch"]  # without the label, or of another user
        docker.start(name, "--init", *labels)
    for kind, (command, _) in STRAYS.items():
        docker("exec", "--detach", names[kind], "sh", "-c", command)
    for name in foreign:
        docker("exec", "--detach", name, "sh", "-c", STRAYS["strays"][0])
    docker.start("c0", folders=[tmp_path])
    for name, value in {**docker.env, "ORCH_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    base = {
        "transport": "local",
        "container": {"name": "c0"},
        "defaults": {"python": str(node_python(tmp_path / "python")), "workdir": str(tmp_path / "work")},
        "nodes": [{"name": "n0"}],
    }
    inventory = str(write_inventory(tmp_path / "inventory.yaml", base, {}))

    def cleared(*, dry_run: bool) -> list[tuple[str, str]]:
        found = collect(Limits(1e9, results=False, dry_run=dry_run), inventory, None, no_progress)
        found.raise_failures()
        entries = [entry for site in found.sites for entry in site.entries if entry["kind"] == "container"]
        return [(entry["name"], entry["action"]) for entry in entries]

    def running() -> set[str]:
        return {*docker("ps", "--format", "{{.Names}}").split()}

    before = running()
    until(
        lambda: all("sleep 5000" in str(docker.processes(name)) for name in (names["strays"], *foreign)),
        awaited="strays",
    )
    assert cleared(dry_run=False) == []  # they are younger than a minute
    monkeypatch.setattr("orchestrator.usecases.runs.gc.YOUNG_S", 0.0)
    expected = [(f"{names['strays']} with big-20260101-010203-0abc", "remove")]
    assert cleared(dry_run=True) == expected
    assert running() == before
    assert cleared(dry_run=False) == expected
    assert running() == before - {names["strays"]}


@pytest.mark.extended
def test_image_or_option_that_the_runtime_refuses_is_named(nodes: Nodes) -> None:
    nodes.use_image("no-such-image:1")
    text = nodes.orch("ssh-launch", "--", "train.py", code=4).stderr
    assert "docker has no image no-such-image:1, and cannot pull it" in text
    assert "orch image push no-such-image:1 --nodes" in text
    nodes.use_image(IMAGE)
    path = nodes.folder / "inventory.yaml"
    path.write_text(path.read_text("utf-8").replace(str(nodes.farm.python), "/opt/none/python3"), "utf-8")
    text = nodes.orch("ssh-launch", "--nodes", "n0", "--", "train.py", code=4).stderr
    assert f"newer in the docker container of {IMAGE}" in text
    socket = Path(nodes.docker.env["DOCKER_HOST"].removeprefix("unix://"))
    hidden = socket.rename(socket.with_suffix(".hidden"))
    text = nodes.orch("check", code=3).stdout
    hidden.rename(socket)
    assert "the daemon of docker does not run" in text
    nodes.use_image(IMAGE, options=["--no-such-option"])
    assert "cannot be created: unknown flag: --no-such-option" in nodes.orch("check", code=3).stdout
    nodes.use_image(IMAGE, mounts=["/no/such/folder:/usr:bad"])
    assert "not a mount" in nodes.orch("check", code=2).stderr


def test_podman_on_this_machine(podman: Runtime, tmp_path: Path) -> None:
    python = node_python(tmp_path / "python")
    podman.start("c0", folders=[tmp_path])
    base = {
        "name": "here",
        "transport": "local",
        "accelerator": "cpu",
        "container": {"name": "c0", "runtime": "podman"},
        "env": {"END": str(tmp_path / "end"), "WORD": WORD},
        "defaults": {"python": str(python), "workdir": str(tmp_path / "work")},
        "nodes": [{"name": "n0"}],
    }
    write_inventory(tmp_path / "inventory.yaml", base, {})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM, "utf-8")
    orch = Orch(tmp_path / "code", dict(podman.env))
    run = orch("ssh-launch", "-i", "../inventory.yaml", "--no-check", "--detach", "--", "train.py").stdout.strip()
    until(lambda: "below sleep" in orch.printed(run), awaited="the rank")
    orch("stop", run)
    until(lambda: podman.processes("c0") == [], awaited=lambda: str(podman.processes("c0")))
    podman("stop", "--time", "0", "c0")
    text = orch("ssh-launch", "-i", "../inventory.yaml", "--", "train.py", code=4).stderr
    assert "podman container c0 is not running" in text
    podman("rm", "c0")
    text = orch("ssh-launch", "-i", "../inventory.yaml", "--", "train.py", code=4).stderr
    assert "there is no podman container c0" in text


def test_job_of_slurm_does_not_enter_a_running_container(tmp_path: Path) -> None:
    base = {"name": "jobs", "slurm": {}, "container": {"name": "c0"}, "nodes": [{"name": "n0"}]}
    write_inventory(tmp_path / "inventory.yaml", base, {})
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    text = Orch(tmp_path)("submit", "--dry-run", "--", "train.py", code=2).stderr
    assert "n0: container: is entered over SSH, and a job of Slurm does not enter it" in text
    assert "slurm.container" in text


def test_login_enters_the_container_on_a_terminal(tmp_path: Path) -> None:
    base = {"name": "c", "ssh": {"config": "none"}, "container": {"name": "c0"}, "nodes": [{"name": "n0"}]}
    write_inventory(tmp_path / "inventory.yaml", base, {})
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n', "utf-8")
    ssh.chmod(0o755)
    orch = Orch(tmp_path, {"PATH": f"{ssh.parent}:{os.environ['PATH']}"})
    *_, address, command = orch("ssh", "n0").stdout.splitlines()
    assert address == "n0"
    assert shlex.split(command)[:4] == ["docker", "exec", "-it", "c0"]
    assert orch("ssh", "--host", "n0").stdout.splitlines()[-1] == "n0"


def test_files_are_put_into_the_containers(nodes: Nodes) -> None:
    (nodes.folder / "weights.bin").write_bytes(b"w" * 100_000)
    done = nodes.orch("put", "--to", "/work/models", "weights.bin")
    assert done.stdout == "n[0-1]: /work/models\n"
    for name in ("c0", "c1"):
        assert nodes.docker("exec", name, "cat", "/work/models/weights.bin") == "w" * 100_000
    assert not Path("/work/models").exists()
