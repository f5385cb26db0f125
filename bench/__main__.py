"""`python -m bench`: measure, and print the table."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import death, launch, logs, planning, report, startup, submit, trainer, wide
from bench.machine import describe
from bench.place import Place
from bench.processes import adopt_orphans
from bench.rounds import Measure

MEASURES: dict[str, Callable[..., Measure | list[Measure]]] = {
    "startup": startup.measure,
    "planning": planning.measure,
    "launch": launch.measure,
    "submit": submit.measure,
    "wide64": wide.measure_64,
    "wide256": wide.measure_256,
    "logs": logs.measure,
    "delay": logs.measure_delay,
    "memory": logs.measure_memory,
    "death": death.measure,
    "vanished": death.measure_vanished,
    "crowd": wide.measure_crowd,
    "trainer": trainer.measure,
    "trainer-cuda": trainer.measure_cuda,
}
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "clush": "clustershell",
    "pdsh": "pdsh",
    "slurmctld": "slurm-wlm",
}
NEEDED = {"sshd", "ssh-keygen"}
LEAST = 5


def main() -> int:
    """Measure what was asked for; missed targets are told, and no error."""
    options = _options()
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        packages = " ".join(PROGRAMS[name] for name in missing)
        sys.stderr.write(f"missing: {', '.join(missing)} (on Debian: apt-get install {packages})\n")
    if NEEDED & set(missing) and "launch" in (options.only or MEASURES):
        return 2
    if options.repetitions < LEAST:
        sys.stderr.write(f"fewer than {LEAST} repetitions: for trying out only\n")
    adopt_orphans()
    machine = describe()
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder:
        for name in options.only or MEASURES:
            sys.stderr.write(f"{name}\n")
            own = Path(folder, name)
            own.mkdir()
            found = MEASURES[name](Place.at(own), repetitions=options.repetitions)
            measures += [found] if isinstance(found, Measure) else found
    text = report.markdown(machine, measures, repetitions=options.repetitions)
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(report.as_json(machine, measures, repetitions=options.repetitions), encoding="utf-8")
    if options.update:
        report.put_between_marks(options.update, text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="orch beside what others do the same job with."
    )
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="runs that count (default: 7)")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="this measure; may be given repeatedly")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure there, too")
    parser.add_argument("--update", type=Path, metavar="FILE", help="replace the figures between the marks in FILE")
    options = parser.parse_args()
    if options.update and not report.has_marks(options.update):
        parser.error(
            f"--update {options.update}: no such file, or no lines {report.BEGIN.strip()} and {report.END.strip()}"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
