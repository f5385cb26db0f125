"""`orch diagnose`: the cause of a failed run, where it began, the proof and the next steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from orchestrator.cli import completion, options
from orchestrator.cli.console import ProgressLine, inform, print_error, print_json, print_text, without_controls
from orchestrator.cli.failure import RETRY, RETRY_UNKNOWN, labelled, print_failure
from orchestrator.cli.numbers import size_text
from orchestrator.errors import NodesError, UsageError
from orchestrator.node.number_text import counted
from orchestrator.portable.names.hostlist import ranks_on_nodes
from orchestrator.records.runs import find_run
from orchestrator.run import RunState
from orchestrator.usecases.diagnose.log_files import Diagnosed, diagnose_files, is_run

MOST_CHANGES = 5
_FAILED = ("FAILED", "LOST")


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN | FILE...]", shell_complete=completion.runs_or_files)
@click.option(
    "--signatures", type=options.PATH, metavar="FILE", help="Your own signatures; default: $ORCH_HOME/signatures."
)
@click.option("--prove", is_flag=True, help="Run the failure again in small, without and with its remedy.")
@click.option(
    "--teach", is_flag=True, help="Add a signature for the line FILE:LINE, or for the first error of RUN or FILE."
)
@click.option("--cause", metavar="TEXT", help="With --teach: the cause, in one sentence.")
@click.option("--remedy", "remedies", multiple=True, metavar="TEXT", help="With --teach: a next step; may be repeated.")
@click.option("--name", metavar="ID", help="With --teach: the id of the signature; by default from the cause.")
@click.option("--report", type=options.PATH, metavar="FILE", help="Write a redacted archive for a public issue.")
@options.as_json
def diagnose(
    words: tuple[str, ...],
    signatures: Path | None,
    *,
    prove: bool,
    teach: bool,
    cause: str | None,
    remedies: tuple[str, ...],
    name: str | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """
    Name the cause of a failure, of a run or in logs of any launcher: where it began, the proof and the next steps.

    FILE is a log, a folder of logs, or - for standard input.
    """
    if prove + teach + (report is not None) > 1:
        raise UsageError("--prove, --teach and --report exclude each other", hint="give one of them")
    if teach:
        return _teach(words, cause, remedies, name=name, signatures=signatures)
    if cause or remedies or name:
        raise UsageError("--cause, --remedy and --name belong to --teach", hint="add --teach")
    if report is not None:
        from orchestrator.usecases.diagnose.report import write_report

        diagnosed = _diagnosed(words, signatures)
        written = write_report(diagnosed, list(_report(diagnosed)), report)
        print_text("".join(f"{line}\n" for line in written))
        inform(f"wrote {report}; read it before you attach it to an issue")
        return 0
    if prove:
        from orchestrator.cli.prove import prove_remedy

        return prove_remedy(words, signatures, as_json=as_json)
    return print_diagnosis(words, signatures, as_json=as_json)


def _teach(
    words: Sequence[str], cause: str | None, remedies: Sequence[str], *, name: str | None, signatures: Path | None
) -> int:
    """Add a signature of the user for a line, and print it."""
    from orchestrator.usecases.diagnose.teach import Lesson, teach

    if len(words) != 1 or not cause or not remedies:
        hint = "orch diagnose train.log:112 --teach --cause TEXT --remedy TEXT"
        raise UsageError("--teach needs one RUN, FILE or FILE:LINE, --cause and --remedy", hint=hint)
    taught = teach(words[0], Lesson(cause, remedies, name), signatures)
    print_text("".join(f"{without_controls(line)}\n" for line in taught.entry.splitlines()))
    inform(f"added to {taught.file}; orch diagnose uses it from now on")
    return 0


def _diagnosed(words: Sequence[str], signatures: Path | None) -> Diagnosed:
    if not is_run(words):
        return diagnose_files(words, signatures)
    from orchestrator.usecases.diagnose.run import diagnose_run

    with ProgressLine() as progress:
        return diagnose_run(words[0] if words else "latest", signatures, progress.update)


def print_diagnosis(words: Sequence[str], signatures: Path | None, *, as_json: bool) -> int:
    """Print the diagnosis of a run or of log files; returns 0, also if the cause is unknown: docs/decisions/049."""
    try:
        result = _diagnosed(words, signatures)
    except NodesError:  # no node can be reached: the record has the outcome, and may have a diagnosis
        if not as_json:
            record = find_run(words[0] if words else "latest").read()
            inform(record.outcome)
            print_failure(record, sys.stdout)
        raise
    if result.run is not None:
        if result.state == RunState.DONE.value:
            has_lines = bool(result.diagnosis.cause or result.diagnosis.errors)
            inform(f"run {result.run} is DONE: nothing failed" + ("; its logs have these lines:" if has_lines else ""))
        elif result.state not in _FAILED:
            so_far = "" if RunState(result.state).ended else " so far"
            inform(f"run {result.run} is {result.state}; what its logs have{so_far}:")
    if as_json:
        print_json(result.to_json())
    else:
        print_text("".join(f"{without_controls(line)}\n" for line in _report(result)))
        inform(f"searched {counted(len(result.files), 'file')}, {size_text(result.size_bytes)}")
    if result.missing is None:
        return 0
    print_error(result.missing)
    return result.missing.exit_code


def _report(result: Diagnosed) -> Iterator[str]:
    found = result.diagnosis
    if found.cause and found.confidence is not None:
        yield from labelled("cause", [found.cause])
        yield from labelled("began on", [ranks_on_nodes(found.ranks, found.nodes) or "unknown: the lines name no rank"])
        yield from labelled("proof", (hit.text for hit in found.proof))
        yield from labelled("next", found.remedy)
        yield from labelled("retry", [RETRY_UNKNOWN if found.retry is None else RETRY[found.retry]])
        yield from labelled("confidence", [f"{found.confidence.value}: {found.reason}"])
    elif found.errors:
        reference = "; `ranks` shows where the ranks are" if result.positions else ""
        yield from labelled("cause", [f"unknown: no line names one{reference}"])
        yield from labelled("began on", filter(None, [ranks_on_nodes(found.ranks, found.nodes)]))
        yield from labelled("errors", (hit.text for hit in found.errors))
        yield from labelled("next", ["read these lines and those above the first of them", *found.remedy])
    elif result.state == RunState.DONE.value:
        yield from labelled("cause", ["none: nothing failed"])
    elif result.positions:
        yield from labelled("cause", ["unknown: no error was found so far; `ranks` shows where the ranks are"])
    else:
        yield from labelled("cause", ["unknown: no error was found"])
    for label, entries in (("or", found.alternatives), ("follows", found.consequences), ("also", found.observations)):
        folded = ((counted(entry.count, "line"), ranks_on_nodes(entry.ranks, ())) for entry in entries)
        texts = (f"{entry.text} ({', '.join(filter(None, by))})" for entry, by in zip(entries, folded, strict=True))
        yield from labelled(label, texts)
    yield from labelled("ranks", result.positions)
    yield from labelled("nodes", result.remarks)
    yield from labelled("checks", result.findings)
    yield from labelled("changed", _changes(result))


def _changes(result: Diagnosed) -> Iterator[str]:
    """The differences from the last run that was done."""
    if not result.success:
        return
    more = len(result.changes) - MOST_CHANGES
    nothing = "" if result.changes else " nothing"
    yield f"since {result.success}, the last run of this inventory that was done:{nothing}"
    for change in result.changes[:MOST_CHANGES]:
        yield f"{change.topic} {change.name}: {change.first} -> {change.second}"
    if more > 0:
        yield f"and {more} more: orch diff {result.success} {result.run}"
