"""Several conversations in one sequence of fixed length, each seen by its own tokens only."""

from __future__ import annotations

import hashlib
from array import array
from typing import List, Tuple

import torch

from trainer.data.conversations import Conversations
from trainer.errors import UserError

IGNORED = -100  # a target that counts for nothing in the loss
TOGETHER = 1 << 20  # tokens whose sums are in memory at once


class PackedConversations:
    """
    Sample i: int64 [3, context], the tokens, their targets and their positions, of the conversations in sequence i.

    A conversation of n tokens takes n - 1 places: the last token is a target only. A longer one is cut at the context. Positions
    begin at 0 in each conversation and in the padding at the end.
    """

    is_random = False

    def __init__(self, conversations: Conversations, context: int, key: str) -> None:
        """Raises UserError: no answer is within the context."""
        self.conversations, self.context = conversations, context
        ends = conversations.ends
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), ends[:-1]))
        lengths = (ends - starts - 1).clamp(max=context)
        # The first token of a conversation is no target.
        borders = torch.stack((starts + 1, starts + 1 + lengths), dim=1)
        terms = _counts_before(borders.flatten(), conversations.trained).view(-1, 2).diff().flatten()
        used = (terms > 0).nonzero().flatten()
        if not len(used):
            raise UserError(
                f"{key}: no answer is within the first options.context={context} tokens of a conversation: raise options.context, "
                "or shorten what is before the answers"
            )
        members, self._ends = pack(lengths[used], context)
        self._members = used[members]
        self._starts, self._lengths = starts, lengths
        cut, unused = int((ends - starts - 1 > context).sum()), len(ends) - len(used)
        size = f"{len(used)} conversations in {len(self)} sequences, {int(lengths[used].sum())} tokens"
        omissions = [f"{cut} cut at options.context={context}"] if cut else []
        omissions += [f"{unused} left out, without an answer in it"] if unused else []
        self.description = ", ".join([size, f"{int(terms.sum())} of them trained", *omissions])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.zeros(3, self.context, dtype=torch.int64)
        tokens, targets, positions = sample
        targets.fill_(IGNORED)
        offset = 0
        for member in self._members[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]:
            start, length = int(self._starts[member]), int(self._lengths[member])
            ids = self.conversations.tokens[start : start + length + 1].long()
            trained = self.conversations.trained[start + 1 : start + length + 1].bool()
            tokens[offset : offset + length] = ids[:-1]
            targets[offset : offset + length] = ids[1:].masked_fill(~trained, IGNORED)
            positions[offset : offset + length] = torch.arange(length)
            offset += length
        positions[offset:] = torch.arange(self.context - offset)
        return sample

    def digest(self) -> str:
        return hashlib.sha256(f"{self.conversations.digest} {self.context}".encode()).hexdigest()


def _counts_before(borders: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """The number of trained tokens before each border; the borders ascend from 1 on. The sums of all tokens at once would fill the memory."""
    counts, total = torch.zeros_like(borders), 0
    for begin in range(0, len(trained), TOGETHER):
        sums = trained[begin : begin + TOGETHER].cumsum(0)  # int64
        first, last = torch.searchsorted(borders, torch.tensor([begin, begin + len(sums)]), right=True).tolist()
        counts[first:last] = total + sums[borders[first:last] - begin - 1]
        total += int(sums[-1])
    return counts


def pack(lengths: torch.Tensor, context: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """
    Put lengths into sequences of at most `context`: the longest first, each where it leaves the fewest free.

    Returns:
        The numbers of the lengths, sequence by sequence, and the end of each sequence in them.

    Bit n of `free_sizes` is set if a sequence has n positions free, so that the smallest sufficient number is found at once.
    """
    by_free: List[List[int]] = [[] for _ in range(context + 1)]
    chosen, count, free_sizes = array("q"), 0, 0  # the sequence of each length
    longest_first = torch.sort(lengths, descending=True, stable=True)
    for length in longest_first.values.tolist():
        enough = free_sizes >> length
        if enough:
            free = length + (enough & -enough).bit_length() - 1
            sequence = by_free[free].pop()
            free_sizes &= ~(1 << free) if not by_free[free] else -1
        else:
            free, sequence = context, count
            count += 1
        chosen.append(sequence)
        by_free[free - length].append(sequence)
        free_sizes |= 1 << (free - length)
    sequences = torch.frombuffer(chosen, dtype=torch.int64)
    order = torch.sort(sequences, stable=True).indices
    return longest_first.indices[order], torch.bincount(sequences).cumsum(0)
