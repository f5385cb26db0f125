"""The judgement of a Slurm job's nodes in its allocation, from facts that are written here."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.node.batch.allocation import usable_nodes
from orchestrator.node.facts import NodeFacts
from orchestrator.node.run.events import read_history
from orchestrator.plan.files import CHECK_REQUEST, check_request, job_json
from orchestrator.plan.make import make_plan
from orchestrator.portable.job_check import job as job_check
from orchestrator.portable.job_check.judge import REFUSED, UNCHECKED, VARIABLES, check_job, write_variables
from orchestrator.portable.job_check.probe import probe
from orchestrator.run import Program, Request
from tests.portable.checks.facts import cpu_node

ENVIRON = {"SLURMD_NODENAME": "n0", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_RESTART_COUNT": "0"}


class Job:
    """A job on n0, n1 and n2, all of which have answered; with `has_spare`, it needs two of them."""

    def __init__(
        self,
        run_dir: Path,
        *,
        has_spare: bool = False,
        skipped: tuple[str, ...] = (),
        program: Program = Program("trainer", ()),  # noqa: B008  it is frozen
        code_root: str = "",
    ) -> None:
        self.run_dir = run_dir
        nodes = [Node(name=f"n{index}", address=f"10.0.0.{index + 1}") for index in range(3)]
        if has_spare:
            nodes[2] = nodes[2].model_copy(update={"tags": ("spare",)})
        slurm = SlurmOptions(spare_nodes=int(has_spare))
        inventory = Inventory(name="here", nodes=tuple(nodes), env={"OMP_NUM_THREADS": "7"}, slurm=slurm)
        request = Request("slurm", program, "n0,n1" if has_spare else "n0,n1,n2", skipped=skipped)
        plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b", code_root=code_root)
        self.facts = {name: _facts(name, address) for name, address in (("n0", 1), ("n1", 2), ("n2", 3))}
        self.folder = self.attempt(1, job_json(plan))
        (self.folder / CHECK_REQUEST).write_text(check_request(plan))

    def attempt(self, number: int, job: Any = None) -> Path:  # JSON
        folder = self.run_dir / f"attempt-{number}"
        folder.mkdir(parents=True)
        first = job or json.loads((self.folder / "job.json").read_text())
        (folder / "job.json").write_text(json.dumps({**first, "run_dir": str(self.run_dir), "attempt": number}))
        return folder

    def check(self) -> int:
        """Write the facts, as the nodes do, and judge them."""
        folder = self.run_dir / "facts" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        for name, facts in self.facts.items():
            facts["clock"]["time"] = time.time()
            (folder / f"{name}.json").write_text(json.dumps(facts))
        return check_job(str(self.folder / "job.json"), time.time() - 1)

    @property
    def finished(self) -> str:
        """The last event of the head."""
        history = read_history(str(self.folder / "n0"))
        assert history.finished is not None
        assert (history.finished["state"], history.finished["refused"]) == ("FAILED", True)
        return history.finished["text"]

    def messages(self, attempt: int = 1) -> list[str]:
        path = self.run_dir / f"attempt-{attempt}" / "n0" / "events.jsonl"
        return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []

    def variables(
        self, node: str, attempt: int = 1, environ: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """The variables that a shell has after reading the file."""
        file = str(self.run_dir / f"attempt-{attempt}" / VARIABLES)
        env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node, **environ}
        done = subprocess.run(
            ["/bin/sh", "-euc", '. "$0"; env -0', file], env=env, check=True, capture_output=True, text=True
        )
        return dict(word.split("=", 1) for word in done.stdout.split("\0") if "IFNAME" in word or "THREADS" in word)


def _facts(name: str, address: int) -> NodeFacts:
    facts = cpu_node(name, f"10.0.0.{address}")
    facts["interfaces"] = [
        {
            "name": f"eth{address}",
            "kind": "ethernet",
            "up": True,
            "mtu": 1500,
            "speed": 10.0,
            "addresses": [{"address": f"10.0.0.{address}", "prefix": 24}],
            "pci": None,
            "numa": None,
            "master": None,
            "hca": None,
        }
    ]
    return facts


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(job_check, "LATE_S", 0.0)
    return lambda **how: Job(tmp_path / "it's a run", **how)


def few_files(facts: NodeFacts) -> None:
    facts["limits"]["nofile"] = {"soft": 1000, "hard": 1000}


def test_failure_refuses_the_job_and_names_node_and_remedy(
    job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    refused = job()
    few_files(refused.facts["n1"])
    assert refused.check() == REFUSED
    lines = refused.finished.splitlines()
    assert lines[:2] == [
        "the check of the nodes failed, so nothing was started",
        "  FAIL  nofile: n1: a process may open 1000 files; data loaders and NCCL need 4096",
    ]
    assert lines[2].startswith("      next: raise nofile in ")
    assert refused.finished in capfd.readouterr().err
    assert not (refused.folder / VARIABLES).exists()


def test_modules_from_the_folder_of_the_launch_are_warned_of(job: Callable[..., Job], tmp_path: Path) -> None:
    """In a home that the nodes share, an editable installation hides the code that was sent."""
    warned = job(program=Program("python", ("train.py",), cwd=""), code_root=str(tmp_path))
    for facts in warned.facts.values():
        facts["software"]["import_folders"] = [str(tmp_path / "src"), "/opt/x"]
    assert warned.check() == 0
    (warning,) = [text for text in warned.messages() if "pip install -e" in text]
    assert warning.startswith(
        f"warning: n[0-2]: the ranks import modules from {tmp_path}/src, as after `pip install -e`"
    )
    assert "env: {PYTHONPATH: src} in the inventory" in warning


def test_skipped_check_refuses_nothing(job: Callable[..., Job]) -> None:
    skipping = job(skipped=("nofile",))
    few_files(skipping.facts["n1"])
    assert skipping.check() == 0


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (None, "no answer to the probe in the allocation"),
        ('{"format": 1', "its answer cannot be read: "),
        ('{"format": 1}', "its answer cannot be read: facts.node is missing"),
    ],
)
def test_node_without_facts_fails(job: Callable[..., Job], fault: str | None, text: str) -> None:
    incomplete = job()
    del incomplete.facts["n2"]
    if fault is not None:
        file = incomplete.run_dir / "facts" / "0" / "n2.json"
        file.parent.mkdir(parents=True)
        file.write_text(fault)
    assert incomplete.check() == REFUSED
    assert f"FAIL  answer: n2: {text}" in incomplete.finished


def test_setup_line_that_failed_is_the_reason_of_its_node(job: Callable[..., Job]) -> None:
    incomplete = job()
    del incomplete.facts["n1"]
    (incomplete.folder / "n1").mkdir()
    (incomplete.folder / "n1" / "agent.log").write_text("setup: this line ended with 1 on n1: module load x\n")
    assert incomplete.check() == REFUSED
    assert "FAIL  answer: n1: setup: this line ended with 1 on n1: module load x" in incomplete.finished


def test_facts_of_an_earlier_allocation_are_no_answer(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    requeued = job()
    assert requeued.check() == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    new = requeued.run_dir / "facts" / "1"
    new.mkdir()
    (new / "n1.json").write_text(json.dumps(requeued.facts["n1"]))
    assert check_job(str(requeued.attempt(2) / "job.json"), time.time()) == REFUSED


def test_probe_that_failed_on_all_nodes_does_not_prevent_the_job(
    job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    unchecked = job()
    unchecked.facts.clear()
    assert unchecked.check() == UNCHECKED
    text = "the nodes were not checked: no answer to the probe in the allocation"
    assert unchecked.messages() == [text]
    assert capfd.readouterr().err == f"orch: {text}\n"


def test_reason_of_a_probe_that_fails_is_in_the_finding(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = job()
    del damaged.facts["n1"]
    with monkeypatch.context() as on_n1:
        on_n1.setenv("SLURMD_NODENAME", "n1")
        on_n1.delenv("SLURM_JOB_NODELIST")
        assert probe(str(damaged.folder / "job.json")) == 1
    assert "orch: the probe failed: KeyError" in capfd.readouterr().err
    assert damaged.check() == REFUSED
    assert "FAIL  answer: n1: the probe failed: " in damaged.finished


def test_job_that_slurm_ends_during_the_check_is_not_refused(job: Callable[..., Job]) -> None:
    preempted = job()
    del preempted.facts["n1"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert preempted.check() == UNCHECKED
    finally:
        signal.sigtimedwait({signal.SIGTERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert not any(text.startswith("the check") for text in preempted.messages())


def test_spare_replaces_a_node_that_failed(job: Callable[..., Job]) -> None:
    job_with_spare = job(has_spare=True)
    few_files(job_with_spare.facts["n1"])
    assert job_with_spare.check() == 0
    assert "the job starts without n1: n1: a process may open 1000 files" in job_with_spare.messages()[0]
    assert usable_nodes(str(job_with_spare.run_dir), ENVIRON) == ["n0", "n2"]
    assert job_with_spare.variables("n2") == {"GLOO_SOCKET_IFNAME": "eth3", "TP_SOCKET_IFNAME": "eth3"}
    few_files(job_with_spare.facts["n2"])
    assert job_with_spare.check() == REFUSED


def test_warning_is_an_event_and_refuses_nothing(job: Callable[..., Job]) -> None:
    warned = job()
    warned.facts["n1"]["limits"]["nproc"] = {"soft": 100, "hard": 100}
    assert warned.check() == 0
    assert warned.messages()[0].startswith("WARN  nproc: n1: the user may have 100 processes and threads; ")


def test_each_node_gets_its_variables_unless_it_has_them(job: Callable[..., Job]) -> None:
    discovered = job()
    discovered.facts["n1"]["environment"]["TP_SOCKET_IFNAME"] = "lo"
    assert discovered.check() == 0
    assert discovered.variables("n0") == {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1"}
    assert discovered.variables("n1") == {"GLOO_SOCKET_IFNAME": "eth2"}
    kept = {"GLOO_SOCKET_IFNAME": "eth9", "TP_SOCKET_IFNAME": ""}
    assert discovered.variables("n2", environ=kept) == kept
    assert "variables of n0 from their facts: GLOO_SOCKET_IFNAME=eth1 TP_SOCKET_IFNAME=eth1" in discovered.messages()


def test_variable_of_the_inventory_that_contradicts_the_facts_is_a_finding(job: Callable[..., Job]) -> None:
    """Its value is that of the environment in which the node was probed: the request has names only."""
    contradicted = job()
    request = json.loads((contradicted.folder / CHECK_REQUEST).read_text())
    assert request["usual"]["env"] == ["OMP_NUM_THREADS"]
    request["nodes"]["n1"]["env"] = ["GLOO_SOCKET_IFNAME"]
    (contradicted.folder / CHECK_REQUEST).write_text(json.dumps(request))
    contradicted.facts["n1"]["environment"]["GLOO_SOCKET_IFNAME"] = "ib7"
    assert contradicted.check() == REFUSED
    assert "FAIL  variables: n1: GLOO_SOCKET_IFNAME=ib7 is not on this node" in contradicted.finished


def test_restart_in_the_allocation_uses_the_facts_and_names_their_age(job: Callable[..., Job]) -> None:
    restarted = job()
    assert restarted.check() == 0
    folder = restarted.attempt(2)
    assert write_variables(str(folder / "job.json")) == 0
    assert restarted.variables("n2", attempt=2) == restarted.variables("n2")
    [first, *_] = restarted.messages(attempt=2)
    assert first.startswith("variables of n0 from their facts of 0 s ago: GLOO_SOCKET_IFNAME=eth1")
