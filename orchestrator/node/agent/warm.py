"""
The warm parent of a node's ranks, on the agent's side (trainer/runtime/warm.py is the other): it is started, checked and forked.

It is an ordinary child of the agent with the run's variables in its environment block, which the ranks that it forks keep: so they are
found and ended as ranks that are started by exec. It ends before the ranks run, which makes the agent their parent.
"""

from __future__ import annotations

import array
import os

from orchestrator.node.agent.environment import RECORD_NAMES, node_environment, rank_variables
from orchestrator.node.agent.program import rank_setup
from orchestrator.node.run.ownership import OWNER_VARIABLES
from orchestrator.node.system.fast_stdlib import Socket, dumps, loads, signal, socket
from orchestrator.node.system.processes import Inherited, send, signal_descendants
from orchestrator.node.system.spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from orchestrator.node.run.job import Job

VARIABLE = b"ORCH_WARM"
SIZE_BYTES = 8
FORK_S = 10.0  # a fork takes milliseconds; a process that is stopped does not answer
# Libraries read them at their import, to place threads on the CPUs that the process has then.
PLACEMENT = (b"OMP_PROC_BIND", b"OMP_PLACES", b"GOMP_CPU_AFFINITY", b"KMP_AFFINITY")


class NoFork(Exception):
    """The ranks cannot be forked; the message is the reason."""


def late_names(job: Job, rendezvous: str, folder: str) -> set[bytes]:
    """The variables that a rank gets after the fork: those of the launch, but not the ones by which its processes are found."""
    names = {*node_environment(job, rendezvous), *rank_variables(job, folder)[0], *RECORD_NAMES, b"PWD"}
    return names.difference(map(os.fsencode, OWNER_VARIABLES))


class WarmParent:
    """A process that has imported the program's modules, and what it was started with."""

    def __init__(
        self, command: Sequence[str], cwd: str, environment: Mapping[bytes, bytes], late: AbstractSet[bytes]
    ) -> None:
        """Prepare to start it with the variables of a rank's environment that are not in `late`, see late_names."""
        self.command, self.cwd, self.late = command, cwd, late
        self.environment = {name: value for name, value in environment.items() if name not in late}
        self.link: Socket
        self.pid = 0

    def start(self, inherited: Inherited, log: int) -> None:
        """Start it; what its modules print goes to `log`. OSError if it cannot be started."""
        self.link, theirs = socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003  positional only
            environment = {**self.environment, VARIABLE: b"%d" % theirs.fileno()}
            setup = rank_setup(inherited, self.cwd)
            self.pid = spawn(self.command, environment, (log, log), setup, inherited=[theirs.fileno()])

    def await_imports(self) -> None:
        """Wait until it can be forked; NoFork if it cannot."""
        reason = self._answer().get("reason")
        if reason:
            raise NoFork(f"the process to be forked is not used: {reason}")

    def check(
        self, command: Sequence[str], cwd: str, environment: Mapping[bytes, bytes], cpus: Sequence[set[int]]
    ) -> None:
        """Raise NoFork unless a rank with this command and environment would have started as this process has."""
        if list(command) != list(self.command) or cwd != self.cwd:
            raise NoFork("the command or its folder has changed")
        names = sorted(
            name
            for name in {*environment, *self.environment} - self.late
            if environment.get(name) != self.environment.get(name)
        )
        if names:
            raise NoFork(f"{os.fsdecode(names[0])} has changed")
        if cpus and (b"OMP_NUM_THREADS" not in environment or any(name in environment for name in PLACEMENT)):
            raise NoFork("they are bound to CPUs, but OMP_NUM_THREADS is not set, or a variable places their threads")

    def fork_ranks(
        self,
        environments: Iterable[Mapping[bytes, bytes]],
        outputs: Iterable[tuple[int, int]],
        cpus: Sequence[set[int]],
    ) -> list[int]:
        """Fork a rank for each environment; return their pids in that order. NoFork if one cannot be forked: then none is left."""
        pids: list[int] = []
        waiting, permission = os.pipe()
        self.link.settimeout(FORK_S)
        try:
            for number, (environment, output) in enumerate(zip(environments, outputs)):
                request = {
                    "agent_pid": os.getpid(),
                    "cwd": self.cwd,
                    "cpus": sorted(cpus[number]) if cpus else [],
                    "env": {name.decode("latin-1"): value.decode("latin-1") for name, value in environment.items()},
                }
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (*output, waiting)))]
                content = dumps(request).encode()
                self.link.sendmsg([len(content).to_bytes(SIZE_BYTES, "big")], rights)
                self.link.sendall(content)
                pids.append(int(self._answer()["pid"]))
        except (OSError, KeyError, NoFork) as error:
            self.close()
            signal_descendants(signal.SIGKILL, set())  # the forked ones, which wait; also one whose pid did not arrive
            raise NoFork(f"the process to be forked has failed: {error!r}") from error
        finally:
            self.close()
            os.close(waiting)
            os.close(permission)
        return pids

    def close(self) -> None:
        """End the process: the ranks that it has forked become the agent's children."""
        if self.pid:
            self.link.close()
            send(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def _answer(self) -> dict[str, str]:
        """The next line from the process; NoFork if it has ended."""
        line = b""
        while not line.endswith(b"\n"):
            data = self.link.recv(1 << 12)
            if not data:
                raise NoFork("the process to be forked has ended: see the agent's log of the attempt before")
            line += data
        answer = loads(line)
        assert isinstance(answer, dict), "by trainer/runtime/warm.py"
        return answer


def socketpair() -> tuple[Socket, Socket]:
    """A pair as from the socket module, which is slow to import."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Socket(fileno=first.detach()), Socket(fileno=second.detach())
