"""The table of variables: its form, the parsers that it imitates, and the libraries that are installed here."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import json
import random
import re
from pathlib import Path

from orchestrator.lint.deepspeed import _DEPRECATED, _INTEGERS, _OTHER_KEYS, _REMOVED
from orchestrator.variables import UNDOCUMENTED, VARIABLES
from orchestrator.variables.conditions import Context, holds, version
from orchestrator.variables.values import strtoll
from tests.grounds import components
from tests.paths import CASES


def test_rows_are_well_formed() -> None:
    for row in VARIABLES.values():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+", row.name)
        assert row.text, row.name
        assert row.source, row.name
        assert row.kind.text, row.name
        for first in (row.since, row.until, *row.defaults()):
            assert not first or version(first)
        for text in row.defaults().values() if isinstance(row.default, dict) else ():
            assert text == "auto" or row.kind.fault(text) is None, row.name
        for verdict in row.verdicts:
            re.compile(verdict.value)
            for condition in verdict.when:
                holds(condition, Context({"NCCL": "2.21", "torch": "2.4"}, "RoCE"))
            if verdict.better and "{" not in verdict.better:
                assert row.kind.fault(verdict.better) is None, row.name


def test_every_variable_is_listed_once() -> None:
    from orchestrator.variables import enflame, host, nccl, torch  # noqa: PLC0415

    assert len(VARIABLES) == sum(map(len, (enflame.ENFLAME, host.HOST, nccl.NCCL, torch.TORCH)))
    assert not UNDOCUMENTED & VARIABLES.keys()


def test_numbers_are_read_as_by_libc() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.strtoll.restype = ctypes.c_longlong
    rng = random.Random(7)
    for _ in range(3000):
        text = "".join(rng.choices("0123789afxX+- M", k=rng.randrange(0, 8)))
        raw = ctypes.create_string_buffer(text.encode())
        end = ctypes.c_char_p()
        number = libc.strtoll(raw, ctypes.byref(end), 0)
        ours, rest = strtoll(text)
        assert (ours or 0, rest) == (number, (end.value or b"").decode()), text


def _package(name: str) -> Path:
    components.module(name)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def test_table_has_the_variables_of_the_installed_torch() -> None:
    header = _package("torch") / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    names = set(re.findall(r'"((?:TORCH_)?NCCL_[A-Z0-9_]+)"', header.read_text()))
    assert len(names) > 20
    assert not names - VARIABLES.keys()


def _spans(name: str) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The releases of a library whose code was read, and for each variable the first and the last one that read it."""
    facts = json.loads((CASES / name).read_text())
    releases = facts["releases"].split()
    spans = {variable: f"{span} {releases[-1]}".split()[:2] for variable, span in facts["names"].items()}
    return releases, {variable: (first, last) for variable, (first, last) in spans.items()}


def _is_release(release: str, stated: str) -> bool:
    return f"{release}.".startswith(f"{stated}.")


def test_table_has_the_variables_of_nccl() -> None:
    releases, spans = _spans("nccl_names.json")
    assert releases[-1] == "2.32.3"
    assert not spans.keys() - VARIABLES.keys() - UNDOCUMENTED
    assert not UNDOCUMENTED - spans.keys() - {"NCCL_PARAM_DUMP_ALL"}
    rows = [row for row in VARIABLES.values() if row.library == "NCCL" and row.name in spans]
    oldest = [
        release for release in releases if version(release) < (2, 4, 6)
    ]  # whose documentation has no first versions
    assert [row.name for row in rows if spans[row.name][0] not in oldest and not row.since] == []
    assert [row.name for row in rows if row.since and not _is_release(spans[row.name][0], row.since)] == []
    assert [row.name for row in rows if bool(row.until) is (spans[row.name][1] == releases[-1])] == []


def test_table_has_the_variables_of_torch() -> None:
    releases, spans = _spans("torch_names.json")
    assert releases[-1] == "2.15"
    missing = spans.keys() - VARIABLES.keys()
    assert sorted(missing) == ["TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK", "TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P"]
    for name in spans.keys() & VARIABLES.keys():
        first, last = spans[name]
        row = VARIABLES[name]
        assert (row.since == first) is (first != releases[0]), name
        is_gone = any(verdict.when == ("torch>=2.15",) for verdict in row.verdicts)
        assert is_gone is (last != releases[-1]), name


def test_zero_keys_are_those_of_the_installed_deepspeed() -> None:
    tree = ast.parse((_package("deepspeed") / "runtime/zero/config.py").read_text())
    [model] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DeepSpeedZeroConfig"]
    names = set()
    for node in model.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
            aliases = [ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "alias"]
            names.add(aliases[0] if aliases else node.target.id)
    assert names == {*_INTEGERS, *_OTHER_KEYS, *_DEPRECATED}
    assert not names & _REMOVED
