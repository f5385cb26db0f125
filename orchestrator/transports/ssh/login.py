"""
Who is at the other end and who we are: host keys are verified, then the user's keys offered, then questions passed on.

Imported by ssh.py alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import paramiko

from orchestrator.errors import LoginRefused, Unreachable
from orchestrator.transports.ssh.host_keys import _Transport
from orchestrator.transports.ssh.route import Hop
from orchestrator.transports.ssh.user_keys import Keyring, UserKeys
from orchestrator.transports.terminal import TRIES, GivenUp, Terminal, without_controls

ANSWER_S = 600.0  # for somebody to fetch a telephone; most nodes hang up earlier
LONG_WAIT_S = 1.0
ASKING = ("keyboard-interactive", "password")


class TurnCameLate(EOFError):
    """The node hung up while others asked their questions: log in once more."""


class Login:
    """What paramiko calls an authentication strategy: keys first; then, at a terminal, whatever the node asks."""

    def __init__(self, node: str, hop: Hop, keyring: Keyring, *, timeout_s: float) -> None:
        self._node = node
        self._hop = hop
        self._keyring = keyring
        self._timeout_s = timeout_s
        self._keys = UserKeys(hop, keyring)
        self._where = f"{hop.user}@{hop.host} port {hop.port}"
        self._refused = 0
        self._notes: list[str] = []

    def authenticate(self, transport: _Transport) -> None:
        """
        Log in.

        Raises:
            LoginRefused: the node does not let us in; nobody tries again.
            EOFError: it hung up before it had looked at anything.
        """
        try:
            with contextlib.closing(self._keys):
                wanted = self._offer_keys(transport)
            terminal = self._keyring.terminal
            if wanted and terminal is not None and any(proof in ASKING for proof in wanted):
                wanted = self._answer(transport, terminal, wanted)
        except GivenUp:
            raise LoginRefused(self._node, "given up at the question for a login", at=self._where) from None
        if wanted:
            raise self._refusal()

    def _offer_keys(self, transport: _Transport) -> Sequence[str]:
        """The proofs that the node wants instead or besides; none when it lets us in."""
        begun = time.monotonic()
        for key in self._keys:
            self._check_there(transport, begun)
            begun = time.monotonic()
            try:
                wanted = transport.auth_publickey(self._hop.user, key)
            except paramiko.BadAuthenticationType as error:
                self._notes.append(f"the node wants {_listed(error.allowed_types)}")
                return error.allowed_types
            except paramiko.AuthenticationException as error:
                self._refused += 1
                self._check_answered(transport, begun, error)
                continue
            if "publickey" not in wanted:
                if wanted:
                    self._notes.append(f"a key was accepted, but the node wants {_listed(wanted)} besides")
                return wanted
            begun = time.monotonic()
        self._check_there(transport, begun)
        return ASKING

    def _answer(self, transport: _Transport, terminal: Terminal, wanted: Sequence[str]) -> Sequence[str]:
        """Ask the person what the node asks; the proofs that it wants still."""
        tries, begun = TRIES, time.monotonic()
        with terminal.turn():
            self._check_there(transport, begun)
            while tries and (proof := next((proof for proof in ASKING if proof in wanted), None)):
                begun = time.monotonic()
                try:
                    wanted = self._give(proof, transport, terminal)
                except paramiko.BadAuthenticationType as error:  # it has told what it takes, and this is not among it
                    wanted = [other for other in error.allowed_types if other in ASKING and other != proof]
                except paramiko.AuthenticationException as error:
                    tries -= 1
                    self._check_answered(transport, begun, error)
        if not tries:
            self._notes.append(f"{TRIES} answers refused")
        return wanted or ([] if transport.is_authenticated() else ASKING)

    def _give(self, proof: str, transport: _Transport, terminal: Terminal) -> Sequence[str]:
        def answers(title: str, instructions: str, questions: Sequence[tuple[str, bool]]) -> list[bytes]:
            said = " ".join(filter(None, [title, instructions]))
            return [ask(f"{said} {question}".strip(), echo=echo) for question, echo in questions]

        def ask(question: str, *, echo: bool = False) -> bytes:
            return terminal.ask(f"{self._node}: {self._where}: {question} ", echo=echo)

        if proof == "keyboard-interactive":
            transport.auth_timeout = ANSWER_S  # the answer is waited for by paramiko
            return transport.auth_interactive(self._hop.user, answers)  # type: ignore[arg-type]  # bytes will do
        password = ask("password:")
        if not transport.is_active():
            raise Unreachable(self._node, "hung up before the answer", at=self._where)
        transport.auth_timeout = self._timeout_s
        return transport.auth_password(self._hop.user, password, fallback=False)  # type: ignore[arg-type]  # bytes will do

    def _check_there(self, transport: _Transport, since: float) -> None:
        """Before anything is sent; whoever waited for the terminal meanwhile may have been hung up on."""
        if not transport.is_active():
            waited = self._keyring.terminal is not None and time.monotonic() - since > LONG_WAIT_S
            raise TurnCameLate if waited else EOFError

    def _check_answered(self, transport: _Transport, since: float, error: Exception) -> None:
        """A key or an answer was not accepted. What was sent once is never sent again unasked, so nobody tries again."""
        if transport.is_active():
            if time.monotonic() - since >= (transport.auth_timeout or 0):
                reason = f"no answer to the login for {transport.auth_timeout:g} s"
                raise Unreachable(self._node, reason, at=self._where) from error
            return
        if transport.farewell:
            self._notes.append(f"the node says: {transport.farewell}")
            raise self._refusal() from error
        raise Unreachable(self._node, "hung up during the login", at=self._where) from error

    def _refusal(self) -> LoginRefused:
        tried = f"{self._refused} refused" if self._refused else "there is none"
        notes = "; ".join([tried, *self._keys.troubles, *self._notes])
        reason, hint = f"no key was accepted ({notes})", f"ssh {self._hop.address} true"
        return LoginRefused(self._node, reason, at=self._where, hint=hint)


def _listed(proofs: Sequence[str]) -> str:
    return ", ".join(without_controls(proof) for proof in proofs)
