"""`orch gc`: end strays and remove what old runs left; print what was kept, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.actions.durations import seconds, worded
from orchestrator.actions.gc import Leftover, Limits, Visit, collect
from orchestrator.console import print_json, print_table, say, warn

_THOUSAND = 1000


def gc(older_than: str, inventory: str | None, *, checkpoints: bool, dry_run: bool, as_json: bool) -> int:
    """
    Clear the nodes and the records, and print what was found.

    Raises:
        OrchError: nodes could not be reached, or something is still there that should have gone.
    """
    limits = Limits(seconds("--older-than", older_than), checkpoints, dry_run)
    garbage = collect(limits, inventory)
    for warning in garbage.damaged:
        warn(warning)
    if not garbage.has_sites:
        say("no run is recorded here, so no node is known; -i FILE names some")
    if as_json:
        _report_json(garbage.visits, dry_run=dry_run)
    else:
        _report(garbage.visits, limits)
    garbage.raise_failures()
    return 0


def _report(visits: Sequence[Visit], limits: Limits) -> None:
    rows = [row for visit in visits for row in _rows(visit, dry_run=limits.dry_run)]
    if rows:
        print_table(("NODE", "WHAT", "NAME", "SIZE", "AGE", "DONE"), rows)
    for visit in visits:
        if visit.hunted.note:
            warn(f"{visit.node}: {visit.hunted.note}")
    entries = [entry for visit in visits for entry in visit.leftovers]
    freed = sum(entry.bytes for entry in entries if entry.action == "remove")
    young = sum(entry.action == "young" for entry in entries)
    would = "would be " if limits.dry_run else ""
    say(f"{_size(freed)} {would}freed; {young} younger than {worded(limits.older_than_s)} left alone")


def _rows(visit: Visit, *, dry_run: bool) -> list[tuple[object, ...]]:
    """All but what is too young."""
    would = "would be " if dry_run else ""
    rows: list[tuple[object, ...]] = []
    for stray in visit.hunted.strays:
        done = "still alive" if stray.alive and not dry_run else f"{would}ended"
        name = f"{stray.command} (pid {stray.pid}) of {stray.run} on {stray.node}"
        rows.append((visit.node, "stray", name, None, worded(stray.age_s), done))
    for entry in [entry for entry in visit.leftovers if entry.action != "young"]:
        size, age = _size(entry.bytes), worded(entry.age_s)
        rows.append((visit.node, entry.kind, entry.name, size, age, _done(entry, would)))
    for user in visit.hunted.users:
        uid = "?" if user.uid is None else user.uid
        name = f"{user.command or 'process'} (pid {user.pid}) of uid {uid} on {user.card}"
        rows.append((visit.node, "other user", name, None, None, "left alone"))
    return rows


def _done(entry: Leftover, would: str) -> str:
    if entry.action == "fail":
        return f"failed: {entry.why}"
    if entry.action == "remove":
        return f"{would}removed"
    of_them = f" ({_size(entry.checkpoint_bytes)}; --checkpoints removes them)" if "checkpoints" in entry.why else ""
    return f"kept: {entry.why}{of_them}"


def _report_json(visits: Sequence[Visit], *, dry_run: bool) -> None:
    print_json(
        {
            "dry_run": dry_run,
            "strays": [{"at": v.node, **asdict(stray)} for v in visits for stray in v.hunted.strays],
            "other_users": [{"at": v.node, **asdict(user)} for v in visits for user in v.hunted.users],
            "folders": [{"at": v.node, **asdict(entry)} for v in visits for entry in v.leftovers],
            "notes": [{"at": v.node, "note": v.hunted.note} for v in visits if v.hunted.note],
        }
    )


def _size(count: float) -> str:
    if count < _THOUSAND:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= _THOUSAND
        if count < _THOUSAND:
            return f"{count:.1f} {unit}"
    return f"{count / _THOUSAND:.1f} TB"
