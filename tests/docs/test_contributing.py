"""The recipes of CONTRIBUTING.md, followed in a copy of the project; the words of a step name the file and the place that it changes."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launchers.base import Launcher
from tests.paths import ROOT

COPIED = ("orchestrator", "trainer", "templates", "inventories")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

LAUNCHER = '''
"""A launcher that keeps the plan of a run in a file, and starts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.code.bundle import Bundle
from orchestrator.endpoint.logs import BatchLog
from orchestrator.launchers.base import AttemptFolder
from orchestrator.launchers.job import JobStatus
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts


class PaperLauncher:
    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan

    @property
    def plan(self) -> LaunchPlan:
        return self._plan

    def connect(self, plan: LaunchPlan) -> Facts:
        return Facts()

    def push(self, plan: LaunchPlan, bundle: Bundle) -> Facts:
        return Facts(("paper: the code stays here",))

    def start(self, plan: LaunchPlan, bundle: Bundle) -> str | None:
        self._plan = plan
        Path(os.environ["PAPER"]).write_text(
            json.dumps({"run": plan.run_id, "launcher": plan.launcher, "nodes": [node.name for node in plan.nodes]})
        )
        return None

    def undo(self) -> list[str]:
        return []

    def attempt(self) -> int:
        return 1

    def attempt_folders(
        self, attempt: int, nodes: Collection[str] | None = None, *, connect: bool = True
    ) -> Sequence[AttemptFolder]:
        return []

    def job_status(self, job: str | None) -> JobStatus | None:
        return JobStatus("PRINTED", over=True)

    def batch_log(self, max_bytes: int) -> BatchLog | None:
        return None

    def position(self, status: JobStatus) -> str:
        return ""

    def stop(self, job: str | None, *, grace_s: float) -> list[str]:
        return []

    def close(self) -> None:
        pass
'''
BRANCH = """
    if plan.launcher == "paper":
        from orchestrator.launchers.paper import PaperLauncher

        return PaperLauncher(plan)
"""
LAUNCHING_VERB = '''
"""`orch paper-launch`: launch a run on paper."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.launch import launch
from orchestrator.usecases.launch_arguments import LaunchArguments, WatchedLines


@click.command(cls=options.LaunchCommand)
@options.launch
@options.dry_run
@options.watch
def paper_launch(
    program: tuple[str, ...] | None, *, dry_run: bool, follow: bool, watched: WatchedLines, **typed: Any
) -> int:
    """Start a run on paper."""
    arguments = LaunchArguments("paper", program=program, **typed)
    return launch(arguments, dry_run=dry_run, follow=follow, watched=watched)
'''
CHECK = '''

def large_memory(cluster: Cluster) -> Iterator[Finding]:
    """A model of this test needs 1 PiB."""
    for node, facts in cluster.facts.items():
        if facts["memory"]["total"] < 1 << 50:
            text = f"the node has {facts['memory']['total'] // GIB} GiB of memory; the model needs 1 PiB"
            yield Finding(Severity.FAIL, "large-memory", text, (node,), remedy="use a smaller model")
'''
SIGNATURE = """
    root("no-license", r"no license for (?P<feature>\\w+) is left", "config", "all licenses for {feature} are in use",
        "lmstat -a: names the users of {feature}", literal="no license for",
        sample="Error: no license for mesher is left", near="a license is left", source="made for a test"),
"""
WORK = '''
"""The number of the runs that are recorded here."""

from __future__ import annotations

from orchestrator.records.runs import all_runs


def count_runs() -> int:
    runs, _ = all_runs()
    return len(runs)
'''
VERB = '''
"""`orch count-runs`: print the number of the runs that are recorded here."""

from __future__ import annotations

import click

from orchestrator.cli.console import print_text


@click.command()
def count_runs() -> int:
    """Count the runs that are recorded here."""
    from orchestrator.usecases.runs import count

    print_text(f"{count.count_runs()} runs\\n")
    return 0
'''


def _steps(title: str) -> list[str]:
    section = re.search(rf"^### {title}\n\n(.*?)(?:^#|\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert section, f"CONTRIBUTING.md has no section {title!r}"
    return [line for line in section[1].splitlines() if re.match(r"\d\. ", line)]


class Project:
    """A copy of the code of the project, which the steps of a recipe change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)

    def write_module(self, step: str, name: str, text: str) -> None:
        """Write the module whose path the step has, with NAME in it."""
        [path] = re.findall(r"`([\w/]+/NAME\.py)`", step)
        (self.folder / path.replace("NAME", name)).write_text(text.lstrip(), "utf-8")

    def file_of(self, step: str, definition: str) -> Path:
        """The file in which this definition is, by the words of the step."""
        found = re.search(rf"`{definition}`.*? in `([\w/]+\.py)`", step)
        assert found, f"no `{definition}` … in `FILE` in: {step}"
        return self.folder / found[1]

    def add_row(self, step: str, table: str, row: str) -> None:
        """Add a row at the beginning of a table or another bracket that is assigned to a name."""
        path = self.file_of(step, table)
        text, added = re.subn(
            rf"^({table}\b[^\n]*? = \w*[\[({{])",
            lambda found: found[1] + row,
            path.read_text("utf-8"),
            flags=re.MULTILINE,
        )
        assert added == 1, f"{path} has {added} tables {table}"
        path.write_text(text, "utf-8")

    def begin_function(self, step: str, function: str, statements: str) -> None:
        """Add statements at the beginning of a function, after its docstring."""
        path = self.file_of(step, function)
        text = path.read_text("utf-8")
        [found] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == function]
        assert ast.get_docstring(found)
        lines = text.splitlines(keepends=True)
        lines.insert(found.body[0].end_lineno or 0, statements.lstrip("\n"))
        path.write_text("".join(lines), "utf-8")

    def orch(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the copy's `python -m orchestrator` in the folder `job` of the copy."""
        job = self.folder / "job"
        job.mkdir(exist_ok=True)
        (job / "inventory.yaml").write_text(
            f"transport: local\naccelerator: cpu\ndevices: 1\ndefaults: {{workdir: {job / 'work'}}}\nnodes: [{{name: n0}}]\n"
        )
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=job,
            env=_environment(self.folder) | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def _environment(project: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(project),
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
        "PYTHONPATH": str(project),
        "ORCH_HOME": str(project / "records"),
        "PAPER": str(project / "paper.json"),
    }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _add_verb(project: Project, name: str, sentence: str, text: str) -> None:
    _, module, row, _ = _steps("Adding a verb")
    project.write_module(module, name.replace("-", "_"), text)
    project.add_row(row, "GROUPS", f'"More": {{"{name}": "{sentence}"}}, ')


@pytest.mark.processes
def test_verb_is_added_by_its_recipe(project: Project) -> None:
    work = project.folder / re.findall(r"`([\w/]+/)`", _steps("Adding a verb")[0])[0]
    (work / "runs" / "count.py").write_text(WORK.lstrip(), "utf-8")
    _add_verb(project, "count-runs", "Count the runs that are recorded here.", VERB)
    assert "count-runs" in project.orch("--help").stdout
    done = project.orch("count-runs")
    assert (done.returncode, done.stdout) == (0, "0 runs\n"), done.stderr


@pytest.mark.processes
def test_launcher_is_added_by_its_recipe(project: Project) -> None:
    module, name, branch, verb, _, _ = _steps("Adding a launcher")
    project.write_module(module, "paper", LAUNCHER)
    project.add_row(name, "LauncherName", '"paper", ')
    project.add_row(name, "SCHEDULERS", '"paper", ')
    project.begin_function(branch, "launcher_for", BRANCH)
    _add_verb(project, "paper-launch", "Start a run on paper.", LAUNCHING_VERB)
    project.add_row(verb, "_WITH_PROGRAM", '"paper-launch", ')

    done = project.orch("paper-launch", "--detach", "--", "true")
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    assert f'{{"run": "{run}", "launcher": "paper", "nodes": ["n0"]}}' == (project.folder / "paper.json").read_text()
    assert "paper: the code stays here" in done.stderr
    assert not (project.folder / "job" / "work").exists()
    assert "paper" in project.orch("list").stdout
    status = project.orch("status")
    assert "PRINTED" in status.stdout + status.stderr


def test_launcher_of_the_recipe_has_the_members_of_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "paper.py").write_text(LAUNCHER, "utf-8")
    spec = spec_from_file_location("paper", tmp_path / "paper.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert _members(module.PaperLauncher) == _members(Launcher)


def _members(launcher: type) -> dict[str, Any]:
    public = {name: member for name, member in vars(launcher).items() if not name.startswith("_")}
    return {name: inspect.signature(member) if callable(member) else type(member) for name, member in public.items()}


@pytest.mark.processes
def test_check_is_added_by_its_recipe(project: Project) -> None:
    function, row, _, _ = _steps("Adding a check")
    path = project.folder / re.findall(r"`([\w/]+\.py)`", function)[-1]
    path.write_text(path.read_text("utf-8") + CHECK, "utf-8")
    project.add_row(row, "CHECKS", f'"large-memory": {path.stem}.large_memory, ')

    done = project.orch("ssh-launch", "--", "true")
    assert done.returncode == 3, done.stderr
    assert re.search(r"large-memory: n0: the node has \d+ GiB of memory; the model needs 1 PiB", done.stderr)
    assert "use a smaller model" in done.stderr


@pytest.mark.processes
def test_signature_is_added_by_its_recipe(project: Project) -> None:
    project.add_row(_steps("Adding a signature")[0], "PYTHON", SIGNATURE)
    log = project.folder / "train.log"
    log.write_text("step=1 loss=2.5\nError: no license for mesher is left\nstep=2 loss=2.5\n")
    done = project.orch("diagnose", str(log))
    assert done.returncode == 0, done.stderr
    assert "all licenses for mesher are in use" in done.stdout
    assert "lmstat -a: names the users of mesher" in done.stdout


def test_recipes_have_at_most_six_steps() -> None:
    titles = re.findall(r"^### (Adding .*)$", CONTRIBUTING, re.MULTILINE)
    assert len(titles) == 4
    assert all(3 <= len(_steps(title)) <= 6 for title in titles)


def test_files_and_definitions_of_contributing_exist() -> None:
    for name in re.findall(r"`((?:orchestrator|trainer|tests|docs)/[\w./-]*)`", CONTRIBUTING):
        assert "NAME" in name or (ROOT / name).exists(), name
    pairs = re.findall(r"`(\w+)`(?:,? [^`.]*)? in `([\w/]+\.py)`", CONTRIBUTING)
    assert len(pairs) > 10
    for name, path in pairs:
        defined = rf"^(?:class |def ){name}\b|^{name}\b.*="
        assert re.search(defined, (ROOT / path).read_text("utf-8"), re.MULTILINE), f"no {name} in {path}"
