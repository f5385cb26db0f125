"""`orch cp`: files of several nodes, links and paths that lead out of the run."""

from __future__ import annotations

from tests.cli.two_nodes import finished_run
from tests.grounds.cli import Orch


def test_files_of_a_run_are_copied_from_the_nodes_that_have_them(orch: Orch) -> None:
    write = "[ $RANK = 1 ] || { mkdir -p res/deep; echo m >res/deep/model; ln -s deep res/link; ln -s /etc res/out; }"
    finished_run(orch, "sh", "-c", write)
    shared = orch("cp", ":./res", "fetched")
    assert shared.stdout == "fetched/res\n"
    assert "n0: out is not copied: an absolute link, one that leads out of" in shared.stderr
    assert (orch.cwd / "fetched" / "res" / "link" / "model").read_text() == "m\n"
    assert sorted(orch("cp", "latest:DONE", "fetched").stdout.splitlines()) == ["fetched/n0/DONE", "fetched/n1/DONE"]
    assert orch("cp", "latest:rank-1.out", "fetched").stdout == "fetched/rank-1.out\n"
    assert "fetched/res exists" in orch("cp", "latest:res", "fetched", code=2).stderr
    assert "no node of run" in orch("cp", "--node", "n0", "latest:rank-1.out", code=2).stderr
    assert "leads out of the run's folder" in orch("cp", "latest:res/out/passwd", code=4).stderr
    assert "leads out of the run's folder" in orch("cp", "latest:../x", code=2).stderr
    assert "is not RUN:PATH" in orch("cp", "latest", code=2).stderr
    assert sorted(path.name for path in (orch.cwd / "fetched").iterdir()) == ["n0", "n1", "rank-1.out", "res"]
