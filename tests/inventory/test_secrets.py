"""env_file: its format, the files that are refused, and its precedence over env."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import InventoryError
from orchestrator.inventory.fields import check_env_name
from orchestrator.inventory.model import Inventory, inventory_json, load
from orchestrator.inventory.secrets import MAX_ENV_FILE_BYTES
from orchestrator.node.agent.environment import LOGIN_NAMES, STALE_NAMES, STALE_PREFIXES

NODES = "nodes: [{name: n0}]\n"


def _env_file(folder: Path, data: bytes, name: str = "team.env", mode: int = 0o600) -> Path:
    path = folder / name
    path.touch(mode=0o600)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def _load(folder: Path, text: str) -> Inventory:
    path = folder / "inventory.yaml"
    path.write_text(text)
    return load(path)


def _read(folder: Path, data: bytes) -> dict[str, bytes]:
    _env_file(folder, data)
    inventory = _load(folder, f"env_file: team.env\n{NODES}")
    return {name: os.fsencode(value) for name, value in inventory.environment(inventory.nodes[0]).items()}


def _refused(folder: Path, text: str = f"env_file: team.env\n{NODES}") -> str:
    with pytest.raises(InventoryError) as caught:
        _load(folder, text)
    return str(caught.value).replace(str(folder) + "/", "")


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"A=1\nB=2", {"A": b"1", "B": b"2"}),
        (b"# a comment\n\nA=1\n#B=2\n", {"A": b"1"}),
        (b"A=", {"A": b""}),
        (b"A=b=c # d ", {"A": b"b=c # d "}),
        (b"A=\"quoted\" '$HOME' \\n", {"A": b"\"quoted\" '$HOME' \\n"}),
        (b"A=\xff\xfe\nB=gr\xc3\xb6\xc3\x9fe", {"A": b"\xff\xfe", "B": b"gr\xc3\xb6\xc3\x9fe"}),
        (b"A=two\nlines\r\n\0C=#\0", {"A": b"two\nlines\r\n", "C": b"#"}),
        (b"", {}),
    ],
    ids=range(8),
)
def test_values_are_read_byte_for_byte(data: bytes, values: dict[str, bytes], tmp_path: Path) -> None:
    assert _read(tmp_path, data) == values


def test_output_of_env_0_is_read_back(tmp_path: Path) -> None:
    written = {b"A": b"two\nlines\n", b"B": b"\xff=", b"C": b""}
    assert _read(tmp_path, subprocess.run(["env", "-0"], env=written, capture_output=True, check=True).stdout) == {
        name.decode(): value for name, value in written.items()
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"A=1\nB\n", "line 2: is not KEY=VALUE"),
        (b"export A=1\n", "line 1: not the name of a variable; allowed: letters, digits and _, not a digit first"),
        (b"A =1\n", "line 1: not the name of a variable; allowed: letters, digits and _, not a digit first"),
        (b"=1\n", "line 1: not the name of a variable; allowed: letters, digits and _, not a digit first"),
        (b"A=1\nB=2\nA=3\n", "line 3: the same name as in line 1"),
        (b"RANK=1\n", "line 1: orch sets this variable for every rank; delete the line"),
        (
            b"SLURM_NTASKS=1\n",
            "line 1: a variable of another launcher, which orch keeps from the ranks; delete the line",
        ),
        (b"A=1\r\n", "line 1: ends with a carriage return; save the file with Unix line ends"),
        (b"A=1\0B\0", "entry 2: is not KEY=VALUE"),
        (b"A=" + b"x" * 130_001, "line 1: longer than 130000 bytes, more than Linux passes to a program"),
        (b"#" * (MAX_ENV_FILE_BYTES + 1), f"larger than {MAX_ENV_FILE_BYTES} bytes"),
    ],
)
def test_error_names_its_line(data: bytes, message: str, tmp_path: Path) -> None:
    _env_file(tmp_path, data)
    assert _refused(tmp_path) == f"inventory.yaml:1: env_file: team.env: {message}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_file_that_others_can_access_is_refused_with_the_remedy(mode: int, tmp_path: Path) -> None:
    path = _env_file(tmp_path, b"A=1\n", mode=mode)
    message = f"inventory.yaml:1: env_file: team.env: mode {mode:04o} lets others read it; run: chmod 600 team.env"
    assert _refused(tmp_path) == message
    path.chmod(0o400)
    assert _load(tmp_path, f"env_file: team.env\n{NODES}").secrets == {"A": "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(_env_file(tmp_path, b"A=1\n"), 12345, -1)
    assert "team.env: belongs to user 12345, not to you, user 0" in _refused(tmp_path)


def test_anything_but_a_regular_file_is_refused_without_blocking(tmp_path: Path) -> None:
    assert "team.env: No such file or directory" in _refused(tmp_path)
    os.mkfifo(tmp_path / "team.env", 0o600)
    assert "team.env: is not a regular file" in _refused(tmp_path)
    (tmp_path / "team.env").unlink()
    (tmp_path / "team.env").mkdir(mode=0o700)
    assert "team.env: Is a directory" in _refused(tmp_path)


def test_variable_in_both_env_and_its_env_file_is_refused(tmp_path: Path) -> None:
    _env_file(tmp_path, b"A=1\n")
    assert _refused(tmp_path, f"env_file: team.env\nenv:\n  A: 2\n{NODES}") == (
        "inventory.yaml:3: env.A: given in team.env too; delete one of the two"
    )
    assert "nodes[0].env.A: given in" in _refused(tmp_path, "nodes: [{name: n0, env_file: team.env, env: {A: 2}}]\n")


def test_env_file_and_env_of_a_node_override_defaults_and_the_file(tmp_path: Path) -> None:
    for name, data in {"top": b"A=t\nB=t\nC=t\nD=t\n", "shared": b"B=s\nC=s\nE=s\n", "own": b"C=o\nF=o\n"}.items():
        _env_file(tmp_path, data, name)
    inventory = _load(
        tmp_path,
        "env_file: top\nenv: {E: top, G: top}\ndefaults: {env_file: shared, env: {D: shared, F: shared}}\n"
        "nodes:\n  - {name: n0}\n  - {name: n1, env_file: own, env: {B: own, G: own}}\n",
    )
    n0, n1 = (inventory.environment(node) for node in inventory.nodes)
    assert n0 == {"A": "t", "B": "s", "C": "s", "D": "shared", "E": "s", "F": "shared", "G": "top"}
    assert n1 == {"A": "t", "B": "own", "C": "o", "D": "shared", "E": "s", "F": "o", "G": "own"}
    assert inventory.secret_names(inventory.nodes[0]) >= {"A", "B", "C", "E"}


def test_inventory_json_names_the_variables_of_an_env_file_without_values(tmp_path: Path) -> None:
    _env_file(tmp_path, b"PLAIN=hunter2\n")
    described = inventory_json(
        _load(tmp_path, "env_file: team.env\nenv: {X: y}\nnodes: [{name: n0, env_file: team.env}]\n")
    )
    assert described["env"] == {"X": "y", "PLAIN": "<redacted>"}
    assert described["nodes"][0]["env"] == {"PLAIN": "<redacted>"}
    assert described["env_files"] == [str(tmp_path / "team.env")]
    assert "hunter2" not in str(described)


def test_inventory_is_private_only_if_it_holds_secrets_itself(tmp_path: Path) -> None:
    _env_file(tmp_path, b"A=1\n")
    env_file = str(tmp_path / "team.env")
    assert _load(tmp_path, NODES).private_files == ()
    assert _load(tmp_path, f"env_file: team.env\n{NODES}").private_files == (env_file,)
    inventory = _load(tmp_path, "env_file: team.env\nnodes: [{name: n0, env: {HF_TOKEN: x}}]\n")
    assert inventory.private_files == (env_file, str(tmp_path / "inventory.yaml"))


def test_every_variable_that_the_agent_drops_is_refused_in_an_inventory() -> None:
    """A rank would otherwise lack a variable that the inventory sets. Ranks keep SLURM_JOB_ID, with Slurm's own value."""
    dropped = [name.decode() for name in (*STALE_NAMES, *LOGIN_NAMES)]
    dropped += [f"{prefix.decode()}X" for prefix in STALE_PREFIXES]
    dropped += ["SLURM_NTASKS_PER_NODE", "SLURM_JOB_NODELIST", "SLURM_STEP_ID", "SLURM_SRUN_COMM_HOST"]
    for name in (*dropped, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "SLURMD_NODENAME"):
        with pytest.raises(ValueError, match="delete the line"):
            check_env_name(name)
    for name in ("SLURM_CONF", "SLURM_TMPDIR", "SLURM_CPUS_PER_TASK", "SSH_AUTH_SOCK"):
        assert check_env_name(name) == name


@pytest.mark.parametrize("shell", ["dash", "bash --posix"])
def test_every_variable_that_a_shell_changes_is_refused_in_an_inventory(shell: str) -> None:
    """/bin/sh is one of the two, and ranks would get the changed value."""
    words = shell.split()
    listed = subprocess.run(["bash", "-c", "compgen -v"], capture_output=True, text=True, check=True).stdout.split()
    changed = []
    for name in {*listed, "OPTIND", "RANDOM", "SRANDOM", "EPOCHSECONDS", "FUNCNAME", "HISTCMD", "BASH_ARGV", "OPTARG"}:
        script = f"set -eu\nexport {name}='as written 7'\nexec /usr/bin/env"
        done = subprocess.run([*words, "-c", script], env={}, capture_output=True, text=True, check=False)
        if f"{name}=as written 7" not in done.stdout.splitlines():
            changed.append(name)
    assert "OPTIND" in changed
    for name in changed:
        with pytest.raises(ValueError, match="delete the line"):
            check_env_name(name)
