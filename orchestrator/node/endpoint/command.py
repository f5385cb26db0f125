"""Run a command for the controller, such as one of Slurm's: in the environment of a login, bounded in time and output."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
import time

from orchestrator.node.files import absolute_path, check_own, read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from orchestrator.node import protocol

    Json = Dict[str, Any]

OUTPUT_BYTES = 4 << 20
BLOCK_BYTES = 1 << 16
PROFILE_S = 20.0
RESULT_POLL_S = 0.05
POLL_S = 0.5  # a child that has ended may have left its output open to one of its own
NOT_FOUND, NO_ANSWER, WITHDRAWN = 127, 124, 125
# Shells that take these options and the line below; users of other shells have a profile for bash, too.
SHELLS = ("bash", "zsh", "ksh", "fish", "dash", "sh")
MARK = "orch-environment-5b1d"  # what precedes it was printed by a profile
ENVIRONMENT = f"echo {MARK}; exec cat /proc/self/environ"


def command(request: protocol.LocalCommandRequest, _payload: bytes) -> Tuple[protocol.CommandReply, bytes]:
    """Run argv; its exit code (127: there is no such program, 124: it took too long and was ended), stdout and stderr."""
    argv, folder = (
        [absolute_path(arg) if arg.startswith("~/") else arg for arg in request["argv"]],
        absolute_path(request["folder"]),
    )
    private = os.umask(request["umask"])  # the user's own: sbatch hands it on to the job
    try:
        code, out, err = run(argv, login_environment(), folder, request["timeout_s"])
    finally:
        os.umask(private)
    return {"code": code, "out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}, b""


def command_once(request: protocol.LocalCommandOnceRequest, payload: bytes) -> Tuple[protocol.CommandReply, bytes]:
    """
    Run argv once over any number of connections: the first one creates the file `mark`, and leaves the result in it for the others.

    Without `begin`, a command that has not begun by now never will. One whose result is not known within `timeout_s` gives 124.
    """
    mark = absolute_path(request["mark"])
    withdrawn: protocol.CommandReply = {"code": WITHDRAWN, "out": "", "err": "it was withdrawn before it began"}
    if not request["begin"] and not os.path.lexists(os.path.dirname(mark)):
        return withdrawn, b""  # the folder is made before the command begins
    check_own(os.path.dirname(mark))
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return result_of(mark, request["timeout_s"]), b""
    result = command(request, payload)[0] if request["begin"] else withdrawn
    write_json(mark, result)
    return result, b""


def result_of(mark: str, wait_s: float) -> protocol.CommandReply:
    """The result of a command that another connection began."""
    deadline = time.monotonic() + wait_s
    while True:
        result = read_json(mark)
        if result is not None:
            return {"code": result["code"], "out": result["out"], "err": result["err"]}
        if time.monotonic() > deadline:
            return {"code": NO_ANSWER, "out": "", "err": "it was begun and left no result"}
        time.sleep(RESULT_POLL_S)


@functools.lru_cache(maxsize=None)
def login_environment() -> Dict[str, str]:
    """The environment of a login: a site's profile sets the path of its Slurm. This program's own if the profile ends the shell."""
    _, out, _ = run([login_shell(), "-l", "-c", ENVIRONMENT], dict(os.environ), absolute_path("~"), PROFILE_S)
    _, found, text = os.fsdecode(out).rpartition(f"{MARK}\n")
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs} if found else dict(os.environ)


def login_shell() -> str:
    """The user's own shell if it is one of the usual ones, else bash or sh."""
    import pwd  # noqa: PLC0415  only Unix has it

    try:
        own = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        own = ""
    known = [own] if os.path.basename(own) in SHELLS else []
    return next(shell for shell in (*known, "/bin/bash", "/bin/sh") if os.access(shell, os.X_OK) or shell == "/bin/sh")


def run(argv: List[str], environment: Dict[str, str], folder: str, timeout_s: float) -> Tuple[int, bytes, bytes]:
    """Run a command without standard input; keep the first OUTPUT_BYTES of each output."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        if not os.path.isdir(folder):
            raise
        return NOT_FOUND, b"", f"{argv[0]}: {error.strerror}".encode()
    with child:
        out, err = outputs(child, time.monotonic() + timeout_s)
        if child.poll() is not None:
            return child.returncode, out, err
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet, so the number is still this child's
        return NO_ANSWER, out, err + f"{argv[0]} gave no answer in {timeout_s:g} s".encode()


def outputs(child: subprocess.Popen[bytes], deadline: float) -> Tuple[bytes, bytes]:
    """Both outputs, until they end, the child ends or the deadline is over."""
    assert child.stdout is not None
    assert child.stderr is not None
    kept = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            ready = selector.select(min(POLL_S, max(0.0, deadline - time.monotonic())))
            for key, _ in ready:
                data = os.read(key.fd, BLOCK_BYTES)
                if not data:
                    selector.unregister(key.fd)
                kept[key.fd] += data[: OUTPUT_BYTES - len(kept[key.fd])]
            if not ready and child.poll() is not None:
                break
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, deadline - time.monotonic()))
    out, err = map(bytes, kept.values())
    return out, err
