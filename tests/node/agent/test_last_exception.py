"""The exception with which a rank ends, and the reports in it that another rank has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.agent.failure import last_exception, lost_peer

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        (f"{TRACEBACK}ValueError: bad\n", "ValueError: bad"),
        (f"[rank1]: {TRACEBACK}[rank1]: ValueError: bad\n[rank1]:[W1129 x.cpp:1] closed\n", "ValueError: bad"),
        (f"{TRACEBACK}KeyboardInterrupt\n", ""),
        (f"{TRACEBACK}SystemExit: 3\n", ""),
        (f"{TRACEBACK}ValueError: bad\nand then the program went further\n", ""),
        ("", ""),
    ],
)
def test_exception_at_the_end_is_that_of_the_program_and_not_of_a_signal(
    tmp_path: Path, text: str, exception: str
) -> None:
    file = tmp_path / "rank-1.err"
    file.write_text(text)
    assert last_exception(str(file)) == exception


@pytest.mark.parametrize(
    ("exception", "is_lost"),
    [
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1",
            True,
        ),
        ("torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a network error", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("ValueError: bad", False),
    ],
)
def test_lost_connection_to_another_rank_is_no_error_of_the_program(exception: str, *, is_lost: bool) -> None:
    assert bool(lost_peer(exception)) is is_lost
