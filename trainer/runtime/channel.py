"""
The channel of a rank: it reports where the rank is, also while the main thread waits in a collective. No torch here.

A request is a line of JSON, such as {"parts": ["collectives", "stacks"]}; the answer is one, too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from .rank import Rank  # relative: scripts import this package under another name (trainer/scripts)

CHANNEL = "channel"
REQUEST_BYTES = 4096
CLIENT_S = 1.0  # a client that neither writes nor reads must not occupy the thread
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
RECORDERS = {"_dump_nccl_trace_json": "nccl:", "_dump_fr_trace_json": ""}
"""The functions of torch that return its flight record, of NCCL and of other backends, and a prefix for the names of their groups."""

Json = Dict[str, Any]


def open_channel(rank: Rank, position: Callable[[], Tuple[str, int]]) -> None:
    """
    Answer on attempt-N/NODE/channel/RANK, in a thread that takes no signal; if no agent has made that folder, do nothing.

    A child process that has the rank's variables, such as a worker of a data loader, leaves the socket to its parent.

    Args:
        position: returns the phase and the step of this rank.
    """
    if rank.progress_dir is None or not rank.launched:
        return
    try:
        server = _listen(rank.progress_dir.parent / CHANNEL, str(rank.global_rank))
    except FileNotFoundError:
        return
    except OSError as exc:
        _warn(rank, exc)
        return
    if server is None:
        return
    os.register_at_fork(after_in_child=server.close)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=_serve, args=(server, position), name="orch channel", daemon=True).start()
    except RuntimeError as exc:  # the user may have no more threads, or the interpreter is ending
        server.close()
        _warn(rank, exc)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _warn(rank: Rank, cause: Exception) -> None:
    text = f"WARNING: rank {rank.global_rank} has no channel, so a hang is found without its stacks: {cause}"
    print(text, file=sys.stderr)


def _listen(folder: Path, name: str) -> Optional[socket.socket]:
    """The listening socket, for this user only; None if another process answers there."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}/{name}"  # the path of a socket has at most 107 bytes, a run's folder may have more
        if _is_answered(path):
            return None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a process that has ended
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(server.fileno(), 0o600)  # before the file exists
        server.bind(path)
        server.listen(128)  # a stopped rank answers nothing
        return server
    finally:
        os.close(descriptor)


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0)
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:  # its queue is full
            return True
        return True


def _serve(server: socket.socket, position: Callable[[], Tuple[str, int]]) -> None:
    """Answer one client after another, until the process ends."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError as exc:
            if exc.errno not in EXHAUSTED:
                return  # the program has closed all its descriptors
            time.sleep(CLIENT_S)
            continue
        # The client may have gone, or send a request that is wrong.
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(CLIENT_S)
            request = json.loads(connection.recv(REQUEST_BYTES))
            connection.sendall(json.dumps(_answer(request["parts"], position)).encode() + b"\n")


def _answer(parts: List[str], position: Callable[[], Tuple[str, int]]) -> Json:
    phase, step = position()
    answer: Json = {"pid": os.getpid(), "phase": phase, "step": step}
    functions: Dict[str, Callable[[], object]] = {
        "counts": lambda: collectives(with_names=False),
        "collectives": lambda: collectives(with_names=True),
        "memory": _memory,
        "nccl": nccl,
        "stacks": _stacks,
    }
    for part in parts:
        try:
            answer[part] = functions[part]()
        except Exception as exc:  # noqa: BLE001 -- another version of torch must not cost the other parts
            answer[part] = None
            answer.setdefault("errors", []).append(f"{part}: {exc!r}")
    return answer


def collectives(*, with_names: bool) -> Optional[Json]:
    """
    The number of collectives that each process group has enqueued and completed; None if this torch has no recorder.

    With names, a group has the name that all ranks know it by, and the first collective that is not complete. Without, a request
    takes 0.06 ms of this process; with, 70 ms, in which the main thread cannot run Python.
    """
    records = _flight_records(with_entries=with_names)
    found: Json = {}
    for prefix, record in records.items():
        found.update({prefix + name: group for name, group in groups(record).items()})
    return found if records else None


def flight_entries() -> List[Json]:
    """The collectives in the flight record, of all process groups; none if this torch has no recorder. As costly as with names."""
    records = _flight_records(with_entries=True).values()
    return [entry for record in records for entry in record.get("entries", ()) if not entry["is_p2p"]]


def _flight_records(*, with_entries: bool) -> Dict[str, Json]:
    """The record of each recorder that this torch has, by the prefix of the names of groups."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dumps = {prefix: getattr(c10d, name) for name, prefix in RECORDERS.items() if hasattr(c10d, name)}
    return {
        prefix: json.loads(dump(includeCollectives=with_entries, onlyActive=False)) for prefix, dump in dumps.items()
    }


def groups(record: Json) -> Json:
    """The process groups of a flight record."""
    entries = [entry for entry in record.get("entries", ()) if not entry["is_p2p"]]
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in entries}
    status = record.get("pg_status", {})
    return {names.get(number, number): _group(number, status[number], entries) for number in status}


def _group(number: str, status: Json, entries: List[Json]) -> Json:
    enqueued, completed = (int(status[f"last_{point}_collective"]) for point in ("enqueued", "completed"))
    of_group = [entry for entry in entries if str(entry["pg_id"]) == number]
    if not of_group:
        return {"enqueued": enqueued, "completed": completed}
    # threads of gloo write the number of the last completed one in any order
    pending = [entry for entry in of_group if not entry["retired"]]
    if not pending:
        return {"enqueued": enqueued, "completed": enqueued}
    first = min(pending, key=lambda entry: int(entry["collective_seq_id"]))
    waits_for = f"{first['profiling_name'].rpartition(':')[2]} {first['input_sizes']}"
    return {"enqueued": enqueued, "completed": first["collective_seq_id"] - 1, "waits_for": waits_for}


def _memory() -> Optional[Json]:
    """The allocator of the current device, in bytes; None if no device is in use."""
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "gcu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            names = ("memory_allocated", "memory_reserved", "max_memory_allocated")
            return {name: getattr(device, name)() for name in names}
    return None


def nccl() -> Optional[Json]:
    """The version of the loaded NCCL, and the variables for RAS in this process; None if no CUDA device is in use."""
    torch: Any = sys.modules.get("torch")
    device = getattr(torch, "cuda", None)
    if device is None or not device.is_initialized() or getattr(torch.version, "hip", None):
        return None
    names = ("NCCL_RAS_ENABLE", "NCCL_RAS_ADDR")
    environ = {name: os.environ[name] for name in names if name in os.environ}
    return {"version": list(device.nccl.version()[:3]), "environ": environ}


def _stacks() -> str:
    """The stacks of all threads, as faulthandler writes them: the innermost call first, and the main thread last."""
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 -- documented
    texts = []
    for ident in sorted(frames, key=lambda ident: ident == main):
        calls = traceback.walk_stack(frames[ident])  # reads no source file: its file system may hang
        lines = [f'  File "{call.f_code.co_filename}", line {line} in {call.f_code.co_name}\n' for call, line in calls]
        texts.append(f"Thread {ident:#x} [{names.get(ident, '?')}] (most recent call first):\n{''.join(lines)}")
    return "\n".join(texts)
