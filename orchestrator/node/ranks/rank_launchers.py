"""Recognise programs that start ranks themselves, such as torchrun, by their command line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TRL = ("sft", "dpo", "kto", "grpo", "rloo", "reward", "gkd", "online_dpo", "orpo", "cpo")
# Name -> the subcommands that start ranks; empty if there are no subcommands.
EXECUTABLES = {
    "torchrun": (),
    "accelerate": ("launch",),
    "accelerate-launch": (),
    "deepspeed": (),
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "swift": ("pt", "sft", "rlhf"),
    "trl": TRL,
    "fabric": ("run",),
    "axolotl": ("train",),
    "tune": ("run",),
    "composer": (),
    "ray": ("start",),
    "mpirun": (),
    "mpiexec": (),
    "mpiexec.hydra": (),
    "orterun": (),
    "prterun": (),
    "horovodrun": (),
    "srun": (),
    "colossalai": ("run",),
    "mim": ("train",),
}
MODULES = {
    "torch.distributed.run": (),
    "torch.distributed.launch": (),
    "accelerate.commands.launch": (),
    "accelerate.commands.accelerate_cli": ("launch",),
    "deepspeed.launcher.runner": (),
    "llamafactory.cli": ("train",),
    "swift.cli.main": ("pt", "sft", "rlhf"),
}
# These start torchrun, if they start ranks at all: with a single device they are a rank themselves.
THROUGH_TORCHRUN = ("llamafactory-cli", "lmf", "swift", "llamafactory.cli", "swift.cli.main")
# These start the ranks of all nodes from one node, where they read a list of the nodes.
FROM_ONE_NODE = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun")
# These start what orch starts itself, once per rank; they do not work within a rank.
NOT_NEEDED = ("srun", "colossalai", "mim")
_ACCELERATE = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE)) "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
)
# For launchers that read no variables: the options that join the ranks of all nodes in one world.
OPTIONS = {
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "trl": _ACCELERATE,
    "deepspeed": "--hostfile $ORCH_HOSTFILE --no_ssh --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT",
    "fabric": "--num-nodes $NNODES --node-rank $NODE_RANK --devices $NPROC_PER_NODE --main-address $MASTER_ADDR --main-port $MASTER_PORT",
    "composer": "-n $NPROC_PER_NODE --world_size $((NNODES * NPROC_PER_NODE))",
    "tune": "--nnodes $NNODES --nproc_per_node $NPROC_PER_NODE",
    "axolotl": "--launcher torchrun",
}
OPTIONS["deepspeed.launcher.runner"] = OPTIONS["deepspeed"]
# One of these options decides which kind of launch accelerate makes; without a configuration file it needs one of them.
_KINDS = [
    "--multi_gpu",
    "--cpu",
    "--tpu",
    "--use_deepspeed",
    "--use_fsdp",
    "--use_megatron_lm",
    "--config_file",
    "--accelerate_config",
]
SEPARATE = "ORCH_SEPARATE"  # the variable by which the user declares, with 1, that ranks or nodes train separately
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # Python's options that are followed by a value
SWITCHES = ("--standalone", "--multi_gpu", "--no_ssh")
HOST_LISTS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f", "--host", "-host", "-H")
NODE_COUNTS = ("--nnodes", "--num_machines", "--num_nodes")
MASTERS = ("--master_addr", "--main_process_ip", "--main_address", "--rdzv_endpoint")
NODE_RANKS = ("--node_rank", "--machine_rank")
# With the address go its port and the kind of rendezvous: c10d without an endpoint looks for rank 0 on each node itself.
_WITH_MASTER = ("--master_port", "--main_process_port", "--main_port", "--rdzv_backend", "--rdzv_id", "--rdzv_conf")


class Launcher:
    """A launcher that a command line starts: `key` is that of OPTIONS, `words` the number of words up to its subcommand."""

    def __init__(self, name: str, key: str, words: int) -> None:
        self.name, self.key, self.words = name, key, words


def find_launcher(argv: Sequence[str]) -> Launcher | None:
    """
    The launcher that a command line starts, named as `torchrun` or `accelerate launch`; None if it starts none.

    The first word may be a Python interpreter, also that of a script with `#!`, or `-m`.
    """
    index = 0
    if argv and is_python(argv[0]):
        index = 1
        while index < len(argv) and argv[index].startswith("-") and argv[index] != "-m":
            if argv[index] == "-c":
                return None
            index += 2 if argv[index] in WITH_VALUE else 1
    is_module = list(argv[index : index + 1]) == ["-m"]
    index += is_module
    key = argv[index] if index < len(argv) else ""
    known, key = (MODULES, key) if is_module else (EXECUTABLES, os.path.basename(key))
    if key not in known:
        return None
    if not known[key]:
        return Launcher(f"python -m {key}" if is_module else key, key, index + 1)
    subcommand = argv[index + 1] if index + 1 < len(argv) else ""
    return Launcher(f"{key} {subcommand}", key, index + 2) if subcommand in known[key] else None


def launcher_of(argv: Sequence[str]) -> str | None:
    """The name of the launcher that a command line starts; None if it starts none."""
    launcher = find_launcher(argv)
    return launcher.name if launcher is not None else None


def is_python(word: str) -> bool:
    """Return whether the word is the name or path of a Python interpreter: python, python3, python3.11."""
    name = os.path.basename(word)
    return name.startswith("python") and not name[len("python") :].strip("0123456789.")


def option_of(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of these options on a command line, written with _ or -; None if none is there."""
    for word, following in zip(argv, [*argv[1:], ""]):
        name, equals, value = word.partition("=")
        if underscored(name) in names:
            return value if equals else following
    return None


def node_count_of(argv: Sequence[str]) -> str | None:
    """The number of nodes that the command line gives a launcher; None if it gives none."""
    return option_of(argv, NODE_COUNTS)


def underscored(option: str) -> str:
    """The name of an option with underscores; most launchers accept both."""
    return "--" + option[2:].replace("-", "_") if option.startswith("--") else option


def is_own_host(address: str | None) -> bool:
    """Return whether an address, also with a port, means on every host that host itself."""
    host = (address or "").lower()
    return host in ("::1", "localhost", "[::1]") or host.startswith(("127.", "localhost:", "[::1]:"))


def lone_option(argv: Sequence[str]) -> str:
    """The option by which a launcher, started on several nodes, leaves the other nodes out; empty if there is none."""
    if any(underscored(word) == "--standalone" for word in argv):
        return "--standalone"
    if node_count_of(argv) == "1":
        return (
            next(word for word in argv if underscored(word.partition("=")[0]) in NODE_COUNTS).partition("=")[0] + " 1"
        )
    return ""


def fixed_node_rank(argv: Sequence[str]) -> str:
    """The option that gives a launcher the number of one node, the same on all nodes that start it; empty if there is none."""
    number = option_of(argv, NODE_RANKS) or ""
    return (
        f"{next(word for word in argv if underscored(word.partition('=')[0]) in NODE_RANKS).partition('=')[0]} {number}"
        if number.isdecimal()
        else ""
    )


def per_node_command(command: str, words: Sequence[str]) -> str:
    """The command line that starts the program once per node, in backquotes; `…` stands for the other options."""
    launcher = find_launcher(words)
    if launcher is None:
        return f"`orch {command} … --per-node -- {_quoted(words)}`"
    if launcher.key in NOT_NEEDED:
        starts = [index for index, word in enumerate(words) if is_python(word) or word.endswith(".py")]
        is_known = starts and launcher.key != "mim"  # its first file is a configuration
        return f"`orch {command} … -- {_quoted(words[starts[0] :]) if is_known else 'PROGRAM …'}`"
    if launcher.key in FROM_ONE_NODE:
        hosts = "" if option_of(words, HOST_LISTS) else "--hostfile $ORCH_HOSTFILE "
        line = f"[ $NODE_RANK = 0 ] || exec sleep infinity; {words[0]} {hosts}{_quoted(words[1:])}"
        return f"`orch {command} … --per-node --until-head -- bash -c {_quoted([line])}`"
    options = OPTIONS.get(launcher.key, "")
    line = _with_options(words, launcher.words, options)
    if options and words[0] == "-m":  # orch starts the node's Python, a shell does not
        line = f"python3 {line}"
    return f"`orch {command} … --per-node -- {f'bash -c {_quoted([line])}' if options else line}`"


def _with_options(words: Sequence[str], count: int, options: str) -> str:
    """The line of shell in which the launcher, its first `count` words, has these options, and none that says otherwise."""
    if options == _ACCELERATE and not any(underscored(word.partition("=")[0]) in _KINDS for word in words):
        options = f"--multi_gpu {options}"
    replaced = [*options.split(), *NODE_COUNTS, *NODE_RANKS, *MASTERS, *_WITH_MASTER, "--standalone", "--num_gpus"]
    rest: list[str] = []
    index = count
    while index < len(words) and not words[index].endswith(".py"):
        name, equals, _ = words[index].partition("=")
        is_replaced = name.startswith("-") and underscored(name) in map(underscored, replaced)
        rest += [] if is_replaced else [words[index]]
        index += 2 if is_replaced and not equals and underscored(name) not in SWITCHES else 1
    parts = [_quoted(words[:count]), options, _quoted([*rest, *words[index:]])]
    return " ".join(filter(None, parts))


def _quoted(words: Sequence[str]) -> str:
    import shlex  # slow to import, and needed only for a message

    return " ".join(map(shlex.quote, words))
