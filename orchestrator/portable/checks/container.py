"""Obstacles to training in containers, by the answers of their runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.portable.checks.container_state import HOST
from orchestrator.portable.checks.majority import difference
from orchestrator.portable.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.portable.checks.cluster import Cluster


def container(cluster: Cluster) -> Iterator[Finding]:
    """The containers of several nodes need the network of their nodes, a workdir that outlives them, and the same image."""
    for node, state in cluster.containers.items():
        if state.network != HOST and len(cluster.expected) > 1:
            text = f"{state} has the network {state.network}, so ranks on other nodes cannot connect to those in it"
            yield Finding(Severity.FAIL, "container", text, (node,), remedy=state.recreated_with("--network=host"))
        workdirs = (
            [disk["path"] for disk in cluster.facts[node]["disks"] if disk["use"] == "workdir"]
            if node in cluster.facts
            else []
        )
        for path in workdirs:
            if state.mounts is not None and not any(
                path == mount or path.startswith(f"{mount.rstrip('/')}/") for mount in state.mounts
            ):
                text = f"the workdir {path} is in {state} itself: logs and checkpoints are lost when the container is removed"
                remedy = f"set workdir: to a mounted folder ({', '.join(state.mounts) or 'there is none'}), or mount one: {state.recreated_with(f'--volume={path}:{path}')}"
                yield Finding(Severity.WARN, "container", text, (node,), remedy=remedy)
    images = {
        node: f"{state.image} {state.image_id[:12]}" for node, state in cluster.containers.items() if state.image_id
    }
    if differs := difference(images):
        image = next(filter(None, (state.image for state in cluster.containers.values())), "IMAGE")
        remedy = f"send one image to all nodes, and create the containers again: orch image push {image}"
        yield Finding(Severity.WARN, "container", f"the images differ: {differs.text()}", differs.nodes, remedy=remedy)
