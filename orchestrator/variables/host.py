"""Variables of CUDA, OpenMP, UCX and DeepSpeed, and those that launchers set for every rank."""

from __future__ import annotations

from orchestrator.variables.row import REMOVE, Row, Verdict, info, warn
from orchestrator.variables.values import Anything, Integer, Kind

_ENV = "torch, distributed/run.py"


def _row(name: str, library: str, kind: Kind, default: str, text: str, *verdicts: Verdict, source: str) -> Row:
    return Row(name, library, kind, text, default, verdicts=verdicts, source=source)


def _of_launcher(name: str, text: str) -> Row:
    verdict = info(
        "orch and torchrun set it for every rank and overwrite this; a script that starts its ranks itself needs it"
    )
    return Row(name, "launchers", Anything(), text, verdicts=(verdict,), source=_ENV)


HOST: tuple[Row, ...] = (
    _row("OMP_NUM_THREADS", "OpenMP", Integer(1, reader="OpenMP"), "1 with torchrun and several ranks, else all cores", "CPU threads per rank; ranks times threads should not exceed the cores", source=_ENV),
    _row("CUDA_LAUNCH_BLOCKING", "CUDA", Integer(0, 1, reader="CUDA"), "0", "Wait for every kernel",
        warn("is for debugging: every kernel is waited for, and nothing overlaps", value="1", better=REMOVE), source="CUDA documentation"),
    _row("CUDA_VISIBLE_DEVICES", "CUDA", Anything("card numbers or UUIDs"), "all", 'Cards that a process uses; "" hides all', source="CUDA documentation"),
    _row("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA", Integer(1, reader="CUDA"), "", "Queues from the host to the card",
        info("only for overlapping Megatron's tensor parallelism; NVIDIA's FSDP guide unsets it", value="1"), source="Megatron-FSDP user guide"),
    _row("UCX_NET_DEVICES", "UCX", Anything("list of DEVICE:PORT, as in mlx5_0:1"), "all", "Adapters of UCX",
        warn("has no port: UCX calls RDMA devices mlx5_0:1", value=r"mlx\d+_\d+", better="{value}:1"), source="UCX documentation"),
    _row("DEEPSPEED_TIMEOUT", "DeepSpeed", Integer(1, reader="DeepSpeed", unit="minutes"), "10", "Timeout of the process group",
        warn("the unit is minutes: it hides a hang for hours", above=120, better=REMOVE), source="DeepSpeed, constants.py"),
    _row("DS_ENV_FILE", "DeepSpeed", Anything("file name"), ".deepspeed_env", "KEY=VALUE lines that the DeepSpeed launcher passes to the nodes", source="DeepSpeed, launcher/runner.py"),
    _row("DS_ACCELERATOR", "DeepSpeed", Anything("cuda, cpu, xpu, npu, mps, hpu, mlu, sdaa, supa"), "auto", "Accelerator of DeepSpeed",
        warn("DeepSpeed stops with an error, unless it is the fork of Enflame (0.9.2+gcu)", value="(?i)gcu|dtu|tops|enflame"), source="DeepSpeed, real_accelerator.py"),
    Row("MASTER_ADDR", "launchers", Anything("host name or address of the first node"), "Rendezvous of the ranks", source=_ENV),
    Row("MASTER_PORT", "launchers", Integer(1, 65535, reader="torch"), "Port of the rendezvous", source=_ENV),
    _of_launcher("RANK", "Number of the rank"),
    _of_launcher("LOCAL_RANK", "Number of the rank on its node"),
    _of_launcher("WORLD_SIZE", "Number of ranks"),
    _of_launcher("LOCAL_WORLD_SIZE", "Number of ranks on the node"),
)  # fmt: skip
