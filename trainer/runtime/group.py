"""
The one place where ranks find each other: device, process group, self-test, head count; and the collectives they share.

Order matters. A rank takes its device first, then reports to the store of rank 0 (or of torchrun), so a rank that is
missing or has no device is named by all the others before anybody waits inside a collective.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import operator
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Mapping, NoReturn, Sequence, Type

import torch

from ..errors import REQUEUE, NetworkError, TrainerError, UserError
from .accelerators import Accelerator, choose  # relative: scripts get this under another name (trainer/scripts)
from .exit import end
from .rank import Place
from .rendezvous import RollCall, by_rank

CHUNK_BYTES = 64 << 20
NOTE_SIZE = 2  # a number, and a Told
STOCK_BACKENDS = ("gloo", "nccl")  # those known to go on with a collective while the rank computes


class Told(enum.IntFlag):
    """What any rank may tell all others at the end of a step."""

    NOTHING = 0
    WARNED = 1
    """Its time is nearly up."""
    SAVE = 2
    SAVE_FAILED = 4
    SKIPPED = 8
    """It did not update its weights in the step before: the gradient norm was not finite there."""


def read_notes(notes: Sequence[torch.Tensor]) -> tuple[list[float], list[Told]]:
    """The numbers and the flags, both in rank order."""
    pairs = [one.tolist() for one in notes]
    return [number for number, _ in pairs], [Told(round(told)) for _, told in pairs]


def any_of(told: Sequence[Told]) -> Told:
    """The flags that at least one rank has set."""
    return functools.reduce(operator.or_, told, Told.NOTHING)


@dataclass(frozen=True)
class Group:
    """All ranks of the run; collectives must be called by every one of them, in the same order."""

    place: Place
    accelerator: Accelerator
    device: torch.device
    roll: RollCall | None
    ready: str

    @property
    def greeting(self) -> str:
        """What this rank's log gets: of rank 0 that all are there, of the others what they are on."""
        return self.ready if self.place.is_main else f"rank {self.place.rank} ready, device {self.device}"

    def note(self, value: torch.Tensor, told: Told) -> torch.Tensor:
        """What a rank tells all others in the midst of a step: fp32 [NOTE_SIZE], on the device."""
        mine = torch.full((NOTE_SIZE,), float(told), dtype=torch.float32, device=self.device)
        mine[0] = value.detach()
        return mine

    def begin_all_gather(self, mine: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        """Begin to gather everybody's tensor; what it returns ends that, and gives them in rank order."""
        if not self.place.launched or self.place.world_size == 1:
            return lambda: [mine]
        everyone = [torch.zeros_like(mine) for _ in range(self.place.world_size)]
        if self.accelerator.backend not in STOCK_BACKENDS:
            self.accelerator.distributed.all_gather(everyone, mine)
            return lambda: everyone
        work = self.accelerator.distributed.all_gather(everyone, mine, async_op=True)

        def end() -> list[torch.Tensor]:
            work.wait()
            return everyone

        return end

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, in rank order."""
        sizes = [_number(one) for one in self._all_gather(self._tensor(len(data).to_bytes(8, "little")))]
        padded = self._tensor(data.ljust(max(1, *sizes), b"\0"))
        return [_bytes(one)[:size] for one, size in zip(self._all_gather(padded), sizes)]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Rank 0's bytes; what the others pass is ignored."""
        if not self.place.launched:
            return data
        head = self._tensor(len(data).to_bytes(8, "little"))
        self.accelerator.distributed.broadcast(head, 0)
        whole = bytearray(data if self.place.is_main else _number(head))
        if whole:
            self.share(torch.frombuffer(whole, dtype=torch.uint8))
        return bytes(whole)

    def share(self, tensor: torch.Tensor) -> None:
        """Rank 0's values into the `tensor` of every rank, in place: of one shape and type, on the CPU; others' contiguous."""
        if not self.place.launched:
            return
        here = tensor.detach().contiguous()
        size = here.numel() * here.element_size()
        # uint8 throughout: T20 narrows int64 silently. By address: old versions of torch view few types as bytes.
        raw = (ctypes.c_char * size).from_address(here.data_ptr())
        for start in range(0, size, CHUNK_BYTES):
            part = torch.frombuffer(raw, dtype=torch.uint8, offset=start, count=min(CHUNK_BYTES, size - start))
            there = part.to(self.device)
            self.accelerator.distributed.broadcast(there, 0)
            if there is not part and not self.place.is_main:
                part.copy_(there)

    def agree(self, problem: str, *, kind: Type[TrainerError] = UserError) -> None:
        """
        Go on only when no rank has a problem ("" is none).

        Raises:
            TrainerError: of this kind, on every rank alike, naming the ranks that have one.
        """
        problems = [one.decode() for one in self.gather_bytes(problem.encode())]
        if not any(problems):
            return
        if len(set(problems)) == 1:
            raise kind.agreed(problems[0])
        raise kind.agreed(by_rank({rank: text for rank, text in enumerate(problems) if text}))

    def set_timeout(self, seconds: float) -> None:
        """How long a collective that begins from now on may take. Nothing changes where torch has no way to: other backends, < 2.1."""
        c10d: Any = getattr(self.accelerator.distributed, "distributed_c10d", None)
        # There is no public way; torch's own trainers go this one.
        set_one = getattr(c10d, "_set_pg_timeout", None)
        if not self.place.launched or self.accelerator.backend not in STOCK_BACKENDS or set_one is None:
            return
        for group in list(c10d._world.pg_map):  # noqa: SLF001 -- as above
            set_one(timedelta(seconds=seconds), group)

    def close(self, code: int) -> NoReturn:
        """
        Leave the group and end the process with `code`.

        All ranks must: some libraries wait here for those that do not.
        """
        if self.place.launched:
            self.accelerator.distributed.destroy_process_group()
        if self.roll is not None:
            self.roll.leave(together=code not in (0, REQUEUE))
        end(code)

    def _tensor(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        return self.begin_all_gather(mine)()


def initialise(asked: str, timeout_s: float, env: Mapping[str, str], *, roll: RollCall | None = None) -> Group:
    """
    Take the device, join the group, test both, count heads. Every way of starting the trainer comes through here.

    Args:
        asked: auto, cuda, gcu or cpu.
        timeout_s: how long a collective may take before it fails.
        env: MASTER_ADDR, MASTER_PORT and what Place reads.
        roll: where the caller has opened it already.

    Raises:
        UserError: a rank has no usable device; on all ranks, where their store can be reached.
        TrainerError: a rank is missing, or the test all-reduce gave a wrong sum.
    """

    def find() -> Accelerator:
        accelerator = choose(asked, torch)
        if accelerator.passed_over and env.get("LOCAL_RANK", "0") == "0":  # once a node
            sys.stderr.write(f"WARNING: training on the CPU: {accelerator.passed_over}, or say device=cpu\n")
        return accelerator

    return initialise_on(find, timeout_s, env, roll=roll)


def initialise_on(
    find: Callable[[], Accelerator],
    timeout_s: float,
    env: Mapping[str, str],
    *,
    roll: RollCall | None = None,
    **more: Any,  # noqa: ANN401 -- whatever init_process_group takes besides
) -> Group:
    """As `initialise`, on the accelerator that `find` gives; a UserError of its counts as this rank's."""
    place = Place.from_env(env)
    accelerator, device, problem = _prepare(find, place)
    if not place.launched:
        if accelerator is None or problem:
            raise UserError(problem)
        return Group(place, accelerator, device, None, f"1/1 ranks ready, backend none, device {device.type}")
    roll = roll or RollCall.open(place, env, timeout_s)
    roll.check_all("device", problem, accelerator.name if accelerator else "")
    assert accelerator is not None  # a rank with a problem did not get past the roll call
    _join(accelerator, roll, timeout=timedelta(seconds=timeout_s), **more)
    roll.check_all("all-reduce", _test_all_reduce(accelerator, place, device), device.type, kind=NetworkError)
    count = place.world_size
    ready = f"{count}/{count} ranks ready, backend {accelerator.backend}, device {device.type}"
    return Group(place, accelerator, device, roll, ready)


def _prepare(find: Callable[[], Accelerator], place: Place) -> tuple[Accelerator | None, torch.device, str]:
    """(row, device, ""), or what is known so far and why this rank cannot go on."""
    accelerator, device = None, torch.device("cpu")
    try:
        accelerator = find()
        device = _take_device(accelerator, place)
    except UserError as exc:
        return accelerator, device, str(exc)
    return accelerator, device, ""


def _join(accelerator: Accelerator, roll: RollCall, **more: Any) -> None:  # noqa: ANN401 -- as above
    """Make the process group; raises TrainerError in the words of the library that refuses."""
    place, dist = roll.place, accelerator.distributed
    if accelerator.own_rendezvous:
        meeting = {"init_method": f"tcp://{roll.address_for_others()}"}
    else:
        meeting = {"store": roll.store_for("group")}
    try:
        dist.init_process_group(accelerator.backend, rank=place.rank, world_size=place.world_size, **meeting, **more)
    except (RuntimeError, ValueError) as exc:
        raise NetworkError(f"rank {place.rank} cannot join the group ({accelerator.backend}): {exc}") from exc


def _take_device(accelerator: Accelerator, place: Place) -> torch.device:
    """Make the rank's device current and compute on it; a UserError names device and cause."""
    name = accelerator.device_string(place.local_rank)
    if place.local_rank >= accelerator.count():
        raise UserError(
            f"local rank {place.local_rank} has no device: this node shows {accelerator.count()} ({accelerator.name}); "
            "start fewer ranks a node, or widen the *_VISIBLE_DEVICES variable"
        )
    try:
        accelerator.set_device(place.local_rank)
        device = torch.device(name)
        total = float(torch.arange(4, dtype=torch.float32).to(device).sum().item())
        accelerator.synchronize()
    except (RuntimeError, IndexError, AssertionError) as exc:
        raise UserError(f"device {name} cannot be used: {exc}") from exc
    if total != 6.0:  # noqa: PLR2004 -- 0+1+2+3
        raise UserError(f"device {name} computes wrongly: 0+1+2+3 gave {total}")
    return device


def _test_all_reduce(accelerator: Accelerator, place: Place, device: torch.device) -> str:
    """Sum 1..world_size over the group, exact in fp32; what went wrong, or ""."""
    probe = torch.tensor([float(place.rank + 1)], dtype=torch.float32).to(device)
    try:
        accelerator.distributed.all_reduce(probe)
        total = float(probe.item())
    except RuntimeError as exc:
        return f"the test all-reduce failed: {exc}"
    expected = place.world_size * (place.world_size + 1) / 2
    return "" if total == expected else f"the test all-reduce gave {total:g}, expected {expected:g}"


def _bytes(tensor: torch.Tensor) -> bytes:
    """By address: numpy may be missing and tolist() costs seconds on a checkpoint."""
    here = tensor.cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel())


def _number(tensor: torch.Tensor) -> int:
    return int.from_bytes(_bytes(tensor), "little")
