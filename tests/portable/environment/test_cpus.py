"""The CPUs of ranks as they are shown before a launch; tests/golden has those of each kind of node."""

from __future__ import annotations

import pytest

from orchestrator.portable.environment.cpus import cpus_of_ranks
from tests.grounds import nodes

NEAR = "ranks 0-3 on CPUs 0-47,96-143; ranks 4-7 on CPUs 48-95,144-191"


@pytest.mark.parametrize(
    ("ranks", "env", "bind", "expected"),
    [
        (8, {}, "auto", NEAR),
        (2, {"CUDA_VISIBLE_DEVICES": "7,0"}, "auto", "ranks 0 on CPUs 48-95,144-191; ranks 1 on CPUs 0-47,96-143"),
        (8, {}, "none", "none: bind: none in the inventory"),
        (1, {}, "auto", "none: the one rank may use all of the 8 visible cards"),
        (9, {}, "auto", "none: 9 ranks for 8 visible cards"),
    ],
)
def test_binding_follows_from_the_facts(ranks: int, env: dict[str, str], bind: str, expected: str) -> None:
    assert cpus_of_ranks(nodes.facts("h800"), "auto", ranks, env, bind=bind) == expected


def test_unknown_numa_node_and_fewer_cpus_give_no_binding() -> None:
    facts = nodes.facts("h800")
    facts["cards"][3]["numa"] = None
    assert cpus_of_ranks(facts, "cuda", 8, {}, bind="auto").startswith("none: the NUMA node of 0000:")
    facts["cpus"]["usable"] = 64
    assert cpus_of_ranks(facts, "cuda", 8, {}, bind="auto").startswith("none: 64 of 192 CPUs are usable")
