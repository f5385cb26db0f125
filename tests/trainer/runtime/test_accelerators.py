"""
The choice of an accelerator, and the error if one is missing, with a double of torch that only reports devices.

The accelerators themselves are tested on ranks: train/test_gcu.py on doubles of torch_gcu, train/test_cuda.py on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.errors import UserError
from trainer.runtime.accelerators import NOT_INSTALLED, Accelerator, choose, load_torch_gcu
from trainer.runtime.init import initialise


def _torch(*, cuda: int = 0, gcu: int | None = None) -> Any:  # stands in for the torch module
    """A torch that reports `cuda` CUDA devices, and `gcu` GCU devices once torch_gcu (i3x) is imported."""
    fake = SimpleNamespace(
        __version__="2.5.1",
        version=SimpleNamespace(cuda="12.4"),
        distributed=torch.distributed,
        nn=torch.nn,
        bfloat16=torch.bfloat16,
        autocast=torch.autocast,
        cuda=SimpleNamespace(
            is_available=lambda: cuda > 0, device_count=lambda: cuda, set_device=int, synchronize=lambda: None
        ),
    )
    if gcu is not None:
        fake.gcu = SimpleNamespace(
            is_available=lambda: gcu > 0,
            device_count=lambda: gcu,
            set_device=int,
            synchronize=lambda: None,
            is_bf16_supported=lambda: gcu > 1,
        )
    return fake


def _no_gcu() -> tuple[None, str]:
    return None, NOT_INSTALLED


def _facts(accelerator: Accelerator) -> tuple[object, ...]:
    return (
        accelerator.name,
        accelerator.device_string(3),
        accelerator.backend,
        accelerator.device_ids(3),
        accelerator.needs_address,
    )


def test_cpu_accelerator_uses_gloo_and_no_device_ids() -> None:
    accelerator = choose("cpu", torch)
    assert _facts(accelerator) == ("cpu", "cpu", "gloo", None, False)
    assert accelerator.data_parallel is torch.nn.parallel.DistributedDataParallel


def test_auto_prefers_cuda_then_gcu_then_cpu() -> None:
    loads = (object(), "")
    assert choose("auto", _torch(cuda=1, gcu=1), lambda: loads).name == "cuda"
    assert choose("auto", _torch(gcu=1), lambda: loads).name == "gcu-i3x"
    assert choose("auto", _torch(gcu=0), lambda: loads).name == "cpu"
    assert choose("auto", _torch(), _no_gcu).name == "cpu"


@pytest.mark.parametrize(
    ("visible", "count", "number"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5"}, 1, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,"}, 1, 0),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 4, 3),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 2, 3),
        ({"TOPS_VISIBLE_DEVICES": "5"}, 1, 3),
        ({}, 1, 3),
    ],
)
def test_rank_that_sees_one_device_by_its_variable_takes_it(visible: dict[str, str], count: int, number: int) -> None:
    """A node with one card for several ranks has no such variable: there, local rank 3 has no device."""
    assert choose("auto", _torch(cuda=count)).device_number(3, visible) == number


def test_only_device_is_named_by_the_variable_and_the_driver() -> None:
    """With cgroups, each rank of a node may see its own card as number 0."""
    fake = _torch(cuda=1)
    fake.cuda.current_device = lambda: 0
    fake.cuda.get_device_properties = lambda _: SimpleNamespace(uuid="8932f937")
    assert choose("auto", fake).only_device({"CUDA_VISIBLE_DEVICES": "5"}) == "CUDA_VISIBLE_DEVICES=5 8932f937"
    assert choose("auto", fake).only_device({}) == ""
    assert choose("auto", _torch(cuda=2)).only_device({"CUDA_VISIBLE_DEVICES": "4,5"}) == ""
    gcu = choose("gcu", _torch(gcu=1), lambda: (SimpleNamespace(), ""))
    assert gcu.only_device({"TOPS_VISIBLE_DEVICES": "3"}).strip() == "TOPS_VISIBLE_DEVICES=3"


def test_device_of_a_rank_that_sees_one_gcu_is_number_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPS_VISIBLE_DEVICES", "3")
    accelerator = choose("gcu", _torch(gcu=1), lambda: (SimpleNamespace(), ""))
    assert (accelerator.device_string(3), accelerator.device_ids(3)) == ("gcu:0", [0])


def test_cpu_is_chosen_on_request_although_cuda_is_present() -> None:
    assert choose("cpu", _torch(cuda=8), _no_gcu).name == "cpu"


@pytest.mark.parametrize(
    ("device", "built", "problem", "part"),
    [
        ("cuda", "12.4", "", "no NVIDIA device or driver is visible"),
        ("cuda", None, "", "built without CUDA"),
        ("gcu", None, NOT_INSTALLED, "install TopsRider"),
        ("gcu", None, "torch_gcu is installed but cannot be imported: libeccl.so", "libeccl.so"),
    ],
)
def test_missing_accelerator_is_an_error_with_a_remedy(device: str, built: str | None, problem: str, part: str) -> None:
    fake = _torch()
    fake.version.cuda = built
    with pytest.raises(UserError, match=f"device={device}: ") as caught:
        choose(device, fake, lambda: (None, problem))
    assert part in str(caught.value)
    assert "device=cpu" in str(caught.value)


def test_gcu_without_a_card_is_an_error() -> None:
    with pytest.raises(UserError, match="finds no device"):
        choose("gcu", _torch(gcu=0), lambda: (object(), ""))


@pytest.mark.parametrize(
    ("files", "built", "gcu", "warning"),
    [
        ([], "12.4", _no_gcu, ""),  # an ordinary CPU node with torch from PyPI
        (["nvidia0"], "12.4", _no_gcu, "/nvidia0, but no NVIDIA device or driver is visible to torch (see nvidia-smi,"),
        (["nvidia0"], None, _no_gcu, "/nvidia0, but torch 2.5.1 is built without CUDA; install a CUDA build"),
        (["nvidiactl"], None, _no_gcu, ""),
        (["gcu0"], None, load_torch_gcu, "torch_gcu is not installed for this Python, though this node has "),
        (
            [],
            None,
            lambda: (None, "torch_gcu is installed but cannot be imported: x"),
            "imported: x; install TopsRider",
        ),
        ([], None, lambda: (SimpleNamespace(is_available=lambda: False), ""), "torch_gcu finds no device (efsmi, "),
    ],
)
def test_unusable_card_is_named_with_a_remedy_when_the_cpu_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: list[str],
    built: str | None,
    gcu: Callable[[], tuple[Any, str]],
    warning: str,
) -> None:
    monkeypatch.setattr("trainer.runtime.accelerators.CUDA_FILES", f"{tmp_path}/nvidia[0-9]*")
    monkeypatch.setattr("trainer.runtime.accelerators.GCU_FILES", f"{tmp_path}/gcu*")
    for name in files:
        (tmp_path / name).touch()
    fake = _torch()
    fake.version.cuda = built
    accelerator = choose("auto", fake, gcu)
    assert accelerator.name == "cpu"
    assert warning in accelerator.unusable_card
    assert bool(warning) == bool(accelerator.unusable_card)
    assert choose("cpu", fake, gcu).unusable_card == ""


@pytest.mark.parametrize(("local_rank", "lines"), [("0", 1), ("1", 0)])
def test_cpu_instead_of_a_card_is_warned_of_once_per_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], local_rank: str, lines: int
) -> None:
    cpu = choose("cpu", torch).changed(unusable_card="this node has a card; repair it")
    monkeypatch.setattr("trainer.runtime.init.choose", lambda *_: cpu)
    initialise("auto", 60.0, {"LOCAL_RANK": local_rank})
    warning = "WARNING: training on the CPU: this node has a card; repair it, or say device=cpu\n"
    assert capsys.readouterr().err == warning * lines


def test_torch_whose_cuda_was_replaced_by_the_vendor_has_a_gcu(monkeypatch: pytest.MonkeyPatch) -> None:
    migrated = _torch(cuda=2, gcu=2)
    module = SimpleNamespace(is_transfer_to_gcu=True)
    monkeypatch.setitem(sys.modules, "torch_gcu", module)
    assert choose("auto", migrated, lambda: (module, "")).name == "gcu-i3x"
    with pytest.raises(UserError, match=r"^device=cuda: "):
        choose("cuda", migrated)


def test_only_existing_attributes_can_be_changed() -> None:
    with pytest.raises(AssertionError, match="backed"):
        choose("cpu", torch).changed(backed="nccl")


def test_gcu_i3x_offers_bf16_if_the_card_has_it() -> None:
    assert "bf16" in choose("gcu", _torch(gcu=8), lambda: (object(), "")).precisions()
    assert choose("gcu", _torch(gcu=1), lambda: (object(), "")).precisions() == ("fp32", "fp16")


def test_autocast_computes_matrix_products_in_the_requested_precision() -> None:
    accelerator, matrix = choose("cpu", torch), torch.ones(2, 2)
    with accelerator.autocast("bf16"):
        assert (matrix @ matrix).dtype is torch.bfloat16
    with accelerator.autocast("fp16"):
        assert (matrix @ matrix).dtype is torch.float16
    with accelerator.autocast("fp32"):
        assert (matrix @ matrix).dtype is torch.float32


@pytest.mark.parametrize(("capability", "has_bf16"), [((7, 0), False), ((8, 0), True), ((9, 0), True)])
def test_cuda_card_that_only_emulates_bf16_does_not_offer_it(capability: tuple[int, int], has_bf16: bool) -> None:
    fake = _torch(cuda=1)
    fake.cuda.get_device_capability = lambda: capability
    assert ("bf16" in choose("cuda", fake, _no_gcu).precisions()) == has_bf16


def test_fp16_is_offered_if_there_is_a_scaler_for_it() -> None:
    assert "fp16" in choose("cpu", torch).precisions()
    assert "fp16" not in choose("cpu", _torch()).precisions()  # torch before 2.3
