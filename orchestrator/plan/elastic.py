"""The sizes that the attempts of an elastic run may have. Pure."""

from __future__ import annotations

from math import lcm

from orchestrator.errors import UsageError
from orchestrator.plan.plan import Sizes
from orchestrator.run import Elastic


def elastic_sizes(elastic: Elastic, count: int, ranks: int) -> Sizes:
    """
    The numbers of nodes, up to `count`, that keep the batch of the shared trainer; for another program, all from the least on.

    Args:
        count: the nodes of the first attempt.
        ranks: on each node.

    Raises:
        UsageError: `count` does not keep the batch, or no smaller number does.
    """
    counts = range(elastic.least, count + 1)
    micro_batch = elastic.micro_batch
    if micro_batch is None:
        return Sizes(tuple(counts))
    per_node = micro_batch * ranks
    batch = elastic.batch or per_node * count * (elastic.accumulation or 1)
    fitting = tuple(nodes for nodes in counts if batch % (per_node * nodes) == 0)
    if count not in fitting or (len(fitting) == 1 and elastic.least < count):
        nodes, remark = (count, "") if count not in fitting else (count - 1, ", and no smaller number of nodes fits")
        raise UsageError(
            f"--elastic {elastic.least}:{elastic.most}: the batch of {batch} samples per step is no multiple of "
            f"micro_batch={micro_batch} x {nodes * ranks} ranks on {nodes} nodes = {per_node * nodes}{remark}",
            hint=f"choose a batch that all sizes divide, such as batch={per_node * lcm(*counts)}, or a smaller micro_batch",
        )
    return Sizes(fitting, micro_batch, batch)
