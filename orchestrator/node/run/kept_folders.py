"""
The folders of a program that outlive its runs (`keep:` in the inventory): each is a link in the run's code folder.

They are below the workdir, in the folder `kept`, which nothing removes.
"""

from __future__ import annotations

import os

from orchestrator.node.system.files import make_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

KEPT = "kept"  # in the workdir


def link_kept(workdir: str, folder: str, cwd: str, paths: Sequence[str]) -> List[str]:
    """
    Link each path, relative to the working folder of the ranks, to the same path in `folder`, which is made below the workdir.

    All nodes of a file system do this, at the same time and in each attempt.

    Returns:
        The paths at which the program has put something else in the meantime.
    """
    make_parents(os.path.realpath(workdir), os.path.join(os.path.realpath(workdir), os.path.relpath(folder, workdir)))
    replaced = []
    for path in paths:
        target, link = os.path.join(folder, path), os.path.join(cwd, path)
        os.makedirs(target, 0o700, exist_ok=True)  # the user may have made it a link, to a larger disk
        os.makedirs(os.path.dirname(link), exist_ok=True)
        try:
            os.symlink(target, link)
        except FileExistsError:
            if os.path.realpath(link) != os.path.realpath(target):
                replaced.append(path)
    return replaced
