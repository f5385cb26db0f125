"""Recognise programs that start ranks themselves, such as torchrun, by their command line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Name -> the subcommands that start ranks; empty if there are no subcommands.
EXECUTABLES = {
    "torchrun": (),
    "accelerate": ("launch",),
    "accelerate-launch": (),
    "deepspeed": (),
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "swift": ("pt", "sft", "rlhf"),
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
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # Python's options that are followed by a value
NODE_COUNTS = ("--nnodes", "--num_machines", "--num-machines")


def launcher_of(argv: Sequence[str]) -> str | None:
    """
    The launcher that a command line starts, as `torchrun` or `accelerate launch`; None if it starts none.

    The first word may be a Python interpreter, also that of a script with `#!`, or `-m`.
    """
    words = list(argv)
    if words and is_python(words[0]):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            if words[0] == "-c":
                return None
            del words[: 2 if words[0] in WITH_VALUE else 1]
    is_module = words[:1] == ["-m"]
    name, *rest = words[1:] if is_module else words or [""]
    known, name = (MODULES, name) if is_module else (EXECUTABLES, os.path.basename(name))
    if name not in known:
        return None
    subcommands = known[name]
    if not subcommands:
        return f"python -m {name}" if is_module else name
    return f"{name} {rest[0]}" if rest and rest[0] in subcommands else None


def is_python(word: str) -> bool:
    """Return whether the word is the name or path of a Python interpreter: python, python3, python3.11."""
    name = os.path.basename(word)
    return name.startswith("python") and not name[len("python") :].strip("0123456789.")


def node_count_of(argv: Sequence[str]) -> str | None:
    """The number of nodes that the command line gives a launcher; None if it gives none."""
    for word, following in zip(argv, [*argv[1:], ""]):
        name, equals, value = word.partition("=")
        if name in NODE_COUNTS:
            return value if equals else following
    return None


def per_node_command(command: str, words: Sequence[str]) -> str:
    """The command line that starts the program once per node, in backquotes; `…` stands for the other options."""
    import shlex  # noqa: PLC0415  slow to import, and needed only for a message

    return f"`orch {command} … --per-node -- {' '.join(map(shlex.quote, words))}`"
