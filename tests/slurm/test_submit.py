"""orch submit on a real Slurm: the same agents, logs, states and exit codes as over ssh."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.grounds.cli import Orch
from tests.grounds.components import program
from tests.grounds.slurm import Cluster
from tests.slurm.port_thief import orch_with_taken_ports
from tests.until import until


@pytest.fixture
def orch(cluster: Cluster, tmp_path: Path) -> Orch:
    """orch beside an inventory.yaml of the cluster, two ranks per node."""
    cluster.inventory(tmp_path, devices=2)
    return Orch(tmp_path, env=cluster.env)


def test_arguments_arrive_unchanged_and_ranks_follow_node_order(orch: Orch) -> None:
    (orch.cwd / "show.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.environ['ORCH_NODE'], os.environ['RANK'], os.environ['LOCAL_RANK']]))\n"
    )
    orch("submit", "-j", "2x2", "--", "show.py", "--n", "3", "a b$c")
    printed = sorted(
        (json.loads(line["text"]) for line in orch.lines() if line["stream"] == "out"), key=lambda entry: int(entry[2])
    )
    assert [entry[0] for entry in printed] == [["--n", "3", "a b$c"]] * 4
    assert [entry[3] for entry in printed] == ["0", "1", "0", "1"]
    assert printed[0][1] == printed[1][1] < printed[2][1] == printed[3][1]
    copied = orch("cp", "latest:show.py", "fetched").stdout
    assert copied == "fetched/show.py\n", "the nodes share it"
    assert len(orch("cp", "latest:events.jsonl", "fetched").stdout.splitlines()) == 2


def test_environment_value_arrives_byte_equal_and_never_in_the_script(cluster: Cluster, tmp_path: Path) -> None:
    value = 'a,b "c" $d\n\\ $(touch pwned) `id` \'é'
    cluster.inventory(tmp_path, env={"X": value})
    orch = Orch(tmp_path, env=cluster.env)
    (tmp_path / "show.py").write_text("import os; print(repr(os.environ['X']))")
    orch("submit", "-j", "1x1", "--", "show.py")
    assert [line["text"] for line in orch.lines() if line["stream"] == "out"] == [repr(value)]
    [script] = orch.home.rglob("submit.sbatch")
    assert "pwned" not in script.read_text("utf-8")


@pytest.mark.extended
def test_script_of_a_run_that_has_started_refuses_a_second_start(orch: Orch) -> None:
    orch("submit", "-j", "1x1", "--", "true")
    record = orch.status()
    folder = orch.node_folders(record["id"])[0].parent
    argv = [program("sbatch"), "--wait", "submit.sbatch"]
    resubmission = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=folder)
    assert resubmission.returncode == 2, resubmission.stderr
    log = "".join(path.read_text("utf-8") for path in folder.glob("slurm-*.log"))
    assert f"run {record['id']} has started before, and is not started a second time in its folder" in log
    assert orch.status()["state"] == "DONE"


def test_job_runs_on_the_named_nodes_with_one_rank_per_device(cluster: Cluster, tmp_path: Path) -> None:
    nodes = [{"name": "n1", "address": "127.0.0.11", "devices": 1}, {"name": "n3", "address": "127.0.0.13"}]
    cluster.inventory(tmp_path, devices=2, nodes=nodes)
    orch = Orch(tmp_path, env=cluster.env)
    orch("submit", "--nodes", "n1,n3", "--", "sh", "-c", 'echo "$ORCH_NODE $RANK $LOCAL_WORLD_SIZE"')
    printed = sorted(line["text"] for line in orch.lines() if line["stream"] == "out")
    assert printed == ["n1 0 1", "n3 1 2", "n3 2 2"]


@pytest.mark.parametrize(
    ("shipped", "shape"), [("h800", "2x8"), ("h800-roce", "2x8"), ("t20", "2x8"), ("local", "2x2")]
)
def test_sbatch_accepts_the_script_of_every_shipped_inventory(
    orch: Orch, cluster: Cluster, shipped: str, shape: str
) -> None:
    shown = orch("submit", "--dry-run", "-i", shipped, "-j", shape).stdout
    [script] = re.findall(r"submit\.sbatch <<'END_OF_FILE'\n(.*?)\nEND_OF_FILE$", shown, re.DOTALL | re.MULTILINE)
    # this cluster has other partitions, limits and CPUs, and no cards
    here = ["--partition=debug", "--time=10", "--cpus-per-task=1", "--gres=none"]
    sbatch = ["sbatch", "--test-only", *here]
    done = subprocess.run(sbatch, input=script + "\n", env=cluster.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = script.replace("--ntasks-per-node=1", "--ntasks-per-node=x")
    assert subprocess.run(sbatch, input=wrong, env=cluster.env, capture_output=True, text=True, check=False).returncode


@pytest.mark.extended
def test_ranks_get_slurms_variables_about_the_job_and_none_about_the_launch(orch: Orch) -> None:
    orch("submit", "-j", "1x1", "--", "sh", "-c", "env | grep -E '^(SLURM|PMI)' | cut -d= -f1 | sort")
    names = {line["text"] for line in orch.lines() if line["stream"] == "out"}
    assert names >= {"SLURM_CONF", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_SUBMIT_DIR"}
    launch = "PROCID|NPROCS|TASK|STEP|NODEID|NODELIST|LOCALID|LAUNCH|SRUN|NNODES|NUM_NODES|PMI"
    assert not [name for name in names - {"SLURM_CPUS_PER_TASK"} if re.search(launch, name)]


def test_failing_rank_fails_the_run_and_ends_the_other_nodes(orch: Orch, cluster: Cluster) -> None:
    line = 'if [ "$RANK" = 3 ]; then echo "ValueError: wrong label" >&2; exit 7; fi; exec sleep 1000'
    done = orch("submit", "-j", "2x2", "--", "sh", "-c", line, code=1)
    assert "rank 3 on" in done.stderr
    assert "exited 7" in done.stderr
    status = orch.status()
    assert (status["state"], status["exit"]["rank"], status["exit"]["code"]) == ("FAILED", 3, 7)
    found = json.loads(orch("diagnose", "--json").stdout)
    assert (found["cause"], found["ranks"]) == ("the program raised ValueError: wrong label", [3])
    assert f"{status['message']}\ncause       {found['cause']}\nbegan on    rank 3 on " in done.stderr
    assert (status["failure"]["kind"], status["failure"]["cause"]) == ("code", found["cause"])
    until(lambda: not cluster.jobs(), awaited="the job to be over")


def test_detached_job_is_followed_by_logs_and_stopped_by_stop(orch: Orch, cluster: Cluster) -> None:
    run_id = orch("submit", "--detach", "-j", "2x1", "--", "sh", "-c", "echo up; exec sleep 1000").stdout.strip()
    assert cluster.wait_for(orch, run_id, "RUNNING")["slurm_job"] in cluster.jobs()
    until(lambda: orch.printed(run_id).count("up\n") == 2, awaited="the lines of both ranks")
    orch("stop", run_id)
    assert orch.status(run_id)["state"] == "STOPPED"
    assert not cluster.jobs()
    until(lambda: not cluster.processes(), awaited="every process of the job to be gone")
    assert [line["text"] for line in orch.lines(run_id) if line["stream"] == "out"] == ["up", "up"]


def test_cancelled_job_is_stopped_and_one_ended_by_a_signal_has_failed(orch: Orch, cluster: Cluster) -> None:
    states = []
    # the second only forwards a signal to the agents; the third also signals the batch script, and kills the agents
    for command in (["scancel"], ["scancel", "--signal=TERM"], ["scancel", "--full", "--signal=TERM"]):
        run_id = orch("submit", "--detach", "-j", "2x1", "--", "sleep", "1000").stdout.strip()
        job = cluster.wait_for(orch, run_id, "RUNNING")["slurm_job"]
        until(lambda: orch.printed(run_id).count("rank-started") == 2, awaited="both ranks")
        subprocess.run([*command, job], check=True, timeout=30)
        until(lambda: not cluster.jobs(), awaited="the job to be over")
        states.append((orch.status(run_id)["state"], orch.status(run_id)["message"] or ""))
    assert states[0] == ("STOPPED", "")
    assert states[1][0] == "FAILED"
    assert "was stopped by a signal, not by `orch stop` on this machine" in states[1][1]
    assert states[2][0] == "FAILED"
    assert "Slurm signalled the whole job, as scancel does, and no rank failed before: *** JOB " in states[2][1]


@pytest.mark.extended
def test_waiting_job_is_pending_with_slurms_reason(orch: Orch) -> None:
    first = orch("submit", "--detach", "-j", "4x2", "--", "sleep", "1000").stdout.strip()
    inventory = (orch.cwd / "inventory.yaml").read_text("utf-8")
    (orch.cwd / "inventory.yaml").write_text(inventory.replace("slurm:", "slurm:\n  options: ['--exclusive']"), "utf-8")
    second = orch("submit", "--detach", "-j", "4x2", "--", "true").stdout.strip()
    until(lambda: orch.status(second).get("message"), awaited="a reason")
    status = orch.status(second)
    assert status["state"] == "PENDING"
    orch("stop", second)
    assert orch.status(second)["state"] == "STOPPED"
    orch("stop", first)


@pytest.mark.extended
def test_slurm_gets_the_inventorys_values(cluster: Cluster, tmp_path: Path) -> None:
    comment = 'it\'s "a" $comment # `id` \\ é'
    slurm = {"cpus": 3, "mem": "1", "exclusive": "user", "exclude": "n[3,1]", "dependency": "singleton"}
    notifications = {"mail_type": "END,FAIL", "mail_user": "train@example.org"}
    cluster.inventory(tmp_path, slurm={**slurm, **notifications, "comment": comment, "options": ["--nice=7"]})
    variables = {"SBATCH_MEM_PER_NODE": "9", "SBATCH_REQ_SWITCH": "2", "SLURM_NTASKS_PER_NODE": "7"}
    orch = Orch(tmp_path, env={**cluster.env, **variables})
    typed = ("-t", "7", "--job-name", "lr-test", "--set", "slurm.cpus=2")
    submitted = orch("submit", "--detach", "-j", "1x1", *typed, "--", "sleep", "1000")
    assert orch.records()[-1]["request"]["slurm"] == ["time=7", "job_name=lr-test", "cpus=2"]
    assert "SBATCH_REQ_SWITCH=2, set on this machine, applies to the job" in submitted.stderr
    shown = ["scontrol", "--oneliner", "show", "job", orch.status()["slurm_job"]]
    job = subprocess.run(shown, check=True, capture_output=True, text=True, timeout=30).stdout
    for field in (
        "JobName=lr-test",
        "TimeLimit=00:07:00",
        "CPUs/Task=2",
        "MinMemoryNode=1M",
        "ExcNodeList=n[1,3]",
        "Nice=7",
        "MailUser=train@example.org",
        "NumTasks=1",
    ):
        assert f" {field} " in job, job
    assert " MailType=END,FAIL" in job
    assert " Switches=2@" in job
    assert f" Comment={comment} " in job, re.findall(".{9}Comment=.{60}", job)
    assert " OverSubscribe=USER " in job
    orch("stop")
    assert not cluster.jobs()


# slurmctld keeps a FAILED record of jobs that no node of the cluster could run.
REFUSED = [
    ({"constraint": "h800"}, "Batch job submission failed: Invalid feature specification"),
    ({"mem": "64G"}, "Memory specification can not be satisfied"),
    ({"options": ["--tmp=64G"]}, "Temporary disk specification can not be satisfied"),
]


@pytest.mark.extended
@pytest.mark.parametrize(("slurm", "words"), REFUSED, ids=["constraint", "mem", "tmp"])
def test_refusal_of_sbatch_is_quoted(cluster: Cluster, tmp_path: Path, slurm: dict[str, object], words: str) -> None:
    cluster.inventory(tmp_path, slurm=slurm)
    orch = Orch(tmp_path, env=cluster.env)
    done = orch("submit", "--detach", "--", "true", code=4)
    assert f"sbatch refused the job: {words}" in done.stderr
    assert not done.stdout
    status = orch.status()
    assert (status["state"], status["slurm_job"]) == ("FAILED", None)
    assert status["message"].startswith(f"sbatch refused the job: {words}")
    assert not cluster.jobs()


def test_submission_without_sbatch_names_the_login_node(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path)
    done = Orch(tmp_path, env={"PATH": str(tmp_path)})("submit", "--", "true", code=4)
    assert "no sbatch" in done.stderr
    assert "login node" in done.stderr


def test_missing_program_is_named_in_the_log(orch: Orch) -> None:
    orch("submit", "-j", "1x1", "--", "no-such-program-anywhere", code=1)
    assert "no-such-program-anywhere" in orch("logs").stdout


@pytest.mark.extended
def test_job_whose_id_was_never_recorded_is_found_by_its_folder(orch: Orch, cluster: Cluster) -> None:
    """As after a launch that was killed right after sbatch."""
    run_id = orch("submit", "--detach", "-j", "1x1", "--", "sleep", "1000").stdout.strip()
    record = orch.home / "runs" / run_id / "run.json"
    fields = json.loads(record.read_text("utf-8"))
    record.write_text(json.dumps(fields | {"slurm_job": None, "state": "STARTING", "started": False}))
    until(lambda: orch.status(run_id)["state"] == "RUNNING", awaited="the job to be found")
    orch("stop", run_id)
    assert not cluster.jobs()
    assert orch.status(run_id)["state"] == "STOPPED"


# If the head's rank is not started, the other one waits until it is ended.
WAIT_FOR_BOTH_RANKS = """
met=$ORCH_RUN_DIR/met-$MASTER_PORT
touch "$met.$RANK"
until [ -e "$met.0" ] && [ -e "$met.1" ]; do sleep 0.05; done
echo "$MASTER_PORT"
"""


def test_taken_port_is_retried_on_another_one(cluster: Cluster, tmp_path: Path) -> None:
    orch = orch_with_taken_ports(cluster, tmp_path, thefts=1)
    orch("submit", "-j", "2x1", "--", "sh", "-c", WAIT_FOR_BOTH_RANKS)
    assert orch.status()["state"] == "DONE"
    lines = orch.lines()
    assert sum("already in use" in line["text"] for line in lines) == 1
    assert len({line["text"] for line in lines if line["stream"] == "out"}) == 1


@pytest.mark.extended
@pytest.mark.slow
def test_port_that_is_taken_every_time_fails_the_job(cluster: Cluster, tmp_path: Path) -> None:
    orch = orch_with_taken_ports(cluster, tmp_path, thefts=3)
    orch("submit", "-j", "2x1", "--", "sh", "-c", "sleep 1000", code=1)
    assert orch.status()["state"] == "FAILED"
    assert sum("already in use" in line["text"] for line in orch.lines()) == 3
    until(lambda: not cluster.jobs() and not cluster.processes(), awaited="the job to be gone")


@pytest.mark.extended
def test_equal_lines_of_the_ranks_of_a_watched_job_are_folded(orch: Orch) -> None:
    printed = orch("submit", "--quiet", "--fold", "-j", "2x2", "--", "echo", "up").stdout.splitlines()
    [shape] = {re.sub(r"^\[.*\]", "[…]", line) for line in printed}
    assert shape == "[…] up"
    assert len(printed) <= 2, "one line, or one per node if one of them was much slower"


@pytest.mark.extended
def test_dry_run_that_queries_prints_the_script_with_what_the_cluster_decides(cluster: Cluster, tmp_path: Path) -> None:
    cluster.inventory(tmp_path, slurm={"time": None})
    orch = Orch(tmp_path, env={**cluster.env, "SBATCH_TIMELIMIT": "2"})
    words = "submit", "--dry-run", "-j", "1x1", "--", "true"
    assert "--signal=USR2@90\n" in orch(*words).stdout
    assert "--signal=USR2@30\n" in orch(words[0], "--query", *words[1:]).stdout
    refused = orch("submit", "--dry-run", "--query", "--set", "slurm.partition=none", "--", "true", code=2)
    assert "slurm.partition: none is not known to this cluster" in refused.stderr
