"""`orch gc`: end strays, remove the garbage of old runs, and print what was kept, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.console import ProgressLine, inform, print_json, print_table, warn
from orchestrator.cli.numbers import size_text
from orchestrator.usecases.durations import seconds, worded

if TYPE_CHECKING:
    from orchestrator.usecases.runs.gc import GarbageBody, Limits, SiteGarbage


@click.command()
@options.inventory
@click.option("--older-than", default="7d", show_default=True, metavar="SPAN", help="Only garbage older than this.")
@click.option(
    "--forget", metavar="LIST", help="Nodes that do not exist any more: do not search them, drop their records."
)
@click.option(
    "--results", is_flag=True, help="Also remove runs that hold results: checkpoints, or any file of the program."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be ended and removed.")
@options.as_json
def gc(
    inventory: str | None, older_than: str, forget: str | None, *, results: bool, dry_run: bool, as_json: bool
) -> int:
    """End stray processes, and remove the garbage of old runs."""
    from orchestrator.usecases.runs.gc import Limits, SiteGarbage, collect

    limits = Limits(seconds("--older-than", older_than), results, dry_run)
    with ProgressLine() as progress:
        garbage = collect(limits, inventory, forget, progress.update)
    for warning in garbage.damaged:
        warn(warning)
    if not garbage.has_sites:
        inform("no run is recorded here, so no node is known; name an inventory with -i FILE")
    if as_json:
        sites = garbage.sites
        print_json(
            {
                "dry_run": dry_run,
                "strays": [{"at": site.node, **stray} for site in sites for stray in site.stray_report["strays"]],
                "other_users": [{"at": site.node, **user} for site in sites for user in site.stray_report["users"]],
                "folders": [{"at": site.node, **entry} for site in sites for entry in site.entries],
                "notes": [
                    {"at": site.node, "note": note} for site in sites if (note := site.stray_report["tool_error"])
                ],
            }
        )
    else:
        _report(garbage.sites, limits, sum(isinstance(outcome, SiteGarbage) for outcome in garbage.outcomes))
    garbage.raise_failures()
    return 0


def _report(sites: Sequence[SiteGarbage], limits: Limits, searched: int) -> None:
    from orchestrator.usecases.runs.gc import HOLDS_RESULTS

    rows = [row for site in sites for row in _rows(site, dry_run=limits.dry_run)]
    if rows:
        print_table(("NODE", "WHAT", "NAME", "SIZE", "AGE", "DONE"), rows)
    for site in sites:
        if site.stray_report["tool_error"]:
            warn(f"{site.node}: {site.stray_report['tool_error']}")
    entries = [entry for site in sites for entry in site.entries]
    freed = sum(entry["bytes"] for entry in entries if entry["action"] == "remove")
    young = [entry["bytes"] for entry in entries if entry["action"] == "young"]
    size = f" ({size_text(sum(young))})" if young else ""
    would = "would be " if limits.dry_run else ""
    held = [entry["result_bytes"] for entry in entries if entry["why"] == HOLDS_RESULTS]
    if held:
        copies = "`orch cp RUN:PATH DIR` copies them, and --results removes their runs"
        inform(f"{size_text(sum(held))} of results stay: {copies}")
    left_alone = f"{len(young)} younger than {worded(limits.older_than_s)} left alone{size}"
    inform(f"{size_text(freed)} {would}freed; {left_alone}; working folders searched: {searched}")


def _rows(site: SiteGarbage, *, dry_run: bool) -> list[tuple[object, ...]]:
    """One row for each stray, entry and user of a card; none for entries that are too young."""
    would = "would be " if dry_run else ""
    rows: list[tuple[object, ...]] = []
    for stray in site.stray_report["strays"]:
        done = "still alive" if stray["alive"] and not dry_run else f"{would}ended"
        name = f"{stray['command']} (pid {stray['pid']}) of {stray['run']} on {stray['node']}"
        rows.append((site.node, "stray", name, None, worded(stray["age_s"]), done))
    for entry in [entry for entry in site.entries if entry["action"] != "young"]:
        size, age = size_text(entry["bytes"]), worded(entry["age_s"])
        rows.append((site.node, entry["kind"], entry["name"], size, age, _done(entry, would)))
    for user in site.stray_report["users"]:
        uid = "?" if user["uid"] is None else user["uid"]
        name = f"{user['command'] or 'process'} (pid {user['pid']}) of uid {uid} on {user['card']}"
        rows.append((site.node, "other user", name, None, None, "left alone"))
    return rows


def _done(entry: GarbageBody, would: str) -> str:
    from orchestrator.usecases.runs.gc import HOLDS_RESULTS

    if entry["action"] == "fail":
        return f"failed: {entry['why']}"
    if entry["action"] == "remove":
        return f"{would}removed"
    if entry["why"] != HOLDS_RESULTS:
        return f"kept: {entry['why']}"
    return f"kept: {entry['why']}: {', '.join(entry['results'])} ({size_text(entry['result_bytes'])})"
