"""The examples of the pages other than commands: inventories load, Python compiles, orch reads the progress file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.inventory.model import load
from tests.docs.blocks import ROOT, bare_environment
from tests.grounds.cli import Orch

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")))


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "yaml")])
def test_inventories_of_a_page_load(page: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    (tmp_path / "team.env").write_text("HF_TOKEN=x\n")
    (tmp_path / "team.env").chmod(0o600)
    for text in _blocks(page, "yaml"):
        whole = text if "nodes:" in text else f"{text}nodes: [{{name: n0}}]\n"
        file.write_text(whole)
        assert load(file).nodes


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")])
def test_python_of_a_page_compiles(page: str) -> None:
    for text in _blocks(page, "python"):
        compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # as in notebooks


@pytest.mark.processes
def test_status_shows_the_progress_of_the_documented_example(tmp_path: Path) -> None:
    """Also of a program that orch does not prepare."""
    example = next(text for text in _blocks("docs/programs.md", "python") if "report(steps, done=True)" in text)
    folder = tmp_path / "code"
    folder.mkdir()
    begin = "first_step, steps, loss = 90, 120, 0.5\ntrain_one_step = save_checkpoint = lambda *_: None\n"
    (folder / "train.py").write_text(begin + example)
    orch = Orch(folder, env={"HOME": str(tmp_path)})
    orch("ssh-launch", "-i", "local", "-j", "2x1", "--", sys.executable, "train.py")

    ranks = [node["progress"][str(rank)] for rank, node in enumerate(orch.status()["nodes"])]
    assert [(rank["saved"], rank["phase"], rank["loss"]) for rank in ranks] == [(100, "done", 0.5)] * 2
    assert orch("status").stdout.count("120/120") == 3  # of the run, and of two nodes


@pytest.mark.processes
def test_documented_line_enables_completion(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands" / "index.md").read_text("utf-8")
    [line] = re.findall(r"^    (eval .*bash_source.*?)\s+#", page, re.MULTILINE)
    script = f"{line}\nCOMP_WORDS=(orch ssh-l) COMP_CWORD=1\n_orch_completion orch\necho ${{COMPREPLY[0]}}"
    env = bare_environment(tmp_path, Path(sys.executable).parent)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ssh-launch"), done.stderr
