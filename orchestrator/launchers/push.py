"""Send to a node over its connection: the bundle with the code, and the files of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.endpoint.client import Endpoint, FileContent, RunContent
from orchestrator.node.number_text import three_digits
from orchestrator.plan.files import PlannedFile, shared_files
from orchestrator.plan.plan import LaunchPlan, NodePlan
from orchestrator.progress import OnShare, no_progress

if TYPE_CHECKING:
    from orchestrator.code.bundle import Bundle
    from orchestrator.node.protocol.push import PutRunReply

MUCH_SPACE_BYTES = 2_000_000_000
LARGE_BYTES = 4 << 20  # a smaller bundle is sent as a whole, without a request for what the node lacks


def space_warnings(replies: Sequence[tuple[NodePlan, PutRunReply]]) -> tuple[str, ...]:
    """A sentence about the node on which the copies of the code of runs take the most space, if that is much."""
    node, most = max(replies, key=lambda item: item[1]["runs_code_bytes"])
    if most["runs_code_bytes"] < MUCH_SPACE_BYTES:
        return ()
    size = f"{three_digits(most['runs_code_bytes'] / 10**9)} GB"
    text = f"the code of {most['runs']} runs takes up to {size} in {node.workdir}"
    return (f"{node.name}: {text}; `orch gc` removes runs that have ended",)


def push_bundle(
    endpoint: Endpoint, workdir: str, bundle: Bundle, *, bytes_more: int = 0, on_sent: OnShare = no_progress
) -> None:
    """Write the bundle to a workdir, unless it is there already; `bytes_more` is the disk space for what follows it."""
    if not endpoint.prepare(workdir, bundle.digest, bytes_unpacked=bundle.size_bytes, bytes_more=bytes_more):
        send_bundle(endpoint, workdir, bundle, on_sent)


def send_bundle(endpoint: Endpoint, workdir: str, bundle: Bundle, on_sent: OnShare = no_progress) -> None:
    """Send a bundle; of a large one only the files that no bundle on the node has."""
    if bundle.size_bytes >= LARGE_BYTES:
        part = bundle.part(endpoint.lacking(workdir, bundle.digest, bundle.manifest))
        if endpoint.put_part(workdir, bundle.digest, bundle.manifest, part, on_sent=on_sent):
            return
    endpoint.put_bundle(workdir, bundle.digest, *bundle.archive, on_sent=on_sent)


def write_files(endpoint: Endpoint, run_dir: str, files: Sequence[PlannedFile]) -> None:
    """Write files of a run, in that order, by one request."""
    endpoint.put_files(run_dir, _contents(files, run_dir))


def run_content(plan: LaunchPlan, node: NodePlan, bundle: Bundle) -> RunContent:
    contents = _contents(shared_files(plan, node), plan.run_dir(node))
    sizes = bundle.size_bytes, bundle.code_size_bytes
    return RunContent(node.workdir, plan.run_id, bundle.digest, contents, *sizes)


def _contents(files: Sequence[PlannedFile], run_dir: str) -> list[FileContent]:
    return [(file.path.removeprefix(f"{run_dir}/"), file.text, file.mode) for file in files]
