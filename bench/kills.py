"""
`python -m bench.kills [--kills N] [--seed S]`: kill ranks, and the processes that write for them, during sharded saves in the background.

Trainings of two ranks, each from the newest checkpoint that the one before has left. In each, one process gets SIGKILL at a random moment of a save. Then
every checkpoint must verify and be that of an undisturbed training byte for byte.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.node.system.processes import stat_of
from tests.grounds.keeper import descendants, kill
from tests.grounds.marked import Process, still_alive
from tests.grounds.warm_trainer import MODULES, WarmTrainer
from tests.train.conftest import DEADLINE_S, Rank, StartRanks, clean_environment, codes, ranks_below
from tests.until import until
from trainer.checkpoint.format import files

# Checkpoints of 2 MB, which take a few steps each. With this schedule the rate does not depend on the number of steps.
WORDS = ("micro_batch=1", "accumulation=8", "model.vocabulary=2000", "model.width=64", "optim.schedule=constant", "checkpoint=sharded", "save_steps=1")  # fmt: skip
ENDLESS = "steps=1000000"
SAVED = re.compile(r"^saved .*step_\d+ in ([\d.]+) s, of which", re.MULTILINE)
RANK, WRITER = "of a rank", "of a process that writes"


class KilledSaves:
    """Trainings below `folder`. One that has made more than `steps` steps is not continued, as every step of the undisturbed training is saved."""

    def __init__(self, start: StartRanks, folder: Path, *, seed: int, steps: int) -> None:
        self._start, self._folder, self._steps = start, folder, steps
        self._draw = random.Random(seed)
        self._out, self._undisturbed = folder / "killed-0", folder / "undisturbed"
        self.kills = {RANK: 0, WRITER: 0}
        self.half_written = self.checked = 0

    def kill_one(self) -> None:
        """Train until a save in the background, kill a process at a random moment of it, and check what is left."""
        if _newest(self._out) > self._steps:
            self._out = self._folder / f"killed-{sum(self.kills.values())}"
        before = _newest(self._out)
        ranks = self._start(*WORDS, ENDLESS, "async_save=true", f"out={self._out}")
        save_s = until(partial(_save_s, ranks), deadline_s=DEADLINE_S, awaited="the first save")
        if before:
            assert f"\nresuming from {self._out}/step_{before}, step {before}\n" in ranks[0].out
        kinds = _processes(ranks)
        victim = self._draw.choice(sorted(kinds))
        threading.Event().wait(self._draw.uniform(0, 2) * save_s)  # one save follows the other
        saved = _newest(self._out)
        kill(victim[0])
        self._await_end(ranks, kinds[victim], saved)
        until(lambda: not still_alive(set(kinds)), deadline_s=DEADLINE_S, awaited="the processes that write to end")
        self.kills[kinds[victim]] += 1
        self.half_written += any(files.STALE.match(path.name) for path in self._out.iterdir())
        self._check(saved)

    def continue_once(self) -> None:
        """Let the training that was killed last make a few steps, and end."""
        step = _newest(self._out) + 3
        assert codes(self._start(*WORDS, f"steps={step}", f"out={self._out}")) == [0, 0]
        self._check(step)

    def _await_end(self, ranks: Sequence[Rank], kind: str, saved: int) -> None:
        """
        Wait until all ranks have ended, each by itself, and then kill what continues.

        A rank that is killed ends the others, and so does a process that is killed while it writes. One that has nothing to write is replaced.
        """

        def has_ended() -> bool:
            return all(rank.process.poll() is not None for rank in ranks)

        until(
            lambda: has_ended() or (kind == WRITER and _newest(self._out) > saved),
            deadline_s=DEADLINE_S,
            awaited=_errors(ranks),
        )
        for rank in ranks:
            rank.process.kill()
        assert not {0, 2} & set(codes(ranks)), _errors(ranks)()

    def _check(self, saved: int) -> None:
        """The checkpoints that were there at the kill, or newer ones, verify and are those of the undisturbed training."""
        assert _newest(self._out) >= saved
        assert not (self._out / "quarantine").exists()
        for path in files.newest_first(self._out):
            assert _files(path) == self._expected(files.step_of(path) or 0), path
            self.checked += 1

    def _expected(self, step: int) -> Mapping[str, Any]:
        """The files of the undisturbed training at that step, which continues until there."""
        if step > _newest(self._undisturbed):
            words = (f"steps={step + 20}", "save_total_limit=1000000", f"out={self._undisturbed}")
            assert codes(self._start(*WORDS, *words)) == [0, 0]
        return _files(self._undisturbed / f"step_{step}")


def main() -> int:
    """Print the figures."""
    options = _options()
    trainer = WarmTrainer(MODULES, clean_environment())
    try:
        with (
            tempfile.TemporaryDirectory(prefix="orch-kills-") as folder,
            ranks_below(Path(folder), lambda **_: trainer) as start,
        ):
            saves = KilledSaves(start, Path(folder), seed=options.seed, steps=100)
            for number in range(1, options.kills + 1):
                saves.kill_one()
                if number % 10 == 0:
                    _report(f"{number} kills")
            saves.continue_once()
    finally:
        trainer.close()
    kinds = ", ".join(f"{count} {kind}" for kind, count in saves.kills.items())
    _report(
        f"{options.kills} kills, {kinds}; {saves.half_written} left a half-written checkpoint; {saves.checked} checkpoints "
        "verified, equal to those of an undisturbed training; the newest was loaded each time"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kills", description="Kill processes during sharded saves in the background."
    )
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of processes and moments (default: 1)")
    return parser.parse_args()


def _report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _newest(out: Path) -> int:
    return next((files.step_of(path) or 0 for path in files.newest_first(out)), 0) if out.exists() else 0


def _files(path: Path) -> Mapping[str, Any]:
    """Sizes and hashes of the files of a checkpoint, after a comparison with the files."""
    described: Mapping[str, Any] = files.verified(path).manifest["files"]
    return described


def _save_s(ranks: Sequence[Rank]) -> float | None:
    """Seconds of the first save, None if it is not written yet."""
    assert all(rank.process.poll() is None for rank in ranks), _errors(ranks)()
    found = SAVED.search(ranks[0].out) if (ranks[0].folder / "0.out").exists() else None
    return float(found.group(1)) if found else None


def _processes(ranks: Sequence[Rank]) -> dict[Process, str]:
    """The ranks and the processes that write for them -> what they are."""
    kinds = {rank.process.pid: RANK for rank in ranks}
    kinds.update({pid: WRITER for rank in ranks for pid in descendants(rank.process.pid)})
    assert len(kinds) == 2 * len(ranks)
    return {(pid, stat[2]): kind for pid, kind in kinds.items() if (stat := stat_of(pid)) is not None}


def _errors(ranks: Sequence[Rank]) -> Callable[[], str]:
    return lambda: "".join(f"rank {rank.number}: {rank.out[-500:]}{rank.err}" for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
