"""
A warm parent: it has imported the modules of a training, and is forked into the ranks of the next attempt. No torch here.

The agent of the orchestrator starts it as it starts a rank, by the same command in the same folder and environment, with VARIABLE in
addition: the number of a socket. Over it, the parent reports its state, `{"reason": TEXT}`, empty if it can be forked. Then
each request starts a rank, whose pid is the answer. A request is its size in SIZE_BYTES, then JSON; three descriptors come
with it: standard output, standard error and a pipe that ends when the rank may run. Only then is the agent its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional, Tuple

if TYPE_CHECKING:
    import socket

VARIABLE = "ORCH_WARM"
MODULES = ("trainer.run_rank", "torch._dynamo")  # an optimizer imports the latter, and it the sharding of torch
STANDARD = (0, 1, 2)
SIZE_BYTES = 8  # of the size of a request, most significant byte first
DESCRIPTORS_BYTES = 256  # enough for three descriptors with their header
PR_SET_PDEATHSIG, SIGKILL = 1, 9

Json = Dict[str, Any]
Changes = Dict[bytes, Tuple[Optional[bytes], Optional[bytes]]]
"""The former and the present values of variables by their names; None for a variable that is not set."""


def become_rank(descriptor: int) -> None:
    """Import the modules and fork ranks on request; returns in every rank, which then continues as if just started."""
    import socket  # a rank that is started by exec does not need it

    with socket.socket(fileno=descriptor) as link:
        name = _rename("orch-warm")
        for module in MODULES:
            with contextlib.suppress(ModuleNotFoundError):  # torch < 2 has no compiler
                importlib.import_module(module)
        reason = reason_against_fork(descriptor)
        _send(link, {"reason": reason})
        if reason:
            _end()
        changes = _environment_changes()
        while True:
            request, descriptors = _receive(link)
            pid = os.fork()
            if pid == 0:
                break
            for number in descriptors:
                os.close(number)
            _send(link, {"pid": pid})
    _rename(name)
    _enter(request, descriptors, changes)


def reason_against_fork(*known: int) -> str:
    """Why this process must not be forked: threads, or files that its modules have opened beside the `known`; empty if nothing is."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"its modules have started threads, {threads - 1} in all"
    opened = [_target(number) for number in map(int, os.listdir("/proc/self/fd")) if number not in (*STANDARD, *known)]
    opened = [target for target in opened if target]
    return f"its modules have opened {', '.join(opened)}" if opened else ""  # such as the device of a card


def _target(number: int) -> str:
    """The file of a descriptor; empty if that was closed, as the one of listdir is."""
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def _environment_changes() -> Changes:
    """The variables that Python's start and the imports have changed in the environment of this process."""
    with open("/proc/self/environ", "rb") as file:
        started = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    present = dict(os.environb)
    values = {name: (started.get(name), present.get(name)) for name in {*started, *present}}
    return {name: (former, value) for name, (former, value) in values.items() if former != value}


def _enter(request: Json, descriptors: List[int], changes: Changes) -> None:
    """Get the settings that a rank has by exec, and wait until the agent is the parent."""
    os.setpgid(0, 0)
    stdout, stderr, permission = descriptors
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.read(permission, 1)  # nothing: the agent closes its end
    for number in descriptors:
        os.close(number)
    import ctypes  # as socket

    libc = ctypes.CDLL(None, use_errno=True)  # the kernel kills this process when the agent ends
    if libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0) != 0 or os.getppid() != request["agent_pid"]:
        os._exit(1)
    os.chdir(request["cwd"])
    if request["cpus"]:
        with contextlib.suppress(OSError):  # the cgroup has just changed: an unbound rank is better than none
            os.sched_setaffinity(0, request["cpus"])
    environment = {key.encode("latin-1"): value.encode("latin-1") for key, value in request["env"].items()}
    os.environb.clear()
    os.environb.update(environment)
    for name, (former, value) in changes.items():
        if environment.get(name) != former:  # set for this rank alone, as RANK is
            continue
        if value is None:
            del os.environb[name]
        else:
            os.environb[name] = value
    if "numpy.random" in sys.modules:  # each rank would draw the same numbers; Python's own are seeded at every fork
        sys.modules["numpy.random"].seed()


def _rename(name: str) -> str:
    """Set the name of this process for `ps` and `top`; return the former one."""
    try:
        with open("/proc/self/comm", "r+", encoding="utf-8", errors="surrogateescape") as file:
            former = file.read().rstrip("\n")
            file.seek(0)
            file.write(name)
    except OSError:
        return name
    return former


def _receive(link: socket.socket) -> Tuple[Json, List[int]]:
    """The next request and its descriptors; ends this process if there is none."""
    import array  # as socket

    numbers = array.array("i")
    size, ancillary, _, _ = link.recvmsg(SIZE_BYTES, DESCRIPTORS_BYTES)
    for _, _, content in ancillary:
        numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    with link.makefile("rb") as stream:
        content = stream.read(int.from_bytes(size, "big"))
    if not content:  # the agent needs no further rank, or has ended
        _end()
    return json.loads(content), list(numbers)


def _send(link: socket.socket, answer: Json) -> None:
    try:
        link.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:  # the agent has ended
        _end()


def _end() -> NoReturn:
    os._exit(0)
