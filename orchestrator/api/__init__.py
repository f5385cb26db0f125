"""The Python interface of orch, without output: it plans, launches and records as the commands do. Its names are exported by orchestrator."""

from orchestrator.api.launches import ssh_launch, submit
from orchestrator.api.recorded import Runs, compare, runs
from orchestrator.api.run import Run
from orchestrator.api.tables import Rows

__all__ = ["Rows", "Run", "Runs", "compare", "runs", "ssh_launch", "submit"]
