"""The catalogue: every signature is found by its samples, and not in a similar line."""

from __future__ import annotations

import re
import time

import pytest

from orchestrator.diagnosis.catalogue import CATALOGUE, PROGRAMS
from orchestrator.diagnosis.evidence import Evidence, LogSearch, patterns_of
from orchestrator.diagnosis.signature import ALTERNATIVE, Role, Signature, plain_text
from orchestrator.node.search import LOOKAHEAD_BYTES

SEARCH = LogSearch(CATALOGUE)

SAMPLES = [(row, sample) for row in CATALOGUE.values() for sample in row.samples]


def found_in(text: str) -> Evidence:
    return SEARCH.evidence([text.encode()], "log")


@pytest.mark.parametrize(
    ("row", "sample"), SAMPLES, ids=[f"{row.id}-{row.samples.index(text)}" for row, text in SAMPLES]
)
def test_a_sample_is_found_among_other_lines(row: Signature, sample: str) -> None:
    evidence = found_in(f"step=1 loss=2.5\n{sample}\nstep=2 loss=2.4\n")
    hit = next(hit for hit in evidence.hits if hit.signature is row)
    assert hit.line == 2 + sample.partition(hit.origin.text)[0].count("\n")
    assert sample.endswith(hit.origin.text) or row.lines > 1
    known = {"node", "rank", *hit.values} | ({"package"} if "module" in hit.values else set())
    for text in (row.cause, *row.remedy):
        names = [set(re.findall(r"\{(\w+)\}", each)) for each in text.split(ALTERNATIVE)]
        assert any(each <= known for each in names), "the pattern has no such group"


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_a_near_miss_is_not_found(row: Signature) -> None:
    assert row.id not in found_in(row.near_miss).counts


_PLACEHOLDER = re.compile(
    r"(?<![\w$={/.-])(?:PACKAGE|FILE|NODE|HOST|PORT|NAME|JOB|PID|FOLDER|PROGRAM|ADDRESS|INTERFACE|SCRIPT|ARGS|VALUE|CONFIG|CLASS|TIME|NxR|DIR|RUN)\b(?!=)"
)


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_a_remedy_has_no_word_that_the_reader_must_replace(row: Signature) -> None:
    assert not [step for step in row.remedy if _PLACEHOLDER.search(step)]


def test_ids_are_unique_and_every_cause_that_is_named_exists() -> None:
    assert sum(map(len, PROGRAMS.values())) == len(CATALOGUE)
    assert {name for row in CATALOGUE.values() for name in row.follows} <= CATALOGUE.keys()


def test_no_signatures_follow_from_each_other_in_a_circle() -> None:
    """In a log with all of a circle, none of them could be the cause."""
    left = {name: set(row.follows) & CATALOGUE.keys() for name, row in CATALOGUE.items()}
    while ends := {name for name, causes in left.items() if not causes}:
        left = {name: causes - ends for name, causes in left.items() if name not in ends}
    assert left == {}


def test_a_cause_has_a_remedy_and_a_source() -> None:
    assert all(row.source for row in CATALOGUE.values())
    assert all(row.remedy for row in CATALOGUE.values() if row.role is not Role.UNKNOWN)


def test_the_failures_of_hardware_and_of_the_program_differ_in_what_a_retry_can_do() -> None:
    retries = {
        name: CATALOGUE[name].retry for name in ("cuda-oom", "xid-off-bus", "port-taken", "shm-full", "json-comments")
    }
    assert retries == {
        "cuda-oom": "never",
        "xid-off-bus": "elsewhere",
        "port-taken": "retry",
        "shm-full": "elsewhere",
        "json-comments": "never",
    }


def test_nodes_in_messages_of_orch_itself_are_named() -> None:
    lines = (
        "  n0: the host key of n0 has changed: it is ssh-rsa A, but B has another one",
        "n[0-1]: no key was accepted (",
        "orch: error: n0: the host key of n0 is unknown: x",
        "orch: error: n[0-1]: no key was accepted (",
    )
    assert [found_in(line).hits[-1].node for line in lines] == ["n0", None, "n0", None]


def test_the_text_of_a_pattern_is_rare_also_without_digits() -> None:
    """Logs are searched without digits: of `: 711`, a colon is left, which is in every line."""
    texts = {text for body in patterns_of(CATALOGUE.values()) for text in body["texts"]}
    assert not [text for text in texts if not re.search(r"\S\S", re.sub(r"\d", "", text))]


def test_the_literal_of_a_plain_pattern_is_its_text() -> None:
    assert plain_text(r"uncorrectable ECC error, \(twice\)") == "uncorrectable ECC error, (twice)"
    with pytest.raises(ValueError, match="not plain text"):
        plain_text("rank .* failed")


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_a_line_that_repeats_a_text_is_searched_quickly(row: Signature) -> None:
    begun = time.process_time()
    for text in row.texts:
        for line in (text, f"{text} ", f"{text}<"):
            row.expression.search((line * LOOKAHEAD_BYTES)[:LOOKAHEAD_BYTES])
    assert time.process_time() - begun < 1.0
