"""Warnings about a script before it starts: another number of ranks on a node than the launch has, and questions to a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.lint.rank_counts import EXPECTED, mpi_starts, rank_remarks, slurm_starts
from orchestrator.lint.script import PROMPTS, prompts
from orchestrator.usecases.checks.lint import read_text, sourced_texts

if TYPE_CHECKING:
    from orchestrator.plan.plan import LaunchPlan

_SHELLS = ("sh", "bash", "dash", "zsh")


def script_warnings(plan: LaunchPlan, folder: Path) -> list[str]:
    """The warnings about the program of a launch that is typed in this folder: a line with a launcher, or a shell script with one."""
    words, counts = plan.program.args, plan.rank_counts()
    script = _script(words, folder)
    text = shlex.join(words) if script is None else _text(folder / script)
    nodes = plan.nodes[: plan.node_count]
    numbers = {"NNODES": str(len(nodes))}
    given: dict[str, Mapping[str, str]] = {
        node.name: {**node.defaults, **node.env, **numbers, "NODE_RANK": str(index), EXPECTED: str(counts(node.name))}
        for index, node in enumerate(nodes)
    }
    if text is None:
        return []
    if script is None:
        return rank_remarks(text, "the command", given, sourced_texts(folder / "command"))
    arguments = words[words.index(script) + 1 :]
    remarks = rank_remarks(text, script, given, sourced_texts(folder / script), arguments=arguments)
    remarks += [f"{script}:{line} {PROMPTS}" for line in prompts(text, script)[:1]]
    remarks += [
        f"{script}:{line} calls {name}, which has no allocation within a run and waits for a new one: omit it where it starts the ranks, as orch "
        "starts the script; a batch script for sbatch itself is described in docs/coming-from.md"
        for name, line in slurm_starts(text, script)[-1:]
    ]
    if plan.node_count > 1 and not plan.program.until_head:
        remarks += [
            f"{script}:{line} starts ranks by {launcher} on each of {plan.node_count} nodes, which are {plan.node_count} trainings unless it "
            "runs on the first node alone: torchrun joins them by the variables of orch, and docs/programs.md has a script for "
            f"{launcher} with --until-head"
            for launcher, line in mpi_starts(text, script)[:1]
        ]
    return remarks


def _script(words: tuple[str, ...], folder: Path) -> str | None:
    """The file that a shell runs; None if the words are no script of this folder."""
    name = next((word for word in words[1:] if not word.startswith("-")), "") if _is_shell(words[0]) else words[0]
    if not name or "-c" in words[: words.index(name)] or not (folder / name).is_file():
        return None
    return name if _is_shell(words[0]) or name.endswith(".sh") or _has_shell_line(folder / name) else None


def _is_shell(word: str) -> bool:
    return word.rpartition("/")[2] in _SHELLS


def _has_shell_line(file: Path) -> bool:
    text = _text(file) or ""
    first = text.partition("\n")[0]
    return first.startswith("#!") and any(_is_shell(word) for word in first[2:].split())


def _text(file: Path) -> str | None:
    """The text of the file; None if it cannot be read, or is a program."""
    try:
        return read_text(file)
    except UsageError:
        return None
