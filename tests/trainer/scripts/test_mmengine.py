"""The patches that let MMEngine run without CUDA, for each accelerator. MMEngine and the accelerators are doubles here."""

from __future__ import annotations

import gc
import inspect
import io
import os
import pickle
import socket
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.grounds.ports import free_ports
from trainer.errors import UserError
from trainer.runtime.accelerators import Accelerator, choose
from trainer.scripts import deepspeed, devices, mmengine

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls() -> Calls:
    return []


def _accelerator(calls: Calls, kind: str) -> Accelerator:
    """An accelerator whose process group of one rank only records its calls."""
    device, backend = {"cpu": ("cpu", "gloo"), "gcu-i3x": ("gcu:{n}", "eccl"), "gcu-t2x": ("xla:{n}", "eccl")}[kind]
    group = SimpleNamespace(
        init_process_group=lambda backend, **options: calls.append(("group", backend, options)),
        all_reduce=lambda probe: calls.append(("all-reduce", probe.item())),
        all_gather=lambda received, values: received[0].copy_(values),
        broadcast=lambda _values, _source: None,
    )
    return choose("cpu", torch).changed(
        name=kind,
        device=device,
        backend=backend,
        distributed=group,
        needs_address=kind == "gcu-t2x",
        takes_device_ids=kind == "gcu-t2x",
        set_device=lambda number: calls.append(("device", number)),
        step=lambda *words: calls.append(("step", *words)),
    )


def _set_accelerator(monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator | None, *, ranks: int = 1) -> None:
    (port,) = free_ports(1)
    env = {"RANK": 0, "LOCAL_RANK": 3, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(mmengine, "unknown_to_mmengine", lambda: accelerator)
    devices.warn.cache_clear()


def _on_cpu(accelerator: Accelerator) -> Accelerator:
    """Replaces the device by the CPU: this machine has no such card."""
    return accelerator.changed(device="cpu")


def _dist_utils(calls: Calls) -> Any:
    return SimpleNamespace(
        _init_dist_pytorch=lambda *words, **more: calls.append(("pytorch", words, more)),
        _init_dist_slurm=lambda *words, **more: calls.append(("slurm", words, more)),
        get_comm_device=lambda group: f"as MMEngine has it for {group}",
        get_backend=lambda group: group,
        torch_dist="torch.distributed",
    )


@pytest.mark.parametrize("launcher", ["pytorch", "slurm"])
@pytest.mark.parametrize(
    ("kind", "requested", "used"),
    [
        ("cpu", "nccl", "gloo"),
        ("cpu", "gloo", "gloo"),
        ("cpu", "cpu:gloo,cuda:nccl", "gloo"),
        ("cpu", "mpi", "mpi"),
        ("gcu-i3x", "nccl", "eccl"),
        ("gcu-i3x", "gloo", "eccl"),
        ("gcu-t2x", "nccl", "eccl"),
    ],
)
def test_group_is_joined_after_the_device_is_set_and_then_tested(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    launcher: str,
    kind: str,
    requested: str,
    used: str,
) -> None:
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _on_cpu(_accelerator(calls, kind)))
    mmengine.join_ranks(module)
    vars(module)[f"_init_dist_{launcher}"](
        requested, init_backend="torch", timeout=timedelta(seconds=5), group_name="g"
    )
    device, (call, backend, options), *tests = calls
    assert (device, call, backend) == (("device", 3), "group", used)
    assert tests == [("all-reduce", 1.0)] * (1 if used == "gloo" else 2), (
        "others may not carry bytes, which is tried too"
    )
    store = options.pop("init_method", "")[:6] or type(options.pop("store")).__name__
    assert store == ("tcp://" if kind == "gcu-t2x" else "PrefixStore")
    assert options == {"rank": 0, "world_size": 1, "timeout": timedelta(seconds=5), "group_name": "g"}
    assert f"1/1 ranks ready, backend {used}, device cpu\n" in capsys.readouterr().err


def test_rank_0_keeps_its_store_as_other_ranks_may_still_read_from_it(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """The vendor's group has its own store, so nothing else holds the one of the rendezvous."""
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _on_cpu(_accelerator(calls, "gcu-t2x")))
    mmengine.join_ranks(module)
    module._init_dist_pytorch("nccl")
    assert module.orch_group.rendezvous.store.get("left/0") == b"1", "it has waited for the ranks"
    gc.collect()
    socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 5).close()


def test_group_of_the_scripts_own_that_holds_the_port_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cure of field guide S0, which on a T20 makes a group that carries no tensors of the cards."""
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _accelerator(calls, "gcu-t2x").changed(set_device=lambda _: None, device="cpu"))
    monkeypatch.setattr(torch.distributed, "init_process_group", torch.distributed.init_process_group)
    mmengine.join_ranks(module)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method="env://")
    try:
        with pytest.raises(SystemExit) as ended:
            module._init_dist_pytorch("gloo")
    finally:
        torch.distributed.destroy_process_group()
    assert ended.value.code == 2
    caller = f"{os.path.relpath(__file__)}:{line}"
    error = capsys.readouterr().err
    assert f"error: this script has made its own gloo group at {caller}, which holds the port" in error
    assert f"delete the call of torch.distributed.init_process_group at {caller}" in error
    assert "in use" not in error


def test_objects_are_carried_as_bytes_where_the_library_has_no_collective_of_them(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """Every evaluation of MMEngine ends with one. The vendor's library has none for a group that the script has made, too."""
    accelerator = _on_cpu(_accelerator(calls, "gcu-t2x"))
    _set_accelerator(monkeypatch, accelerator, ranks=2)
    monkeypatch.setitem(sys.modules, "mmengine.dist.utils", SimpleNamespace())
    accelerator.distributed.all_gather = lambda received, mine: [part.copy_(mine) for part in received]
    refused = SimpleNamespace(all_gather_object=None, broadcast_object_list=None, collect_results_cpu=None)
    module = SimpleNamespace(**vars(refused), get_world_size=lambda: 2, get_rank=lambda: 1)
    mmengine.change_collectives(module)
    metrics: list[Any] = [{"mIoU": 0.5}]
    assert module.all_gather_object(metrics) == [metrics, metrics]
    received: list[Any] = [{"mIoU": 0.5}]
    module.broadcast_object_list(received, src=1)
    assert received == metrics


def test_deepspeed_finds_the_group_already_made(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    package = SimpleNamespace(init_distributed=lambda backend, **options: calls.append(("deepspeed", backend, options)))
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _accelerator(calls, "cpu"))
    mmengine.join_ranks(module)
    module._init_dist_pytorch("nccl", init_backend="deepspeed", verbose=False)
    assert [call for call, *_ in calls] == ["device", "group", "all-reduce", "deepspeed"]
    assert calls[-1] == ("deepspeed", "gloo", {"timeout": timedelta(minutes=30), "verbose": False})


@pytest.mark.parametrize(
    ("variable", "limit_s"),
    [(None, 120.0), ("600", 600.0), ("0.5", 0.5), ("9000", 1800.0), ("soon", None), ("0", None)],
)
def test_start_of_the_group_has_the_limit_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    variable: str | None,
    limit_s: float | None,
) -> None:
    limits: list[float] = []

    def late_start(_: str, limit_s: float) -> str:
        limits.append(limit_s)
        return ""

    monkeypatch.setattr("trainer.runtime.init.late_start", late_start)
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _accelerator(calls, "cpu"))
    if variable is not None:
        monkeypatch.setenv("ORCH_START_TIMEOUT", variable)
    mmengine.join_ranks(module)
    if limit_s is not None:
        module._init_dist_pytorch("nccl")
        assert limits == [limit_s]
        return
    with pytest.raises(SystemExit) as ended:
        module._init_dist_pytorch("nccl")
    assert ended.value.code == 2
    assert f"ORCH_START_TIMEOUT={variable}: allowed: a number of seconds above 0" in capsys.readouterr().err
    assert calls == []


def test_missing_ranks_are_named_before_the_group_is_joined(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _accelerator(calls, "cpu"), ranks=3)
    mmengine.join_ranks(module)
    with pytest.raises(SystemExit) as ended:
        module._init_dist_pytorch("nccl", timeout=timedelta(seconds=0.1))
    assert ended.value.code == 1
    assert "error: 1/3 ranks ready after 0.1 s; missing: rank 1-2" in capsys.readouterr().err
    assert calls == [("device", 3)]


@pytest.mark.parametrize(("kind", "rank", "warned"), [("cpu", "0", True), ("cpu", "1", False), ("gcu-i3x", "0", False)])
def test_training_on_the_cpu_is_warned_of_once_per_node(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    rank: str,
    warned: bool,
) -> None:
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _on_cpu(_accelerator(calls, kind)))
    monkeypatch.setenv("LOCAL_RANK", rank)
    mmengine.join_ranks(module)
    module._init_dist_pytorch("nccl")
    assert ("trains on the CPU" in capsys.readouterr().err) is warned


def test_devices_that_mmengine_supports_are_left_to_it_except_for_slurm(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    module = _dist_utils(calls)
    before = dict(vars(module))
    _set_accelerator(monkeypatch, None)
    mmengine.join_ranks(module)
    assert {name for name, value in vars(module).items() if value is not before[name]} == {"_init_dist_slurm"}
    module._init_dist_slurm("nccl", port=29501, init_backend="torch", timeout=5)
    assert calls == [("pytorch", ("nccl",), {"init_backend": "torch", "timeout": 5})]


def test_objects_are_sent_from_the_device_that_the_backend_reads(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    module = _dist_utils(calls)
    _set_accelerator(monkeypatch, _accelerator(calls, "gcu-t2x"))
    mmengine.join_ranks(module)
    assert module.get_comm_device("eccl") == torch.device("xla:3")
    assert module.get_comm_device("gloo") == "as MMEngine has it for gloo"
    assert module.torch_dist is not None
    assert hasattr(module.torch_dist, "init_process_group")


@pytest.mark.parametrize(
    ("kind", "device"), [(None, "cpu"), ("cpu", "cpu"), ("gcu-i3x", "gcu:3"), ("gcu-t2x", "xla:3")]
)
def test_models_are_moved_to_the_device_of_the_node(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, kind: str | None, device: str
) -> None:
    module = SimpleNamespace(DEVICE="cpu")
    _set_accelerator(monkeypatch, None if kind is None else _accelerator(calls, kind))
    mmengine.find_device(module)
    assert device == module.DEVICE


class Stock:
    """torch's DistributedDataParallel."""

    def __init__(self, module: object, **more: object) -> None:
        self.got = (module, more)


class T20DataParallel:
    """The DistributedDataParallel of torch_gcu."""

    def __init__(self, module: object, **more: object) -> None:
        self.got = (module, "T20", more)


def _wrappers() -> Any:
    class MMDistributedDataParallel(Stock):
        def __init__(self, module: object, detect: bool = False, **more: object) -> None:
            super().__init__(module=module, **more)
            self.detect = detect

    return SimpleNamespace(DistributedDataParallel=Stock, MMDistributedDataParallel=MMDistributedDataParallel)


def _on(device: str) -> Any:
    return SimpleNamespace(parameters=lambda: [SimpleNamespace(device=SimpleNamespace(type=device))])


@pytest.mark.parametrize(("device", "ids"), [("cpu", None), ("xla", [3]), ("cuda", [3]), ("gcu", [3]), ("npu", [3])])
def test_device_ids_are_passed_only_for_devices_with_numbers(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, device: str, ids: list[int] | None
) -> None:
    wrappers, model = _wrappers(), _on(device)
    _set_accelerator(monkeypatch, _accelerator(calls, "cpu").changed(data_parallel=Stock))
    mmengine.take_device_ids(wrappers)
    wrapped = wrappers.MMDistributedDataParallel(module=model, detect=True, device_ids=[3], broadcast_buffers=False)
    assert wrapped.got == (model, {"device_ids": ids, "broadcast_buffers": False})
    assert wrapped.detect is True
    assert "output_device" not in wrapped.got[1]


def test_wrapper_is_unchanged_if_mmengine_supports_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """MMEngine's own error about a model on the CPU is right then."""
    wrappers, model = _wrappers(), _on("cpu")
    _set_accelerator(monkeypatch, None)
    mmengine.take_device_ids(wrappers)
    assert wrappers.MMDistributedDataParallel(model, device_ids=[3]).got == (model, {"device_ids": [3]})


@pytest.mark.parametrize(
    ("kind", "rank", "warnings"),
    [
        ("gcu-i3x", "0", ["the model's parameters are on the CPU although gcu:0 is here"]),
        ("gcu-t2x", "0", ["the model's parameters are on the CPU although xla:0 is here"]),
        ("gcu-t2x", "1", []),
        ("cpu", "0", []),
    ],
)
def test_model_left_on_the_cpu_beside_a_card_is_warned_of_once_per_node(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    rank: str,
    warnings: list[str],
) -> None:
    wrappers = _wrappers()
    _set_accelerator(monkeypatch, _accelerator(calls, kind).changed(data_parallel=Stock))
    monkeypatch.setenv("LOCAL_RANK", rank)
    mmengine.take_device_ids(wrappers)
    for _ in range(2):
        wrappers.MMDistributedDataParallel(_on("cpu"), device_ids=[int(rank)])
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("WARNING: ").partition(":0 is here")[0] + ":0 is here" for line in lines] == warnings
    assert all("move the model to" in line for line in lines)


def test_t20_uses_the_vendors_wrapper_and_step(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    class OptimWrapper:
        optimizer = "optimizer"
        clip_grad_kwargs = None

        def backward(self, loss: object) -> None:
            calls.append(("backward", loss))

        def optim_context(self, model: object) -> str:
            return f"context of {model}"

        def step(self) -> None:
            pytest.fail("a T20 computes nothing by a plain step")

    _set_accelerator(monkeypatch, _accelerator(calls, "gcu-t2x").changed(data_parallel=T20DataParallel))
    wrappers = _wrappers()
    mmengine.take_device_ids(wrappers)
    model = _on("xla")
    assert wrappers.MMDistributedDataParallel(model).got == (model, "T20", {"device_ids": [3]})
    mmengine.take_steps(SimpleNamespace(OptimWrapper=OptimWrapper))
    wrapper = OptimWrapper()
    assert wrapper.optim_context("model") == "context of model"
    wrapper.backward("loss")
    wrapper.step()
    assert calls == [("backward", "loss"), ("step", "optimizer", "loss", "model")]


def test_t20_refuses_an_optim_wrapper_with_its_own_step_before_creating_it(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """With mixed precision MMEngine's loss scaler would make the step, and a T20 would compute nothing."""

    class OptimWrapper:
        backward = optim_context = print

        def step(self) -> None:
            pass

    class AmpOptimWrapper(OptimWrapper):
        def __init__(self, loss_scale: str) -> None:
            pytest.fail(f"made with {loss_scale}")

        def step(self) -> None:
            pass

    _set_accelerator(monkeypatch, _accelerator(calls, "gcu-t2x"))
    mmengine.take_steps(SimpleNamespace(OptimWrapper=OptimWrapper))
    with pytest.raises(UserError, match=r"AmpOptimWrapper overrides the optimizer step.*use type='OptimWrapper'"):
        AmpOptimWrapper("dynamic")


def test_deepspeed_does_not_compile_the_op_of_its_own_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(__compatible_ops__={"deepspeed_shm_comm": True, "cpu_adam": True})
    monkeypatch.setenv("LOCAL_SIZE", "2")
    deepspeed.need_no_compiler(module)
    assert all(vars(module)["__compatible_ops__"].values())
    monkeypatch.delenv("LOCAL_SIZE")
    deepspeed.need_no_compiler(module)
    assert vars(module)["__compatible_ops__"] == {"deepspeed_shm_comm": False, "cpu_adam": True}


def test_results_are_collected_in_pieces_and_in_the_order_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 of two; rank 1 has sent a shorter part."""
    monkeypatch.setattr(mmengine, "PIECE_BYTES", 10)
    monkeypatch.delenv("ORCH_SHARED_DIR", raising=False)
    parts = [["a" * 30, "c", "e"], ["b" * 30, "d"]]
    unsent = io.BytesIO(pickle.dumps(parts[1]))

    def broadcast(piece: torch.Tensor, source: int) -> None:
        if source == 1:
            piece[:] = torch.frombuffer(bytearray(unsent.read(len(piece))), dtype=torch.uint8)

    module = SimpleNamespace(
        collect_results_cpu=lambda *_: "by files",
        get_dist_info=lambda: (0, 2),
        all_gather_object=lambda _: [len(pickle.dumps(part)) for part in parts],
        broadcast=broadcast,
    )
    mmengine.collect_by_group(module)
    assert module.collect_results_cpu(parts[0], 4) == ["a" * 30, "b" * 30, "c", "d"]
    assert module.collect_results_cpu(parts[0], 4, "/a/folder/of/the/user") == "by files"


def test_results_are_collected_by_files_if_the_ranks_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_SHARED_DIR", "/shared")
    _set_accelerator(monkeypatch, None)
    module = SimpleNamespace(collect_results_cpu=print)
    mmengine.change_collectives(module)
    assert module.collect_results_cpu is print
