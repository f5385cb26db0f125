"""Programs that start ranks themselves are recognised by their command line, and nothing else is."""

from __future__ import annotations

import pytest

from orchestrator.node.rank_launchers import launcher_of, node_count_of


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
        ("torchrun train.py", None),
    ],
)
def test_number_of_nodes_is_read_from_the_options(line: str, count: str | None) -> None:
    assert node_count_of(line.split()) == count
