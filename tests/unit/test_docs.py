"""The documentation says what is there: commands, options, links, and a README that runs as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from trainer.config import rules_by_key

ROOT = Path(__file__).parents[2]
COMMANDS = ("submit", "ssh-launch", "logs", "status", "list", "env", "attach", "stop", "gc", "inventory")
LOCAL = """
name: doc
accelerator: cpu
transport: local
defaults: {workdir: WORKDIR}
nodes: [{name: n0}]
"""


def _help(*words: str) -> str:
    argv = [sys.executable, "-m", "orchestrator", *words, "--help"]
    env = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb", "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=env, cwd=ROOT).stdout


def _section(command: str) -> str:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    found = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if re.search(rf"\borch {command}\b", part)]
    assert found, f"docs/commands.md has no section on orch {command}"
    return "\n".join(found)


@pytest.mark.processes
def test_every_command_is_known_here() -> None:
    listed = re.findall(r"^  ([a-z][a-z-]+) ", _help().partition("Commands:")[2], re.MULTILINE)
    assert set(listed) == set(COMMANDS)


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    section = _section(command)
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", _help(command))) - {"--help", "--no-follow"}
    assert options or command in {"list", "stop", "inventory"}
    missing = sorted(option for option in options if option not in section)
    assert not missing, f"docs/commands.md does not explain {missing} of orch {command}"


@pytest.mark.processes
@pytest.mark.parametrize("sub", ["show", "validate", "import"])
def test_inventory_commands_are_documented(sub: str) -> None:
    assert _help("inventory", sub)
    assert sub in _section("inventory")


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_how_it_works_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    for name in re.findall(r"`((?:orchestrator|trainer|commands|launchers|logs|node)/[\w./-]+)`", text):
        assert (ROOT / name).exists() or (ROOT / "orchestrator" / name).exists(), name


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("inventories/*")]


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in PAGES))
def test_no_page_promises_a_command_that_is_not_there(page: str) -> None:
    for command in re.findall(r"(?:`|^#? *)orch ([a-z][a-z-]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE):
        assert command in COMMANDS, f"{page} speaks of orch {command}"


def _readme_lines() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("orch ")]


@pytest.mark.processes
def test_readme_launches_plan_as_written(tmp_path: Path) -> None:
    """Its inventory is the shipped one that the README copies; --dry-run stands in for thirty-two H800 nodes."""
    (tmp_path / "inventory.yaml").write_text((ROOT / "inventories" / "h800.yaml").read_text("utf-8"))
    (tmp_path / "train.py").write_text("")
    launches = [
        line for line in _readme_lines() if line.startswith(("orch ssh-launch", "orch submit", "orch inventory"))
    ]
    assert len(launches) > 4
    for line in launches:
        words = shlex.split(line)[1:]
        extra = [] if words[0] == "inventory" or "--dry-run" in words else ["--dry-run"]
        Orch(tmp_path)(words[0], *extra, *words[1:])


@pytest.mark.processes
def test_readme_commands_on_runs_work_as_written(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(LOCAL.replace("WORKDIR", str(tmp_path / ".work")))
    orch = Orch(tmp_path)
    orch("ssh-launch", "-j", "1x1", "--", "echo", "hi")
    lines = [line for line in _readme_lines() if line.startswith(("orch logs", "orch status", "orch stop"))]
    assert len(lines) > 3
    for line in lines:
        words = shlex.split(line)[1:]
        orch(*("0" if word == "3" else word for word in words))  # one rank here, where the README has sixteen


def test_every_key_of_the_trainer_is_documented() -> None:
    text = (ROOT / "docs" / "trainer.md").read_text("utf-8")
    for key in rules_by_key():
        assert f"`{key}`" in text, f"docs/trainer.md does not explain {key}"
