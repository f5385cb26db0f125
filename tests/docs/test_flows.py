"""
The three flows of docs/how-it-works.md as lists of files, in an order in which they can be read; `pytest -s` prints them.

A flow has the files whose functions make what a later file of it uses, from the command line to the ranks, from a rank to the screen, and from
the exit of a rank to the next attempt. Each line has a file and the functions to read in it. The first one is called or named by a
function of a line before it, or calls one, as a reader of logs does, and one of the two files imports the other. `by WORD` is the word
that names it where neither does, as for a program that another process runs; `by files` is a reader of the files that a line before
it writes on the node.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest

from tests.paths import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef

LAUNCH = """
__main__.py: main
cli/app.py: main run resolve_command load
cli/ssh_launch.py: ssh_launch by cli, launch_over_ssh
usecases/owner/viewer.py: of_launch until_launched
usecases/owner/start.py: early_owner owner_process __init__ main
usecases/owner/owner.py: own_run _run _launched
usecases/launch/plan_launch.py: plan_launch _planned
usecases/launch/request.py: make_request
usecases/inventory.py: load_inventory
code/bundle.py: build
plan/make.py: make_plan
launch/start.py: started _launch connect push_and_resolve resolved
launch/node_check.py: begin_check check_result _judged facts_of
launch/preflight.py: survey
portable/checks/quick.py: check
portable/environment/discovery.py: discover
plan/resolve.py: resolve
launchers/__init__.py: launcher_for direct_launcher
launchers/direct.py: connect by launcher_for, push start _start_agents _start_agent reach
connections/pool.py: reach _open
endpoint/client.py: put_run connect start
endpoint/connection.py: open _start_program
node/endpoint/serve.py: serve by program, answer_all answer
node/endpoint/start.py: start by Starter, _begin
node/endpoint/fork.py: AgentFork start _lead
node/agent/guard.py: lead run_agent run_ranks
node/agent/agent.py: Agent start watch
node/agent/environment.py: rank_environments
"""
LOG_LINE = """
node/agent/agent.py: open_output
node/agent/log_index.py: open record
node/endpoint/reading.py: follow by files, wait look
endpoint/client.py: follow by follow
logs/follow.py: read by follow, _lines live
logs/lines.py: feed in_order
usecases/reports/log_reader.py: follow by live, _write
supervision/link.py: write by write, lines_frame messages
usecases/owner/viewer.py: to_end by messages, _reported
cli/watch.py: show by to_end
cli/console.py: write by write
logs/printable.py: printable
"""
RESTART = """
node/agent/agent.py: on_rank_exit
node/run/events.py: write
node/endpoint/report.py: heartbeat by files, observe_node
endpoint/client.py: heartbeat by heartbeat
supervision/poller.py: _poll_on running
supervision/supervisor.py: run _until_over _judge _finish _restart
supervision/termination.py: end
supervision/restart.py: reason_against begin _begin
verdict/judge.py: judge
node/run/retry.py: retry_may_help
launch/start.py: connect start push_and_resolve
launchers/direct.py: begin_attempt start
"""
BY_FILES = "files"


@dataclass(frozen=True)
class Step:
    """One file of a flow."""

    path: str
    functions: tuple[str, ...]
    by: str | None
    """The word by which the first function is named in a line before this one."""


def _steps(flow: str) -> list[Step]:
    steps = []
    for line in flow.strip().splitlines():
        path, _, words = line.partition(": ")
        by = re.search(r" by (\w+)", words)
        functions = re.sub(r" by \w+,?", "", words).split()
        steps.append(Step(f"orchestrator/{path}", tuple(functions), by[1] if by else None))
    return steps


@cache
def _definitions(path: str) -> dict[str, list[ast.AST]]:
    """The functions, methods and classes of a file by name."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, Function | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    return found


@cache
def _words(step: Step) -> set[str]:
    """The names and the words of the texts in the functions of a step, in small letters: operations of endpoints are constants."""
    words: set[str] = set()
    for function in step.functions:
        for node in (node for found in _definitions(step.path)[function] for node in _without_docstrings(found)):
            if isinstance(node, ast.Name):
                words.add(_word(node.id))
            elif isinstance(node, ast.Attribute):
                words.add(_word(node.attr))
            elif isinstance(node, ast.alias):
                words.add(_word(node.name.rpartition(".")[2]))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(map(_word, re.findall(r"\w+", node.value)))
    return words


def _word(name: str) -> str:
    return name.lower().lstrip("_")


def _without_docstrings(tree: ast.AST) -> list[ast.AST]:
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node for node in ast.walk(tree) if node not in docstrings]


@cache
def _imports(path: str) -> set[str]:
    """The modules that a file imports, at its top or in a function, as paths."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    names = {module.replace(".", "/") for module in modules}
    return {f"{name}.py" for name in names} | {f"{name}/__init__.py" for name in names}


def _is_linked(before: Step, step: Step) -> bool:
    """True if one of two files calls a function of the other, and imports it unless the step names another word."""
    functions = set(map(_word, before.functions))
    if step.by is not None:
        word = _word(step.by)
        return step.by == BY_FILES or word in _words(before) or (word in functions and word in _words(step))
    calls = _word(step.functions[0]) in _words(before) and step.path in _imports(before.path)
    return calls or (before.path in _imports(step.path) and not functions.isdisjoint(_words(step)))


def _folder(path: str) -> str:
    """The folder of a file; the folders in `node` and `usecases` count each."""
    return path.rpartition("/")[0]


def _crossings(steps: Sequence[Step]) -> list[str]:
    """The files with which the flow returns to a room that it has left."""
    left: set[str] = set()
    found = []
    for before, step in pairwise(steps):
        if _folder(step.path) != _folder(before.path):
            left.add(_folder(before.path))
            if _folder(step.path) in left:
                found.append(step.path)
    return found


@pytest.mark.parametrize("flow", [LAUNCH, LOG_LINE, RESTART], ids=["launch", "log line", "restart"])
def test_each_file_of_a_flow_is_called_by_one_before_it(flow: str) -> None:
    steps = _steps(flow)
    assert len({step.path for step in steps}) == len(steps)
    for step in steps:
        missing = set(step.functions) - _definitions(step.path).keys()
        assert not missing, f"{step.path} has no {missing}"
    for index, step in enumerate(steps[1:], 1):
        is_linked = any(_is_linked(before, step) for before in steps[:index])
        assert is_linked, f"{step.path}: no line before it calls {step.functions[0]}, nor does it call one"


@pytest.mark.parametrize(
    ("flow", "files", "crossings"),
    [(LAUNCH, 28, 1), (LOG_LINE, 12, 1), (RESTART, 12, 1)],
    ids=["launch", "log line", "restart"],
)
def test_flow_is_short_and_runs_forward(flow: str, files: int, crossings: int) -> None:
    steps = _steps(flow)
    lines = [f"{step.path}: {', '.join(step.functions)}" for step in steps]
    sys.stdout.write("\n".join([*lines, f"{len(steps)} files, {len(_crossings(steps))} of them back in a room\n"]))
    assert len(steps) <= files
    assert len(_crossings(steps)) <= crossings, _crossings(steps)


def _passed_functions() -> set[str]:
    """The parameters for functions without a result, in the rooms that launch and supervise."""
    found = set()
    for folder in ("connections", "launch", "launchers", "supervision"):
        for path in (ROOT / "orchestrator" / folder).rglob("*.py"):
            functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, Function)]
            arguments = [a for function in functions for a in (*function.args.args, *function.args.kwonlyargs)]
            kinds = {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation is not None}
            found |= {name for name, kind in kinds.items() if re.search(r"Callable\[.*\], None\]|^On[A-Z]", kind)}
    return found


def test_calls_upwards_are_those_of_the_page() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text("utf-8").partition("## Calls upwards")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == _passed_functions()
