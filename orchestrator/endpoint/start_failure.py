"""The cause why a node's Python did not start, from its output and from a look at the file."""

from __future__ import annotations

from orchestrator.endpoint.container import container_failure
from orchestrator.errors import NodeError
from orchestrator.transports.base import ChannelClosed, ChannelReader, NoMarker, Transport
from orchestrator.transports.container import ContainerTransport

SHOWN_LINES = 3
LOOK_S = 10.0
_ANSWER = b"orch-python-"
BELOW = "below "
# In the login shell's environment, as the program itself. No ! and no single quote, which some login shells change in quotes.
_LOOK = (
    'case $1 in "~/"*) p=$HOME/${1#"~/"};; */*) p=$1;; *) p=$(command -v "$1");; esac; '
    "for link in 1 2 3 4 5 6 7 8; do "
    'if [ -L "$p" ]; then to=$(readlink "$p"); case $to in /*) p=$to;; *) p=${p%/*}/$to;; esac; fi; done; '
    'case $p in /*) ;; *) p=;; esac; folder=$p; until [ -d "${folder:-/}" ]; do folder=${folder%/*}; done; '
    'if [ -x "$p" ]; then echo orch-python-runs; elif [ -e "$p" ]; then echo orch-python-exists; '
    'elif [ -x "${folder:-/}" ]; then echo orch-python-absent; else echo "orch-python-below $folder"; fi'
)
_NOT_RUN = (126, 127)  # the exit statuses of a shell that could not run a program
# In the BOOTSTRAP of program.py; a shell that reads it names what it cannot run.
_CODE = ("sys.path[:]", "sys.stdout.write")


def start_failure(transport: Transport, python: str, closed: ChannelClosed, printed: str) -> NodeError:
    """
    The error for a node where a program ended before it reported the version of Python.

    Args:
        printed: the beginning of the standard output.
    """
    if isinstance(transport, ContainerTransport) and (failure := container_failure(transport, closed.stderr)):
        return failure
    node, lines = transport.node, (closed.stderr.strip() or printed).splitlines()
    words = "\n    ".join(line.strip() for line in lines[-SHOWN_LINES:]) or "it printed nothing"
    hint = f"see what the node prints for {transport.command_to_try([python, '--version'])}"
    if closed.exit_status in _NOT_RUN:
        found = _look(transport, python)
        faults = {"absent": f"{python} not found", "exists": f"{python} cannot be run"}
        if found.startswith(BELOW):
            faults[found] = f"{python} is in {found.removeprefix(BELOW)}, which this user may not enter"
        if found in faults:
            return NodeError(node, f"no Python: {faults[found]}", hint=python_hint(transport))
    if "invalid literal for int()" in closed.stderr:  # the first line of the program, read by the LOADER of program.py
        reason = (
            f"{python} received only a part of the program that orch sends: something before it read standard input, "
            "such as a start-up file of the login shell"
        )
        return NodeError(node, reason, hint="let it return at once without a terminal: [ -t 0 ] || return")
    if any(text in closed.stderr for text in _CODE):
        reason = (
            f"a shell read the program that orch sends to {python}: something before it started that shell, "
            "such as a start-up file of the login shell"
        )
        return NodeError(node, reason, hint="let it do so on a terminal only: [ -t 0 ] && exec zsh")
    return NodeError(node, f"{python} did not start, exit status {closed.exit_status}: {words}", hint=hint)


def python_hint(transport: Transport) -> str:
    """The next step where no Python of a sufficient version starts."""
    location = f"in the {transport.container}" if isinstance(transport, ContainerTransport) else "on that node"
    return f"set python: in the inventory to a Python of 3.8 or newer {location}"


def _look(transport: Transport, python: str) -> str:
    """
    Return whether the file is `absent`, `exists` or `runs`, by another program on the node; empty if that fails, too.

    BELOW with a folder that may not be entered, if the file, or what it links to, would be in there.
    """
    try:
        channel = transport.open(["sh", "-c", _LOOK, "sh", python])
        answer = ChannelReader(channel).skip_to(_ANSWER, limit=1 << 16, timeout_s=LOOK_S)
        channel.close()
    except (ChannelClosed, NodeError, NoMarker, TimeoutError):
        return ""
    return answer.decode("ascii", "replace").strip()
