"""`orch logs`: which lines it selects, and their order."""

from __future__ import annotations

from tests.cli.two_nodes import finished_run, open_gate
from tests.grounds.cli import Orch


def test_run_after_two_dashes_is_selected(orch: Orch) -> None:
    first = finished_run(orch, "echo", "first")
    finished_run(orch, "echo", "second")
    assert "first" in orch("logs", "--", first).stdout
    orch("stop", "--", "nope", code=2)


def test_tail_counts_lines_without_a_newline_too(orch: Orch) -> None:
    finished_run(orch, "printf", "one\\ntwo")
    assert len(orch("logs", "--tail", "1").stdout.splitlines()) == 1
    assert orch("logs", "--tail", "0").stdout == ""
    assert orch("logs", "--rank", "0", "--tail", "2").stdout == "[n0:0] one\n[n0:0] two\n"


def test_output_of_a_rank_is_printed_before_its_exit(orch: Orch) -> None:
    open_gate(orch)
    quiet = orch("ssh-launch", "--quiet", "--", "echo", "last line")
    assert (sorted(quiet.stdout.splitlines()), quiet.stderr) == (["[n0:0] last line", "[n1:1] last line"], "")
    texts = [line["text"] for line in orch.lines("--node", "n0")]
    assert texts.index("last line") < next(k for k, text in enumerate(texts) if "exited with code 0" in text)
    assert orch("logs", "--node", "n0").stdout == "[n0:0] last line\n"
    folded, unfolded = {"[n[0-1]:*] last line"}, {"[n0:0] last line", "[n1:1] last line"}  # if one node was much slower
    assert set(orch("logs", "--fold").stdout.splitlines()) in (folded, unfolded)
    watched = orch("ssh-launch", "--quiet", "--fold", "--", "echo", "last line").stdout
    assert set(watched.splitlines()) in (folded, unfolded)
    assert "exclude each other" in orch("logs", "--fold", "--json", code=2).stderr
    assert "exited with code 0" in orch("logs", "--node", "n0", "--stream", "event").stdout


def test_ranks_that_the_run_does_not_have_are_refused_at_once(orch: Orch) -> None:
    finished_run(orch, "true")
    for ranks in ("0-99999999999", "2", "1-0"):
        assert "the run has ranks 0 to 1" in orch("logs", "--rank", ranks, code=2).stderr
