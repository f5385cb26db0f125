"""The loss of a step as one mean over the terms of all micro batches and ranks."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Tuple

import torch

from trainer.runtime.group import Group
from trainer.tasks.base import Task, counts_terms
from trainer.values import Batch

# A batch is `Any`: tensors in any nesting, as the task makes it.


class LossMean:
    """
    The strategies average losses over micro batches and ranks; a factor turns that into a mean over terms.

    Of a task with count_terms(), each loss is a sum. All of a step are multiplied by micro batches x ranks / terms of the step. The
    number of terms is found in a collective of all ranks; the host does not wait for the device.
    """

    def __init__(self, task: Task, group: Group) -> None:
        self.task, self.group = task, group

    def with_factor(self, batches: Iterable[Any]) -> Iterator[Tuple[Any, torch.Tensor | None]]:
        """The micro batches of one step with the factor of their losses, None if the task has no count_terms()."""
        if not counts_terms(self.task):
            for batch in batches:
                yield batch, None
            return
        held = list(batches)
        counts = torch.stack([self._count(batch) for batch in held])
        gathered = torch.stack(tuple(self.group.start_all_gather(counts)()))
        factor = gathered.numel() / gathered.sum().clamp(min=1.0)  # a step without terms has the loss 0
        for batch in held:
            yield batch, factor

    def _count(self, batch: Batch) -> torch.Tensor:
        # float32 holds up to 16.7 million terms exactly; some devices narrow types of 64 bits.
        count = self.task.count_terms(batch)
        if isinstance(count, torch.Tensor):
            return count.detach().to(self.group.device, non_blocking=True).sum().to(torch.float32)
        return torch.full((), float(count), device=self.group.device)  # a copy from the host would wait for the device
