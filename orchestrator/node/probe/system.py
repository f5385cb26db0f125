"""Clock, host name, name resolution, kernel messages, and settings of the communication libraries."""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Dict, List, Optional

    from orchestrator.node.probe.source import Source

TIME_ERROR, STA_UNSYNC = 5, 0x40  # linux/timex.h
TIMEX_BYTES, STATUS_AT = 256, 40  # struct timex is smaller; its field `status` is at 40 on 64-bit machines


def is_synchronized(source: Source) -> Optional[bool]:
    """The kernel's report whether a time service keeps the clock right; None if it does not report it here."""
    import ctypes  # slow to import, and only this function needs it
    import struct

    if struct.calcsize("l") != 8:  # noqa: PLR2004
        source.missing["clock.synchronized"] = "read on 64-bit machines only"
        return None
    timex = ctypes.create_string_buffer(TIMEX_BYTES)  # modes = 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        source.missing["clock.synchronized"] = f"adjtimex: {os.strerror(ctypes.get_errno())}"
        return None
    (status,) = struct.unpack_from("i", timex, STATUS_AT)
    return state != TIME_ERROR and not status & STA_UNSYNC


def hostname(source: Source) -> str:
    return source.text("/proc/sys/kernel/hostname") or os.uname().nodename


RESOLVERS = 32


def resolve(source: Source, names: Sequence[str], wait_s: float) -> Dict[str, List[str]]:
    """The addresses of each name, as this node resolves them; a name without an answer in time is in `missing` instead."""
    import socket
    import threading

    found: Dict[str, List[str]] = {}
    waiting = list(reversed(names))

    def work() -> None:
        while waiting:
            try:
                name = waiting.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                found[name] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
            except (OSError, UnicodeError):
                found[name] = []

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(RESOLVERS, len(names)))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    done = dict(found)
    for name in names:
        if name not in done:
            source.missing[f"names.resolved.{name}"] = f"no answer in {wait_s:g} s"
    return done


KMSG = "/dev/kmsg"
KMSG_RECORD = re.compile(r"\d+,\d+,(\d{1,15}),[^;]*;(.*)")
KMSG_BYTES = 8 << 20
RECORD_BYTES = 8192
MAX_MESSAGES = 200
# Errors of cards, RDMA devices, PCI, memory and file systems. Xid: NVIDIA's driver reports an error of a card.
DEVICE_MESSAGE = re.compile(
    r"NVRM|nvidia|NVSwitch|\bXid\b|enflame|\bgcu\d|\bdtu\d|mlx\d|infiniband|\bib\d|bnxt|irdma|\befa\b|[Ll]ink is (?:up|down|Up|Down)"
    r"|PCIe Bus Error|\bAER:|\bEDAC\b|\bMCE\b|[Mm]achine [Cc]heck|[Hh]ardware [Ee]rror|Out of memory|oom-kill|blocked for more than"
    r"|I/O error|EXT4-fs error|XFS .*[Cc]orruption|nfs: server|LustreError|thrott|soft lockup|hung_task"
)
MAX_LINE = 400


def kernel_messages(source: Source) -> List[str]:
    """The newest lines of the kernel's log on devices, each with its time; refused to users on most systems."""
    path = source.path(KMSG)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        source.missing["kernel_messages"] = f"{KMSG}: {error.strerror}"
        return []
    try:
        lines = kmsg_lines(read_records(source, descriptor), time.time() - time.monotonic())
    finally:
        os.close(descriptor)
    return lines[-MAX_MESSAGES:]


def read_records(source: Source, descriptor: int) -> str:
    """All records; the kernel returns one per read, and no end but EAGAIN."""
    import errno

    data = bytearray()
    while len(data) < KMSG_BYTES:
        try:
            block = os.read(descriptor, RECORD_BYTES)
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten while reading: the next read continues behind
                continue
            if error.errno != errno.EAGAIN:
                source.missing["kernel_messages"] = f"{KMSG}: {error.strerror}"
            break
        if not block:
            break
        data += block
    return data.decode("utf-8", "replace")


def kmsg_lines(text: str, boot_s: float) -> List[str]:
    """The lines on devices, with an ISO time, of records `priority,number,microseconds,flags;message`."""
    found = []
    for line in text.splitlines():
        record = KMSG_RECORD.match(line)
        if record is not None and DEVICE_MESSAGE.search(record.group(2)):  # properties of a record are indented
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(boot_s + int(record.group(1)) / 1e6))
            found.append(f"{moment} {record.group(2):.{MAX_LINE}}")
    return found


# Variables that the libraries of a training read; their launchers' and loaders' too.
PREFIXES = (
    *("NCCL_", "RCCL_", "ECCL_", "TORCH", "PYTORCH_", "GLOO_", "TP_", "UCX_", "UCC_", "FI_", "OMP_", "MKL_", "KMP_"),
    *("CUDA_", "NVIDIA_", "TOPS_", "ENFLAME_", "EFRT_", "DTU_", "GCU_", "PTEX_", "DS_", "DEEPSPEED_", "PET_", "IBV_"),
    *("MLX5_", "OMPI_MCA_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def environment(source: Source) -> Dict[str, str]:
    """The variables of this environment that the communication libraries and frameworks read; none with a secret's name."""
    return {
        name: value.encode("utf-8", "replace").decode()
        for name, value in sorted(source.environ.items())
        if name.startswith(PREFIXES) and not SECRET.search(name)
    }


def nccl_conf(source: Source) -> Dict[str, str]:
    """The text of each file from which NCCL reads variables, by path."""
    home = source.environ.get("HOME") or os.path.expanduser("~")
    paths = ["/etc/nccl.conf", source.environ.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf"]
    texts = {path: source.text(path) for path in paths if path.startswith("/")}
    return {path: text for path, text in texts.items() if text is not None}
