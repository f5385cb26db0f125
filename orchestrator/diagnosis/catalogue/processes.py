"""How processes end: signals, exit codes, the report of torchrun, the kernel's OOM killer, exceptions of Python, full disks."""

from __future__ import annotations

from functools import partial

from orchestrator.diagnosis.signature import KERNEL, Role, Signature, signature

_root = partial(signature, Role.ROOT)
_error = partial(signature, Role.ERROR)
_symptom = partial(signature, Role.SYMPTOM)
_consequence = partial(signature, Role.CONSEQUENCE)
_FIRST = "look at the first failing rank"
_PATH = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w./~+-]+"""  # quoted by Python, or plain
_OUT_OF_MEMORY = ("oom-killer", "cgroup-oom", "oom-kills", "slurm-oom", "slurm-oom-task")


def _exit(number: int, name: str) -> str:
    """The texts of torchrun, DeepSpeed, Slurm, shells and orch for a process that a signal ended."""
    of_torchrun = rf"exitcode(?::|\s+:) -{number}[ )]"
    of_deepspeed = rf"exits with return code = -{number}\b"
    of_slurm = rf"Exited with exit code {128 + number}\b"
    return rf"(?:rank (?P<rank>\d+) on (?P<node>\S+) was killed by {name}\b|{of_torchrun}|{of_deepspeed}|{of_slurm}|Signal {number} \({name}\) received)"


def _exit_samples(number: int, name: str) -> tuple[str, ...]:
    return (
        f"failed (exitcode: -{number}) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3",
        f"[launch.py:341:sigkill_handler] ['python', 'train.py'] exits with return code = -{number}",
        f"srun: error: n0: task 1: Exited with exit code {128 + number}",
        f"rank 1 on n0 was killed by {name}",
    )


_EXIT_TEXTS = ("exitcode", "exits with return code", "Exited with exit code", "was killed by SIG", ") received")

PROCESSES: tuple[Signature, ...] = (
    _consequence("torchrun-root-cause", r"Root Cause \(first observed failure\):[\s\S]*?host\s*: (?P<first_node>\S+)[\s\S]*?rank\s*: (?P<first_rank>\d+) \(local_rank: \d+\)[\s\S]*?exitcode\s*: (?P<code>-?\d+)", "code", "torchrun saw rank {first_rank} on {first_node} end first, with exit code {code}",
        "look at the log of rank {first_rank}: torchrun --log-dir DIR --redirects 3 keeps one per rank", literal="Root Cause (first observed failure)", lines=7,
        sample="Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_10:00:00\n  host      : n0\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n  error_file: <N/A>", near="Root Cause (first observed failure) is unknown\na\nb", source="torch 2.13, run here"),
    _symptom("killed", _exit(9, "SIGKILL"), "memory", "the process was killed by SIGKILL, usually by the OOM killer of the kernel or a memory limit", "dmesg -T | grep -i 'killed process': names the process if it was the OOM killer", "fewer data loader workers, a smaller batch; under Slurm a larger --mem", retry="retry",
        literal=_EXIT_TEXTS, follows=(*_OUT_OF_MEMORY, "slurm-time-limit", "slurm-preempted", "slurm-node-fail", "slurm-cancelled", "worker-killed", "python-error"), sample=_exit_samples(9, "SIGKILL"), near="failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here; DeepSpeed 0.19; Slurm"),
    _symptom("segmentation-fault", _exit(11, "SIGSEGV") + r"|Segmentation fault", "code", "the process ended by SIGSEGV: an extension that does not match torch or Python, or a defect of a driver or library", "python -X faulthandler: prints the stack where it happened", "compare the versions of torch, CUDA and extensions: orch nodes, pip list",
        literal=(*_EXIT_TEXTS, "Segmentation fault"), sample=(*_exit_samples(11, "SIGSEGV"), "Fatal Python error: Segmentation fault"), near="failed (exitcode: -15) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here"),
    _symptom("bus-error", _exit(7, "SIGBUS"), "storage", "the process ended by SIGBUS: /dev/shm is full, or a file that it had mapped was shortened", "df -h /dev/shm", "docker run --shm-size=16g or --ipc=host; fewer data loader workers", retry="elsewhere",
        literal=_EXIT_TEXTS, follows=("worker-bus-error", "nccl-shm-full"), sample=_exit_samples(7, "SIGBUS"), near="failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here"),
    _consequence("aborted", _exit(6, "SIGABRT"), "code", "the process aborted itself, as torch does after a timeout of NCCL", "look at the lines before it", literal=_EXIT_TEXTS, sample=_exit_samples(6, "SIGABRT"), near="failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here"),
    _consequence("terminated", _exit(15, "SIGTERM") + r"|SignalException: Process \d+ got signal: (?:15|1)\b|Sending process \d+ closing signal SIGTERM", "code", "the launcher ended the other ranks after a failure", _FIRST, literal=(*_EXIT_TEXTS, "got signal:", "closing signal SIGTERM"),
        sample=(*_exit_samples(15, "SIGTERM"), "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15", "W1122 10:00:00.000 4711 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4712 closing signal SIGTERM"), near="failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here"),
    _consequence("exited-1", r"(?:exitcode(?::|\s+:) 1[ )]|exits with return code = 1\b|Exited with exit code 1\b|rank (?P<rank>\d+) on (?P<node>\S+) exited [1-9])", "code", "the program ended with its own error", "look at the traceback of that rank", literal=("exitcode", "exits with return code", "Exited with exit code", " exited "),
        sample=("failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3", "srun: error: node01: task 0: Exited with exit code 1", "rank 3 on n0 exited 1", "rank 3 on n0 exited 7"), near="failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: python", source="torch 2.13, run here; Slurm"),
    _consequence("child-failed", r"ChildFailedError|CalledProcessError|FAILED \(non-zero exit code or other failure mode\)", "code", "the launcher reports that a rank failed", _FIRST, literal=("ChildFailedError", "CalledProcessError", "FAILED (non-zero exit code"),
        sample=("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.", "*** STEP 123.0 ON node01 FAILED (non-zero exit code or other failure mode) ***"), near="ChildProcessError: [Errno 10] No child processes", source="torch 2.13; Python; Slurm"),
    _root("command-not-found", r"Exited with exit code 127\b|exitcode(?::|\s+:) 127[ )]|rank (?P<rank>\d+) on (?P<node>\S+) exited 127\b|execve\(\): (?P<program>\S+): No such file or directory", "config", "a program or script does not exist on the node, or is not on PATH", "command -v PROGRAM: run it on the node (orch ssh {node})", "set python: in the inventory, or add the lines of the environment to setup:", literal=("Exited with exit code", "exitcode", " exited ", "execve(): "),
        sample=("srun: error: n0: task 1: Exited with exit code 127", "rank 3 on n0 exited 127", "slurmstepd: error: execve(): train.sh: No such file or directory"), near="srun: error: n0: task 1: Exited with exit code 12", source="bash; Slurm"),
    _symptom("command-missing", r": command not found$", "config", "a shell did not find a program; a script may continue without it", "command -v PROGRAM: run it on the node (orch ssh {node})", "set python: in the inventory, or add the lines of the environment to setup:", literal=": command not found", follows=("command-not-found",),
        sample=("bash: line 1: torchrun: command not found", "bash: module: command not found"), near="the command was not found in the cache", source="bash"),
    _root("not-executable", r"Exited with exit code 126\b|exitcode(?::|\s+:) 126[ )]|execve\(\): (?P<program>\S+): Permission denied|: Permission denied$(?<=sh: Permission denied)", "config", "a program or script of the run may not be executed", "chmod +x FILE, or start it with its interpreter: bash FILE", literal=("Exited with exit code", "exitcode", "execve(): ", "sh: Permission denied"),
        sample=("srun: error: n0: task 1: Exited with exit code 126", "slurmstepd: error: execve(): train.sh: Permission denied", "bash: ./run.sh: Permission denied"), near="srun: error: n0: task 1: Exited with exit code 1", source="bash; Slurm"),
    _consequence("gcu-child", r"exit(?:code(?::|\s+:)| code) 17\b", "code", "a child of torch_gcu's multiprocessing ended with an error", "look for `Exception in device=`", literal=("exitcode", "exit code 17"), sample="process 1 terminated with exit code 17", near="process 1 terminated with exit code 1", source="torch_gcu of the T20"),
    _root("oom-killer", r"(?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+)", "memory", "the kernel of the node ran out of memory and killed process {pid}", "free -h; dmesg -T | grep -i 'killed process'", "fewer data loader workers, a smaller batch, or fewer ranks per node", literal="ut of memory: Kill",
        logs=KERNEL, sample=("[12345.678] Out of memory: Killed process 4711 (python3) total-vm:81234kB, anon-rss:71234kB", "kernel: Out of memory: Kill process 4711 (python) score 900 or sacrifice child"), near="Out of memory: no process was killed", source="Linux 3 to 6"),
    _root("cgroup-oom", r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+)|oom-kill:constraint=CONSTRAINT_MEMCG", "memory", "the job exceeded its memory limit (cgroup), and the kernel killed a process in it", "raise the limit: --mem under Slurm, --memory of the container", "fewer data loader workers, or a smaller batch", literal=("Memory cgroup out of memory", "CONSTRAINT_MEMCG"),
        logs=KERNEL, sample=("[12345.678] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:81234kB", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,oom_memcg=/slurm/uid_1000/job_12"), near="Memory cgroup created", source="Linux 4 to 6"),
    _root("oom-kills", r"the kernel has killed (?P<count>\d+) of the processes on this node for lack of memory", "memory", "the kernel of the node ran out of memory, or a limit of memory was reached, and it killed {count} of the processes", "free -h; dmesg -T | grep -i 'killed process': names them, where you may read it", "fewer data loader workers, a smaller batch, or fewer ranks per node", literal="of the processes on this node for lack of memory",
        logs=KERNEL, follows=("oom-killer", "cgroup-oom"), sample="the kernel has killed 1 of the processes on this node for lack of memory since the start of the run", near="the kernel has not killed processes of this node", source="orch, by /proc/vmstat"),
    _root("worker-bus-error", r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Bus error|out of shared memory\. Please try to raise your shared memory limit", "storage", "/dev/shm is full: a data loader worker could not pass its batch on", "df -h /dev/shm", "docker run --shm-size=16g or --ipc=host", "fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')", retry="elsewhere",
        literal=("is killed by signal: Bus error", "raise your shared memory limit"), sample="RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", near="RuntimeError: DataLoader worker (pid 46794) is killed by signal: Killed.", source="pytorch#108861, #5040"),
    _root("shm-full", r"/dev/shm.*No space left on device|No space left on device.*/dev/shm|unable to (?:write to|mmap|allocate|open) (?:file|shared memory)[^<]*<[^<]*torch_", "storage", "/dev/shm is full", "df -h /dev/shm", "docker run --shm-size=16g or --ipc=host; fewer data loader workers", retry="elsewhere", literal=("/dev/shm", "torch_"), follows=("nccl-shm-full",),
        sample=("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "RuntimeError: unable to write to file </torch_4711_1: No space left on device (28)>"), near="tmpfs /dev/shm tmpfs rw 0 0", source="Linux; torch"),
    _symptom("worker-killed", r"DataLoader worker \(pid(?:\(s\))? ?(?P<pid>[\d, ]+)\) (?:is killed by signal: (?:Killed|Terminated|Aborted|Segmentation fault)|exited unexpectedly)", "memory", "a data loader worker died (process {pid}); SIGKILL is usually the OOM killer", "dmesg -T | grep -i 'killed process': names the process if it was the OOM killer", "num_workers=0 shows an exception of the worker itself", literal="DataLoader worker (pid", follows=(*_OUT_OF_MEMORY, "worker-bus-error", "shm-full"),
        sample=("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly"), near="DataLoader worker (pid 4711) started", source="torch 1.10 to 2.13"),
    _root("disk-full", r"No space left on device|Disk quota exceeded|has no inodes left|the disk of (?P<path>\S+) is full", "storage", "a disk is full, or a quota is used up", "df -h; df -i: on the node, of the folder in the line", "quota -s", "orch gc --dry-run: lists the old runs that orch gc removes", literal=("No space left on device", "Disk quota exceeded", "has no inodes left", "the disk of"),
        follows=("nccl-shm-full", "shm-full"), sample=("OSError: [Errno 28] No space left on device: 'checkpoint.pt'", "OSError: [Errno 122] Disk quota exceeded", "the disk of /data is full (0 of 100 GB free)"), near="100 GB of space left on device /dev/sda1", source="Linux; orch"),
    _root("file-system-error", r"\[Errno (?:30|116|5)\] (?P<reason>Read-only file system|Stale file handle|Input/output error)", "storage", "a file system cannot be used: {reason}", "mount; dmesg -T | tail: on the node (orch ssh {node}), of the folder in the line", "touch FOLDER/x: fails until the file system is mounted or repaired", literal=("Read-only file system", "Stale file handle", "Input/output error"), retry="elsewhere",
        sample=("OSError: [Errno 30] Read-only file system: '/data/out/step_10'", "OSError: [Errno 116] Stale file handle", "OSError: [Errno 5] Input/output error: '/data/tokens.bin'"), near="the Read-only file system /usr is mounted", source="Python; Linux"),
    _root("file-not-found", rf"FileNotFoundError: .*No such file or directory: b?(?P<path>{_PATH})", "config", "the file {path} does not exist on the node", "ls -l {path}: run it on the node (orch ssh {node})", "copy it to every node, or to a folder that all nodes share", literal="FileNotFoundError:",
        sample="FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", near="FileNotFoundError was handled", source="Python"),
    _root("module-not-found", r"(?:ModuleNotFoundError|ImportError): No module named (?P<module>\S+)", "config", "the Python of the node has no module {module}", "python -m pip install PACKAGE, with the Python of the ranks", "set python: in the inventory to the Python that has it: orch env --explain shows it", literal="No module named",
        sample="ModuleNotFoundError: No module named 'transformers'", near="module named transformers loaded", source="Python"),
    _root("memory-error", r"(?:^|[\]:>] +)MemoryError\b|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|OSError: \[Errno 12\] Cannot allocate memory", "memory", "the program got no more memory: that of the node is used up, or a limit of the process or container was reached", "free -h; ulimit -v; cat /sys/fs/cgroup/memory.max: show memory and limits; run them on the node (orch ssh {node})", "a smaller batch, fewer data loader workers, or fewer ranks per node", literal=("MemoryError", "DefaultCPUAllocator: ", "Cannot allocate memory"),
        sample=("MemoryError", "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 274877906944 bytes. Error code 12 (Cannot allocate memory)", "OSError: [Errno 12] Cannot allocate memory"), near="MemoryErrors are handled", source="Python; torch 2.13, run here"),
    _root("not-a-number", r"[Ll]oss (?:is|became) (?:nan|NaN|inf)|FloatingPointError: .*|(?:non-finite|NaN or Inf) (?:loss|gradient|found in)|Detected (?:nan|NaN)", "numbers", "the loss or a gradient is not a finite number", "lower the learning rate, clip gradients, use bf16 instead of fp16", "torch.autograd.set_detect_anomaly(True): names the operation",
        literal=("oss is nan", "oss is NaN", "oss became nan", "oss became NaN", "oss is inf", "oss became inf", "FloatingPointError: ", "non-finite loss", "non-finite gradient", "non-finite found in", "NaN or Inf ", "Detected nan", "Detected NaN"), sample=("ValueError: loss is nan at step 300", "FloatingPointError: non-finite gradient norm"), near="loss is 2.31", source="programs"),
    _consequence("connection-lost", r"ConnectionResetError|BrokenPipeError|ConnectionAbortedError|Broken pipe", "network", "the other side of a connection has ended", _FIRST, literal=("ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError", "Broken pipe"),
        sample=("ConnectionResetError: [Errno 104] Connection reset by peer", "BrokenPipeError: [Errno 32] Broken pipe"), near="the pipe is open", source="Python"),
    _error("python-error", r"(?:^|[\]:>] +)(?P<error>(?:[a-zA-Z_]\w*\.)*(?P<type>[A-Z]\w*(?:Error|Exception))(?:: .*)?)$", "code", "the program raised {error}", "look at the traceback above this line in the log of that rank",
        literal=("Error", "Exception"), sample=("KeyError: 'input_ids'", "[rank3]: torch.SomeError: text", "AssertionError"), near="No Errors were found", source="Python"),
    signature(Role.UNKNOWN, "error-text", r"(?:^|[\s\[:])(?:ERROR|FATAL|[Ff]atal|[Ee]rror|panic)(?: error)?(?:[:\]]| -)", "code", "a line that reports an error", literal=("ERROR", "FATAL", "atal", "rror", "panic"), sample=("[ERROR] cannot open the tokenizer", "fatal error: not enough threads"), near="validation error 0.03", source="programs"),
)  # fmt: skip
