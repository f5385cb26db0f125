"""Which formats of a program's messages have a signature, by version: tables of formats with the signature, or the reason why none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE
from orchestrator.diagnosis.evidence import LogSearch
from orchestrator.diagnosis.signature import Role

SEARCH = LogSearch(CATALOGUE)

FOLDER = Path(__file__).parent / "formats"
TABLES = sorted(path.stem for path in FOLDER.glob("*.tsv"))
_WORDS = {
    "Call to %s %s failed": "Call to recv from 10.0.0.2<41109> failed",
    "onnect to %s": "onnect to 10.0.0.2<41109>",
    "Call to recv from %s": "Call to recv from 10.0.0.2<41109>",
    "Call to %s failed": "Call to ibv_query_qp failed",
    "Error while %s": "Error while creating",
    "unlink shared memory %s": "unlink shared memory /dev/shm/nccl-1",
    "URL %s returned error code: %s": "URL https://registry-1.docker.io/v2 returned error code: 404",
    "%s exited with return code": "/etc/enroot/hooks.d/98-nvidia.sh exited with return code",
    "%s shared memory segment": "creating shared memory segment",
}
"""The text that replaces a placeholder, where the pattern of a signature names its possible values."""


def filled(text: str) -> str:
    """A line of a format: numbers, addresses and words in place of the conversions."""
    for format_, words in _WORDS.items():
        text = text.replace(format_, words)
    for conversion, value in (("%d", "7"), ("%x", "7f2"), ("%s", "x1"), ("%c", "x"), ("%lf", "1.5"), ("%f", "1.5")):
        text = text.replace(conversion, value)
    return text.replace("%%", "%")


def signatures_of(head: str, format_: str) -> list[str]:
    """The signatures that match a line of this format, apart from those of any line with an error, or of any line of a part."""
    found = [hit.signature for hit in SEARCH.evidence([f"{head}{filled(format_)}\n".encode()], "log").hits]
    return [
        row.id for row in found if row.role not in {Role.UNKNOWN, Role.ERROR} and not (row.is_general and row.explains)
    ]


def rows_of(table: str) -> list[list[str]]:
    lines = (FOLDER / f"{table}.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


HEADS = {
    "nccl": "{file}:12 NCCL WARN ",
    "pyxis": "slurmstepd: error: ",
    "enroot": "slurmstepd: error: pyxis:     [ERROR] ",
}


@pytest.mark.parametrize("table", TABLES)
def test_a_format_has_the_signature_that_the_table_names(table: str) -> None:
    wrong = []
    for first, last, file, answer, format_ in rows_of(table):
        found = signatures_of(HEADS.get(table, "").format(file=file), format_)
        if answer not in found if not answer.startswith("-") else found:
            wrong.append(f"{first} to {last}: {format_}: {answer}, found {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("table", TABLES)
def test_a_format_without_signature_has_a_reason(table: str) -> None:
    text = (FOLDER / f"{table}.tsv").read_text("utf-8")
    reasons = set(re.findall(r"^# (-[\w-]+): ", text, re.MULTILINE))
    assert {answer for _, _, _, answer, _ in rows_of(table) if answer.startswith("-")} == reasons


def without_signature(table: str, version: str) -> list[str]:
    """The formats of a version that have no signature, with the reason."""

    def number(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return [
        f"{answer}: {format_}"
        for first, last, _, answer, format_ in rows_of(table)
        if answer.startswith("-") and number(first) <= number(version) <= number(last)
    ]


@pytest.mark.parametrize(
    ("table", "version", "count"),
    [
        ("nccl", "2.18", 110),
        ("nccl", "2.20", 117),
        ("nccl", "2.24", 143),
        ("nccl", "2.27", 146),
        ("nccl", "2.32", 331),  # the device and one-sided interfaces came with 2.28
        ("torch", "1.10", 1),
        ("torch", "2.14", 9),
        ("enroot", "4.1", 13),
    ],
)
def test_no_more_formats_of_a_version_are_without_signature(table: str, version: str, count: int) -> None:
    formats = without_signature(table, version)
    assert len(formats) <= count, "\n".join(formats)
