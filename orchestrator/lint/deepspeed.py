"""
Judge a DeepSpeed configuration: comments that only DeepSpeed accepts, unknown keys, wrong types, units.

Keys, types and defaults of `zero_optimization` are those of DeepSpeed 0.19 (runtime/zero/config.py), which refuses all others.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.lint.judge import LintFinding
from orchestrator.node.number_text import three_digits
from orchestrator.portable.findings import Finding, Severity
from orchestrator.variables.conditions import Context

ZERO = "zero_optimization"
SOURCE = "DeepSpeed, runtime/zero/config.py"
READER = "DeepSpeed, runtime/config.py"
_INTEGERS: Mapping[str, int | None] = {
    "stage": None,
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "sub_group_size": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_model_persistence_threshold": None,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_module_granularity_threshold": None,
    "zero_hpz_partition_size": 1,
}
"""Keys that take integers, with their defaults."""
_ELEMENTS = frozenset(("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"))
_OTHER_KEYS = frozenset(
    "contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm compute_grad_norm "
    "load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer zenflow stage3_gather_16bit_weights_on_model_save "
    "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters legacy_stage1 "
    "round_robin_gradients parameter_alignment zero_quantized_weights zero_quantized_nontrainable_weights "
    "zero_quantized_gradients memory_efficient_linear "
    "pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks "
    "save_muon_momentum_buffer_in_memory leaf_module".split()
)
_DEPRECATED = {
    "cpu_offload": 'offload_optimizer: {"device": "cpu"}',
    "cpu_offload_param": 'offload_param: {"device": "cpu"}',
    "cpu_offload_use_pin_memory": "pin_memory in offload_param or offload_optimizer",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
_REMOVAL = "DeepSpeed 0.19.8 and newer stop with an error: it was removed"
_REMOVED = frozenset(("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"))
_REMOVED_TOP_LEVEL = frozenset(
    "curriculum_learning eigenvalue elasticity graph_harvesting progressive_layer_drop sparse_attention sparse_gradients".split()
)
_TOP_LEVEL = (
    "activation_checkpointing aio amp bf16 checkpoint comms_logger data_efficiency data_types flops_profiler fp16 "
    "gradient_accumulation_steps gradient_clipping optimizer pipeline scheduler steps_per_print tensorboard train_batch_size "
    "train_micro_batch_size_per_gpu wall_clock_breakdown wandb zero_allow_untested_optimizer zero_optimization".split()
)
_MUCH = 10  # times the default
_LONGEST_KEY = 100  # characters
_MOST_KEYS = 200  # of one object, that are compared with known ones
_EXPERIMENTAL_STAGE = 3  # on Enflame's cards
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_BYTES = re.compile(r"\d\s*[KMG]i?B\b", re.IGNORECASE)


class NotJson(ValueError):
    """The file is not JSON, not even with comments and trailing commas; `line` is that of the error."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Duplicates:
    """The keys that occur twice in one object."""

    names: list[str] = field(default_factory=list)

    def to_dict(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Build the object as DeepSpeed does, where the last value would win."""
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            self.names += sorted({name for name in names if names.count(name) > 1})
        return result


def lint_deepspeed(text: str, file: str, context: Context) -> tuple[list[LintFinding], str]:
    """The findings, and the configuration as strict JSON with the certain ones corrected; NotJson if the text cannot be read."""
    comments = {_line(text, match.start()): match[0] for match in _TOKEN.finditer(text) if match[0][0] != '"'}
    duplicates = _Duplicates()
    config, is_strict = _load(text, duplicates)
    if not isinstance(config, dict):
        raise NotJson("is not a JSON object", 1)
    report = _Report(text, file)
    if config and not any(_is_of_deepspeed(name) for name in list(config)[:_MOST_KEYS]):
        fault = "no key is one of DeepSpeed, as which orch lint reads JSON: not judged"
        report.add(Severity.INFO, "json", fault, line=1, remedy="", source=READER)
        return report.findings, ""
    if not is_strict:
        fault = "comments or trailing commas: DeepSpeed reads them, json.load of transformers and accelerate stops with an error"
        remedy = "strict JSON: orch lint --fix"
        report.add(Severity.WARN, "json", fault, line=min(comments, default=1), remedy=remedy, source=READER)
    for name in duplicates.names:
        report.key(Severity.FAIL, name, "is given twice, which DeepSpeed refuses", source=READER)
    _lint_top(config, report)
    zero = config.get(ZERO)
    if isinstance(zero, dict):
        _lint_zero(zero, report, comments, context)
    return report.findings, json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _load(text: str, duplicates: _Duplicates) -> tuple[Any, bool]:
    """Parse strict JSON, else without comments and trailing commas; returns also whether it was strict."""
    try:
        return json.loads(text, object_pairs_hook=duplicates.to_dict), True
    except (ValueError, RecursionError):
        duplicates.names.clear()
    try:
        plain = _TOKEN.sub(_without_comment, text)
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", plain), object_pairs_hook=duplicates.to_dict), False
    except json.JSONDecodeError as exc:
        raise NotJson(f"is not JSON: {exc.msg}", exc.lineno) from exc
    except (ValueError, RecursionError) as exc:
        raise NotJson("is nested too deeply, or has a number that is too long", 1) from exc


def _without_comment(match: re.Match[str]) -> str:
    return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


class _Report:
    """Collects findings at the lines of keys."""

    def __init__(self, text: str, file: str) -> None:
        self.findings: list[LintFinding] = []
        self._file = file
        self._lines: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            for match in re.finditer(r'"([^"\\]{1,100})"\s*:', line):
                self._lines.setdefault(match[1], number)

    def line(self, name: str) -> int:
        return self._lines.get(name, 1)

    def key(self, severity: Severity, name: str, text: str, remedy: str = "", *, source: str = SOURCE) -> None:
        self.add(severity, name, f"{name}: {text}", line=self.line(name), remedy=remedy, source=source)

    def add(self, severity: Severity, check: str, text: str, *, line: int, remedy: str = "", source: str) -> None:
        finding = Finding(severity, check, text, remedy=remedy, source=source)
        self.findings.append(LintFinding(finding, self._file, line))


def _close(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    """The known key that is nearly `name`, or none."""
    return difflib.get_close_matches(name, known, n=1, cutoff=cutoff) if len(name) < _LONGEST_KEY else []


def _is_of_deepspeed(name: str) -> bool:
    return name in _REMOVED_TOP_LEVEL or bool(_close(name, _TOP_LEVEL, 0.85))


def _lint_top(config: dict[str, Any], report: _Report) -> None:
    for name in list(config)[:_MOST_KEYS]:
        if name in _REMOVED_TOP_LEVEL:
            report.key(Severity.WARN, name, _REMOVAL, source=READER)
            continue
        close = _close(name, _TOP_LEVEL, 0.85) if name not in _TOP_LEVEL else []
        if close:
            fault = f"DeepSpeed does not know it and ignores it: did you mean {close[0]}?"
            report.key(Severity.WARN, name, fault, close[0])
            config[close[0]] = config.pop(name)
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & config.keys():
        text = (
            "neither train_batch_size nor train_micro_batch_size_per_gpu: DeepSpeed stops unless the trainer adds one"
        )
        report.add(Severity.INFO, "train_micro_batch_size_per_gpu", text, line=1, source=READER)
    if not {"bf16", "fp16", "torch_autocast"} & config.keys():
        text = "neither bf16 nor fp16: DeepSpeed computes in fp32 unless the trainer adds one"
        report.add(Severity.INFO, "bf16", text, line=1, source=READER)
    automatic = sorted(_automatic(config))
    if automatic:
        text = f'"auto" is understood by transformers, accelerate and the trainer of orch only: {", ".join(automatic)}'
        line, source = report.line(automatic[0].rpartition(".")[2]), "transformers, integrations/deepspeed.py"
        report.add(Severity.INFO, "auto", text, line=line, source=source)


def _automatic(config: dict[str, Any], section: str = "") -> Iterator[str]:
    """The keys with the value "auto", each with its section: `fp16.enabled`."""
    for name, value in config.items():
        if value == "auto":
            yield f"{section}{name}"
        elif isinstance(value, dict):
            yield from _automatic(value, f"{section}{name}.")


def _lint_zero(zero: dict[str, Any], report: _Report, comments: Mapping[int, str], context: Context) -> None:
    for name in list(zero)[:_MOST_KEYS]:
        if name in _DEPRECATED:
            report.key(Severity.INFO, name, "is deprecated", f"{_DEPRECATED[name]} instead")
        elif name in _REMOVED:
            report.key(
                Severity.WARN, name, "DeepSpeed from 0.19.8 on stops with an error: it was removed", source=READER
            )
        elif name in _INTEGERS:
            zero[name] = _lint_integer(name, zero[name], report, comments)
        elif name not in _OTHER_KEYS:
            close = _close(name, (*_INTEGERS, *_OTHER_KEYS), 0.75)
            meant = f": did you mean {close[0]}?" if close else ""
            report.key(Severity.FAIL, name, f"DeepSpeed stops with an error at a key it does not know{meant}", *close)
            if close and close[0] not in zero:
                zero[close[0]] = zero.pop(name)
    if zero.get("stage") == _EXPERIMENTAL_STAGE and context.accelerator == "gcu":
        text = "3 is among the experiments of Enflame's package only, and upstream DeepSpeed has no gcu accelerator"
        report.key(Severity.WARN, "stage", text, source="TopsRider_t2x 2.5.136 package")


def _lint_integer(name: str, value: object, report: _Report, comments: Mapping[int, str]) -> object:
    """Judge a number; returns the corrected value."""
    if value == "auto" or value is None:
        return value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = 0.5
        remedy = f"{int(number)}, without quotes" if number.is_integer() else ""
        report.key(Severity.FAIL, name, f"{value[:40]!r} is text, which DeepSpeed refuses", remedy)
        return int(number) if number.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
        report.key(Severity.FAIL, name, f"{str(value)[:40]} is not an integer, which DeepSpeed refuses")
        return value
    default = _INTEGERS[name]
    comment = comments.get(report.line(name), "")
    if name in _ELEMENTS and _BYTES.search(comment):
        size = f"{three_digits(value * 2 / 1e9)} GB in bf16, {three_digits(value * 4 / 1e9)} GB in fp32"
        report.key(Severity.WARN, name, f"the unit is elements, not bytes as in the comment: {size}")
    elif default is not None and value == default:
        report.key(Severity.INFO, name, "is the default")
    elif default is not None and value >= _MUCH * default:
        report.key(Severity.INFO, name, f"is {value / default:.0f} times the default of {default}: more GPU memory")
    return int(value)
