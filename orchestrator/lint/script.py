"""
Findings on a script as a whole: arguments of launchers, variables that contradict each other or do not reach the other nodes, lines
that could not be read, and ranks in the background whose end nobody sees.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.lint.assignment import Assignment, Script, Word
from orchestrator.lint.judge import LintFinding
from orchestrator.lint.launch import lint_launch
from orchestrator.lint.shell import read_shell
from orchestrator.portable.findings import Finding, Severity
from orchestrator.variables import VARIABLES
from orchestrator.variables.values import strtoll

DDP_TIMEOUT_S = 1800  # the default of transformers' Trainer
MAX_SOCKETS = 64  # per connection: NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD
_RUN = "torch, distributed/run.py"
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_FLAGS = frozenset(("standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank"))
_STATIC = ("master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
_PASSED = ("NCCL", "PYTHON", "UCX", "MV2", "MLFLOW")  # prefixes that the DeepSpeed launcher passes
_MOST_NOT_PASSED, _MOST_UNREAD = 5, 5  # that are named
_RANGES = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
_PROMPT = re.compile(r"-[a-zA-Z]*p$")
_LOOKS_FOR_TERMINAL = re.compile(r"(?:\[|\btest)\s+(?:!\s+)?-t\s+\d")
_TRAINING = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate)|.*\.py")
PROMPTS = "asks a question by `read -p`, and ranks have no terminal: the answer is empty at once, and with set -e the script ends"
_ANSWERED = "let an option or a variable decide, such as [ -t 0 ] before the question; or pass the answer: bash -c 'yes | bash SCRIPT …'"
_WAIT = "wait without arguments ends with 0 whatever the processes in the background end with, so a rank that fails is not noticed"


def lint_whole(script: Script, file: str, *, is_part: bool = False) -> Iterator[LintFinding]:
    """All findings on a script as a whole, without those on the scripts within it."""
    yield from lint_commands(script.commands, file)
    yield from lint_launch(script, file)
    yield from lint_combinations(script.assignments)
    for found in lint_script(script, file):
        is_doubtful = is_part and found.finding.check == "script"  # documents leave out parts of what they show
        yield found if not is_doubtful else replace(found, finding=replace(found.finding, severity=Severity.INFO))
    yield from lint_propagation(script.assignments, script.commands, file)


def lint_line_ends(text: str, file: str) -> Iterator[LintFinding]:
    """Find the line ends of Windows in a script."""
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        fault = "ends its lines as Windows does (\\r\\n): sbatch refuses the script, and bash takes the \\r for a part of the last word"
        remedy = f"sed -i 's/\\r$//' {shlex.quote(file)}"
        yield _finding((file, line), Severity.FAIL, "line-ends", fault, remedy=remedy, source="Slurm, sbatch; bash")


def lint_script(script: Script, file: str) -> Iterator[LintFinding]:
    """Judge the script as a whole; at most one finding of each kind."""
    remedy = f"bash -n {shlex.quote(file)}" if not script.unread or script.unread[0].language == "shell" else ""
    for text, lines in _unread(script):
        yield _finding((file, lines[0]), Severity.WARN, "script", text, remedy=remedy)
    for line in _prompts(script)[:1]:
        yield _finding((file, line), Severity.INFO, "prompt", PROMPTS, remedy=_ANSWERED)
    waits = [words for words in script.commands if [word.value for word in words] == ["wait"]]
    has_training = any(
        word.value is not None and _TRAINING.fullmatch(word.value)
        for index in script.background
        for word in script.commands[index]
    )
    if has_training and waits:
        remedy = "let torchrun or orch start the ranks; or wait for each: pids+=($!) … for p in ${pids[@]}; do wait $p || exit; done"
        yield _finding((file, waits[-1][0].line), Severity.WARN, "wait", _WAIT, remedy=remedy)


def prompts(text: str, file: str) -> list[int]:
    """The lines of a shell script that ask a question, unless it looks for a terminal before."""
    return [] if _LOOKS_FOR_TERMINAL.search(text) else _prompts(read_shell(text, file))


def _prompts(script: Script) -> list[int]:
    reads = [command for command in script.commands if command and command[0].value == "read"]
    return [command[0].line for command in reads if any(_PROMPT.match(word.value or "") for word in command[1:])]


def _unread(script: Script) -> Iterator[tuple[str, list[int]]]:
    """Texts about lines that could not be read, each with these lines."""
    lines = [entry.line for entry in script.unread if not entry.is_rest]
    if lines:
        more = f" and {len(lines) - _MOST_UNREAD} more" if len(lines) > _MOST_UNREAD else ""
        named = ", ".join(map(str, lines[:_MOST_UNREAD]))
        language = script.unread[0].language
        yield f"line{'s' if len(lines) > 1 else ''} {named}{more}: not understood as {language}, and not judged", lines
    for entry in script.unread:
        if entry.is_rest:
            text = "a quote, bracket or here-document that begins here does not end: the lines from here on may not have been judged"
            yield text, [entry.line]


def lint_combinations(assignments: Sequence[Assignment]) -> Iterator[LintFinding]:
    """Find contradictions between the last values of a file's variables, and between those of one command."""
    lasting = [found for found in assignments if not found.is_of_command]
    groups = {
        found.line: [*lasting, *(near for near in assignments if near.line == found.line)]
        for found in assignments
        if found.is_of_command
    }
    reported: set[str] = set()
    for group in (lasting, *groups.values()):
        for finding in _contradictions({found.name: found for found in group if found.value is not None}):
            if finding.finding.text not in reported:
                reported.add(finding.finding.text)
                yield finding


def _contradictions(last: Mapping[str, Assignment]) -> Iterator[LintFinding]:
    for conflict in (*_exclusive(last), *_out_of_range(last)):
        found = last[conflict.name]
        if not found.excludes(last[conflict.second]):
            source = VARIABLES[conflict.name].source
            text = f"{conflict.name}{conflict.text}"
            finding = Finding(
                conflict.severity, conflict.name, text, found.nodes, remedy=conflict.remedy, source=source
            )
            yield LintFinding(finding, found.file, found.line)


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A contradiction of a variable with another one; `text` follows its name."""

    name: str
    second: str
    severity: Severity
    text: str
    remedy: str


def _number(last: Mapping[str, Assignment], name: str) -> int | None:
    return strtoll(last[name].value or "")[0] if name in last else None


def _exclusive(last: Mapping[str, Assignment]) -> Iterator[_Conflict]:
    """Variables that have no use together."""
    remedy = "remove one of the two"
    is_rdma = "NCCL_NET" in last and (last["NCCL_NET"].value or "").upper() == "IB"
    if is_rdma and _number(last, "NCCL_IB_DISABLE") == 1:
        text = "=1: contradicts NCCL_NET=IB, with which NCCL stops if there is no RDMA"
        yield _Conflict("NCCL_IB_DISABLE", "NCCL_NET", Severity.FAIL, text, remedy)
    if "NCCL_P2P_LEVEL" in last and _number(last, "NCCL_P2P_DISABLE") == 1:
        text = ": has no effect, as NCCL_P2P_DISABLE=1 turns direct access off"
        yield _Conflict("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", Severity.WARN, text, remedy)
    for name in last:
        new = f"TORCH_{name}"
        if name in VARIABLES and new in VARIABLES and new in last:
            yield _Conflict(name, new, Severity.WARN, f": {new} is set, too, and wins", "remove it")


def _out_of_range(last: Mapping[str, Assignment]) -> Iterator[_Conflict]:
    """Numbers that are wrong together."""
    for least, most in _RANGES:
        low, high = _number(last, least), _number(last, most)
        if low is not None and high is not None and low > high:
            yield _Conflict(least, most, Severity.FAIL, f"={low}: is more than {most}={high}", "remove both")
    threads = _number(last, "NCCL_SOCKET_NTHREADS") or 1
    product = threads * (_number(last, "NCCL_NSOCKS_PERTHREAD") or 0)
    if product > MAX_SOCKETS:
        name = "NCCL_NSOCKS_PERTHREAD"
        second = "NCCL_SOCKET_NTHREADS" if "NCCL_SOCKET_NTHREADS" in last else name
        text = f": times NCCL_SOCKET_NTHREADS it is {product}, and at most {MAX_SOCKETS} are allowed"
        yield _Conflict(name, second, Severity.FAIL, text, "")


def lint_propagation(
    assignments: Sequence[Assignment], commands: Sequence[Sequence[Word]], file: str
) -> Iterator[LintFinding]:
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
            location, source = (file, command[0].line), "DeepSpeed, launcher/runner.py"
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
