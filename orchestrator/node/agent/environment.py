"""The environment of a rank: the variables that node.sh exports, without other launchers' variables, plus torchrun's."""

from __future__ import annotations

import os

from orchestrator.node.agent.failure import error_file
from orchestrator.node.ranks.stacks import STACKS
from orchestrator.node.run.code_folder import shared_folder
from orchestrator.node.run.job import Job
from orchestrator.node.run.memory_folder import memory_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPORT_FOLDER = "orchestrator/node/report"  # in the bundle
STALE_NAMES = frozenset(
    b"RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
    b"NNODES NODE_RANK NPROC_PER_NODE MASTER_ADDR MASTER_PORT ORCH_RUN_ID ORCH_RUN_DIR ORCH_NODE ORCH_NODE_RANK "
    b"ORCH_ATTEMPT ORCH_SHARED_DIR ORCH_COMMIT ORCH_MEMORY_DIR ORCH_NODE_ADDRESSES ORCH_HOSTFILE "
    b"HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE".split()
)
STALE_PREFIXES = (b"TORCHELASTIC_", b"PET_", b"PMI_", b"PMIX_", b"OMPI_")
# Slurm's variables about the tasks of a step and how srun started them. mmengine, Lightning, timm, DETR, JAX and others take
# the process that has them for one task of srun; spares are in the lists and counts of nodes. All others describe the job.
SLURM = b"SLURM_"
SLURM_NAMES = frozenset(b"PROCID LOCALID NODEID GTIDS TASK_PID NPROCS NNODES JOB_NUM_NODES MPI_TYPE".split())
SLURM_PREFIXES = (b"NTASKS", b"STEP", b"SRUN_", b"LAUNCH_", b"CPU_BIND")
SLURM_PARTS = (b"NODELIST", b"TASKS_PER_NODE")
# Variables of the login. By the first two, bash decides that sshd started it: `bash -c` would read ~/.bashrc, whose lines
# override the inventory's values.
LOGIN_NAMES = frozenset(b"SSH_CLIENT SSH2_CLIENT SSH_CONNECTION SSH_TTY SSH_ORIGINAL_COMMAND".split())
# The file prefix of the flight record that torch writes if an NCCL collective times out; the second name is for torch < 2.9.
RECORD_NAMES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def is_stale(name: bytes) -> bool:
    """Return whether ranks must not inherit the variable, which numbers the processes of a launch."""
    if not name.startswith(SLURM):
        return name in STALE_NAMES or name.startswith(STALE_PREFIXES)
    rest = name[len(SLURM) :]
    return rest in SLURM_NAMES or rest.startswith(SLURM_PREFIXES) or any(part in rest for part in SLURM_PARTS)


def inherited_environment(environ: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], list[str]]:
    """An agent's environment, byte for byte, without the variables of the login and of other launchers; and the latter's names."""
    stale = sorted(name.decode("utf-8", "backslashreplace") for name in environ if is_stale(name))
    dropped = LOGIN_NAMES.union(filter(is_stale, environ))
    return {name: value for name, value in environ.items() if name not in dropped}, stale


def summary(names: Sequence[str]) -> str:
    """The names for a message; Slurm's variables, some fifty in every job, as a count."""
    listed = [name for name in names if not name.startswith("SLURM")]
    count = len(names) - len(listed)
    return ", ".join([*listed, f"SLURM* ({count})"] if count else listed)


def defaults(job: Job, folder: str, kept: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Default variables for the ranks of a node, used if neither the inventory nor the node sets them."""
    # torchrun's default, 1, aborts the collective before its record is written, and the abort may hang (pytorch#121055).
    found = {b"TORCH_NCCL_ASYNC_ERROR_HANDLING": b"3", b"TORCH_NCCL_DUMP_ON_TIMEOUT": b"1"}
    found[b"PYTHONUNBUFFERED"] = b"1"  # as -u of a Python program, for Python that a script starts
    if len(job.rank_numbers) > 1:
        found[b"OMP_NUM_THREADS"] = b"1"
    if not any(name in kept for name in RECORD_NAMES):  # synonyms: torch reads the first that is set
        record = os.fsencode(os.path.join(folder, STACKS, "nccl_trace_rank_"))  # torch appends the rank
        found.update(dict.fromkeys(RECORD_NAMES, record))
    return {name: value for name, value in found.items() if name not in kept}


def node_environment(job: Job, rendezvous: str) -> dict[bytes, bytes]:
    """The variables of the launch that all processes of a node share: torchrun's for its ranks, or its options; and ORCH_*."""
    address, port, _ = rendezvous.split()
    launch = {
        "NNODES": str(len(job.ranks)),
        "NODE_RANK": str(job.node_rank),
        "NPROC_PER_NODE": str(len(job.rank_numbers)),
    }
    launch.update(MASTER_ADDR=address, MASTER_PORT=port)
    shared = {**launch, **(torchrun_options(launch) if job.is_per_node else torchrun_variables(job))}
    shared.update(ORCH_RUN_ID=job.run_id, ORCH_RUN_DIR=job.run_dir, ORCH_ATTEMPT=str(job.attempt))
    shared.update(ORCH_NODE=job.node, ORCH_NODE_RANK=str(job.node_rank))
    addresses = node_addresses(job, rendezvous)
    if addresses:
        shared.update(ORCH_NODE_ADDRESSES=",".join(addresses), ORCH_HOSTFILE=job.hostfile)
    shared["ORCH_MEMORY_DIR"] = memory_folder(job.run_id, job.node)
    folder = shared_folder(job.run_dir)
    if folder is not None:
        shared.update(ORCH_SHARED_DIR=folder)
    if job.commit:
        shared.update(ORCH_COMMIT=job.commit)
    return {os.fsencode(name): os.fsencode(value) for name, value in shared.items()}


def node_addresses(job: Job, rendezvous: str) -> list[str]:
    """The address of each node, by node rank, the first one as MASTER_ADDR; empty if they are unknown."""
    if len(job.addresses) < len(job.ranks):
        return []
    return [rendezvous.split(maxsplit=1)[0], *job.addresses[1 : len(job.ranks)]]


def hostfile_text(job: Job, rendezvous: str) -> str:
    """A list of the nodes and their numbers of ranks, as mpirun and deepspeed read it."""
    lines = zip(node_addresses(job, rendezvous), job.ranks)
    return "".join(f"{address} slots={ranks}\n" for address, ranks in lines)


def torchrun_variables(job: Job) -> dict[str, str]:
    """The variables that torchrun would set for all ranks of the node."""
    world, group = str(sum(job.ranks)), str(job.node_rank)
    variables = {"WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "ROLE_NAME": "default", "GROUP_RANK": group}
    variables.update(LOCAL_WORLD_SIZE=str(len(job.rank_numbers)), GROUP_WORLD_SIZE=str(len(job.ranks)))
    variables.update(TORCHELASTIC_RUN_ID=job.run_id, TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0")
    variables.update(TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM,SIGINT,SIGHUP,SIGQUIT")  # torch 2.13, launcher/api.py
    variables.update(TORCHELASTIC_USE_AGENT_STORE="False")  # rank 0 hosts the store, as there is no torchrun
    return variables


def torchrun_options(launch: Mapping[str, str]) -> dict[str, str]:
    """The variables from which torchrun takes the options that its command line lacks."""
    options = {f"PET_{name}": value for name, value in launch.items()}
    if launch["NODE_RANK"] == "0":  # for --rdzv-backend=c10d, which may not recognise the head's address as its own
        options["PET_RDZV_CONF"] = "is_host=true"
    options["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "[rank${rank}]:"  # with --tee; the default is the local rank
    return options


def rank_variables(job: Job, folder: str) -> list[dict[bytes, bytes]]:
    """The variables that differ per process, in local order."""
    environments = []
    for local_rank, rank in enumerate(job.processes):
        variables = {"TORCHELASTIC_ERROR_FILE": error_file(folder, rank)}
        if rank is not None:
            variables.update(RANK=str(rank), ROLE_RANK=str(rank), LOCAL_RANK=str(local_rank))
        environments.append({os.fsencode(name): os.fsencode(value) for name, value in variables.items()})
    return environments


def python_path(job: Job, kept: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """PYTHONPATH of the ranks: what the program needs, the node's, and last the module by which a user's program reports."""
    folder = job.program["pythonpath"]
    if folder is not None:
        yield os.fsencode(os.path.normpath(os.path.join(job.bundle_dir, folder)))
    if kept.get(b"PYTHONPATH"):
        yield kept[b"PYTHONPATH"]
    if folder != "":  # the shared trainer's
        yield os.fsencode(os.path.join(job.bundle_dir, REPORT_FOLDER))


def rank_environments(
    job: Job, rendezvous: str, kept: Mapping[bytes, bytes], node_folder: str
) -> list[dict[bytes, bytes]]:
    """The environment of each process, in local order: the inherited variables and the launch's."""
    shared = {**defaults(job, node_folder, kept), **kept}
    shared[b"PYTHONPATH"] = b":".join(python_path(job, kept))
    shared.update(node_environment(job, rendezvous))
    return [{**shared, **variables} for variables in rank_variables(job, node_folder)]
