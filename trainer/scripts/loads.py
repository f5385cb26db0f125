"""The files of earlier attempts that the ranks of a plain script load: all nodes have them, or the ranks continue from different states."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, Optional

from ..errors import NO_RETRY, UserError, report
from ..runtime.rank import Rank
from .devices import warn

REMEDY = "save to a folder that all nodes see (an absolute path, or a workdir that they share), or let one rank of each node save"


class MixedStates(UserError):
    """The ranks of one training continue from different checkpoints."""

    exit_code = NO_RETRY


class Loads:
    """The files that this rank has loaded by torch.load before its first step in a later attempt, compared with those of rank 0 after two steps."""

    def __init__(self, rank: Rank, store: Callable[[], Any]) -> None:
        self.rank = rank
        self.store = store
        self.files = 0
        self.resumed_from: Optional[str] = None
        """The newest of these files that an earlier attempt has saved."""

    def publish(self) -> None:
        """At the first step; other ranks read it after a further one, which they make together."""
        store = self.store()
        if store is not None:
            store.set(_key(self.rank.global_rank), json.dumps(self._state()))

    def compare(self) -> None:
        """
        End this rank if all ranks of rank 0's node have resumed from a file that is missing on this node, or warn.

        Of rank 0 alone it is not certain: it may broadcast what it has loaded. Two ranks on that node stand for all of them.
        """
        store = self.store()
        if self.resumed_from is not None or store is None or self.rank.nodes == 1:
            return
        main, second = (_read(store, number) for number in (0, 1))
        file = main.get("file")
        if (
            not file
            or main["node"] == self.rank.node
            or main["files"] <= self.files
            or os.path.exists(self._here(file))
        ):
            return
        text = f"rank 0 on {main['node']} has resumed from {file}, which is missing on {self.rank.node}"
        if second.get("file") and second["node"] == main["node"]:
            sys.exit(report(MixedStates(f"{text}: the ranks here have begun at step 0; {REMEDY}"), os.environ))
        if self.rank.local_rank == 0:
            warn(f"{text}: unless rank 0 gives its state to the others, the ranks here have begun at step 0; {REMEDY}")

    def _state(self) -> Dict[str, Any]:
        file = self.resumed_from and os.path.relpath(self.resumed_from, str(self.rank.run_dir))
        is_outside = bool(file) and str(file).startswith(os.pardir)
        return {"node": self.rank.node, "files": self.files, "file": self.resumed_from if is_outside else file}

    def _here(self, file: str) -> str:
        return os.path.join(str(self.rank.run_dir), file)


def _read(store: Any, rank: int) -> Dict[str, Any]:
    return dict(json.loads(store.get(_key(rank)))) if store.check([_key(rank)]) else {}


def _key(rank: int) -> str:
    return f"orch/loaded/{rank}"
