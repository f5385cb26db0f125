"""The choice between the two clients of ssh: paramiko, and the program ssh for what paramiko cannot do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from orchestrator.errors import LoginRefused, NodeError
from orchestrator.transports.base import Channel
from orchestrator.transports.ssh.commands import command_line, login_command
from orchestrator.transports.ssh.login import NeedsProgram
from orchestrator.transports.ssh.login_queue import LoginQueue
from orchestrator.transports.ssh.openssh import OpensshTransport
from orchestrator.transports.ssh.route import Destination, SshSettings
from orchestrator.transports.ssh.transport import SshTransport, route_to
from orchestrator.transports.ssh.user_keys import Keyring


class ChosenTransport:
    """
    A connection to a node by paramiko, or by the program ssh.

    The choice depends on ssh_config and on the node's answer alone: paramiko connects, unless a keyword needs the program; if
    the node refuses paramiko's keys, the program tries the methods that ssh_config enables and paramiko does not know.
    """

    def __init__(
        self,
        node: Destination,
        ssh: SshSettings,
        keyring: Keyring,
        login_slots: AbstractContextManager[object],
        *,
        for_much_data: bool = False,
    ) -> None:
        """
        Choose at the first `open`.

        Args:
            login_slots: limits the logins in progress, of all transports that share it.
            for_much_data: by the program ssh if it can log in, which encrypts several times as fast as paramiko.
        """
        self.node = node.name
        self._target = node
        self._ssh = ssh
        self._keyring = keyring
        self._login_queue = LoginQueue(login_slots)
        self._lock = threading.Lock()
        self._by_paramiko = SshTransport(node, ssh, keyring, self._login_queue)
        self._by_program: OpensshTransport | None = None
        self._tries_program = for_much_data and shutil.which("ssh") is not None
        self.remark = ""

    @property
    def queued_s(self) -> float:
        return self._login_queue.waited_s

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a program in the login shell; connects if necessary."""
        with self._lock:
            if self._by_program is not None:
                return self._by_program.open(argv)
            if self._tries_program:
                self._tries_program = False
                try:
                    hops = route_to(self._target, self._ssh)
                    return self._open_by(OpensshTransport(self._target, self._ssh, hops, for_much_data=True), argv)
                except NodeError:  # it never prompts; of other errors, paramiko reports the cause
                    self._by_program = None
            try:
                return self._by_paramiko.open(argv)
            except NeedsProgram as need:
                return self._open_by_program(need, argv)

    def command_to_try(self, argv: Sequence[str]) -> str:
        return login_command(self._target, self._ssh, command_line(argv))

    def close(self) -> None:
        self._by_paramiko.close()
        if self._by_program is not None:
            self._by_program.close()

    def _open_by(self, program: OpensshTransport, argv: Sequence[str]) -> Channel:
        self._by_program = program  # `close` ends its login, too
        try:
            with self._login_queue.slot():
                return program.open(argv)
        except LoginRefused:
            self._by_program = None
            raise

    def _open_by_program(self, need: NeedsProgram, argv: Sequence[str]) -> Channel:
        if shutil.which("ssh") is None:
            raise need
        try:
            channel = self._open_by(OpensshTransport(self._target, self._ssh, self._by_paramiko.hops), argv)
        except LoginRefused as refused:
            if not need.was_refused:
                raise
            if self._keyring.terminal is not None and all(hop.may_prompt for hop in self._by_paramiko.hops):
                self._by_paramiko = SshTransport(
                    self._target, self._ssh, self._keyring, self._login_queue, may_need_program=False
                )
                return self._by_paramiko.open(argv)
            reason = f"{need.reason}; the program ssh, tried because {need.cause}, reports: {refused.reason}"
            raise LoginRefused(self.node, reason, at=need.at, hint=refused.hint) from refused
        self.remark = f"reached by the program ssh, which never prompts, because {need.cause}"
        return channel
