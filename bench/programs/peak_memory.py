"""Run a command, and print the peak memory in MB of the largest process that it starts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

code = subprocess.run(sys.argv[1:], check=False, stdout=subprocess.DEVNULL).returncode
largest_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
sys.stdout.write(f"figures {json.dumps({'memory': largest_kb / 1024})}\n")
sys.exit(code)
