"""What slurmctld and slurmdbd answer in other versions and on other sites than the test cluster: text in, verdict out."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.inventory.slurm import SlurmOptions
from orchestrator.launchers.slurm.checks import check
from orchestrator.names.slurm_options import time_limit_s
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.run import Program, Request

# As Slurm 22.05 prints it (the test cluster), cut down to what 20.11 and 25.05 print as well; MaxTime and Nodes vary.
DEBUG = "PartitionName=debug Default=YES MaxNodes={most} MaxTime={time} MinNodes=0 Nodes={nodes} State=UP TotalCPUs=16 TotalNodes={total}"
ACCOUNTS = {"account": "proj\nroot\n", "qos": "high\nnormal\n"}


def _plan(slurm: SlurmOptions, names: Sequence[str] = ("n0", "n1"), chosen: str | None = None) -> LaunchPlan:
    inventory = Inventory(name="demo", nodes=tuple(Node(name=name) for name in names), slurm=slurm)
    request = Request("slurm", Program("executable", ("true",), ""), nodes=chosen)
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1", home="/home/u")


class Site:
    """Answers as a cluster does."""

    def __init__(self, *, enforced: str = "none", accounts: bool = True, **partition: str) -> None:
        shown = {"most": "UNLIMITED", "time": "UNLIMITED", "nodes": "n[0-3]", "total": "4", **partition}
        self._partition = DEBUG.format(**shown)
        self._enforced = enforced
        self._accounts = accounts
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(" ".join(argv))
        if argv[0] == "sacctmgr":
            answer = ACCOUNTS[argv[4]] if self._accounts else ""
            return subprocess.CompletedProcess(argv, 0 if self._accounts else 1, answer, "")
        config = f"AccountingStorageBackupHost = (null)\nAccountingStorageEnforce = {self._enforced}\n"
        return subprocess.CompletedProcess(argv, 0, config if argv[-1] == "config" else self._partition + "\n", "")


@pytest.mark.parametrize(
    ("time", "limit", "fits"),
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
def test_time_is_compared_in_every_form(time: str, limit: str, fits: bool) -> None:
    plan = _plan(SlurmOptions(partition="debug", time=time))
    if fits:
        assert check(Site(time=limit), plan) == []
    else:
        with pytest.raises(UsageError, match="is more than partition debug allows"):
            check(Site(time=limit), plan)


@pytest.mark.parametrize("nodes", ["(null)", "n[0-99999999]", "rack{1-2}"])
def test_node_names_that_cannot_be_read_are_not_judged(nodes: str) -> None:
    assert check(Site(nodes=nodes, total="9"), _plan(SlurmOptions(partition="debug"), chosen="n0")) == []


@pytest.mark.parametrize(
    "output", ["", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"]
)
def test_answer_that_is_none_is_a_warning(output: str) -> None:
    def silent(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 1, "", output)

    [warning] = check(silent, _plan(SlurmOptions(partition="debug")))
    assert "nothing was checked before the submission" in warning
    assert output.strip() in warning


@pytest.mark.parametrize(("field", "name"), [("account", "prooj"), ("qos", "hgih")])
def test_name_that_the_accounts_do_not_have_is_refused_with_those_that_they_have(field: str, name: str) -> None:
    plan = _plan(SlurmOptions.model_validate({"partition": "debug", field: name}))
    with pytest.raises(UsageError) as caught:
        check(Site(enforced="associations,limits,qos,safe"), plan)
    assert str(caught.value).startswith(f"slurm.{field}: {name} is not known to this cluster; did you mean ")
    assert f"allowed: {', '.join(ACCOUNTS[field].split())}" in str(caught.value)


@pytest.mark.parametrize(
    ("site", "account"),
    [
        (Site(enforced="associations"), "PROJ"),  # accounts are kept in small letters
        (Site(enforced="none"), "nobody"),
        (Site(enforced="associations", accounts=False), "nobody"),
    ],
    ids=["known", "not enforced", "no answer"],
)
def test_account_that_slurm_would_take_is_not_refused(site: Site, account: str) -> None:
    assert check(site, _plan(SlurmOptions(partition="debug", account=account))) == []


def test_one_question_is_enough_where_no_account_is_named() -> None:
    site = Site()
    check(site, _plan(SlurmOptions(partition="debug")))
    assert site.asked == ["scontrol --all --oneliner show partition"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [("0:05", 5), ("12:03", 723), ("1:00:00", 3600), ("1-02:03:04", 93_784), ("INVALID", 0), ("", 0)],
)
def test_time_that_slurm_prints_is_read(said: str, expected: float) -> None:
    assert time_limit_s(said) == expected
