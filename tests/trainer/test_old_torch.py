"""
The trainer on a T20's torch 1.10 and Python 3.8: newer names are looked up before they are used, never taken for granted.

tests/cases/torch_1_10_names.json has the output of `dir` for the modules of torch 1.10.0 and for two classes.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainer
from tests.node.agent.test_agent_ground import PYTHONS
from tests.paths import ROOT

NAMES_FILE = ROOT / "tests" / "cases" / "torch_1_10_names.json"
NAMES: dict[str, list[str]] = json.loads(NAMES_FILE.read_text("utf-8"))
SOURCES = sorted(Path(trainer.__file__).parent.rglob("*.py"))
NOT_IMPORTED = ("__main__", "sitecustomize")  # importing them runs them


def _module(source: Path) -> str:
    parts = source.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.processes
@pytest.mark.parametrize("python", PYTHONS)
def test_every_module_imports_with_only_the_names_of_torch_1_10(python: str) -> None:
    modules = [_module(source) for source in SOURCES if source.stem not in NOT_IMPORTED]
    done = subprocess.run(
        [python, "-m", "tests.doubles.bare_torch", str(NAMES_FILE), *modules],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=_module)
def test_no_name_newer_than_torch_1_10_is_used_directly(source: Path) -> None:
    assert list(newer_names(source.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "newer"),
    [
        ("import torch\ntorch.zeros(1)", []),
        ("import torch\ntorch.compile(1)", ["torch.compile"]),
        ("import torch\ntorch.amp.GradScaler()", ["torch.amp"]),
        ("import torch\ndef f(): return torch.nn.functional.scaled_dot_product_attention", None),
        ("from torch.nn import functional as F\nF.scaled_dot_product_attention", None),
        ("from torch.nn import RMSNorm", ["torch.nn.RMSNorm"]),
        ("import torch\ngetattr(torch, 'compile', None)", []),
        ("import torch.distributed.fsdp", ["torch.distributed.fsdp"]),
        ("import torch\nmodel: torch.nn.Module\ntorch.nn.Module.compile", ["torch.nn.Module.compile"]),
    ],
)
def test_newer_names_are_found_however_they_are_written(text: str, newer: list[str] | None) -> None:
    expected = ["torch.nn.functional.scaled_dot_product_attention"] if newer is None else newer
    assert list(newer_names(text)) == expected


def newer_names(text: str) -> Iterator[str]:
    """The names of torch that the text uses as attributes, or imports, and that torch 1.10 lacks."""
    tree = ast.parse(text)
    known = {}  # local name -> its full name in torch
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    known[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    yield from _missing(alias.name)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield from _missing(f"{node.module}.{alias.name}")
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:  # the whole of a.b.c, not a.b
            first, *rest = _names(node)
            if first in known:
                yield from _missing(".".join([known[first], *rest]))


def _names(node: ast.expr) -> list[str]:
    """a.b.c -> a, b, c; an expression that does not begin with a name gives an empty first name."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = _names(node.value) if isinstance(node, ast.Attribute) else [""]
    return [*before, node.attr] if isinstance(node, ast.Attribute) else before


def _missing(dotted: str) -> Iterator[str]:
    """The shortest prefix of a.b.c that torch 1.10 lacks; names after one that is no module are not checked."""
    prefix, *rest = dotted.split(".")
    for name in rest:
        if prefix not in NAMES:
            return
        if name not in NAMES[prefix]:
            yield f"{prefix}.{name}"
            return
        prefix = f"{prefix}.{name}"
