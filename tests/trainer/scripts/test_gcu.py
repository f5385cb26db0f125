"""The vendor's migration is imported for scripts, when torch and torch_gcu are both complete. Both are doubles of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.plan.files import SITE_DIR
from orchestrator.resources import trainer_folder
from tests.grounds import components
from tests.grounds.gcu import environment
from tests.grounds.scripts import ACCELERATE

SITE = str(trainer_folder().parent / SITE_DIR)
TORCH = """\
from . import version
import {autoload}
is_complete = True
"""
TORCH_GCU = """\
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
is_complete = True
"""
TRANSFER = """\
import torch
import torch_gcu
print("migrated", torch.is_complete, torch_gcu.is_complete)
"""
SHOWS = 'import os; print(os.environ.get("ENFLAME_TORCH_GCU_ENABLE_AUTO_MIGRATION"))'


def _run(folder: Path, script: str, env: dict[str, str], *path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SITE, *path]), **env},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _migrated(
    folder: Path, script: str, *, autoload: str = "os", cuda: str = "None", transfer: str = TRANSFER, **env: str
) -> subprocess.CompletedProcess[str]:
    texts = {
        "torch/__init__.py": TORCH.format(autoload=autoload),
        "torch/version.py": f"cuda = {cuda}\n",
        "torch_gcu/__init__.py": TORCH_GCU,
        **({"torch_gcu/transfer_to_gcu.py": transfer} if transfer else {}),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return _run(folder, f"{script}; {SHOWS}", env, str(folder))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "autoload"), [("import torch", "os"), ("import torch_gcu", "os"), ("import torch", "torch_gcu")]
)
def test_migration_is_imported_once_torch_and_torch_gcu_are_complete(
    tmp_path: Path, script: str, autoload: str
) -> None:
    """In either order, and if torch imports torch_gcu itself, as a backend."""
    done = _migrated(tmp_path, script, autoload=autoload)
    assert (done.stdout, done.stderr) == ("migrated True True\n1\n", "")


@pytest.mark.processes
def test_nothing_is_migrated_if_it_is_turned_off_or_not_for_this_torch(tmp_path: Path) -> None:
    off = _migrated(tmp_path / "off", "import torch", ENFLAME_TORCH_GCU_ENABLE_AUTO_MIGRATION="0")
    assert (off.stdout, off.stderr) == ("0\n", "")
    cuda = _migrated(tmp_path / "cuda", "import torch", cuda="'12.4'")
    assert (cuda.stdout, cuda.stderr) == ("None\n", "")
    t20 = _migrated(tmp_path / "t20", "import torch_gcu", transfer="")
    assert (t20.stdout, t20.stderr) == ("None\n", "")


@pytest.mark.processes
def test_migration_that_fails_is_a_warning_and_the_script_runs(tmp_path: Path) -> None:
    done = _migrated(tmp_path, "import torch", transfer="raise RuntimeError('no driver')")
    assert done.returncode == 0
    assert done.stderr == (
        "WARNING: torch_gcu is installed, but its migration from CUDA fails: no driver; "
        "ENFLAME_TORCH_GCU_ENABLE_AUTO_MIGRATION=0 turns it off\n"
    )


SHOWS_DEVICE = """
print("trained", next(model.parameters()).device, torch.distributed.get_backend(), flush=True)
os._exit(0)  # gloo sometimes aborts at the interpreter's exit
"""


@pytest.mark.extended
@pytest.mark.train
@pytest.mark.processes
def test_accelerate_script_for_cuda_trains_on_the_card_of_an_s60(tmp_path: Path) -> None:
    """The real accelerate, on the double of torch_gcu; before, it trained on the CPU."""
    components.module("accelerate")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = _run(
        tmp_path,
        ACCELERATE + SHOWS_DEVICE,
        {**rank, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        environment("s60")["PYTHONPATH"],
    )
    assert done.stdout == "trained gcu:0 eccl\n", done.stderr
    assert "WARNING" not in done.stderr
