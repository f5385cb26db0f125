"""
Findings on how a script starts its ranks: the address of the rendezvous, Slurm's variables that are expanded too early, and options of sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from orchestrator.lint.assignment import HOLE, Script, Word, holes, without_holes
from orchestrator.lint.judge import LintFinding
from orchestrator.lint.sbatch import options
from orchestrator.portable.findings import Finding, Severity

LAUNCHERS = frozenset(("torchrun", "deepspeed", "accelerate", "torch.distributed.run", "torch.distributed.launch"))
_PER_TASK = frozenset(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"))
_NODELISTS = frozenset(("SLURM_NODELIST", "SLURM_JOB_NODELIST"))
_RANKS = frozenset(("RANK", "NODE_RANK", "LOCAL_RANK", "GLOBAL_RANK", "MACHINE_RANK", "SLURM_NODEID", "SLURM_PROCID"))
_LOOPBACK = re.compile(r"localhost(?:\.localdomain)?|127(?:\.\d+){3}|::1|\[::1\]|0\.0\.0\.0")
_DYNAMIC = re.compile(r"--rdzv[-_]backend[= ]+(?:c10d|etcd\S*)")  # numbers the nodes itself
_NODE_RANK = re.compile(r"--(?:node|machine)[-_]rank[= ]+\S+")
_OF_TORCH = LAUNCHERS - {"accelerate", "deepspeed"}
_TRAINING = re.compile(
    r"(?:^|[/\s])(?:(?:torchrun|accelerate|deepspeed)\s|python[\d.]*\s+(?!-c\s)(?:.*\s)?(?:-m\s|\S+\.py\b))"
)
_STARTERS = re.compile(
    r"(?:^|[/\s])(?:srun|sbatch|orch|ray|ssh|pdsh|pssh|dsh|clush|parallel|mpirun|mpiexec\S*|ibrun|jsrun|aprun|prun|flux)(?=\s|$)"
)
_RUNTIMES = frozenset(("docker", "nvidia-docker", "podman"))
_CARDS_OF_CONTAINER = re.compile(r"--gpus|--runtime[= ]nvidia|nvidia\.com/gpu|/dev/(?:nvidia|kfd|gcu)")
_SHARED_MEMORY = re.compile(r"--ipc[= ](?!private|none)|--shm-size|/dev/shm")
_NUMBERS = re.compile(r"\d+(?:,\d+)*")
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
        yield from _cards(command, script, file)
        yield from _shared_memory(command, file)
        if name_of(command[0]) == "srun":
            yield from _early(command, file)
            yield from _tasks(command, directives, file)
            yield from _on_every_node(command, file, is_many=is_many)
    yield from _early_exports(script, file)
    yield from _first_node_alone(script, file, is_many=is_many)
    yield from _survivors(script, file, is_many=is_many)
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
    elif holes(address or "") & _NODELISTS and without_holes(address or "").strip("${}") in _NODELISTS:
        text = f"{written}: is a list such as n[0-3] if there are several nodes, and no address"
        remedy = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
        yield _finding(location, Severity.FAIL, "master_addr", text, remedy=remedy, source=_SBATCH)
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
    text = _text(command[1:])
    is_dynamic = _DYNAMIC.search(text) is not None
    early = sorted(holes(_NODE_RANK.sub("", text) if is_dynamic else text) & _PER_TASK)
    if early:
        line = next(word.line for word in command[1:] if early[0] in holes(word.pattern))
        text = f"srun … ${early[0]}: this shell expands it before srun starts the tasks, so that all of them get the same number"
        remedy = f"srun bash -c '… ${early[0]} …', in single quotes"
        yield _finding((file, line), Severity.FAIL, early[0], text, remedy=remedy, source=_SRUN)


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
    is_given = bool({"ntasks-per-node", "tasks-per-node", "ntasks", "n"} & given.keys())
    tasks = _per_node(given if is_given else directives, {**directives, **given})
    ranks = dict(options([word.pattern.replace("_", "-") for word in command[start + 1 :]])).get("nproc-per-node", "1")
    if _is_many(tasks) and ranks != "1":
        text = f"{name_of(command[start])}: srun starts it {tasks} times on every node, and each starts ranks for all cards"
        remedy = "--ntasks-per-node=1"
        yield _finding(
            (file, command[start].line), Severity.WARN, "ntasks-per-node", text, remedy=remedy, source=_SBATCH
        )


def _per_node(tasks: Mapping[str, str], nodes: Mapping[str, str]) -> str:
    """The number of tasks that these options start on a node, "" if it is not written as a number."""
    total, count = tasks.get("ntasks", tasks.get("n", "")), nodes.get("nodes", nodes.get("N", ""))
    per_node = tasks.get("ntasks-per-node", tasks.get("tasks-per-node", ""))
    if per_node or not (total.isdecimal() and count.isdecimal() and int(count[:9])):
        return per_node
    return str(int(total[:9]) // int(count[:9]))


def _text(command: Sequence[Word]) -> str:
    return " ".join(word.pattern for word in command)


def _is_for_some(given: Mapping[str, str]) -> bool:
    """True for options of srun that choose nodes, or may start fewer tasks than there are nodes."""
    return bool({"nodes", "N", "ntasks", "n", "nodelist", "w", "relative", "r", "exclude", "x"} & given.keys())


def _on_every_node(command: Sequence[Word], file: str, *, is_many: bool) -> Iterator[LintFinding]:
    """Find launchers of torch that srun starts on several nodes as if there was one, or all with the same number."""
    start = next((index for index, word in enumerate(command) if name_of(word) in LAUNCHERS), None)
    if start is None or not is_many or _is_for_some(dict(options([word.pattern for word in command[1:start]]))):
        return
    given = {name.replace("-", "_"): value for name, value in options([word.pattern for word in command[start + 1 :]])}
    location, name = (file, command[start].line), name_of(command[start])
    is_alone = given.get("nnodes", "1") in ("1", "1:1") or "standalone" in given
    if name in _OF_TORCH and is_alone and HOLE not in _launcher_text(command[start + 1 :]):
        text = f"{name} without --nnodes: srun starts it on every node, and each trains alone"
        remedy = "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500"
        yield _finding(location, Severity.WARN, "nnodes", text, remedy=remedy, source=_RENDEZVOUS)
        return
    rank = given.get("node_rank", given.get("machine_rank", ""))
    if rank.isdecimal() and not is_alone and _DYNAMIC.search(_text(command)) is None:
        text = f"--node_rank {rank[:9]}: is the same on every node, so that each waits for the others"
        remedy = "srun bash -c '… --node_rank=$SLURM_NODEID …', in single quotes"
        yield _finding(location, Severity.FAIL, "node_rank", text, remedy=remedy, source=_RENDEZVOUS)


def _launcher_text(words: Sequence[Word]) -> str:
    """The options of a launcher, up to its program, in which an unknown variable may hold others."""
    program = next((index for index, word in enumerate(words) if word.pattern.endswith(".py")), len(words))
    return " ".join(word.pattern for word in words[:program] if not word.pattern.startswith("-"))


def _first_node_alone(script: Script, file: str, *, is_many: bool) -> Iterator[LintFinding]:
    """Find launchers for several nodes in a batch script that starts nothing on the others."""
    if not is_many or any(entry.is_inherited for entry in script.directives) or _starts_elsewhere(script):
        return
    for command in script.commands:
        name = name_of(command[0])
        given = {key.replace("-", "_"): value for key, value in options([word.pattern for word in command[1:]])}
        nodes = given.get("num_machines" if name == "accelerate" else "nnodes", "1")
        if name in LAUNCHERS - {"deepspeed"} and nodes not in ("1", "1:1"):
            text = f"{name}: is for several nodes, and no srun starts it on the others: sbatch runs this script on the first node alone"
            remedy = f"srun --ntasks-per-node=1 {name} …"
            yield _finding((file, command[0].line), Severity.WARN, "srun", text, remedy=remedy, source=_SBATCH)
            return


def _starts_elsewhere(script: Script) -> bool:
    """True if a command of the script, of those within it or that it sources, starts programs on other nodes, or may do so."""
    is_starter = any(_STARTERS.search(_text(command)) for command in script.commands)
    return is_starter or bool(script.unread) or any(map(_starts_elsewhere, (*script.embedded, *script.sourced)))


def _is_open(options_text: str) -> bool:
    """True if the options of srun, which are this text, have a variable that may hold more of them."""
    words = options_text.split(" ")
    return any(word.startswith(HOLE) and not before.startswith("-") for before, word in pairwise(("", *words)))


def _survivors(script: Script, file: str, *, is_many: bool) -> Iterator[LintFinding]:
    """Find a training whose other tasks srun lets run when one fails; at most one."""
    if not is_many or "SLURM_KILL_BAD_EXIT" in (script.exported or {}):
        return
    for command in script.commands:
        text = _text(command[1:])
        given = dict(options([word.pattern for word in command[1:]]))
        found = _TRAINING.search(text)
        is_training = name_of(command[0]) == "srun" and found is not None and not _is_open(text[: found.start()])
        counts = {given[name] for name in ("nodes", "N", "ntasks", "n") if name in given}
        if is_training and "1" not in counts and not re.search(r"(?:^|\s)(?:-K|--kill-on-bad-exit)", text):
            text = "srun without --kill-on-bad-exit: if a task fails, the others wait for it, unless the cluster sets KillOnBadExit"
            remedy = "srun --kill-on-bad-exit=1 …"
            yield _finding(
                (file, command[0].line), Severity.INFO, "kill-on-bad-exit", text, remedy=remedy, source=_SRUN
            )
            return


def _cards(command: Sequence[Word], script: Script, file: str) -> Iterator[LintFinding]:
    """Find a launcher that starts more ranks than the cards which the script leaves visible."""
    start = next((index for index, word in enumerate(command) if name_of(word) in _OF_TORCH), None)
    name = "CUDA_VISIBLE_DEVICES"
    if start is None or name in (word.value for word in script.unset):
        return
    given = dict(options([word.pattern.replace("_", "-") for word in command[start + 1 :]]))
    ranks, line = given.get("nproc-per-node", ""), command[start].line
    found = [
        entry
        for entry in script.assignments
        if entry.name == name
        and (entry.line == line if entry.is_of_command else entry.is_exported and entry.line <= line)
    ]
    value = found[-1].value if found and not any(entry.branches for entry in found) else None
    if value is None or not _NUMBERS.fullmatch(value) or not ranks.isdecimal():
        return
    count = value.count(",") + 1
    if int(ranks[:9]) > count:
        text = f"--nproc_per_node {ranks[:9]}: {name}={value[:60]} leaves {count}, and the ranks above stop with `invalid device ordinal`"
        remedy = f"--nproc_per_node {count}, or remove {name}"
        yield _finding((file, line), Severity.FAIL, name, text, remedy=remedy, source=_RENDEZVOUS)


def _shared_memory(command: Sequence[Word], file: str) -> Iterator[LintFinding]:
    """Find containers with cards that have docker's own size of /dev/shm."""
    name, text = name_of(command[0]), _text(command)
    if name not in _RUNTIMES or " run " not in text or _is_open(text):
        return
    is_training = _TRAINING.search(text) is not None and "setup.py" not in text
    has_cards = name == "nvidia-docker" or _CARDS_OF_CONTAINER.search(text) is not None
    if has_cards and (is_training or text.endswith("sh")) and not _SHARED_MEMORY.search(text):
        message = f"{name} run without --ipc=host or --shm-size: /dev/shm has 64 MB, in which NCCL and the workers of DataLoader find no space"
        yield _finding(
            (file, command[0].line),
            Severity.INFO,
            "shm-size",
            message,
            remedy="--ipc=host",
            source="docker, docker-run(1)",
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
