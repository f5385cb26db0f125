"""
The program that orch starts on a node in place of `python -m trainer`: a warm trainer does the work, this exits like it.

    warm_rank.py SOCKET WORD…
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
output = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in (1, 2)]
request = {"words": sys.argv[2:], "env": dict(os.environ), "cwd": str(Path.cwd()), "output": output}
link.sendall(json.dumps(request).encode() + b"\n")
code = int(link.recv(16) or "1")
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
