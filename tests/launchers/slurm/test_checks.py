"""Checks before a submission, with recorded output of other Slurm versions and sites than the test cluster."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.endpoint.client import Endpoint
from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.launchers.slurm.checks import (
    cards_not_requested,
    check,
    gives_gpus_cores,
    time_limit_of_partition_s,
)
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm.this_machine import ThisMachine
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, Sweep
from orchestrator.plan.resolve import resolve
from orchestrator.portable.names.slurm_options import time_limit_s
from orchestrator.run import Program, Request
from orchestrator.transports.local import LocalTransport

# Output of Slurm 22.05 (the test cluster), reduced to the fields that 20.11 and 25.05 print as well.
DEBUG = "PartitionName=debug Default=YES MaxNodes={most} MaxTime={time} MinNodes=0 Nodes={nodes} State=UP TotalCPUs=16 TotalNodes={total}"
ACCOUNTS = {"account": "proj\nroot\n", "qos": "high\nnormal\n"}


def _plan(slurm: SlurmOptions, names: Sequence[str] = ("n0", "n1"), chosen: str | None = None) -> LaunchPlan:
    inventory = Inventory(name="demo", nodes=tuple(Node(name=name) for name in names), slurm=slurm)
    request = Request("slurm", Program("executable", ("true",), ""), nodes=chosen)
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1", home="/home/u")


class Site:
    """A RunCommand with the recorded output of a cluster."""

    def __init__(self, *, enforced: str = "none", accounts: bool = True, **partition: str) -> None:
        values = {"most": "UNLIMITED", "time": "UNLIMITED", "nodes": "n[0-1]", "total": "2", **partition}
        self._partition = DEBUG.format(**values)
        self._enforced = enforced
        self._accounts = accounts
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(" ".join(argv))
        if argv[0] == "sacctmgr":
            answer = ACCOUNTS[argv[4]] if self._accounts else ""
            return subprocess.CompletedProcess(argv, 0 if self._accounts else 1, answer, "")
        config = f"AccountingStorageBackupHost = (null)\nAccountingStorageEnforce = {self._enforced}\nMaxArraySize            = 50\n"
        return subprocess.CompletedProcess(argv, 0, config if argv[-1] == "config" else self._partition + "\n", "")


@pytest.mark.parametrize(
    ("time", "limit", "is_allowed"),
    [
        ("60", "01:00:00", True),
        ("61", "01:00:00", False),
        ("59:59", "01:00:00", True),
        ("60:01", "01:00:00", False),
        ("1-0", "1-00:00:00", True),
        ("1-00:01", "1-00:00:00", False),
        ("24:00:00", "1-00:00:00", True),
        ("24:00:01", "1-00:00:00", False),
        ("INFINITE", "UNLIMITED", True),
        ("UNLIMITED", "365-00:00:00", False),
        ("0", "01:00:00", True),
        ("61", "a word of a later version", True),
    ],
)
def test_time_limits_are_compared_in_every_notation(time: str, limit: str, is_allowed: bool) -> None:
    plan = _plan(SlurmOptions(partition="debug", time=time))
    if is_allowed:
        assert check(Site(time=limit), plan) == []
    else:
        with pytest.raises(UsageError, match="is more than partition debug allows"):
            check(Site(time=limit), plan)


@pytest.mark.parametrize(
    ("config", "partition", "is_given"),
    [
        ("none", "n0", False),
        ("none", "n0 JobDefaults=(null)", False),
        ("none", "n0 JobDefaults=DefCpuPerGPU=8,DefMemPerGPU=100", True),
        ("none\nJobDefaults             = DefCpuPerGPU=8", "n0", True),
    ],
)
def test_gpus_get_cores_from_the_cluster_if_it_has_a_default(config: str, partition: str, is_given: bool) -> None:
    site = Site(enforced=config, nodes=partition)
    for requested in (None, "debug"):
        assert gives_gpus_cores(site, _plan(SlurmOptions(partition=requested, gres="gpu"))) is is_given
    assert not gives_gpus_cores(Site(nodes=partition), _plan(SlurmOptions(partition="other", gres="gpu")))


@pytest.mark.parametrize("count", [50, 51])
def test_sweep_of_more_runs_than_a_job_array_may_have_is_refused(count: int) -> None:
    plan = replace(_plan(SlurmOptions(partition="debug")), sweep=Sweep("demo", tuple(map(str, range(count)))))
    if count == 50:
        assert check(Site(), plan) == []
    else:
        with pytest.raises(UsageError, match=r"--sweep: 51 runs, and this cluster allows 50 .*\(MaxArraySize\)"):
            check(Site(), plan)


@pytest.mark.parametrize(
    ("memory", "is_allowed"), [("64G", True), ("65537", False), ("0", True), ("1T", False), ("67108864K", True)]
)
def test_memory_is_compared_with_the_limit_of_the_partition(memory: str, is_allowed: bool) -> None:
    plan, site = _plan(SlurmOptions(partition="debug", mem=memory)), Site(nodes="n[0-1] MaxMemPerNode=65536")
    if is_allowed:
        assert check(site, plan) == []
    else:
        with pytest.raises(
            UsageError, match=f"slurm.mem: {memory} is more than partition debug allows per node: 65536M"
        ):
            check(site, plan)


def test_limits_that_the_qos_of_the_environment_may_lift_are_left_to_sbatch() -> None:
    plan, site = _plan(SlurmOptions(partition="debug", time="61")), Site(time="01:00:00")
    assert check(site, plan, has_qos=True) == []
    with pytest.raises(UsageError, match="this cluster has no n9"):
        check(site, _plan(SlurmOptions(partition="debug"), ("n0", "n9"), chosen="n9"), has_qos=True)


@pytest.mark.parametrize("partition", ["debug", None])
def test_nodes_that_slurm_may_choose_without_settings_are_named(partition: str | None) -> None:
    site = Site(nodes="n[0-3]", total="4")
    [warning] = check(site, _plan(SlurmOptions(partition=partition)))
    assert warning == (
        "Slurm may choose n[2-3], for which the job has no settings: add them to nodes: in the inventory, or set slurm.exclude: n[2-3]"
    )
    [of_one] = check(site, _plan(SlurmOptions(partition=partition, exclude="n3")))
    assert "n2, for which the job has no settings: add it to nodes:" in of_one
    assert check(site, _plan(SlurmOptions(partition=partition, options=("--exclude=n[2-3]",)))) == []
    assert check(site, _plan(SlurmOptions(partition=partition), chosen="n[0-1]")) == []


@pytest.mark.parametrize(
    ("line", "limit_s"),
    [
        ("n0 DefaultTime=NONE", 7200),
        ("n0 DefaultTime=00:10:00", 600),
        ("n0", 7200),
        ("n0 DefaultTime=UNLIMITED", math.inf),
        ("n0 DefaultTime=a word of a later version", math.inf),
    ],
)
def test_job_without_a_time_gets_that_of_its_partition(line: str, limit_s: float) -> None:
    site = Site(time="02:00:00", nodes=line)
    for requested in ("debug", None):
        assert time_limit_of_partition_s(site, _plan(SlurmOptions(partition=requested))) == limit_s
    assert time_limit_of_partition_s(site, _plan(SlurmOptions(partition="other"))) == math.inf


class QosHost(ThisMachine):
    """A login node whose profile may set SBATCH_QOS; its partition allows one hour."""

    def __init__(self, plan: LaunchPlan, variables: Mapping[str, str]) -> None:
        super().__init__(plan.head)
        self._variables = variables
        self.run = Site(time="01:00:00")  # type: ignore[method-assign]

    def require_sbatch(self) -> None:
        """It is there."""

    def environment(self) -> Mapping[str, str]:
        """The variables of the profile."""
        return self._variables

    def endpoint(self) -> Endpoint:
        """A process that does not run."""
        return Endpoint(LocalTransport("n0"), sys.executable)


def test_qos_of_the_environment_counts_in_the_check_before_a_submission() -> None:
    plan = _plan(SlurmOptions(partition="debug", time="61"))
    launcher = SlurmLauncher(plan, QosHost(plan, {"SBATCH_QOS": "high"}))
    assert [warning.partition(",")[0] for warning in launcher.connect(plan).warnings] == ["SBATCH_QOS=high"]
    with pytest.raises(UsageError, match="is more than partition debug allows"):
        SlurmLauncher(plan, QosHost(plan, {})).connect(plan)


@pytest.mark.parametrize(
    ("slurm", "variables", "warn_s"),
    [
        ({}, {}, 60),
        ({}, {"SBATCH_TIMELIMIT": "2"}, 30),
        ({"time": "01:00:00"}, {"SBATCH_TIMELIMIT": "2"}, 90),
        ({"warn_s": 45}, {"SBATCH_TIMELIMIT": "2"}, 45),
        ({"warn_s": 90}, {"SBATCH_TIMELIMIT": "2"}, 90),
    ],
)
def test_job_is_warned_in_time_although_the_cluster_sets_its_limit(
    slurm: dict[str, Any], variables: dict[str, str], warn_s: int
) -> None:
    plan = _plan(SlurmOptions(partition="debug", **slurm))
    host = QosHost(plan, variables)
    host.run = Site(time="01:00:00", nodes="n[0-1] DefaultTime=00:04:00")  # type: ignore[method-assign]
    launcher = SlurmLauncher(plan, host)
    assert resolve(plan, launcher.connect(plan)).slurm["warn_s"] == warn_s


@pytest.mark.parametrize("nodes", ["(null)", "n[0-99999999]", "rack{1-2}"])
def test_node_names_that_cannot_be_parsed_are_not_checked(nodes: str) -> None:
    assert check(Site(nodes=nodes, total="9"), _plan(SlurmOptions(partition="debug"), chosen="n0")) == []


@pytest.mark.parametrize(
    "output", ["", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"]
)
def test_output_without_partitions_is_a_warning(output: str) -> None:
    def silent(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 1, "", output)

    [warning] = check(silent, _plan(SlurmOptions(partition="debug")))
    assert "nothing was checked before the submission" in warning
    assert output.strip() in warning


@pytest.mark.parametrize(("field", "name"), [("account", "prooj"), ("qos", "hgih")])
def test_unknown_account_or_qos_is_refused_with_the_known_names(field: str, name: str) -> None:
    plan = _plan(SlurmOptions.model_validate({"partition": "debug", field: name}))
    with pytest.raises(UsageError) as caught:
        check(Site(enforced="associations,limits,qos,safe"), plan)
    assert str(caught.value).startswith(f"slurm.{field}: {name} is not known to this cluster; did you mean ")
    assert f"it has {', '.join(ACCOUNTS[field].split())}" in str(caught.value)
    assert "sacctmgr show associations user=$USER" in str(caught.value)  # it has also those of others


@pytest.mark.parametrize(
    ("site", "account"),
    [
        (Site(enforced="associations"), "PROJ"),  # Slurm stores accounts in lower case
        (Site(enforced="none"), "nobody"),
        (Site(enforced="associations", accounts=False), "nobody"),
    ],
    ids=["known", "not enforced", "no answer"],
)
def test_account_that_slurm_would_accept_is_not_refused(site: Site, account: str) -> None:
    assert check(site, _plan(SlurmOptions(partition="debug", account=account))) == []


def test_without_an_account_one_command_is_enough() -> None:
    site = Site()
    check(site, _plan(SlurmOptions(partition="debug")))
    assert site.commands == ["scontrol --all --oneliner show partition"]


@pytest.mark.parametrize(
    ("elapsed", "seconds"),
    [("0:05", 5), ("12:03", 723), ("1:00:00", 3600), ("1-02:03:04", 93_784), ("INVALID", 0), ("", 0)],
)
def test_elapsed_time_is_parsed(elapsed: str, seconds: float) -> None:
    assert time_limit_s(elapsed) == seconds


@pytest.mark.parametrize(
    ("accelerator", "slurm", "variables", "types", "is_warned"),
    [
        ("cuda", {"exclusive": "true"}, [], "gpu,nic", True),
        ("gcu", {}, [], "gcu", True),
        ("cuda", {"gres": "gpu"}, [], "gpu", False),
        ("cuda", {"options": ("--gpus-per-node=8",)}, [], "gpu", False),
        ("cuda", {}, ["SBATCH_GRES"], "gpu", False),
        ("cuda", {}, [], "(null)", False),  # nothing can be requested there
        ("cpu", {}, [], "gpu", False),
        ("auto", {}, [], "gpu", False),
    ],
)
def test_job_for_cards_that_requests_none_is_warned_of(
    accelerator: str, slurm: dict[str, Any], variables: list[str], types: str, *, is_warned: bool
) -> None:
    plan = _plan(SlurmOptions(**slurm))
    plan = replace(plan, nodes=tuple(replace(node, accelerator=accelerator) for node in plan.nodes))

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, f"GresTypes               = {types}\n", "")

    warnings = cards_not_requested(run, plan, variables)
    assert [f"slurm.gres={types.partition(',')[0]}" in warning for warning in warnings] == [True] * is_warned
