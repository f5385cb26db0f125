"""The loss of a head in parts equals that of whole logits, with its gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.grounds.largest_result import LargestResult
from trainer.tasks import cross_entropy
from trainer.tasks.cross_entropy import IGNORED, head_loss

ROWS, WIDTH, VOCABULARY = 50, 16, 37


def _whole(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy((x @ weight.t()).float().flatten(0, 1), target.flatten(), reduction="sum")


def _run(
    loss: Callable[..., torch.Tensor], target: torch.Tensor, *, autocast: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, ROWS // 2, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = loss(x, weight, target)
    (found / 7).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found.detach(), x.grad, weight.grad


@pytest.mark.parametrize("most", [1, VOCABULARY * 7, VOCABULARY * 25])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("multiple", [1, 64])
def test_loss_and_gradients_equal_those_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, most: int, multiple: int, *, autocast: bool
) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", most)
    monkeypatch.setattr(cross_entropy, "MULTIPLES", {"cpu": multiple})
    target = torch.arange(ROWS).view(2, -1) % VOCABULARY
    target[0, 3:9] = IGNORED  # tokens that do not count
    tolerance = 2e-2 if autocast else 1e-5
    for found, expected in zip(
        _run(head_loss, target, autocast=autocast), _run(_whole, target, autocast=autocast), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_gradients_in_bf16_have_the_scale_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 1)
    scale = 3.0077  # 3.0 or 3.0156 in bf16
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(2)).bfloat16()
    loss = head_loss(x, weight, torch.arange(ROWS) % VOCABULARY)
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (scaled,) = torch.autograd.grad(loss * scale, x)
    assert scaled.dtype == torch.bfloat16
    assert (scaled.double() * plain.double()).sum() / plain.double().square().sum() == pytest.approx(scale, rel=1e-3)


def test_loss_without_a_target_is_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", VOCABULARY)
    loss, x_gradient, _ = _run(head_loss, torch.full((2, ROWS // 2), IGNORED), autocast=False)
    assert loss == 0
    assert x_gradient is not None
    assert not x_gradient.any()


@pytest.mark.parametrize(("trained", "needed"), [((), 0), (("x",), 1), (("weight",), 1), (("x", "weight"), 2)])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_only_the_gradients_that_are_needed_are_computed(
    monkeypatch: pytest.MonkeyPatch, trained: tuple[str, ...], needed: int, *, with_gradients: bool
) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", VOCABULARY)
    x = torch.nn.Parameter(torch.ones(4, WIDTH), requires_grad="x" in trained)
    weight = torch.nn.Parameter(torch.ones(VOCABULARY, WIDTH), requires_grad="weight" in trained)
    with torch.set_grad_enabled(with_gradients), _Products() as products:
        loss = head_loss(x, weight, torch.arange(4))
    assert loss > 0
    assert len(products.sizes) - 1 == 4 * (1 + (needed if with_gradients else 0))  # one finds the precision
    if needed and with_gradients:
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        assert [tensor.grad is not None for tensor in (x, weight)] == ["x" in trained, "weight" in trained]


@pytest.mark.parametrize("most", [VOCABULARY, 1 << 20])
def test_head_of_an_odd_vocabulary_is_multiplied_in_whole_tiles(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", most)
    monkeypatch.setattr(cross_entropy, "MULTIPLES", {"cpu": 64})
    x, weight = torch.nn.Parameter(torch.ones(4, WIDTH)), torch.nn.Parameter(torch.ones(VOCABULARY, WIDTH))
    with _Products() as products:
        head_loss(x, weight, torch.arange(4)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    finds_precision = most == VOCABULARY
    assert {max(sizes) for sizes in products.sizes[finds_precision:]} == {64}
    assert weight.grad is not None
    assert weight.grad.shape == weight.shape


@pytest.mark.parametrize(("most", "is_compiled"), [(VOCABULARY * 7, False), (1 << 20, True)])
def test_only_a_loss_at_once_is_compiled(monkeypatch: pytest.MonkeyPatch, most: int, *, is_compiled: bool) -> None:
    """The loop over the parts would be unrolled into the graph."""
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", most)
    operations: list[str] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(head_loss, backend=backend)
    target = torch.arange(ROWS).view(2, -1) % VOCABULARY
    for found, expected in zip(
        _run(compiled, target, autocast=False), _run(_whole, target, autocast=False), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert any("cross_entropy" in operation for operation in operations) == is_compiled


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """The sizes of the factors of all products of matrices within the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.sizes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 -- torch's
        if function is torch.ops.aten.mm.default:
            self.sizes.append((*args[0].shape, *args[1].shape))
        return function(*args, **(kwargs or {}))


def test_logits_of_all_tokens_are_never_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", VOCABULARY * 5)
    with LargestResult() as largest:
        _run(head_loss, torch.zeros(2, ROWS // 2, dtype=torch.long), autocast=False)
    assert largest.elements == max(ROWS * WIDTH, VOCABULARY * WIDTH)
