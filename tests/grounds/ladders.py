"""Programs for ladders and trials, the two nodes of this machine that they run on, and what a ladder prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.grounds.cli import Orch
from tests.grounds.inventories import write_inventory

# Works without end on one node, and fails on two; it reports its steps at once, and replicas that differ.
FAILS_ON_TWO_NODES = """
[ "$NNODES" = 1 ] || { echo "RuntimeError: code: -98, name: EADDRINUSE, message: address already in use" >&2; exit 3; }
file=$ORCH_RUN_DIR/attempt-$ORCH_ATTEMPT/$ORCH_NODE/progress/$RANK.json
replicas='"count": '$WORLD_SIZE', "steps": {"5": {"parameters": "of rank '$RANK'"}}'
echo '{"step": 7, "phase": "step", "replicas": {'$replicas'}}' > $file.tmp
mv $file.tmp $file
exec sleep 1000
"""
# The text is gloo's; on one rank the program does not talk, as one without a process group.
NEEDS_AN_INTERFACE = """
[ "$WORLD_SIZE" = 1 ] || [ -z "$GLOO_SOCKET_IFNAME" ] && exit 0
echo "RuntimeError: ifa != nullptr. Unable to find address for: $GLOO_SOCKET_IFNAME" >&2
exit 1
"""


def orch_here(folder: Path, program: str, *, hook: Mapping[str, object], **extra: object) -> Orch:
    """orch beside train.sh and an inventory of two nodes of this machine; their folder is .work."""
    base = {
        "name": "here",
        "accelerator": "cpu",
        "devices": 1,
        "transport": "local",
        "defaults": {"workdir": str(folder / ".work"), "python": sys.executable},
        "hooks": [hook],
        "nodes": [{"name": "n0"}, {"name": "n1"}],
    }
    write_inventory(folder / "inventory.yaml", base, extra)
    (folder / "train.sh").write_text(program)
    return Orch(folder)


def assert_third_rung_failed(lines: Sequence[str], node: str, nodes: str) -> None:
    """A ladder of FAILS_ON_TWO_NODES with two ranks per node names `node` in its first rungs, and `nodes` in the third."""
    assert lines[0] == f"passed      rung 1 of 3, 1 rank on {node}: all ranks made 5 steps"
    assert lines[1] == f"passed      rung 2 of 3, 2 ranks on {node}: all ranks made 5 steps"
    assert lines[2].startswith(f"FAILED      rung 3 of 3, 4 ranks on {nodes}: run ladder-")
    assert lines[3].startswith("cause       another process uses the port on which a rank would listen")
    assert f"proved      two ranks of one node communicate (2 ranks on {node})" in lines
