"""
Start an agent as its node.sh would, in a fork of this program, whose interpreter runs and has imported half of the modules.

What node.sh exports comes with the request. The modules of the agent that are not imported yet come from the bundle, which has byte
code for this Python.
"""

from __future__ import annotations

import os
import sys

from orchestrator.node.system.byte_code import write_if_safe
from orchestrator.node.system.files import absolute_path, expanded_argument
from orchestrator.node.system.spawn import find_program, redirect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Sequence

    from orchestrator.node.agent.guard import AgentOptions
    from orchestrator.node.protocol.agents import AgentStart


class AgentFork:
    """An agent that may be forked; `exports` are the variables that node.sh sets."""

    def __init__(self, values: AgentStart, folder: str) -> None:
        self.values, self.folder = values, folder
        self.exports = exports(values, folder)

    def is_possible(self) -> bool:
        """
        Return whether the Python that node.sh starts is the one that runs this program.

        It may be another one by the inventory's PATH. A script in its place may prepare something for the agent: it is run.
        """
        path = os.fsdecode(self.exports.get(b"PATH", os.environb.get(b"PATH", b"")))
        python = find_program(expanded_argument(self.values["python"]), path)
        return python is not None and os.path.normpath(python) == os.path.normpath(sys.executable)

    def start(self, log: int, umask: int) -> int:
        """Fork the guard, which forks the agent; return the guard's pid. It has no open file of this program but the log."""
        return self.fork(log, lambda: self._lead(umask))

    def fork(self, log: int, run: Callable[[], int], keep: Sequence[int] = ()) -> int:
        """Run a function in a fork in a new session, with no open file of this program but the log and `keep`; return its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            redirect(log, log, keep=keep)
            os.chdir(self.folder)
            sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "Sent"]
            bundle = absolute_path(self.values["bundle"])
            for name, module in sys.modules.items():
                if name.startswith("orchestrator.") and hasattr(module, "__path__"):
                    module.__path__ = [os.path.join(bundle, *name.split("."))]
            write_if_safe(bundle)
            code = run()
        except BaseException:  # noqa: BLE001  nothing returns to the endpoint; as of any program, the error is in its log
            import traceback  # slow to import

            traceback.print_exc()
            sys.stderr.flush()  # os._exit does not; it is buffered in blocks before Python 3.9
        finally:
            os._exit(code)

    def _lead(self, umask: int) -> int:
        from orchestrator.node.agent.guard import lead  # it is in the bundle

        os.environb.update(self.exports)
        return lead(agent_options(self.values), umask)


def agent_options(values: AgentStart) -> AgentOptions:
    from orchestrator.node.agent.guard import AgentOptions

    return AgentOptions(absolute_path(values["job"]), values["node"], values["node_rank"], values["rendezvous"])


def exports(values: AgentStart, folder: str) -> Dict[bytes, bytes]:
    """The variables that node.sh sets, and PWD, which a shell sets. Values are encoded as in node.sh, whatever the locale is."""
    changed = {b"PWD": os.fsencode(os.path.realpath(folder))}
    if values["python_folder"]:
        path = (os.fsencode(expanded_argument(values["python_folder"])), os.environb.get(b"PATH", b""))
        changed[b"PATH"] = b":".join(filter(None, path))
    changed.update(encoded(values["env"]))
    defaults = encoded(values["defaults"])
    changed.update({name: defaults[name] for name in defaults if name not in os.environb and name not in changed})
    return changed


def encoded(variables: Dict[str, str]) -> Dict[bytes, bytes]:
    return {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in variables.items()}
