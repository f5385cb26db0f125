"""Run `true` on all hosts with Fabric's own fan-out; print the time as JSON."""

from __future__ import annotations

import json
import sys
import time

from fabric import Config, ThreadingGroup  # type: ignore[import-untyped]

config = Config(runtime_ssh_path=sys.argv[1])
begun = time.monotonic()
results = ThreadingGroup(*sys.argv[2:], config=config).run("true", hide=True)
assert len(results) == len(sys.argv[2:])
sys.stdout.write(f"figures {json.dumps({'start': time.monotonic() - begun})}\n")
