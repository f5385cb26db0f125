"""
The command line of a node, used by node.sh, the batch script and srun:

    python3 <bundle>/orchestrator/node/__main__.py run JOB.json --node NAME --node-rank N [--rendezvous "ADDR PORT HOST_ID" | -]
    python3 <bundle>/orchestrator/node/__main__.py rendezvous [--address CANDIDATE]… [--job JOB.json]
    python3 <bundle>/orchestrator/node/__main__.py attempt JOB.json
    python3 <bundle>/orchestrator/node/__main__.py nodes JOB.json
    python3 <bundle>/orchestrator/node/__main__.py next JOB.json STATUS ENDED
    python3 <bundle>/orchestrator/node/__main__.py forget JOB.json --node NAME
    python3 <bundle>/orchestrator/node/__main__.py watch JOB.json BATCH_HOST

`run` starts this node's ranks and waits until all its descendants have ended; with `-` it reads the head's record from
stdin. `rendezvous` makes the folders that the nodes share, reserves a port on this node, prints its record and holds the port until
stdin ends. `attempt` makes the folder of the next attempt of a Slurm job and prints its path; `nodes` prints the nodes of an
attempt; `next` decides after an attempt whether to start another, and prints its folder if it runs in this allocation. `forget` removes what
the ranks have left for another attempt in the memory of this node. `watch` requeues the job if the node of the batch script is lost.
"""

from __future__ import annotations

import os
import sys

UMASK = os.umask(0o077)  # the agent's files, byte code included, are private; the ranks get the original umask
# Started by path, not installed: import the modules of the bundle.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True  # until write_if_safe

from orchestrator.node.system.byte_code import write_if_safe

write_if_safe(sys.path[0])

from orchestrator.node.agent.guard import AgentOptions, lead
from orchestrator.node.rendezvous import hold_rendezvous, read_record

BATCH_VERBS = ("attempt", "nodes", "next", "forget", "watch")


def serve_batch_script(verb: str, words: list[str]) -> int:
    """Do what the batch script of a Slurm job asks for. The modules are slow to import, and agents do not need them."""
    if verb in ("forget", "watch"):
        from orchestrator.node.batch.folders import forget_memory
        from orchestrator.node.batch.head_watch import watch

        return forget_memory(words[0], words[2]) if verb == "forget" else watch(*words[:2])
    from orchestrator.node.batch.restart import begin_attempt, next_attempt, nodes_for

    if verb == "next":
        return next_attempt(*words[:3])
    print(begin_attempt(words[0]) if verb == "attempt" else ",".join(nodes_for(words[0])))
    return 0


def main() -> int:
    """Become the guard, hold a rendezvous port, or serve the batch script."""
    if sys.argv[1:2] == ["rendezvous"]:
        words = list(zip(sys.argv[2::2], sys.argv[3::2]))
        for job in (value for name, value in words if name == "--job"):
            from orchestrator.node.batch.folders import make_folders  # only a batch script needs it

            make_folders(job)
        return hold_rendezvous([value for name, value in words if name == "--address"])
    if sys.argv[1:2] and sys.argv[1] in BATCH_VERBS:
        return serve_batch_script(sys.argv[1], sys.argv[2:])
    try:
        # not with argparse: importing it takes as long as importing the agent
        given = sys.argv[2:]
        values = dict(zip(given[1::2], given[2::2]))
        rendezvous = values.get("--rendezvous")
        if rendezvous == "-":
            rendezvous = read_record(sys.stdin)
        options = AgentOptions(given[0], values["--node"], int(values["--node-rank"]), rendezvous)
    except (LookupError, ValueError):
        sys.exit(__doc__)
    return lead(options, UMASK)


if __name__ == "__main__":
    sys.exit(main())
