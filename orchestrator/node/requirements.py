"""
Test the paths, modules and commands that a user's training needs on this node. Run as a program: `python -`, with the request in the last line.

It runs in the Python of the ranks with the environment of the inventory, and each module and command in another process: an import may
crash or hang.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Sequence, Tuple, TypedDict

    class Request(TypedDict):
        """
        Paths, modules and lines of shell; the variables of the ranks; the lines of `setup`; the seconds for each module and command.

        `python` is that of the inventory: a name without a path is looked for after the lines of `setup`, as for the ranks.
        """

        paths: List[str]
        imports: List[str]
        commands: List[str]
        env: Dict[str, str]
        setup: List[str]
        python: str
        each_s: float


MARKER = "orch-requirements-9d3e"  # the output before it comes from elsewhere
_IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"


def problems(request: Request) -> List[Tuple[str, str, str]]:
    """Return kind, name and problem of everything that fails, in the order of the request."""
    environment = {**os.environ, **request["env"]}
    is_of_setup = bool(request["setup"]) and "/" not in request["python"]
    python = request["python"] if is_of_setup else sys.executable
    found = [("path", path, _path_problem(path)) for path in request["paths"]]
    for module in request["imports"]:
        argv = _after_setup(request["setup"], [python, "-c", _IMPORT, module])
        found.append(("import", module, _run(argv, environment, request["each_s"])))
    for line in request["commands"]:
        argv = _after_setup(request["setup"], ["bash", "-c", line])
        found.append(("command", line, _run(argv, environment, request["each_s"])))
    return [entry for entry in found if entry[2]]


def _path_problem(path: str) -> str:
    expanded = os.path.expanduser(path)
    if os.access(expanded, os.R_OK):
        return ""
    return "this user may not read it" if os.path.lexists(expanded) else "it does not exist"


def _after_setup(setup: Sequence[str], argv: List[str]) -> List[str]:
    """The command in the environment of the set-up lines, as node.sh makes it for the ranks."""
    return ["bash", "-lc", "\n".join([*setup, 'exec "$@"']), "bash", *argv] if setup else argv


def _run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            argv,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"it has not ended within {timeout_s:g} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return lines[-1].strip() if lines else ended


def main(request: Request) -> None:
    sys.stdout.write(f"\n{MARKER}\n{json.dumps(problems(request))}\n")
