"""Prompts for passwords, second factors and passphrases: on a terminal only, one at a time, and no answer is stored."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.isolation import SUPERVISED
from orchestrator.records.store import Store
from orchestrator.transports.terminal import ERASE_LINE
from tests.grounds.cli import Orch
from tests.grounds.components import unavailable
from tests.grounds.screen import Screen
from tests.grounds.sshd import Farm, make_key
from tests.until import until

BY_PASSWORD = {"AuthenticationMethods": "password", "PasswordAuthentication": "yes"}
BY_KEY_AND_CODE = {
    "AuthenticationMethods": "publickey,keyboard-interactive",
    "UsePAM": "yes",
    "KbdInteractiveAuthentication": "yes",
}
LAUNCH = ("ssh-launch", "--detach", "--", "true")


@pytest.fixture
def orch(farm: Farm, tmp_path: Path) -> Iterator[Orch]:
    """orch beside an inventory.yaml of two nodes for which prompts are allowed."""
    if not farm.is_own_account:
        unavailable("the farm has no separate account to give a password to: run as root")
    orch = _orch(farm, tmp_path)
    yield orch
    # their logins must not reach into the next test
    until(lambda: not orch.supervisors(), awaited="supervisors to give up")


def _orch(farm: Farm, folder: Path, nodes: int = 2, **options: str) -> Orch:
    options.setdefault("BatchMode", "no")
    config = farm.write_ssh_config(folder / "ssh_config", known_hosts=None, **options)
    farm.inventory(folder, nodes=nodes, ssh={"config": str(config)})
    return Orch(folder)


def _screen(orch: Orch, words: tuple[str, ...] = LAUNCH) -> Screen:
    return Screen(orch.argv(words), cwd=orch.cwd, env=orch.environ())


def _prompt(farm: Farm, node: str) -> str:
    return f"orch: {node}: {farm.user}@127.0.0.1{node.removeprefix('n')} port {farm.port}: "


@contextlib.contextmanager
def _password(farm: Farm, **options: str) -> Iterator[str]:
    with farm.password() as word, farm.restarted(**options):
        yield word


def test_password_prompts_come_one_node_at_a_time_and_no_answer_is_stored(orch: Orch, farm: Farm) -> None:
    with _password(farm, **BY_PASSWORD) as word, _screen(orch) as screen:
        screen.until("password: ")
        first = "n0" if _prompt(farm, "n0") in screen.text else "n1"
        second = "n1" if first == "n0" else "n0"
        assert _prompt(farm, second) not in screen.text
        assert not screen.echoes()
        screen.type(f"{word}\n")
        screen.until(_prompt(farm, second) + "password: ")
        screen.type(f"{word}\n")
        assert screen.ended() == 0, screen.text
        assert screen.echoes()
    assert word not in screen.text
    assert "warning" not in screen.text
    kept = [path for path in orch.cwd.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    assert not kept
    assert screen.text.count("password: ") == 2


def test_sigterm_at_a_prompt_cancels_the_launch(orch: Orch, farm: Farm) -> None:
    with _password(farm, **BY_PASSWORD), _screen(orch) as screen:
        screen.until("password: ")
        screen.terminate()
        assert screen.ended() == 4, screen.text
        assert screen.echoes()
        assert screen.text.count("password: ") == 1
        assert "Traceback" not in screen.text


def test_three_wrong_passwords_are_refused_over_one_connection(farm: Farm, orch: Orch, tmp_path: Path) -> None:
    _orch(farm, tmp_path, nodes=1)
    log = farm.folder / "sshd.log"
    before = log.stat().st_size
    with farm.password(), farm.restarted(**BY_PASSWORD), _screen(orch) as screen:
        for times in (1, 2, 3):
            screen.until("password: ", times=times)
            screen.type("wrong\n")
        assert screen.ended() == 4
        assert "no key was accepted (" in screen.text
        assert "3 answers refused" in screen.text
    refused = re.findall(rb"Failed password for \S+ from \S+ port (\d+)", log.read_bytes()[before:])
    assert len(refused) == 3
    assert len(set(refused)) == 1


def test_second_factor_is_prompted_for_after_the_key(farm: Farm, orch: Orch, tmp_path: Path) -> None:
    _orch(farm, tmp_path, nodes=1)
    with _password(farm, **BY_KEY_AND_CODE) as word, _screen(orch) as screen:
        screen.until("Password: ")
        assert _prompt(farm, "n0") in screen.text
        screen.type("wrong\n")
        screen.until("Password: ", times=2)
        screen.type(f"{word}\n")
        assert screen.ended() == 0, screen.text


def test_prompts_follow_if_the_program_ssh_is_refused_too(farm: Farm, orch: Orch, tmp_path: Path) -> None:
    _orch(farm, tmp_path, nodes=1, HostbasedAuthentication="yes", IdentityFile="none")
    with _password(farm, **{**BY_PASSWORD, "AuthenticationMethods": "any"}) as word, _screen(orch) as screen:
        screen.until("assword: ")
        assert _prompt(farm, "n0") in screen.text
        assert not screen.echoes()
        screen.type(f"{word}\n")
        assert screen.ended() == 0, screen.text
    assert "by the program ssh" not in screen.text


def test_node_that_prompts_is_supervised_and_attach_prompts_too(farm: Farm, orch: Orch, tmp_path: Path) -> None:
    _orch(farm, tmp_path, nodes=1)
    with _password(farm, **BY_PASSWORD) as word:
        for words in (("ssh-launch", "--detach", "--", "sleep", "1000"), ("attach", "--detach")):
            with _screen(orch, words) as screen:
                screen.until("password: ")
                screen.type(f"{word}\n")
                assert screen.ended() == 0, screen.text
            [run] = [folder.path.name for folder in Store(orch.home).all()]
            heartbeat = orch.node_folder(run, "n0") / SUPERVISED
            before = heartbeat.stat().st_mtime_ns if heartbeat.exists() else 0
            until(lambda: heartbeat.exists() and heartbeat.stat().st_mtime_ns > before, awaited="a heartbeat")
            orch.kill_supervisor(run)
    orch("stop")


@pytest.mark.parametrize(("options", "method"), [(BY_PASSWORD, "password"), (BY_KEY_AND_CODE, "keyboard-interactive")])
def test_launch_without_a_terminal_fails_and_names_the_nodes_login_method(
    orch: Orch, farm: Farm, options: dict[str, str], method: str
) -> None:
    with farm.restarted(**options):
        done = orch(*LAUNCH, code=4)
        assert f"the node requires {method}" in done.stderr
        assert "n[0-1]: no key was accepted" in done.stderr
        assert "(2 of 2)" in done.stderr
        script = ["sh", "-c", 'exec "$@" </dev/null', "sh", *orch.argv(LAUNCH)]
        with Screen(script, cwd=orch.cwd, env=orch.environ()) as screen:
            assert screen.ended() == 4
            assert f"the node requires {method}" in screen.text


def test_batch_mode_of_the_configuration_disables_prompts(orch: Orch, farm: Farm) -> None:
    _orch(farm, orch.cwd, BatchMode="yes")
    with farm.restarted(**BY_PASSWORD), _screen(orch) as screen:
        assert screen.ended() == 4
        assert "the node requires password" in screen.text


def test_ctrl_c_at_a_prompt_ends_the_launch_and_restores_the_terminal(orch: Orch, farm: Farm) -> None:
    with farm.restarted(**BY_PASSWORD), _screen(orch) as screen:
        screen.until("password: ")
        screen.type("\x03")
        assert screen.ended() == 4
        assert "interrupted while connecting" in screen.text
        assert screen.text.count("password: ") == 1
        assert screen.echoes()


def test_ctrl_d_at_a_prompt_ends_the_launch(orch: Orch, farm: Farm) -> None:
    with farm.restarted(**BY_PASSWORD), _screen(orch) as screen:
        screen.until("password: ")
        screen.type("\x04")
        assert screen.ended() == 4
        assert "n[0-1]: the login was cancelled at a prompt (2 of 2)" in screen.text


def test_a_node_that_hung_up_before_its_prompt_is_reconnected(orch: Orch, farm: Farm) -> None:
    """After its connect timeout, which passed during the prompts for the other node."""
    inventory = orch.cwd / "inventory.yaml"
    inventory.write_text(inventory.read_text("utf-8").replace("ssh:\n", "ssh:\n  connect_timeout_s: 2\n"), "utf-8")
    with _password(farm, LoginGraceTime="3", **BY_PASSWORD) as word, _screen(orch) as screen:
        screen.until("password: ")
        first = "n0" if _prompt(farm, "n0") in screen.text else "n1"
        second = "n1" if first == "n0" else "n0"
        until(lambda: not farm.connections(), awaited="sshd to hang up on both")
        screen.type(f"{word}\n")
        screen.until(_prompt(farm, second) + "password: ")
        screen.type(f"{word}\n")
        assert screen.ended() == 4
        assert f"{first}: {farm.user}@" in screen.text
        assert "hung up before the answer" in screen.text
        assert f"\n  {second}: " not in screen.text.replace("\r", "")


@pytest.mark.parametrize(("options", "question"), [(BY_PASSWORD, "password: "), (BY_KEY_AND_CODE, "Password: ")])
def test_gc_prompts_for_one_node_at_a_time_and_echoes_no_answer(
    orch: Orch, farm: Farm, options: dict[str, str], question: str
) -> None:
    argv = orch.argv(("gc", "-i", "inventory.yaml"))
    with _password(farm, **options) as word, Screen(argv, cwd=orch.cwd, env=orch.environ()) as screen:
        screen.until(question)
        until(lambda: len(farm.connections()) > 1, awaited="both nodes to be connected to")
        first = "n0" if _prompt(farm, "n0") in screen.read() else "n1"
        second = "n1" if first == "n0" else "n0"
        assert screen.text.count(question) == 1
        assert not screen.echoes()
        screen.type(f"{word}\n")
        screen.until(question, times=2)
        assert _prompt(farm, second) in screen.text
        assert not screen.echoes()
        screen.type(f"{word}\n")
        assert screen.ended() == 0, screen.text
        assert screen.echoes()
    assert screen.text.count(question) == 2
    assert word not in screen.text


PHRASE = "open sesame"


def _with_passphrase(farm: Farm, folder: Path) -> tuple[Orch, str]:
    key = make_key(folder / "locked", passphrase=PHRASE)
    allowed = farm.folder / "authorized_keys.locked"
    allowed.write_bytes(key.with_suffix(".pub").read_bytes())
    return _orch(farm, folder, IdentityFile=str(key)), str(allowed)


def test_one_passphrase_prompt_serves_all_nodes(farm: Farm, tmp_path: Path) -> None:
    orch, allowed = _with_passphrase(farm, tmp_path)
    with farm.restarted(AuthorizedKeysFile=allowed), _screen(orch) as screen:
        screen.until(f"orch: passphrase of {tmp_path}/locked: ")
        screen.type("open says me\n")
        screen.until("passphrase of", times=2)
        screen.type(f"{PHRASE}\n")
        assert screen.ended() == 0, screen.text
    assert screen.text.count("passphrase of") == 2
    assert PHRASE not in screen.text


def test_one_passphrase_prompt_serves_all_runs_of_a_list(farm: Farm, tmp_path: Path) -> None:
    orch, allowed = _with_passphrase(farm, tmp_path)
    with farm.restarted(AuthorizedKeysFile=allowed):
        for _ in range(2):
            with _screen(orch, ("ssh-launch", "--detach", "--", "sleep", "1000")) as screen:
                screen.until("passphrase of")
                screen.type(f"{PHRASE}\n")
                assert screen.ended() == 0, screen.text
        for folder in Store(orch.home).all():
            orch.kill_supervisor(folder.path.name)
        argv = orch.argv(("list", "--all"))
        with Screen(argv, cwd=orch.cwd, env=orch.environ()) as screen:
            screen.until("passphrase of")
            screen.type(f"{PHRASE}\n")
            assert screen.ended() == 0, screen.text
            assert screen.echoes()
    assert screen.text.count("passphrase of") == 1
    assert screen.text.count("RUNNING") == 2
    assert PHRASE not in screen.text


def test_a_wrong_passphrase_is_reported_after_three_prompts_for_all_nodes(farm: Farm, tmp_path: Path) -> None:
    orch, allowed = _with_passphrase(farm, tmp_path)
    with farm.restarted(AuthorizedKeysFile=allowed), _screen(orch) as screen:
        for times in (1, 2, 3):
            screen.until("passphrase of", times=times)
            screen.type("\n")
        assert screen.ended() == 4
    assert screen.text.count("passphrase of") == 3
    assert "locked: the passphrase was wrong" in screen.text


def test_without_a_terminal_a_locked_key_is_named(farm: Farm, tmp_path: Path) -> None:
    orch, allowed = _with_passphrase(farm, tmp_path)
    with farm.restarted(AuthorizedKeysFile=allowed):
        assert f"{tmp_path}/locked needs a passphrase, so ssh-add it" in orch(*LAUNCH, code=4).stderr


def test_no_passphrase_prompt_if_another_key_is_accepted(farm: Farm, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase=PHRASE)
    orch = _orch(farm, tmp_path, IdentityFile=f"{key}\n  IdentityFile {farm.client_key}")
    with _screen(orch) as screen:
        assert screen.ended() == 0, screen.text
    assert "passphrase" not in screen.text


def test_control_characters_of_a_prompt_are_removed(tmp_path: Path) -> None:
    program = "from orchestrator.transports.terminal import Terminal; t = Terminal(); print(t.prompt('a\\x1b[2J\\r\\nb: ', echo=True))"
    with Screen([sys.executable, "-c", program], cwd=Path.cwd(), env=Orch(tmp_path).environ()) as screen:
        screen.until("orch: a [2J  b: ")
        screen.type("yes\n")
        assert screen.ended() == 0
    assert screen.text.splitlines()[-1] == "b'yes'"
    assert "\x1b" not in screen.text.replace(ERASE_LINE, "")
