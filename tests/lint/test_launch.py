"""Findings on how a script starts its ranks."""

from __future__ import annotations

import pytest

from orchestrator.lint.launch import lint_launch, starts_ranks
from orchestrator.lint.script import lint_line_ends, lint_script, prompts
from orchestrator.lint.shell import read_shell

TWO = "#SBATCH --nodes=2\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torchrun --nnodes 2 --master_addr localhost x.py", ["1 FAIL master_addr"]),
        ("torchrun --nnodes=2 --master-addr=127.0.0.1 x.py", ["1 FAIL master_addr"]),
        ("torchrun --nnodes 2:4 --rdzv_endpoint localhost:29500 x.py", ["1 FAIL master_addr"]),
        ("accelerate launch --num_machines 2 --main_process_ip 127.0.0.1 x.py", ["1 FAIL master_addr"]),
        ("export MASTER_ADDR=localhost\ntorchrun --nnodes 2 x.py", ["2 FAIL master_addr"]),
        ('A="--nnodes 2 --master_addr localhost"\ntorchrun $A x.py', ["2 FAIL master_addr"]),
        (f"{TWO}srun -K torchrun --nnodes $N --master_addr localhost x.py", ["2 FAIL master_addr"]),
        (f"{TWO}srun -K bash -c 'torchrun --master_addr localhost x.py'", ["2 FAIL master_addr"]),
        ("srun -N 2 torchrun --master_addr localhost x.py", ["1 FAIL master_addr"]),
        (f"{TWO}srun -N 1 torchrun --nnodes 1 --master_addr localhost x.py", []),
        ("torchrun --nnodes 1 --master_addr localhost x.py", []),
        ('torchrun --standalone --nnodes 2 --master_addr "" x.py', []),
        ("torchrun --nnodes $N --master_addr localhost x.py", []),
        ("if a; then export MASTER_ADDR=localhost; else export MASTER_ADDR=$H; fi\ntorchrun --nnodes 2 x.py", []),
        ('torchrun --nnodes 2 --master_addr "" x.py', ["1 FAIL master_addr"]),
        ('torchrun --nnodes 2 --master_addr="" x.py', ["1 FAIL master_addr"]),
        ("torchrun --nnodes 2 --master_addr=$HEAD x.py", []),
        ("torchrun --master_port 293000 x.py", ["1 FAIL master_port"]),
        ("python -m torch.distributed.launch --master_port=66666 x.py", ["1 FAIL master_port"]),
        ("srun torchrun --node_rank $SLURM_NODEID x.py", ["1 FAIL SLURM_NODEID"]),
        ('srun bash -c "torchrun --node_rank $SLURM_PROCID x.py"', ["1 FAIL SLURM_PROCID"]),
        ("R=$SLURM_NODEID\nsrun torchrun --node_rank $R x.py", ["2 FAIL SLURM_NODEID"]),
        ("srun bash -c 'torchrun --node_rank $SLURM_NODEID x.py'", []),
        ('srun bash -c "torchrun --node_rank \\$SLURM_NODEID x.py"', []),
        ("torchrun --node_rank $SLURM_NODEID x.py", []),
        (f"{TWO}export NODE_RANK=$SLURM_NODEID\nsrun -K python x.py", ["2 FAIL NODE_RANK"]),
        (f"{TWO}export WORLD_SIZE=$SLURM_NTASKS\nsrun -K python x.py", []),
        ("#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc_per_node 8 x.py", ["2 WARN ntasks-per-node"]),
        ("#SBATCH --ntasks-per-node=8\nsrun --ntasks-per-node=1 torchrun --nproc_per_node 8 x.py", []),
        ("#SBATCH --ntasks-per-node=8\nsrun python x.py", []),
        (
            "#SBATCH -n 16\n#SBATCH -N 2\nsrun -K torchrun --nnodes 2 --nproc_per_node 8 x.py",
            ["3 WARN ntasks-per-node"],
        ),
        ("#SBATCH -n 2\n#SBATCH -N 2\nsrun -K torchrun --nnodes 2 --nproc_per_node 8 x.py", []),
        ("srun -n 16 -N 2 torchrun --nnodes 2 --nproc_per_node 8 x.py", ["1 WARN ntasks-per-node"]),
        ("#SBATCH --tasks-per-node=8\nsrun torchrun --nproc_per_node 8 x.py", ["2 WARN ntasks-per-node"]),
        ("torchrun --nnodes $N --master_addr=$SLURM_NODELIST x.py", ["1 FAIL master_addr"]),
        ("export MASTER_ADDR=$SLURM_JOB_NODELIST\ntorchrun --nnodes $N x.py", ["2 FAIL master_addr"]),
        ("torchrun --nnodes $N --master_addr=$(scontrol show hostnames $SLURM_NODELIST | head -n 1) x.py", []),
        (f"{TWO}srun bash -c 'python -c \"import torch\"'", []),
        (f"{TWO}srun -K torchrun --nproc_per_node 8 x.py", ["2 WARN nnodes"]),
        (f"{TWO}srun -K torchrun --standalone --nproc_per_node 8 x.py", ["2 WARN nnodes"]),
        (f"{TWO}srun -K torchrun $ARGS x.py", []),
        (f"{TWO}srun -K -N 1 torchrun --nproc_per_node 8 x.py", []),
        (f"{TWO}srun -K torchrun --nnodes 2 --master_addr=$H --node_rank 0 x.py", ["2 FAIL node_rank"]),
        (f"{TWO}srun -K torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $H:1 --node_rank 0 x.py", []),
        (f"{TWO}srun -K -w $H torchrun --nnodes 2 --master_addr=$H --node_rank 0 x.py", []),
        ('srun bash -c "accelerate launch --machine_rank $SLURM_PROCID --rdzv_backend=c10d x.py"', []),
        ("srun torchrun --node_rank $SLURM_NODEID --rdzv_backend c10d x.py", []),
        ("srun torchrun --rdzv_backend c10d x.py --rank $SLURM_PROCID", ["1 FAIL SLURM_PROCID"]),
        (f"{TWO}torchrun --nnodes 2 --master_addr=$H x.py", ["2 WARN srun"]),
        (f"{TWO}accelerate launch --num_machines $N --main_process_ip $H x.py", ["2 WARN srun"]),
        (f"{TWO}torchrun --nproc_per_node 8 x.py", []),
        (f'{TWO}srun -K bash -c "torchrun --nnodes 2 --master_addr=$H x.py"', []),
        (f"{TWO}for h in a b; do ssh $h 'torchrun --nnodes 2 --master_addr=a x.py' & done", []),
        (f"{TWO}mpiexec.hydra -ppn 1 run.sh\ntorchrun --nnodes 2 --master_addr=$H x.py", []),
        (f"{TWO}orch submit --here -- x.py\ntorchrun --nnodes 2 --master_addr=$H x.py", []),
        ("torchrun --nnodes 2 --master_addr=$H x.py", []),
        (f"{TWO}srun python x.py", ["2 INFO kill-on-bad-exit"]),
        (f"{TWO}srun bash -c 'torchrun --nnodes=2 --master_addr=$H x.py'", ["2 INFO kill-on-bad-exit"]),
        (f"{TWO}srun --kill-on-bad-exit=1 python x.py\n", []),
        (f"{TWO}export SLURM_KILL_BAD_EXIT=1\nsrun python x.py\n", []),
        (f"{TWO}srun -n 1 python x.py\nsrun hostname\n", []),
        (f"{TWO}srun $MORE python x.py\n", []),
        (f"{TWO}srun -w $HOSTS python x.py\n", ["2 INFO kill-on-bad-exit"]),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node=8 x.py", ["2 FAIL CUDA_VISIBLE_DEVICES"]),
        ("CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node 2 x.py", ["1 FAIL CUDA_VISIBLE_DEVICES"]),
        ("CUDA_VISIBLE_DEVICES=0 python x.py\ntorchrun --nproc_per_node 2 x.py", []),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc_per_node 2 x.py", []),
        ("export CUDA_VISIBLE_DEVICES=$D\ntorchrun --nproc_per_node 2 x.py", []),
        ("docker run --rm --gpus all img python x.py", ["1 INFO shm-size"]),
        ("sudo nvidia-docker run -it img bash", ["1 INFO shm-size"]),
        ("docker run --gpus all --ipc=host img python x.py", []),
        ("docker run --gpus all --shm-size 16g img python x.py", []),
        ("docker run --rm img pytest", []),
        ("docker run -d --gpus all dcgm-exporter -f x.csv", []),
        ("docker run --gpus all img bash -c 'python setup.py install'", []),
        ("docker run $OPTIONS --gpus all img python x.py", []),
        ("#!/bin/bash\necho x\n#SBATCH --nodes=2\n", ["3 WARN sbatch"]),
        ("#SBATCH --nodes=$N\n", ["1 WARN sbatch"]),
        ("#SBATCH --output=/x/$____/y\n", []),
        ("#SBATCH --export=NCCL_DEBUG=INFO\n", ["1 INFO sbatch"]),
        ("#SBATCH --export=ALL,NCCL_DEBUG=INFO\n", []),
        ("sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\nEOF\n", []),
    ],
)
def test_launch(text: str, found: list[str]) -> None:
    script = read_shell(text, "f")
    findings = [entry for part in (script, *script.embedded) for entry in lint_launch(part, "f")]
    assert [f"{entry.line} {entry.finding.severity.value} {entry.finding.check}" for entry in findings] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python -m torch.distributed.run x.py", True),
        ("ssh h 'cd /x; torchrun x.py'", True),
        ("for i in {0..7}; do RANK=$i python x.py & done", False),
    ],
)
def test_launchers_number_the_ranks(text: str, expected: bool) -> None:
    assert starts_ranks(read_shell(text, "f")) is expected


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('set -e\nread -p "Start? (y/N): " -n 1 -r\n', [2]),
        ('read -rp "Start? "', [1]),
        ("read -r host < hosts", []),
        ("while read -r name; do echo $name; done < names", []),
        ('if [ -t 0 ]; then read -p "Start? "; fi', []),
    ],
)
def test_question_to_a_terminal_is_found(text: str, lines: list[int]) -> None:
    assert prompts(text, "run.sh") == lines
    findings = list(lint_script(read_shell(text, "run.sh"), "run.sh"))
    assert [found.line for found in findings if found.finding.check == "prompt"][: len(lines)] == lines


@pytest.mark.parametrize(
    ("text", "lines"), [("#!/bin/bash\r\na\r\n", [1]), ("#!/bin/bash\na\r\n", [2]), ("a\nb\n", [])]
)
def test_line_ends_of_windows_are_found(text: str, lines: list[int]) -> None:
    findings = list(lint_line_ends(text, "my run.sh"))
    assert [found.line for found in findings] == lines
    assert all(found.finding.remedy == r"sed -i 's/\r$//' 'my run.sh'" for found in findings)
