"""DeepSpeed's Adam for state on the CPU: compiled at the first start on a node, with this rank's share of the node's CPUs."""

from __future__ import annotations

import importlib
import os
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Sequence

import torch

from trainer.config.config import TrainConfig
from trainer.console import log_line
from trainer.optim.optimizer import decay_groups
from trainer.parallel.deepspeed.package import search_path
from trainer.runtime.group import Group
from trainer.values import Foreign

VARIABLE = "OMP_NUM_THREADS"
KERNEL = "proc/sys/kernel/random/boot_id"


def cpu_adam(group: Group, config: TrainConfig, model: torch.nn.Module) -> Foreign:  # a DeepSpeedCPUAdam
    """Build it on all ranks. Raises UserError on all of them if it cannot be compiled on some node."""
    take_share_of_cpus(group, os.environ)
    os.environ["PATH"] = search_path()
    _warn_of_locks(group)
    adam, problem = None, ""
    try:
        adam = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(
            decay_groups(model, config.optim.weight_decay), lr=config.lr, betas=config.optim.betas, adamw_mode=True
        )
    except (RuntimeError, OSError, ImportError) as exc:
        problem = (
            f"offload_optimizer=true: DeepSpeed cannot build its Adam for CPUs (g++ >= 9 and ninja): {_cause(exc)}"
        )
    group.raise_if_any(problem)
    return adam


def _warn_of_locks(group: Group) -> None:
    """Warn of lock files: torch waits silently for another process that compiles, for ever if that was killed."""
    extensions = importlib.import_module("torch.utils.cpp_extension")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or extensions.get_default_build_root())
    for lock in folder.glob("**/cpu_adam/lock") if group.rank.local_rank == 0 else ():
        log_line(
            f"WARNING: rank {group.rank.global_rank}: {lock}: DeepSpeed's Adam is being compiled by another program, or was when "
            "that was killed: this one waits until the file is gone, so remove it if nothing is compiling"
        )
    group.raise_if_any("")  # no rank compiles before all have looked


def _cause(error: BaseException | None) -> str:
    """Return the compiler's error line, or the last line of the chain of causes."""
    lines: List[str] = []
    while error is not None:
        lines += str(error).splitlines()
        error = error.__cause__
    return next((line for line in lines if "error: " in line), lines[-1])


def take_share_of_cpus(group: Group, env: MutableMapping[str, str]) -> None:
    """Use this rank's share of the CPUs for parallel loops, whatever the variable says: launchers set it for work on a card."""
    threads = share(group.gather(cpus_here()), group.rank.global_rank)
    env[VARIABLE] = str(threads)  # for a library that loads another OpenMP
    torch.set_num_threads(threads)
    if group.rank.is_main:
        log_line(
            f"offload_optimizer: {threads} thread{'s' if threads > 1 else ''} per rank, an equal share of the CPUs"
        )


def cpus_here(root: str = "/") -> Dict[str, Any]:
    """The kernel on which this rank runs, the CPUs it may use, and how many at once; None: all of them."""
    kernel = Path(root, KERNEL)
    return {
        "kernel": kernel.read_text() if kernel.exists() else "",
        "cpus": sorted(os.sched_getaffinity(0)),
        "quota": min(quotas(root), default=None),
    }


def quotas(root: str) -> Iterator[float]:
    """The quotas of the process's cgroup (version 2) and of those above it, in CPUs."""
    membership = Path(root, "proc/self/cgroup")
    lines = membership.read_text().splitlines() if membership.exists() else []
    path = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "")
    folder = Path(root, "sys/fs/cgroup")
    for level in (folder / path, *(folder / path).parents):
        limit = level / "cpu.max"
        words = limit.read_text().split() if limit.exists() else []
        if words and words[0] != "max":
            yield int(words[0]) / int(words[1])


def share(ranks: Sequence[Mapping[str, Any]], mine: int) -> int:
    """
    The CPUs of one rank if each CPU is divided among the ranks that may use it; at least one.

    Args:
        ranks: cpus_here() of each.
        mine: the number of the rank.
    """
    here = [rank for rank in ranks if rank["kernel"] == ranks[mine]["kernel"]]
    parts = (Fraction(1, sum(cpu in rank["cpus"] for rank in here)) for cpu in ranks[mine]["cpus"])
    most = ranks[mine]["quota"]
    return max(1, int(min(sum(parts), Fraction(most) / len(here) if most else len(ranks[mine]["cpus"]))))
