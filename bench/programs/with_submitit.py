"""What a user of submitit writes to run a function on two nodes; the folder of its logs is in argv."""

from __future__ import annotations

import sys

import submitit

SAID = "hello from a rank"


if __name__ == "__main__":
    executor = submitit.SlurmExecutor(folder=sys.argv[1])
    executor.update_parameters(nodes=2, ntasks_per_node=1, partition="debug", time=5)
    executor.submit(print, SAID)
