"""Run `true` on all hosts with Fabric's own fan-out; print the time and the processor time as JSON."""

from __future__ import annotations

import json
import sys
import time

from fabric import Config, ThreadingGroup  # type: ignore[import-untyped]

config = Config(runtime_ssh_path=sys.argv[1])
begun, begun_cpu = time.monotonic(), time.process_time()
results = ThreadingGroup(*sys.argv[2:], config=config).run("true", hide=True)
ended, ended_cpu = time.monotonic(), time.process_time()
assert len(results) == len(sys.argv[2:])
figures = {
    "start": ended - begun,
    "controller": (ended_cpu - begun_cpu) / len(results),
    "whole": ended_cpu / len(results),  # since the start of the process
}
sys.stdout.write(f"figures {json.dumps(figures)}\n")
