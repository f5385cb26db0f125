"""Several conversations in one sequence of fixed length, each seen by its own tokens only."""

from __future__ import annotations

import hashlib
from typing import List, Sequence, Tuple

import torch

from trainer.data.conversations import Conversations
from trainer.errors import UserError

IGNORED = -100  # a target that counts for nothing in the loss


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
        answers = torch.cat((torch.zeros(1, dtype=torch.int64), conversations.trained.to(torch.int64).cumsum(0)))
        # The first token of a conversation is no target.
        terms = answers[starts + 1 + lengths] - answers[starts + 1]
        used = (terms > 0).nonzero().flatten()
        if not len(used):
            raise UserError(f"{key}: no answer is within the first options.context={context} tokens of a conversation")
        packs = pack([int(length) for length in lengths[used]], context)
        self._members = used[torch.tensor([member for members in packs for member in members])]
        self._ends = torch.tensor([len(members) for members in packs]).cumsum(0)
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


def pack(lengths: Sequence[int], context: int) -> List[Tuple[int, ...]]:
    """
    Numbers of lengths that add up to at most `context`, each number once: the longest first, each where it leaves the fewest free.

    Bit n of `free_sizes` is set if a sequence has n positions free, so that the smallest sufficient number is found at once.
    """
    by_free: List[List[List[int]]] = [[] for _ in range(context + 1)]
    packs: List[List[int]] = []
    free_sizes = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        enough = free_sizes >> length
        if enough:
            free = length + (enough & -enough).bit_length() - 1
            members = by_free[free].pop()
            free_sizes &= ~(1 << free) if not by_free[free] else -1
        else:
            free, members = context, []
            packs.append(members)
        members.append(number)
        by_free[free - length].append(members)
        free_sizes |= 1 << (free - length)
    return [tuple(members) for members in packs]
