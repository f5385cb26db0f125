"""TensorBoard on the head node of a run, for a browser on this machine, over the connection to the node."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from orchestrator.endpoint.access import Terminal
from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import NodeError, OrchError, UsageError
from orchestrator.launchers import launcher_for
from orchestrator.plan.plan import LaunchPlan
from orchestrator.progress import OnProgress
from orchestrator.records.runs import find_run

PORT = 6006  # that of TensorBoard
START_S = 60.0
POLL_S = 5.0
RECEIVE_S = 20.0
BLOCK_BYTES = 1 << 16


def serve(run: str, port: int | None, *, on_ready: Callable[[str], None], on_progress: OnProgress) -> None:
    """
    Start TensorBoard on the event files of a run and forward a port of this machine's loopback to it, until KeyboardInterrupt.

    Args:
        port: 0 for any; None for TensorBoard's own, or any if that is taken.
        on_ready: takes the address for a browser, and the folders.

    Raises:
        UsageError: the run has no event files, or the port is taken.
        NodeError: the node's Python lacks TensorBoard, or the connection is lost.
    """
    folder = find_run(run)
    plan = folder.read_plan()
    with closing(_listener(port)) as listener, closing(launcher_for(plan, Terminal(), on_progress)) as launcher:
        head = plan.head
        attempt = launcher.attempt_folders(launcher.attempt(), [head.name])[0]
        endpoint = attempt.endpoint
        reply = endpoint.start_board(attempt.attempt_dir, head.python, plan.setup_file(head) or "", wait_s=START_S)
        if not reply["port"]:
            raise _failure(plan, folder.path.name, reply["folders"], reply["error"])
        on_ready(f"http://127.0.0.1:{listener.getsockname()[1]}/ shows {', '.join(reply['folders'])}")
        threading.Thread(target=_accept, args=(listener, endpoint), daemon=True).start()
        while endpoint.connected:
            endpoint.clock_ahead()
            threading.Event().wait(POLL_S)


def _listener(port: int | None) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", PORT if port is None else port))
    except OSError as error:
        if port is None:
            return socket.create_server(("127.0.0.1", 0))
        raise UsageError(f"--port {port}: {error.strerror}", hint="name another port, or none") from error


def _failure(plan: LaunchPlan, run: str, folders: list[str], error: str) -> OrchError:
    node, python = plan.head.name, plan.head.python
    if not folders:
        hint = "write them below the working folder of the ranks, or into a folder of keep: in the inventory"
        return UsageError(f"run {run} has no logs for TensorBoard: {error}", hint=hint)
    if "No module named" in error:
        hint = f"on {node}: {python} -m pip install tensorboard"
        if shutil.which("tensorboard"):
            hint += f"; or with the one here: orch cp {run}:. logs && tensorboard --logdir logs"
        return NodeError(node, f"{python} has no TensorBoard", hint=hint)
    last = (error.strip().splitlines() or [f"no answer in {START_S:g} s"])[-1]
    hint = f"on {node}: {python} -m tensorboard.main --version"
    return NodeError(node, f"TensorBoard does not start: {last}", hint=hint)


def _accept(listener: socket.socket, endpoint: Endpoint) -> None:
    with suppress(OSError):  # closed at the end
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_forward, args=(client, endpoint), daemon=True).start()


def _forward(client: socket.socket, endpoint: Endpoint) -> None:
    """Carry the bytes of one connection of a browser, both ways, until either side closes it."""
    with suppress(OrchError, OSError), client:
        connection = endpoint.connect_to_board()
        threading.Thread(target=_send, args=(client, endpoint, connection), daemon=True).start()
        while True:
            is_open, data = endpoint.receive_of_board(connection, wait_s=RECEIVE_S)
            client.sendall(data)
            if not is_open:
                break
        client.shutdown(socket.SHUT_RDWR)


def _send(client: socket.socket, endpoint: Endpoint, connection: int) -> None:
    with suppress(OrchError, OSError):
        while data := client.recv(BLOCK_BYTES):
            endpoint.send_to_board(connection, data)
    with suppress(OrchError):
        endpoint.close_board_connection(connection)
