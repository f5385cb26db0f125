"""Checks of the spare nodes, at a launch and when they are used: can they be reached, and do they see the checkpoints of the other nodes?"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodeError, Unreachable
from orchestrator.fanout import map_parallel, map_within, successes
from orchestrator.launchers.direct import DirectLauncher
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.plan.resolve import Facts

WAIT_S = 3.0  # for the spare nodes that have not answered when the others have been checked


def begin_logins(launcher: DirectLauncher, spares: Sequence[NodePlan]) -> None:
    """Begin to log in to the spare nodes, in a thread, for `check_spares`."""
    with suppress(RuntimeError):  # the user may have no more threads: then the check logs in
        threading.Thread(
            target=lambda: map_parallel(spares, launcher.reach, limit=len(spares)), name="spares", daemon=True
        ).start()


def check_spares(launcher: DirectLauncher, plan: LaunchPlan) -> Facts:
    """
    Find the spare nodes that would not see the checkpoints, once the files of the run are on the other nodes.

    A spare node that cannot be checked is warned of only: it may be usable when it is needed.
    """
    with _checkpoint_marker(launcher, plan, plan.head) as reason_if_unseen:

        def reason_against(node: NodePlan) -> str:
            """Why the node is left out, as the end of a sentence; empty if it is not."""
            endpoint = launcher.reach(node)
            if plan.is_shared and endpoint.find(node.workdir, plan.run_id) is None:
                return f"it does not share the folder of the run, {plan.run_dir(plan.head)}"
            return reason_if_unseen(endpoint)

        results = map_within(plan.spares, reason_against, limit=len(plan.spares), wait_s=WAIT_S)
    by_name = {node.name: result for node, result in zip(plan.spares, results, strict=True)}
    left_out = {name: text for name, text in by_name.items() if text and isinstance(text, str)}
    warnings = [f"the spare node {name} is left out: {text}" for name, text in left_out.items()]
    for name, result in by_name.items():
        if not isinstance(result, str):
            why = f"no answer for {WAIT_S:g} s" if result is None else getattr(result, "reason", str(result))
            warnings.append(f"the spare node {name} could not be checked: {why}")
    return Facts(tuple(warnings), unusable_spares=left_out.keys())


def require_visible_checkpoints(launcher: DirectLauncher, plan: LaunchPlan) -> None:
    """
    Require that the nodes that are new in an attempt see what one that stays writes to `out`: else it might begin at step 0 silently.

    Raises:
        NodesError: some do not.
    """
    if plan.checkpoint_folder is None:
        return
    staying = [node for node in plan.nodes if node.name in plan.earlier[-1]]
    new = [node for node in plan.nodes if node not in staying]
    if not staying or not new:
        return
    with _checkpoint_marker(launcher, plan, staying[0]) as reason_if_unseen:

        def require(node: NodePlan) -> None:
            if reason := reason_if_unseen(launcher.reach(node)):
                raise NodeError(node.name, reason)

        successes(map_parallel(new, require, limit=len(new)))


@contextmanager
def _checkpoint_marker(
    launcher: DirectLauncher, plan: LaunchPlan, writer: NodePlan
) -> Iterator[Callable[[Endpoint], str]]:
    """Write a file to `out`; the value returns why a node cannot be used, if it does not see the file, else an empty text."""
    out, token, marker = plan.checkpoint_folder, secrets.token_hex(16), ""
    if out is not None:
        with suppress(NodeError):  # the check of the nodes, or the trainer, reports it
            marker = launcher.reach(writer).write_marker(out, token)

    def reason_if_unseen(endpoint: Endpoint) -> str:
        is_visible = not marker or _sees(endpoint, marker, token)
        return "" if is_visible else f"it does not see what {writer.name} writes below out={out}"

    try:
        yield reason_if_unseen
    finally:
        if marker:
            with suppress(NodeError):
                launcher.reach(writer).remove_marker(marker)


def _sees(endpoint: Endpoint, marker: str, token: str) -> bool:
    try:
        return endpoint.find_marker(marker) == token
    except Unreachable:
        raise
    except NodeError:
        return False
