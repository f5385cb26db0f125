"""
Search a log for known texts, in one pass with bounded memory, on a node or where a log was pasted.

A log repeats itself: lines that are equal apart from their digits are compared with the texts once, and in a log whose lines differ,
each word is. That is several times faster than a search for every text, and needs no other program.
"""

from __future__ import annotations

import re
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, Iterator, List, Pattern, Set, Tuple

    from orchestrator.node.protocol.output import HitBody, PatternBody, RaisedBody

BLOCK_BYTES = 1 << 20
LOOKAHEAD_BYTES = 4096
"""Bytes after a line that a pattern of several lines can see; longer lines are searched in pieces around the texts."""
BEFORE_BYTES = 1024
KEPT_BYTES = 1024  # of a line that is remembered
MOST_REMEMBERED = 1 << 14  # lines
MOST_WORDS, LONGEST_WORD = 1 << 16, 128  # that are remembered
HEAD_BYTES, AFTER_BYTES = 80, 512
_AFTER_LINES = 4
KERNEL_LOG = "kernel log"
"""The name of the kernel's log of a node, as of the file of a rank."""
_DIGITS = b"0123456789"
_RETURN_IS_NEWLINE = bytes.maketrans(b"\r", b"\n")  # a progress bar writes its states on one line
_ZEROS = bytes.maketrans(_DIGITS, b"0000000000")
_ANY_DIGIT = re.compile(r"\\d|0-9|\{\d*,?\d*\}|\(\?P[<=]\w+[>)]|\(\?P>\w+\)")
"""Parts of an expression for which all digits are alike, and digits in it that are none of the text."""
_COLOURS = re.compile("\x1b\\[[0-9;:]*[A-Za-z]")
_PROGRESS = (b"step=", b"loss", b"Loss", b"it/s", b"s/it")
"""Every line of progress contains one of these."""
_STEP = re.compile(
    rb"step=|['\"]loss['\"]:|\|[^|]*/[^|]*\[[^\]]*(?:it/s|s/it)|(?:it/s|s/it)\]"
    rb"|(?i:\b(?:steps?|iter(?:ation)?s?|epoch)\b.*\bloss(?:es)?\b[ =:(\[]+[-.,|\])]|\bloss[ =:(\[]+[-.,|\])].*\b(?:steps?|iter(?:ation)?s?|epoch)\b)"
)
"""A line, without digits, of a training that makes progress."""
_NO_STEP = re.compile(
    rb"rror|xception|raise |assert|File \"|\bNa?N\b|\bnan\b|oss scale|[Ll]oading|[Dd]ownload|[Tt]okeniz|Running |Map\b|Filter|Generating|Fetching|Resolving|Extract|Saving|Sanity"
)
"""A text that no line of progress contains: of errors that name a step, and of progress bars of other work."""
_FRAME_LINES = 8
"""Lines before a hit in which the code of a traceback is looked for."""
_CALLER_LINES = 160
"""Lines before an exception in which the frame of the program itself is looked for, above those of libraries."""
_CALLER = re.compile(rb'File "([^"]+)", line (\d+), in (\S+)')
_OF_LIBRARY = re.compile(rb"/(?:site|dist)-packages/|/lib(?:64)?/python\d|\\[Ll]ib\\|^<|/bin/[^/]+$")
"""The file of a frame that belongs to Python or an installed package."""
_NO_CODE = re.compile(rb"[\s^~|]*$")
_QUOTED = re.compile(
    r"^\s*(?:\[[\w-]+\]: +|\[\d+,\d+\]<\w+>: *|\(\w[^)]*\) +|\d+: +)?(?:\++ |[│|]\s+❱?\s*\d+ [│|]|-+> ?\d+ |raise \w[\w.]*\(|assert .*[,=<>(]|(?:warnings|logger|logging)\.\w+\()"
)
"""A line of a program that a shell, rich, IPython or Python quotes."""


@lru_cache(maxsize=None)
def compiled(expression: str) -> Pattern[str]:
    """A regular expression, compiled when a line first contains its text: there are more than the 512 that `re` remembers."""
    return re.compile(expression)


@lru_cache(maxsize=None)
def depends_on_digits(expression: str) -> bool:
    """True if an expression may match a line and not the line with other digits in the same positions."""
    return re.search(r"\d", _ANY_DIGIT.sub("", expression)) is not None


class Texts:
    """The texts of patterns, and what was learned about lines that may contain them; for the search of one log after the other."""

    def __init__(self, patterns: Iterable[PatternBody]) -> None:
        self.patterns = [
            (body["id"], body["expression"], body["lines"], [text.encode() for text in body["texts"]])
            for body in patterns
        ]
        self.candidates: Dict[bytes, Tuple[int, ...]] = {}
        """Lines without digits -> the patterns of which they contain a text."""
        self.progress: Set[bytes] = set()
        """Lines without digits that show progress."""
        self.unmatched: Dict[bytes, Set[int]] = {}
        """Lines with zeros for digits -> the patterns of which they contain a text, and which they do not match."""
        by_text: Dict[bytes, List[int]] = {}
        for index, (_, _, _, texts) in enumerate(self.patterns):
            for text in texts:
                by_text.setdefault(text.translate(None, _DIGITS), []).append(index)
        self._by_text = [(text, max(text.split(), key=len, default=b""), indexes) for text, indexes in by_text.items()]
        """Each text, its longest word, and its patterns."""
        self._wordless = {index for index, (_, word, _) in enumerate(self._by_text) if not word}
        self._known: Set[bytes] = set()
        """Lines without digits that contain no text."""
        self._words: Set[bytes] = set()
        """The words of lines, without digits."""
        self._texts_of: Dict[bytes, List[int]] = {}
        """Word of a line -> the texts whose longest word is a part of it."""

    def learn(self, lines: Set[bytes]) -> Dict[bytes, Tuple[int, ...]]:
        """Remember for lines without digits which patterns they may match; return those that are too long to be remembered."""
        long: Dict[bytes, Tuple[int, ...]] = {}
        new = lines.difference(self._known, self.candidates)
        if not new:
            return long
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        if len(self.candidates) > MOST_REMEMBERED:
            self.candidates.clear()
        if len(self.unmatched) > MOST_REMEMBERED:
            self.unmatched.clear()
        joined = b"\n".join(new)
        if len(self.progress) > MOST_REMEMBERED:
            self.progress.clear()
        texts = [text for text in _PROGRESS if text in joined]
        for line in new if texts else ():
            has_text = len(line) <= KEPT_BYTES and any(text in line for text in texts)
            if has_text and _STEP.search(line) and not _NO_STEP.search(line):
                self.progress.add(line)
        present = [(text, indexes) for text, indexes in self._possible(joined) if text in joined]
        for line in new if present else ():
            found = {index for text, indexes in present if text in line for index in indexes}
            if found:
                (self.candidates if len(line) <= KEPT_BYTES else long)[line] = tuple(sorted(found))
        self._known.update(line for line in new.difference(self.candidates, long) if len(line) <= KEPT_BYTES)
        return long

    def _possible(self, lines: bytes) -> List[Tuple[bytes, List[int]]]:
        """The texts that lines can contain, as they contain their longest words, and the patterns of these texts."""
        words = set(lines.split())
        if len(self._words) > MOST_WORDS:
            self._words.clear()
            self._texts_of.clear()
        new = words - self._words
        joined = b" ".join(new)
        present = [(index, word) for index, (_, word, _) in enumerate(self._by_text) if word and word in joined]
        for index, part in present:
            at = joined.find(part)
            while at >= 0:
                end = joined.find(b" ", at)
                end = len(joined) if end < 0 else end
                self._texts_of.setdefault(joined[joined.rfind(b" ", 0, at) + 1 : end], []).append(index)
                at = joined.find(part, end)
        possible = {index for word in words & self._texts_of.keys() for index in self._texts_of[word]}
        long = {word for word in new if len(word) > LONGEST_WORD}
        self._words |= new - long
        for word in long:
            self._texts_of.pop(word, None)
        return [(self._by_text[index][0], self._by_text[index][2]) for index in sorted(possible | self._wordless)]


class Search:
    """The search of one log, fed in blocks."""

    def __init__(self, texts: Texts, most: int) -> None:
        """Begin at the start of a log. `most`: the number of hits of each pattern that are kept; more are counted."""
        self.hits: List[HitBody] = []
        self.counts: Dict[str, int] = {}
        self.bytes = 0
        self.progress_line = 0
        """The last line that looks like progress of a training; 0 if there is none."""
        self.lines = 0
        """The number of newlines that were searched."""
        self._most = most
        self._texts = texts
        self._buffer = b""
        self._last: Dict[str, int] = {}
        """Pattern -> the index of the last hit, once the most are kept."""
        self._recent: List[bytes] = []
        """The last lines of the block before."""

    def feed(self, data: bytes) -> None:
        self.bytes += len(data)
        self._buffer += data
        if len(self._buffer) >= 2 * LOOKAHEAD_BYTES:
            limit = len(self._buffer) - LOOKAHEAD_BYTES
            self._search(self._buffer.rfind(b"\n", 0, limit) + 1 or limit)

    def close(self) -> None:
        self._search(len(self._buffer))
        self.hits.sort(key=lambda hit: hit["line"])

    def _search(self, end: int) -> None:
        """Search the buffer up to `end`, and drop that part."""
        block = self._buffer[:end]
        lines = block.translate(_RETURN_IS_NEWLINE, _DIGITS).split(b"\n")
        different = set(lines)
        long = self._texts.learn(different)
        if long or not self._texts.candidates.keys().isdisjoint(different):
            self._match(block, lines, long)
        if not self._texts.progress.isdisjoint(different):
            self.progress_line = self.lines + self._last_progress(block, lines) + 1
        if len(block) > 0:
            self._recent = (
                block[-_FRAME_LINES * KEPT_BYTES :].translate(_RETURN_IS_NEWLINE).split(b"\n")[-_FRAME_LINES - 1 : -1]
            )
        self.lines += block.count(b"\n")
        self._buffer = self._buffer[end:]

    def _last_progress(self, block: bytes, lines: List[bytes]) -> int:
        """The number of newlines before the last line of progress."""
        index = next(index for index in range(len(lines) - 1, -1, -1) if lines[index] in self._texts.progress)
        end = len(block)
        for _ in range(len(lines) - 1 - index):
            end = max(block.rfind(b"\n", 0, end), block.rfind(b"\r", 0, end))
        return block.count(b"\n", 0, end)

    def _match(self, block: bytes, lines: List[bytes], long: Dict[bytes, Tuple[int, ...]]) -> None:
        raw = block.translate(_RETURN_IS_NEWLINE).split(b"\n")
        end = newlines = counted = 0
        newest: Dict[int, Tuple[int, int, int, str]] = {}
        """The last hit of each pattern of which the most are kept."""
        candidates = {**self._texts.candidates, **long} if long else self._texts.candidates
        for number, (line, raw_line) in enumerate(zip(lines, raw)):
            offset, end = end, end + len(raw_line) + 1
            if line not in candidates:
                continue
            quoted = None
            for index, text in self._matches(raw_line, offset, candidates[line]):
                name, _, count, _ = self._texts.patterns[index]
                if count == 1:
                    quoted = self._frame(raw, number)[1] if quoted is None else quoted
                    if quoted:
                        continue
                newlines += block.count(b"\n", counted, offset)
                counted = offset
                found = (number, offset, self.lines + newlines + 1, text)
                self.counts[name] = self.counts.get(name, 0) + 1
                if self.counts[name] <= self._most:
                    self._last[name] = len(self.hits)
                    self.hits.append(self._hit(name, block, raw, found, count=count))
                else:
                    newest[index] = found
        for index, found in newest.items() if self._most > 1 else ():
            name, _, count, _ = self._texts.patterns[index]
            self.hits[self._last[name]] = self._hit(name, block, raw, found, count=count)

    def _matches(self, raw_line: bytes, offset: int, indexes: Iterable[int]) -> Iterator[Tuple[int, str]]:
        """The patterns, of those whose text is in a line, that match it, each with the part that it matches."""
        zeroed = raw_line.translate(_ZEROS) if len(raw_line) <= KEPT_BYTES else b""
        unmatched = self._texts.unmatched.get(zeroed, ())
        for index in indexes:
            if index in unmatched:
                continue
            _, expression, count, texts = self._texts.patterns[index]
            pieces = self._pieces(raw_line, offset, count, texts)
            text = next((piece for piece in pieces if compiled(expression).search(piece)), None)
            if text is not None:
                yield index, text
            elif zeroed and count == 1 and not depends_on_digits(expression):
                self._texts.unmatched.setdefault(zeroed, set()).add(index)

    def _hit(
        self, name: str, block: bytes, raw: List[bytes], found: Tuple[int, int, int, str], *, count: int
    ) -> HitBody:
        """A hit of a pattern of `count` lines; `found` has the index of the raw line, its offset, its number in the log and its text."""
        number, offset, line, text = found
        return {
            "id": name,
            "line": line,
            "text": text[: 2 * BEFORE_BYTES],
            "head": self._head(block, offset),
            **self._raised_by(raw, number, self._frame(raw, number)[0]),
            "after": self._after(offset + len(raw[number]) + 1) if count == 1 else "",
        }

    def _frame(self, raw: List[bytes], number: int) -> Tuple[int, bool]:
        """How many lines above a line the last frame of a traceback is, 0 for a frame itself and -1 without one; and whether the line is code that is quoted."""
        line = raw[number]
        if _QUOTED.match(_clean(line[:KEPT_BYTES])):
            return -1, True
        if b'File "' in line and b'", line ' in line:
            return 0, False
        before = self._before(raw, number, _FRAME_LINES)
        for index in range(len(before) - 1, -1, -1):
            column = before[index].find(b'File "')
            if column >= 0 and b'", line ' in before[index]:
                # between a frame and an exception there is only code, which is indented
                if all(code[column : column + 2] == b"  " for code in before[index + 1 :]):
                    return len(before) - index, line[column : column + 2] == b"  "
                break
        return -1, False

    def _before(self, raw: List[bytes], number: int, count: int) -> List[bytes]:
        """The lines above a line, also those of the block before."""
        before = raw[max(0, number - count) : number]
        return before if len(before) >= count else self._recent[len(before) - count :] + before

    def _raised_by(self, raw: List[bytes], number: int, frame: int) -> RaisedBody:
        """The last frame of the traceback above a line, its code, and the last frame that is not of a library."""
        if frame < 0:
            return {"frame": "", "code": "", "caller": ""}
        lines = [*self._before(raw, number, _CALLER_LINES), *raw[number : number + 2]]
        at = len(lines) - len(raw[number : number + 2]) - frame
        column = lines[at].find(b'File "')
        path = _clean(lines[at][column + 6 :]).partition('"')[0]
        below = lines[at + 1 :] if frame == 0 else lines[at + 1 : at + frame]
        code = next((each[column:] for each in below if not _NO_CODE.match(each[column:])), b"")
        caller = ""
        for each in reversed(lines[: at + 1]):
            if each[column : column + 6] == b'File "':
                found = _CALLER.match(each, column)
                if found and not _OF_LIBRARY.search(found[1]):
                    caller = f"{_clean(found[1])}:{_clean(found[2])} in {_clean(found[3])}"
                    break
            elif each[column : column + 2] != b"  ":  # the beginning of the traceback, or a line of another one
                break
        return {"frame": path, "code": _clean(code).strip()[:KEPT_BYTES], "caller": caller}

    def _after(self, offset: int) -> str:
        """The lines from an offset on, in which a message may continue."""
        lines = self._buffer[offset : offset + AFTER_BYTES].split(b"\n")[:_AFTER_LINES]
        return _clean(b"\n".join(lines).replace(b"\r", b""))

    def _pieces(self, raw_line: bytes, offset: int, count: int, texts: List[bytes]) -> Iterator[str]:
        """The parts of a line in which a pattern can match: the line, or for a long line the surroundings of each text."""
        if count > 1:
            follow = self._buffer[offset : offset + LOOKAHEAD_BYTES].split(b"\n", count)[:count]
            yield _clean(b"\n".join(follow).replace(b"\r", b""))
        elif len(raw_line) <= LOOKAHEAD_BYTES:
            yield _clean(raw_line)
        else:
            for text in texts:
                at = raw_line.find(text)
                if at >= 0:
                    yield _clean(raw_line[max(0, at - BEFORE_BYTES) : at + LOOKAHEAD_BYTES])

    @staticmethod
    def _head(block: bytes, offset: int) -> str:
        """The beginning of the line of which a part after a carriage return begins at `offset`; empty if it is the line itself."""
        start = block.rfind(b"\n", 0, offset) + 1
        return _clean(block[start : min(offset, start + HEAD_BYTES)])


def _clean(raw: bytes) -> str:
    """Decode a line, without colours."""
    text = raw.decode("utf-8", "replace")
    return _COLOURS.sub("", text) if "\x1b" in text else text
