"""`python -m bench`: run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    check,
    death,
    launch,
    logs,
    memory,
    planning,
    probe,
    push,
    put,
    recovery,
    report,
    screen,
    search,
    silent,
    startup,
    submit,
    tokenize,
    trainer,
    wide,
)
from bench.machine import describe
from bench.processes import adopt_orphans
from bench.rounds import Measure
from bench.workspace import Workspace

MEASURES: dict[str, Callable[..., Measure | list[Measure]]] = {
    "startup": startup.measure,
    "planning": planning.measure,
    "probe": probe.measure,
    "screen": screen.measure,
    "launch": launch.measure,
    "submit": submit.measure,
    "wide64": wide.measure_64,
    "wide256": wide.measure_256,
    "check": check.measure,
    "logs": logs.measure,
    "delay": logs.measure_delay,
    "end": logs.measure_end,
    "shared": logs.measure_shared,
    "memory": logs.measure_memory,
    "search": search.measure,
    "push": push.measure,
    "put": put.measure,
    "death": death.measure,
    "vanished": death.measure_vanished,
    "recovery": recovery.measure,
    "refused": silent.measure_refused,
    "stuck": silent.measure_status,
    "silent": silent.measure_follow,
    "wide1024": wide.measure_1024,
    "trainer": trainer.measure,
    "trainer-cuda": trainer.measure_cuda,
    "tokenize": tokenize.measure,
    "estimate": memory.measure,
}
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "clush": "clustershell",
    "pdsh": "pdsh",
    "slurmctld": "slurm-wlm",
}
NEEDED = {"sshd", "ssh-keygen"}
MIN_REPETITIONS = 5


def main() -> int:
    """Run the selected benchmarks. A missed target is part of the report, not an error."""
    options = _options()
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        packages = " ".join(PROGRAMS[name] for name in missing)
        sys.stderr.write(f"missing: {', '.join(missing)} (on Debian: apt-get install {packages})\n")
    if NEEDED & set(missing) and "launch" in (options.only or MEASURES):
        return 2
    if options.repetitions < MIN_REPETITIONS:
        sys.stderr.write(f"fewer than {MIN_REPETITIONS} repetitions: only good for a trial\n")
    adopt_orphans()
    machine = describe()
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        for name in options.only or MEASURES:
            sys.stderr.write(f"{name}\n")
            benchmark_folder = Path(folder, name)
            benchmark_folder.mkdir()
            result = MEASURES[name](Workspace.at(benchmark_folder), repetitions=options.repetitions)
            measures += [result] if isinstance(result, Measure) else result
            _write(options, machine, measures)
    sys.stdout.write(report.markdown(machine, measures, repetitions=options.repetitions))
    return 0


def _write(options: argparse.Namespace, machine: dict[str, str], measures: list[Measure]) -> None:
    """Write the figures to the files that were asked for, after each benchmark: all of them take more than an hour."""
    if options.json:
        options.json.write_text(report.as_json(machine, measures, repetitions=options.repetitions), encoding="utf-8")
    if options.update:
        report.replace_figures(options.update, report.markdown(machine, measures, repetitions=options.repetitions))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare orch with other programs that do the same job."
    )
    parser.add_argument(
        "--repetitions", type=int, default=7, metavar="N", help="counted runs of each contestant (default: 7)"
    )
    parser.add_argument(
        "--only", type=_names, metavar="NAME[,NAME...]", help=f"run only these benchmarks, of {', '.join(MEASURES)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures of every run to FILE")
    parser.add_argument("--update", type=Path, metavar="FILE", help="replace the figures in FILE")
    options = parser.parse_args()
    if options.update and not report.has_figures(options.update):
        parser.error(
            f"--update {options.update}: no such file, or no lines {report.BEGIN.strip()} and {report.END.strip()}"
        )
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"no benchmark is called {unknown[0]!r}; there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
