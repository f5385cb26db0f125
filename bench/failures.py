"""
`python -m bench.failures [NAME …]`: provoke failures in real runs on this machine, and compare their diagnoses with the causes.

Most are one launch of two nodes with one rank each. The table has the cause that was found, the rank, the confidence, if they are right, and
for a failure whose cause is outside the program, the state of the next run after the remedy was followed; for others, what `orch diagnose --prove`
has shown about their remedy, if it can make the change.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.failures_outside import (
    Outcome,
    changed_host_key,
    full_shm_of_loader,
    full_shm_written,
    out_of_memory,
    slow_rank,
    time_limit,
)
from bench.processes import CommandFailed
from tests.grounds.cli import Orch

INVENTORY = "name: f\naccelerator: cpu\ndevices: 1\ntransport: local\ndefaults: {{workdir: {0}/work}}\nnodes: [{{name: 'n[0-1]'}}]\n"
GLOO = "import datetime, torch, torch.distributed as dist\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=8))\n"
DDP = f"{GLOO}from torch.nn.parallel import DistributedDataParallel as DDP\n"
HEAD = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
REST = "\ntime.sleep(600)\n"
LAUNCH_S, PROVE_S = 180, 400


@dataclass(frozen=True)
class Provoked:
    """A program that fails, and the diagnosis that is right: the signature, the class and the rank on which it began."""

    name: str
    program: str
    signatures: Sequence[str]
    kind: str
    rank: int | None = 1
    """None: it begins on every rank, or no text names the rank."""
    provoke: Callable[[Path], Outcome] | None = None
    """How it is provoked if not by the program alone."""

    def launch(self, folder: Path) -> Outcome:
        """Launch the program, and return the failure that is recorded."""
        (folder / "inventory.yaml").write_text(INVENTORY.format(folder), "utf-8")
        (folder / "train.py").write_text(self.program, "utf-8")
        orch = Orch(folder)
        orch("ssh-launch", "--no-check", "--", "train.py", code=None, timeout_s=LAUNCH_S)
        found = orch.status()["failure"]
        proof = orch("diagnose", "--prove", "--json", code=None, timeout_s=PROVE_S)
        return found, json.loads(proof.stdout)["result"] if proof.stdout else ""


def _of_rank_1(name: str, lines: str, signature: str, kind: str) -> Provoked:
    """A failure of rank 1, while rank 0 waits."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return Provoked(name, f"{HEAD}if rank == 1:\n{body}{REST}", [signature], kind)


FAILURES = (
    _of_rank_1(
        "port taken",
        "import socket, torch.distributed as dist\nheld = socket.create_server(('', 0))\n"
        "dist.TCPStore('127.0.0.1', held.getsockname()[1], 2, is_master=True)",
        "port-taken",
        "network",
    ),
    Provoked(
        "wrong backend",
        f"{HEAD}import torch.distributed as dist\ndist.init_process_group('nccl')\n",
        ["nccl-not-built-in", "no-gpu"],
        "config",
        None,
    ),
    Provoked(
        "missing rank",
        f"{HEAD}import datetime, torch.distributed as dist\nif rank == 1: time.sleep(600)\n"
        "dist.TCPStore('127.0.0.1', 0, 2, is_master=True, timeout=datetime.timedelta(seconds=3))\n",
        ["clients-missing"],
        "network",
        None,
    ),
    _of_rank_1(
        "limit of memory",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nbytearray(1 << 30)",
        "memory-error",
        "memory",
    ),
    _of_rank_1("SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", "killed", "memory"),
    _of_rank_1("SIGSEGV", "import ctypes\nctypes.string_at(0)", "segmentation-fault", "code"),
    _of_rank_1(
        "SIGBUS",
        "import mmap\nfile = open('mapped', 'w+b')\nfile.truncate(1 << 16)\nmapped = mmap.mmap(file.fileno(), 0)\n"
        "file.truncate(0)\nmapped[0]",
        "bus-error",
        "storage",
    ),
    Provoked(
        "unused parameters",
        f"{HEAD}{DDP}class Half(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)\n"
        "    def forward(self, x):\n        return self.a(x)\n"
        "model = DDP(Half())\nfor _ in range(3):\n    model(torch.ones(1, 2)).sum().backward()\n",
        ["ddp-unused-parameters"],
        "code",
        None,
    ),
    Provoked(
        "differing models",
        f"{HEAD}{DDP}DDP(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(1 + rank)]))\n",
        ["ddp-models-differ"],
        "code",
        None,
    ),
    Provoked(
        "device_ids on CPU",
        f"{HEAD}{DDP}DDP(torch.nn.Linear(2, 1), device_ids=[rank])\n",
        ["ddp-model-on-cpu"],
        "code",
        None,
    ),
    _of_rank_1("NaN", "raise FloatingPointError('non-finite gradient norm at step 3')", "not-a-number", "numbers"),
    _of_rank_1("missing file", "open('/data/missing.bin')", "file-not-found", "config"),
    _of_rank_1("missing module", "import a_module_that_is_missing", "module-not-found", "config"),
    _of_rank_1(
        "dead DataLoader worker",
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Data(Dataset):\n    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, index):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "list(DataLoader(Data(), num_workers=1))",
        "worker-killed",
        "memory",
    ),
    Provoked(
        "SIGSTOP",
        f"{HEAD}{GLOO}dist.barrier()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(torch.ones(1))\n",
        ["gloo-timeout"],
        "hang",
    ),
    _of_rank_1(
        "DeepSpeed batch sizes",
        "from deepspeed import DeepSpeedConfig\nos.environ['WORLD_SIZE'] = '1'\n"
        "DeepSpeedConfig({'train_batch_size': 32, 'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 1})",
        "ds-batch-sizes",
        "config",
    ),
    _of_rank_1("comments in JSON", "import json\njson.loads('{\\n  // micro batch\\n  \"a\": 1}')", "json-comments", "config"),
    _of_rank_1("disk full", "open('/dev/full', 'w').write('x' * 100000)", "disk-full", "storage"),
    Provoked(
        "wrong interface",
        f"{HEAD}os.environ['GLOO_SOCKET_IFNAME'] = 'none0'\n{GLOO}",
        ["gloo-no-interface"],
        "config",
        None,
    ),
    _of_rank_1("program's own error", "{}['input_ids']", "python-error", "code"),
    Provoked("OOM killer", "", ["cgroup-oom"], "memory", provoke=out_of_memory),
    Provoked("SIGBUS by a full /dev/shm", "", ["bus-error"], "storage", provoke=full_shm_written),
    Provoked("DataLoader with a full /dev/shm", "", ["shm-full", "worker-bus-error"], "storage", provoke=full_shm_of_loader),
    Provoked("time limit of Slurm", "", ["slurm-time-limit"], "preemption", None, time_limit),
    Provoked("slow rank", "", ["slow-rank"], "slow", provoke=slow_rank),
    Provoked("changed host key", "", ["ssh-key-changed"], "config", None, changed_host_key),
)  # fmt: skip


def main() -> int:
    """Provoke the failures and print the table; 1 if a diagnosis is confident and wrong."""
    chosen = [failure for failure in FAILURES if not sys.argv[1:] or failure.name in sys.argv[1:]]
    wrong = right = 0
    sys.stdout.write(
        "| failure | found | class | began on | confidence | right | after the remedy | seconds |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for failure in chosen:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="orch-failures-") as folder:
            try:
                found, next_state = (failure.provoke or failure.launch)(Path(folder))
            except (CommandFailed, OSError) as error:
                sys.stdout.write(f"| {failure.name} | cannot be provoked here: {error} | | | | | | |\n")
                continue
        is_right = (
            found["signature"] in failure.signatures
            and found["kind"] == failure.kind
            and (failure.rank is None or found["ranks"] == [failure.rank])
        )
        right += is_right
        wrong += not is_right and found["confidence"] == "high"
        cells = (failure.name, found["signature"], found["kind"], found["ranks"], found["confidence"])
        word = "yes" if is_right else "no"
        sys.stdout.write(
            f"| {' | '.join(map(str, cells))} | {word} | {next_state} | {time.monotonic() - begun:.0f} |\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"\n{right} of {len(chosen)} right, {wrong} wrong with high confidence\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
