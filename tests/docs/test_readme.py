"""The commands of README.md work with nothing but the repository: cloned into an empty folder, in a bare environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, bare_environment, blocks, run, write_ssh_config
from tests.grounds.python import node_python
from tests.grounds.slurm import Cluster
from tests.grounds.sshd import Farm
from tests.packaging.conftest import copy_of_the_tree

COSTLY = re.compile(r"^(pip install|make test).*\n", re.MULTILINE)
"""Left out: tests/packaging tests the installation, which needs an index, and `make test` would run this test."""


def _repository(folder: Path) -> Path:
    """A repository to clone with the files of the working tree, uncommitted changes included."""
    tree = copy_of_the_tree(folder)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "--all"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)
    return tree


def _install(clone: Path) -> None:
    """Do as `make demo` and `pip install .` would, without an index: this environment's packages, the clone's orch."""
    environment = clone / ".venv"
    python = node_python(environment)
    assert python is not None
    [packages] = environment.glob("lib/python3*/site-packages")
    (packages / "orch.pth").write_text(f"{clone}\n")
    orch = environment / "bin" / "orch"
    orch.write_text(f"#!{python}\nimport sys\nfrom orchestrator.cli.app import main\nsys.exit(main())\n")
    orch.chmod(0o755)
    for stamp in (".created", ".trainer"):
        (environment / stamp).touch()


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(600)
def test_readme_commands_run_as_written_in_an_empty_folder(tmp_path: Path, farm: Farm, cluster: Cluster) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_ssh_config(home, farm)
    clone = home / "orch"
    env = bare_environment(
        home,
        clone / ".venv" / "bin",
        URL=str(_repository(tmp_path / "tree")),
        SLURM_CONF=str(cluster.conf),
        DEMO="steps=5",
    )
    [first_block, *later_blocks] = [COSTLY.sub("", block) for block in blocks(ROOT / "README.md")]
    [clone_commands, demo] = first_block.split("cd orch\n")
    run(clone_commands, home, env)
    _install(clone)

    shown = run("\n".join([demo, *later_blocks]), clone, env)

    assert "4/4 ranks ready" in shown
    assert shown.count("hello from rank 3 of 4") == 4  # by ssh-launch, logs --rank 3, logs --follow, submit
