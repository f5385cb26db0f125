"""Logs of failed runs of many ranks: the cause, the rank it began on, the confidence, and what is folded."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import Evidence, LogSearch
from orchestrator.diagnosis.rank_causes import Confidence, Diagnosis, rank_causes

SEARCH = LogSearch(CATALOGUE)

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:43399"
)
TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=120000) ran for 120621 milliseconds before timing out."
)
TORCHRUN_ROOT = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : n1
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 4711)"""
# name: (log, signature, ranks, nodes, confidence, folded signatures)
RUNS = {
    "the port is taken": (
        ("[n0:0] torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29555, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        "[n1:1] torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to connect to (10.0.0.1, 29555).\n"),
        "port-taken", (0,), ("n0",), HIGH, {"store-unreachable"},
    ),
    "the consequences have earlier times": (
        (f"2026-11-22 10:00:01 [n0:0] {CLOSED}\n2026-11-22 10:00:02 [n0:1] {CLOSED}\n2026-11-22 10:00:03 [n1:3] torch.OutOfMemoryError: "
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB\n"),
        "cuda-oom", (3,), ("n1",), HIGH, {"gloo-closed"},
    ),
    "the OOM killer": (
        (f"[n0:0] {CLOSED}\n[n1:-] rank 2 on n1 was killed by SIGKILL\n"
        "n1: [12345.678] Out of memory: Killed process 4711 (python3) total-vm:81234kB, anon-rss:71234kB\n"),
        "oom-killer", (2,), ("n1",), HIGH, {"killed", "gloo-closed"},
    ),
    "a lost node, whose peers saw closed connections and an NCCL error": (
        (f"[n0:0] {CLOSED}\n[n0:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB\n"
        "n1 is gone: it has not answered for 7 s, and n0, n2 cannot reach it either\n"),
        "node-lost", (), ("n1",), HIGH, {"cuda-oom", "gloo-closed"},
    ),
    "an agent that the kernel killed": (
        ("the agent of n1 died without a last event\n"
        "n1: [12345.678] Out of memory: Killed process 4711 (python3) total-vm:81234kB, anon-rss:71234kB\n"),
        "oom-killer", (), ("n1",), HIGH, {"agent-killed"},
    ),
    "a program that exits with 93 after its own error": (
        "[n1:3] [rank3]: KeyError: 'input_ids'\n[n1:-] rank 3 on n1 exited 93\n",
        "python-error", (3,), ("n1",), MEDIUM, {"no-retry-code"},
    ),
    "a program that exits with 93": ("[n1:-] rank 3 on n1 exited 93\n", "no-retry-code", (3,), ("n1",), LOW, set()),
    "SIGKILL alone": (f"[n0:0] {CLOSED}\n[n1:-] rank 2 on n1 was killed by SIGKILL\n", "killed", (2,), ("n1",), LOW, {"gloo-closed"}),
    "a full /dev/shm": (
        ("[n0:1] RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are out "
        "of shared memory. Please try to raise your shared memory limit.\n"
        f"[n0:-] rank 1 on n0 was killed by SIGBUS\n[n1:2] {CLOSED}\n"),
        "worker-bus-error", (1,), ("n0",), HIGH, {"bus-error", "gloo-closed"},
    ),
    "a DataLoader worker was killed": (
        f"[n0:1] RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly\n[n1:2] {CLOSED}\n",
        "worker-killed", (1,), ("n0",), LOW, {"gloo-closed"},
    ),
    "timeouts after a traceback": (
        "[n0:0] " + TIMEOUT.format(0, 7) + "\n[n0:1] " + TIMEOUT.format(1, 7) + "\n[n1:3] [rank3]: KeyError: 'input_ids'\n"
        "[n1:2] " + TIMEOUT.format(2, 7) + "\n[n1:-] rank 3 on n1 exited 1\n",
        "python-error", (3,), ("n1",), MEDIUM, {"collective-timeout", "exited-1"},
    ),
    "a rank without a timeout": (
        "".join(f"[n{rank // 2}:{rank}] {TIMEOUT.format(rank, 7)}\n" for rank in (0, 1, 3)) + "[n1:2] NCCL INFO Using network Socket\n",
        "collective-timeout", (2,), ("n1",), MEDIUM, set(),
    ),
    "a rank with a lower number": (
        "".join(f"[n{rank // 2}:{rank}] {TIMEOUT.format(rank, 5 if rank == 1 else 7)}\n" for rank in range(4)),
        "collective-timeout", (1,), ("n0",), MEDIUM, set(),
    ),
    "timeouts of all ranks": ("".join(f"{TIMEOUT.format(rank, 7)}\n" for rank in range(4)), "collective-timeout", (0, 1, 2, 3), (), LOW, set()),
    "unused parameters on all ranks": (
        "".join(
            f"[rank{rank}]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
            "indicates that your module has parameters that were not used in producing loss.\n"
            for rank in range(4)
        ),
        "ddp-unused-parameters", (0, 1, 2, 3), (), HIGH, set(),
    ),
    "a node that never started": (
        "0: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n",
        "clients-missing", (0,), (), LOW, set(),
    ),
    "a monitored barrier": ("[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n", "monitored-barrier", (1,), (), HIGH, set()),
    "models differ": (
        ("[n0:0] RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has inconsistent 4 params.\n"
        "[n1:1] RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has inconsistent 0 params.\n"),
        "ddp-models-differ", (1,), ("n1",), HIGH, {"ddp-models-differ-elsewhere"},
    ),
    "torchrun's report names the rank": (
        f"{TORCHRUN_ROOT}\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n", "killed", (3,), ("n1",), LOW, {"torchrun-root-cause", "child-failed"},
    ),
    "the time limit of Slurm": (
        ("slurmstepd: error: *** STEP 123.0 ON node01 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***\n"
        "srun: error: node01: task 0: Terminated\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"),
        "slurm-time-limit", (), ("node01",), HIGH, {"slurm-exit", "slurm-step-aborted"},
    ),
    "memory under Slurm": (
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n"
        f"srun: error: n1: task 3: Out Of Memory\n0: {CLOSED}\nslurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***\n"),
        "slurm-oom-task", (), ("n1",), HIGH, {"slurm-oom", "gloo-closed", "slurm-cancelled"},
    ),
    "a card that fell off the bus": (
        ("n1: NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.\n"
        "[rank8]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"),
        "xid-off-bus", (), ("n1",), HIGH, {"cuda-illegal-access", "nccl-remote-error"},
    ),
    "a rank that ended before the others": (
        f"[n0:0] {CLOSED}\nrank 1 on n1 had exited 0 before the failure\nrank 0 on n0 exited 1\n", "ended-early", (1,), (), MEDIUM, {"gloo-closed", "exited-1"},
    ),
    "a rank that ended before the others were killed": (
        "rank 1 on n1 had exited 0 before the failure\nrank 0 on n0 was killed by SIGKILL\n", "killed", (0,), ("n0",), LOW, {"ended-early"},
    ),
    "SIGTERM from outside": (f"[n0:0] {CLOSED}\nrank 1 on n1 was killed by SIGTERM\n", "terminated-first", (1,), ("n1",), LOW, {"gloo-closed", "terminated"}),
    "a rank that aborts since another one was killed": (
        f"[n0:0] {CLOSED}\n[n0:0] rank 0 on n0 was killed by SIGABRT\n[n1:-] rank 1 on n1 was killed by SIGKILL\n", "killed", (1,), ("n1",), LOW, {"gloo-closed", "aborted"},
    ),
    "a data loader worker crashed": (
        "[n0:1] RuntimeError: DataLoader worker (pid 9340) is killed by signal: Segmentation fault. \n", "worker-crashed", (1,), ("n0",), LOW, {"segmentation-fault"},
    ),
    "a command that the program ran": (
        "[rank1]: subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n", "command-failed", (1,), (), LOW, {"child-failed", "ninja-failed"},
    ),
    "SIGTERM for the launcher": (
        ("W1124 03:45:16.2 60 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 60 got signal: 15\n"),
        "launcher-signalled", (), (), LOW, {"terminated"},
    ),
    "SIGTERM for the launchers after a failure": (
        f"n2: W1124 03:45:16.2 60 api.py:753] Received 15 death signal, shutting down workers\n{TORCHRUN_ROOT}\n",
        "killed", (3,), ("n1",), LOW, {"torchrun-root-cause", "launcher-signalled"},
    ),
    "an exception of a process that torch spawned": (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\nRuntimeError: label 10 out of range\n",
        "python-error", (), (), MEDIUM, {"child-failed"},
    ),
    "a process that torch spawned was killed": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n", "killed", (), (), LOW, {"child-failed"},
    ),
    "a rank of mpirun was killed": (
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).\n", "killed", (3,), ("n1",), LOW, set(),
    ),
    "a rank of mpirun failed": (
        "AssertionError\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[60494,1],3]\n  Exit code:    1\n",
        "python-error", (3,), (), MEDIUM, {"mpirun-first"},
    ),
    "a program that is missing": (
        ('  File "/usr/lib/python3.11/subprocess.py", line 1955, in _execute_child\n    raise child_exception_type(errno_num, err_msg, err_filename)\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'numactl'\n"),
        "program-not-found", (), (), HIGH, {"file-not-found"},
    ),
    "an exception without Error in its name": (
        ('[rank1]:   File "/app/data.py", line 7, in read\n[rank1]:     return table(path)\n[rank1]: pyarrow.lib.ArrowInvalid: no: magic bytes\n'
        f"[rank0]: {CLOSED}\nE1122 10:00:00.1 1 api.py:1] failed (exitcode: -6) local_rank: 1 (pid: 7) of binary: python\n"),
        "python-exception", (1,), (), MEDIUM, {"gloo-closed", "aborted"},
    ),
    "an exception in an exception": (
        '  File "/app/t.py", line 1, in f\n    g()\nException: Caught ValueError: wrong label\n', "python-error", (), (), MEDIUM, set(),
    ),
    "an exception of C++": ("[n0:0]   what():  stoi\nrank 0 on n0 was killed by SIGABRT\n", "cpp-error", (0,), ("n0",), MEDIUM, {"aborted"}),
    "an exception of a data loader worker": (
        "[rank1]: KeyError: Caught KeyError in DataLoader worker process 0.\n[rank1]: KeyError: 'input_ids'\n", "python-error", (1,), (), MEDIUM, {"worker-error"},
    ),
    "two causes": (
        "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n[rank2]: OSError: [Errno 122] Disk quota exceeded\n",
        "file-not-found", (1,), (), MEDIUM, set(),
    ),
    "an error of another rank before": (
        "[rank1]: KeyError: 'a'\n[rank2]: FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n",
        "file-not-found", (2,), (), MEDIUM, {"python-error"},
    ),
    "one rank raises, all others raise what follows": (
        "[rank0]: SomeError: peer failed\n[rank1]: SomeError: peer failed\n[rank2]: ValueError: wrong label\n[rank3]: SomeError: peer failed\n",
        "python-error", (2,), (), LOW, set(),
    ),
    "a rank that ended before its peers lost it": (
        ("[n0:0] NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129\n"
        "[n0:1] NCCL WARN socketPollConnect connect to 10.0.0.2<41109> returned Connection refused, exceeded error retry count\n"
        "[n1:2] KeyError: 'a'\n"),
        "python-error", (2,), ("n1",), MEDIUM, {"nccl-rdma-retry", "nccl-connection-refused"},
    ),
    "the timeout of one rank, of which alone there is a log": (f"{TIMEOUT.format(1, 7)}\n", "collective-timeout", (1,), (), LOW, set()),
    "a link that flaps": (
        "[n0:0] NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129\n"
        + "".join(f"[n1:{rank}] {TIMEOUT.format(rank, 7)}\n" for rank in (2, 3)),
        "nccl-rdma-retry", (0,), ("n0",), LOW, {"collective-timeout"},
    ),
    "a network that failed before the timeouts": (
        "n0:12:34 [0] misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.2.0.5<33092> failed : No route to host\n"
        + "".join(f"[n1:{rank}] {TIMEOUT.format(rank, 7)}\n" for rank in (2, 3)),
        "nccl-socket-lost", (), ("n0",), LOW, {"collective-timeout"},
    ),
    "connections that were cut after a timeout": (
        (f"[n0:0] {TIMEOUT.format(0, 7)}\n[n1:1] NCCL WARN socketProgressOpt: Call to recv from 10.2.0.5<33092> failed : Broken pipe\n"
        "[n1:1] torch.distributed.DistNetworkError: Connection reset by peer\n"),
        "collective-timeout", (0,), ("n0",), LOW, {"nccl-connection-cut", "store-lost", "connection-lost"},
    ),
    "a card without memory below the error of torch": (
        "[rank3]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error, NCCL version 2.14.3\n[rank3]: Last error:\n[rank3]: Cuda failure 'out of memory'\n",
        "nccl-card-memory", (3,), (), HIGH, {"nccl-cuda-error"},
    ),
    "a store that ended with the first rank": (
        "[rank1]: recvValue failed on SocketImpl(fd=3): failed to recv, got 0 bytes\n[rank0]: ValueError: wrong label\n", "python-error", (0,), (), MEDIUM, {"store-closed"},
    ),
    "ranks that were not all started": (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=4, worker_count=2, timeout=0:30:00)\n",
        "store-barrier", (0,), (), LOW, set(),
    ),
    "ranks that were started twice": (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)\n",
        "store-barrier-crowded", (), (), HIGH, {"store-barrier"},
    ),
    "a container whose image is a file": (
        ("slurmstepd: error: pyxis: child 7 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\n"
        "slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/library/a.sqsh/manifests/latest returned error code: 401 Unauthorized\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"),
        "enroot-file-as-image", (), (), HIGH, {"enroot-registry-refused", "pyxis-failed", "slurm-exit", "exited-1"},
    ),
    "a controller that does not answer": (
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", "slurm-control-plane", (), (), HIGH, set(),
    ),
    "a shell without module": ("bash: module: command not found\nKeyError: 'a'\n", "python-error", (), (), MEDIUM, {"command-missing"}),
    "a package that may be missing": ("No module named 'flash_attn'\nKeyError: 'a'\n", "python-error", (), (), MEDIUM, set()),
    "a module that was imported if there is one": (
        "ModuleNotFoundError: No module named 'flash_attn'\nKeyError: 'a'\n", "module-not-found", (), (), MEDIUM, {"python-error"},
    ),
    "a caught error": (
        "CUDA out of memory. Tried to allocate 2.00 GiB, trying a smaller batch\n" + "step=1 loss=2\n" * 100 + "[rank1]: KeyError: 'a'\n",
        "python-error", (1,), (), MEDIUM, {"cuda-oom"},
    ),
    "an error before progress and another error of the same process": (
        "ModuleNotFoundError: No module named 'fast_ext'\nusing AdamW of torch\n" + "iter: 19 | loss 2.3\n" * 3 + "KeyError: 'a'\n",
        "python-error", (), (), MEDIUM, {"module-not-found"},
    ),
    "an error before progress of another rank": (
        "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n" + "iter: 19 | loss 2.3\n" * 3 + "[rank0]: KeyError: 'a'\n",
        "file-not-found", (1,), (), HIGH, {"python-error"},
    ),
    "a module that is missing by a warning": (
        "WARNING:root:ModuleNotFoundError: No module named 'xformers'\nKeyError: 'a'\n", "python-error", (), (), MEDIUM, {"module-not-found"},
    ),
    "an exception that Python ignored": (
        'Exception ignored in: <function f at 0x7f>\n  File "/app/a.py", line 1, in f\nOSError: [Errno 28] No space left on device\nKeyError: \'a\'\n',
        "python-error", (), (), MEDIUM, {"disk-full"},
    ),
    "a source line that a traceback quotes": (
        '  File "/app/a.py", line 1, in f\n    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB") if big else x.y\nAttributeError: no y\n',
        "python-error", (), (), MEDIUM, set(),
    ),
    "a message that a terminal has wrapped": (
        "AssertionError: Check batch related parameters. train_batch_size is not\nequal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 *\n8 * 1\n",
        "ds-batch-sizes", (), (), HIGH, set(),
    ),
    "a message of several lines": (
        "[rank0]: deepspeed.runtime.zero.utils.ZeRORuntimeException: \n[rank0]: The checkpoint being loaded used a DP world size of 4 but the current world size is 8.\n",
        "zero-world-size", (0,), (), HIGH, set(),
    ),
    "a log line after an exception": (
        "[rank1]: IndexError: tuple index out of range\nW1215 23:03:38.3 14 api.py:858] Sending process 5193 closing signal SIGTERM\n",
        "python-error", (1,), (), MEDIUM, {"terminated"},
    ),
    "a log line after an exception that is another failure": (
        "IndexError: tuple index out of range\nW1215 23:03:38.3 14 socket.cpp:858] [c10d] Address already in use\n",
        "port-taken", (), (), MEDIUM, {"python-error"},
    ),
    "a module that was missing before a training that continued": (
        "ModuleNotFoundError: No module named 'fast_ext'\n" + "step=1 loss=2\n" * 100 + "[rank1]: RuntimeError: no\n", "python-error", (1,), (), MEDIUM, {"module-not-found"},
    ),
    "a rank that is far behind": (
        "".join(f"{TIMEOUT.format(rank, 64088 if rank == 3 else 96117 + rank)}\n" for rank in (0, 1, 2, 3)),
        "collective-timeout", (3,), (), MEDIUM, set(),
    ),
    "a rank that is far behind beside one without a line": (
        "".join(f"{TIMEOUT.format(rank, 64088 if rank == 3 else 96117)}\n" for rank in (0, 1, 3)),
        "collective-timeout", (3,), (), MEDIUM, set(),
    ),
    "a rank that was busy": (
        "Running tokenizer on dataset (num_proc=8):   2%|▏ | 33000/1517267 [30:16<10:31, 235.69 examples/s]\n" + TIMEOUT.format(1, 1) + "\n",
        "rank-busy", (), (), LOW, {"collective-timeout"},
    ),
    "work that was finished long before": (
        "Map: 2%|▏ | 1/9 [0:01<0:10, 2.0 examples/s]\nMap: 100%|█ | 9/9 [0:02<0:00, 4.0 examples/s]\n" + TIMEOUT.format(1, 1) + "\n",
        "collective-timeout", (1,), (), LOW, set(),
    ),
    "ranks of Lightning that were started twice": (
        "".join(f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n" for rank in (0, 1, 0, 1)),
        "rank-started-twice", (0, 1), (), LOW, set(),
    ),
    "a text of several causes": ("CUDA error: invalid device ordinal\n", "invalid-ordinal", (), (), MEDIUM, set()),
    "a general and a specific signature in one line": (
        "ImportError: libc10.so: cannot open shared object file: No such file or directory\n", "torch-library-not-found", (), (), HIGH, set(),
    ),
    "a general signature wins over a symptom in one line that follows from it": (
        "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n", "nccl-gid-index", (), (), MEDIUM, {"nccl-verbs"},
    ),
    "a step that waits for the resources of another one": (
        "srun: Job 12 step creation still disabled, retrying (Requested nodes are busy)\n", "slurm-step-waits", (), (), LOW, set(),
    ),
    "an NCCL that is older than the card": (
        "n0:4:5 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\nn0:4:5 [0] enqueue.cc:1402 NCCL WARN Cuda failure 1 'invalid argument'\n",
        "nccl-older-than-card", (), ("n0",), HIGH, {"nccl-cuda-call"},
    ),
    "an MPI that cannot start, for a reason that its own lines give": (
        "It looks like MPI_INIT failed for some reason; your parallel process is\n[n3:208] [[4,2],6] selected pml cm, but peer [[4,1],0] on n4 selected pml ob1\n",
        "mpi-pml-differs", (), ("n3",), HIGH, {"mpi-init-failed"},
    ),
    "a shell of a container that may not be executed": (
        "slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/sh: Permission denied\n", "enroot-no-exec", (), (), HIGH, set(),
    ),
    "only a caught error": ("CUDA out of memory. Tried to allocate 2.00 GiB\n" + "step=1 loss=2\n" * 100, "cuda-oom", (), (), LOW, set()),
}  # fmt: skip


def diagnosed(log: str) -> Diagnosis:
    return rank_causes(SEARCH.evidence([log.encode()], "log"))


@pytest.mark.parametrize("name", RUNS)
def test_the_cause_of_a_run(name: str) -> None:
    log, signature, ranks, nodes, confidence, folded = RUNS[name]
    found = diagnosed(log)
    assert (found.signature, found.ranks, found.nodes, found.confidence) == (signature, ranks, nodes, confidence)
    assert {entry.signature for entry in found.consequences} == folded
    assert found.remedy


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'latest.tmp' -> 'latest.pt'", ["ls", "-l", "latest.tmp"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a; rm -r b'", ["ls", "-l", "a; rm -r b"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: \"it's > $(x)\"", ["ls", "-l", "it's > $(x)"]),
        (r"FileNotFoundError: [Errno 2] No such file or directory: 'a\nb'", ["ls", "-l", "a\nb"]),
        (r"FileNotFoundError: [Errno 2] No such file or directory: b'/d/\'`x`'", ["ls", "-l", "/d/'`x`"]),
        ("The client socket has timed out after 5ms while trying to connect to ($(x);y, 29513).", ["nc", "-vz", "$(x);y", "29513"]),
        ("ssh: connect to host $(x)>y port 22: Connection refused", ["ping", "$(x)>y", ";", "nc", "-vz", "$(x)>y", "22"]),
    ],
)  # fmt: skip
def test_a_value_of_a_log_line_is_one_word_of_the_command_that_is_proposed(line: str, command: list[str]) -> None:
    text = diagnosed(line).remedy[0].partition(": run")[0]
    tokens = shlex.shlex(text, posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    assert list(tokens) == command


@pytest.mark.parametrize(("ranks", "culprits"), [([0, 2], (1,)), ([0], (0,))])
def test_the_only_silent_rank_is_the_one_that_the_others_waited_for(
    ranks: list[int], culprits: tuple[int, ...]
) -> None:
    line = b"RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation to complete\n"
    evidence = Evidence(world_size=3)
    for rank in ranks:
        evidence += SEARCH.evidence([line], f"n0/rank-{rank}.err", node="n0", rank=rank)
    assert (rank_causes(evidence).signature, rank_causes(evidence).ranks) == ("gloo-timeout", culprits)


def test_an_exception_is_one_line_whatever_the_number_of_its_frames() -> None:
    frame = '  File "/app/t.py", line 1, in f\n    f()\n'
    for name, found in (("Exception", "python-error"), ("_queue.Empty", "python-exception")):
        evidence = SEARCH.evidence([f"{frame * 5}{name}: no data\n".encode()], "log")
        assert [(hit.signature.id, hit.line) for hit in evidence.hits] == [(found, 11)]


def test_a_message_that_announces_the_next_line_has_it() -> None:
    found = diagnosed(
        "RuntimeError: Failed to import models.x because of the following error:\nno backend is built in\n"
    )
    assert found.cause.endswith("because of the following error: no backend is built in")


def test_a_message_that_a_terminal_moved_to_the_next_line_is_joined() -> None:
    assert diagnosed("[rank6]: KeyError: \n[rank6]: 'state.exp_avg'\n").cause.endswith("KeyError: 'state.exp_avg'")


def test_an_exception_that_its_frame_and_its_module_show_is_one() -> None:
    found = diagnosed('  File "/app/t.py", line 1, in f\n    f()\ntorch._dynamo.exc.Unsupported: a new call\n')
    assert (found.signature, found.confidence, found.alternatives) == ("python-exception", Confidence.MEDIUM, ())


def test_a_step_that_waited_and_was_created_is_no_failure() -> None:
    waits = "srun: Job 12 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    assert diagnosed(f"{waits}srun: Step created for StepId=12.1\n").cause == ""


def test_advice_for_an_exception_names_the_line_of_the_program() -> None:
    found = diagnosed(
        'Traceback (most recent call last):\n  File "/app/train.py", line 81, in step\n    run(x)\n'
        '  File "/v/site-packages/lib/a.py", line 1, in run\n    assert x.dtype == y.dtype\nAssertionError\n'
    )
    assert "/app/train.py:81 in step" in found.remedy[0]
    assert "the same dtype" in found.remedy[1]


def test_the_node_of_a_silent_rank_is_that_of_its_log() -> None:
    line = b"RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation to complete\n"
    evidence = SEARCH.evidence([line], "n0/rank-0.err", node="n0", rank=0)
    found = rank_causes(evidence + Evidence(world_size=2, node_of={0: "n0", 1: "n1"}))
    assert (found.ranks, found.nodes) == ((1,), ("n1",))


@pytest.mark.parametrize(("ranks", "culprits"), [((0, 1, 3), (2,)), ((0, 3), (0, 3)), ((1,), (1,)), ((0, 1), (0, 1))])
def test_without_the_size_of_the_world_a_rank_is_silent_only_between_several_others(
    ranks: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    line = (
        "[rank{0}]: RuntimeError: [../unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation to complete\n"
    )
    found = diagnosed("".join(line.format(rank) for rank in ranks))
    assert (found.signature, found.ranks) == ("gloo-timeout", culprits)
    assert ("waited for another one" in found.reason) == (ranks == culprits)


def test_different_exceptions_that_are_not_the_cause_are_named_one_by_one_up_to_a_limit() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n"
    found = diagnosed(f"{missing}KeyError: 'a'\nValueError: label 1\nValueError: label 2\n")
    assert [(entry.text, entry.count) for entry in found.consequences] == [
        ("the program raised KeyError: 'a'", 1),
        ("the program raised ValueError: label 1", 2),
    ]
    many = diagnosed(missing + "".join(f"ValueError: label {name}\n" for name in "abcdefgh"))
    assert [entry.count for entry in many.consequences] == [1, 1, 1, 1, 1, 3]


def test_an_exception_of_one_rank_beside_what_all_ranks_had_is_another_possible_cause() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n"
    found = diagnosed(
        f"[n0:0] {missing}[n0:1] {missing}[n0:1] KeyError: 'a'\n[n0:0] ValueError: x\n[n0:1] ValueError: x\n"
    )
    assert (found.signature, found.confidence) == ("file-not-found", MEDIUM)
    assert [(entry.text, entry.ranks) for entry in found.alternatives] == [("the program raised KeyError: 'a'", (1,))]
    assert [entry.ranks for entry in found.consequences] == [(0, 1)]


def test_commands_on_a_node_name_one_of_several_nodes() -> None:
    found = diagnosed("[n0:0] MemoryError\n[n1:1] MemoryError\n")
    assert found.nodes == ("n0", "n1")
    assert found.remedy[0].endswith("run them on the node (orch ssh n0)")


def test_the_report_of_a_launcher_names_the_node_of_a_rank_or_the_log_to_look_at() -> None:
    found = diagnosed(f"[rank3]: KeyError: 'a'\n{TORCHRUN_ROOT}\n".replace("-9", "1 "))
    assert (found.ranks, found.nodes) == ((3,), ("n1",))
    unknown = diagnosed(f"{TORCHRUN_ROOT}\n".replace("-9", "1 "))
    assert (unknown.cause, unknown.ranks) == ("", (3,))
    assert "log of rank 3" in unknown.remedy[0]


def test_the_exception_of_a_text_that_was_often_warned_of_before_is_not_an_unknown_one() -> None:
    """A node keeps three lines of a signature per file."""
    refused = "The client socket has timed out after 3000ms while trying to connect to (n0, 29500)."
    bodies = [{"id": "store-unreachable", "line": line, "text": refused, "head": ""} for line in (1, 2, 3)]
    bodies.append(
        {"id": "python-error", "line": 9, "text": f"torch.distributed.DistNetworkError: {refused}", "head": ""}
    )
    hits = tuple(SEARCH.hits(bodies, "log", node="n1", rank=1))  # type: ignore[arg-type]
    assert rank_causes(Evidence(hits)).signature == "store-unreachable"


def test_of_a_program_that_starts_its_ranks_torchrun_names_the_rank_that_failed_first_on_that_node() -> None:
    evidence = Evidence(first_failure=(None, "n1"))
    for node, rank in (("n0", 0), ("n1", 3)):
        report = TORCHRUN_ROOT.replace("rank      : 3", f"rank      : {rank}")
        evidence += SEARCH.evidence([f"{report}\n".encode()], f"{node}/program.err", node=node)
    assert (rank_causes(evidence).signature, rank_causes(evidence).ranks, rank_causes(evidence).nodes) == (
        "killed",
        (3,),
        ("n1",),
    )


def test_what_the_kernel_killed_is_not_the_cause_of_an_unrelated_error() -> None:
    line = "the kernel has killed 1 of the processes on this node for lack of memory since the start of the run"
    kernel = SEARCH.evidence([line.encode()], "n1/kernel log", node="n1")
    error = SEARCH.evidence([b"KeyError: 'a'\n"], "n1/rank-3.err", node="n1", rank=3)
    exited = SEARCH.evidence([b"rank 3 on n1 was killed by SIGKILL"], "n1/first exit", node="n1")
    assert rank_causes(kernel + error).signature == "python-error"
    found = rank_causes(kernel + exited)
    assert (found.signature, found.ranks, found.nodes, found.confidence) == ("oom-kills", (3,), ("n1",), HIGH)


@pytest.mark.parametrize(("rank_line", "confidence"), [("rank 2 on n1 was killed by SIGKILL\n", HIGH), ("", LOW)])
def test_a_process_that_the_kernel_killed_may_be_of_another_job(rank_line: str, confidence: Confidence) -> None:
    line = "[12345.678] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:81234kB\n"
    evidence = SEARCH.evidence([line.encode()], "n1/kernel log", node="n1")
    evidence += SEARCH.evidence([rank_line.encode()], "record of the run")
    assert (rank_causes(evidence).signature, rank_causes(evidence).confidence) == ("cgroup-oom", confidence)


OF_OTHERS = "the kernel has killed 1 processes on this node for lack of memory, and none in the cgroup of this run"
OF_THE_RUN = "the kernel has killed 1 of the processes in the cgroup of this run for lack of memory"


@pytest.mark.parametrize(
    ("count", "rank_line", "signature", "confidence"),
    [
        (OF_OTHERS, "rank 2 on n1 was killed by SIGKILL", "killed", LOW),
        (OF_OTHERS, "KeyError: 'a'", "python-error", MEDIUM),
        (OF_OTHERS, "", "cgroup-oom", LOW),
        (OF_THE_RUN, "rank 2 on n1 was killed by SIGKILL", "cgroup-oom", HIGH),
        (OF_THE_RUN, "KeyError: 'a'", "cgroup-oom", MEDIUM),
    ],
)
def test_error_of_a_rank_wins_over_the_kill_of_a_process_of_another_cgroup(
    count: str, rank_line: str, signature: str, confidence: Confidence
) -> None:
    line = "[12345.678] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:81234kB"
    evidence = SEARCH.evidence([f"{line}\n{count}\n".encode()], "n1/kernel log", node="n1")
    evidence += SEARCH.evidence([rank_line.encode()], "n1/rank-2.err", node="n1", rank=2)
    assert (rank_causes(evidence).signature, rank_causes(evidence).confidence) == (signature, confidence)


def test_a_module_that_a_training_did_without_is_no_cause() -> None:
    missing = "ModuleNotFoundError: No module named 'fast_ext'\n"
    found = diagnosed(missing + "step=1 loss=2\n" * 100)
    assert (found.cause, [hit.line for hit in found.errors]) == ("", [1])
    assert diagnosed(f"WARNING: {missing}").cause == ""


def test_ranks_that_start_once_each_are_no_failure() -> None:
    starts = "".join(f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n" for rank in range(4))
    assert diagnosed(starts).cause == ""
    assert diagnosed(starts * 2).cause == "", "a restart"


def test_calls_that_differ_at_one_number_are_named_and_no_rank_is_blamed() -> None:
    found = diagnosed(f"{TIMEOUT.format(0, 7)}\n{TIMEOUT.format(1, 7).replace('NumelIn=1', 'NumelIn=4096')}\n")
    assert found.cause.endswith("rank 0 ALLREDUCE of 1 elements, rank 1 ALLREDUCE of 4096 elements")
    assert (found.ranks, found.confidence) == ((0, 1), MEDIUM)
    assert "same number of batches" in found.remedy[0]


def test_a_call_that_all_ranks_entered_points_at_the_connection() -> None:
    found = diagnosed("".join(f"{TIMEOUT.format(rank, 7)}\n" for rank in range(2)))
    assert "did not end" in found.cause
    assert found.remedy[0].startswith("NCCL_P2P_DISABLE=1")


def test_another_attempt_is_not_ruled_out_where_the_exception_does_not_show_it() -> None:
    assert diagnosed("KeyError: 'a'\n").retry == "never"
    assert diagnosed("RuntimeError: no answer\n").retry is None
    assert diagnosed("RuntimeError: no answer\n").to_json()["retry"] is None


def test_a_warning_of_nccl_is_shown_with_its_error_and_more_debug_output_is_not_advised() -> None:
    error = "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    assert any("--debug" in step for step in diagnosed(error).remedy)
    found = diagnosed(f"{error}n0:1:2 [0] misc/new.cc:1 NCCL WARN a text of a version that is not known\n")
    assert not any("--debug" in step for step in found.remedy)
    assert found.proof[-1].origin.text.endswith("that is not known")


def test_the_advice_of_the_log_itself_is_first() -> None:
    found = diagnosed("KeyError: 'a'\n        Solution: Wait for 10s and try again.\n" + "\n" * 20 + "HINT: no\n")
    assert found.remedy[0] == "the log itself advises: Wait for 10s and try again."
    assert not any(step[-2:] == "no" for step in found.remedy)


@pytest.mark.parametrize(
    "line",
    [
        "n0:1:2 [0] misc/new.cc:1 NCCL WARN a text of a version that is not known",
        "Traceback (most recent call last):",
        "run.sh: line 12: cd: /data/x: Too many levels of symbolic links",
        "mkdir: cannot create directory '/data/x': File exists",
        "fatal: no license",
        "the daemon failed to start",
    ],
)
def test_a_line_that_reports_an_error_is_shown_if_nothing_is_known(line: str) -> None:
    found = diagnosed(f"step 1\n{line}\n")
    assert [hit.origin.text for hit in found.errors] == [line.partition("[0] ")[2] or line]


def test_words_that_may_report_an_error_are_shown_only_without_lines_that_do() -> None:
    found = diagnosed("could not load the optional plugin\n[ERROR] no tokenizer\n")
    assert [hit.line for hit in found.errors] == [2]


def test_a_step_whose_values_are_unknown_has_an_alternative_or_is_left_out() -> None:
    named, unnamed = (
        diagnosed(f"{node}slurmstepd: error: execve(): train.sh: No such file or directory\n").remedy[0]
        for node in ("[n1:-] ", "")
    )
    assert named == "command -v train.sh: run it on the node (orch ssh n1)"
    assert unnamed == "command -v train.sh: run it on the node"
    assert diagnosed("rank 3 on n0 exited 127\n").remedy[0].startswith("command -v with its name")
    assert diagnosed("FileNotFoundError: [Errno 2] No such file or directory: '-rf'\n").remedy[0].startswith("copy it")


def test_a_missing_module_is_installed_by_the_name_of_its_package() -> None:
    found = diagnosed("ModuleNotFoundError: No module named 'cv2.gapi')\n")
    assert found.remedy[0].startswith("python -m pip install opencv-python,")
    assert found.cause.startswith("the Python of the node has no module cv2.gapi:")


def test_the_proof_is_the_line_itself() -> None:
    found = diagnosed(RUNS["the port is taken"][0])
    assert [(hit.location, hit.rank) for hit in found.proof] == [("log:1", 0)]
    assert found.retry == "retry"


def test_nothing_known_shows_the_earliest_different_errors() -> None:
    found = diagnosed(
        f"ok\n[ERROR] cannot open tokenizer 1\n[ERROR] cannot open tokenizer 2\n[n0:1] {CLOSED}\nfatal: no license\n"
    )
    assert (found.cause, found.confidence) == ("", None)
    assert [hit.location for hit in found.errors] == ["log:2", "log:5"]
    assert [entry.signature for entry in found.consequences] == ["gloo-closed"]


def test_with_consequences_alone_nothing_is_claimed() -> None:
    found = diagnosed(f"[n0:0] {CLOSED}\n[n0:1] {CLOSED}\n")
    assert found.cause == ""
    assert [hit.location for hit in found.errors] == ["log:1"]


def test_a_peer_that_closed_the_connection_is_named_if_nothing_else_is() -> None:
    found = diagnosed(f"[n0:0] {CLOSED.replace('127.0.0.1', '10.0.0.7')}\n")
    assert (found.signature, found.confidence) == ("gloo-closed", LOW)
    assert "10.0.0.7" in found.cause


def test_a_log_without_errors_has_no_diagnosis() -> None:
    assert diagnosed("step=1 loss=2.5\n") == Diagnosis()


def test_the_ranks_that_left_no_line_are_found_by_the_size_of_the_world() -> None:
    timeouts = "".join(f"{TIMEOUT.format(rank, 7)}\n" for rank in (0, 2))
    evidence = SEARCH.evidence([timeouts.encode()], "log") + Evidence(world_size=4)
    assert rank_causes(evidence).ranks == (1, 3)
    assert rank_causes(evidence + Evidence(is_partial=True)).ranks == (0, 2)


def test_the_rank_within_a_process_group_is_not_the_rank_of_the_run() -> None:
    timeouts = "".join(f"[n1:{rank}] {TIMEOUT.format(rank - 4, 7)}\n" for rank in (4, 5))
    evidence = SEARCH.evidence([timeouts.encode()], "log") + Evidence(world_size=8)
    assert [hit.rank for hit in evidence.hits] == [4, 5]
    assert rank_causes(evidence).ranks == (4, 5)
