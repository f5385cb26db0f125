"""`--elastic MIN:MAX`: the nodes of the first attempt, the sizes of the others, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node
from orchestrator.plan.elastic import without_nodes
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan, Sizes
from orchestrator.run import Elastic, Program, Request, Shape

PROGRAM = Program("executable", ("true",))


def _plan(elastic: Elastic, devices: tuple[int, ...] = (1, 1, 1, 1), **fields: Any) -> LaunchPlan:
    nodes = [Node(name=f"n{index}", devices=count) for index, count in enumerate(devices)]
    spare = Node(name="s0", tags=("spare",), devices=devices[0])
    request = Request("ssh", PROGRAM, **{"max_retries": 1, "elastic": elastic, **fields})
    inventory = Inventory(name="here", nodes=(*nodes, spare))
    return make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")


def test_most_limits_the_first_attempt_and_the_other_nodes_are_spare() -> None:
    plan = _plan(Elastic(2, 3))
    assert [node.name for node in plan.nodes] == ["n0", "n1", "n2"]
    assert [node.name for node in plan.spares] == ["n3", "s0"]
    assert (plan.node_count, plan.world_size, plan.sizes) == (3, 3, Sizes((2, 3)))
    assert _plan(Elastic(2, 9)).sizes == Sizes((2, 3, 4))
    assert _plan(Elastic(1, 4), shape=Shape(2, 1)).sizes == Sizes((1, 2))


@pytest.mark.parametrize(
    ("elastic", "sizes"),
    [
        (Elastic(1, 4, micro_batch=8, accumulation=1), Sizes((1, 2, 4), 8, 64)),  # of two ranks each
        (Elastic(1, 4, micro_batch=8, accumulation=3), Sizes((1, 2, 3, 4), 8, 192)),
        (Elastic(2, 4, micro_batch=2, batch=48), Sizes((2, 3, 4), 2, 48)),
        (Elastic(4, 4, micro_batch=8, accumulation=1), Sizes((4,), 8, 64)),
    ],
)
def test_sizes_of_the_shared_trainer_divide_its_batch(elastic: Elastic, sizes: Sizes) -> None:
    plan = _plan(elastic, (2, 2, 2, 2))
    assert plan.sizes == sizes
    assert sizes.micro_batch is not None
    for count in sizes.counts:
        kept = sizes.settings(2 * count)
        assert kept["batch"] == kept["accumulation"] * sizes.micro_batch * 2 * count


def test_run_begins_on_as_many_of_the_nodes_that_are_on_as_keep_the_batch() -> None:
    plan = _plan(Elastic(1, 4, micro_batch=8, accumulation=1), (2, 2, 2, 2))
    smaller = without_nodes(plan, {"n0"})
    assert smaller is not None
    assert [(node.name, node.node_rank, [*node.ranks]) for node in smaller.nodes] == [
        ("n1", 0, [0, 1]),
        ("n2", 1, [2, 3]),
    ]
    assert (smaller.node_count, smaller.world_size, smaller.attempt, smaller.sizes) == (2, 4, 1, plan.sizes)
    assert smaller.program.args == ("true", "batch=64", "accumulation=2")
    assert [node.name for node in smaller.replaced] == ["n0", "n3"]
    assert without_nodes(plan, {"n0", "n1", "n2", "n3"}) is None
    assert without_nodes(_plan(Elastic(3, 4)), {"n0", "n1"}) is None


@pytest.mark.parametrize(
    ("elastic", "fields", "cause"),
    [
        (Elastic(1, 4), {"max_retries": 0}, "--elastic 1:4 needs restarts, and there are none"),
        (Elastic(1, 2), {"shape": Shape(3, 1)}, "-j 3x1 needs more nodes than --elastic 1:2 allows"),
        (Elastic(5, 8), {}, "--elastic 5:8 needs at least 5 nodes; there are 4: n[0-3]"),
        (Elastic(1, 4), {"devices": (1, 2)}, "needs nodes with equal numbers of ranks: n0 has 1, n1 has 2"),
        (
            Elastic(3, 4, micro_batch=8, accumulation=1),
            {},
            "the batch of 32 samples per step is no multiple of micro_batch=8 x 3 ranks on 3 nodes = 24, and no smaller number of nodes fits",
        ),
        (
            Elastic(3, 4, micro_batch=8, batch=24),
            {},
            "the batch of 24 samples per step is no multiple of micro_batch=8 x 4 ranks on 4 nodes = 32",
        ),
    ],
)
def test_request_that_cannot_be_elastic_is_refused(elastic: Elastic, fields: dict[str, Any], cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        _plan(elastic, **fields)
    assert cause in str(caught.value)
    if elastic.micro_batch:
        assert "such as batch=96" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["ssh-launch", "--elastic", "4:2"], "--elastic 4:2: not MIN:MAX"),
        (["ssh-launch", "--elastic", "4"], "--elastic 4: not MIN:MAX"),
        (["ssh-launch", "--elastic", "0:2"], "--elastic 0:2: not MIN:MAX"),
        (
            ["submit", "--elastic", "1:2"],
            "--elastic is for runs over SSH: a Slurm job has as many nodes in each attempt",
        ),
    ],
)
def test_option_is_checked(words: list[str], cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*words, "-i", "local", "--dry-run", "--", "/bin/true"]) == 2
    assert cause in capsys.readouterr().err
