"""
`rank_server.py SOCKET`: import torch once, and fork a rank of bench.hangs for every client; the rank ends with its client.

A rank trains a tiny model with DDP on gloo. After HANG_STEP steps the rank in HANG_RANK does HANG_KIND, and writes the time into HANG_FILE.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.scripts.progress import count_steps

STEP_S = 0.1
HANG_STEP = 30
HANG_S = 600
SLOW_S = 0.06
PAUSE_EVERY, LONGEST_PAUSE_S = 50, 4.0


class Blocked(torch.utils.data.Dataset[torch.Tensor]):
    """A data set whose file system hangs."""

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(HANG_S)
        return torch.ones(1)

    def __len__(self) -> int:
        return 1


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep() -> None:
    time.sleep(HANG_S)


def call_another_collective() -> None:
    dist.broadcast(torch.ones(3), src=0)


def load_data() -> None:
    next(iter(torch.utils.data.DataLoader(Blocked())))


def save() -> None:
    os.mkfifo("full.pt")
    with Path("full.pt").open("wb") as file:  # nobody reads it
        torch.save(torch.ones(1), file)


def hold_interpreter_lock() -> None:
    ctypes.PyDLL(None).sleep(HANG_S)


def make_longer_steps() -> None:
    """Return: `train` does it."""


KINDS = {
    "stopped": stop,
    "late": sleep,
    "collective": call_another_collective,
    "loader": load_data,
    "save": save,
    "lock": hold_interpreter_lock,
    "slow": make_longer_steps,
}


def train() -> None:
    """Make steps for ever; with NOISE_S, of random durations with pauses of one rank, for so long."""
    torch.set_num_threads(1)
    count_steps(sys.modules["torch.optim.optimizer"])
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=HANG_S))
    rank, ends = dist.get_rank(), torch.zeros(1)
    noise_s = float(os.environ.get("NOISE_S", "0"))
    draw, end_s = random.Random(rank), time.monotonic() + noise_s
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, is_slow = 0, False
    while not ends:
        step += 1
        if rank == int(os.environ.get("HANG_RANK", "-1")) and step == HANG_STEP:
            Path(os.environ["HANG_FILE"]).write_text(str(time.time()), "utf-8")
            KINDS[os.environ["HANG_KIND"]]()
            is_slow = os.environ["HANG_KIND"] == "slow"
        time.sleep(STEP_S * (draw.uniform(0.2, 3.0) if noise_s else 1.0) + SLOW_S * is_slow)
        if noise_s and step % PAUSE_EVERY == 0 and rank == step // PAUSE_EVERY % dist.get_world_size():
            time.sleep(draw.uniform(0.0, LONGEST_PAUSE_S))  # an evaluation, a save, a slow file system
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        if noise_s:
            ends = torch.tensor([float(time.monotonic() > end_s)])
            dist.all_reduce(ends)
    dist.destroy_process_group()


def run_rank(request: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    """Become the rank of this client."""
    code = 1
    try:
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        train()
        code = 0
    except Exception:  # noqa: BLE001 -- of the rank; shown in its log
        traceback.print_exc()
    finally:
        os._exit(code)


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve(connection: socket.socket) -> NoReturn:
    """Fork the rank, kill it when the client has ended, and report its exit code."""
    header, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
    request = json.loads(_received(connection, int.from_bytes(header, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        run_rank(request, descriptors)
    ended = os.pidfd_open(pid)
    select.select([ended, connection.fileno()], [], [])
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(bytes([code & 255]))
    os._exit(0)


def main() -> NoReturn:
    """Serve each client in a process that is forked for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                serve(connection)
            connection.close()


if __name__ == "__main__":
    main()
