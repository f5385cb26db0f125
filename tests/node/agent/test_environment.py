"""The environment, arguments, streams and signals that a rank gets from the agent, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.node.agent.environment import LOGIN_NAMES, RECORD_NAMES, REPORT_FOLDER
from orchestrator.node.agent.program import script_of
from orchestrator.node.rendezvous import matching_interfaces
from tests.node.agent.test_agent_ground import Ground, ground

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ground"]


def environment(ground: Ground, rank: int = 0, node_rank: int = 0) -> dict[bytes, bytes]:
    raw = (ground.folder(node_rank) / f"rank-{rank}.out").read_bytes()
    return dict(entry.split(b"=", 1) for entry in raw.split(b"\0") if entry)


def environment_of_one_rank(ground: Ground, env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    ground.job("cat", "/proc/self/environ")
    assert ground.run(env=env) == (0, "")
    return environment(ground)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"two\nlines\n",
        b"\"double\" 'single' `tick`",
        b"$HOME $(id) \\ ; & | * ~",
        b"mlx5_0,mlx5_1 a=b",
        b"\xff\xfe not utf-8 \x80",
        "größe 漢字".encode(),
        b"x" * 100_000,
    ],
)
def test_values_arrive_byte_for_byte(ground: Ground, value: bytes) -> None:
    assert environment_of_one_rank(ground, {b"VALUE": value, b"na.me \xff": value}).items() >= {
        (b"VALUE", value),
        (b"na.me \xff", value),
    }


def test_arguments_arrive_untouched(ground: Ground) -> None:
    args = ["", "--n", "-u", "a b", "$HOME", "quo'te\"", "new\nline", "*", "größe", "\udcff"]
    ground.job("sh", "-c", "cat /proc/$$/cmdline", "sh", *args)
    assert ground.run() == (0, "")
    raw = (ground.folder() / "rank-0.out").read_bytes()
    assert raw.split(b"\0")[4:-1] == [os.fsencode(arg) for arg in args]


def test_python_programs_run_with_the_agents_own_interpreter(ground: Ground) -> None:
    ground.job("-c", "import sys; print(sys.executable, sys.argv[1:])", "-m", program={"python": True})
    ground.run()
    assert ground.out() == f"{ground.python} ['-m']\n"


def test_bash_c_does_not_read_bashrc_after_a_login_over_ssh(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("export VALUE=from-bashrc\n")
    login = dict.fromkeys(LOGIN_NAMES, b"127.0.0.1 1 127.0.0.1 22")
    ground.job("bash", "-c", "echo $VALUE; env")
    ground.run(env={**login, b"HOME": os.fsencode(tmp_path), b"SHLVL": b"0", b"VALUE": b"from-inventory"})
    assert ground.out().startswith("from-inventory\n")
    assert "SSH_" not in ground.out().replace("SSH_AUTH_SOCK", "")
    assert not ground.events("note")


def test_ranks_of_two_nodes_are_numbered_in_node_order(ground: Ground) -> None:
    ground.job("cat", "/proc/self/environ", ranks=[2, 1], commit="1d6f-dirty")
    head = ground.start(0)
    record = ground.record()["rendezvous"]
    assert ground.run(1, rendezvous=record) == (0, "")
    assert head.wait(timeout=10) == 0
    address, port, _ = record.split()
    names = b"RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE".split()
    expected = {(0, 0): b"0 0 3 2 0 2 0 3", (1, 0): b"1 1 3 2 0 2 1 3", (2, 1): b"2 0 3 1 1 2 2 3"}
    for (rank, node_rank), values in expected.items():
        env = environment(ground, rank, node_rank)
        assert [env[name] for name in names] == values.split()
        folder = os.fsencode(ground.folder(node_rank))
        assert env.items() >= {
            (b"MASTER_ADDR", address.encode()),
            (b"MASTER_PORT", port.encode()),
            (b"TORCHELASTIC_RUN_ID", b"gpt-20261120-101500-ab12"),
            (b"TORCHELASTIC_RESTART_COUNT", b"0"),
            (b"TORCHELASTIC_USE_AGENT_STORE", b"False"),
            (b"TORCHELASTIC_ERROR_FILE", folder + b"/error/%d.json" % rank),
            (b"ORCH_RUN_ID", b"gpt-20261120-101500-ab12"),
            (b"ORCH_RUN_DIR", os.fsencode(ground.run_dir)),
            (b"ORCH_NODE", b"n%d" % node_rank),
            (b"ORCH_NODE_RANK", b"%d" % node_rank),
            (b"ORCH_ATTEMPT", b"1"),
            (b"ORCH_COMMIT", b"1d6f-dirty"),
            (b"NNODES", b"2"),
            (b"NODE_RANK", b"%d" % node_rank),
            (b"NPROC_PER_NODE", values.split()[3]),
        }


def test_program_that_starts_its_ranks_has_the_size_of_the_launch_and_no_rank(ground: Ground) -> None:
    """By PET_*, torchrun without options takes the same values; TORCHELASTIC_RUN_ID would pass for a rank of torchrun."""
    ground.job("cat", "/proc/self/environ", ranks=[3, 2], program={"per_node": True})
    assert ground.run(env={b"RANK": b"9", b"PET_NNODES": b"9", b"TORCHELASTIC_RUN_ID": b"x"}) == (0, "")
    raw = (ground.folder() / "program.out").read_bytes()
    env = dict(entry.split(b"=", 1) for entry in raw.split(b"\0") if entry)
    address, port, _ = ground.record()["rendezvous"].encode().split()
    launch = {
        b"NNODES": b"2",
        b"NODE_RANK": b"0",
        b"NPROC_PER_NODE": b"3",
        b"MASTER_ADDR": address,
        b"MASTER_PORT": port,
    }
    assert env.items() >= {**launch, **{b"PET_" + name: value for name, value in launch.items()}}.items()
    assert not env.keys() & {b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"GROUP_RANK", b"ROLE_RANK"}
    assert {name for name in env if name.startswith(b"TORCHELASTIC_")} == {
        b"TORCHELASTIC_ERROR_FILE",
        b"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    }
    (started,) = ground.events("rank-started")
    assert (started["rank"], started["text"]) == (None, f"the program started as pid {started['pid']}")
    assert json.loads((ground.folder() / "DONE").read_text("utf-8"))["ranks"] == [0, 1, 2]


def test_variables_of_another_launcher_are_dropped_and_named_without_values(ground: Ground) -> None:
    stale = {b"TORCHELASTIC_USE_AGENT_STORE": b"True", b"PET_NNODES": b"4", b"SLURM_PROCID": b"9", b"PMI_RANK": b"9"}
    stale |= {
        b"PMIX_RANK": b"9",
        b"OMPI_COMM_WORLD_RANK": b"9",
        b"HOROVOD_RANK": b"9",
        b"NODE_RANK": b"9",
        b"RANK": b"secret-value",
    }
    stale |= {b"SLURM_NTASKS": b"9", b"SLURM_STEP_NODELIST": b"9", b"SLURM_STEP_TASKS_PER_NODE": b"9"}
    names = b"CONF JOB_ID JOB_NAME TMPDIR CPUS_PER_TASK CPUS_ON_NODE JOB_END_TIME ARRAY_TASK_ID SUBMIT_DIR GPUS_ON_NODE".split()
    kept = {b"SLURM_" + name: b"12" for name in names} | {b"SLURMISH": b"1", b"RANKS": b"1"}
    env = environment_of_one_rank(ground, {**stale, **kept})
    assert env.items() >= kept.items()
    assert env[b"RANK"] == env[b"NODE_RANK"] == b"0"
    assert not env.keys() & (stale.keys() - {b"RANK", b"NODE_RANK", b"TORCHELASTIC_USE_AGENT_STORE"})
    (message,) = ground.events("note")
    assert {name.decode() for name in stale} <= set(message["dropped"])
    assert "secret-value" not in str(ground.lines("events.jsonl"))


@pytest.mark.parametrize(
    ("ranks", "given", "expected"),
    [(1, None, None), (2, None, b"1"), (2, b"7", b"7")],
)
def test_omp_threads_are_torchruns_default(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, ranks: int, given: bytes | None, expected: bytes | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ground.job("cat", "/proc/self/environ", ranks=[ranks])
    ground.run(env={} if given is None else {b"OMP_NUM_THREADS": given})
    assert environment(ground).get(b"OMP_NUM_THREADS") == expected


def test_nccl_error_handling_is_set_unless_it_was(ground: Ground) -> None:
    name = b"TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert environment_of_one_rank(ground, {})[name] == b"3"


def test_nccl_error_handling_of_the_user_wins(ground: Ground) -> None:
    name = b"TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert environment_of_one_rank(ground, {name: b"1"})[name] == b"1"


def test_flight_record_is_written_beside_the_stacks(ground: Ground) -> None:
    env = environment_of_one_rank(ground, {})
    prefix = os.fsencode(ground.folder() / "stacks" / "nccl_trace_rank_")
    assert [env[name] for name in RECORD_NAMES] == [prefix, prefix]
    assert env[b"TORCH_NCCL_DUMP_ON_TIMEOUT"] == b"1"
    assert (ground.folder() / "stacks").is_dir()


@pytest.mark.parametrize("name", RECORD_NAMES)
def test_users_flight_record_path_wins_by_either_name(ground: Ground, name: bytes) -> None:
    """If both were set, torch would use the first."""
    env = environment_of_one_rank(ground, {name: b"/mine", b"TORCH_NCCL_DUMP_ON_TIMEOUT": b"0"})
    assert [env.get(each) for each in RECORD_NAMES] == [b"/mine" if each == name else None for each in RECORD_NAMES]
    assert env[b"TORCH_NCCL_DUMP_ON_TIMEOUT"] == b"0"


@pytest.mark.parametrize(
    ("folder", "before", "expected"),
    [
        ("", None, ["{bundle}"]),
        ("", b"/a:/b", ["{bundle}", "/a:/b"]),
        ("trainer/scripts/site", b"/a:/b", ["{bundle}/trainer/scripts/site", "/a:/b", "{bundle}/{report}"]),
        (None, None, ["{bundle}/{report}"]),
        (None, b"/a:/b", ["/a:/b", "{bundle}/{report}"]),
    ],
)
def test_python_path_begins_with_what_the_program_needs_and_ends_with_the_module_that_reports(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, before: bytes | None, folder: str | None, expected: list[str]
) -> None:
    """The shared trainer reports by itself. A user's own `orch_progress` comes first."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    ground.job("cat", "/proc/self/environ", program={"pythonpath": folder})
    ground.run(env={} if before is None else {b"PYTHONPATH": before})
    path = ":".join(expected).format(bundle=ground.bundle, report=REPORT_FOLDER)
    assert environment(ground)[b"PYTHONPATH"] == os.fsencode(path)


def test_a_rank_has_its_own_group_default_signals_and_no_input(ground: Ground) -> None:
    script = (
        "cat; grep -E '^(Sig|Shd)(Blk|Ign|Pnd)' /proc/self/status; cut -d' ' -f1,5 /proc/$$/stat; ls -l /proc/$$/fd"
    )
    ground.job("sh", "-c", script)
    # as started by nohup or a shell's `&`
    ground.run(before_exec=lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)])
    lines = ground.out().splitlines()
    masks = dict(line.split() for line in lines if line.startswith(("Sig", "Shd")))
    # Signals 32 and 33 are libc's: GNU make 4.3 ignores them, its children inherit that, and Python cannot change it.
    libc_signals = 0b11 << 31
    assert {int(mask, 16) & ~libc_signals for mask in masks.values()} == {0}
    pid, group = next(line for line in lines if line.split()[0].isdigit() and len(line.split()) == 2).split()
    assert pid == group
    descriptors = {line.split(" -> ")[0].split()[-1] for line in lines if " -> " in line and "/proc" not in line}
    assert descriptors == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("args", "script"),
    [
        (["x.py"], "x.py"),
        (["-u", "dir/x.py", "-m"], "dir/x.py"),
        (["-W", "error", "x.py"], "x.py"),
        (["-Wmodule", "-Xc", "x.py"], "x.py"),
        (["--check-hash-based-pycs", "never", "x.py"], "x.py"),
        (["-m", "pkg.mod", "y.py"], None),
        (["-um", "pkg.mod"], None),
        (["-c", "print()", "y.py"], None),
        (["-"], None),
        ([], None),
    ],
)
def test_script_is_found_among_pythons_arguments(args: list[str], script: str | None) -> None:
    assert script_of(args) == script


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=eth", []),
        ("=ib0,eth1", ["eth1", "ib0"]),
        ("^lo,docker", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["lo", "eth1", "ib0", "docker0"]),
        ("", []),
    ],
)
def test_interfaces_match_by_nccls_rule(pattern: str, expected: list[str]) -> None:
    assert matching_interfaces(pattern, ["lo", "eth0", "eth1", "ib0", "docker0"]) == expected


def test_slurms_variables_are_counted_in_the_message(ground: Ground) -> None:
    environment_of_one_rank(ground, {b"SLURM_PROCID": b"9", b"SLURM_NODEID": b"0", b"PET_NNODES": b"4"})
    (message,) = ground.events("note")
    assert message["text"].endswith("PET_NNODES, SLURM* (2)")
    assert {"SLURM_PROCID", "SLURM_NODEID"} <= set(message["dropped"])


def test_ranks_have_the_users_umask_and_the_agents_files_are_private(ground: Ground) -> None:
    ground.job("/bin/sh", "-c", "umask; touch written")
    code, _ = ground.run(before_exec=lambda: os.umask(0o027))
    assert code == 0
    assert (ground.folder() / "rank-0.out").read_text("utf-8").strip() == "0027"
    assert (ground.run_dir / "code" / "written").stat().st_mode & 0o777 == 0o640
    assert (ground.folder() / "agent.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("addresses", "env", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], {}, "10.0.0.9,10.0.0.2"),
        ([], {b"SLURM_STEP_NODELIST": b"a[1-2]"}, "10.0.0.9,a2"),  # Slurm has chosen the nodes
        ([], {}, None),
    ],
)
def test_program_learns_the_addresses_of_all_nodes_in_rank_order(
    ground: Ground, addresses: list[str], env: Mapping[bytes, bytes], expected: str | None
) -> None:
    show = 'echo "${ORCH_NODE_ADDRESSES-none}"; [ -z "$ORCH_HOSTFILE" ] || { cat "$ORCH_HOSTFILE"; stat -c %a "$ORCH_HOSTFILE"; }'
    ground.job("sh", "-c", show, ranks=[2, 1], addresses=addresses, program={"per_node": True})
    assert ground.run(rendezvous="10.0.0.9 0 h", env=env)[0] == 0
    printed = (ground.folder() / "program.out").read_text()
    first, _, second = (expected or "").partition(",")
    assert printed == (f"{expected}\n{first} slots=2\n{second} slots=1\n600\n" if expected else "none\n")


@pytest.mark.parametrize(("library", "ranks", "per_node"), [(b"libmpi.so.40", [2], False), (b"libmpich.so.12", [2], False), (b"libc.so.6", [2], False), (b"libmpi.so.40", [1], False), (b"libmpi.so.40", [2], True)])  # fmt: skip
def test_mpi_program_is_refused_in_each_rank(
    ground: Ground, tmp_path: Path, library: bytes, ranks: list[int], *, per_node: bool
) -> None:
    """Its ranks are each rank 0 of 1 without mpirun."""
    program = tmp_path / "solver"
    program.write_bytes(Path(shutil.which("true") or "").read_bytes() + b"\0" + library + b"\0")  # as if it were linked
    program.chmod(0o755)
    ground.job(str(program), ranks=ranks, program={"per_node": per_node})
    code, err = ground.run()
    if b"mpi" in library and ranks == [2] and not per_node:
        assert code == 4
        assert "is an MPI program: without mpirun, each of the 2 ranks is rank 0 of 1; start it with" in err
        assert "mpirun --hostfile $ORCH_HOSTFILE" in err
    else:
        assert code == 0
