"""
The command line of a node, used by node.sh, the batch script and srun:

    python3 <bundle>/orchestrator/node/__main__.py run JOB.json --node NAME --node-rank N [--rendezvous "ADDR PORT HOST_ID" | -]
    python3 <bundle>/orchestrator/node/__main__.py rendezvous [--address CANDIDATE]… [--job JOB.json]
    python3 <bundle>/orchestrator/node/__main__.py attempt JOB.json
    python3 <bundle>/orchestrator/node/__main__.py nodes JOB.json
    python3 <bundle>/orchestrator/node/__main__.py next JOB.json STATUS ENDED
    python3 <bundle>/orchestrator/node/__main__.py forget JOB.json --node NAME

`run` starts this node's ranks and waits until all its descendants have ended; with `-` it reads the head's record from
stdin. `rendezvous` makes the folders that the nodes share, reserves a port on this node, prints its record and holds the port until
stdin ends. `attempt` makes the folder of the next attempt of a Slurm job and prints its path; `nodes` prints the nodes of an
attempt; `next` decides after an attempt whether to start another, and prints its folder if it runs in this allocation. `forget` removes what
the ranks have left for another attempt in the memory of this node.
"""

from __future__ import annotations

import os
import sys

UMASK = os.umask(0o077)  # the agent's files, byte code included, are private; the ranks get the original umask
# Started by path, not installed: import the modules of the bundle.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True  # until write_if_safe

from orchestrator.node.byte_code import write_if_safe  # noqa: E402

write_if_safe(sys.path[0])

from orchestrator.node.agent.guard import AgentOptions, lead  # noqa: E402
from orchestrator.node.rendezvous import hold_rendezvous  # noqa: E402


def options_of(words: list[str]) -> AgentOptions:
    """Parse the words after `run`. Not with argparse: importing it takes as long as importing the agent."""
    values = dict(zip(words[1::2], words[2::2]))
    rendezvous = values.get("--rendezvous")
    if rendezvous == "-":
        rendezvous = sys.stdin.readline().strip()
    return AgentOptions(words[0], values["--node"], int(values["--node-rank"]), rendezvous)


def main() -> int:
    """Become the guard, hold a rendezvous port, or handle the next attempt."""
    if sys.argv[1:2] == ["rendezvous"]:
        words = list(zip(sys.argv[2::2], sys.argv[3::2]))
        for job in (value for name, value in words if name == "--job"):
            from orchestrator.node.batch.folders import make_folders  # noqa: PLC0415  only a batch script needs it

            make_folders(job)
        return hold_rendezvous([value for name, value in words if name == "--address"])
    if sys.argv[1:2] == ["attempt"]:
        from orchestrator.node.batch.restart import begin_attempt  # noqa: PLC0415  slow to import, and agents do not need it

        print(begin_attempt(sys.argv[2]))
        return 0
    if sys.argv[1:2] == ["nodes"]:
        from orchestrator.node.batch.restart import nodes_for  # noqa: PLC0415  as above

        print(",".join(nodes_for(sys.argv[2])))
        return 0
    if sys.argv[1:2] == ["next"]:
        from orchestrator.node.batch.restart import next_attempt  # noqa: PLC0415  as above

        return next_attempt(*sys.argv[2:5])
    if sys.argv[1:2] == ["forget"]:
        from orchestrator.node.batch.folders import forget_memory  # noqa: PLC0415  as above

        return forget_memory(sys.argv[2], sys.argv[4])
    try:
        options = options_of(sys.argv[2:])
    except (LookupError, ValueError):
        sys.exit(__doc__)
    return lead(options, UMASK)


if __name__ == "__main__":
    sys.exit(main())
