"""The command line of a node: `python3 <bundle>/orchestrator/node run JOB.json …` is the agent, `… rendezvous` holds a port."""

from __future__ import annotations

import argparse
import os
import signal
import sys

# Started by path, not installed: what is imported is what travelled along.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from orchestrator.node.agent import guard, run_agent  # noqa: E402
from orchestrator.node.processes import CAUGHT, PR_SET_CHILD_SUBREAPER, Inherited, prctl  # noqa: E402
from orchestrator.node.rendezvous import hold_rendezvous  # noqa: E402


def main() -> int:
    """Become the guard, or hold a rendezvous port."""
    parser = argparse.ArgumentParser(description="Own the ranks of one node.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start this node's ranks and stay until everything below has ended")
    run.add_argument("job", metavar="JOB.json")
    run.add_argument("--node", required=True)
    run.add_argument("--node-rank", required=True, type=int)
    run.add_argument("--rendezvous", metavar='"ADDR PORT HOST_ID"')
    rendezvous = commands.add_parser("rendezvous", help="reserve a port here, print it, hold it until stdin ends")
    rendezvous.add_argument("--address", metavar="CANDIDATE", action="append", default=[])
    options = parser.parse_args()
    umask = os.umask(0o077)  # for what the agent writes; the ranks get theirs back
    if options.command == "rendezvous":
        return hold_rendezvous(options.address)
    folder = os.path.join(os.path.dirname(os.path.abspath(options.job)), options.node)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    for number in CAUGHT:  # a shell's `&` and nohup leave some ignored, and the ranks would inherit that
        signal.signal(number, signal.SIG_DFL)
    if os.getpgrp() != os.getpid():  # a group leader, as under a terminal, cannot lead a new session
        os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    agent_pid = os.fork()
    return guard(agent_pid, folder) if agent_pid else run_agent(options, folder, Inherited(frozenset(mask), umask))


if __name__ == "__main__":
    sys.exit(main())
