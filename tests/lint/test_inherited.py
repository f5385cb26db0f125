"""The variables that a launch script replaces, keeps or removes."""

from __future__ import annotations

import pytest

from orchestrator.lint.inherited import read_inherited

GIVEN = {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("export NCCL_DEBUG=${NCCL_DEBUG:-INFO}", []),
        ("export NCCL_DEBUG=WARN", []),
        ("NCCL_DEBUG=INFO", []),
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", True)]),
        ("NCCL_DEBUG=INFO python x.py", [("NCCL_DEBUG", "INFO", True)]),
        ("export NCCL_DEBUG=$(x)", [("NCCL_DEBUG", "$_", True)]),
        ("export NCCL_DEBUG=TRACE\nexport NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", True)]),
        (
            "if a; then export NCCL_DEBUG=INFO; else export NCCL_DEBUG=TRACE; fi",
            [("NCCL_DEBUG", "INFO", False), ("NCCL_DEBUG", "TRACE", False)],
        ),
        ("unset NCCL_DEBUG", [("NCCL_DEBUG", None, True)]),
        ("unset NCCL_DEBUG\nexport NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", True)]),
    ],
)
def test_settings(text: str, settings: list[tuple[str, str | None, bool]]) -> None:
    found = read_inherited(text, "f", GIVEN)
    assert [(entry.name, entry.value, entry.is_certain) for entry in found.settings] == settings


def test_files_and_lines_that_are_not_read_are_named() -> None:
    found = read_inherited("source env.sh\n. $X/b.sh\nA=)\n", "f", {})
    assert (found.unread_files, found.unread) == ((("env.sh", "f", 1), ("${X}/b.sh", "f", 2)), (("f", 3),))
