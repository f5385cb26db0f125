"""Ranks get the inventory's values, as `orch env` shows them: byte for byte, per node, through every launcher."""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.inventory.redaction import is_secret
from tests.grounds.cli import Orch
from tests.grounds.environments import DUMP, env_file, environs, yaml_mapping
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm

HOSTILE = {
    "S3_COMMAND": "$(touch pwned) `touch pwned`; touch pwned #",
    "S3_QUOTES": "it's \"quoted\" '$HOME' \\ \\n",
    "S3_LINES": "\ntwo\nlines\r\n\n",
    "S3_LONG": "x" * 100_000,
    "S3_EMPTY": "",
    "S3_COMMAS": "ALL,X=1,NONE",
    "S3_TEMPLATE": "{{ 7 * 7 }} {% raw %} {# x #} ${X} %s",
    "S3_DASH": "-n",
    # names of variables in orch's own scripts
    "address": "not the node's",
    "rendezvous": "r",
    "status": "s",
    "holder_pid": "1",
}
LEAKED = {
    "TORCHELASTIC_RESTART_COUNT": "leaked",
    "TORCHELASTIC_LEAKED": "leaked",
    "PET_NNODES": "leaked",
    "MASTER_ADDR": "leaked",
    "MASTER_PORT": "leaked",
    "WORLD_SIZE": "leaked",
    "SLURM_PROCID": "leaked",
}
# All characters that shells, YAML, templates and terminals treat specially, as text, and some beyond ASCII.
CHARACTERS = [*map(chr, range(1, 128)), *"\x80\x85\xa0\u200b\u2028\u2029\u202e\ufeff\uffff\U0001f600é"]


@dataclass(frozen=True, slots=True)
class Values:
    """The inventory's values: `texts` in YAML and `secret` in an env_file for all nodes, `n1_only` in n1's env_file, which overrides both."""

    texts: dict[str, str]
    secret: dict[str, bytes]
    n1_only: dict[str, bytes]


@pytest.fixture
def values() -> Values:
    """Every character and every byte, each at both ends of a value, and 60 random bytes under 60 random names."""
    texts = {f"TEXT_{ord(character):x}": f"{character}x{character}" for character in CHARACTERS} | {
        "TEXTS": "".join(CHARACTERS)
    }
    secret = {f"BYTE_{number:x}": bytes([number]) + b"x" + bytes([number]) for number in range(1, 256)}
    secret |= {"BYTES": bytes(range(1, 256)), "BYTES_DOWN": bytes(range(255, 0, -1))}
    n1_only = {f"R{_name()}": bytes(random.choices(range(1, 256), k=60)) for _ in range(60)}
    return Values(texts, secret, n1_only | {"BYTES": b"on n1", "TEXT_41": b"on n1"})


def _name() -> str:
    return "".join(random.choices(string.ascii_letters + string.digits + "_", k=15))


@dataclass(frozen=True, slots=True)
class Launcher:
    """orch beside an inventory of n0 and n1 with two ranks each, whose nodes write below `root`."""

    orch: Orch
    command: str
    root: Path

    def run(self) -> str:
        """Run DUMP on all ranks to its end; returns the run's id."""
        (self.orch.cwd / "dump.py").write_text(DUMP)
        self.orch(self.command, "--nodes", "n0,n1", "--", "dump.py")
        return str(self.orch.status()["id"])

    def add(self, everywhere: str, on_n1: str) -> None:
        """Write lines at the top of the inventory, and fields of n1."""
        path = self.orch.cwd / "inventory.yaml"
        base = path.with_suffix(".base")
        if not base.exists():
            base.write_bytes(path.read_bytes())
        text = base.read_text("utf-8")
        assert "name: n1" in text
        path.write_text(everywhere + text.replace("name: n1", f"name: n1\n  {on_n1}"), "utf-8")


@pytest.fixture
def over_ssh(farm: Farm, tmp_path: Path) -> Iterator[Launcher]:
    """Over sshd, whose logins have variables of another launcher."""
    farm.inventory(tmp_path, nodes=2, devices=2)
    set_env = " ".join(f"{name}={value}" for name, value in LEAKED.items())
    home = "" if farm.is_own_account else f"HOME={farm.home} "
    with farm.restarted(SetEnv=home + set_env):
        yield Launcher(Orch(tmp_path), "ssh-launch", farm.home)


@pytest.fixture
def through_slurm(cluster: Cluster, tmp_path: Path) -> Launcher:
    """Through Slurm, from a shell with variables of another launcher."""
    nodes = [{"name": name, "address": f"127.0.0.1{name[1]}"} for name in ("n0", "n1")]
    cluster.inventory(tmp_path, devices=2, nodes=nodes)
    return Launcher(Orch(tmp_path, env={**cluster.env, **LEAKED}), "submit", cluster.folder)


@pytest.fixture
def on_this_machine(tmp_path: Path) -> Launcher:
    """As local processes, from a shell with variables of another launcher."""
    text = f"name: here\naccelerator: cpu\ndevices: 2\ntransport: local\ndefaults: {{workdir: {tmp_path}/.work}}\n"
    (tmp_path / "inventory.yaml").write_text(text + "nodes:\n- name: n0\n- name: n1\n")
    return Launcher(Orch(tmp_path, env=LEAKED), "ssh-launch", tmp_path)


def _check_values_arrive(launcher: Launcher, values: Values) -> None:
    env_file(launcher.orch.cwd / ".all-nodes", values.secret)
    env_file(launcher.orch.cwd / ".n1-only", values.n1_only)
    texts = {**HOSTILE, **values.texts}
    launcher.add(f"env_file: .all-nodes\nenv: {yaml_mapping(texts)}\n", "env_file: .n1-only")
    everywhere = {**{name: text.encode() for name, text in texts.items()}, **values.secret}
    expected = {"n0": everywhere, "n1": {**everywhere, **values.n1_only}}
    secret = {"n0": {*values.secret}, "n1": {*values.secret, *values.n1_only}}
    found = environs(launcher.root, launcher.run())
    shown = {entry["node"]: entry for entry in json.loads(launcher.orch("env", "--nodes", "n0,n1", "--json").stdout)}
    assert sorted(found) == [0, 1, 2, 3]
    for rank, environ in found.items():
        node = environ["ORCH_NODE"].decode()
        assert environ.items() >= expected[node].items()
        assert shown[node]["env"].keys() == expected[node].keys()
        _check_as_shown(environ, shown[node], rank % 2, secret[node])
    assert not list(launcher.root.rglob("pwned"))


def _check_as_shown(
    environ: Mapping[str, bytes], shown: Mapping[str, object], local_rank: int, secret: set[str]
) -> None:
    """The rank has all values that `orch env` shows for its node; only secret values are redacted."""
    env, orch, ranks, unless_set = (shown[key] for key in ("env", "orch", "ranks", "unless_set"))
    assert isinstance(env, dict)
    assert isinstance(orch, dict)
    assert isinstance(ranks, list)
    assert isinstance(unless_set, dict)
    hidden = {name for name, value in env.items() if value == "<redacted>"}
    assert hidden == secret | {name for name in env if is_secret(name)}
    plain = {**unless_set, **env, **orch, **ranks[local_rank]}
    assert {name: os.fsencode(value) for name, value in plain.items() if name not in hidden}.items() <= environ.items()
    later = shown["at_launch"]
    assert isinstance(later, list)
    assert {*later, *hidden} <= environ.keys()
    assert "leaked" not in {environ[name].decode() for name in later}


def test_any_value_arrives_over_ssh_as_orch_env_shows_it(over_ssh: Launcher, values: Values) -> None:
    _check_values_arrive(over_ssh, values)


@pytest.mark.extended
def test_any_value_arrives_through_slurm_as_orch_env_shows_it(through_slurm: Launcher, values: Values) -> None:
    _check_values_arrive(through_slurm, values)


@pytest.mark.processes
def test_any_value_arrives_on_this_machine_as_orch_env_shows_it(on_this_machine: Launcher, values: Values) -> None:
    _check_values_arrive(on_this_machine, values)


def _check_leaks_are_dropped(launcher: Launcher, named: set[str]) -> None:
    found = environs(launcher.root, launcher.run())
    assert len(found) == 4
    for environ in found.values():
        assert b"leaked" not in environ.values()
        assert not [name for name in environ if name.startswith(("PET_", "SLURM_PROC"))]
        assert "TORCHELASTIC_LEAKED" not in environ
        assert not environ.keys() & {"SSH_CLIENT", "SSH_CONNECTION"}  # else `bash -c` in a rank would read ~/.bashrc
        assert environ["WORLD_SIZE"] == b"4"
    warnings = [line["text"] for line in launcher.orch.lines() if "left out variables" in line["text"]]
    assert len(warnings) == 2
    for warning in warnings:
        assert "leaked" not in warning
        assert not [name for name in named if name not in warning]


def test_variables_leaked_by_a_login_are_dropped_with_a_warning(over_ssh: Launcher) -> None:
    _check_leaks_are_dropped(over_ssh, {*LEAKED, "SLURM*"} - {"SLURM_PROCID"})


def test_variables_leaked_by_a_submitting_shell_are_dropped_with_a_warning(through_slurm: Launcher) -> None:
    """submitit removes MASTER_* and WORLD_SIZE before it submits, so the agents never get them."""
    _check_leaks_are_dropped(
        through_slurm, {"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_LEAKED", "PET_NNODES", "SLURM*"}
    )


@pytest.mark.processes
def test_variables_leaked_by_a_launching_shell_are_dropped_with_a_warning(on_this_machine: Launcher) -> None:
    _check_leaks_are_dropped(on_this_machine, {*LEAKED, "SLURM*"} - {"SLURM_PROCID"})
