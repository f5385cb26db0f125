"""Arguments of torchrun and of training scripts that are known to be wrong or useless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.environment.lint.assignment import Word
from orchestrator.findings import Severity

DDP_TIMEOUT_S = 1800  # the default of transformers' Trainer
_RUN = "torch, distributed/run.py"
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_FLAGS = frozenset(("standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank"))
_STATIC = ("master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")


@dataclass(frozen=True, slots=True)
class ArgumentFault:
    """A fault of one argument."""

    severity: Severity
    check: str
    text: str
    line: int
    remedy: str = ""
    source: str = _RUN


def argument_faults(command: Sequence[Word]) -> Iterator[ArgumentFault]:
    begin = _after_torchrun(command)
    if begin is not None:
        options, begin = _options(command, begin)
        yield from _torchrun_faults(options)
    yield from _script_faults(command[begin or 0 :], is_launched=begin is not None)


def _after_torchrun(command: Sequence[Word]) -> int | None:
    """The index after `torchrun`, or after `python -m torch.distributed.run`."""
    values = [word.value or "" for word in command]
    for index, value in enumerate(values):
        if value.rpartition("/")[2] == "torchrun" or (value in _MODULES and values[index - 1] == "-m"):
            return index + 1
    return None


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


def _torchrun_faults(options: dict[str, tuple[str, int]]) -> Iterator[ArgumentFault]:
    if "max_retries" in options:
        value, line = options["max_retries"]
        text = f"--max_retries {value}: is no option of torchrun, which stops with a usage error"
        yield ArgumentFault(Severity.FAIL, "max_retries", text, line, f"--max-restarts {value}")
    nodes, line = options.get("nnodes", ("", 0))
    is_many = nodes.isdigit() and int(nodes[:9]) > 1
    if "standalone" in options:
        line = options["standalone"][1]
        if is_many:
            text = "--standalone: is for one node, so that every node trains alone"
            yield ArgumentFault(Severity.FAIL, "standalone", text, line, "--master-addr and --node-rank instead")
        for name in filter(options.__contains__, _STATIC):
            written = f"--{name} {options[name][0]}"
            text = f"{written}: is ignored with --standalone, which chooses address and port"
            yield ArgumentFault(Severity.WARN, name, text, options[name][1], f"omit --{name}")
    elif (
        options.get("rdzv_backend", ("",))[0] == "c10d" and "rdzv_endpoint" not in options and "master_addr" in options
    ):
        text = "--master_addr: is ignored with --rdzv_backend c10d, so that every node trains alone"
        yield ArgumentFault(Severity.FAIL, "master_addr", text, options["master_addr"][1], "--rdzv-endpoint HOST:29400")
    restarts, line = options.get("max_restarts", ("0", 0))
    if is_many and restarts not in ("", "0") and options.get("rdzv_backend", ("static",))[0] == "static":
        text = f"--max_restarts {restarts}: with the static rendezvous the other nodes do not see a restart and hang"
        yield ArgumentFault(
            Severity.WARN, "max_restarts", text, line, "restart the whole job: `restart: {max_retries: N}` of orch"
        )


def _script_faults(words: Sequence[Word], *, is_launched: bool) -> Iterator[ArgumentFault]:
    for index, word in enumerate(words):
        written, equals, value = (word.value or "").partition("=")
        if not equals:
            value = (words[index + 1].value or "") if index + 1 < len(words) else ""
        name = written.lstrip("-").replace("-", "_")
        if not written.startswith("--"):
            continue
        if name == "ddp_timeout" and value.isdigit() and int(value[:9]) > DDP_TIMEOUT_S:
            text = f"{written} {value}: hides a hang for {int(value[:9]) / 60:.0f} minutes; the default is {DDP_TIMEOUT_S} s"
            yield ArgumentFault(
                Severity.WARN, name, text, word.line, f"omit {written}", "transformers, TrainingArguments"
            )
        if name == "max_retries" and is_launched:
            text = f"{written} {value}: belongs to the script here; it is no option of torchrun or of transformers' Trainer"
            remedy = "for restarts use `restart: {max_retries: N}` of orch"
            yield ArgumentFault(Severity.INFO, name, text, word.line, remedy)
