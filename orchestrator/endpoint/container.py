"""The state of a node's container by its runtime, and why no program starts in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ContainerEnded, NodeError
from orchestrator.portable.checks.container_state import ContainerState
from orchestrator.transports.base import ChannelClosed, Transport
from orchestrator.transports.container import APPTAINER, Container, ContainerImage, ContainerTransport

ANSWER_S = 20.0  # a daemon that starts or removes containers answers late
KILLED = 137
# The error messages of docker 20 to 28, podman 4 and 5, apptainer 1 and sudo 1.9.
_SUDO = re.compile(r"sudo: .*(?:password is required|not allowed|not in the sudoers)")
_DENIED = re.compile(r"permission denied.*(?:daemon|docker\.sock|socket)", re.IGNORECASE)
_NO_DAEMON = re.compile(
    r"Cannot connect to the (?:Docker daemon|Podman)|Is the docker daemon running|failed to connect to the docker API"
)
_ABSENT = re.compile(r"no such (?:container|object)|no container with name|no instance found", re.IGNORECASE)
_NO_CLIENT = (126, 127)
_NO_IMAGE = re.compile(
    r"Unable to find image|pull access denied|manifest (?:for \S+ not found|unknown)|no such image|short-name|initializing source|reading manifest",
    re.IGNORECASE,
)
_NO_TOOLKIT = re.compile(r"could not select device driver|unresolvable CDI devices|nvidia-container-cli", re.IGNORECASE)
_NOT_CREATED = re.compile(r"^(?:docker|Error|podman|mkdir): (.+)|^(unknown flag.+|invalid argument.+)", re.MULTILINE)
_ENDED = re.compile(r"is not running|No such container", re.IGNORECASE)  # since it was found running
_DEVICE_FILES = {"cuda": r"^nvidia\d+$", "gcu": r"^gcu\d+$"}


def container_state(transport: ContainerTransport) -> ContainerState:
    """
    Query the runtime on the node.

    Raises:
        NodeError: it cannot be queried, or has no such container; the hint is what helps.
    """
    name = transport.container
    status, printed, errors = output_on_node(transport, name.inspect())
    if status != 0:
        raise _refusal(transport.node, name, status, errors)
    try:
        answer = json.loads(printed)
        if name.runtime != APPTAINER:
            return _state(name, answer[0], _host_cards(transport))
        if any(entry.get("instance") == name.name for entry in answer["instances"]):
            return ContainerState(" ".join(name.client), name.name, "running", host_cards=_host_cards(transport))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise NodeError(transport.node, f"{name}: the answer of {name.runtime} cannot be read: {error}") from error
    raise _absent(transport.node, name)


def _state(name: Container, inspected: Mapping[str, Any], host_cards: Mapping[str, int]) -> ContainerState:
    """From an entry of `docker container inspect` or `podman container inspect`, of which any key may be missing."""
    state, host, config = (inspected.get(key) or {} for key in ("State", "HostConfig", "Config"))
    found = [mount for mount in inspected.get("Mounts") or () if mount.get("Destination")]
    mounts = sorted(found, key=lambda mount: str(mount["Destination"]))
    return ContainerState(
        " ".join(name.client),
        name.name,
        "paused" if state.get("Paused") else str(state.get("Status", "")),
        exit_code=int(state.get("ExitCode") or 0),
        is_oom=bool(state.get("OOMKilled")),
        image=str(config.get("Image") or inspected.get("ImageName") or inspected.get("Image", "")),
        image_id=str(inspected.get("Image", "")).removeprefix("sha256:"),
        network=str(host.get("NetworkMode", "")),
        mounts=tuple(str(mount["Destination"]) for mount in mounts),
        options=_options(host, config, mounts),
        host_cards=host_cards,
        is_of_image=isinstance(name, ContainerImage),
    )


def _host_cards(transport: ContainerTransport) -> dict[str, int]:
    """The device files of cards on the node itself; empty if it cannot be queried."""
    _, listed, _ = output_on_node(transport, ["ls", "/dev"])
    counts = {kind: len(re.findall(pattern, listed, re.MULTILINE)) for kind, pattern in _DEVICE_FILES.items()}
    return {kind: count for kind, count in counts.items() if count}


def _options(host: Mapping[str, Any], config: Mapping[str, Any], mounts: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The options of `run` that concern training, as the container has them."""
    options = ["--init"] if host.get("Init") else []
    options += ["--privileged"] if host.get("Privileged") else []
    options += [f"--network={host['NetworkMode']}"] if host.get("NetworkMode") not in (None, "", "default") else []
    created = " ".join(map(str, config.get("CreateCommand") or ()))  # podman 4 describes --ipc host as shareable
    options += ["--ipc=host"] if host.get("IpcMode") == "host" or re.search(r"--ipc[= ]host\b", created) else []
    options += [f"--pid={host['PidMode']}"] if host.get("PidMode") == "host" else []
    options += [f"--user={config['User']}"] if config.get("User") else []
    options += [f"--runtime={host['Runtime']}"] if host.get("Runtime") not in (None, "", "runc", "oci", "crun") else []
    for request in host.get("DeviceRequests") or ():
        options += ["--gpus=all"] if request.get("Count") == -1 else []
    options += [f"--device={device['PathOnHost']}" for device in host.get("Devices") or () if device.get("PathOnHost")]
    for limit in host.get("Ulimits") or ():
        resource = str(limit.get("Name", "")).lower().removeprefix("rlimit_")
        options.append(f"--ulimit={resource}={limit.get('Soft')}:{limit.get('Hard')}")
    for mount in mounts:
        source = mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")
        read_only = "" if mount.get("RW", True) else ":ro"
        options.append(f"--volume={source}:{mount['Destination']}{read_only}")
    return tuple(options)


def container_failure(transport: ContainerTransport, errors: str) -> NodeError | None:
    """
    Why no program starts in the container; None if it runs, so that the program itself is the cause.

    Args:
        errors: the end of the standard error of the attempt.
    """
    name = transport.container
    if isinstance(name, ContainerImage) and (failure := _not_created(transport.node, name, errors)):
        return failure
    try:
        state = container_state(transport)
    except NodeError as error:
        return error
    return None if state.status == "running" else not_running(transport.node, name, state)


def _not_created(node: str, name: ContainerImage, errors: str) -> NodeError | None:
    """The error of a container that could not be created of an image; None if that is not the cause."""
    client = " ".join(name.client)
    if any(pattern.search(errors) for pattern in (_SUDO, _DENIED, _NO_DAEMON, _ENDED)):
        return None
    if _NO_IMAGE.search(errors):
        hint = f"orch image push {name.image} --nodes {node}: sends it from this machine; or on {node}: {client} pull {name.image}"
        return NodeError(node, f"{name.runtime} has no image {name.image}, and cannot pull it", hint=hint)
    if _NO_TOOLKIT.search(errors):
        hint = (
            f"on {node}: install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime={name.runtime}"
        )
        return NodeError(node, f"{name.runtime} cannot give cards to containers", hint=hint)
    if cause := _NOT_CREATED.search(errors):
        hint = "correct image, mounts and options of container: in the inventory"
        return NodeError(node, f"{name} cannot be created: {cause[1] or cause[2]}", hint=hint)
    return None


def not_running(node: str, name: Container, state: ContainerState) -> NodeError:
    """The error for a container that exists and does not run programs."""
    client = " ".join(name.client)
    if state.status == "paused":
        hint = f"on {node}: {client} unpause {name.name}"
        return NodeError(node, f"{name} is paused, so nothing in it runs", hint=hint)
    if state.status == "restarting":
        hint = f"on {node}: {client} logs --tail 20 {name.name}: shows why its first process ends"
        return NodeError(node, f"{name} is restarting: its first process ends again and again", hint=hint)
    if state.status == "created":
        reason = "it was never started"
    else:
        killed = " (SIGKILL: killed by a user, `stop` or for lack of memory)" if state.exit_code == KILLED else ""
        reason = f"it ended with exit code {state.exit_code}{' for lack of memory' if state.is_oom else killed}"
    return ContainerEnded(node, f"{name} is not running: {reason}", hint=f"on {node}: {client} start {name.name}")


def _refusal(node: str, name: Container, status: int | None, errors: str) -> NodeError:
    if _ABSENT.search(errors):
        return _absent(node, name)
    if failure := client_failure(node, name.client, status, errors):
        return failure
    last = (errors.strip().splitlines() or [f"exit status {status}"])[-1]
    hint = f"see what `{' '.join(name.client)} container inspect {name.name}` prints on {node}"
    return NodeError(node, f"{name}: {last}", hint=hint)


def client_failure(node: str, client: Sequence[str], status: int | None, errors: str) -> NodeError | None:
    """The error of a runtime that is missing, not allowed, or whose daemon does not run; None for another cause."""
    runtime, has_sudo = client[-1], len(client) > 1
    if _SUDO.search(errors):
        reason = f"sudo starts no {runtime} without a password"
        hint = (
            f"allow it in sudoers: USER ALL=(root) NOPASSWD: /usr/bin/{runtime}; or delete sudo: true, "
            "as a member of the group docker"
        )
    elif status in _NO_CLIENT and has_sudo and "sudo" in errors:
        reason, hint = "no sudo on the PATH of the node's login shell", "delete sudo: true in container:"
    elif status in _NO_CLIENT:
        reason = f"no {runtime}: it is not on the PATH of the node's login shell"
        hint = "set runtime: in container: to docker, podman or apptainer, whichever the node has, or install it"
    elif _DENIED.search(errors):
        reason = "this user may not use the Docker daemon"
        hint = "sudo usermod -aG docker USER on the node, then log in again; or set sudo: true in container:"
    elif _NO_DAEMON.search(errors):
        reason, hint = f"the daemon of {runtime} does not run", "on the node: sudo systemctl start docker"
    else:
        return None
    return NodeError(node, reason, hint=hint)


def _absent(node: str, name: Container) -> ContainerEnded:
    client = " ".join(name.client)
    listed = "instance list" if name.runtime == APPTAINER else "ps --all"
    return ContainerEnded(node, f"there is no {name}", hint=f"on {node}: {client} {listed}: shows those that exist")


def output_on_node(transport: ContainerTransport, argv: Sequence[str]) -> tuple[int | None, str, str]:
    """Run a command on the node itself: exit status, stdout, stderr."""
    return run_client(transport.outer, transport.container.client, argv, answer_s=ANSWER_S)


def run_client(
    transport: Transport, client: Sequence[str], argv: Sequence[str], *, answer_s: float
) -> tuple[int | None, str, str]:
    """
    Run a command of a runtime on a node: exit status, stdout, stderr.

    Args:
        client: the runtime's client, for the error of one that is silent for `answer_s`.
    """
    data = bytearray()
    try:
        channel = transport.open(argv)
        try:
            while True:
                data += channel.read_some(timeout_s=answer_s)
        finally:
            channel.close()
    except ChannelClosed as closed:
        return closed.exit_status, data.decode("utf-8", "replace"), closed.stderr
    except TimeoutError as error:
        hint = f"on {transport.node}: {' '.join(client)} info"
        raise NodeError(transport.node, f"{client[-1]} does not answer for {answer_s:g} s", hint=hint) from error
