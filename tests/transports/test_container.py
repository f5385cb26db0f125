"""Commands that start programs in a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.transports.container import ContainerImage, ContainerName


@pytest.mark.parametrize(
    ("settings", "begin"),
    [
        ({"runtime": "docker", "name": "c0"}, ["docker", "exec", "-i", "c0"]),
        ({"runtime": "docker", "name": "c0", "user": "1000:100"}, ["docker", "exec", "-i", "--user", "1000:100", "c0"]),
        ({"runtime": "podman", "name": "c0", "sudo": True}, ["sudo", "-n", "podman", "exec", "-i", "c0"]),
        ({"runtime": "apptainer", "name": "c0"}, ["apptainer", "exec", "instance://c0"]),
        ({"runtime": "docker", "name": "c0", "field of a later version": 1}, ["docker", "exec", "-i", "c0"]),
    ],
)
def test_program_starts_by_exec_of_the_runtime(settings: dict[str, Any], begin: list[str]) -> None:
    container = ContainerName.of(settings)
    assert container.inside(["python3", "-c", "x y"]) == [*begin, "python3", "-c", "x y"]


def test_home_folder_is_that_in_the_container() -> None:
    *begin, shell, option, script, name, program, argument = ContainerName("docker", "c0").inside(
        ["~/bin/python", "-V"]
    )
    assert begin == ["docker", "exec", "-i", "c0"]
    assert (shell, option, name, program, argument) == ("sh", "-c", "sh", "~/bin/python", "-V")
    assert "$HOME" in script
    assert "~/bin/python" not in script


def test_container_of_an_image_is_entered_once_it_runs_and_created_before(tmp_path: Path) -> None:
    """A client that records its words: it knows no container until it has created one."""
    client = tmp_path / "docker"
    client.write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "$word" >>"$LOG"; done; echo >>"$LOG"\n'
        'case $1 in container) [ -e "$LOG.made" ] && echo true;; run) touch "$LOG.made"; echo id;; esac\n'
    )
    client.chmod(0o755)
    settings = {
        "runtime": "docker",
        "image": "train:1",
        "mounts": ["/data", "/a b:/c:ro"],
        "options": ["--shm-size=1g"],
    }
    container = ContainerImage.of(settings, "~/or'ch")
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        "HOME": str(tmp_path),
    }
    for _ in range(2):
        done = subprocess.run(container.inside(["python3", "-c", "x y"]), env=env, check=True, capture_output=True)
        assert done.stdout == b"", "only the program prints"
    calls = [call.split("\n") for call in (tmp_path / "log").read_text().strip().split("\n\n")]
    name = f"{container.name}-{os.getuid()}"  # users share no container
    inspect = ["container", "inspect", "--format", "{{.State.Running}}", name]
    enter = ["exec", "-i", name, "python3", "-c", "x y"]
    first, created, *rest = calls
    assert (first, rest) == (inspect, [enter, inspect, enter])
    assert f"--name={name}" in created or name in created
    assert created[:5] == ["run", "--detach", "--rm", "--init", "--network=host"]
    wanted = {
        f"--volume={tmp_path}/or'ch:{tmp_path}/or'ch",
        "--volume=/data:/data",
        "--volume=/a b:/c:ro",
        "--shm-size=1g",
    }
    assert wanted | {f"--user={os.getuid()}:{os.getgid()}", "--label=orch", f"--env=HOME={tmp_path}"} <= set(created)
    assert (tmp_path / "or'ch").is_dir()
    assert created[-4:-1] == ["--entrypoint=sh", "train:1", "-c"]


def test_name_that_stays_in_use_ends_the_attempt_with_the_runtimes_error(tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text(
        '#!/bin/sh\n[ "$1" != run ] || { echo "docker: the name is already in use by x" >&2; exit 125; }\n'
    )
    client.chmod(0o755)
    (tmp_path / "sleep").symlink_to("/bin/true")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    inside = ContainerImage("docker", "train:1", "/tmp").inside(["true"])
    done = subprocess.run(inside, env=env, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (125, "docker: the name is already in use by x\n")


def test_containers_of_other_settings_have_other_names() -> None:
    settings = {"runtime": "docker", "image": "train:1", "mounts": [], "options": []}
    names = {
        ContainerImage.of(settings, "/w").name,
        ContainerImage.of(settings, "/v").name,
        ContainerImage.of({**settings, "user": "1000"}, "/w").name,
        ContainerImage.of({**settings, "image": "train:2"}, "/w").name,
    }
    assert len(names) == 4
    assert ContainerImage.of({**settings, "sudo": True}, "/w").name in names, "another way to the same container"
