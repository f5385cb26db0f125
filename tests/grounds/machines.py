"""Machines made of namespaces: a name, an address on a bridge, processes and mounts of their own, on one kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.grounds.components import program
from tests.grounds.keeper import Keeper, Network, descendants, kill_each, network_name
from tests.until import until

SUBNET = "10.77.0"  # namespaces hide it: every ground may have the same
_NOBODY = "02:00:00:00:ff:ff"
_FOR_GOOD = "dev eth0 nud permanent"
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port


class Machine:
    """
    What the controller and the hosts have in common. `pid` is the process that the namespaces live by.

    `switch` is the machine that has the bridge among its namespaces; None: this one.
    """

    def __init__(self, name: str, *, number: int, switch: Machine | None = None) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.pid = 0
        self.mac = f"02:00:00:00:00:{number:02x}"
        self._switch = switch or self
        self._starter = 0
        self._network: Network | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is anything to enter."""
        return self._network is not None and network_name(self.pid) == self._network.name

    def enter(self) -> tuple[str, ...]:
        """Begin of a command line whose rest then runs as root on this machine, in the same process unless it is a host."""
        assert self.is_up, f"{self.name} is down"
        spaces = ("--mount", "--uts", "--net", "--pid")
        return (program("nsenter"), "--target", str(self.pid), *spaces, "--")

    def do(self, *argv: str, lines: Iterable[str] = ()) -> str:
        """Run a command as root on this machine, `lines` on its stdin, and return what it says; it has to succeed."""
        command = [*self.enter(), *argv]
        done = subprocess.run(command, input="\n".join(lines), check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{argv} on {self.name} ended {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def everything(self) -> dict[int, str]:
        """Pid, as the tests see it, -> command name of all that runs here, whoever started it."""
        return self._network.processes() if self._network else {}

    def end_processes(self) -> None:
        """Kill all that runs here but what the machine itself consists of."""

        def end() -> bool:
            own = {self.pid, self._starter}
            return not kill_each({pid: command for pid, command in self.everything().items() if pid not in own})

        until(end, awaited=lambda: f"the processes on {self.name} to end: {self.everything()}")

    def link(self, *, up: bool) -> None:
        """Let the bridge pass on what comes from and goes to this machine, or swallow all of it: neither side can tell."""
        self._switch.do("bridge", "link", "set", "dev", self.name, "state", _FORWARDING if up else _DISABLED)

    def plug_in(self) -> None:
        """Lay a cable to the bridge, as `eth0` here and under this machine's name there, and take the address."""
        cable = f"link add {self.name} type veth peer name eth0 address {self.mac} netns {self.pid}"
        self._switch.do("ip", "-batch", "-", lines=[cable, f"link set {self.name} master bridge up"])
        own = ["link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"]
        self.do("ip", "-batch", "-", lines=own)

    def unplug(self) -> None:
        """Take the cable away."""
        self._switch.do("ip", "link", "delete", self.name)

    def meet(self, others: Sequence[Machine]) -> None:
        """Know the way to others for good: with fixed hardware addresses a dead one is silence, not "no route"."""
        self.do("ip", "-batch", "-", lines=[f"neigh replace {m.address} lladdr {m.mac} {_FOR_GOOD}" for m in others])

    def lose_way(self, target: Machine) -> None:
        """Send what is meant for `target` to nobody from now on: it leaves as ever and never arrives."""
        self.do("ip", "-batch", "-", lines=[f"neigh replace {target.address} lladdr {_NOBODY} {_FOR_GOOD}"])

    def _hold(self, starter: int) -> None:
        """Wait until a process just started has its namespaces, and keep them."""
        until(lambda: network_name(starter) not in {"", network_name(os.getpid())}, awaited=f"{self.name} to start")
        self._starter = starter
        self._network = Network(starter)

    def release(self) -> None:
        """Let go of the namespaces; they go with their last process."""
        if self._network is not None:
            self._network.close()
        self._network = None


class Controller(Machine):
    """Where orch is started. The bridge is here too, so that nothing of it is seen outside."""

    def __init__(self, keeper: Keeper, folder: Path) -> None:
        super().__init__("ctl", number=254)
        argv = [program("unshare"), "--net", "--uts", "--mount", "sleep", "infinity"]
        self._hold(keeper.start(argv, env={"PATH": os.environ["PATH"]}, log=folder / "ctl.log"))
        self.pid = self._starter
        until(lambda: self.everything().get(self.pid) == "sleep", awaited="the controller's namespaces")
        self.do("sh", "-ec", f"hostname {self.name}; mount --bind {folder}/etc-hosts /etc/hosts")
        self.do("ip", "-batch", "-", lines=["link add bridge type bridge", "link set bridge up"])
        self.plug_in()

    def enter(self) -> tuple[str, ...]:
        # the tests' own pids: what is started here can be signalled from outside by the number that it knows
        return tuple(word for word in super().enter() if word != "--pid")


def first_process(starter: int) -> int:
    """Pid of the init of the namespaces that `unshare --fork` made."""
    return until(lambda: next(iter(descendants(starter)), 0), awaited="the first process of a host")
