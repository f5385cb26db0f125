"""The sentences about the code of a launch: files, size, origin, and what was left out by which rule. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.code.exclusions import ORCHIGNORE
from orchestrator.code.files import GITIGNORE, Code
from orchestrator.node.number_text import three_digits

_MOST_NAMED = 3
_LARGEST = 5
_LARGE_BYTES = 20_000_000  # from here on, a launch names the largest parts
_USERS_OWN = (GITIGNORE, ORCHIGNORE)  # the user has listed these files


def first_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(_printable, names[:_MOST_NAMED])) + more


def _printable(name: str) -> str:
    return name if name.isprintable() else repr(name)


class CodeReport:
    """The sentences about the code that is sent, whose files have these sizes."""

    def __init__(self, code: Code, sizes: Mapping[str, int]) -> None:
        self._code, self._sizes = code, sizes

    def at_launch(self) -> Iterator[str]:
        """The lines of a launch: what the user did not list in an ignore file, and the largest parts of much code."""
        unlisted = {reason: names for reason, names in self._code.left_out.items() if reason not in _USERS_OWN}
        yield from self._lines(unlisted, with_largest=sum(self._sizes.values()) >= _LARGE_BYTES)

    def in_full(self) -> Iterator[str]:
        yield from self._lines(self._code.left_out, with_largest=True)

    def _lines(self, left_out: Mapping[str, Sequence[str]], *, with_largest: bool) -> Iterator[str]:
        root, home = self._code.root, Path.home()
        folder = _printable(f"~/{root.relative_to(home)}" if home in root.parents else str(root))
        if self._code.is_unnamed:
            yield f"no code is sent: {folder} is not in a git work tree, and no argument names a file in it"
        if not self._code.files:
            return
        count, total = len(self._sizes), sum(self._sizes.values())
        yield f"code: {count} file{'s' * (count != 1)}, {_size(total)} from {folder}{self._revision()}"
        if with_largest:
            parts = [f"{_printable(name)} {_size(size)}" for name, size in largest_parts(self._sizes)]
            yield f"largest parts of the code: {', '.join(parts)}"
        if left_out:
            groups = [f"{first_names(names)} ({reason})" for reason, names in left_out.items()]
            yield f"not sent: {', '.join(groups)}; a line !NAME in {ORCHIGNORE} sends one"

    def _revision(self) -> str:
        code = self._code
        if not code.commit:
            return ""
        changes = f", {code.changed} changed file{'s' * (code.changed != 1)}" if code.changed else ""
        return f" (git {code.commit.removesuffix('-dirty')[:12]}{changes})"


def largest_parts(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The largest files and folders at the top; instead of a folder, the part that has most of the size."""
    totals: Counter[str] = Counter()
    children: dict[str, set[str]] = {}
    for name, size in sizes.items():
        parts = name.split("/")
        paths = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        for parent, path in zip(["", *paths], paths, strict=False):
            children.setdefault(parent, set()).add(path)
            totals[path] += size

    def narrowed(path: str) -> str:
        main = next((child for child in children.get(path, ()) if 3 * totals[child] > 2 * totals[path]), None)
        return path if main is None else narrowed(main)

    top = sorted(children.get("", ()), key=lambda path: (-totals[path], path))[:_LARGEST]
    found = [narrowed(path) for path in top]
    return [(f"{path}/" if path in children else path, totals[path]) for path in found]


def _size(count: int) -> str:
    for unit, factor in (("B", 1), ("kB", 10**3)):
        if count < 1000 * factor:
            return f"{three_digits(count / factor)} {unit}"
    return f"{three_digits(count / 10**6)} MB"
