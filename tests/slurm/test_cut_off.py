"""A node that is cut off from Slurm, while its ranks live and reach the shared storage: never two attempts that write at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grounds.hosts import Hosts
from tests.grounds.slurm_hosts import SlurmHosts
from tests.until import until

# Writes to the folder that both attempts share until the test creates the file `enough`.
WRITE = 'while ! [ -e "$0" ]; do echo "$ORCH_ATTEMPT $(hostname)" >>"$0.written"; sleep 0.1; done'


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_of_a_node_that_is_cut_off_are_killed_before_the_next_attempt_starts(
    hosts: Hosts, tmp_path: Path
) -> None:
    """Slurm has lost the node and starts the job on the other one; the batch script of the first attempt is cut off, too."""
    slurm = SlurmHosts(hosts)
    inventory = slurm.inventory(tmp_path).read_text("utf-8")
    [work] = [line.split(": ")[1] for line in inventory.splitlines() if "workdir" in line]
    enough, written = Path(work) / "enough", Path(work) / "enough.written"
    orch = hosts.orch(tmp_path)
    run = orch("submit", "--detach", "-j", "1x1", "--", "sh", "-c", WRITE, str(enough)).stdout.strip()
    until(written.exists, awaited="the first attempt to write")
    first = hosts[int(written.read_text().split()[1][1:])]
    first.link(up=False)
    slurm.start_now(orch.slurm_job(run))
    until(lambda: "\n2 " in written.read_text(), awaited="the second attempt to write")
    assert first.is_up
    until(lambda: written.read_text().count("\n2 ") > 20, awaited="more of it")
    attempts = [line.split()[0] for line in written.read_text().splitlines()]
    assert attempts == sorted(attempts)  # nothing of the first attempt after the second had begun
    assert not [name for name in first.processes().values() if name in ("sh", "sleep", "orch-agent")]
    first.link(up=True)
    until(lambda: slurm.is_idle(first), awaited="the first host to be back")
    count = written.read_text().count("\n2 ")
    until(lambda: written.read_text().count("\n2 ") > count + 50, awaited="the second attempt to outlive its return")
    enough.touch()
    until(lambda: not slurm.jobs(), awaited="the job to end")
    status = orch.status(run)
    assert (status["state"], status["attempt"]) == ("DONE", 2), f"{status['message']}\n{orch('logs', run).stdout}"
    assert "has started a later attempt of the run" in orch.printed(run)
