"""Exit codes and messages of errors that no command expects, and the verbs. Exit code 1 is only for a failed training."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator.cli import app, stop
from orchestrator.cli.console import print_json
from orchestrator.cli.options import PanelCommand
from orchestrator.errors import UsageError
from tests.cli.two_nodes import LOADED, SLOW_MODULES, finished_run, open_gate
from tests.docs.test_proposed_commands import error_of
from tests.grounds.cli import Orch
from tests.until import until


def _ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> tuple[int, str]:
    """Let a command raise the error; return the exit code and stderr."""

    def fail(**_: object) -> int:
        raise error

    monkeypatch.setattr(stop.stop, "callback", fail)
    return app.run(["stop"]), capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/run.json"), "/a/run.json: No space left", "free space"),
        (OSError(errno.EACCES, "Permission denied", "/a/runs"), "/a/runs: Permission denied", "ORCH_HOME"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files", "ulimit -n"),
        (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "Resource temporarily", "ulimit -u"),
        (OSError(errno.EIO, "Input/output error", "/a/b"), "/a/b: Input/output error", ""),
        (RuntimeError("can't start new thread"), "can't start new thread", "ulimit -u"),
        (MemoryError(), "out of memory", "ulimit -v"),
    ],
)
def test_error_of_this_machine_exits_4_and_names_path_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, message: str, hint: str
) -> None:
    code, stderr = _ended(monkeypatch, capsys, error)
    assert code == 4
    assert message in stderr
    assert hint in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("typed", ["topp", "stops", "sop", "gcc", "execs", "cpp", "rerunn", "submits", "ssh-launc"])
def test_no_command_that_acts_is_proposed_by_its_spelling(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    assert app.run([typed]) == 2
    stderr = capsys.readouterr().err
    assert f"orch has no command {typed!r}" in stderr
    assert not re.search(r"\b(stop|gc|exec|cp|rerun|submit|ssh-launch|attach|ladder|bench)\b", stderr)


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("statsu", "did you mean orch stats or orch status?"),
        ("log", "orch logs -f RUN"),
        ("kill", "orch stop RUN"),
        ("cancel", "orch stop RUN"),
        ("ps", "orch list"),
        ("ls", "orch list"),
        ("restart", "orch rerun RUN"),
        ("run", "orch ssh-launch -- PROGRAM"),
        ("tail", "orch logs -f RUN"),
        ("rm", "orch gc --dry-run"),
        ("xyzzy", "orch --help"),
    ],
)
def test_wrong_command_names_the_command_for_it(capsys: pytest.CaptureFixture[str], typed: str, proposed: str) -> None:
    assert app.run([typed]) == 2
    assert f"next: {proposed}" in capsys.readouterr().err


def test_words_of_other_tools_name_commands_that_exist() -> None:
    named = {word for hint in app._INSTEAD.values() for word in re.findall(r"\borch ([a-z-]+)", hint)}  # it is a table
    assert named - {"--help"} <= set(app.VERBS)
    assert not set(app._INSTEAD) & set(app.VERBS)
    assert set(app._HARMLESS) <= set(app.VERBS)


def test_every_command_is_in_one_group_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem: path.read_text("utf-8") for path in Path(app.__file__).parent.glob("*.py")}
    commands = {name for name, text in modules.items() if re.search(rf"^def {name}_?\(", text, re.MULTILINE)}
    in_groups = [verb.replace("-", "_") for verbs in app.GROUPS.values() for verb in verbs]
    with_command = {name for name in commands if "@click.command" in modules[name] or "@click.group" in modules[name]}
    assert sorted(in_groups) == sorted(with_command - {"app"})
    assert app.run(["-h"]) == 0
    shown = capsys.readouterr().out
    assert [heading for heading in app.GROUPS if f"\n{heading}:\n" in shown] == list(app.GROUPS)
    assert re.findall(r"^  ([a-z][a-z-]+) {2,}", shown, re.MULTILINE) == list(app.VERBS)


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, each in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _commands(each, f"{path} {name}")


@pytest.mark.parametrize("verb", app.VERBS)
def test_help_ends_with_examples_that_are_accepted(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path, _ in _commands(app.load(verb), verb):
        assert app.run([*path.split(), "-h"]) == 0
        examples = capsys.readouterr().out.partition("\n  Example")[2].splitlines()[1:]
        assert examples, path
        for example in examples:
            line = re.search(r"\borch ([^>]*)", example)
            assert line, example
            assert line[1].startswith(path), example
            assert error_of(shlex.split(line[1])) == "", example


@pytest.mark.parametrize("verb", app.VERBS)
def test_no_option_of_a_command_with_many_is_without_a_heading(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([verb, "--help"]) == 0
    shown = capsys.readouterr().out.partition("\nOptions:\n")[2].partition("\n\n")[0]
    options = re.findall(r"^  (-\S+)", shown, re.MULTILINE)
    assert len(options) <= 15
    if isinstance(app.load(verb), PanelCommand):
        assert options == ["-h,"]


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_help_is_as_wide_as_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in ([], ["ssh-launch"], ["logs"]):
        assert app.run([*words, "-h"]) == 0
        described = capsys.readouterr().out.partition("\n  Example")[0]
        widest = max(map(len, described.splitlines()))
        assert min(columns, app.WIDEST_HELP) * 0.7 < widest <= min(columns, app.WIDEST_HELP)


@pytest.mark.parametrize("verb", app.VERBS)
def test_list_of_verbs_shows_the_help_of_their_modules(verb: str) -> None:
    command, listed = app.load(verb), app.app.get_command(click.Context(app.app), verb)
    assert command.name == verb
    assert listed is not None
    for limit in range(20, 200):
        assert listed.get_short_help_str(limit) == command.get_short_help_str(limit)


@pytest.mark.processes
def test_help_imports_nothing_that_only_the_work_of_a_verb_needs() -> None:
    program = f"""
import sys
from orchestrator.cli import app
app.run(["--help"])
print("listed", *sys.modules, file=sys.stderr)
for verb in {list(app.VERBS)}:
    app.run([verb, "--help"])
print("parsed", *sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    listed, parsed = (line.split() for line in done.stderr.splitlines())
    assert [name for name in listed if name.startswith("orchestrator.cli.")] == [
        "orchestrator.cli.groups",
        "orchestrator.cli.app",
    ]
    assert not {"fabric", "jinja2", "paramiko", "pydantic", "rich", "ruamel", "submitit"} & set(parsed)


def test_unexpected_exception_is_reported_as_a_bug_and_exits_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, stderr = _ended(monkeypatch, capsys, ValueError("three"))
    assert code == 70
    assert "Traceback" in stderr
    assert "a bug in orch: ValueError: three" in stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train.py", "--epochs", "3"), "orch submit -- train.py --epochs 3"),
        (("-j", "2x2", "./run.sh", "-x", "--lr=1e-3"), "orch submit -- ./run.sh -x --lr=1e-3"),
    ],
)
def test_option_of_a_program_without_two_dashes_is_explained(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    assert app.run(["submit", *words]) == 2
    stderr = capsys.readouterr().err
    assert f"put a program of yours after --: {line}\n" in stderr
    assert "is not an option of orch submit" in stderr


def test_unknown_option_without_a_program_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["ssh-launch", "steps=3", "--dryrun"]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("orch: error: no such option '--dryrun'")
    assert "--dry-run" in stderr
    assert stderr.endswith("\n  next: orch ssh-launch --help shows its arguments and options\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "no-such-run", "--json"], "no run 'no-such-run' in "),
        (["logs", "--json", "--tail", "x"], "invalid value for '--tail': "),
        (["stop", ""], "RUN is empty"),
        (["status", "", "--json"], "RUN is empty"),
    ],
)
def test_error_is_one_line_with_a_next_step_and_with_json_an_object(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    run = tmp_path / "runs" / "gpt-20260102-030405-0abc"  # the only one: every id begins with an empty text
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert app.run(words) == 2
    captured = capsys.readouterr()
    first, hint = captured.err.splitlines()
    assert first.startswith(f"orch: error: {message}")
    assert hint.startswith("  next: ")
    if "--json" in words:
        error = json.loads(captured.out)
        assert error["schema"] == 1
        assert error["error"]["message"].startswith(message)
        assert (error["error"]["next"], error["error"]["code"]) == (hint.removeprefix("  next: "), 2)
    else:
        assert captured.out == ""


@pytest.mark.parametrize("value", [{"id": "a"}, [{"id": "a"}]])
def test_json_has_the_version_of_its_schema(capsys: pytest.CaptureFixture[str], value: object) -> None:
    print_json(value)
    printed = json.loads(capsys.readouterr().out)
    assert (printed[0] if isinstance(printed, list) else printed) == {"schema": 1, "id": "a"}


def test_node_and_nodes_are_one_option() -> None:
    """But of orch env, which shows some nodes of a launch on more of them."""
    names = {
        verb: [{*parameter.opts} & {"--node", "--nodes"} for parameter in app.load(verb).params]
        for verb in app.VERBS
        if verb != "env"
    }
    spellings = {verb: set().union(*found) for verb, found in names.items() if any(found)}
    assert spellings
    assert {verb: options for verb, options in spellings.items() if options != {"--node", "--nodes"}} == {}


def _into_closed_pipe(orch: Orch, *words: str) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        return subprocess.run(
            orch.argv(words),
            cwd=orch.cwd,
            env=orch.environ(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.mark.processes
def test_closed_stdout_exits_141(orch: Orch) -> None:
    assert _into_closed_pipe(orch, "inventory", "show").returncode == 141


@pytest.mark.processes
def test_closed_stdout_ends_watching_with_141_and_the_run_continues(orch: Orch) -> None:
    open_gate(orch)
    watching = _into_closed_pipe(orch, "ssh-launch", "--", "echo", "up")
    assert watching.returncode == 141
    assert "nobody reads the output any more; the run continues" in watching.stderr
    until(lambda: orch.status()["state"] == "DONE", awaited="the run to be done")
    assert _into_closed_pipe(orch, "logs", "-f").returncode == 141


@pytest.mark.parametrize("words", ["ssh-launch", "submit", "attach", "rerun latest"])
def test_lines_of_a_run_that_is_not_watched_cannot_be_folded(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*words.split(), "--fold", "--detach"]) == UsageError.exit_code
    assert "--fold and --detach exclude each other" in capsys.readouterr().err


def test_homes_of_the_records_are_private_whatever_the_umask(orch: Orch) -> None:
    finished_run(orch, "true")
    assert {path.stat().st_mode & 0o777 for path in (orch.home, orch.home / "runs")} == {0o700}


def test_closed_or_ascii_output_prints_no_traceback(orch: Orch) -> None:
    finished_run(orch, "printf", "\\303\\251\\n")
    for command in ("list >&-", "logs >&-", "logs 2>&-", "logs >/dev/full"):
        words = f'"$0" -m orchestrator {command}'
        done = subprocess.run(
            ["sh", "-c", words, sys.executable],
            cwd=orch.cwd,
            env=orch.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
    ascii_only = Orch(orch.cwd, env={"PYTHONIOENCODING": "ascii"})
    assert "\\xe9" in ascii_only("logs", "--rank", "0").stdout


def test_error_message_of_a_rank_neither_moves_the_cursor_nor_is_read_as_markup(orch: Orch) -> None:
    open_gate(orch)
    message = r'{"message": "no [/data] [red]x \u001b]0;title\u0007"}'
    program = ("sh", "-c", 'printf %s "$1" > "$TORCHELASTIC_ERROR_FILE"; exit 1', "sh", message)
    followed = orch("ssh-launch", "--", *program, code=1)
    shown = [followed.stderr, orch("list").stdout, orch("status", code=1).stdout]
    for text in shown:
        assert r"no [/data] [red]x \x1b]0;title\x07" in text
        assert "\x1b" not in text


def test_command_that_needs_no_inventory_imports_no_slow_module(orch: Orch) -> None:
    finished_run(orch, "true")
    for words in (["--help"], ["status", "--json"], ["logs"], ["stop"], ["list", "--json"]):
        argv = [sys.executable, "-c", LOADED, *words]
        done = subprocess.run(argv, cwd=orch.cwd, env=orch.environ(), capture_output=True, text=True, check=True)
        assert not {name.partition(".")[0] for name in done.stderr.split()}.intersection(SLOW_MODULES), words


@pytest.mark.processes
def test_ssh_transport_does_not_import_the_modules_that_check_an_inventory() -> None:
    program = (
        "import sys, orchestrator.supervision.supervisor, orchestrator.transports.ssh.transport; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "paramiko" in loaded
    assert not loaded.intersection({"pydantic", "ruamel.yaml", "jinja2", "rich", "orchestrator.inventory.model"})
