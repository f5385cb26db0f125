"""The evidence of a failure: which signature was found in which line, and the node, rank and time that prefixes of the line name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from orchestrator.diagnosis.signature import Role, Signature
from orchestrator.node.search import Search, Texts
from orchestrator.portable.names.hostlist import ranks_on_nodes

if TYPE_CHECKING:
    from orchestrator.node.protocol.output import HitBody, PatternBody

MOST_SHOWN = 300
"""Characters of a line that are shown."""
MOST_PER_LOG = 1000
"""Hits of each signature that are kept of one log, which may have the lines of all ranks."""
_HOST = r"[A-Za-z0-9](?:[\w.-]*[\w])?"
_OF_MPI = r"\[\[|\*\*\* |\[ *\d+\] |[\w./]+\.c(?:c|pp)?:\d+|(?:Error|Warning): |Local abort |Signal|Failing at|\d+ more process|(?:mca|pml|btl|opal|orte|prte|PMIX|PRTE|OPAL|ORTE)[_:. ]"
"""The beginning of Open MPI's own messages."""
_TIME = r"(?P<time>\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?"
# In any order, as often as they appear: a launcher labels a line that already has the prefix of torch.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[(?P<node>{_HOST}):(?P<rank>(?!0\d)\d+|-)\] (?!{_OF_MPI})",  # orch
        rf"\[(?P<node>{_HOST}):\d+\] (?={_OF_MPI})",  # Open MPI, with the process id
        r"\[rank(?P<rank>\d+)\]:? ?",  # torch, from 2.2 on
        r"\[default(?P<local>\d+)\]: ?",  # torchrun --tee
        r" *(?P<rank>\d{1,6}): ",  # srun --label
        r"\([\w:. -]{1,80} pid=\d+(?:, ip=(?P<node>[\w.-]+)|, ip=[^)]*)?\) ",  # Ray
        r"\[\d+,(?P<rank>\d+)\]<std(?:err|out|diag)>: ?",  # mpirun --tag-output
        rf"\[?{_TIME}\]?[ :|]+(?:- )?",
        r"\[?[A-Z]\d{3,4} \d\d:\d\d:\d\d\.\d+ *(?:\d+ )?[\w./]+:\d+\] ",  # glog, as in torch's C++
        rf"(?P<node>{_HOST}):\d+:\d+ (?:\[\d+\] )?(?=\S+ ?\S* ?NCCL )",  # NCCL; the number in brackets is a card
        rf"slurmstepd-(?P<node>{_HOST}): (?=error: )",  # Slurm with several slurmd on a host
        rf"(?P<node>(?=[\w.-]*\d){_HOST}): (?=\S)",  # pdsh, DeepSpeed
    )
)
_NOT_HOST = re.compile(r"(?i)(?:.*(?:error|exception|warning)|.*\.py)$")
_NO_MESSAGE = re.compile(
    r"Traceback|File \"|During handling|The above exception|\*{3}|={5}|-{5}|[╭╰│]|(?:ERROR|WARNING|INFO)\b|\[(?:ERROR|WARNING|INFO)|(?:[\w<>]+\.)*\w*(?:Error|Exception)\b"
)
"""The beginning of a line that does not continue the message above it."""
_LOG_LINE = re.compile(r"\W*(?:[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d|\d\d[:/]\d\d[:/ ]|(?:INFO|WARNING|ERROR|DEBUG)\b)")
_NUMBERED = re.compile(r"_\d$")
_CONTINUES = re.compile(r":$|\d validation errors? for \S+$")
"""The end of a message whose next line has what it is about."""
_BARE_NAME = re.compile(r"(?:Error|Exception)$")
MOST_PREFIXES = 5
_MILD_HEAD = re.compile(r"\b(?:(?<!NCCL )(?:WARN|WARNING|INFO|DEBUG)|\w*Warning)\b")
_MILD_TAIL = re.compile(
    r"(?i)\b(?:retrying|will retry|falling back|fall back|skipped|skipping|ignored|ignoring|trying a smaller)\b"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The node, rank and time that the prefixes of a line name, and the line without them."""

    text: str
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    """Seconds since the epoch; a time without a zone counts as UTC, so that only times of one log can be compared."""
    is_local: bool = False
    """The rank is that within the node, which is the rank of the run on the first node alone."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The line in which a signature was found, the last one of several."""

    signature: Signature
    file: str
    line: int
    origin: Origin
    """The node and rank in whose log it is; None if that is not known."""
    values: Mapping[str, str] = field(default_factory=dict)
    frame: str = ""
    """The file of the last frame of the traceback above the line; empty without one."""
    code: str = ""
    """The line of code of that frame; empty if it is not shown."""
    caller: str = ""
    """The last frame of that traceback that is of no library, as FILE:LINE in FUNCTION; empty without one."""
    is_mild: bool = False
    """The program logged the line as a warning, or reports that it continues."""

    @property
    def rank(self) -> int | None:
        """The rank that the text is about, else the one that wrote it, else the rank within a process group, which may differ."""
        rank, group_rank = self.values.get("rank", ""), self.values.get("group_rank", "")
        if rank.isdigit():
            return int(rank)
        return int(group_rank) if self.origin.rank is None and group_rank.isdigit() else self.origin.rank

    @property
    def node(self) -> str | None:
        """The node that the text is about, else the one that wrote it."""
        return self.values.get("node") or self.origin.node

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def text(self) -> str:
        origin = ranks_on_nodes([] if self.rank is None else [self.rank], [self.node] if self.node else [])
        return f"{self.location}: {f'[{origin}] ' if origin else ''}{self.origin.text[:MOST_SHOWN]}"


@dataclass(frozen=True)
class Evidence:
    """Everything that was found about a failed run, in the order of reading."""

    hits: Sequence[Hit] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Signature -> the number of lines, also those that are not kept as hits."""
    progress_lines: Mapping[str, int] = field(default_factory=dict)
    """File -> the last line that looks like progress of the training; 0 if there is none."""
    world_size: int | None = None
    """The number of ranks, if it is known."""
    first_failure: tuple[int | None, str] | None = None
    """The rank, if it is known, and the node that failed first by the record of the run."""
    is_partial: bool = False
    node_of: Mapping[int, str] = field(default_factory=dict)
    """Rank -> its node, of the ranks whose logs were searched, also if nothing was found there."""

    def __add__(self, more: Evidence) -> Evidence:
        counts = {name: self.counts.get(name, 0) + more.counts.get(name, 0) for name in {*self.counts, *more.counts}}
        progress_lines = {**self.progress_lines, **more.progress_lines}
        world_size, first_failure = self.world_size or more.world_size, self.first_failure or more.first_failure
        is_partial, node_of = self.is_partial or more.is_partial, {**self.node_of, **more.node_of}
        hits = (*self.hits, *more.hits)
        return Evidence(hits, counts, progress_lines, world_size, first_failure, is_partial, node_of)


def patterns_of(signatures: Iterable[Signature]) -> list[PatternBody]:
    """The signatures in the form in which a search takes them."""
    return [
        {"id": row.id, "expression": row.pattern, "texts": list(row.texts), "lines": row.lines} for row in signatures
    ]


class LogSearch:
    """Searches logs for signatures, one after the other: what is learned about the lines of one is known for the next."""

    def __init__(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = signatures
        self._texts = Texts(patterns_of(signatures.values()))
        self._specific = [
            row for row in signatures.values() if row.lines == 1 and row.role not in {Role.ERROR, Role.UNKNOWN}
        ]
        self._causes = [row for row in self._specific if row.role is Role.ROOT]

    def evidence(
        self,
        blocks: Iterable[bytes],
        file: str,
        *,
        node: str | None = None,
        rank: int | None = None,
        named_rank: int | None = None,
    ) -> Evidence:
        """
        Search a log that is read in blocks.

        Args:
            node, rank: those whose log it is, if they are known.
            named_rank: the rank of lines that name none.
        """
        search = Search(self._texts, MOST_PER_LOG)
        for block in blocks:
            search.feed(block)
        search.close()
        hits = tuple(self.hits(search.hits, file, node=node, rank=rank))
        if named_rank is not None:
            hits = tuple(_with_rank(hit, named_rank) for hit in hits)
        return Evidence(hits, search.counts, {file: search.progress_line})

    def hits(self, bodies: Iterable[HitBody], file: str, *, node: str | None, rank: int | None) -> Iterator[Hit]:
        """The lines that a search has found, with their signature and origin; node and rank as for evidence()."""
        raised: set[int] = set()
        """The lines in which an exception was found, as several signatures find one by its frame, its name or its module."""
        for body in bodies:
            row = self._signatures[body["id"]]
            found = row.expression.search(body["text"])
            if found is None:  # the text was cut
                continue
            number = body["text"][: found.end()].rstrip("\n").count("\n")
            line = body["text"].split("\n")[number]
            if row.role is Role.ERROR:
                if body["line"] + number in raised:
                    continue
                raised.add(body["line"] + number)
                if _first_match(self._specific, line) is not None:
                    continue  # a more specific signature matches the line too; its own hit may be left out after many others
                message = _message(line, body.get("after", ""))
                known = None if message == line else _first_match(self._causes, message)
                if known is not None:
                    row, found = known
                elif message != line and (": " not in found["error"] or _CONTINUES.search(found["error"].rstrip())):
                    found = row.expression.search(message) or found
            values = {_NUMBERED.sub("", name): value for name, value in found.groupdict().items() if value}
            of_text, of_head = origin_of(line), origin_of(body["head"])
            of_rank = of_head if of_text.rank is None else of_text
            origin = Origin(
                of_text.text,
                node or of_text.node or of_head.node,
                of_rank.rank if rank is None else rank,
                of_text.time if of_text.time is not None else of_head.time,
                is_local=rank is None and of_rank.is_local,
            )
            before = found.string[: found.start()].rpartition("\n")[2]
            is_mild = _MILD_HEAD.search(before) is not None or _MILD_TAIL.search(line) is not None
            yield Hit(
                row,
                file,
                body["line"] + number,
                origin,
                values,
                body.get("frame", ""),
                body.get("code", ""),
                body.get("caller", ""),
                is_mild,
            )


def _with_rank(hit: Hit, rank: int) -> Hit:
    """The hit in the log of a rank, by the name of the file, which the line itself may contradict."""
    if hit.origin.rank is not None and not hit.origin.is_local:
        return hit
    return replace(hit, origin=replace(hit.origin, rank=rank, is_local=False))


def _first_match(rows: Iterable[Signature], line: str) -> tuple[Signature, re.Match[str]] | None:
    for row in rows:
        found = row.expression.search(line) if any(text in line for text in row.texts) else None
        if found is not None:
            return row, found
    return None


def _message(line: str, after: str) -> str:
    """The message of an exception with the lines in which it continues, as it has several or a terminal has wrapped it."""
    parts = [line.rstrip()]
    rank = origin_of(line).rank
    for following in after.split("\n"):
        origin = origin_of(following)
        text = origin.text.strip()
        if not text or origin.rank != rank or _NO_MESSAGE.match(text) or _LOG_LINE.match(following):
            break
        parts.append(text)
    if len(parts) > 1 and _BARE_NAME.search(parts[0]):
        parts[0] += ":"
    return " ".join(parts)


def origin_of(line: str) -> Origin:
    found = Origin(line)
    for _ in range(MOST_PREFIXES):
        match = next(filter(None, (pattern.match(found.text) for pattern in _PREFIXES)), None)
        values = {} if match is None else match.groupdict()
        if match is None or _NOT_HOST.match(values.get("node") or ""):
            break
        rank = values.get("rank") or values.get("local") or ""
        # torch's own rank is nearer to the text than the label of a launcher, a local rank is not
        is_better = rank.isdigit() and (found.rank is None or not values.get("local"))
        found = replace(
            found,
            text=found.text[match.end() :],
            node=found.node or values.get("node"),
            rank=int(rank) if is_better else found.rank,
            is_local=bool(values.get("local")) if is_better else found.is_local,
            time=found.time if found.time is not None else _seconds(values.get("time")),
        )
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text[:19].replace("_", " "))
    except ValueError:  # such as month 13
        return None
    fraction = float(f"0.{text[20:]}") if text[20:].isdigit() else 0.0
    return moment.replace(tzinfo=timezone.utc).timestamp() + fraction
