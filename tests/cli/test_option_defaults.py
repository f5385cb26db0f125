"""The user's config.yaml: defaults of options for command lines that do not give them, and an inventory for folders without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import app
from orchestrator.resources import inventory_folder

PLAN = ["ssh-launch", "--dry-run", "--", "true"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in the folder of the records; the working folder has no inventory."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home" / "config.yaml"


def test_options_of_the_file_are_used_unless_they_are_given(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("inventory: local\nssh-launch:\n  name: usual\n  env: [A=1, B=2]\n  max-retries: 3\n")
    assert app.run(list(PLAN)) == 0
    printed = capsys.readouterr().out
    assert "A='1'" in printed
    assert "B='2'" in printed
    assert "usual-" in printed
    assert app.run(["ssh-launch", "--name", "given", "--env", "A=9", *PLAN[1:]]) == 0
    printed = capsys.readouterr().out
    assert "A='9'" in printed
    assert "B='2'" not in printed
    assert "given-" in printed


@pytest.mark.parametrize("inventory", ["local", str(inventory_folder() / "local.yaml")])
def test_inventory_of_the_file_is_used_in_a_folder_without_one(
    config: Path, capsys: pytest.CaptureFixture[str], inventory: str
) -> None:
    config.write_text(f"inventory: {inventory}\n")
    assert app.run(["inventory", "show"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "local"
    Path("inventory.yaml").write_text("name: beside\nnodes: [{name: n0}]\n")
    assert app.run(["inventory", "show"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "beside"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssh-launch:\n  max-retriess: 3", ":2: ssh-launch.max-retriess: unknown; did you mean max-retries? allowed: inventory"),
        ("ssh-launch: {max-retries: x}", ":1: ssh-launch.max-retries: 'x' is not"),
        ("ssh-launch: {max-retries: {a: 1}}", ":1: ssh-launch.max-retries: "),
        ("ssh-launch: {env: A=1}", ":1: ssh-launch.env: Value must be an iterable"),
        ("ssh-launch: {help: true}", ":1: ssh-launch.help: unknown"),
        ("ssh-launch: [a]", ":1: ssh-launch: must be a mapping of options"),
        ("lounch: {}", ":1: lounch: unknown; did you mean"),
        ("[1]", ":1: must be a mapping of `key: value` lines, of commands and their options"),
        ("inventory: a/b.yaml", ":1: inventory: a/b.yaml is relative"),
        ("inventory: {show: {}}", ":1: inventory: must be one path"),
        ("a: b: c", ":1: not YAML"),
    ],
)  # fmt: skip
def test_mistakes_of_the_file_name_file_line_and_option(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    config.write_text(text)
    assert app.run(list(PLAN)) == 2
    printed = capsys.readouterr().err
    assert f"orch: error: {config}{message}" in printed
    assert "next: correct that line" in printed


def test_sections_of_a_group_are_those_of_its_commands(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("bench: {nowhere: {}}\n")
    assert app.run(["bench", "network"]) == 2
    assert f"{config}:1: bench.nowhere: unknown; allowed: " in capsys.readouterr().err
