"""make_plan: ranks, shapes, selections and refusals."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory, Node, RestartOptions
from orchestrator.inventory.slurm import Container, SlurmOptions
from orchestrator.plan import plan as plans
from orchestrator.plan import sbatch
from orchestrator.plan.files import job_json, node_files
from orchestrator.plan.make import make_plan
from orchestrator.plan.plan import LaunchPlan
from orchestrator.plan.resolve import Facts, resolve
from orchestrator.run import Allocation, LauncherName, Program, Request, Shape


def _inventory(*nodes: Node) -> Inventory:
    return Inventory(name="demo", nodes=nodes, file="demo.yaml")


def _plan(
    inventory: Inventory, launcher: LauncherName = "ssh", nodes: str | None = None, shape: Shape | None = None
) -> LaunchPlan:
    request = Request(launcher, Program("trainer", ("steps=3",)), nodes=nodes, shape=shape)
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")


THREE = _inventory(Node(name="n0", devices=2), Node(name="n1", devices=4), Node(name="s0", devices=2, tags=("spare",)))


@given(st.lists(st.integers(1, 16), min_size=1, max_size=40))
def test_ranks_are_contiguous_from_zero_in_node_order(devices: list[int]) -> None:
    plan = _plan(_inventory(*(Node(name=f"n{k}", devices=count) for k, count in enumerate(devices))))
    assert [rank for node in plan.nodes for rank in node.ranks] == list(range(plan.world_size))
    assert [len(node.ranks) for node in plan.nodes] == devices
    assert [node.node_rank for node in plan.nodes] == list(range(len(devices)))


def test_runs_of_one_name_and_launch_folder_share_kept_folders_and_others_do_not() -> None:
    inventory = THREE.model_copy(update={"keep": ("outputs",)})

    def kept(
        run_id: str = "a-20260102-030405-0abc", folder: str = "/home/u/my code", *, is_trial: bool = False
    ) -> str | None:
        request = Request("ssh", Program("python", ("train.py",)), is_trial=is_trial)
        return job_json(make_plan(inventory, request, run_id=run_id, bundle="b", folder=folder)).get("kept_dir")

    assert kept() == kept("a-20270102-030405-0abd") == "~/.orch/kept/a/my_code-6878f4"
    assert len({kept(), kept("b-20260102-030405-0abc"), kept(folder="/home/v/my code")}) == 3
    assert kept(is_trial=True) is None
    assert "keep" not in job_json(_plan(inventory))


def test_spare_nodes_are_left_out_unless_named() -> None:
    assert [node.name for node in _plan(THREE).nodes] == ["n0", "n1"]
    assert [node.name for node in _plan(THREE, nodes="s0,n0").nodes] == ["n0", "s0"]


def test_rank_numbers_follow_the_order_of_the_inventory_and_the_head_is_its_first_node() -> None:
    plan = _plan(_inventory(*(Node(name=name, devices=count) for name, count in (("b", 2), ("c", 1), ("a", 3)))))
    assert [(node.name, node.node_rank, node.ranks) for node in plan.nodes] == [
        ("b", 0, range(2)),
        ("c", 1, range(2, 3)),
        ("a", 2, range(3, 6)),
    ]
    assert plan.head.name == "b"


@pytest.mark.parametrize("nodes", [None, "n[1-3]"])
def test_shape_over_ssh_takes_the_first_nodes(nodes: str | None) -> None:
    """The first nodes of the inventory, or of --nodes."""
    four = _inventory(*(Node(name=f"n{k}", devices=2) for k in range(4)))
    assert [node.name for node in _plan(four, nodes=nodes, shape=Shape(2, 1)).nodes] == (
        ["n1", "n2"] if nodes else ["n0", "n1"]
    )


def test_fewer_ranks_than_devices_is_a_warning() -> None:
    plan = _plan(THREE, shape=Shape(2, 2))
    assert [len(node.ranks) for node in plan.nodes] == [2, 2]
    assert plan.warnings == ("-j 2x2 uses 2 of 4 devices per node",)


@pytest.mark.parametrize(
    ("shape", "message"), [(Shape(3, 1), "-j 3x1 needs 3 nodes; demo.yaml has 2"), (Shape(2, 4), "n0 has 2 devices")]
)
def test_shape_that_does_not_fit_is_refused(shape: Shape, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _plan(THREE, shape=shape)


def test_inventory_of_spares_only_is_an_error() -> None:
    with pytest.raises(UsageError, match="every node is tagged 'spare'"):
        _plan(_inventory(Node(name="s0", tags=("spare",))))


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ("docker run --gpus all img python train.py", True),
        ("podman run img torchrun train.py", True),
        ("docker run -e RANK -e WORLD_SIZE -e MASTER_ADDR img python train.py", False),
        ("docker run --env-file e img python train.py", False),
        ("docker run img nvidia-smi", False),
        ("docker exec c python train.py", False),
    ],
)
def test_container_without_the_variables_of_its_rank_is_refused(words: str, *, is_refused: bool) -> None:
    request = Request("ssh", Program("executable", tuple(words.split())), nodes="n0,s0", shape=Shape(2, 2))
    if not is_refused:
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")
        return
    with pytest.raises(UsageError, match="each of 4 would train alone") as caught:
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    assert "`container: {image: …}` in the inventory" in str(caught.value.hint)


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_torchrun_is_refused_in_each_rank_and_started_once_per_node(launcher: LauncherName) -> None:
    def job(program: Program, shape: Shape) -> dict[str, object]:
        request = Request(launcher, program, nodes="n0,s0" if shape.nodes == 2 else "n0", shape=shape)
        return dict(job_json(make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1"))["program"])

    words = ("torchrun", "--standalone", "my train.py")
    with pytest.raises(
        UsageError, match="torchrun starts ranks itself, but would be started in each of the 4 ranks"
    ) as caught:
        job(Program("executable", words), Shape(2, 2))
    command = "submit" if launcher == "slurm" else "ssh-launch"
    assert f"`orch {command} … --per-node -- torchrun 'my train.py'`" in str(caught.value.hint)
    assert "per_node" not in job(Program("executable", words), Shape(1, 1))
    joining = ("torchrun", "my train.py")
    started = job(Program("executable", joining, per_node=True), Shape(2, 2))
    assert (started["per_node"], started["pythonpath"]) == (True, "trainer/scripts/site")
    assert job(Program("executable", joining, bare=True, per_node=True), Shape(2, 2))["pythonpath"] is None


@pytest.mark.parametrize(
    ("line", "site"),
    [
        ("python train.py", "trainer/scripts/site"),
        ("env X=1 /opt/conda/bin/python3.11 -m train", "trainer/scripts/site"),
        ("./train.sh python.txt", None),
        ("pythonic train.py", None),
    ],
)
def test_python_that_the_command_names_is_prepared_unless_bare(line: str, site: str | None) -> None:
    """Users type `python train.py`, whose steps are to be seen as those of `train.py`."""
    for bare in (False, True):
        program = Program("executable", tuple(line.split()), bare=bare)
        plan = make_plan(THREE, Request("ssh", program, nodes="n0"), run_id="demo-20260102-030405-0abc", bundle="b1")
        assert job_json(plan)["program"]["pythonpath"] == (None if bare else site)
        assert program.needs_trainer is (site is not None and not bare)


@pytest.mark.parametrize(
    ("line", "launcher", "shape", "per_node", "refusal"),
    [
        ("torchrun --standalone x.py", "ssh", (2, 2), True, "torchrun with --standalone starts a training of one node, but"),
        ("torchrun --nnodes=1 x.py", "ssh", (2, 2), True, "torchrun with --nnodes 1 starts a training of one node, but"),
        ("torchrun --master_addr localhost x.py", "ssh", (2, 2), True, "address localhost looks for rank 0 on its own node"),
        ("torchrun --nnodes=2 --node_rank=0 --master_addr=h0 x.py", "ssh", (2, 2), True, "torchrun with --node_rank 0 is the line of one node, but"),
        ("accelerate launch --machine-rank 1 x.py", "ssh", (2, 2), True, "accelerate launch with --machine-rank 1 is the line of one node, but"),
        ("torchrun --node_rank=0 x.py", "ssh", (1, 2), True, ""),
        ("torchrun --rdzv-backend=c10d x.py", "ssh", (2, 2), True, "torchrun with c10d and no --rdzv_endpoint looks for rank 0 on its own node"),
        ("torchrun --rdzv-backend=c10d --rdzv-endpoint=h0:1 x.py", "ssh", (2, 2), True, ""),
        ("deepspeed --hostfile hosts x.py", "ssh", (2, 2), True, "deepspeed without --no_ssh starts the ranks of all nodes by ssh, or"),
        ("deepspeed --hostfile hosts --no-ssh x.py", "ssh", (2, 2), True, ""),
        ("torchrun --standalone x.py", "ssh", (1, 2), True, ""),
        ("mpirun -n 4 ./a.out", "ssh", (2, 2), True, "mpirun starts the ranks of all nodes from one node"),
        ("mpirun -n 2 ./a.out", "ssh", (1, 2), True, ""),
        ("trl sft", "ssh", (2, 1), False, "trl sft starts ranks itself, but would be started in each of the 2 ranks"),
        ("srun train.sh", "slurm", (1, 1), False, "orch starts the ranks itself: srun would start others in them"),
        ("srun train.sh", "slurm", (2, 1), True, "orch starts the ranks itself: srun would start others in them"),
        ("mim train mmseg x.py", "ssh", (1, 2), False, "mim train would start others in them"),
        ("sbatch job.sh", "slurm", (2, 2), False, "sbatch would submit another job in each of the 4 ranks"),
        ("/usr/bin/salloc -N 2 x.py", "slurm", (1, 1), True, "salloc would submit another job in each of the 1 ranks"),
    ],
)  # fmt: skip
def test_launcher_that_would_start_several_trainings_is_refused(
    line: str, launcher: LauncherName, shape: tuple[int, int], refusal: str, *, per_node: bool
) -> None:
    program, names = Program("executable", tuple(line.split()), per_node=per_node), "n0,s0" if shape[0] == 2 else "n0"
    request = Request(launcher, program, nodes=names, shape=Shape(*shape))
    with pytest.raises(UsageError, match=refusal) if refusal else contextlib.nullcontext():
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    if "standalone" in line:
        request = replace(request, variables={"ORCH_SEPARATE": "1"})
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")


@pytest.mark.parametrize(
    ("line", "shape", "per_node", "refusal", "remedy"),
    [
        ("main.py -b 8 --dist-url tcp://127.0.0.1:23456 --multiprocessing-distributed --world-size 1 --rank 0", (2, 2), False,
         "started in each of the 4 ranks, and --dist-url tcp://127.0.0.1:23456 looks for rank 0 on its own node",
         "--per-node -- bash -c 'python3 main.py -b 8 --multiprocessing-distributed --dist-url tcp://$MASTER_ADDR:$MASTER_PORT --world-size $NNODES --rank $NODE_RANK'`"),
        ("python main.py --dist-url=tcp://10.0.0.1:23456 --multiprocessing-distributed --world-size=2 --rank=0", (2, 2), True,
         "started in each of the 2 nodes, and --rank 0 is the same in all of them",
         "--per-node -- bash -c 'python main.py --multiprocessing-distributed --dist-url tcp://"),
        ("main.py --init_method tcp://localhost:1 --rank 0 --world_size 4 data", (2, 2), False, "looks for rank 0 on its own node",
         "… -- main.py data --init_method env://`"),
        ("main.py --dist-url tcp://10.0.0.1:23456", (2, 2), False, "", ""),
        ("main.py --dist-url env:// --rank 0", (2, 2), False, "", ""),
        ("main.py --dist-url tcp://localhost:1 --rank 0", (1, 2), False, "", ""),
    ],
)  # fmt: skip
def test_line_of_a_program_for_one_node_is_refused_on_several(
    line: str, shape: tuple[int, int], refusal: str, remedy: str, *, per_node: bool
) -> None:
    """The README of torch's ImageNet example, and of the many programs that follow it, has one line for each node."""
    program, names = Program("executable", tuple(line.split()), per_node=per_node), "n0,s0" if shape[0] == 2 else "n0"
    request = Request("ssh", program, nodes=names, shape=Shape(*shape))
    with pytest.raises(UsageError, match=refusal) if refusal else contextlib.nullcontext() as caught:
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    if caught is not None:
        assert remedy in str(caught.value.hint)
        request = replace(request, variables={"ORCH_SEPARATE": "1"})
        make_plan(THREE, request, run_id="demo-20260102-030405-0abc", bundle="b1")


def test_slurm_by_count_leaves_the_choice_of_nodes_to_slurm() -> None:
    same = _inventory(*(Node(name=f"n{k}", devices=2) for k in range(4)))
    plan = _plan(same, "slurm", shape=Shape(2, 2))
    assert (plan.by_count, plan.node_count, plan.world_size) == (True, 2, 4)
    assert job_json(plan)["nodes"] is None
    assert job_json(plan)["ranks"] == [2, 2]
    named = _plan(same, "slurm", nodes="n1,n3")
    assert (named.by_count, job_json(named)["nodes"]) == (False, ["n1", "n3"])


def _with_spares(*names: str) -> Inventory:
    nodes = (*(Node(name=f"n{k}") for k in range(2)), *(Node(name=name, tags=("spare",)) for name in names))
    return _inventory(*nodes).model_copy(update={"slurm": SlurmOptions(spare_nodes=1)})


def test_spares_are_allocated_in_addition_and_have_no_ranks_yet() -> None:
    plan = _plan(_with_spares("s0", "s1"), "slurm", shape=Shape(2, 1))
    assert (plan.node_count, plan.spare_count, plan.world_size) == (2, 1, 2)
    assert {"--nodes=3", "--no-kill"} <= set(sbatch.sbatch_options(plan))
    assert job_json(plan)["slurm"]["spares"] == ["s0", "s1"]  # Slurm chooses among them
    assert job_json(plan)["ranks"] == [1, 1]
    assert "--no-kill" not in sbatch.sbatch_options(_plan(_inventory(Node(name="n0")), "slurm"))


def test_spares_of_named_nodes_are_named_by_the_inventory() -> None:
    plan = _plan(_with_spares("s0", "s1"), "slurm", nodes="n0,n1")
    assert "--nodelist=n[0-1],s0" in sbatch.sbatch_options(plan)
    assert (job_json(plan)["nodes"], job_json(plan)["slurm"]["spares"]) == (None, ["s0"])
    with pytest.raises(UsageError, match=r"1 needed in addition to n\[0-1\]; .* tags 0 more as spare"):
        _plan(_with_spares(), "slurm", nodes="n0,n1")
    assert _plan(_with_spares("s0"), nodes="n0,n1").spare_count == 0  # over SSH


def test_slurm_refuses_nodes_that_one_script_cannot_serve() -> None:
    differing = _inventory(Node(name="n0", workdir="/a"), Node(name="n1", workdir="/b"))
    with pytest.raises(UsageError, match="nodes differ in workdir"):
        _plan(differing, "slurm")


def test_home_folder_is_expanded_where_the_script_runs() -> None:
    """sbatch may run on another machine with another home folder; Slurm itself expands no ~."""
    plan = _plan(_inventory(Node(name="n0")), "slurm")
    assert plan.head.workdir == "~/.orch"
    assert not [option for option in sbatch.sbatch_options(plan) if "~" in option]


def test_home_folder_and_user_are_expanded_here_if_known_and_must_be_for_a_container() -> None:
    image = Container(image="/images/torch.sif", runtime="apptainer")
    node = Node(name="n0", workdir="${HOME}/$USER")
    inventory = _inventory(node).model_copy(update={"slurm": SlurmOptions(container=image, login="login0")})
    request = Request("slurm", Program("trainer", ()))
    known = make_plan(inventory, request, run_id="demo-1", bundle="b1", home="/home/u", user="u")
    assert known.head.workdir == "/home/u/u"
    with pytest.raises(UsageError, match="may be others than on login0"):
        make_plan(inventory, request, run_id="demo-1", bundle="b1")


def test_stored_plan_reads_back_equal_but_for_environment_values() -> None:
    inventory = _inventory(Node(name="n0", devices=2, env={"API_TOKEN": "hush"}))
    plan = _plan(inventory)
    text = json.dumps(plans.to_json(plan))
    assert "hush" not in text
    restored = plans.from_json(json.loads(text))
    assert plans.to_json(restored) == plans.to_json(plan)
    assert restored.nodes[0].ranks == range(2)


def test_job_is_the_same_on_all_nodes_of_one_workdir() -> None:
    files = node_files(_plan(THREE))
    assert files["n0"][0] == files["n1"][0]
    assert files["n0"][-1] != files["n1"][-1]


def test_default_of_one_rank_per_node_is_a_warning() -> None:
    unknown = _inventory(Node(name="n0"))
    assert "one rank per node" in _plan(unknown, "slurm").warnings[0]
    assert _plan(unknown.model_copy(update={"devices": 1})).warnings == ()


CARDS = {name: Node(name=f"n-{name}", accelerator=name) for name in ("cuda", "gcu", "cpu", "auto")}


@pytest.mark.parametrize(
    ("nodes", "program", "config", "expected"),
    [
        (["gcu"], Program("trainer", ("steps=3",)), None, ["device=gcu"]),
        (["cuda"], Program("trainer", ()), '{"steps": 3}', ["device=cuda"]),
        (["cpu"], Program("trainer", ()), None, ["device=cpu"]),
        (["auto", "cuda"], Program("trainer", ()), None, ["device=cuda"]),
        (["auto"], Program("trainer", ()), None, []),
        (["cuda"], Program("trainer", ("device=cpu",)), None, ["device=cpu"]),
        (["cuda", "gcu"], Program("trainer", ("device=auto",)), None, ["device=auto"]),
        (["cuda"], Program("trainer", ()), '{"device": "auto"}', []),
        (["cuda"], Program("python", ("train.py",)), None, []),
    ],
)
@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_trainer_gets_the_accelerator_of_the_inventory_unless_the_user_sets_a_device(
    launcher: LauncherName, nodes: list[str], program: Program, config: str | None, expected: list[str]
) -> None:
    inventory, request = _inventory(*(CARDS[name] for name in nodes)), Request(launcher, program, config=config)
    plan = make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")
    for planned in (plan, plans.from_json(json.loads(json.dumps(plans.to_json(plan))))):
        args = job_json(planned)["program"]["args"]
        assert [word for word in args if word.startswith("device=")] == expected
    assert plan.program == program  # as the user typed it, for `orch rerun` and `orch diff`


def test_nodes_of_two_kinds_are_refused_for_one_training() -> None:
    mixed = _inventory(CARDS["cuda"], CARDS["auto"], CARDS["gcu"])
    with pytest.raises(UsageError, match="nodes differ in accelerator: n-cuda has cuda, n-gcu has gcu"):
        _plan(mixed)
    assert _plan(mixed, nodes="n-gcu,n-auto").device == "gcu"
    program = Request("ssh", Program("executable", ("./run.sh",)))
    assert make_plan(mixed, program, run_id="demo-20260102-030405-0abc", bundle="b1").device is None


def test_plan_stored_by_a_version_without_device_reads_back() -> None:
    stored = plans.to_json(_plan(_inventory(Node(name="n0"))))
    del stored["device"]
    assert plans.from_json(stored).device is None


def _in_allocation(nodes: str | None = None, shape: Shape | None = None) -> LaunchPlan:
    """A plan in an allocation of n3, n1 and x, in that order, of which the inventory has n[0-3]."""
    inventory = _inventory(*(Node(name=f"n{k}", devices=2, workdir="/data") for k in range(4)))
    request = Request(
        "slurm",
        Program("executable", ("true",)),
        nodes=nodes,
        shape=shape,
        allocation=Allocation("7", ("n3", "n1", "x")),
    )
    return make_plan(inventory, request, run_id="demo-20260102-030405-0abc", bundle="b1")


def test_nodes_in_an_allocation_follow_slurms_order_which_numbers_the_tasks() -> None:
    plan = _in_allocation()
    assert [(node.name, node.node_rank) for node in plan.nodes] == [("n3", 0), ("n1", 1)]
    assert (plan.by_count, plan.allocation) == (False, "7")
    assert [node.name for node in _in_allocation(nodes="n1").nodes] == ["n1"]
    assert [node.name for node in _in_allocation(shape=Shape(1, 2)).nodes] == ["n3"]
    script = next(file.text for file in node_files(plan)["n3"] if file.path.endswith("/step.sh"))
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=n3 " in script
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=n[1,3] " in script
    assert plans.from_json(plans.to_json(plan)).allocation == "7"


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [
        ("n[0-1]", None, r"--nodes: n0 is not in the allocation of Slurm job 7, which has n\[1,3\],x"),
        (None, Shape(3, 1), r"-j 3x1 needs 3 nodes; Slurm job 7 has 2: n\[1,3\]"),
    ],
)
def test_nodes_outside_the_allocation_are_refused(nodes: str | None, shape: Shape | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _in_allocation(nodes, shape)


UNEQUAL = _inventory(*(Node(name=f"n{k}", devices=count) for k, count in enumerate((2, 4, 1, 2))))


def test_nodes_with_too_few_devices_are_left_out() -> None:
    plan = _plan(UNEQUAL, "slurm", shape=Shape(3, 2))
    assert [node.name for node in plan.nodes] == ["n0", "n1", "n3"]
    assert "--exclude=n2" in sbatch.sbatch_options(plan)  # else Slurm could choose it
    assert "-j 3x2 leaves out n2, with fewer than 2 devices" in plan.warnings
    assert [node.name for node in _plan(UNEQUAL, shape=Shape(2, 2)).nodes] == ["n0", "n1"]
    assert [node.name for node in _plan(UNEQUAL, nodes="n[2-3]", shape=Shape(1, 2)).nodes] == ["n3"]
    assert [node.name for node in _plan(UNEQUAL, "slurm", nodes="n[0-3]", shape=Shape(2, 2)).nodes] == ["n0", "n1"]
    excluding = UNEQUAL.model_copy(update={"slurm": SlurmOptions(options=("--exclude=n[3,7]",))})
    plan = _plan(excluding, "slurm", shape=Shape(2, 2))
    assert [word for word in sbatch.sbatch_options(plan) if "exclude" in word] == ["--exclude=n[2-3,7]"]
    with pytest.raises(UsageError, match=r"needs 3 devices per node; n0 has 2 devices; only n1 has as many"):
        _plan(UNEQUAL, "slurm", shape=Shape(2, 3))


def test_named_nodes_may_have_different_numbers_of_ranks_under_slurm() -> None:
    plan = _plan(UNEQUAL, "slurm", nodes="n[1-3]")
    assert (job_json(plan)["nodes"], job_json(plan)["ranks"]) == (["n1", "n2", "n3"], [4, 1, 2])
    assert {"--nodelist=n[1-3]", "--cpus-per-task=4"} <= set(sbatch.sbatch_options(plan))


@pytest.mark.parametrize(
    ("slurm", "nodes", "message"),
    [
        ({}, None, "n0 has 2, n1 has 4; Slurm chooses the nodes, so all need the same number of ranks"),
        ({"gres": "gpu"}, "n[0-1]", "slurm.gres: gpu requests one per rank, and a job requests the same of each node"),
        ({"spare_nodes": 1}, "n[0-1]", "a spare node can only replace an equal one"),
    ],
)
def test_different_numbers_of_ranks_that_a_job_cannot_have_are_refused(
    slurm: dict[str, Any], nodes: str | None, message: str
) -> None:
    spare = Node(name="s0", devices=2, tags=("spare",))
    inventory = UNEQUAL.model_copy(update={"slurm": SlurmOptions(**slurm), "nodes": (*UNEQUAL.nodes, spare)})
    with pytest.raises(UsageError, match=message):
        _plan(inventory, "slurm", nodes=nodes)


@pytest.mark.parametrize(
    ("slurm", "cpus"),
    [
        ({}, ["--cpus-per-task=2"]),
        ({"gres": "gcu"}, ["--cpus-per-task=2"]),
        ({"gres": "gpu"}, []),
        ({"gres": "gpu:h800:8"}, []),
        ({"options": ("--gpus-per-node=8",)}, []),
        ({"gres": "gpu", "cpus": 16}, ["--cpus-per-task=16"]),
    ],
)
def test_cores_of_gpus_are_left_to_the_cluster(slurm: dict[str, Any], cpus: list[str]) -> None:
    inventory = _inventory(Node(name="n0", devices=2)).model_copy(update={"slurm": SlurmOptions(**slurm)})
    plan = _plan(inventory, "slurm")
    assert [word for word in sbatch.sbatch_options(plan) if "cpus" in word] == cpus
    if not cpus:
        assert "--cpus-per-task=2" in sbatch.sbatch_options(resolve(plan, Facts(lacks_cores=True)))


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_debug_adds_variables_and_warns_about_the_users_own(launcher: LauncherName) -> None:
    nodes = [
        Node(name=f"n{k}", accelerator="cpu", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if k else {}) for k in (0, 1)
    ]
    request = Request(launcher, Program("executable", ("true",)), nodes="n[0-1]", debug=True)
    plan = make_plan(_inventory(*nodes), request, run_id="demo-20260102-030405-0abc", bundle="b1")
    levels = [(node.env["TORCH_DISTRIBUTED_DEBUG"], node.env["TORCH_CPP_LOG_LEVEL"]) for node in plan.nodes]
    assert levels == [("INFO", "INFO"), ("DETAIL", "INFO")]
    assert plan.warnings == ("--debug keeps TORCH_DISTRIBUTED_DEBUG=DETAIL of the inventory on n1",)


@pytest.mark.parametrize(
    ("launcher", "typed", "restart", "slurm", "expected"),
    [
        ("ssh", None, None, None, 0),
        ("slurm", None, None, None, 100),
        ("ssh", None, 3, 5, 3),
        ("slurm", None, 3, None, 3),
        ("slurm", None, 3, 5, 5),
        ("slurm", 0, 3, 5, 0),
        ("ssh", 1, 3, None, 1),
    ],
)
def test_retries_are_those_of_the_command_line_then_of_slurm_then_of_restart(
    launcher: LauncherName, typed: int | None, restart: int | None, slurm: int | None, expected: int
) -> None:
    inventory = Inventory(
        nodes=(Node(name="n0"),),
        restart=RestartOptions(max_retries=restart),
        slurm=SlurmOptions(max_retries=slurm),
    )
    request = Request(launcher, Program("executable", ("true",)), max_retries=typed)
    plan = make_plan(inventory, request, run_id="here-20260102-030405-0abc", bundle="b")
    assert plan.max_retries == expected
    assert plan.at_any_step is bool(typed)
    in_job = (job_json(plan).get("slurm") or {}).get("max_retries")
    assert in_job == (expected if launcher == "slurm" else None)


@pytest.mark.parametrize(
    ("program", "max_retries", "name"),
    [
        (Program("executable", ("sh", "train.sh")), 2, "sh"),
        (Program("executable", ("python", "train.py")), 2, None),
        (Program("python", ("train.py",), bare=True), 2, "train.py with --bare"),
        (Program("python", ("train.py",)), 2, None),
        (Program("executable", ("torchrun", "train.py"), per_node=True), 2, None),
        (Program("trainer", ()), 2, None),
        (Program("executable", ("sh", "train.sh")), None, None),
    ],
)
def test_requested_restarts_of_a_program_whose_steps_are_not_counted_are_warned_of(
    program: Program, max_retries: int | None, name: str | None
) -> None:
    inventory = Inventory(name="here", nodes=(Node(name="n0"),))
    request = Request("ssh", program, max_retries=max_retries)
    plan = make_plan(inventory, request, run_id="x-20261120-101500-ab12", bundle="b")
    found = [warning for warning in plan.warnings if "are not counted" in warning]
    assert [warning.partition(", so it is restarted only after exit code 99")[0] for warning in found] == (
        [f"--max-retries 2: steps of {name} are not counted"] if name else []
    )


@pytest.mark.parametrize(
    ("program", "launcher", "max_retries", "setup", "warm", "expected"),
    [
        (Program("trainer", ()), "ssh", 1, (), True, True),
        (Program("trainer", ()), "ssh", 0, (), True, False),
        (Program("trainer", ()), "slurm", 1, (), True, False),
        (Program("trainer", ()), "ssh", 1, ("true",), True, False),
        (Program("trainer", ()), "ssh", 1, (), False, False),
        (Program("trainer", (), module="trainer.comm"), "ssh", 1, (), True, False),
        (Program("python", ("train.py",)), "ssh", 1, (), True, False),
    ],
)
def test_nodes_prepare_restarts_of_the_shared_trainer_alone(
    *, program: Program, launcher: LauncherName, max_retries: int, setup: tuple[str, ...], warm: bool, expected: bool
) -> None:
    restart = RestartOptions(max_retries=max_retries, warm=warm)
    inventory = Inventory(nodes=(Node(name="n0"),), setup=setup, restart=restart)
    plan = make_plan(inventory, Request(launcher, program), run_id="here-20260102-030405-0abc", bundle="b")
    assert plan.warm is expected
