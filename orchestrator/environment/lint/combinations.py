"""Variables of one script or file that contradict each other, and those that a launcher does not pass to the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.environment.lint.assignment import Assignment, Word
from orchestrator.environment.lint.judge import LintFinding
from orchestrator.environment.table import VARIABLES
from orchestrator.environment.table.values import strtoll
from orchestrator.findings import Finding, Severity

MAX_SOCKETS = 64  # per connection: NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD
_PASSED = ("NCCL", "PYTHON", "UCX", "MV2", "MLFLOW")  # prefixes that the DeepSpeed launcher passes
_MOST_NAMED = 5


def lint_combinations(assignments: Sequence[Assignment]) -> Iterator[LintFinding]:
    """Yield the contradictions between the last values of a file's variables."""
    last = {found.name: found for found in assignments if found.value is not None}
    values = {name: found.value or "" for name, found in last.items()}
    if values.get("NCCL_NET", "").upper() == "IB" and strtoll(values.get("NCCL_IB_DISABLE", ""))[0] == 1:
        text = "NCCL_IB_DISABLE=1: contradicts NCCL_NET=IB, with which NCCL stops if there is no RDMA"
        yield _finding(last["NCCL_IB_DISABLE"], Severity.FAIL, text, "remove one of the two")
    for name in values:
        if name in VARIABLES and f"TORCH_{name}" in VARIABLES and f"TORCH_{name}" in values:
            yield _finding(last[name], Severity.WARN, f"{name}: TORCH_{name} is set, too, and wins", "remove it")
    sockets = _number(values, "NCCL_SOCKET_NTHREADS") * _number(values, "NCCL_NSOCKS_PERTHREAD")
    if sockets > MAX_SOCKETS:
        text = (
            f"NCCL_NSOCKS_PERTHREAD: times NCCL_SOCKET_NTHREADS it is {sockets}, and at most {MAX_SOCKETS} are allowed"
        )
        yield _finding(last["NCCL_NSOCKS_PERTHREAD"], Severity.FAIL, text, "")


def lint_propagation(assignments: Sequence[Assignment], commands: Sequence[Sequence[Word]]) -> Iterator[LintFinding]:
    """Yield a finding on the variables that the DeepSpeed launcher does not pass to other nodes."""
    names = [found.name for found in assignments if found.name in VARIABLES and not found.name.startswith(_PASSED)]
    command = next(filter(_is_deepspeed_on_nodes, commands), None)
    if command is None or not names:
        return
    listed = sorted(set(names))
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    text = f"deepspeed: passes variables that begin with NCCL, PYTHON and UCX to other nodes, and not {', '.join(listed[:_MOST_NAMED])}{more}"
    remedy = "write them into .deepspeed_env, as KEY=VALUE lines; or start the program with orch"
    finding = Finding(Severity.WARN, "deepspeed", text, remedy=remedy, source="DeepSpeed, launcher/runner.py")
    yield LintFinding(finding, assignments[0].file, command[0].line)


def _is_deepspeed_on_nodes(command: Sequence[Word]) -> bool:
    values = [(word.value or "").partition("=")[0] for word in command]
    return values[0].rpartition("/")[2] == "deepspeed" and "--no_ssh" not in values and "--hostfile" in values


def _number(values: Mapping[str, str], name: str) -> int:
    return strtoll(values.get(name, ""))[0] or 1


def _finding(assignment: Assignment, severity: Severity, text: str, remedy: str) -> LintFinding:
    source = VARIABLES[assignment.name].source
    return LintFinding(
        Finding(severity, assignment.name, text, assignment.nodes, remedy=remedy, source=source),
        assignment.file,
        assignment.line,
    )
