"""The catalogue of failures: one signature per known text, one module per program. Add a signature there."""

from __future__ import annotations

from orchestrator.diagnosis.catalogue.builds import BUILDS
from orchestrator.diagnosis.catalogue.containers import CONTAINERS
from orchestrator.diagnosis.catalogue.cuda import CUDA
from orchestrator.diagnosis.catalogue.deepspeed import DEEPSPEED
from orchestrator.diagnosis.catalogue.enflame import ENFLAME
from orchestrator.diagnosis.catalogue.frameworks import FRAMEWORKS
from orchestrator.diagnosis.catalogue.huawei import HUAWEI
from orchestrator.diagnosis.catalogue.huggingface import HUGGINGFACE
from orchestrator.diagnosis.catalogue.launchers import LAUNCHERS
from orchestrator.diagnosis.catalogue.nccl import NCCL
from orchestrator.diagnosis.catalogue.openmmlab import OPENMMLAB
from orchestrator.diagnosis.catalogue.own import OF_ORCH
from orchestrator.diagnosis.catalogue.processes import PROCESSES
from orchestrator.diagnosis.catalogue.python import PYTHON
from orchestrator.diagnosis.catalogue.ray import RAY
from orchestrator.diagnosis.catalogue.rendezvous import RENDEZVOUS
from orchestrator.diagnosis.catalogue.slurm import SLURM
from orchestrator.diagnosis.catalogue.ssh import SSH
from orchestrator.diagnosis.catalogue.torch import TORCH
from orchestrator.diagnosis.signature import Signature

PROGRAMS: dict[str, tuple[Signature, ...]] = {
    "What orch itself has found out": OF_ORCH,
    "NCCL": NCCL,
    "torch, DDP and gloo": TORCH,
    "How ranks meet: store, rendezvous, torchrun": RENDEZVOUS,
    "Processes, memory, disks and Python": PROCESSES,
    "Python programs, data loaders and checkpoints": PYTHON,
    "Builds, shared libraries and versions of packages": BUILDS,
    "transformers, datasets, PEFT": HUGGINGFACE,
    "Megatron, Lightning, FSDP and checkpoints of several ranks": FRAMEWORKS,
    "OpenMMLab": OPENMMLAB,
    "CUDA and cards": CUDA,
    "DeepSpeed": DEEPSPEED,
    "Ray and vLLM": RAY,
    "Slurm": SLURM,
    "Open MPI, MPICH, pdsh and Horovod": LAUNCHERS,
    "Containers: docker, Pyxis, enroot, apptainer": CONTAINERS,
    "SSH": SSH,
    "Enflame": ENFLAME,
    "Ascend: HCCL": HUAWEI,
}
CATALOGUE: dict[str, Signature] = {row.id: row for rows in PROGRAMS.values() for row in rows}
