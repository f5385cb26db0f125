"""Scripts that start another number of ranks than the launch has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.lint.rank_counts import mpi_starts, rank_remarks, slurm_starts, started_ranks


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("torchrun --nproc_per_node=3 train.py", 3),
        ("torchrun --nproc-per-node 3 --nnodes 2 train.py", 3),
        ("python -m torch.distributed.run --nproc_per_node=3 t.py", 3),
        ("N=3\ntorchrun --nproc_per_node=$N t.py", 3),
        ("torchrun --nproc_per_node=${NPROC_PER_NODE:-8} t.py", 2),
        ("torchrun --nproc_per_node=gpu t.py", None),
        ("torchrun --nproc_per_node=$(nproc) t.py", None),
        ("torchrun t.py", None),
        ("deepspeed --num_gpus 3 t.py", 3),
        ("accelerate launch --num_processes 6 --num_machines 2 t.py", 3),
        ("bash -c 'torchrun --nproc_per_node=3 t.py'", 3),
        ("torchrun t.py --nproc_per_node", None),
    ],
)
def test_number_of_ranks_of_a_launcher(text: str, count: int | None) -> None:
    assert [entry.count for entry in started_ranks(text, "f", {"NPROC_PER_NODE": "2"})] == [count]


def _remarks(text: str, *nodes: Mapping[str, str]) -> list[str]:
    return rank_remarks(
        text, "run.sh", {f"n{index}": {"NPROC_PER_NODE": "2", **env} for index, env in enumerate(nodes)}
    )


def test_other_number_is_named_with_line_nodes_and_remedy() -> None:
    [remark] = _remarks("set -e\ntorchrun --nproc_per_node=3 train.py", {}, {})
    assert remark.startswith(
        "run.sh:2 starts 3 ranks on n[0-1] (torchrun), and the launch has 2 there; write $NPROC_PER"
    )


def test_numbers_that_differ_between_nodes_are_named_for_each() -> None:
    remarks = _remarks("torchrun --nproc_per_node=$RANKS train.py", {"RANKS": "3"}, {"RANKS": "4"}, {"RANKS": "2"})
    assert [remark.partition(" (")[0] for remark in remarks] == [
        "run.sh:1 starts 3 ranks on n0",
        "run.sh:1 starts 4 ranks on n1",
    ]
    assert "the same number on all nodes" in remarks[0]
    [remark] = _remarks("torchrun --nproc_per_node=2 t.py", {"NPROC_PER_NODE": "2"}, {"NPROC_PER_NODE": "4"})
    assert remark.startswith("run.sh:1 starts 2 ranks on n1 (torchrun), and the launch has 4 there")


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 --master_addr=10.0.0.1 t.py", True),
        ("N=1\naccelerate launch --num_machines 2 --machine_rank $N --num_processes 4 t.py", True),
        ("torchrun --nnodes=2 --node_rank=${NODE_RANK:-0} --nproc_per_node=2 t.py", False),
        ("if [ $(hostname) = a ]; then torchrun --node_rank 0 t.py; else torchrun --node_rank 1 t.py; fi", False),
        ("NODES=1\ntorchrun --nnodes $NODES --nproc_per_node=2 --master_addr localhost t.py", True),
        ("torchrun --standalone --nproc_per_node=2 t.py", True),
        ("if y; then torchrun --nnodes=1 --nproc_per_node=2 t.py; else torchrun --nproc_per_node=2 t.py; fi", False),
        ("torchrun --nproc_per_node=2 t.py --node_rank=0", False),
    ],
)
def test_script_for_one_node_that_starts_on_all_is_named(text: str, *, is_same: bool) -> None:
    remarks = _remarks(text, {"NODE_RANK": "0"}, {"NODE_RANK": "1"})
    assert any("on every node" in remark and "$NODE_RANK" in remark for remark in remarks) is is_same
    assert _remarks(text, {"NODE_RANK": "0"}) == []
    assert _remarks(text, {"ORCH_SEPARATE": "1"}, {"ORCH_SEPARATE": "1"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "python prepare.py",
        "torchrun --nproc_per_node=1 prepare.py\ntorchrun --nproc_per_node=2 train.py",
        "torchrun --nproc_per_node=3 a.py\ntorchrun --nproc_per_node=$X b.py",
        "torchrun --nproc_per_node=$NPROC_PER_NODE train.py",
        "echo 'torchrun --nproc_per_node=3'",
    ],
)
def test_script_that_may_start_as_many_is_not_remarked_on(text: str) -> None:
    assert _remarks(text, {}, {}) == []


def test_arguments_of_the_script_are_its_numbers() -> None:
    text = "N=${2:-8}\ntorchrun --nproc_per_node=$N train.py"
    given = {"n0": {"NPROC_PER_NODE": "2"}}
    assert rank_remarks(text, "run.sh", given, arguments=("train.py", "2")) == []
    [remark] = rank_remarks(text, "run.sh", given, arguments=("train.py",))
    assert remark.startswith("run.sh:2 starts 8 ranks on n0")
    shifted = 'while [ $# -gt 0 ]; do case $1 in -n) N="$2"; shift 2;; *) shift;; esac; done\n'
    assert rank_remarks(shifted + "torchrun --nproc_per_node=$N t.py", "run.sh", given, arguments=("-s", "9")) == []


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("set -e\nmpirun --hostfile hosts -np 8 python train.py", [("mpirun", 2)]),
        ("horovodrun -np 8 python train.py", [("horovodrun", 1)]),
        ('[ "$NODE_RANK" = 0 ] || exec sleep infinity\nmpirun -np 16 ./solver', []),
        ('mpirun --hostfile "$ORCH_HOSTFILE" ./solver', []),
        ("echo mpirun -np 8 python train.py", []),
    ],
)
def test_start_by_mpi_on_each_node_is_found(text: str, starts: list[tuple[str, int]]) -> None:
    assert mpi_starts(text, "run.sh") == starts


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("#SBATCH -N 2\nhead=$(hostname)\nsrun torchrun --nnodes 2 train.py", [("srun", 3)]),
        ("sbatch next.sh", [("sbatch", 1)]),
        ("torchrun train.py\necho srun", []),
    ],
)
def test_command_that_needs_an_allocation_is_found(text: str, starts: list[tuple[str, int]]) -> None:
    assert slurm_starts(text, "run.sh") == starts
