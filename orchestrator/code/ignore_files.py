"""Files such as .gitignore, in a folder and those below it: the last pattern that matches decides, of the innermost file that has one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_WILDCARDS = frozenset("*?[\\")


class IgnoreFiles:
    """The files of one name, such as .gitignore, in `root` and the folders below it; each is read when a path in its folder is looked up."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def is_ignored(self, path: str) -> bool | None:
        """Return whether a path relative to the root is ignored; False by a pattern with `!`, None without any that matches."""
        folder = path.rstrip("/")
        while folder:
            folder = folder.rpartition("/")[0]
            spec = self._spec(folder)
            found = None if spec is None else spec.check_file(path[len(folder) + 1 if folder else 0 :]).include
            if found is not None:
                return found
        return None

    def negated(self) -> Iterator[str]:
        """The paths relative to the root, one for each pattern with `!` in its own file, below which it may match; empty: below all."""
        for line in self._lines(""):
            if line.startswith("!"):
                parts = line[1:].strip().strip("/").split("/")
                is_anchored = "/" in line[1:].strip().rstrip("/")
                fixed = takewhile(lambda part: not _WILDCARDS & {*part}, parts if is_anchored else ())
                yield "/".join(fixed)

    def _lines(self, folder: str) -> list[str]:
        file = self._root / folder / self._name
        try:
            return file.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            self._specs[folder] = None
            if lines := self._lines(folder):
                from pathspec import GitIgnoreSpec  # most launches have no such file to read

                self._specs[folder] = GitIgnoreSpec.from_lines(lines)
        return self._specs[folder]
