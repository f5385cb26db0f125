"""Connect to all nodes of an inventory, push, start a sleeping rank on each, stop them; print the times as JSON."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.actions.inventory import load_inventory
from orchestrator.actions.request import LaunchArguments, make_request
from orchestrator.launchers import launcher_for
from orchestrator.plan.make import make_plan
from orchestrator.run import new_run_id

path = sys.argv[1]
program = ("sleep", "1000")
inventory = load_inventory(path, None)
request, bundle = make_request(LaunchArguments("ssh", path, None, None, None, (), program))
run_id = new_run_id(inventory.name, datetime.now(timezone.utc), secrets.token_hex(2))
launcher = launcher_for(make_plan(inventory, request, run_id=run_id, bundle=bundle.digest))
begun = time.monotonic()
launcher.start(bundle)
started = time.monotonic()
threads, files = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
left = launcher.stop(None, grace_s=5.0)
stopped = time.monotonic()
launcher.close()
assert not left, left
figures = {"start": started - begun, "stop": stopped - started, "threads": threads, "files": files}
sys.stdout.write(f"figures {json.dumps(figures)}\n")
