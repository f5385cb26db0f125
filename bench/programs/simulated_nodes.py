"""
Answer for many nodes in one process: the endpoint's protocol with invented agents, over connections that relay.c passes on.

    simulated_nodes.py SOCKET NODES

Commands are JSON lines on stdin, each answered by one line on stdout: {"cut": ["n3", ...]} lets nodes answer nothing any more,
{"silent": ["n4", ...]} too, and ends new connections, but other nodes reach them. {} reports how many connections were made, agents run, and nodes had a heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.endpoint.program import MARKER
from orchestrator.node.protocol import operations

FIRST_ADDRESS = int(ipaddress.ip_address("127.0.0.10"))
FIRST_REQUEST = b'{"op": "'  # what follows the program that the controller sends
SIZE_BYTES = 4
BLOCK_BYTES = 1 << 18
ANSWERED_LATER: tuple[object, ...] = (operations.COMMAND, operations.HEARTBEAT, operations.FOLLOW, operations.STOP)
STOP_S = 0.1  # what a node takes to end a rank that does not resist
AHEAD_S = time.time() - time.monotonic()

Json = dict[str, Any]
Reply = tuple[Json, bytes]


class Node:
    """A simulated node and its agent."""

    def __init__(self, index: int, nodes: int) -> None:
        self.index, self.nodes, self.name = index, nodes, f"n{index}"
        self.agent: Json | None = None
        self.finished: Json | None = None
        self.version = 0
        """Counts the changes of the agent's state."""
        self.is_cut = self.is_silent = False
        self.has_heartbeat = False
        self.on_change: list[Callable[[], None]] = []

    def facts(self) -> Json:
        return {
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "hostname": self.name,
            "host_id": f"host-{self.index}",
            "home": "/home/user",
            "user": "user",
            "cards": {},
            "pid": 100 + self.index,
            "clock_ahead_s": AHEAD_S,
        }

    def start(self, rendezvous: str) -> Json:
        self.agent = {
            "pid": 1000 + self.index,
            "start_time": 1,
            "pgid": 1000 + self.index,
            "boot_id": f"boot-{self.index}",
            "host_id": f"host-{self.index}",
            "hostname": self.name,
            "python": sys.executable,
            "node": self.name,
            "node_rank": self.index,
            "ranks": [self.index],
            "world_size": self.nodes,
            "rendezvous": rendezvous,
            "address": self.address,
            "started": time.time(),
            "clock_ahead_s": AHEAD_S,
        }
        self.finished = None
        self.changed()
        return self.agent

    @property
    def address(self) -> str:
        """An address that is not that of a loopback interface."""
        return str(ipaddress.ip_address("10.0.0.1") + self.index)

    def stop(self) -> None:
        if self.agent is not None and self.finished is None:
            self.finished = {"event": "agent-finished", "time": time.time(), "state": "STOPPED", "exit": None}
            self.changed()

    def changed(self) -> None:
        self.version += 1
        callbacks, self.on_change = self.on_change, []
        for callback in callbacks:
            callback()

    def body(self, folder: str) -> Json:
        runs = self.agent is not None
        progress = {"time": time.time(), "step": 100, "steps": 1000, "phase": "step", "loss": 2.5}
        return {
            "node": self.name,
            "agent": self.agent,
            "alive": runs and self.finished is None,
            "stopped": False,
            "same_boot": runs,
            "clock_ahead_s": AHEAD_S if runs else None,
            "finished": self.finished,
            "ranks": {self.index: "running" if self.finished is None else "killed by SIGTERM"} if runs else {},
            "first_failure": None,
            "progress": {self.index: progress} if runs else {},
            "cards": None,
            "network": None,
            "stacks": {},
            "folder": f"{folder}/{self.name}",
            "log": "",
        }


class Simulation:
    """All nodes, and what they share: a file system."""

    def __init__(self, count: int) -> None:
        self.nodes = [Node(index, count) for index in range(count)]
        self.connections: set[Connection] = set()
        self.logins = 0
        self._claimed: set[tuple[str, str]] = set()
        self._bundles: set[str] = set()
        self._markers: dict[str, str] = {}
        self._probed: asyncio.Future[Json] | None = None
        rendezvous = f"{self.nodes[0].address} 29500 host-0"
        self._handlers: dict[object, Callable[[Node, Json], Json]] = {
            operations.HELLO: lambda node, _: {"facts": node.facts()},
            operations.PREPARE: lambda _, request: {"have_bundle": request["digest"] in self._bundles},
            operations.PUT_BUNDLE: self._put_bundle,
            operations.PUT_RUN: self._put_run,
            operations.PUT_FILES: lambda *_: {},
            operations.RESERVE: lambda *_: {"rendezvous": rendezvous},
            operations.LISTEN: lambda *_: {"rendezvous": rendezvous},
            operations.STOP_LISTENING: lambda *_: {},
            operations.CONNECT: lambda *_: {"error": ""},
            operations.START: lambda node, _: {"agent": node.start(rendezvous)},
            operations.STAND_BY: lambda *_: {},
            operations.OBSERVE: lambda node, request: {"nodes": [node.body(request["attempt_dir"])]},
            operations.REACH: self._reach,
            operations.FILES: lambda *_: {"files": {}},
            operations.READ: lambda *_: {"chunks": [], "clocks_ahead_s": {}},
            operations.SEARCH: lambda *_: {"logs": [], "remarks": [], "is_partial": False},
            operations.RANKS: lambda *_: {"nodes": {}},
            operations.LAST_LINES: lambda *_: {"offsets": {}, "skipped": {}, "written": {}, "clocks_ahead_s": {}},
            operations.LINES_SINCE: lambda *_: {"offsets": {}, "skipped": {}, "written": {}, "clocks_ahead_s": {}},
            operations.WRITE_MARKER: self._write_marker,
            operations.FIND_MARKER: lambda _, request: {"token": self._markers[request["path"]]},
            operations.REMOVE_MARKER: lambda *_: {},
        }

    def command(self, line: str) -> Json:
        """Carry out one line of stdin."""
        command = json.loads(line)
        cut, silent = set(command.get("cut", ())), set(command.get("silent", ()))
        for node in self.nodes:
            node.is_cut = node.is_cut or node.name in cut
            node.is_silent = node.is_silent or node.is_cut or node.name in silent
        return {
            "logins": self.logins,
            "running": sum(node.agent is not None and node.finished is None for node in self.nodes),
            "supervised": sum(node.has_heartbeat for node in self.nodes),
            "cpu": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        }

    def knows(self, op: str) -> bool:
        """Return whether the nodes answer a request."""
        return op in self._handlers or op in ANSWERED_LATER

    def answer(self, node: Node, request: Json) -> Json:
        """The reply to a request that is answered at once."""
        op = request["op"]
        if op not in self._handlers:
            raise ValueError(f"a simulated node does not know the request {op}")
        return self._handlers[op](node, request)

    def _put_run(self, _node: Node, request: Json) -> Json:
        run = (request["workdir"], request["run"])
        is_first = not request["claim"] or run not in self._claimed
        self._claimed.add(run)
        return {
            "is_first": is_first,
            "is_written": is_first and request["digest"] in self._bundles,
            "runs": 1,
            "runs_code_bytes": 0,
        }

    def _put_bundle(self, _node: Node, request: Json) -> Json:
        self._bundles.add(request["digest"])
        return {}

    def _reach(self, _node: Node, request: Json) -> Json:
        cut = {peer.address for peer in self.nodes if peer.is_cut}
        return {"addresses": [address for address in request["addresses"] if address not in cut]}

    def _write_marker(self, _node: Node, request: Json) -> Json:
        path = f"{request['folder']}/marker-{len(self._markers)}"
        self._markers[path] = request["token"]
        return {"path": path}

    async def probe(self, node: Node, request: Json, payload: bytes) -> Json:
        """The facts of this machine, by the probe itself, once; the other nodes repeat them under their names."""
        if self._probed is None:
            self._probed = asyncio.get_running_loop().create_future()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *request["argv"][1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate(payload)
            name = json.dumps(node.name)
            texts = {"out": out.decode().replace(f'"node": {name}', '"node": "@"'), "err": err.decode()}
            self._probed.set_result({"code": process.returncode, **texts})
        reply = await self._probed
        return {**reply, "out": reply["out"].replace('"node": "@"', f'"node": {json.dumps(node.name)}')}


class Connection:
    """One connection of a controller to a node."""

    def __init__(self, simulation: Simulation, node: Node, relay: socket.socket, descriptors: list[int]) -> None:
        self.simulation, self.node = simulation, node
        self._relay = relay
        self._stdin, self._stdout = descriptors
        self._received = bytearray()
        self._unsent = bytearray()
        self._has_program = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
        self._loop.add_reader(self._stdin, self._read)
        simulation.connections.add(self)
        simulation.logins += 1

    def _read(self) -> None:
        try:
            data = os.read(self._stdin, BLOCK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self.node.is_silent:
            return
        self._received += data
        if not self._has_program and not self._skip_program():
            return
        while len(self._received) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES], "big")
            if len(self._received) < end:
                return
            request = json.loads(self._received[SIZE_BYTES:end])
            if len(self._received) < end + request["bytes"]:
                return
            payload = bytes(self._received[end : end + request["bytes"]])
            del self._received[: end + request["bytes"]]
            self._take(request, payload)

    def _skip_program(self) -> bool:
        begin = self._received.find(FIRST_REQUEST)
        if begin < 0:
            return False
        del self._received[: begin - SIZE_BYTES]
        self._has_program = True
        self._write(f"\n{MARKER} {sys.version.split()[0]}\n".encode())
        return True

    def _take(self, request: Json, payload: bytes) -> None:
        begun, op, node = time.monotonic(), request["op"], self.node
        if op == operations.COMMAND:
            task = self._loop.create_task(self._probe(request, payload, begun))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif op == operations.HEARTBEAT:
            node.has_heartbeat = True
            self._when_changed(request, begun)
        elif op == operations.FOLLOW:
            reply: Json = {"chunks": [], "clocks_ahead_s": {}, "position": "end"}
            self._loop.call_later(request["wait_s"], self._reply, request, reply, begun)
        elif op == operations.STOP:
            node.stop()
            reply = {"nodes": [{"node": node.name, "signalled": [], "remaining": [], "in_kernel": []}]}
            self._loop.call_later(STOP_S, self._reply, request, reply, begun)
        else:
            try:
                self._reply(request, self.simulation.answer(node, request), begun)
            except (ValueError, KeyError) as error:
                sys.stderr.write(f"{node.name}: {error!r}\n")
                self._reply(request, {"kind": type(error).__name__, "message": str(error)}, begun, ok=False)

    def _when_changed(self, request: Json, begun: float) -> None:
        """Answer a heartbeat: after wait_s, or when the state of the agent is another one than the controller knows."""
        is_answered = False

        def answer() -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                reply = {"nodes": [self.node.body(request["attempt_dir"])], "known": self.node.version}
                self._reply(request, reply, begun)

        if request["known"] != self.node.version:
            answer()
        else:
            self.node.on_change.append(answer)
            self._loop.call_later(request["wait_s"], self._at_the_end, answer)

    def _at_the_end(self, answer: Callable[[], None]) -> None:
        with contextlib.suppress(ValueError):
            self.node.on_change.remove(answer)
        answer()

    async def _probe(self, request: Json, payload: bytes, begun: float) -> None:
        self._reply(request, await self.simulation.probe(self.node, request, payload), begun)

    def _reply(self, request: Json, reply: Json, begun: float, *, ok: bool = True) -> None:
        if self.node.is_silent or self not in self.simulation.connections:
            return
        now = time.monotonic()
        number = {"number": request["number"]} if "number" in request else {}
        header = {**reply, **number, "ok": ok, "held_s": now - begun, "monotonic_s": now, "bytes": 0}
        text = json.dumps(header).encode()
        self._write(len(text).to_bytes(SIZE_BYTES, "big") + text)

    def _write(self, data: bytes) -> None:
        self._unsent += data
        try:
            written = os.write(self._stdout, self._unsent)
        except BlockingIOError:
            written = 0
        except OSError:
            self.close()
            return
        del self._unsent[:written]
        if self._unsent:
            self._loop.add_writer(self._stdout, self._write, b"")
        else:
            self._loop.remove_writer(self._stdout)

    def close(self) -> None:
        self.simulation.connections.discard(self)
        self._loop.remove_reader(self._stdin)
        self._loop.remove_writer(self._stdout)
        for descriptor in (self._stdin, self._stdout):
            os.close(descriptor)
        self._relay.close()


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    Path(path).chmod(0o777)
    listener.listen(4096)
    listener.settimeout(0.0)
    return listener


async def main() -> None:
    """Answer until stdin ends."""
    path, count = sys.argv[1], int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    simulation, loop = Simulation(count), asyncio.get_running_loop()
    listener = _listen(path)
    ended = loop.create_future()

    def accept() -> None:
        relay, _ = listener.accept()
        text, descriptors, _, _ = socket.recv_fds(relay, 256, 2)
        index = int(ipaddress.ip_address(text.decode().split()[2])) - FIRST_ADDRESS
        connection = Connection(simulation, simulation.nodes[index], relay, list(descriptors))
        if connection.node.is_silent and not connection.node.is_cut:
            connection.close()

    def read_command() -> None:
        line = sys.stdin.readline()
        if line:
            sys.stdout.write(json.dumps(simulation.command(line)) + "\n")
            sys.stdout.flush()
        elif not ended.done():
            ended.set_result(None)

    loop.add_reader(listener, accept)
    loop.add_reader(sys.stdin, read_command)
    sys.stdout.write("{}\n")  # ready
    sys.stdout.flush()
    await ended


if __name__ == "__main__":
    asyncio.run(main())
