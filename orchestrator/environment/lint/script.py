"""
Findings on a script as a whole: arguments of launchers, variables that contradict each other or do not reach the other nodes, lines
that could not be read, and ranks in the background whose end nobody sees.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.environment.lint.assignment import Assignment, Script, Word
from orchestrator.environment.lint.judge import LintFinding
from orchestrator.environment.table import VARIABLES
from orchestrator.environment.table.values import strtoll
from orchestrator.findings import Finding, Severity

DDP_TIMEOUT_S = 1800  # the default of transformers' Trainer
MAX_SOCKETS = 64  # per connection: NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD
_RUN = "torch, distributed/run.py"
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_FLAGS = frozenset(("standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank"))
_STATIC = ("master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
_PASSED = ("NCCL", "PYTHON", "UCX", "MV2", "MLFLOW")  # prefixes that the DeepSpeed launcher passes
_MOST_NOT_PASSED, _MOST_UNREAD = 5, 3  # that are named
_EXPORT = re.compile(r"^[ \t]*export[ \t]+([A-Za-z_]\w*)=", re.MULTILINE)
_TRAINING = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate)|.*\.py")
_WAIT = "wait without arguments ends with 0 whatever the processes in the background end with, so a rank that fails is not noticed"


def lint_script(script: Script, text: str, file: str) -> Iterator[LintFinding]:
    """Judge the script as a whole; at most one finding of each kind."""
    if script.stopped_at is not None:
        problem = (
            "a quote, bracket or here-document that begins here does not end, so the lines from here on were not read"
        )
        remedy = f"bash -n {shlex.quote(file)}"
        yield _finding((file, script.stopped_at), Severity.WARN, "script", problem, remedy=remedy)
    yield from _unread(script, text, file)
    waits = [words for words in script.commands if [word.value for word in words] == ["wait"]]
    has_training = any(
        word.value is not None and _TRAINING.fullmatch(word.value)
        for index in script.background
        for word in script.commands[index]
    )
    if has_training and waits:
        remedy = "let torchrun or orch start the ranks; or wait for each: pids+=($!) … for p in ${pids[@]}; do wait $p || exit; done"
        yield _finding((file, waits[-1][0].line), Severity.WARN, "wait", _WAIT, remedy=remedy)


def _unread(script: Script, text: str, file: str) -> Iterator[LintFinding]:
    """Find lines of quoted texts and here-documents that would set known variables in another shell."""
    read = {(found.name, found.line) for found in script.assignments}
    unread: dict[str, int] = {}
    for match in _EXPORT.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        if match[1] in VARIABLES and (match[1], line) not in read and line < (script.stopped_at or line + 1):
            unread.setdefault(match[1], line)
    if unread:
        names = ", ".join(f"{name} (line {line})" for name, line in list(unread.items())[:_MOST_UNREAD])
        more = f" and {len(unread) - _MOST_UNREAD} more" if len(unread) > _MOST_UNREAD else ""
        problem = f"{names}{more}: set within a quoted text or here-document, which was not read"
        remedy = "give orch lint these lines as a file of their own"
        yield _finding((file, next(iter(unread.values()))), Severity.INFO, "script", problem, remedy=remedy)


def lint_combinations(assignments: Sequence[Assignment]) -> Iterator[LintFinding]:
    """Find contradictions between the last values of a file's variables."""
    last = {found.name: found for found in assignments if found.value is not None}
    values = {name: found.value or "" for name, found in last.items()}

    def finding(name: str, severity: Severity, text: str, remedy: str = "") -> LintFinding:
        found, source = last[name], VARIABLES[name].source
        return LintFinding(
            Finding(severity, name, text, found.nodes, remedy=remedy, source=source), found.file, found.line
        )

    if values.get("NCCL_NET", "").upper() == "IB" and strtoll(values.get("NCCL_IB_DISABLE", ""))[0] == 1:
        text = "NCCL_IB_DISABLE=1: contradicts NCCL_NET=IB, with which NCCL stops if there is no RDMA"
        yield finding("NCCL_IB_DISABLE", Severity.FAIL, text, "remove one of the two")
    for name in values:
        if name in VARIABLES and f"TORCH_{name}" in VARIABLES and f"TORCH_{name}" in values:
            yield finding(name, Severity.WARN, f"{name}: TORCH_{name} is set, too, and wins", "remove it")
    threads, per_thread = (
        strtoll(values.get(name, ""))[0] or 1 for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    )
    if threads * per_thread > MAX_SOCKETS:
        text = f"times NCCL_SOCKET_NTHREADS it is {threads * per_thread}, and at most {MAX_SOCKETS} are allowed"
        yield finding("NCCL_NSOCKS_PERTHREAD", Severity.FAIL, f"NCCL_NSOCKS_PERTHREAD: {text}")


def lint_propagation(assignments: Sequence[Assignment], commands: Sequence[Sequence[Word]]) -> Iterator[LintFinding]:
    """Find the variables that the DeepSpeed launcher does not pass to other nodes."""
    names = sorted(
        {found.name for found in assignments if found.name in VARIABLES and not found.name.startswith(_PASSED)}
    )
    for command in commands if names else ():
        words = [(word.value or "").partition("=")[0] for word in command]
        if words[0].rpartition("/")[2] == "deepspeed" and "--no_ssh" not in words and "--hostfile" in words:
            more = f" and {len(names) - _MOST_NOT_PASSED} more" if len(names) > _MOST_NOT_PASSED else ""
            not_passed = f"{', '.join(names[:_MOST_NOT_PASSED])}{more}"
            text = (
                f"deepspeed: passes variables that begin with NCCL, PYTHON and UCX to other nodes, and not {not_passed}"
            )
            remedy = "write them into .deepspeed_env, as KEY=VALUE lines; or start the program with orch"
            location, source = (assignments[0].file, command[0].line), "DeepSpeed, launcher/runner.py"
            yield _finding(location, Severity.WARN, "deepspeed", text, remedy=remedy, source=source)
            return


def lint_commands(commands: Iterable[Sequence[Word]], file: str) -> Iterator[LintFinding]:
    """Judge the arguments of torchrun, also as `python -m torch.distributed.run`, and of the scripts that it starts."""
    for command in commands:
        values = [word.value or "" for word in command]
        begin = 0
        for index, value in enumerate(values):
            if value.rpartition("/")[2] == "torchrun" or (value in _MODULES and values[index - 1] == "-m"):
                options, begin = _options(command, index + 1)
                yield from _torchrun_faults(options, file)
                break
        yield from _script_faults(command[begin:], file, is_launched=begin > 0)


def _options(command: Sequence[Word], begin: int) -> tuple[dict[str, tuple[str, int]], int]:
    """The options of torchrun as name -> value and line, with `_` for `-` in names; and the index of the script."""
    options: dict[str, tuple[str, int]] = {}
    index = begin
    while index < len(command) and (command[index].value or "").startswith("-"):
        word = command[index]
        written, equals, value = (word.value or "").partition("=")
        name = written.lstrip("-").replace("-", "_")
        if not equals and name not in _FLAGS and index + 1 < len(command):
            index += 1
            value = command[index].value or ""
        options[name] = value, word.line
        index += 1
    return options, index


def _torchrun_faults(options: dict[str, tuple[str, int]], file: str) -> Iterator[LintFinding]:
    def finding(severity: Severity, name: str, text: str, remedy: str) -> LintFinding:
        return _finding((file, options[name][1]), severity, name, text, remedy=remedy, source=_RUN)

    if "max_retries" in options:
        value = options["max_retries"][0]
        text = f"--max_retries {value}: is no option of torchrun, which stops with a usage error"
        yield finding(Severity.FAIL, "max_retries", text, f"--max-restarts {value}")
    nodes = options.get("nnodes", ("", 0))[0]
    is_many = nodes.isdigit() and int(nodes[:9]) > 1
    if "standalone" in options:
        if is_many:
            text = "--standalone: is for one node, so that every node trains alone"
            yield finding(Severity.FAIL, "standalone", text, "--master-addr and --node-rank instead")
        for name in filter(options.__contains__, _STATIC):
            written = f"--{name} {options[name][0]}"
            text = f"{written}: is ignored with --standalone, which chooses address and port"
            yield finding(Severity.WARN, name, text, f"omit --{name}")
    elif (
        options.get("rdzv_backend", ("",))[0] == "c10d" and "rdzv_endpoint" not in options and "master_addr" in options
    ):
        text = "--master_addr: is ignored with --rdzv_backend c10d, so that every node trains alone"
        yield finding(Severity.FAIL, "master_addr", text, "--rdzv-endpoint HOST:29400")
    restarts = options.get("max_restarts", ("0", 0))[0]
    if is_many and restarts not in ("", "0") and options.get("rdzv_backend", ("static",))[0] == "static":
        text = f"--max_restarts {restarts}: with the static rendezvous the other nodes do not see a restart and hang"
        remedy = "restart the whole job: `restart: {max_retries: N}` of orch"
        yield finding(Severity.WARN, "max_restarts", text, remedy)


def _script_faults(words: Sequence[Word], file: str, *, is_launched: bool) -> Iterator[LintFinding]:
    for index, word in enumerate(words):
        written, equals, value = (word.value or "").partition("=")
        if not equals:
            value = (words[index + 1].value or "") if index + 1 < len(words) else ""
        name = written.lstrip("-").replace("-", "_")
        if not written.startswith("--"):
            continue
        if name == "ddp_timeout" and value.isdigit() and int(value[:9]) > DDP_TIMEOUT_S:
            text = f"{written} {value}: hides a hang for {int(value[:9]) / 60:.0f} minutes; the default is {DDP_TIMEOUT_S} s"
            remedy, source = f"omit {written}", "transformers, TrainingArguments"
            yield _finding((file, word.line), Severity.WARN, name, text, remedy=remedy, source=source)
        if name == "max_retries" and is_launched:
            text = f"{written} {value}: belongs to the script here; it is no option of torchrun or of transformers' Trainer"
            remedy = "for restarts use `restart: {max_retries: N}` of orch"
            yield _finding((file, word.line), Severity.INFO, name, text, remedy=remedy, source=_RUN)


def _finding(
    location: tuple[str, int], severity: Severity, check: str, text: str, *, remedy: str, source: str = ""
) -> LintFinding:
    return LintFinding(Finding(severity, check, text, remedy=remedy, source=source), *location)
