"""The transport over ssh. The errors of Fabric and paramiko are mapped here, in login.py and in channel.py, once."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko
from fabric import Config, Connection  # type: ignore[import-untyped]

from orchestrator.backoff import backoff
from orchestrator.errors import NodeError, NotListening, Unreachable
from orchestrator.transports.ssh.channel import SshChannel, answered_within
from orchestrator.transports.ssh.commands import SESSION_REFUSED, command_line, login_command
from orchestrator.transports.ssh.config import lookup
from orchestrator.transports.ssh.host_keys import HostKeyPolicy
from orchestrator.transports.ssh.login import ClosedInQueue, Login, NeedsProgram
from orchestrator.transports.ssh.login_queue import LoginQueue
from orchestrator.transports.ssh.proxy_command import ProxyCommand
from orchestrator.transports.ssh.route import Destination, Hop, SshSettings, route
from orchestrator.transports.ssh.user_keys import Keyring

KEEPALIVE_S = 15
LOST_AFTER_S = 30.0
LAST_RETRY_S = 2.0
LOGIN_FACTOR = 3  # on a busy node, or one with a remote user directory, a login takes longer than the connection
SILENT_S = 3.0  # a node that has not answered by then waits without a login slot
CLOSED = "the connection was closed before the login"
HUNG_UP = "hung up before the login"

# Failures reach the user as NodeErrors. Without a handler logging would also print paramiko's tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Dropped(Exception):
    """The server hung up before the login, as sshd does when too many connect at once (MaxStartups). The message is its address."""


def route_to(target: Destination, ssh: SshSettings) -> list[Hop]:
    """
    The logins that lead to a target, by the inventory and the ssh configuration.

    Raises:
        NodeError: the configuration cannot be read, or gives no route; or this user has no name, as in a container.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError) as error:  # OSError from Python 3.13 on
        reason = f"the user id {os.getuid()} has no name on this machine, and ssh logs in by name"
        raise NodeError(target.name, reason, hint="set the environment variable USER") from error
    try:
        config = Path(ssh.config).expanduser() if ssh.config else None
        return route(target, ssh.proxy_jump, lookup(config))
    except (ValueError, RuntimeError, OSError, paramiko.ConfigParseError) as error:  # RuntimeError: ~name of no user
        raise NodeError(target.name, f"ssh configuration: {error}") from error


class SshTransport:
    """
    One connection to a node, through the configured jump hosts; host keys are always verified.

    Args:
        login_queue: leads to the login slots; a silent node keeps none.
        may_need_program: raise NeedsProgram where the program ssh may succeed, before the user is prompted.
    """

    remark = ""

    def __init__(
        self,
        node: Destination,
        ssh: SshSettings,
        keyring: Keyring | None = None,
        login_queue: LoginQueue | None = None,
        *,
        may_need_program: bool = True,
    ) -> None:
        self.node = node.name
        self._target = node
        self._ssh = ssh
        self._keyring = keyring or Keyring()
        self._login_queue = login_queue or LoginQueue(contextlib.nullcontext())
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._is_closed = False
        self._proxy: ProxyCommand | None = None
        self._may_need_program = may_need_program
        self.hops: Sequence[Hop] = ()
        """The route, once a connection was tried."""

    @property
    def queued_s(self) -> float:
        return self._login_queue.waited_s

    def open(self, argv: Sequence[str]) -> SshChannel:
        """Start a program in the login shell, without a terminal, agent or X11 forwarding; connects if necessary."""
        with self._lock:
            if not self._connections:
                self._is_closed = False  # a lost connection is closed before the next one
                self._connect()
            connections = self._connections
        if not connections:
            raise Unreachable(self.node, CLOSED)
        try:
            channel = connections[-1].transport.open_session(timeout=self._login_timeout_s)
            with answered_within(self._login_timeout_s, channel):
                channel.exec_command(command_line(argv))
        except paramiko.ChannelException as error:
            raise Unreachable(self.node, SESSION_REFUSED, hint=self._hint()) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(self.node, f"the node starts no program: {_words(error)}", hint=self._hint()) from error
        return SshChannel(self.node, channel)

    def command_to_try(self, argv: Sequence[str]) -> str:
        return login_command(self._target, self._ssh, command_line(argv))

    def close(self) -> None:
        """Close the connection, then those to the jump hosts; an `open` that is in progress makes no other one."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        connections = self._connections
        self._connections = []
        for connection in reversed(connections):
            connection.client.close()
        proxy = self._proxy
        self._proxy = None
        if proxy is not None:
            proxy.end()

    def _connect(self) -> None:
        """Connect; if the server hangs up before the login, retry until the connect timeout, without the time in the queue."""
        hops = self.hops = route_to(self._target, self._ssh)
        if keyword := next((hop.program_keyword for hop in hops if hop.program_keyword), ""):
            raise NeedsProgram(self.node, f"ssh_config sets {keyword}", hint=self._hint())
        deadline = time.monotonic() + self._ssh.connect_timeout_s
        for pause_s in backoff(LAST_RETRY_S):
            try:
                self._dial(hops)
            except _Dropped as error:
                self._disconnect()
                if isinstance(error.__cause__, ClosedInQueue):
                    deadline = time.monotonic() + self._ssh.connect_timeout_s
                if time.monotonic() + pause_s > deadline + self.queued_s:
                    hint = f"lower ssh.fanout if it is busy with other logins, or try {self._hint()}"
                    raise Unreachable(self.node, HUNG_UP, at=str(error), hint=hint) from error
                time.sleep(pause_s)
            except BaseException:
                self._disconnect()
                raise
            else:
                return

    def _dial(self, hops: Sequence[Hop]) -> None:
        """Log in at each hop, in a login slot; a node without jump hosts does not keep it while it is silent."""
        hop, timeout_s = hops[0], self._ssh.connect_timeout_s
        if len(hops) > 1 or hop.proxy_command:
            with self._login_slot():
                return self._log_in(hops)
        with self._login_slot():
            begun = time.monotonic()
            silent_s = min(SILENT_S, timeout_s)
            sock = self._connected(hop, begun, silent_s)
            connected = time.monotonic()  # later than `begun` by a slow DNS or a first address without an answer
            if sock is not None and _answers(sock, begun + silent_s):
                return self._log_in(hops, sock)
        if sock is None:
            sock = self._connected(hop, begun, timeout_s)
            connected = time.monotonic()
        if sock is None or not _answers(sock, connected + timeout_s):
            if sock is not None:
                sock.close()
            raise Unreachable(self.node, f"timed out after {timeout_s:g} s", at=_address(hop), hint=self._hint())
        with self._login_slot():
            return self._log_in(hops, sock)

    @contextlib.contextmanager
    def _login_slot(self) -> Iterator[None]:
        """Take a login slot; Unreachable if the transport is closed while it waits for one."""
        with self._login_queue.slot():
            if self._is_closed:
                raise Unreachable(self.node, CLOSED)
            yield

    def _connected(self, hop: Hop, begun: float, timeout_s: float) -> socket.socket | None:
        """Connect to the host; None if it has not answered in time."""
        left_s = begun + timeout_s - time.monotonic()
        with self._mapped(hop, direct=True):
            try:
                return socket.create_connection((hop.host, hop.port), max(0.01, left_s))
            except TimeoutError:
                return None

    def _log_in(self, hops: Sequence[Hop], sock: socket.socket | None = None) -> None:
        connection: Connection | None = None
        for hop in hops:
            with self._mapped(hop, direct=len(hops) == 1):
                connection = self._prepared(hop, connection, sock)
                self._connections.append(connection)
                connection.open()
                transport = connection.transport
                if self._is_closed or transport is None:  # `close` came meanwhile, perhaps before there was a transport
                    connection.client.close()
                    raise Unreachable(self.node, CLOSED)
                transport.set_keepalive(KEEPALIVE_S)
                if len(hops) == 1:  # a jump host's thread sends keepalives only if it wakes more often than the node's
                    # by default ten times a second, a fifth of a core with a thousand connections
                    transport.sock.settimeout(KEEPALIVE_S / 3)

    @property
    def _login_timeout_s(self) -> float:
        return LOGIN_FACTOR * self._ssh.connect_timeout_s

    def _prepared(self, hop: Hop, gateway: Connection | None, sock: socket.socket | None) -> Connection:
        timeout_s = self._ssh.connect_timeout_s
        keyring = self._keyring if hop.may_prompt else Keyring()
        login_s, hint, may_need = self._login_timeout_s, self._hint(), self._may_need_program
        login = Login(self.node, hop, keyring, timeout_s=login_s, command=hint, may_need_program=may_need)
        keys = HostKeyPolicy(self.node, hop, accept_new=self._ssh.host_keys == "accept-new", command=hint)
        options = {
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": login_s,
            "channel_timeout": timeout_s,
            "transport_factory": keys.transport,
            "auth_strategy": login,
        }
        if gateway is None:
            options["sock"] = self._socket(hop, sock)
        connection = Connection(
            hop.host,
            user=hop.user,
            port=hop.port,
            config=_fabric_config(),
            gateway=gateway,
            forward_agent=False,
            connect_kwargs=options,
        )
        connection.client.set_missing_host_key_policy(keys)  # Fabric's default accepts any key
        return connection

    def _socket(self, hop: Hop, sock: socket.socket | None) -> socket.socket:
        """The connection to a host: `sock`, or one through the host's ProxyCommand, or a new one."""
        if hop.proxy_command:
            self._proxy = ProxyCommand(hop.proxy_command)
            return self._proxy.connection
        sock = sock or socket.create_connection((hop.host, hop.port), self._ssh.connect_timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: close the connection if data are not acknowledged
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LOST_AFTER_S * 1000))
        return sock

    @contextlib.contextmanager
    def _mapped(self, hop: Hop, *, direct: bool) -> Iterator[None]:
        """Map the errors of a login: to _Dropped if a retry may help, else to Unreachable or NotListening."""
        address, begun = _address(hop), time.monotonic()
        try:
            yield
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            raise _Dropped(address) from error
        except socket.gaierror as error:
            raise Unreachable(self.node, "name not resolved", at=hop.host, hint=self._hint()) from error
        except paramiko.ssh_exception.IncompatiblePeer as error:
            reason = f"paramiko reports: {_words(error)}"
            raise NeedsProgram(self.node, reason, at=address, hint=self._hint()) from error
        except (OSError, paramiko.SSHException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() - begun >= self._ssh.connect_timeout_s:
                reason = f"timed out after {self._ssh.connect_timeout_s:g} s"
            elif isinstance(error.__context__, (EOFError, ConnectionResetError)):  # lost while the banner was read
                raise _Dropped(address) from error
            elif isinstance(error, paramiko.ChannelException):  # only a jump host opens channels before the login
                reason = f"the jump host cannot connect to it ({_words(error)})"
            else:
                reason = _words(error)
            # With jump hosts, a jump host refused the connection, or reports a refusal as text.
            kind = NotListening if direct and isinstance(error, ConnectionRefusedError) else Unreachable
            raise kind(self.node, reason, at=address, hint=self._hint()) from error

    def _hint(self) -> str:
        return login_command(self._target, self._ssh)


def _address(hop: Hop) -> str:
    return f"{hop.host} port {hop.port}"


def _answers(sock: socket.socket, deadline: float) -> bool:
    """Wait for the first bytes of the server, which every SSH server sends at once; False if it is silent."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _words(error: Exception) -> str:
    """The text of an error of paramiko or of the system, without codes and class names."""
    text = getattr(error, "strerror", None) or getattr(error, "text", None) or str(error)
    return str(text).lower()


def _fabric_config() -> Config:
    """
    Fabric's defaults alone: the route has the settings of ssh_config, and orch does not read fabric.yaml.

    One per connection: if threads share a Config, some get it half loaded (9 to 55 of 9,600 connections).
    """
    return Config(ssh_config=paramiko.SSHConfig(), lazy=True)
