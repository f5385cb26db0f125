"""A user's Python program runs under orch as under plain Python: orch only patches imported modules, invisibly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory import model as inventories
from orchestrator.plan import plan as plans
from orchestrator.plan.files import SITE_DIR, job_json
from orchestrator.plan.make import make_plan
from orchestrator.resources import trainer_folder
from orchestrator.usecases.launch.request import make_request
from orchestrator.usecases.launch_arguments import LaunchArguments

NODES = "name: here\naccelerator: cpu\ndevices: 1\ntransport: local\nnodes: [{name: n0}]\n"
SITE_FOLDER = trainer_folder().parent / SITE_DIR

PRINTS_ITS_ENVIRONMENT = """
import __main__, os, sys
print(sys.argv, sys.path, sys.orig_argv if hasattr(sys, "orig_argv") else None, sys.flags)
print(__name__, globals().get("__file__"), __package__, __spec__ and __spec__.name, __main__.__dict__ is globals(), sorted(globals()))
print(os.getcwd(), sys.excepthook is sys.__excepthook__, sys.breakpointhook is sys.__breakpointhook__)
import trainer
print(trainer.__file__)
"""
RAISES = """
def fails(depth):
    if depth:
        fails(depth - 1)
    raise ValueError("é") from KeyError("a")
fails(2)
"""
SPAWNS = """
import multiprocessing, pickle
print("imported as", __name__)
class Thing:
    def __init__(self, number):
        self.number = number
def double(thing):
    return Thing(2 * thing.number)
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Thing(1))).number, pickle.dumps(Thing))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(double, (Thing(21),)).number)
"""
LASTING = """
import atexit, os, signal, sys, threading
atexit.register(lambda: print("at exit", sorted(name for name in globals() if name.isupper())))
GLOBAL = 1
def late():
    threading.main_thread().join()
    print("after main", GLOBAL)
threading.Thread(target=late).start()
"""


@dataclass(frozen=True)
class Scripts:
    """Runs programs in a folder with its own module `trainer`, under plain Python or prepared by orch."""

    folder: Path

    def run(self, *words: str, prepared: bool, path: Path | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; `path` comes after orch's folder on PYTHONPATH."""
        entries = [*([str(SITE_FOLDER)] if prepared else []), *([str(path)] if path else [])]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {"PYTHONPATH": os.pathsep.join(entries)} if entries else {}
        argv = [sys.executable, "-u", *words]
        done = subprocess.run(argv, cwd=self.folder, env=env, check=False, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    (tmp_path / "trainer.py").touch()
    return Scripts(tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PRINTS_ITS_ENVIRONMENT, 0),
        (RAISES, 1),
        (SPAWNS, 0),
        (LASTING, 0),
        ("print('unfinished'", 1),
        ("import nowhere.at_all", 1),
        ("raise SystemExit", 0),
        ("raise SystemExit(99)", 99),
        ("raise SystemExit('last line')", 1),
        ("import os; os._exit(93)", 93),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_prepared_script_behaves_exactly_as_under_plain_python(scripts: Scripts, text: str, code: int) -> None:
    """Arguments, __main__, sys.path, tracebacks, exit codes, signals, exit handlers, spawned children."""
    (scripts.folder / "train.py").write_text(text)
    plain = scripts.run("train.py", "--lr", "1e-3", "", "a b", prepared=False)
    assert scripts.run("train.py", "--lr", "1e-3", "", "a b", prepared=True) == plain
    assert plain[0] == code


@pytest.mark.parametrize("words", [("-m", "package.module", "-x"), ("-c", PRINTS_ITS_ENVIRONMENT, "-x")])
def test_prepared_module_or_code_behaves_exactly_as_under_plain_python(
    scripts: Scripts, words: tuple[str, ...]
) -> None:
    (scripts.folder / "package").mkdir()
    (scripts.folder / "package" / "module.py").write_text(PRINTS_ITS_ENVIRONMENT + RAISES)
    plain = scripts.run(*words, prepared=False)
    assert scripts.run(*words, prepared=True) == plain
    assert plain[1]


def test_sitecustomize_of_the_node_is_executed_too(scripts: Scripts) -> None:
    site = scripts.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("WHOSE = 'the node'\nprint('hello from', __file__)")
    (scripts.folder / "train.py").write_text("import sitecustomize, sys; print(sitecustomize.WHOSE, sys.path)")
    plain = scripts.run("train.py", prepared=False, path=site)
    assert plain[1].startswith("hello from")
    assert scripts.run("train.py", prepared=True, path=site) == plain


def test_no_module_is_imported_that_the_script_does_not_import(scripts: Scripts) -> None:
    text = "import sys; print(len([name for name in sys.modules if name.split('.')[0] in ('torch', 'typing', 'json')]))"
    (scripts.folder / "train.py").write_text(text)
    assert scripts.run("train.py", prepared=True) == scripts.run("train.py", prepared=False)


def test_module_is_patched_on_import_and_keeps_its_loader_and_source(scripts: Scripts) -> None:
    """The module is a double of an old torch, whose optimizers have no hooks."""
    (scripts.folder / "torch" / "optim").mkdir(parents=True)
    for package in ("torch", "torch/optim"):
        (scripts.folder / package / "__init__.py").touch()
    (scripts.folder / "torch" / "optim" / "optimizer.py").write_text("class Optimizer:\n    pass\n")
    (scripts.folder / "train.py").write_text(
        "import torch.optim.optimizer as module, importlib, inspect, pickle\n"
        "print(module.Optimizer.__init__ is object.__init__, type(module.__loader__), module.__spec__.origin)\n"
        "print(inspect.getsource(module), pickle.dumps(module.Optimizer), importlib.reload(module) is module)\n"
    )
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "ORCH_RUN_DIR": ".", "ORCH_NODE": "n0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**env, "ORCH_ATTEMPT": "1"}.items():
            patch.setenv(name, value)
        plain, prepared = (scripts.run("train.py", prepared=is_prepared) for is_prepared in (False, True))
    assert plain[1].startswith("True ")
    assert prepared == (0, plain[1].replace("True ", "False ", 1), "")


def _words(*program: str, bare: bool = False, per_node: bool = False) -> LaunchArguments:
    return LaunchArguments("ssh", None, None, None, None, (), program or None, bare=bare, per_node=per_node)


@pytest.mark.parametrize(
    ("program", "bare", "path"),
    [
        (("train.py", "--bare"), False, SITE_DIR),
        (("-m", "json.tool"), False, SITE_DIR),
        (("-c", "pass"), False, SITE_DIR),
        (("train.py",), True, None),
        (("-c", "pass"), True, None),
        (("sh", "-c", "python train.py"), False, None),
    ],
)
def test_site_folder_is_sent_with_python_programs_that_are_not_bare(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, program: tuple[str, ...], bare: bool, path: str | None
) -> None:
    monkeypatch.chdir(scripts.folder)
    (scripts.folder / "train.py").touch()
    (scripts.folder / "inventory.yaml").write_text(NODES)
    request, bundle = make_request(_words(*program, bare=bare))
    plan = make_plan(inventories.load(Path("inventory.yaml")), request, run_id="x", bundle=bundle.digest)
    assert job_json(plan)["program"]["pythonpath"] == path
    assert (f"{SITE_DIR}/sitecustomize.py" in dict(bundle.files)) is (path is not None)
    assert plans.from_json(plans.to_json(plan)).program == plan.program


@pytest.mark.processes
@pytest.mark.parametrize("option", ["bare", "per_node"])
def test_shared_trainer_is_neither_bare_nor_started_per_node(option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} is for a program of yours"):
        make_request(_words(**{option: True}))
