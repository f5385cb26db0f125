"""The login of the user at one host: the user's keys are offered, then the host's questions passed on to the terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence

import paramiko

from orchestrator.errors import LoginRefused, Unreachable
from orchestrator.fanout import once
from orchestrator.transports.ssh.host_keys import HostKeyTransport
from orchestrator.transports.ssh.route import PROGRAM_METHODS, Hop
from orchestrator.transports.ssh.user_keys import Keyring, UserKeys
from orchestrator.transports.terminal import TRIES, PromptCancelled, Terminal, printable_text

ANSWER_S = 600.0  # for a one-time code from another device; most nodes hang up earlier
LONG_WAIT_S = 1.0
PROMPTED = ("keyboard-interactive", "password")  # the authentication methods that need the user


class ClosedInQueue(EOFError):
    """The node hung up while the login waited for the terminal: log in once more."""


class NeedsProgram(LoginRefused):
    """
    The program ssh may log in where paramiko does not, because of `cause`.

    `was_refused` is True if the node has refused a login; otherwise paramiko made none.
    """

    def __init__(self, node: str, cause: str, *, reason: str = "", at: str = "", hint: str = "") -> None:
        super().__init__(node, reason or f"{cause}, which needs the program ssh", at=at, hint=hint)
        self.cause = cause
        self.was_refused = bool(reason)


class Login:
    """An authentication strategy of paramiko: keys first; then, at a terminal, the methods that prompt the user."""

    def __init__(
        self, node: str, hop: Hop, keyring: Keyring, *, timeout_s: float, command: str, may_need_program: bool
    ) -> None:
        """`command` is the same login by the program ssh, for hints."""
        self._node = node
        self._hop = hop
        self._keyring = keyring
        self._timeout_s = timeout_s
        self._command = command
        self._may_need_program = may_need_program
        self._keys = UserKeys(hop, keyring)
        self._login = f"{hop.user}@{hop.host} port {hop.port}"
        self._refused_keys = 0
        self._prompts = 0
        self._reasons: list[str] = []

    def authenticate(self, transport: HostKeyTransport) -> None:
        """
        Log in.

        Raises:
            LoginRefused: the node refused the login. Retrying cannot help.
            EOFError: the node hung up before it had checked a key or an answer.
        """
        try:
            with contextlib.closing(self._keys):
                methods = self._offer_keys(transport)
            if methods and self._may_need_program and (cause := self._program_cause(methods)):
                refusal = self._refusal()
                raise NeedsProgram(self._node, cause, reason=refusal.reason, at=refusal.at, hint=refusal.hint)
            terminal = self._keyring.terminal
            if terminal is not None and any(method in PROMPTED for method in methods):
                methods = self._prompt_user(transport, terminal, methods)
        except PromptCancelled:
            raise LoginRefused(self._node, "the login was cancelled at a prompt", at=self._login) from None
        if methods:
            raise self._refusal()

    def _offer_keys(self, transport: HostKeyTransport) -> Sequence[str]:
        """Offer the keys in turn; return the methods that the node still requires, none if the user is logged in."""
        begun = time.monotonic()
        for key in self._keys:
            self._check_connected(transport, begun)
            begun = time.monotonic()
            try:
                methods = transport.auth_publickey(self._hop.user, key)
            except paramiko.BadAuthenticationType as error:
                self._reasons.append(f"the node requires {_listed(error.allowed_types)}")
                return error.allowed_types
            except paramiko.AuthenticationException as error:
                self._refused_keys += 1
                self._check_refusal(transport, begun, error)
                continue
            if "publickey" not in methods:
                if methods:
                    self._reasons.append(f"a key was accepted, but the node requires {_listed(methods)}, too")
                return methods
            begun = time.monotonic()
        self._check_connected(transport, begun)
        return [*PROGRAM_METHODS, *PROMPTED]  # paramiko does not report the methods that the node accepts

    def _program_cause(self, methods: Sequence[str]) -> str:
        """The reason why the program ssh may authenticate by one of these methods; empty if it cannot do more."""
        for method, keyword in self._hop.program_methods.items():
            if method in methods and (keyword != "GSSAPIAuthentication" or _has_kerberos_ticket()):
                return f"ssh_config sets {keyword}"
        if "publickey" in methods and self._keys.security_keys:
            return f"{self._keys.security_keys[0]} is the key of a hardware token"
        return ""

    def _prompt_user(self, transport: HostKeyTransport, terminal: Terminal, methods: Sequence[str]) -> Sequence[str]:
        """Authenticate by the user's answers; return the methods that the node still requires, none if logged in."""
        tries, begun = TRIES, time.monotonic()
        with terminal.locked():
            self._check_connected(transport, begun)
            while tries and (method := next((method for method in PROMPTED if method in methods), None)):
                begun, prompts = time.monotonic(), self._prompts
                try:
                    methods = self._authenticate_by(method, transport, terminal)
                except paramiko.BadAuthenticationType as error:  # the node does not accept this method
                    methods = [name for name in error.allowed_types if name in PROMPTED and name != method]
                except paramiko.AuthenticationException as error:
                    self._check_refusal(transport, begun, error)
                    if self._prompts > prompts:
                        tries -= 1
                    else:  # sshd without PAM offers keyboard-interactive and asks nothing
                        methods = [name for name in methods if name != method]
        if not tries:
            self._reasons.append(f"{TRIES} answers refused")
        return methods or ([] if transport.is_authenticated() else PROMPTED)

    def _authenticate_by(self, method: str, transport: HostKeyTransport, terminal: Terminal) -> Sequence[str]:
        def answers(title: str, instructions: str, questions: Sequence[tuple[str, bool]]) -> list[bytes]:
            introduction = " ".join(filter(None, [title, instructions]))
            return [prompt(f"{introduction} {question}".strip(), echo=echo) for question, echo in questions]

        def prompt(question: str, *, echo: bool = False) -> bytes:
            self._prompts += 1
            return terminal.prompt(f"{self._node}: {self._login}: {question} ", echo=echo)

        if method == "keyboard-interactive":
            transport.auth_timeout = ANSWER_S  # paramiko's wait includes the user's
            return transport.auth_interactive(self._hop.user, answers)  # type: ignore[arg-type]  # it accepts bytes
        password = prompt("password:")
        if not transport.is_active():
            raise Unreachable(self._node, "hung up before the answer", at=self._login)
        transport.auth_timeout = self._timeout_s
        return transport.auth_password(self._hop.user, password, fallback=False)  # type: ignore[arg-type]  # it accepts bytes

    def _check_connected(self, transport: HostKeyTransport, since: float) -> None:
        """Raise if the node has hung up before anything is sent: ClosedInQueue after a wait for the terminal, else EOFError."""
        if not transport.is_active():
            waited = self._keyring.terminal is not None and time.monotonic() - since > LONG_WAIT_S
            raise ClosedInQueue if waited else EOFError

    def _check_refusal(self, transport: HostKeyTransport, since: float, error: Exception) -> None:
        """
        Return if the node refused a key or an answer and the login can continue; raise if the connection has ended.

        The error ends the login without a retry: a key or an answer that has been sent once is not repeated.
        """
        if transport.is_active():
            if time.monotonic() - since >= (transport.auth_timeout or 0):
                reason = f"no answer to the login for {transport.auth_timeout:g} s"
                raise Unreachable(self._node, reason, at=self._login) from error
            return
        if transport.disconnect_message:
            self._reasons.append(f"the node reports: {transport.disconnect_message}")
            raise self._refusal() from error
        raise Unreachable(self._node, "hung up during the login", at=self._login) from error

    def _refusal(self) -> LoginRefused:
        refused = f"{self._refused_keys} refused" if self._refused_keys else "there is none"
        reasons = [refused, *self._keys.faults, *self._reasons]
        # a ticket may be missing, unless the user has keys, or no Kerberos: Debian enables GSSAPI for all
        may_log_in = "gssapi-with-mic" in self._hop.program_methods and not self._refused_keys
        if may_log_in and shutil.which("klist") is not None and not _has_kerberos_ticket():
            reasons.append("ssh_config sets GSSAPIAuthentication, but there is no Kerberos ticket: kinit gets one")
        text = f"no key was accepted ({'; '.join(reasons)})"
        return LoginRefused(self._node, text, at=self._login, hint=self._command)


@once
def _has_kerberos_ticket() -> bool:
    """Return whether the user has a ticket: Debian enables GSSAPI for everybody, and a failed login more may lock an account."""
    try:
        done = subprocess.run(["klist", "-s"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return "KRB5CCNAME" in os.environ
    return done.returncode == 0


def _listed(methods: Sequence[str]) -> str:
    return ", ".join(printable_text(method) for method in methods)
