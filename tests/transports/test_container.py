"""Commands that start programs in a container."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.transports.container import ContainerName


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
