"""Run a function on two nodes as a user of submitit would; the log folder is in argv."""

from __future__ import annotations

import sys

import submitit

HELLO = "hello from a rank"


if __name__ == "__main__":
    executor = submitit.SlurmExecutor(folder=sys.argv[1])
    executor.update_parameters(nodes=2, ntasks_per_node=1, partition="debug", time=5)
    executor.submit(print, HELLO)
