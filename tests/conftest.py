"""Fixtures for the test grounds and golden files; markers and the components they require."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_randomly

from tests.grounds import components
from tests.grounds.cli import supervisors_below
from tests.grounds.containers import Runtime, open_docker, open_podman
from tests.grounds.hosts import Hosts, open_hosts
from tests.grounds.keeper import kill
from tests.grounds.slurm import Cluster, open_cluster
from tests.grounds.sshd import Farm, open_farm

# DeepSpeed registers a seeder with pytest-randomly, for which every test process would import it and torch.
pytest_randomly.entrypoint_reseeds = []

_MARKED_BY_FIXTURE = {
    "farm": "ssh",
    "farm_ground": "ssh",
    "hosts": "hosts",
    "hosts_ground": "hosts",
    "cluster": "slurm",
    "cluster_ground": "slurm",
    "accounted_cluster": "accounting",
    "accounted_cluster_ground": "accounting",
    "slurm_hosts": "slurm",
    "docker": "containers",
    "podman": "containers",
}
# Fixtures that start agents, endpoints, orch or ranks, or whose tests do.
_STARTERS = frozenset(_MARKED_BY_FIXTURE) | {
    *("built", "endpoint", "ground", "here", "laptop", "local", "orch", "reservation", "scripts"),
    *("start_ranks", "torchrun", "warm", "user_folder"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files instead of comparing with them")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Make the million objects of modules and tests, none of which becomes garbage, without a search for it."""
    gc.disable()
    try:
        worker = getattr(session.config, "workerinput", None)
        if worker and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_tests(session.config.rootpath, worker)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_tests(root: Path, worker: Mapping[str, Any]) -> None:
    """
    Import the modules of all tests, each worker from another one on.

    In the same order, all workers would rewrite the assertions of the same module at the same time, each for itself.
    """
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.glob("tests/**/test_*.py"))]
    first = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for name in (*names[first:], *names[:first]):
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(name)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    _add_markers(items)
    yield
    # A test of a minute that starts last would keep one worker busy and the others idle.
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, item.get_closest_marker("processes") is None))


def _add_markers(items: list[pytest.Item]) -> None:
    turns = itertools.cycle((0, 1)), itertools.cycle((0, 1))
    for item in items:
        for fixture, marker in _MARKED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
        if not _STARTERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("processes")
        # at most two clusters per session, one with accounting, and two warm trainers, for any number of workers
        if item.get_closest_marker("slurm"):
            turn = turns[item.get_closest_marker("slow") is None]  # so that both clusters have as many long tests
            item.add_marker(pytest.mark.xdist_group(f"slurm-{next(turn)}"))
        if item.get_closest_marker("accounting"):
            item.add_marker(pytest.mark.xdist_group("accounting"))
        if item.get_closest_marker("containers"):
            item.add_marker(pytest.mark.xdist_group("containers"))
        if item.get_closest_marker("train") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))  # half a minute of CPU time, for two ranks of one test
        if "warm" in getattr(item, "fixturenames", ()):
            file = item.nodeid.partition("::")[0]
            item.add_marker(pytest.mark.xdist_group(f"train-{zlib.crc32(file.encode()) % 2}"))


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> None:
    """
    Give processes that tests start the default action for SIGINT and SIGHUP, even under nohup or a script's `&`.

    An ignored signal stays ignored through exec; a signal with a handler gets its default action.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Free what a failed test left open and its traceback references, before another test is blamed for it."""
    failures = item.session.testsfailed
    outcome = yield
    if item.session.testsfailed > failures:
        sys.last_type = sys.last_value = sys.last_traceback = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return outcome


class _ProcessGuard:
    """Fails a test that starts a Python without the marker `processes`: `make test-quick` would become slow unnoticed."""

    def __init__(self) -> None:
        self.test: pytest.Item | None = None
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.test is None or event not in ("os.fork", "subprocess.Popen"):
            return
        if event == "os.fork" or "python" in Path(os.fsdecode(args[0])).name:  # type: ignore[arg-type]
            raise RuntimeError(f"{self.test.name} starts a Python process: mark it `processes`")


_guard = _ProcessGuard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    _guard.test = None if item.get_closest_marker("processes") else item
    try:
        yield
    finally:
        _guard.test = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, names in components.PROGRAMS.items():
        if item.get_closest_marker(marker):
            for name in names:
                components.program(name)
    if item.get_closest_marker("train") or item.get_closest_marker("gpu"):
        components.module("torch")
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("no GPU: hardware cannot be installed, so this one skips in CI too")


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415  (seconds of import, only for GPU tests)

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def farm_ground() -> Iterator[Farm]:
    """The sshd farm of this session, for fixtures of wider scope; tests take `farm`."""
    with open_farm() as farm:
        yield farm


@pytest.fixture
def farm(farm_ground: Farm, tmp_path: Path) -> Iterator[Farm]:
    """The sshd farm; processes and supervisors that a test leaves are killed after it, and files of shell and ssh in the home are removed."""
    yield farm_ground
    for name in (".bash_profile", ".bashrc", ".profile"):
        (farm_ground.home / name).unlink(missing_ok=True)
    for pid in supervisors_below(tmp_path):
        kill(pid)
    farm_ground.end_processes()
    shutil.rmtree(farm_ground.home / ".ssh", ignore_errors=True)  # the program ssh makes it, from node to node


@pytest.fixture(scope="session")
def docker_ground() -> Iterator[Runtime]:
    """The docker daemon of this session; tests take `docker`."""
    with open_docker(Path(tempfile.mkdtemp(prefix="orch-docker-"))) as runtime:
        yield runtime


@pytest.fixture
def docker(docker_ground: Runtime) -> Iterator[Runtime]:
    """A docker daemon; the containers that a test starts are removed after it."""
    yield docker_ground
    docker_ground.clear()


@pytest.fixture
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with open_podman(tmp_path_factory.mktemp("podman")) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def hosts_ground() -> Iterator[Hosts]:
    """The three hosts of this session, for fixtures of wider scope; tests take `hosts`."""
    with open_hosts() as hosts:
        yield hosts


@pytest.fixture
def hosts(hosts_ground: Hosts) -> Iterator[Hosts]:
    """Three hosts and a controller; faults and processes that a test leaves are removed after it."""
    yield hosts_ground
    hosts_ground.heal()


@pytest.fixture(scope="session")
def cluster_ground() -> Iterator[Cluster]:
    """The Slurm cluster of this session, for fixtures of wider scope; tests take `cluster`."""
    with open_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_ground: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The Slurm cluster, with SLURM_CONF exported for the test; jobs that it leaves are cancelled after it."""
    monkeypatch.setenv("SLURM_CONF", str(cluster_ground.conf))
    yield cluster_ground
    cluster_ground.end_jobs()


@pytest.fixture(scope="session")
def accounted_cluster_ground() -> Iterator[Cluster]:
    """The Slurm cluster with accounting of this session; tests take `accounted_cluster`."""
    with open_cluster(accounted=True) as cluster:
        yield cluster


@pytest.fixture
def accounted_cluster(accounted_cluster_ground: Cluster) -> Iterator[Cluster]:
    """A Slurm cluster with accounting that forgets jobs soon; jobs that a test leaves are cancelled after it."""
    yield accounted_cluster_ground
    accounted_cluster_ground.end_jobs()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file, named by its path below tests/golden; `pytest --update` writes the file instead."""
    root = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        path = root / name
        if request.config.getoption("--update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
