"""The search of a log in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.protocol.output import PatternBody
from orchestrator.node.search import LOOKAHEAD_BYTES, MOST_REMEMBERED, Search, Texts, depends_on_digits

FAILED: PatternBody = {"id": "failed", "expression": r"disk (?P<n>\d+) failed", "texts": ["failed"], "lines": 1}
BOX: PatternBody = {"id": "box", "expression": r"Root:[\s\S]*rank: \d", "texts": ["Root:"], "lines": 3}


def searched(blocks: Iterator[bytes] | list[bytes], *patterns: PatternBody, most: int = 100) -> Search:
    search = Search(Texts(patterns), most)
    for block in blocks:
        search.feed(block)
    search.close()
    return search


def lines_of(search: Search) -> list[tuple[int, str]]:
    return [(hit["line"], hit["text"]) for hit in search.hits]


def test_lines_are_numbered_across_blocks_of_any_size() -> None:
    log = b"".join(b"step=%d\n" % step for step in range(2000)) + b"disk 3 failed\n" + b"ok\n" * 5000 + b"disk 4 failed"
    for size in (100, 4096, len(log)):
        blocks = [log[start : start + size] for start in range(0, len(log), size)]
        assert lines_of(searched(blocks, FAILED)) == [(2001, "disk 3 failed"), (7002, "disk 4 failed")]


def test_lines_that_differ_in_digits_only_are_each_compared_with_the_expression() -> None:
    search = searched([b"disk 1 failed\ndisk x failed\ndisk 22 failed\n"], FAILED)
    assert lines_of(search) == [(1, "disk 1 failed"), (3, "disk 22 failed")]


@pytest.mark.parametrize(
    ("expression", "depends"),
    [
        (r"error (?P<code>\d{1,3}) in [0-9a-f]+", False),
        (r"(?P<card_2>\w+) lost, (?P=card_2)", False),
        (r"error 12\b", True),
        (r"lost [1-4] cards", True),
        (r"(a)\1", True),
    ],
)
def test_expressions_that_depend_on_digits_are_known(expression: str, *, depends: bool) -> None:
    assert depends_on_digits(expression) is depends


def test_digits_of_an_expression_are_compared_in_each_line() -> None:
    code: PatternBody = {"id": "code", "expression": r"exited with 12\b", "texts": ["exited with"], "lines": 1}
    search = searched([b"n0 exited with 13\nn1 exited with 12\nn2 exited with 13\n"], code)
    assert lines_of(search) == [(2, "n1 exited with 12")]


def test_more_hits_than_are_kept_are_counted() -> None:
    search = searched([b"disk 1 failed\n" * 50], FAILED, most=3)
    assert len(search.hits) == 3
    assert search.counts == {"failed": 50}


def test_an_error_after_the_states_of_a_progress_bar_is_found_with_the_beginning_of_the_line() -> None:
    search = searched([b"ok\n[n0:3]  10%|#\r 20%|##\rdisk 1 failed\r\nok\r\n"], FAILED)
    assert [(hit["line"], hit["text"], hit["head"]) for hit in search.hits] == [
        (2, "disk 1 failed", "[n0:3]  10%|#\r 20%|##\r")
    ]


def test_of_many_hits_the_first_ones_and_the_last_one_are_kept() -> None:
    search = searched([b"".join(b"disk %d failed\n" % number for number in range(50))], FAILED, most=3)
    assert [hit["line"] for hit in search.hits] == [1, 2, 50]


def test_code_that_a_traceback_or_a_shell_quotes_is_no_hit() -> None:
    frame = b'  File "/app/a.py", line 1, in f\n'
    quoted = b"    if disk: say('disk 7 failed',\n        'disk 8 failed')\n"
    for size in (10, 5000):
        log = b"+ echo disk 6 failed\n" + frame + quoted + b"Error: disk 9 failed\nthen\n    disk 5 failed\n"
        search = searched([log[start : start + size] for start in range(0, len(log), size)], FAILED)
        assert [hit["line"] for hit in search.hits] == [5, 7], size
        assert [hit["frame"] for hit in search.hits] == ["/app/a.py", ""]


@pytest.mark.parametrize("prefix", [b"", b"[rank0]: ", b"[1,0]<stderr>:", b"(Worker pid=7) ", b"3: "])
def test_code_without_a_frame_above_is_no_hit(prefix: bytes) -> None:
    log = prefix + b'    raise DiskError(f"disk {number} failed")\n' + prefix + b"DiskError: disk 9 failed\n"
    assert [hit["line"] for hit in searched([log], FAILED).hits] == [2]


def test_a_hit_has_the_code_that_raised_it_and_the_frame_of_the_program() -> None:
    log = (
        b'  File "/app/old.py", line 9, in g\n    g()\nTraceback (most recent call last):\n'
        b'  File "/v/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        b'  File "/app/train.py", line 81, in step\n    loss = model(batch)\n           ^^^^^^^^^^^^\n'
        b'  File "/v/lib/python3.11/site-packages/lib/a.py", line 1, in forward\n    assert self.disk == 7\n           ^^^^^\n'
        b"DiskError: disk 9 failed\n"
    )
    prefixed = b"".join(b"[rank3]: " + line for line in log.splitlines(keepends=True))
    for text in (log, prefixed):
        [hit] = searched([text], FAILED).hits
        assert (hit["frame"], hit["code"], hit["caller"]) == (
            "/v/lib/python3.11/site-packages/lib/a.py",
            "assert self.disk == 7",
            "/app/train.py:81 in step",
        )
    box: PatternBody = {"id": "box", "expression": r"line 81[\s\S]*assert", "texts": ["line 81"], "lines": 5}
    [hit] = searched([log], box).hits
    assert (hit["frame"], hit["code"]) == ("/app/train.py", "loss = model(batch)")
    [hit] = searched([b'  File "/v/site-packages/lib/a.py", line 1, in f\nE: disk 9 failed\n'], FAILED).hits
    assert (hit["code"], hit["caller"]) == ("", "")


def test_a_hit_has_the_lines_after_it() -> None:
    [hit] = searched([b"disk 1 failed:\nall of it\n\nend\n"], FAILED).hits
    assert hit["after"].split("\n")[:2] == ["all of it", ""]


def test_colours_are_removed() -> None:
    assert lines_of(searched([b"\x1b[31mdisk 1 failed\x1b[0m\n"], FAILED)) == [(1, "disk 1 failed")]


def test_bytes_that_are_no_text_do_not_matter() -> None:
    assert lines_of(searched([b"\xff\x00\xfe\ndisk 1 failed \xff\n"], FAILED)) == [(2, "disk 1 failed \ufffd")]


def test_a_pattern_of_several_lines_is_found_at_the_end_of_a_block() -> None:
    log = b"x" * (3 * LOOKAHEAD_BYTES) + b"\nRoot:\n time: 1\n rank: 2\n" + b"y\n" * LOOKAHEAD_BYTES
    for cut in range(3 * LOOKAHEAD_BYTES, 3 * LOOKAHEAD_BYTES + 30):
        assert [hit["line"] for hit in searched([log[:cut], log[cut:]], BOX).hits] == [2], cut


def test_a_text_within_a_line_without_end_is_found_and_memory_stays_bounded() -> None:
    part = b"abc " * (1 << 16)
    search = searched([part, part + b"disk 7 failed " + part, part], FAILED)
    assert [hit["line"] for hit in search.hits] == [1]
    assert "disk 7 failed" in search.hits[0]["text"]
    assert len(search.hits[0]["text"]) <= 2 * 1024


def test_a_log_without_repetition_is_not_remembered_as_a_whole() -> None:
    words = (
        b"".join(b"%s failed\n" % _word(number) for number in range(start, start + 5000))
        for start in range(0, 60_000, 5000)
    )
    texts = Texts([FAILED])
    search = Search(texts, 1)
    for block in words:
        search.feed(block)
    search.close()
    assert search.bytes > 0
    assert len(texts.candidates) <= 2 * MOST_REMEMBERED


def _word(number: int) -> bytes:
    return bytes(97 + int(digit) for digit in str(number))


def test_the_last_line_that_looks_like_progress_is_known() -> None:
    search = searched([b"step=1\ndisk 1 failed\nx\nstep=2\nx\n"], FAILED)
    assert (search.progress_line, search.lines) == (4, 5)
    for size in (1, 7, 5000):
        log = b"step=1\n" + b"x\n" * 6000 + b"10 it/s]\n" + b"y" * 9000
        search = searched([log[start : start + size] for start in range(0, len(log), size)], FAILED)
        assert (search.progress_line, search.lines) == (6002, 6002), size
    assert searched([b"x\n"], FAILED).progress_line == 0


@pytest.mark.parametrize(
    "line",
    [
        "step=12 loss=2.3",
        "{'loss': 1.2, 'epoch': 0.1}",
        "iter 83592: loss 1.5455, time: 4401.19ms",
        "Epoch 0:   6%|#  | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]",
        " 65%|##  | 98/150 [18:47:34<9:58:18, 690.35s/it]",
        "11/22 10:00:00 - mmengine - INFO - Epoch(train) [1][ 50/100] lr: 1e-3 loss: 0.3",
        " iteration      100/  500000 | consumed samples: 100 | lm loss: 2.3E+00 |",
        "step: 10  loss:  7.0141",
    ],
)
def test_progress_of_a_training_is_known_in_usual_formats(line: str) -> None:
    assert searched([f"x\n{line}\ny\n".encode()], FAILED).progress_line == 2


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|##| 4/4 [00:10<00:00,  2.50s/it]",
        "Map: 42%|## | 1200/2800 [10:00<12:00, 1.2 examples/s]",
        "ValueError: loss is nan at step 300",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one",
        "the data loss of the last step",
    ],
)
def test_other_work_and_errors_that_name_a_step_are_no_progress(line: str) -> None:
    assert searched([f"x\n{line}\ny\n".encode()], FAILED).progress_line == 0


PIECES = (b"disk ", b"7", b" failed", b"failed", b"Root:", b" rank: 1", b"x", b" ", b"\n", b"\n", b"\r\n", b"y" * 200)
DIGITS: PatternBody = {"id": "digits", "expression": r"77", "texts": ["77"], "lines": 1}
PHRASE: PatternBody = {"id": "phrase", "expression": r"failed disk", "texts": ["failed disk"], "lines": 1}


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join), max_size=4))
def test_logs_that_are_searched_one_after_the_other_are_searched_as_each_alone(logs: list[bytes]) -> None:
    texts = Texts([FAILED, DIGITS, PHRASE])
    for log in logs:
        search = Search(texts, 1000)
        search.feed(log)
        search.close()
        expected = [
            (number, body["id"])
            for number, line in enumerate(log.decode().split("\n"), start=1)
            for body in (FAILED, DIGITS, PHRASE)
            if re.search(body["expression"], line)
        ]
        assert [(hit["line"], hit["id"]) for hit in search.hits] == expected
