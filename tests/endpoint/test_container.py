"""Errors of containers by the answers of their runtimes, as docker 20 and 28, podman 4, apptainer 1 and sudo 1.9 print them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from orchestrator.endpoint.container import container_failure, container_state
from orchestrator.errors import ContainerEnded
from orchestrator.transports.base import Channel, ChannelClosed, Transport
from orchestrator.transports.container import ContainerImage, ContainerName, ContainerTransport


class Answer:
    """A channel with this output and end; also the transport that opens it, with its commands."""

    node, remark, queued_s = "n0", "", 0.0

    def __init__(self, status: int | None, out: str = "", err: str = "") -> None:
        self._status, self._out, self._err = status, out.encode(), err
        self.commands: list[list[str]] = []

    def open(self, argv: Sequence[str]) -> Channel:
        self.commands.append(list(argv))
        if argv[0] == "ls":
            return cast("Channel", Answer(0, "null\nnvidia0\nnvidia1\nnvidiactl\ngcu0\n"))
        return cast("Channel", self)

    def read_some(self, *, timeout_s: float) -> bytes:
        assert timeout_s > 0
        data, self._out = self._out, b""
        if data:
            return data
        raise ChannelClosed(self._status, self._err)

    def close(self) -> None:
        """Nothing is open."""


def _transport(answer: Answer, **settings: Any) -> ContainerTransport:
    return ContainerTransport(
        cast("Transport", answer), ContainerName(**{"runtime": "docker", "name": "c0", **settings})
    )


@pytest.mark.parametrize(
    ("status", "err", "settings", "reason", "hint"),
    [
        (1, "Error: No such container: c0", {}, "there is no docker container c0", "docker ps --all"),
        (1, "Error response from daemon: No such container: c0", {}, "there is no docker container c0", "docker ps --all"),
        (125, "Error: inspecting object: no such container c0", {"runtime": "podman"}, "there is no podman container c0", "podman ps"),
        (255, "FATAL:   no instance found with name c0", {"runtime": "apptainer"}, "there is no apptainer", "apptainer instance list"),
        (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", {}, "does not run", "systemctl start docker"),
        (1, "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock", {}, "may not use", "usermod -aG docker"),
        (1, "Got permission denied while trying to connect to the Docker daemon socket", {}, "may not use", "usermod -aG docker"),
        (1, "sudo: a password is required", {"sudo": True}, "without a password", "NOPASSWD"),
        (127, "sh: 1: docker: not found", {}, "no docker", "runtime:"),
        (127, "sh: 1: sudo: not found", {"sudo": True}, "no sudo", "sudo: true"),
        (3, "something else\n", {}, "docker container c0: something else", "docker container inspect c0"),
    ],
)  # fmt: skip
def test_client_that_cannot_answer(status: int, err: str, settings: dict[str, Any], reason: str, hint: str) -> None:
    failure = container_failure(_transport(Answer(status, err=err), **settings), "")
    assert failure is not None
    assert reason in failure.reason
    assert hint in failure.hint


@pytest.mark.parametrize(
    ("state", "text", "is_ended"),
    [
        (
            {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
            "it ended with exit code 137 for lack of memory",
            True,
        ),
        ({"Status": "exited", "ExitCode": 137}, "exit code 137 (SIGKILL: ", True),
        ({"Status": "exited", "ExitCode": 1}, "it ended with exit code 1", True),
        ({"Status": "created"}, "it was never started", True),
        ({"Status": "running", "Paused": True}, "is paused", False),
        ({"Status": "restarting"}, "is restarting", False),
    ],
)
def test_container_that_runs_no_programs(state: dict[str, Any], text: str, *, is_ended: bool) -> None:
    failure = container_failure(_transport(Answer(0, json.dumps([{"State": state}]))), "")
    assert failure is not None
    assert text in failure.reason
    assert isinstance(failure, ContainerEnded) is is_ended


def test_state_of_a_container_with_all_options() -> None:
    inspected = {
        "Image": "sha256:b4ad80332c0b",
        "State": {"Status": "running", "Paused": False, "ExitCode": 0},
        "Config": {"Image": "train:1", "User": "1000"},
        "HostConfig": {
            "Init": True, "Privileged": True, "PidMode": "host", "NetworkMode": "host", "IpcMode": "host", "Runtime": "enflame",
            "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}],
            "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}],
            "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
        },
        "Mounts": [
            {"Type": "volume", "Name": "cache", "Source": "/var/lib/docker/volumes/cache/_data", "Destination": "/cache", "RW": True},
            {"Type": "bind", "Source": "/root/code", "Destination": "/workspace/code", "RW": False},
        ],
    }  # fmt: skip
    answer = Answer(0, json.dumps([inspected]))
    state = container_state(_transport(answer, sudo=True))
    assert answer.commands[0] == ["sudo", "-n", "docker", "container", "inspect", "c0"]
    assert (state.network, state.mounts, state.image_id) == ("host", ("/cache", "/workspace/code"), "b4ad80332c0b")
    assert state.host_cards == {"cuda": 2, "gcu": 1}
    assert state.options == (
        "--init", "--privileged", "--network=host", "--ipc=host", "--pid=host", "--user=1000", "--runtime=enflame", "--gpus=all",
        "--device=/dev/infiniband", "--ulimit=memlock=-1:-1", "--volume=cache:/cache", "--volume=/root/code:/workspace/code:ro",
    )  # fmt: skip


def test_ipc_of_the_host_is_kept_where_podman_describes_it_otherwise() -> None:
    command = ["podman", "run", "-d", "--ipc", "host", "train:1"]
    inspected = {
        "State": {"Status": "running"},
        "HostConfig": {"IpcMode": "shareable"},
        "Config": {"CreateCommand": command},
    }
    state = container_state(_transport(Answer(0, json.dumps([inspected])), runtime="podman"))
    assert state.options == ("--ipc=host",)
    assert not state.is_of_image


def test_container_of_an_image_is_found_by_the_uid_of_the_login() -> None:
    answer = Answer(0, json.dumps([{"State": {"Status": "running"}}]))
    image = ContainerImage("docker", "train:1", "~/orch")
    state = container_state(ContainerTransport(cast("Transport", answer), image))
    assert state.is_of_image
    assert answer.commands[0][:2] == ["sh", "-c"]
    assert answer.commands[0][-2:] == ["docker", image.name]


def test_instance_of_apptainer() -> None:
    listed = {"instances": [{"instance": "c0", "pid": 12, "img": "/images/train.sif"}]}
    assert container_failure(_transport(Answer(0, json.dumps(listed)), runtime="apptainer"), "") is None
    failure = container_failure(_transport(Answer(0, '{"instances": []}'), runtime="apptainer"), "")
    assert failure is not None
    assert "there is no apptainer container c0" in failure.reason


@pytest.mark.parametrize("printed", ["", "[]", "{}", "[1]", "no JSON"])
def test_answer_that_cannot_be_read_is_no_traceback(printed: str) -> None:
    failure = container_failure(_transport(Answer(0, printed)), "")
    assert failure is not None
    assert "cannot be read" in failure.reason
