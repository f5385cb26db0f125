"""
`python -m bench.hangs [--injections N] [--at-once M] [--noise-minutes T]`: let one rank of a training hang, and see which rank orch names.

Each injection is one run: 8 gloo ranks on two nodes of this machine (transport local), forked from one process that has imported torch.
Then a training with steps of random durations and pauses runs for T minutes, in which nothing should be named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.grounds.cli import Orch
from tests.paths import ROOT
from tests.until import until

RANKS, DEVICES = 8, 4
INVENTORY = """\
name: hangs
accelerator: cpu
devices: {devices}
transport: local
defaults: {{workdir: {folder}/work}}
env: {env}
nodes: [{{name: 'n[0-1]'}}]
"""
SLOW = "slow"
EXPECTED = {
    "stopped": "stopped by a signal",
    "late": "not in all_reduce",
    "collective": "different collectives",
    "loader": "in the data loader",
    "save": "not in all_reduce",
    "lock": "a call holds its interpreter lock",
    SLOW: "later than most",
}
"""The kinds of hangs (bench/programs/rank_server.py) and the slow rank, and a part of the text that names the cause."""
TARGET_S = 5.0  # max(3 steps, 5 s) of steps of 0.1 s; the agents poll once a second, and the supervisor after them
START_S, NAMED_S = 300.0, 60.0
SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Named:
    """The result of one injection."""

    kind: str
    rank: int
    text: str
    seconds: float
    """From the injection to the event; 0 if nothing was named."""

    @property
    def is_right(self) -> bool:
        """True if exactly this rank is named, with the right cause."""
        named = re.search(r"\branks? ([\d,-]+) (?:on|is slow)", self.text.partition(": ")[2])
        return named is not None and named[1] == str(self.rank) and EXPECTED[self.kind] in self.text


@contextmanager
def rank_server(folder: Path) -> Iterator[Path]:
    """The process from which the ranks are forked, by its socket."""
    path = folder / "ranks"
    argv = [sys.executable, "-W", "ignore", str(ROOT / "bench/programs/rank_server.py"), str(path)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True) as server:
        try:
            until(path.exists, awaited="the import of torch")
            yield path
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def launched(folder: Path, env: Mapping[str, str]) -> Orch:
    """The command line in a folder with the program and its inventory."""
    folder.mkdir()
    text = INVENTORY.format(devices=DEVICES, folder=folder, env=json.dumps(env))
    (folder / "inventory.yaml").write_text(text, "utf-8")
    shutil.copy(ROOT / "bench/programs/forked_rank.py", folder / "train.py")
    orch = Orch(folder)
    orch("ssh-launch", "--no-check", "--detach", "--", "train.py")
    return orch


def events(orch: Orch, kind: str) -> list[dict[str, object]]:
    """The events of a kind in the log of the only run."""
    lines = [line for path in orch.home.glob("runs/*/events.jsonl") for line in path.read_text("utf-8").splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def inject(folder: Path, server: Path, kind: str, rank: int) -> Named:
    """Launch a training, let a rank hang, and return what the supervisor names."""
    injected = folder / "injected"
    env = {"RANK_SERVER": str(server), "HANG_KIND": kind, "HANG_RANK": str(rank), "HANG_FILE": str(injected)}
    orch = launched(folder, env)
    try:
        until(injected.exists, deadline_s=START_S, awaited="the injection")
        deadline_s = time.monotonic() + NAMED_S
        named: list[dict[str, object]] = []
        while not named and time.monotonic() < deadline_s:
            time.sleep(0.2)
            named = events(orch, "slow-ranks" if kind == SLOW else "no-progress")
    finally:
        orch("stop", code=None)
    if not named:
        return Named(kind, rank, "nothing was named", 0.0)
    return Named(kind, rank, str(named[0]["text"]), _time(named[0]) - float(injected.read_text("utf-8")))


def _time(event: Mapping[str, object]) -> float:
    return float(str(event["time"]))


def false_alarms(folder: Path, server: Path, minutes: float) -> list[str]:
    """The texts about hangs and slow ranks in a training without any, whose steps are of random durations."""
    orch = launched(folder, {"RANK_SERVER": str(server), "NOISE_S": str(60 * minutes)})
    [run] = [record["id"] for record in orch.records()]
    until(lambda: orch.recorded(run) not in {"STARTING", "RUNNING"}, deadline_s=60 * minutes + 300, awaited="the end")
    assert orch.recorded(run) == "DONE", orch.printed(run)
    found = [
        f"{event['event']}: {event['text']}" for kind in ("no-progress", "slow-ranks") for event in events(orch, kind)
    ]
    return [*found, *re.findall(r"warning: [^\n]*no progress[^\n]*", orch.printed(run))]


def report(results: Sequence[Named]) -> None:
    """Print a table by kind, and every wrong result."""
    sys.stdout.write(f"{'kind':12}{'n':>5}{'right':>7}{'median s':>10}{'worst s':>9}\n")
    for kind in [*EXPECTED, "all"]:
        of_kind = [named for named in results if kind in {named.kind, "all"}]
        times = [named.seconds for named in of_kind if named.seconds]
        right = sum(named.is_right for named in of_kind)
        if times:
            sys.stdout.write(f"{kind:12}{len(of_kind):5}{right:7}{statistics.median(times):10.1f}{max(times):9.1f}\n")
    for named in results:
        if not named.is_right:
            sys.stdout.write(f"wrong: {named.kind} of rank {named.rank}: {named.text}\n")


def main() -> int:
    """Inject the hangs, then train with noise; 1 if fewer than 99 % are right, or there is a false alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--injections", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=2, help="runs of 8 ranks at the same time")
    parser.add_argument("--noise-minutes", type=float, default=0.0)
    parser.add_argument("--kinds", default=",".join(kind for kind in EXPECTED if kind != SLOW))
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as home, rank_server(Path(home)) as server:
        planned = [(kinds[number % len(kinds)], number * 5 % RANKS) for number in range(options.injections)]

        def inject_number(number: int) -> Named:
            named = inject(Path(home) / str(number), server, *planned[number])
            sys.stderr.write(
                f"{number}: {named.kind}, rank {named.rank}: {named.seconds:.1f} s, {'right' if named.is_right else 'wrong'}\n"
            )
            return named

        with ThreadPoolExecutor(options.at_once) as pool:
            results = list(pool.map(inject_number, range(len(planned))))
        report(results)
        alarms = false_alarms(Path(home) / "noise", server, options.noise_minutes) if options.noise_minutes else []
    for alarm in alarms:
        sys.stdout.write(f"false alarm: {alarm}\n")
    sys.stdout.write(
        f"{len(results)} injections and {options.noise_minutes:g} minutes of noise in {time.monotonic() - began_s:.0f} s"
    )
    return int(sum(named.is_right for named in results) < SHARE * len(results) or bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
