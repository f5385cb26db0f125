"""Machines made of namespaces: a name, an address on a bridge, processes and mounts of their own, on one kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.grounds.components import program
from tests.grounds.keeper import Keeper, Network, descendants, kill_each, network_name
from tests.until import until

SUBNET = "10.77.0"  # private to the namespaces: every ground may use the same
_UNUSED_MAC = "02:00:00:00:ff:ff"
_PERMANENT = "dev eth0 nud permanent"
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port


class Machine:
    """
    The common part of the controller and the hosts. `pid` is the process that keeps the namespaces alive.

    `switch` is the machine whose network namespace holds the bridge; None: this one.
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
        """True if the namespaces exist and can be entered."""
        return self._network is not None and network_name(self.pid) == self._network.name

    def enter(self) -> tuple[str, ...]:
        """The command prefix that runs a command as root on this machine; on the controller without a fork."""
        assert self.is_up, f"{self.name} is down"
        spaces = ("--mount", "--uts", "--net", "--pid")
        return (program("nsenter"), "--target", str(self.pid), *spaces, "--")

    def do(self, *argv: str, lines: Iterable[str] = ()) -> str:
        """Run a command as root on this machine with `lines` on its stdin; it must succeed. Returns its output."""
        command = [*self.enter(), *argv]
        done = subprocess.run(command, input="\n".join(lines), check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{argv} on {self.name} exited {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def all_processes(self) -> dict[int, str]:
        """Pid in the tests' namespace -> command name of all processes of this machine."""
        return self._network.processes() if self._network else {}

    def refused_connections(self) -> int:
        """The number of TCP connections from this machine that were refused since it was started, from the kernel's counters."""
        names, values = (
            line.split()
            for line in Path(f"/proc/{self.pid}/net/snmp").read_text(encoding="ascii").splitlines()
            if line.startswith("Tcp:")
        )
        return int(values[names.index("AttemptFails")])

    def end_processes(self) -> None:
        """Kill all processes of this machine but those that hold its namespaces."""

        def end() -> bool:
            machine_pids = {self.pid, self._starter}
            return not kill_each(
                {pid: command for pid, command in self.all_processes().items() if pid not in machine_pids}
            )

        until(end, awaited=lambda: f"the processes on {self.name} to end: {self.all_processes()}")

    def link(self, *, up: bool) -> None:
        """Have the bridge forward this machine's packets or drop them silently in both directions."""
        self._switch.do("bridge", "link", "set", "dev", self.name, "state", _FORWARDING if up else _DISABLED)

    def plug_in(self) -> None:
        """Add a veth pair to the bridge, `eth0` here and this machine's name there, set the address, and wait for the carrier."""
        veth = f"link add {self.name} type veth peer name eth0 address {self.mac} netns {self.pid}"
        self._switch.do("ip", "-batch", "-", lines=[veth, f"link set {self.name} master bridge up"])
        eth0_commands = ["link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"]
        self.do("ip", "-batch", "-", lines=eth0_commands)
        until(self._has_carrier, awaited=f"the carrier of {self.name}")  # the bridge refuses its state before

    def _has_carrier(self) -> bool:
        return " state UP " in self._switch.do("ip", "-oneline", "link", "show", "dev", self.name)

    def unplug(self) -> None:
        """Delete the veth pair."""
        self._switch.do("ip", "link", "delete", self.name)

    def limit_rate(self, megabits: int, *, to: Machine | None = None) -> None:
        """Limit the rate at which this machine sends, to one machine or to all; for a machine without a limit."""
        commands = [
            "qdisc add dev eth0 root handle 1: htb" + ("" if to else " default 1"),
            f"class add dev eth0 parent 1: classid 1:1 htb rate {megabits}mbit quantum 60000",
        ]
        if to:
            commands.append(f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {to.address}/32 flowid 1:1")
        self.do("tc", "-batch", "-", lines=commands)

    def add_neighbours(self, machines: Sequence[Machine]) -> None:
        """Add permanent neighbour entries: a dead machine then times out instead of failing with "no route"."""
        self.do("ip", "-batch", "-", lines=[f"neigh replace {m.address} lladdr {m.mac} {_PERMANENT}" for m in machines])

    def drop_packets_to(self, target: Machine) -> None:
        """Send packets for `target` to an unused hardware address from now on: they leave and never arrive."""
        self.do("ip", "-batch", "-", lines=[f"neigh replace {target.address} lladdr {_UNUSED_MAC} {_PERMANENT}"])

    def _hold(self, starter: int) -> None:
        """Wait until a new process has its namespaces, and keep them open."""
        until(lambda: network_name(starter) not in {"", network_name(os.getpid())}, awaited=f"{self.name} to start")
        self._starter = starter
        self._network = Network(starter)

    def release(self) -> None:
        """Close the namespaces; the kernel removes them with their last process."""
        if self._network is not None:
            self._network.close()
        self._network = None


class Controller(Machine):
    """The machine where orch runs. It also holds the bridge, which is thus not visible outside."""

    def __init__(self, keeper: Keeper, folder: Path) -> None:
        super().__init__("ctl", number=254)
        argv = [program("unshare"), "--net", "--uts", "--mount", "sleep", "infinity"]
        self._hold(keeper.start(argv, env={"PATH": os.environ["PATH"]}, log=folder / "ctl.log"))
        self.pid = self._starter
        until(lambda: self.all_processes().get(self.pid) == "sleep", awaited="the controller's namespaces")
        self.do("sh", "-ec", f"hostname {self.name}; mount --bind {folder}/etc-hosts /etc/hosts")
        self.do("ip", "-batch", "-", lines=["link add bridge type bridge", "link set bridge up"])
        self.plug_in()

    def enter(self) -> tuple[str, ...]:
        # pids are the tests' own: a process started here can be signalled from outside by its pid
        return tuple(word for word in super().enter() if word != "--pid")


def first_process(starter: int) -> int:
    """Pid of the init of the namespaces that `unshare --fork` made."""
    return until(lambda: next(iter(descendants(starter)), 0), awaited="the first process of a host")
