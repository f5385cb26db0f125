"""
Tensors that are on a device as far as Python can tell, and on the CPU underneath.

torch has no kernels for `xla` or `gcu` here, and only C++ could register an allocator for them. So a tensor on such a device
is a CPU tensor of a subclass: its `device` is the card's, what is computed from it is of that class again, and arithmetic
between it and a tensor on the CPU or on another card fails as torch does it. `to`, the factories and Parameter are replaced,
as they alone turn one kind into the other. C++ (autograd, DDP's reducer, gloo) sees the CPU tensor, so the numbers are
exactly those of the CPU. What this cannot show: kernels that a card lacks, memory, streams, and the lazy graph of a T20;
nor what asks C++ for the device (FSDP, torch.compile, torch's check that a recomputed block is where it was) or wants
torch.Tensor itself as the type (MMEngine's collectives).
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence, Tuple

import torch

# `Any` below stands for the arguments and results of any function of torch.
FACTORIES = (
    *("zeros", "ones", "full", "empty", "arange", "tensor", "as_tensor", "rand", "randn", "randint", "randperm"),
    *("eye", "linspace", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
)
DRAW = (  # functions that draw from the generator of the card; the factories with `device`, the others by where their tensors are
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial"),
    *("normal", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"),
    *("dropout", "alpha_dropout", "dropout2d", "native_dropout", "scaled_dot_product_attention"),
)
MAY_MIX = ("copy_", "__getitem__", "__setitem__")  # the CPU's tensors and the card's
_no_override: Callable[[], Any] = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)  # noqa: SLF001


@dataclass(frozen=True)
class Cards:
    """
    The devices of one kind in this process.

    Attributes:
        kind: of their torch.device, xla or gcu.
        count: how many there are.
        current: the number of the one in use.
        narrow: integers keep 32 bits there, and floats at most 32.
        computing: the block that a function runs in.
        generator: of the card of that number; it has one of its own, as every device of torch.
    """

    kind: str
    count: Callable[[], int]
    current: Callable[[], int]
    narrow: bool
    computing: Callable[[], Any]
    generator: Callable[[int], torch.Generator]

    def place(self, device: torch.device) -> torch.device:
        """`device` with its number."""
        number: Any = device.index  # None without one, which its type does not say
        number = self.current() if number is None else number
        if not 0 <= number < self.count():
            raise RuntimeError(f"Invalid device id, must in [0, {self.count() - 1}], got {number}")
        return torch.device(self.kind, number)

    @contextlib.contextmanager
    def drawing(self, func: Any, place: torch.device) -> Iterator[None]:
        """Where `func` draws, the CPU's generator is the card's meanwhile."""
        if getattr(func, "__name__", "") not in DRAW:
            yield
            return
        of_cpu, of_card = torch.get_rng_state(), self.generator(int(place.index))
        torch.set_rng_state(of_card.get_state())
        try:
            yield
        finally:
            of_card.set_state(torch.get_rng_state())
            torch.set_rng_state(of_cpu)


class DeviceTensor(torch.Tensor):
    """On `place`, which a subclass for each card has."""

    cards: Cards
    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute of C++ there
        return self.place

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # as above
        return False

    def get_device(self) -> int:
        return int(self.place.index)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to("cpu")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {self.place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def backward(self, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
        """Not by way of __torch_function__: hooks that run meanwhile must see the card's tensors."""
        torch.autograd.backward(_plain(self), gradient if gradient is None else _plain(gradient), *args, **kwargs)

    def pin_memory(self, *_: Any) -> torch.Tensor:
        raise RuntimeError(f"cannot pin '{self.place}' only dense CPU tensors can be pinned")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asked = kwargs.pop("device", None)
        if getattr(func, "__name__", "") not in MAY_MIX:
            _one_device([*_tensors(args), *_tensors(tuple(kwargs.values()))])
        with cls.cards.computing(), _no_override(), cls.cards.drawing(func, cls.place):
            result = func(*args, **kwargs)
        result = _mark(result, cls.cards, cls.place)
        return result if asked is None else result.to(asked)


def install(cards: Cards) -> None:
    """Make torch know these cards, for the rest of the process."""
    torch.Tensor.to = _moving(cards, torch.Tensor.to)  # type: ignore[method-assign]
    for name in FACTORIES:
        setattr(torch, name, _making(cards, getattr(torch, name)))
    torch._has_compatible_shallow_copy_type = _comparing(torch._has_compatible_shallow_copy_type)  # noqa: SLF001
    construct = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # noqa: FBT002 -- torch's own
        if not isinstance(data, DeviceTensor):
            return construct(cls, data, requires_grad)
        kind = _class(cards, data.place, torch.nn.Parameter)
        with _no_override():
            return torch.Tensor._make_subclass(kind, _plain(data.detach()), requires_grad)  # noqa: SLF001

    torch.nn.Parameter.__new__ = staticmethod(new)  # type: ignore[method-assign]


def is_on_card(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DeviceTensor)


@functools.lru_cache(maxsize=None)
def _class(cards: Cards, place: torch.device, *more: type) -> Any:
    return type(f"On_{place.type}_{place.index}", (DeviceTensor, *more), {"cards": cards, "place": place})


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor underneath."""
    with _no_override():
        return tensor.as_subclass(torch.Tensor)


def _mark(result: Any, cards: Cards, place: torch.device) -> Any:
    if type(result) is torch.Tensor:
        return result.as_subclass(_class(cards, place))
    if isinstance(result, (list, tuple)):
        marked = [_mark(one, cards, place) for one in result]
        return type(result)(*marked) if hasattr(result, "_fields") else type(result)(marked)
    return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for one in values:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _one_device(tensors: Any) -> None:
    """A number (no dimension) may be on the CPU, as for every device of torch."""
    places = {str(one.device) for one in tensors if isinstance(one, DeviceTensor) or one.dim()}
    if len(places) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(sorted(places))}!"
        )


def _comparing(known: Any) -> Any:
    """Says no to Module.to, so that it makes new parameters, as it does for a real device of another kind."""

    @functools.wraps(known)  # torch._dynamo compares signatures
    def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
        same = isinstance(one, DeviceTensor) == isinstance(other, DeviceTensor)
        return same and bool(known(_plain(one), _plain(other)))

    return alike


def _moving(cards: Cards, original: Any) -> Any:
    """Tensor.to for this kind of device as well."""

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            asked: Sequence[Any] = (args[0].device, args[0].dtype)
        else:
            asked = torch._C._nn._parse_to(*args, **kwargs)  # noqa: SLF001
        here, there, dtype = self.device, asked[0] or self.device, asked[1] or self.dtype
        if cards.kind not in (here.type, there.type):
            return original(self, *args, copy=copy, **kwargs)
        place = cards.place(there) if there.type == cards.kind else there
        with _no_override():
            moved = original(_plain(self), dtype=dtype, copy=copy or place != here)
        if place.type != cards.kind:
            return original(moved, place)
        if moved.data_ptr() == self.data_ptr():
            return self
        return (_narrowed(moved) if cards.narrow else moved).as_subclass(_class(cards, place))

    return to


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """What 32 bits keep, in the type it had: the card says nothing of it."""
    half = {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype)
    return tensor if half is None else tensor.type(half).type(tensor.dtype)


def _making(cards: Cards, factory: Any) -> Any:
    """torch.zeros and the like, for device= of this kind as well."""

    @functools.wraps(factory)
    def make(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != cards.kind:
            more = {} if device is None else {"device": device}
            return factory(*args, **more, **({"requires_grad": True} if requires_grad else {}), **kwargs)
        if args and isinstance(args[0], DeviceTensor):  # that draws by itself
            made = factory(*args, **kwargs).to(device)
        else:
            with cards.drawing(factory, cards.place(torch.device(device))):
                made = factory(*args, **kwargs)
            made = made.to(device)
        return made.requires_grad_() if requires_grad else made

    return make
