"""This rank's number and its launcher's settings, from environment variables. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from ..errors import UserError  # relative: scripts import this package under another name (trainer/scripts)


@dataclass(frozen=True)
class Rank:
    """
    RANK, LOCAL_RANK and WORLD_SIZE as torchrun and orch set them; without them, the only rank of a group of one.

    launched: a launcher has set them, so there is a process group. run_dir and progress_dir are None outside orch.
    is_retry: an earlier attempt of the same run may have saved checkpoints.
    """

    global_rank: int
    local_rank: int
    world_size: int
    launched: bool
    node: str
    run_dir: Path | None
    progress_dir: Path | None
    is_retry: bool
    nodes: int = 1

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Rank:
        """Raises UserError if a variable is missing or not a number."""
        launched = "WORLD_SIZE" in env
        run_dir = Path(env["ORCH_RUN_DIR"]) if env.get("ORCH_RUN_DIR") else None
        node, attempt = env.get("ORCH_NODE", ""), env.get("ORCH_ATTEMPT", "")
        found = cls(
            global_rank=_int_variable(env, "RANK", launched=launched),
            local_rank=_int_variable(env, "LOCAL_RANK", launched=launched),
            world_size=_int_variable(env, "WORLD_SIZE", launched=launched, default=1),
            launched=launched,
            node=node,
            run_dir=run_dir,
            progress_dir=run_dir / f"attempt-{attempt}" / node / "progress" if run_dir and node and attempt else None,
            is_retry=attempt not in ("", "1") or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
            nodes=_int_variable(env, "GROUP_WORLD_SIZE", launched=launched and "GROUP_WORLD_SIZE" in env, default=1),
        )
        if not 0 <= found.global_rank < found.world_size:
            raise UserError(f"RANK={found.global_rank} is not below WORLD_SIZE={found.world_size}")
        return found

    @property
    def is_main(self) -> bool:
        """Rank 0: it alone reads and writes checkpoints, and prints for all ranks."""
        return self.global_rank == 0


def _int_variable(env: Mapping[str, str], name: str, *, launched: bool, default: int = 0) -> int:
    if not launched:
        return default
    text = env.get(name, "")
    if not text.isdigit():
        raise UserError(
            f"WORLD_SIZE is set but {name}={text!r} is not a number: start through orch or torchrun, or unset WORLD_SIZE"
        )
    return int(text)
