"""
The program of the check, which node.sh runs from the bundle:

    python3 <bundle>/orchestrator/portable/job_check/__main__.py probe JOB.json
    python3 <bundle>/orchestrator/portable/job_check/__main__.py check JOB.json BEGUN
    python3 <bundle>/orchestrator/portable/job_check/__main__.py variables JOB.json

`probe` writes the facts of this node into the run's folder. `check` judges the facts of all nodes of the allocation, which were
written after BEGUN (seconds since the epoch), and exits with 3 if the job must not start. `variables` writes the discovered
variables of a restarted attempt, from the facts that the allocation has already.
"""

from __future__ import annotations

import os
import signal
import sys

os.umask(0o077)  # facts and byte code are private
# Started by path, not installed: import the modules of the bundle.
sys.path[0] = os.path.abspath(__file__).rpartition("/orchestrator/")[0]
sys.dont_write_bytecode = True  # until write_if_safe

from orchestrator.node.system.byte_code import write_if_safe

write_if_safe(sys.path[0])


def main() -> int:
    verb, path, *more = sys.argv[1:]
    if verb == "probe":
        from orchestrator.portable.job_check.probe import probe  # the other nodes need no checks

        return probe(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for the batch script, which then ends the job
    from orchestrator.portable.job_check import judge

    try:
        return judge.check_job(path, float(more[0])) if verb == "check" else judge.write_variables(path)
    except Exception as error:  # noqa: BLE001  a defect of the check must not prevent the job
        print(f"orch: the nodes were not checked: {error!r}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
