"""The Python interface starts the same runs as the commands."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import orchestrator
from orchestrator.api import launches
from orchestrator.api.program import ProgramLike
from orchestrator.errors import LaunchError, RunNotFound, UsageError
from orchestrator.records.runs import find_run
from orchestrator.run import RunState
from tests.api.local import working_folder
from tests.grounds.cli import Orch

SCRIPT = """
import orchestrator, sys
from pathlib import Path

def greet(name, *, twice=False):
    print("hello", name, flush=True)
    if twice:
        print("hello again", name, flush=True)
    if name == "nobody":
        sys.exit(3)

if __name__ == "__main__":
    run = orchestrator.ssh_launch(greet, "inventory.yaml", args=["a b$c"], kwargs={"twice": True}, shape="1x2")
    print(run.id, run.wait(60).state.value)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A working folder with an inventory.yaml of this machine, and an empty run record."""
    with working_folder(tmp_path, ("n0",)) as folder:
        yield folder


def _printed(run: orchestrator.Run) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "logs", run.id, "--stream", "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(done.stdout.splitlines())


def test_program_runs_once_a_rank(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = orchestrator.ssh_launch(["sh", "-c", 'echo "rank $RANK"'], here / "inventory.yaml", shape="1x2")
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.api.run.refresh", lambda _: pytest.fail("a supervised run was queried"))
        assert run.wait(60).state is RunState.DONE
    assert _printed(run) == ["[n0:0] rank 0", "[n0:1] rank 1"]


@pytest.mark.parametrize(("bare", "there"), [(False, "True"), (True, "False")])
def test_python_program_is_prepared_unless_it_is_bare(here: Path, *, bare: bool, there: str) -> None:
    code = "import sys; print('_orch_trainer' in sys.modules)"
    run = orchestrator.ssh_launch(["-c", code], here / "inventory.yaml", shape="1x1", bare=bare)
    assert run.wait(60).state is RunState.DONE
    assert _printed(run) == [f"[n0:0] {there}"]


def test_function_of_a_script_runs_with_its_arguments_and_without_the_code_that_launches_it(here: Path) -> None:
    (here / "train.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True)
    run_id, state = done.stdout.split()
    assert state == "DONE"
    lines = ["hello a b$c", "hello again a b$c"]
    assert _printed(orchestrator.Run(run_id)) == [f"[n0:{rank}] {line}" for rank in (0, 1) for line in lines]


def test_failed_run_is_recorded_as_failed_and_a_sleeping_run_can_be_stopped(here: Path) -> None:
    failed = orchestrator.ssh_launch(["sh", "-c", "exit 7"], here / "inventory.yaml", shape="1x1").wait(60)
    assert failed.state is RunState.FAILED
    assert failed.exit is not None
    assert failed.exit.code == 7
    sleeper = orchestrator.ssh_launch(
        "sleep 1000", here / "inventory.yaml", name="long", note="until stopped", tags="slow"
    )
    assert sleeper.record.to_json()["request"]["program"]["args"] == ["sleep", "1000"]
    assert orchestrator.Run("long").id == orchestrator.Run("latest").id == sleeper.id
    assert find_run("long").path.name == sleeper.id
    assert (sleeper.record.note, sleeper.record.tags) == ("until stopped", ("slow",))
    with pytest.raises(TimeoutError, match="after 0 s"):
        sleeper.wait(0)
    assert sleeper.stop().state is RunState.STOPPED


@pytest.mark.parametrize(
    ("program", "options", "why"),
    [
        (lambda: None, {}, "not a function of a file"),
        (print, {}, "not a function of a file"),
        (test_program_runs_once_a_rank, {}, "would not be sent"),
        (["sh"], {"args": [1]}, "for a function"),
        (None, {"settings": {"stepz": 3}}, "stepz"),
        (["sh"], {"nodes": "n7"}, "n7"),
        (["sh"], {"name": "latest"}, "cannot name a run"),
        (["sh"], {"name": "a-20260102-030405-0abc"}, "cannot name a run"),
        (["sh"], {"name": "../a"}, "cannot name a run"),
        (["sh"], {"tags": ["a b"]}, "not one word"),
        (["sh"], {"tags": "a b"}, "not one word"),
        ("sh -c 'exit", {}, "No closing quotation"),
    ],
)
def test_invalid_launch_is_refused_before_anything_starts(
    here: Path, program: ProgramLike, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        orchestrator.ssh_launch(program, here / "inventory.yaml", **options)
    assert not list(here.glob(".orch-home/runs/*"))


@pytest.mark.usefixtures("here")
def test_options_of_slurm_are_checked_and_refused_over_ssh() -> None:
    with pytest.raises(UsageError, match=r"--set slurm\.time: 2h is not a Slurm time"):
        orchestrator.submit(["true"], slurm={"options": ["--nice=5", "--wckey=x"], "time": "2h"})
    with pytest.raises(UsageError, match=r"--set slurm\.options: --nodes=3: orch decides --nodes itself"):
        orchestrator.submit(["true"], slurm={"options": ["--nodes=3"]})


@pytest.mark.parametrize(
    ("launch", "option"),
    [
        (orchestrator.ssh_launch, {"node": "n0"}),
        (orchestrator.ssh_launch, {"max_retry": 3}),
        (orchestrator.submit, {"setting": {}}),
        (orchestrator.ssh_launch, {"after": ["latest"]}),
        (orchestrator.submit, {"elastic": "1:2"}),
    ],
)
def test_misspelt_option_is_an_error(here: Path, launch: Callable[..., Any], option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        launch(["true"], here / "inventory.yaml", **option)
    assert not list(here.glob(".orch-home/runs/*"))


def test_package_lists_its_names_and_a_run_that_does_not_exist_is_no_object(here: Path) -> None:
    assert here.exists()
    assert {name for name in dir(orchestrator) if not name.startswith("_")} == set(orchestrator.__all__) - {
        "__version__"
    }
    with pytest.raises(RunNotFound):
        orchestrator.Run("nobody")


def test_argument_that_json_cannot_encode_is_refused(here: Path) -> None:
    (here / "train.py").write_text(SCRIPT)
    code = "import orchestrator, train; orchestrator.ssh_launch(train.greet, 'inventory.yaml', args=[object()])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "arguments of greet: " in done.stderr


def test_wait_for_a_failed_run_that_no_supervisor_ends_raises_and_names_the_nodes(here: Path) -> None:
    two = (here / "inventory.yaml").read_text("utf-8")
    (here / "two.yaml").write_text(two.replace("- name: n0", "- name: n0\n- name: n1"), "utf-8")
    program = ["sh", "-c", f'[ "$RANK" = 0 ] && exec sleep 1000; until [ -e {here}/go ]; do sleep 0.1; done; exit 7']
    run = orchestrator.ssh_launch(program, here / "two.yaml", shape="2x1")
    try:
        Orch(here).kill_supervisor(run.id)
        (here / "go").touch()
        with pytest.raises(LaunchError, match=f"rank 1 on n1 exited 7; n0 may still run: .*`orch attach {run.id}`"):
            run.wait(60)
    finally:
        run.stop()


@pytest.mark.parametrize(
    ("launch", "options"),
    [(orchestrator.submit, launches._SlurmOptions), (orchestrator.ssh_launch, launches._SshOptions)],
)
def test_overloads_have_all_parameters(launch: Callable[..., Any], options: type) -> None:
    written_out = {"program", "inventory", "dry_run", "sweep", "at_once"}
    assert set(inspect.signature(launch).parameters) - written_out == set(get_type_hints(options))
