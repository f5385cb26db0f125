"""Judge assignments of variables, and arguments of launchers, by the table: wrong, useless and misspelt ones become findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.lint.assignment import Assignment, split_assignment
from orchestrator.lint.spelling import unknown_name
from orchestrator.portable.findings import Finding, Severity
from orchestrator.portable.names.hostlist import fold
from orchestrator.variables import VARIABLES, Row
from orchestrator.variables.conditions import GENERATIONS, NETWORKS, Context, holds, phrase, undecided
from orchestrator.variables.row import REMOVE, Verdict
from orchestrator.variables.values import NcclInteger, strtoll

_EXPERIMENT = "is for experiments: NCCL's documentation advises against keeping it set"
_MOST_UNKNOWN = 500  # names that are compared with known ones
_MOST_UNDECIDED = 2  # verdicts in a message, if the row has a sentence for all of them
_MAX_SHOWN = 60  # characters of a value in a message
_SHOWN_DEFAULTS = frozenset(("NCCL", "torch", "torch_gcu", "CUDA", "DeepSpeed"))
_OPTIONS = {
    "NCCL": "--nccl VERSION",
    "torch": "--torch VERSION",
    **dict.fromkeys(GENERATIONS, "--torch VERSION"),
    **dict.fromkeys(NETWORKS, "--network NAME"),
}
_ORDER = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """
    A finding at a line of a file.

    `replacement` is the corrected `NAME=VALUE`, "" to remove it, None if the linter does not know it; `start` and `end` are its range.
    """

    finding: Finding
    file: str
    line: int
    replacement: str | None = None
    start: int | None = None
    end: int | None = None

    def moved(self, offset: int, lines: int) -> LintFinding:
        """The finding as one on a part of a text, which begins at this offset and after so many lines."""
        start = None if self.start is None else self.start + offset
        end = None if self.end is None else self.end + offset
        return replace(self, line=self.line + lines, start=start, end=end)

    def nodes_text(self) -> str:
        return fold(self.finding.nodes)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form: the finding's, with file, line and replacement."""
        return {"file": self.file, "line": self.line, "replacement": self.replacement, **self.finding.to_json()}


@dataclass(frozen=True, slots=True)
class _Remark:
    """One thing to report on an assignment; `better` is a value, REMOVE, or None."""

    severity: Severity
    text: str
    better: str | None = None
    unknown: tuple[str, ...] = ()
    """The conditions that are not known to hold."""
    name: str = ""
    """The name that the variable has for the installed version."""


def lint_assignments(assignments: Iterable[Assignment], context: Context) -> list[LintFinding]:
    """Judge each assignment; at most one finding per assignment."""
    findings: list[LintFinding] = []
    unknown: set[str] = set()
    for assignment in assignments:
        if assignment.name not in VARIABLES:
            unknown.add(assignment.name)
        found = _lint(assignment, context) if len(unknown) <= _MOST_UNKNOWN else None
        findings += [] if found is None else [found]
    return findings


def _lint(assignment: Assignment, context: Context) -> LintFinding | None:
    row = VARIABLES.get(assignment.name)
    if assignment.fault:
        remarks = [_Remark(Severity.WARN if row is not None else Severity.INFO, assignment.fault)]
        replacement = assignment.replacement
        if row is not None:
            remarks += _remarks(row, assignment.value, context)
    elif row is None:
        unknown = unknown_name(assignment.name, is_exported=assignment.is_exported)
        if unknown is None:
            return None
        remarks = [_Remark(unknown.severity, unknown.text)]
        is_certain = unknown.meant is not None and unknown.is_certain
        replacement = _renamed(assignment, unknown.meant or "", context) if is_certain else None
    else:
        remarks = _remarks(row, assignment.value, context)
        replacement = _replacement(assignment, remarks)
    if not remarks:
        return None
    return _finding(assignment, row, remarks, replacement)


def _renamed(assignment: Assignment, meant: str, context: Context) -> str | None:
    """The assignment under the name that was meant, if its value is right there."""
    if assignment.value is None:
        return None
    remarks = _remarks(VARIABLES[meant], assignment.value, context)
    is_right = all(remark.severity is not Severity.FAIL for remark in remarks)
    return f"{meant}={assignment.value}" if is_right else None


def _finding(
    assignment: Assignment, row: Row | None, remarks: Sequence[_Remark], replacement: str | None
) -> LintFinding:
    severity = min((remark.severity for remark in remarks), key=_ORDER.__getitem__)
    value = assignment.value
    is_removed = assignment.fault and not assignment.replacement
    written = assignment.name if value is None or is_removed else f"{assignment.name}={_shortened(value)}"
    text = f"{written}: {'; '.join(remark.text for remark in remarks)}"
    remedy = remedy_text(_shortened(replacement)) if replacement else "remove it"
    if replacement is None:
        unknown = {condition for remark in remarks for condition in remark.unknown}
        options = sorted({_OPTIONS[re.split("[<>]", condition)[0]] for condition in unknown})
        which = f"find out which applies: orch lint {' '.join(options)}"
        remedy = which if options else _OF_THE_SITE.get(assignment.name, "")
    source = row.source if row is not None else ""
    finding = Finding(severity, assignment.name, text, assignment.nodes, written, remedy, source)
    return LintFinding(finding, assignment.file, assignment.line, replacement, assignment.start, assignment.end)


_OF_THE_SITE = {
    "NCCL_IB_HCA": "remove it: `orch ssh-launch` finds the adapters, and `orch env --explain` prints them",
    "NCCL_SOCKET_IFNAME": "remove it: `orch ssh-launch` finds the interface, and `orch env --explain` prints it",
}
"""The next step for values that only the site knows."""


def remedy_text(replacement: str) -> str:
    """The next step for the user. Without a second `=`: whether a value that begins with one needs quotes depends on the file."""
    name, value = split_assignment(replacement)
    return f"set {name} to {value}" if value.startswith("=") else f"set {replacement}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _replacement(assignment: Assignment, remarks: Sequence[_Remark]) -> str | None:
    """The assignment that corrects all remarks: none if one of them is to remove it, else with the last better value."""
    better = [remark.better for remark in remarks if remark.better is not None]
    if REMOVE in better:
        return REMOVE
    name = next((remark.name for remark in remarks if remark.name), "")
    if name and assignment.value is not None:
        return f"{name}={better[-1] if better else assignment.value}"
    return f"{assignment.name}={better[-1]}" if better else None


def _remarks(row: Row, value: str | None, context: Context) -> list[_Remark]:
    remarks = list(_reader_remarks(row, context))
    if any(remark.better == REMOVE for remark in remarks):
        return remarks  # its value does not matter
    fault = None if value is None else row.kind.fault(value)
    if fault is not None:
        remarks.append(_Remark(fault.severity, fault.text, fault.better))
        harm = _harm(row, fault.better, context)
        if harm is not None:  # what is in force now is better than what was meant
            return [*remarks, replace(harm, text=f"as {row.name}={fault.better} it {harm.text}", better=REMOVE)]
        if fault.severity is Severity.FAIL:
            return remarks  # the verdicts are about values that are read as they are written
    remarks += _verdict_remarks(row, value, context)
    if not remarks and value is not None and _is_default(row, value, context):
        remarks.append(_Remark(Severity.INFO, "is the default", REMOVE))
    if not remarks and row.is_debug:
        remarks.append(_Remark(Severity.INFO, _EXPERIMENT if row.library == "NCCL" else "is for debugging"))
    return remarks


def _harm(row: Row, better: str | None, context: Context) -> _Remark | None:
    """The reason for which the value that was probably meant should not be set, either."""
    remarks = [] if better is None else _verdict_remarks(row, better, context)
    return next((remark for remark in remarks if remark.severity is not Severity.INFO and not remark.unknown), None)


def _reader_remarks(row: Row, context: Context) -> Iterable[_Remark]:
    library, accelerator = row.library, context.accelerator
    installed = {} if library not in context.versions else {library: context.versions[library]}
    if row.until and holds(f"{library}>={row.until}", context) is not False:
        yield _Remark(Severity.WARN, f"{library} does not read it from {row.until} on", REMOVE)
    elif row.since and installed and holds(f"{library}<{row.since}", context):
        text = f"{library} reads it from {row.since} on, and {installed[library]} is installed"
        old_name = row.name.removeprefix("TORCH_")
        if old_name != row.name and old_name in VARIABLES:
            yield _Remark(Severity.WARN, f"{text}: its name is {old_name}", name=old_name)
        else:
            yield _Remark(Severity.WARN, text, REMOVE)
    elif accelerator is not None and (library == "NCCL" or "NCCL" in row.name) and accelerator != "cuda":
        text = f"has no effect: NCCL is for NVIDIA's cards, and the accelerator is {accelerator}"
        yield _Remark(Severity.INFO, text, REMOVE)
    elif accelerator in ("cuda", "cpu") and library in ("ECCL", "torch_gcu", "TopsRider"):
        text = f"has no effect: it is for Enflame's cards, and the accelerator is {accelerator}"
        yield _Remark(Severity.INFO, text, REMOVE)


def _verdict_remarks(row: Row, value: str | None, context: Context) -> list[_Remark]:
    """The first verdict that applies for certain, and those before it whose conditions are unknown."""
    remarks = []
    for verdict in row.verdicts:
        unknown = undecided(verdict.when, context) if _matches(verdict, value) else None
        if unknown is None:
            continue
        better = verdict.better
        if better is not None:
            better = better.replace("{value}", value or "").replace("{rest}", (value or "").lstrip("="))
        if not unknown:
            remarks.append(_Remark(verdict.severity, verdict.reason, better, name=verdict.name))
            break
        severity = Severity.WARN if verdict.severity is Severity.FAIL else verdict.severity
        if remarks and remarks[-1].text.endswith(f": {verdict.reason}"):  # for another network, say
            remarks[-1] = replace(remarks[-1], text=f"{phrase(unknown)} or {remarks[-1].text}")
        else:
            remarks.append(_Remark(severity, f"{phrase(unknown)}: {verdict.reason}", better, unknown))
    open_remarks = [remark for remark in remarks if remark.unknown]
    if row.undecided and len(open_remarks) > _MOST_UNDECIDED:
        severities = {remark.severity for remark in open_remarks}
        severity = Severity.WARN if Severity.WARN in severities else Severity.INFO
        unknown = tuple(dict.fromkeys(condition for remark in open_remarks for condition in remark.unknown))
        return [_Remark(severity, row.undecided, None, unknown)]
    is_decided = bool(remarks) and not remarks[-1].unknown
    if not is_decided or len({remark.better for remark in remarks}) > 1:  # the remedy depends on what is unknown
        return [replace(remark, better=None, name="") for remark in remarks]
    return remarks


def _matches(verdict: Verdict, value: str | None) -> bool:
    """Compare a value with the verdict; an unknown value matches a verdict on all values only."""
    is_for_all = not verdict.value and verdict.above is None and verdict.below is None
    if is_for_all or value is None:
        return is_for_all
    if verdict.value:
        return re.fullmatch(verdict.value, value) is not None
    number = strtoll(value)[0]
    if number is None:
        return False
    return number > verdict.above if verdict.above is not None else number < (verdict.below or 0)


def _is_default(row: Row, value: str, context: Context) -> bool:
    """True if the value is the default of the installed version, or of every version if that is unknown."""
    defaults = row.defaults()
    if not defaults or row.library not in _SHOWN_DEFAULTS:
        return False
    if row.library in context.versions:
        applying = [text for first, text in defaults.items() if not first or holds(f"{row.library}>={first}", context)]
        defaults = {"": applying[-1]}
    return {_canonical(row, value)} == {_canonical(row, text) for text in defaults.values()}


def _canonical(row: Row, value: str) -> str:
    number = strtoll(value)[0] if isinstance(row.kind, NcclInteger) else None
    return value.strip().lower() if number is None else str(number)
