"""
The transport over the program ssh: one process per channel, for logins that paramiko cannot make.

ssh reads the configuration itself. Its options here are what is never left to a configuration: no prompts, no forwarding, no
terminal, host keys verified as by paramiko.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.backoff import backoff
from orchestrator.errors import LoginRefused, NodeError, NotListening, Unreachable
from orchestrator.transports.base import ChannelClosed
from orchestrator.transports.local import LocalChannel
from orchestrator.transports.ssh.commands import FAST_CIPHERS, SESSION_REFUSED, command_line, login_command
from orchestrator.transports.ssh.route import Destination, Hop, SshSettings
from orchestrator.transports.terminal import printable_text

KEEPALIVE_S = 15
LAST_RETRY_S = 2.0
LOGIN_FACTOR = 3  # on a busy node, or one with a remote user directory, a login takes longer than the connection
END_S = 1.0
FAILED = 255  # the exit status of ssh for its own failures
LOGGED_IN = b"orch-ssh-logged-in\n"
"""The line that ssh writes to its output by LocalCommand once the login succeeded; the program's output follows."""
PIN_REQUIRED = "pin required"  # a line of ssh with BatchMode
_LOGIN_NAME = re.compile(r"^\S+@\S+: (?=Permission denied)")  # equal refusals of many nodes are shown once
_REFUSED = re.compile(r"Permission denied \(|Host key verification failed|Too many authentication failures")
_LOST = re.compile(
    r"client_loop: |Connection (to .* )?(closed|reset) by|Timeout, server |Read from remote host|packet_write_\w+: |ssh_dispatch_run_fatal: "
)
_DROPPED = re.compile(r"kex_exchange_identification|Connection (closed|reset) by")


class OpensshTransport:
    """The program ssh; `hops` is the route, whose names have been checked."""

    def __init__(
        self, node: Destination, ssh: SshSettings, hops: Sequence[Hop], *, for_much_data: bool = False
    ) -> None:
        self.node = node.name
        self._target = node
        self._ssh = ssh
        self._hops = hops
        self._options = {"Ciphers": FAST_CIPHERS} if for_much_data else {}
        self._lock = threading.Lock()
        self._channels: list[OpensshChannel] = []
        self._is_closed = False

    def open(self, argv: Sequence[str]) -> OpensshChannel:
        """Log in and start a program; if the server hangs up before the login, retry until the connect timeout."""
        deadline = time.monotonic() + self._ssh.connect_timeout_s
        for pause_s in backoff(LAST_RETRY_S):
            channel = self._started(argv)
            try:
                channel.wait_for_login(LOGIN_FACTOR * self._ssh.connect_timeout_s)
            except TimeoutError as error:
                channel.close()
                reason = f"no answer to the login for {LOGIN_FACTOR * self._ssh.connect_timeout_s:g} s"
                raise Unreachable(self.node, reason, at=self._address, hint=self._hint) from error
            except ChannelClosed as closed:
                channel.close()
                is_dropped = _DROPPED.search(closed.stderr) and not _REFUSED.search(closed.stderr)
                if not is_dropped or time.monotonic() + pause_s > deadline:
                    raise self._failure(closed.stderr) from closed
                time.sleep(pause_s)
            except BaseException:
                channel.close()
                raise
            else:
                return channel
        raise AssertionError("backoff is endless")

    def command_to_try(self, argv: Sequence[str]) -> str:
        return login_command(self._target, self._ssh, command_line(argv))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _started(self, argv: Sequence[str]) -> OpensshChannel:
        report = ["-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {LOGGED_IN[:-1].decode()}"]
        login = [*self._login(self._hops), *report, "--", self._target.address]
        with self._lock:
            if self._is_closed:
                raise Unreachable(self.node, "the connection is closed")
            process = subprocess.Popen(
                [*login, command_line(argv)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "SHELL": "/bin/sh"},  # for LocalCommand and ProxyCommand
                start_new_session=True,  # without a controlling terminal, so that nothing can prompt there
            )
            channel = OpensshChannel(self.node, process)
            self._channels.append(channel)
        return channel

    def _login(self, hops: Sequence[Hop]) -> list[str]:
        """The command line of a login at the last of these hops, through the others, without host name and command."""
        *jumps, hop = hops
        is_target = hop is self._hops[-1]
        config = [] if self._ssh.config is None else ["-F", str(Path(self._ssh.config).expanduser().absolute())]
        user, port = (self._target.user, self._target.port) if is_target else (hop.user, hop.port)
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "accept-new" if self._ssh.host_keys == "accept-new" else "yes",
            "NoHostAuthenticationForLocalhost": "no",
            "VerifyHostKeyDNS": "no",
            "UpdateHostKeys": "no",
            "ConnectTimeout": f"{max(1, round(self._ssh.connect_timeout_s))}",
            "ServerAliveInterval": str(KEEPALIVE_S),
            "ServerAliveCountMax": "2",
            "ClearAllForwardings": "yes",
            "ControlMaster": "no",
            "ControlPath": "none",
            "EscapeChar": "none",
            "RemoteCommand": "none",
            "LogLevel": "INFO",
            **self._options,
        }
        if jumps:
            # not ProxyJump: ssh would start the jump host's process without these options
            gate = [*self._login(jumps), "-o", "PermitLocalCommand=no", "-W", f"[{hop.host}]:{hop.port}"]
            options["ProxyCommand"] = shlex.join([*gate, "--", jumps[-1].address]).replace("%", "%%")
        elif hop.proxy_command is None:
            options["ProxyJump"] = "none"
        argv = ["ssh", "-a", "-x", "-T", *config, *(["-l", user] if user else [])]
        argv += ["-p", str(port)] if port else []
        return argv + [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def _failure(self, stderr: str) -> NodeError:
        """The error for the words of an ssh that ended before the login."""
        lines = _lines(stderr) or ["ssh ended without a message"]
        # a jump host's process prints its reason; then this one, that its connection has closed
        lines = [line for line in lines if not _DROPPED.search(line)] or lines
        words = _LOGIN_NAME.sub("", lines[-1])
        if "Host key verification failed" in words and len(lines) > 1:
            location = re.search(r"^Offending .* in (.*):(\d+)", stderr, re.MULTILINE)
            known = f" ({location[1]} line {location[2].strip()})" if location else ""
            words = f"{lines[-2].rstrip('.')}{known}: {words}"
        if PIN_REQUIRED in lines:
            hint = "`ssh-add -s` with the library of PKCS11Provider asks for the PIN once, and the agent then logs in"
            words = "the token of PKCS11Provider requires its PIN, and nothing can prompt for it here"
            return LoginRefused(self.node, words, at=self._address, hint=hint)
        if _REFUSED.search(stderr):
            return LoginRefused(self.node, words, at=self._address, hint=self._hint)
        if "Could not resolve hostname" in words:
            return Unreachable(self.node, "name not resolved", at=self._hops[-1].host, hint=self._hint)
        is_direct = len(self._hops) == 1 and self._hops[0].proxy_command is None
        if is_direct and words.endswith("Connection refused"):
            return NotListening(self.node, "connection refused", at=self._address, hint=self._hint)
        if words.endswith("timed out"):
            words = f"timed out after {self._ssh.connect_timeout_s:g} s"
        return Unreachable(self.node, words, at=self._address, hint=self._hint)

    @property
    def _address(self) -> str:
        return f"{self._hops[-1].host} port {self._hops[-1].port}"

    @property
    def _hint(self) -> str:
        return login_command(self._target, self._ssh)


class OpensshChannel(LocalChannel):
    """The pipes of one ssh process."""

    def __init__(self, node: str, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self._node = node
        self._pending = b""
        self._is_logged_in = False

    def wait_for_login(self, timeout_s: float) -> None:
        """Wait until ssh has logged in; ChannelClosed with its words if it could not."""
        deadline = time.monotonic() + timeout_s
        while LOGGED_IN not in self._pending:
            self._pending += super().read_some(timeout_s=max(0.0, deadline - time.monotonic()))
        self._pending = self._pending.partition(LOGGED_IN)[2]
        self._is_logged_in = True

    def read_some(self, *, timeout_s: float) -> bytes:
        if data := self._pending:
            self._pending = b""
            return data
        return super().read_some(timeout_s=timeout_s)

    def close(self) -> None:
        """Close the pipes, which ends the program on the node; end an ssh that does not end then."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the processes of jump hosts
        self._process.wait()

    def _ended(self) -> ChannelClosed:
        """The end of the program, or the loss of the connection, which is raised."""
        closed = super()._ended()
        if self._is_logged_in and closed.exit_status == FAILED:
            if "channel 0: open failed" in closed.stderr:
                raise Unreachable(self._node, SESSION_REFUSED) from closed
            words = [line for line in _lines(closed.stderr) if _LOST.match(line)]
            if words:
                raise Unreachable(self._node, f"the connection was lost: {words[-1]}") from closed
        return closed  # 255 is also the status of a program that exits with it or is ended by a signal


def _lines(stderr: str) -> list[str]:
    return [printable_text(line).strip() for line in stderr.splitlines() if line.strip()]
