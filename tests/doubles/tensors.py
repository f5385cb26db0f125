"""
Tensors that Python sees on a device and that are on the CPU underneath.

torch has no kernels for `xla` or `gcu` here, and only C++ could register an allocator for them. So a tensor on such a device
is a CPU tensor of a subclass: its `device` is the card's, results of it have that class too, and arithmetic
with a tensor on the CPU or on another card fails with torch's error. `to`, the factories and Parameter are replaced,
as only they convert between CPU and card. C++ (autograd, DDP's reducer, gloo) sees the CPU tensor, so the numbers are
exactly those of the CPU. It does not model missing kernels of a card, memory, streams, and the lazy graph of a T20, nor code
that reads the device in C++ (FSDP, torch.compile, torch's check of a recomputed block's device) or requires the identity of
torch.Tensor (collectives of MMEngine since 0.10.5).
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Sequence, Set, Tuple

import torch
from torch.jit._builtins import _register_builtin

# `Any` below: arguments and results of any torch function.
FACTORIES = (
    *("zeros", "ones", "full", "empty", "arange", "tensor", "as_tensor", "rand", "randn", "randint", "randperm"),
    *("eye", "linspace", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
)
DRAW = (  # functions that draw from the card's generator: factories by `device`, the others by their tensors' device
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial"),
    *("normal", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"),
    *("dropout", "alpha_dropout", "dropout2d", "native_dropout", "scaled_dot_product_attention"),
)
MAY_MIX = ("copy_", "__getitem__", "__setitem__")  # may mix CPU tensors and the card's
_no_override: Callable[[], Any] = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)


@dataclass(frozen=True)
class Cards:
    """
    The devices of one kind in this process.

    Attributes:
        kind: the type of their torch.device, xla or gcu.
        count: the number of cards.
        current: the number of the current card.
        narrow: the cards store integers in 32 bits and floats in at most 32.
        computing: the context manager that functions run in.
        generator: the generator of the card of that number; each has its own, as every torch device.
    """

    kind: str
    count: Callable[[], int]
    current: Callable[[], int]
    narrow: bool
    computing: Callable[[], Any]
    generator: Callable[[int], torch.Generator]
    names: Set[str] = field(default_factory=set, compare=False)
    """Further types that mean these cards; `cuda` once a program has migrated."""

    def resolve(self, device: Any) -> torch.device:
        """`device`, with these cards' kind if it has one of `names`."""
        found = torch.device(device)
        return torch.device(self.kind, found.index) if found.type in self.names else found

    def indexed(self, device: torch.device) -> torch.device:
        """`device` with its number."""
        number: Any = device.index  # None without a number, which its type annotation omits
        number = self.current() if number is None else number
        if not 0 <= number < self.count():
            raise RuntimeError(f"Invalid device id, must in [0, {self.count() - 1}], got {number}")
        return torch.device(self.kind, number)

    @contextlib.contextmanager
    def drawing(self, func: Any, card: torch.device) -> Iterator[None]:
        """While `func` draws, give the CPU's generator the state of the card's."""
        if getattr(func, "__name__", "") not in DRAW:
            yield
            return
        of_cpu, of_card = torch.get_rng_state(), self.generator(int(card.index))
        torch.set_rng_state(of_card.get_state())
        try:
            yield
        finally:
            of_card.set_state(torch.get_rng_state())
            torch.set_rng_state(of_cpu)


class _KindOfTensor(type(torch.nn.Parameter)):  # type: ignore[misc]  # a class that torch makes
    """The class of tensors on a card is equal to torch.Tensor: MMEngine compares the types of two tensors, which on a real card are one."""

    def __eq__(cls, value: object) -> bool:
        return value is torch.Tensor or cls is value

    def __ne__(cls, value: object) -> bool:
        return not cls == value

    def __hash__(cls) -> int:
        return type.__hash__(cls)


class DeviceTensor(torch.Tensor, metaclass=_KindOfTensor):
    """A tensor on `card`, the attribute of a subclass per card."""

    cards: Cards
    card: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute of C++ there
        return self.card

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # as above
        return False

    def get_device(self) -> int:
        return int(self.card.index)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to("cpu")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {self.card} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def backward(self, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
        """Without __torch_function__: hooks that run during it must get the card's tensors."""
        torch.autograd.backward(_plain(self), gradient if gradient is None else _plain(gradient), *args, **kwargs)

    def pin_memory(self, *_: Any) -> torch.Tensor:
        raise RuntimeError(f"cannot pin '{self.card}' only dense CPU tensors can be pinned")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.pop("device", None)
        if getattr(func, "__name__", "") not in MAY_MIX:
            _one_device([*_tensors(args), *_tensors(tuple(kwargs.values()))])
        with cls.cards.computing(), _no_override(), cls.cards.drawing(func, cls.card):
            result = func(*args, **kwargs)
        result = _as_card_tensors(result, cls.cards, cls.card)
        return result if target is None else result.to(target)


def install(cards: Cards) -> None:
    """Make torch know these cards, for the rest of the process."""
    torch.Tensor.to = _moving(cards, torch.Tensor.to)  # type: ignore[method-assign]
    for name in FACTORIES:
        making = _making(cards, getattr(torch, name))
        setattr(torch, name, making)
        _register_builtin(making, f"aten::{name}")  # torch 1.10 scripts its functional optimizers, which call factories
    torch._has_compatible_shallow_copy_type = _comparing(torch._has_compatible_shallow_copy_type)
    construct = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if not isinstance(data, DeviceTensor):
            return construct(cls, data, requires_grad)
        kind = _class(cards, data.card, torch.nn.Parameter)
        with _no_override():
            return torch.Tensor._make_subclass(kind, _plain(data.detach()), requires_grad)

    torch.nn.Parameter.__new__ = staticmethod(new)  # type: ignore[method-assign]


def is_on_card(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DeviceTensor)


@functools.lru_cache(maxsize=None)
def _class(cards: Cards, card: torch.device, *more: type) -> Any:
    return type(f"On_{card.type}_{card.index}", (DeviceTensor, *more), {"cards": cards, "card": card})


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor underneath."""
    with _no_override():
        return tensor.as_subclass(torch.Tensor)


def _as_card_tensors(result: Any, cards: Cards, card: torch.device) -> Any:
    if type(result) is torch.Tensor:
        return result.as_subclass(_class(cards, card))
    if isinstance(result, (list, tuple)):
        items = [_as_card_tensors(item, cards, card) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _one_device(tensors: Any) -> None:
    """A number (no dimension) may be on the CPU, as for every device of torch."""
    devices = {str(tensor.device) for tensor in tensors if isinstance(tensor, DeviceTensor) or tensor.dim()}
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(sorted(devices))}!"
        )


def _comparing(original_check: Any) -> Any:
    """Return False to Module.to, so that it makes new parameters, as for a real device of another type."""

    @functools.wraps(original_check)  # torch._dynamo compares signatures
    def is_compatible(tensor: torch.Tensor, candidate: torch.Tensor) -> bool:
        same = isinstance(tensor, DeviceTensor) == isinstance(candidate, DeviceTensor)
        return same and bool(original_check(_plain(tensor), _plain(candidate)))

    return is_compatible


def _moving(cards: Cards, original: Any) -> Any:
    """Tensor.to that also takes this kind of device."""

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            target: Sequence[Any] = (args[0].device, args[0].dtype)
        else:
            target = torch._C._nn._parse_to(*args, **kwargs)
        here, dtype = self.device, target[1] or self.dtype
        there = cards.resolve(target[0]) if target[0] else here
        if cards.kind not in (here.type, there.type):
            return original(self, *args, copy=copy, **kwargs)
        destination = cards.indexed(there) if there.type == cards.kind else there
        with _no_override():
            moved = original(_plain(self), dtype=dtype, copy=copy or destination != here)
        if destination.type != cards.kind:
            return original(moved, destination)
        if moved.data_ptr() == self.data_ptr():
            return self
        return (_narrowed(moved) if cards.narrow else moved).as_subclass(_class(cards, destination))

    return to


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """Drop all but 32 bits and keep the type: the card does so without a warning."""
    half = {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype)
    return tensor if half is None else tensor.type(half).type(tensor.dtype)


def _making(cards: Cards, factory: Any) -> Any:
    """torch.zeros and other factories that also take device= of this kind."""

    @functools.wraps(factory)
    def make(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        device = device if device is None else cards.resolve(device)
        if device is None or device.type != cards.kind:
            more = {} if device is None else {"device": device}
            return factory(*args, **more, **({"requires_grad": True} if requires_grad else {}), **kwargs)
        if args and isinstance(args[0], DeviceTensor):  # its __torch_function__ draws from the card
            made = factory(*args, **kwargs).to(device)
        else:
            with cards.drawing(factory, cards.indexed(device)):
                made = factory(*args, **kwargs)
            made = made.to(device)
        return made.requires_grad_() if requires_grad else made

    return make
