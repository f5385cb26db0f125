"""Where this rank stands in the run, from the variables a launcher sets; and its progress file. No torch here."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, TextIO

from ..errors import UserError  # relative: scripts get this under another name (trainer/scripts)


@dataclass(frozen=True)
class Place:
    """
    RANK, LOCAL_RANK and WORLD_SIZE as torchrun and orch set them; one process alone has none of them.

    run_dir and progress_dir are None outside orch; is_retry: an earlier attempt of this same run may have saved.
    """

    rank: int
    local_rank: int
    world_size: int
    launched: bool
    node: str
    run_dir: Path | None
    progress_dir: Path | None
    is_retry: bool
    nodes: int = 1

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        """Raises UserError for a variable that is missing or no number."""
        launched = "WORLD_SIZE" in env
        run_dir = Path(env["ORCH_RUN_DIR"]) if env.get("ORCH_RUN_DIR") else None
        node, attempt = env.get("ORCH_NODE", ""), env.get("ORCH_ATTEMPT", "")
        place = cls(
            rank=_number(env, "RANK", launched),
            local_rank=_number(env, "LOCAL_RANK", launched),
            world_size=_number(env, "WORLD_SIZE", launched, alone=1),
            launched=launched,
            node=node,
            run_dir=run_dir,
            progress_dir=run_dir / f"attempt-{attempt}" / node / "progress" if run_dir and node and attempt else None,
            is_retry=attempt not in ("", "1") or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
            nodes=_number(env, "GROUP_WORLD_SIZE", launched and "GROUP_WORLD_SIZE" in env, alone=1),
        )
        if not 0 <= place.rank < place.world_size:
            raise UserError(f"RANK={place.rank} is not below WORLD_SIZE={place.world_size}")
        return place

    @property
    def is_main(self) -> bool:
        """Rank 0 alone reads and writes checkpoints, and speaks for all."""
        return self.rank == 0


def _number(env: Mapping[str, str], name: str, launched: bool, *, alone: int = 0) -> int:  # noqa: FBT001 -- private
    if not launched:
        return alone
    text = env.get(name, "")
    if not text.isdigit():
        raise UserError(
            f"WORLD_SIZE is set but {name}={text!r} is no number: start through orch or torchrun, or unset WORLD_SIZE"
        )
    return int(text)


def unheard(_: str) -> None:
    """Of a phase that nobody asked for."""


@dataclass
class Progress:
    """
    This rank's progress file, replaced as a whole each time; outside orch there is none.

    Mutable: it keeps the facts that stay in the file once known. `steps` is how many there will be, None if unknown;
    `heard` is called with each phase.
    """

    place: Place
    steps: Optional[int]
    extra: Dict[str, Any] = field(default_factory=dict)
    heard: Callable[[str], object] = unheard
    broken: bool = False
    phase: str = "init"
    step: int = 0

    def write(self, phase: str, step: int, **extra: object) -> None:
        """Phase is init, step, eval, save, saved or done; `extra` stays in the file from now on."""
        self.heard(phase)
        self.phase, self.step = phase, step
        self.add(**extra)

    def add(self, **extra: object) -> None:
        """What became known in the midst of a phase."""
        self.extra.update(extra)
        if self.place.progress_dir is None or self.broken:
            return
        total = {} if self.steps is None else {"steps": self.steps}
        record = {"step": self.step, **total, "phase": self.phase, "time": time.time(), **self.extra}
        try:
            replace_text(self.place.progress_dir / f"{self.place.rank}.json", json.dumps(record))
        except OSError as exc:
            # Training goes on: a full disk under the run folder must not cost the steps since the last checkpoint.
            self.broken = True
            sys.stderr.write(f"WARNING: rank {self.place.rank}: no more progress is written: {exc}\n")


def replace_text(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never a part; folder 0700, file 0600."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with os.fdopen(os.open(str(aside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


ERASE_LINE = "\x1b[K"  # from the cursor to the line's end


def is_terminal(stream: TextIO) -> bool:
    """One that understands ERASE_LINE."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def say(text: str) -> None:
    """One line on stdout, at once: a log that lags cannot show where a rank hangs. On a terminal it wipes the bar off."""
    sys.stdout.write(f"{ERASE_LINE if is_terminal(sys.stdout) else ''}{text}\n")
    sys.stdout.flush()
