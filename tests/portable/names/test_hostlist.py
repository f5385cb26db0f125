"""Host lists: the names of a pattern, their order, and the patterns that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.names.hostlist import MAX_NAMES, expand, fold, fold_last_number, repeated
from tests import paths

CASES: dict[str, Any] = json.loads((paths.CASES / "inventory_hostlists.json").read_text())


@pytest.mark.parametrize("case", CASES["expand"], ids=lambda case: str(case["pattern"]))
def test_pattern_expands_in_the_written_order(case: dict[str, Any]) -> None:
    assert expand(case["pattern"]) == case["names"]


@pytest.mark.parametrize("pattern", CASES["refused"])
def test_invalid_host_list_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host list; |stands for more than") as caught:
        expand(pattern)
    assert str(caught.value).isprintable()


def test_longest_list_expands() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


def test_fold_is_short_sorted_and_each_name_once() -> None:
    assert fold(["n3", "n1", "n2", "n1", "x"]) == "n[1-3],x"
    assert fold(["h800-00", "h800-01"]) == "h800-[00-01]"
    assert fold(["n7"]) == "n7"
    assert fold([]) == ""


def test_fold_accepts_names_that_clustershell_would_read_as_operators() -> None:
    assert fold(["fe80::1%ib0", "@all", "n*"]) == "fe80::1%ib0,@all,n*"


@given(st.sets(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}(\.[a-z]{1,2})?", fullmatch=True), min_size=1, max_size=40))
def test_expand_undoes_fold(names: set[str]) -> None:
    assert set(expand(fold(names))) == names
    assert set(expand(fold_last_number(names))) == names


def test_fold_without_clustershell() -> None:
    names = ["h-00", "h-01", "h-10", "n9", "n10", "n12", "r1c0", "r1c1", "r2c1", "login"]
    assert fold_last_number(names) == "h-[00-01,10],n[9-10,12],r1c[0-1],r2c1,login"


def test_repeated_names_each_once_in_order() -> None:
    assert repeated(["b", "a", "b", "a", "b", "c"]) == ["b", "a"]


@pytest.mark.processes
def test_plain_names_do_not_import_clustershell() -> None:
    """Importing ClusterShell would slow the start of every command."""
    program = (
        "import sys; from orchestrator.portable.names.hostlist import expand, fold; expand('n0,n1'); fold(['n0']);"
        " sys.exit('ClusterShell' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
