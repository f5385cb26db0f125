"""An ordinary user who may have 200 processes and threads: a run that fits starts, a larger one is refused before it does."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.grounds.cli import Orch
from tests.grounds.components import program, unavailable
from tests.grounds.inventories import write_inventory
from tests.grounds.sshd import Farm

THREADS = 200


@pytest.fixture
def orch(farm: Farm) -> Orch:
    """orch as the nodes' account, beside an inventory.yaml of four nodes; the limit is a hard one."""
    if not farm.is_own_account:
        unavailable("the tests have no account to limit: run as root")
    folder = farm.home / f"controller-{secrets.token_hex(4)}"
    folder.mkdir()
    key = shutil.copy(farm.client_key, folder / "key")
    config = farm.write_ssh_config(folder / "ssh_config", IdentityFile=str(key))
    farm.inventory(folder, nodes=4, ssh={"config": str(config)})
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, farm.user, farm.user)
    as_user = (program("setpriv"), f"--reuid={farm.user}", f"--regid={farm.user}", "--init-groups")
    prefix = (*as_user, program("prlimit"), f"--nproc={THREADS}")
    return Orch(folder, env={"HOME": str(farm.home)}, prefix=prefix)


def test_run_that_fits_the_limit_of_a_user_starts_and_ends(orch: Orch) -> None:
    assert sorted(orch("ssh-launch", "--", "sh", "-c", "echo up").stdout.splitlines()) == [
        f"[n{rank}:{rank}] up" for rank in range(4)
    ]


def test_run_of_too_many_nodes_for_a_user_is_refused_before_anything_starts(orch: Orch, farm: Farm) -> None:
    _with_nodes(orch.cwd / "inventory.yaml", farm.addresses(200))
    before = farm.connections()
    stderr = orch("ssh-launch", "--", "true", code=4).stderr
    needed = re.search(
        rf"200 nodes need (\d+) threads, and of the {THREADS} processes and threads that the user may have, \d+ exist",
        stderr,
    )
    assert needed, stderr
    assert int(needed[1]) > THREADS
    assert "the hard limit (`ulimit -Hu`) is too low" in stderr
    assert not (orch.home / "runs").exists()
    assert farm.connections() == before


def _with_nodes(path: Path, addresses: list[str]) -> None:
    inventory = YAML(typ="safe").load(path)
    nodes = [{"name": f"m{index}", "address": address} for index, address in enumerate(addresses)]
    write_inventory(path, {**inventory, "nodes": nodes}, {})
