"""Failures of a process: signals, exit codes, limits, arguments, modules, syntax."""

from __future__ import annotations

from functools import partial

from bench.failures.provoked import HEAD, Provoked, on_rank

_CRASH = "import ctypes\nctypes.string_at(0)"
_AS_USER = "import resource\nos.setgid(65534)\nos.setuid(65534)\n"
"""Root has neither a limit of threads nor files that it may not write."""


def _signal(name: str, signature: str, kind: str, rank: int = 1) -> Provoked:
    return Provoked(name, on_rank(rank, f"os.kill(os.getpid(), signal.{name})"), [signature], kind, [rank])


def _of_rank(
    rank: int, name: str, lines: str, signature: str | None, kind: str, fixed: tuple[str, str] | None = None
) -> Provoked:
    """A failure of one rank of two, or of the fourth of four."""
    return Provoked(name, on_rank(rank, lines), [signature], kind, [rank], fixed, ranks_per_node=2 if rank > 1 else 1)


_of_rank_1 = partial(_of_rank, 1)

PROCESSES = (
    _signal("SIGKILL", "killed", "unknown"),
    _signal("SIGTERM", "terminated-first", "preemption"),
    _signal("SIGINT", "interrupted", "preemption"),
    _signal("SIGHUP", "interrupted", "preemption"),
    _signal("SIGABRT", "aborted", "code"),
    _signal("SIGFPE", "arithmetic-error", "code"),
    _signal("SIGILL", "illegal-instruction", "config"),
    _of_rank_1("SIGSEGV", _CRASH, "segmentation-fault", "code"),
    _of_rank(0, "SIGSEGV of rank 0", _CRASH, "segmentation-fault", "code"),
    _of_rank(3, "SIGSEGV of the last rank", _CRASH, "segmentation-fault", "code"),
    _of_rank_1("exit code 3 without a text", "sys.exit(3)", None, "code"),
    _of_rank_1("program's own error", "{}['input_ids']", "python-error", "code"),
    _of_rank(3, "own error of the last rank", "raise RuntimeError('the vocabulary has no end of text')", "python-error", "code"),
    _of_rank_1(
        "limit of memory",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nbytearray(1 << 30)",
        "memory-error",
        "memory",
        ("1 << 28, 1 << 28", "1 << 33, 1 << 33"),
    ),
    _of_rank_1(
        "limit of open files",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nfiles = [open('/dev/null') for _ in range(100)]",
        "too-many-files",
        "config",
        ("64, 64", "1024, 1024"),
    ),
    _of_rank_1(
        "limit of threads",
        f"{_AS_USER}import threading\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\nthreading.Thread(target=print).start()",
        "too-many-processes",
        "config",
        ("(1, 1)", "(1000, 1000)"),
    ),
    _of_rank_1(
        "missing module",
        "import a_module_that_is_missing",
        "module-not-found",
        "config",
        ("import a_module", "open('a_module_that_is_missing.py', 'w').close()\n    import a_module"),
    ),
    Provoked("torch_gcu is not installed", f"{HEAD}import torch_gcu\n", ["module-not-found"], "config", None),
    _of_rank_1(
        "missing name of a module",
        "from json import loads_all",
        "import-name",
        "config",
        ("loads_all", "loads"),
    ),
    Provoked(
        "syntax of a newer Python",
        f"{HEAD}type Batch = list\n",
        ["syntax-error"],
        "code",
        None,
        ("type Batch", "Batch"),
    ),
    _of_rank_1(
        "variable that is not set",
        "data = os.environ['DATA_DIR_OF_THE_SITE']",
        "variable-not-set",
        "config",
        ("data =", "os.environ['DATA_DIR_OF_THE_SITE'] = '/data'\n    data ="),
    ),
    Provoked(
        "unknown argument",
        f"{HEAD}import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\nparser.parse_args(['--epoch-count', '3'])\n",
        ["wrong-arguments"],
        "config",
        None,
        ("--epoch-count", "--epochs"),
    ),
    Provoked(
        "missing argument",
        f"{HEAD}import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\nparser.parse_args([])\n",
        ["wrong-arguments"],
        "config",
        None,
        ("parse_args([])", "parse_args(['--data', '/data'])"),
    ),
    Provoked("program that does not exist", "", ["command-not-found"], "config", None, command=("--bare", "--", "bash", "-c", "trainer-of-the-site")),
    _of_rank_1(
        "program that may not be executed",
        "open('tool.sh', 'w').write('true')\nos.execvp('sh', ['sh', '-c', './tool.sh'])",
        "not-executable",
        "config",
        ("os.execvp", "os.chmod('tool.sh', 0o755)\n    os.execvp"),
    ),
    _of_rank_1("command of the program that fails", "import subprocess\nsubprocess.run(['sh', '-c', 'exit 2'], check=True)", "command-failed", "code"),
    _of_rank_1("endless recursion", "def f(n): return f(n + 1)\nf(0)", "python-error", "code"),
    _of_rank_1(
        "error in a thread, for which the rank waits",
        "import queue, threading\nsaved = queue.Queue()\ndef save(): {}['optimizer']\nthreading.Thread(target=save).start()\n"
        "try: saved.get(timeout=5)\nexcept queue.Empty: sys.exit(1)",
        "python-error",
        "code",
    ),
)  # fmt: skip
