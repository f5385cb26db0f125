"""
Findings on how a script starts its ranks: the address of the rendezvous, Slurm's variables that are expanded too early, and options of sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.lint.assignment import Script, Word, holes, without_holes
from orchestrator.lint.judge import LintFinding
from orchestrator.lint.sbatch import options
from orchestrator.portable.findings import Finding, Severity

LAUNCHERS = frozenset(("torchrun", "deepspeed", "accelerate", "torch.distributed.run", "torch.distributed.launch"))
_PER_TASK = frozenset(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"))
_RANKS = frozenset(("RANK", "NODE_RANK", "LOCAL_RANK", "GLOBAL_RANK", "MACHINE_RANK", "SLURM_NODEID", "SLURM_PROCID"))
_LOOPBACK = re.compile(r"localhost(?:\.localdomain)?|127(?:\.\d+){3}|::1|\[::1\]|0\.0\.0\.0")
_VARIABLE = re.compile(r"\$\{?[A-Za-z]")  # and no `$___`, which replaces a placeholder of a document
_LAST_PORT = 65535
_SBATCH = "Slurm, sbatch(1)"
_SRUN = "Slurm, srun(1)"
_RENDEZVOUS = "torch, distributed/run.py"


def name_of(word: Word) -> str:
    """The name of a program, without its folder."""
    return word.pattern.rpartition("/")[2]


def starts_ranks(script: Script) -> bool:
    """True if a launcher, which numbers the ranks itself, is among the commands of the script, of those within it and that it sources."""
    return any(name_of(word) in LAUNCHERS for command in script.commands for word in command) or any(
        map(starts_ranks, (*script.embedded, *script.sourced))
    )


def lint_launch(script: Script, file: str) -> Iterator[LintFinding]:
    directives = {entry.name: entry.value for entry in script.directives if not entry.is_late}
    is_many = any(_is_many(directives.get(name, "")) for name in ("nodes", "N"))
    for command in script.commands:
        yield from _rendezvous(command, script, file, is_many=is_many)
        if name_of(command[0]) == "srun":
            yield from _early(command, file)
            yield from _tasks(command, directives, file)
    yield from _early_exports(script, file)
    yield from _directives(script, file)


def _is_many(nodes: str) -> bool:
    """True for a number of nodes from 2 on, also as the least of a range."""
    number = re.match(r"\d{1,9}", nodes)
    return number is not None and int(number[0]) > 1


def _rendezvous(command: Sequence[Word], script: Script, file: str, *, is_many: bool) -> Iterator[LintFinding]:
    start = next((index for index, word in enumerate(command) if name_of(word) in LAUNCHERS), None)
    if start is None:
        return
    given = {name.replace("-", "_"): value for name, value in options([word.pattern for word in command[start + 1 :]])}
    if "standalone" in given:
        return
    around = dict(options([word.pattern for word in command[:start]]))
    nodes = given.get("nnodes", given.get("num_machines", around.get("nodes", around.get("N", ""))))
    written, address, port = _address(given, script)
    location, remedy = (file, command[start].line), "the address of the first node"
    if address == "":
        text = f"{written}: is empty, so torch finds no rendezvous; a variable that is not set here gives an empty text"
        yield _finding(location, Severity.FAIL, "master_addr", text, remedy=remedy, source=_RENDEZVOUS)
    elif (_is_many(nodes) or (is_many and nodes != "1")) and _LOOPBACK.fullmatch(address or ""):
        text = f"{written}: is this machine, so that each of the nodes waits for itself"
        yield _finding(location, Severity.FAIL, "master_addr", text, remedy=remedy, source=_RENDEZVOUS)
    if port.isdecimal() and int(port[:9]) > _LAST_PORT:
        text = f"port {port[:20]}: is above {_LAST_PORT}, so torch stops with an error"
        remedy = "a port from 1024 to 32767"
        yield _finding(location, Severity.FAIL, "master_port", text, remedy=remedy, source=_RENDEZVOUS)


def _address(given: Mapping[str, str], script: Script) -> tuple[str, str | None, str]:
    """How the rendezvous is given, its address, and its port or ""."""
    if "rdzv_endpoint" in given:
        endpoint = given["rdzv_endpoint"]
        host, _, port = endpoint.rpartition(":")
        return f"--rdzv_endpoint {without_holes(endpoint)}", host or endpoint, port if host else ""
    port = given.get("master_port", given.get("main_process_port", ""))
    for name in ("master_addr", "main_process_ip"):
        if name in given:
            return f"--{name} {without_holes(given[name])}".rstrip(), given[name], port
    address = (script.exported or {}).get("MASTER_ADDR")
    return f"MASTER_ADDR={without_holes(address or '')}", address, port


def _early(command: Sequence[Word], file: str) -> Iterator[LintFinding]:
    for word in command[1:]:
        early = sorted(holes(word.pattern) & _PER_TASK)
        if early:
            text = f"srun … ${early[0]}: this shell expands it before srun starts the tasks, so that all of them get the same number"
            remedy = f"srun bash -c '… ${early[0]} …', in single quotes"
            yield _finding((file, word.line), Severity.FAIL, early[0], text, remedy=remedy, source=_SRUN)
            return


def _early_exports(script: Script, file: str) -> Iterator[LintFinding]:
    """Find numbers of ranks that a batch script takes from its own task, and srun passes to all."""
    first_srun = next((command[0].line for command in script.commands if name_of(command[0]) == "srun"), None)
    if first_srun is None or not script.directives:
        return
    for found in script.assignments:
        early = sorted(holes(found.pattern) & _PER_TASK)
        if early and found.name in _RANKS and found.is_exported and not found.is_of_command and found.line < first_srun:
            text = f"{found.name}=${early[0]}: is evaluated once, in the batch script, and srun passes this number to all tasks"
            remedy = f"srun bash -c 'export {found.name}=${early[0]}; …'"
            yield _finding((file, found.line), Severity.FAIL, found.name, text, remedy=remedy, source=_SRUN)


def _tasks(command: Sequence[Word], directives: Mapping[str, str], file: str) -> Iterator[LintFinding]:
    """Find launchers of ranks that srun starts more than once per node."""
    start = next((index for index, word in enumerate(command) if name_of(word) in LAUNCHERS), None)
    if start is None or name_of(command[start]) == "accelerate":
        return
    given = dict(options([word.pattern for word in command[1:start]]))
    if {"ntasks-per-node", "ntasks", "n"} & given.keys():
        tasks = given.get("ntasks-per-node", "")
    else:
        tasks = directives.get("ntasks-per-node", "")
    ranks = dict(options([word.pattern.replace("_", "-") for word in command[start + 1 :]])).get("nproc-per-node", "1")
    if _is_many(tasks) and ranks != "1":
        text = f"{name_of(command[start])}: srun starts it {tasks} times on every node, and each starts ranks for all cards"
        remedy = "--ntasks-per-node=1"
        yield _finding(
            (file, command[start].line), Severity.WARN, "ntasks-per-node", text, remedy=remedy, source=_SBATCH
        )


def _directives(script: Script, file: str) -> Iterator[LintFinding]:
    late = [entry for entry in script.directives if entry.is_late]
    if late:
        text = f"#SBATCH --{late[0].name}: is below the first command, so sbatch ignores it"
        yield _finding((file, late[0].line), Severity.WARN, "sbatch", text, remedy="move it up", source=_SBATCH)
    for entry in script.directives:
        if _VARIABLE.search(entry.value) and not entry.is_late and entry.name not in ("export", "comment", "wrap"):
            text = f"#SBATCH --{entry.name}={entry.value[:60]}: sbatch expands no variables in comments"
            remedy = "the value itself, or an option of sbatch"
            yield _finding((file, entry.line), Severity.WARN, "sbatch", text, remedy=remedy, source=_SBATCH)
        if entry.name == "export" and "=" in entry.value and not re.match(r"(?:ALL|NONE)\b", entry.value):
            text = f"#SBATCH --export={entry.value[:60]}: without ALL the job gets no other variable of the submitting shell"
            remedy = f"--export=ALL,{entry.value[:60]}"
            yield _finding((file, entry.line), Severity.INFO, "sbatch", text, remedy=remedy, source=_SBATCH)


def _finding(
    location: tuple[str, int], severity: Severity, check: str, text: str, *, remedy: str, source: str
) -> LintFinding:
    return LintFinding(Finding(severity, check, text, remedy=remedy, source=source), *location)
