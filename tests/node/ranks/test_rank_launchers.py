"""Programs that start ranks themselves are recognised by their command line, and nothing else is."""

from __future__ import annotations

import pytest

from orchestrator.node.ranks.rank_launchers import (
    is_own_host,
    launcher_of,
    lone_option,
    node_count_of,
    per_node_command,
)

MACHINES = "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE)) --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("torchrun --nproc_per_node 8 train.py", "torchrun"),
        ("/opt/conda/bin/torchrun train.py", "torchrun"),
        ("/opt/conda/bin/python3.11 /opt/conda/bin/torchrun train.py", "torchrun"),
        ("python3 -u -X dev -m torch.distributed.run train.py", "python -m torch.distributed.run"),
        ("-m torch.distributed.launch train.py", "python -m torch.distributed.launch"),
        ("accelerate launch train.py", "accelerate launch"),
        ("deepspeed --num_gpus 8 train.py", "deepspeed"),
        ("python llamafactory-cli train x.yaml", "llamafactory-cli train"),
        ("swift sft --model x", "swift sft"),
        ("trl sft --model x", "trl sft"),
        ("fabric run --devices 2 train.py", "fabric run"),
        ("axolotl train x.yml", "axolotl train"),
        ("tune run full_finetune_distributed --config x", "tune run"),
        ("composer -n 8 train.py", "composer"),
        ("mim train mmseg x.py", "mim train"),
        ("colossalai run train.py", "colossalai run"),
        ("/usr/bin/mpirun -n 2 ./a.out", "mpirun"),
        ("mpiexec -n 2 ./a.out", "mpiexec"),
        ("horovodrun -np 2 python train.py", "horovodrun"),
        ("srun -n 4 train.sh", "srun"),
        ("ray start --head", "ray start"),
        ("trl env", None),
        ("ray status", None),
        ("accelerate env", None),
        ("llamafactory-cli chat x.yaml", None),
        ("swift package init", None),
        ("python train.py torchrun", None),
        ("python -c torchrun", None),
        ("pythonic torchrun", None),
        ("python -m torch.distributed.checkpoint", None),
        ("grep torchrun notes.txt", None),
        ("python", None),
        ("", None),
    ],
)
def test_launcher_is_found_by_its_exact_name(line: str, launcher: str | None) -> None:
    assert launcher_of(line.split()) == launcher


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("torchrun --nnodes 2 train.py", "2"),
        ("torchrun --nnodes=1:4 train.py", "1:4"),
        ("accelerate launch --num_machines 3 train.py", "3"),
        ("fabric run --num-nodes=1 train.py", "1"),
        ("torchrun train.py", None),
    ],
)
def test_number_of_nodes_is_read_from_the_options(line: str, count: str | None) -> None:
    assert node_count_of(line.split()) == count


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("torchrun --standalone --nnodes=1 --nproc-per-node 2 train.py", "--per-node -- torchrun --nproc-per-node 2 train.py"),
        ("torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=1234 train.py", "--per-node -- torchrun --nproc_per_node=8 train.py"),
        ("torchrun --nnodes 2 --rdzv_id 7 --rdzv-backend c10d --rdzv_endpoint h0:29500 train.py", "--per-node -- torchrun train.py"),
        ("torchrun train.py --node_rank 0", "--per-node -- torchrun train.py --node_rank 0"),
        ("accelerate launch --num_processes 2 train.py --x", f"--per-node -- bash -c 'accelerate launch --multi_gpu {MACHINES} train.py --x'"),
        ("accelerate launch --config_file c.yaml --machine-rank=0 train.py", f"--per-node -- bash -c 'accelerate launch {MACHINES} --config_file c.yaml train.py'"),
        ("-m accelerate.commands.launch train.py", f"--per-node -- bash -c 'python3 -m accelerate.commands.launch --multi_gpu {MACHINES} train.py'"),
        ("trl sft --model x", f"--per-node -- bash -c 'trl sft --multi_gpu {MACHINES} --model x'"),
        ("fabric run --devices 2 train.py", "--per-node -- bash -c 'fabric run --num-nodes $NNODES --node-rank $NODE_RANK --devices $NPROC_PER_NODE --main-address $MASTER_ADDR --main-port $MASTER_PORT train.py'"),
        ("composer -n 8 train.py", "--per-node -- bash -c 'composer -n $NPROC_PER_NODE --world_size $((NNODES * NPROC_PER_NODE)) train.py'"),
        ("axolotl train x.yml", "--per-node -- bash -c 'axolotl train --launcher torchrun x.yml'"),
        ("deepspeed --num_gpus 8 train.py", "--per-node -- bash -c 'deepspeed --hostfile $ORCH_HOSTFILE --no_ssh --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py'"),
        ("mpirun -n 2 ./a.out", "--per-node --until-head -- bash -c '[ $NODE_RANK = 0 ] || exec sleep infinity; mpirun --hostfile $ORCH_HOSTFILE -n 2 ./a.out'"),
        ("srun -n 4 python train.py --x", "-- python train.py --x"),
        ("mim train mmseg x.py", "-- PROGRAM …"),
        ("bash train.sh", "--per-node -- bash train.sh"),
    ],
)  # fmt: skip
def test_advice_is_one_world_of_all_nodes(line: str, advice: str) -> None:
    assert per_node_command("submit", line.split()) == f"`orch submit … {advice}`"


def test_advice_for_accelerate_and_fabric_has_options_that_they_know() -> None:
    """Their own parsers take the line."""
    accelerate = pytest.importorskip("accelerate.commands.launch").launch_command_parser()
    values = {
        "NNODES": "2",
        "NODE_RANK": "1",
        "$((NNODES * NPROC_PER_NODE))": "4",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "29500",
    }
    line = MACHINES
    for name, value in values.items():
        line = line.replace(name if name.startswith("$") else f"${name}", value)
    args = accelerate.parse_args([*line.split(), "train.py"])
    assert (args.num_machines, args.machine_rank, args.num_processes) == (2, 1, 4)
    assert (args.main_process_ip, args.main_process_port) == ("h0", 29500)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("torchrun --standalone x.py", "--standalone"),
        ("torchrun --nnodes 1 x.py", "--nnodes 1"),
        ("accelerate launch --num-machines=1 x.py", "--num-machines 1"),
        ("torchrun --nnodes 2 x.py", ""),
        ("torchrun x.py", ""),
    ],
)
def test_option_that_leaves_out_the_other_nodes_is_found(line: str, option: str) -> None:
    assert lone_option(line.split()) == option


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("localhost:29500", True),
        ("127.0.1.1", True),
        ("[::1]:1", True),
        ("::1", True),
        ("10.0.0.1", False),
        (None, False),
    ],
)
def test_address_of_the_own_host_is_recognised(address: str | None, *, is_own: bool) -> None:
    assert is_own_host(address) is is_own
