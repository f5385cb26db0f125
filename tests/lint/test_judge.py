"""The linter: verdicts on the blocks of the field guides, and each kind of fault of a variable."""

from __future__ import annotations

import pytest

from orchestrator.lint.assignment import Assignment
from orchestrator.lint.fix import fixed_text
from orchestrator.lint.judge import LintFinding, lint_assignments
from orchestrator.lint.script import lint_combinations, lint_commands, lint_propagation, lint_script
from orchestrator.lint.shell import read_shell
from orchestrator.variables.conditions import Context
from tests.paths import CASES

OLD = Context({"NCCL": "2.18.6", "torch": "2.1"}, "InfiniBand", "cuda")
NEW = Context({"NCCL": "2.27.5", "torch": "2.8.0+cu128"}, "InfiniBand", "cuda")


def _script(name: str, context: Context) -> list[tuple[int, str, str]]:
    """Line, level and name of each finding."""
    script = read_shell((CASES / name).read_text(), name)
    findings = [*lint_assignments(script.assignments, context), *lint_commands(script.commands, name)]
    return sorted((found.line, found.finding.severity.value, found.finding.check) for found in findings)


def _finding(name: str, value: str | None, context: Context = NEW) -> LintFinding | None:
    findings = lint_assignments([Assignment(name, value, "file", 1)], context)
    return findings[0] if findings else None


H800 = [
    (3, "INFO", "NCCL_IB_DISABLE"),  # the default
    (4, "WARN", "NCCL_IB_HCA"),  # a prefix
    (5, "INFO", "NCCL_SOCKET_IFNAME"),  # right with IPoIB on all nodes
    (6, "WARN", "NCCL_NET_GDR_LEVEL"),  # SYS
    (7, "WARN", "NCCL_IB_GID_INDEX"),  # for RoCE
    (9, "INFO", "NCCL_IB_RETRY_CNT"),  # the default
    (10, "INFO", "NCCL_CROSS_NIC"),  # for rail-optimised fabrics
    (11, "INFO", "NCCL_P2P_LEVEL"),  # no effect with NVSwitch
    (12, "INFO", "NCCL_BUFFSIZE"),  # more memory
    (13, "FAIL", "NCCL_NTHREADS"),  # above the maximum
    (15, "INFO", "CUDA_LAUNCH_BLOCKING"),  # the default
    (20, "WARN", "ddp_timeout"),
    (21, "INFO", "max_retries"),
    (22, "FAIL", "NCCL_IB_TIMEOUT"),  # 30
    (23, "WARN", "NCCL_ASYNC_ERROR_HANDLING"),
]
"""NCCL_IB_TIMEOUT=22 and OMP_NUM_THREADS=8 are right."""


def test_block_of_the_h800_guide() -> None:
    assert _script("h800_guide.sh", Context()) == H800
    assert _script("h800_guide.sh", NEW) == H800


def test_block_of_the_h800_guide_with_old_versions() -> None:
    expected = [row for row in H800 if row[2] not in ("NCCL_IB_GID_INDEX", "NCCL_ASYNC_ERROR_HANDLING")]
    assert _script("h800_guide.sh", OLD) == sorted([*expected, (7, "FAIL", "NCCL_IB_GID_INDEX")])


def test_block_of_the_t20_guide() -> None:
    assert _script("t20_guide.sh", Context()) == [
        (3, "INFO", "WORLD_SIZE"),
        (6, "WARN", "ECCL_BACKEND"),
        (7, "WARN", "ECCL_DEVICE_TYPE"),
        (8, "WARN", "master_addr"),
        (8, "WARN", "master_port"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "level", "words", "replacement"),
    [
        ("NCCL_BUFFSIZE", "8M", "FAIL", "reads it as 8", "8388608"),
        ("NCCL_BUFFSIZE", "8MiB", "FAIL", "reads it as 8", "8388608"),
        ("NCCL_IB_TIMEOUT", "abc", "FAIL", "reads it as 0", None),
        ("NCCL_IB_DISABLE", "true", "FAIL", "reads it as 0; as NCCL_IB_DISABLE=1 it turns RDMA off", ""),
        ("NCCL_SHM_DISABLE", "True", "FAIL", "reads it as 0; as NCCL_SHM_DISABLE=1 it", ""),
        ("NCCL_DMABUF_ENABLE", "true", "FAIL", "reads it as 0", "1"),
        ("NCCL_IB_TIMEOUT", "022", "WARN", "octal: NCCL reads it as 18", "22"),
        ("NCCL_IB_TIMEOUT", "0x16", None, "", None),
        ("NCCL_IB_TIMEOUT", "0", "FAIL", "waits forever", "22"),
        ("NCCL_IB_TIMEOUT", "40", "FAIL", "waits forever", "22"),
        ("NCCL_IB_TIMEOUT", "5", "WARN", "gives up", "22"),
        ("NCCL_IB_RETRY_CNT", "9", "FAIL", "0 to 7", None),
        ("NCCL_IB_RETRY_CNT", "", "INFO", "empty", ""),
        ("NCCL_IB_HCA", "mlx5_1", "WARN", "mlx5_10", "=mlx5_1"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1", None, "", None),
        ("NCCL_IB_HCA", "mlx5_0", None, "", None),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_bond_0:1", None, "", None),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", "WARN", "mlx5_10", "=mlx5_0,mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "lo", "WARN", "loopback", None),
        ("NCCL_SOCKET_IFNAME", "=bond0", None, "", None),
        ("NCCL_SOCKET_IFNAME", "mlx5_0,mlx5_1", "WARN", "NCCL_IB_HCA", None),
        ("NCCL_SOCKET_IFNAME", "enp71s0", "INFO", "prefix", None),
        ("NCCL_P2P_LEVEL", "pix", "FAIL", "ignores it", "PIX"),
        ("NCCL_NTHREADS", "100", "FAIL", "multiple of 32", ""),
        ("NCCL_NTHREADS", "96", "WARN", "documented", ""),
        ("NCCL_ALGO", "ring,treex", "FAIL", "'treex'", "ring,Tree"),
        ("NCCL_ALGO", "allreduce:^tree;broadcast:ring", "INFO", "experiments", None),
        ("NCCL_PROTO", "LL128", "WARN", "corrupts", None),
        ("NCCL_PROTO", "^LL128", "INFO", "experiments", None),
        ("NCCL_DEBUG", "info", "INFO", "debugging", "WARN"),
        ("NCCL_DEBUG", "loud", "FAIL", "VERSION, WARN", None),
        ("NCCL_DEBUG_FILE", "/tmp/nccl", "WARN", "%p", "/tmp/nccl.%h.%p"),
        ("NCCL_DEBUG_FILE", "/dev/stderr", None, "", None),
        ("NCCL_IB_CUDA_SUPPORT", "1", "WARN", "from 2.4 on", ""),
        ("NCCL_SOCKET_MAGIC", "1", "WARN", "2.27.5 is installed", ""),
        ("TORCH_NCCL_BLOCKING_WAIT", "maybe", "FAIL", "stops with an error", None),
        ("TORCH_NCCL_BLOCKING_WAIT", "TRUE", "WARN", "asynchronous", ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480", "INFO", "default", ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10min", "WARN", "reads it as 10", None),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", None, "", None),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", "INFO", "default", ""),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", None, "", None),
        ("NCCL_BLOCKING_WAIT", "1", "WARN", "is the old name", "TORCH_NCCL_BLOCKING_WAIT=1"),
        ("TORCH_NCCL_NAN_CHECK", "1", "INFO", "is for debugging", None),
        ("GLOO_SOCKET_IFNAME", "=eth0", "FAIL", "exact", "eth0"),
        ("UCX_NET_DEVICES", "mlx5_0", "WARN", "port", "mlx5_0:1"),
        ("DEEPSPEED_TIMEOUT", "1800", "WARN", "minutes", ""),
        ("ECCL_MAX_NCHANNELS", "2", "INFO", "Enflame", ""),
        ("NCCL_IB_TIMOUT", "22", "WARN", "did you mean NCCL_IB_TIMEOUT", "NCCL_IB_TIMEOUT=22"),
        ("NCLL_DEBUG", "WARN", "WARN", "did you mean NCCL_DEBUG", "NCCL_DEBUG=WARN"),
        ("nccl_debug", "WARN", "WARN", "case-sensitive", "NCCL_DEBUG=WARN"),
        ("NCCL_MY_PLUGIN_KNOB", "1", "INFO", "a plugin may", None),
        ("NCCL_GIN_TYPE", "1", None, "", None),
        ("NCCL_MERGE_NICS", "0", "WARN", "did you mean NCCL_IB_MERGE_NICS", None),
        ("NCCL_SUBNET_AWARE_ROUTING", "1", "WARN", "did you mean NCCL_IB_SUBNET_AWARE_ROUTING", None),
        ("NCCL_IB_TOS", "46", "WARN", "did you mean NCCL_IB_TC", None),
        ("NCCL_TIMEOUT", "7200", "WARN", "init_process_group", ""),
        ("NCCL_IB_TIMOUT", "7200", "WARN", "did you mean NCCL_IB_TIMEOUT", None),
        ("NCCL_IB_TIMEOUT", None, None, "", None),
        ("TORCH_ECCL_AVOID_RECORD_STREAMS", "1", "INFO", "a plugin may", None),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1,mlx5_0", "WARN", "names mlx5_0 twice", "=mlx5_0,mlx5_1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,expandable_segments:True", None, "", None),
        ("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[256:1,>:8],backend:native", None, "", None),
        ("PYTORCH_CUDA_ALLOC_CONF", "", None, "", None),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_mb:128", "FAIL", "is no option", "max_split_size_mb:128"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segment:True", "FAIL", "is no option", "expandable_segments:True"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb=128", "FAIL", "is no NAME:VALUE", "max_split_size_mb:128"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true", "FAIL", "in this case", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "WARN", "from 2.9 on", ""),
        ("TORCH_DISTRIBUTED_TIMEOUT", "7200", "WARN", "init_process_group", ""),
        ("TORCH_DISTRIBUTED_BACKEND", "gloo", "WARN", "init_process_group", ""),
        ("GLOO_TIMEOUT_SECONDS", "300", "WARN", "init_process_group", ""),
        ("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1", None, "", None),
        ("TORCH_NCCL_TEARDOWN_ON_TIMEOUT", "1", "WARN", "from 2.15 on", ""),
        ("NCCL_INSPECTOR_ENABLE", "1", None, "", None),
        ("NCCL_PROFILE_EVENT_MASK", "1", None, "", None),
        ("NCCL_TUNER_CONFIG_FILE", "/x", None, "", None),
        ("NCCL_CFT_ENABLE", "1", None, "", None),
        ("MASTER_PORT", "29500", None, "", None),
        ("MASTER_PORT", "293000", "FAIL", "1 to 65535", None),
        ("NCCL_AVOID_RECORD_STREAMS", "1", "WARN", "did you mean TORCH_NCCL_AVOID_RECORD_STREAMS", None),
        ("NCCL_CHECK_DISABLE", "1", "INFO", "a plugin may", None),
        ("NCCL_IBEXT_DISABLE", "1", None, "", None),
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", "1", None, "", None),
        ("RANK", "$i", "INFO", "a script that starts its ranks itself needs it", None),
        ("LOCAL_RANK", "0", "INFO", "needs it", None),
        ("WORLD_SIZE", "8", "INFO", "needs it", None),
        ("rank", "0", None, "", None),
    ],
)
def test_verdict(name: str, value: str | None, level: str | None, words: str, replacement: str | None) -> None:
    found = _finding(name, value)
    assert (found and found.finding.severity.value) == level
    if found is not None:
        assert words in found.finding.text
        whole = (
            replacement if not replacement or replacement.startswith(("NCCL_", "TORCH_")) else f"{name}={replacement}"
        )
        assert found.replacement == whole


COMMON = (
    "ASCEND_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME GPU_VISIBLE_DEVICES HCCL_BUFFSIZE HCCL_CONNECT_TIMEOUT HF_HOME"
    " HIP_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT MCCL_DEBUG MKL_NUM_THREADS MY_TOKEN NODE_RANK NVIDIA_VISIBLE_DEVICES"
    " OMP_PROC_BIND OPENBLAS_NUM_THREADS PYTHONPATH PYTORCH_NPU_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING RCCL_DEBUG"
    " ROCR_VISIBLE_DEVICES TOKENIZERS_PARALLELISM TORCH_CUDA_ARCH_LIST TORCH_HOME UCX_TLS XCCL_DEBUG ZE_AFFINITY_MASK"
)


@pytest.mark.parametrize("name", COMMON.split())
def test_common_names_are_not_taken_for_misspelt_ones(name: str) -> None:
    assert _finding(name, "1", Context()) is None


def test_unknown_versions_are_named() -> None:
    found = _finding("NCCL_IB_GID_INDEX", "3", Context(network="InfiniBand"))
    assert found is not None
    assert "with NCCL < 2.22: is for RoCE" in found.finding.text
    assert "RoCE with" not in found.finding.text
    assert found.finding.severity.value == "WARN"
    assert found.finding.remedy == "find out which applies: orch lint --nccl VERSION"


def test_one_sentence_replaces_many_cases() -> None:
    found = _finding("NCCL_IB_GID_INDEX", "3", Context())
    assert found is not None
    assert found.finding.text == (
        "NCCL_IB_GID_INDEX=3: is needed on RoCE with NCCL < 2.21 only; otherwise it is ignored, or wrong where adapters or nodes differ"
    )


def test_a_remedy_that_depends_on_unknown_facts_is_not_applied() -> None:
    found = _finding("NCCL_IB_GID_INDEX", "3", Context())
    assert found is not None
    assert found.replacement is None
    assert "--nccl VERSION --network NAME" in found.finding.remedy
    right_on_an_s60 = _finding("TORCH_ECCL_BLOCKING_WAIT", "1", Context(accelerator="gcu"))
    assert right_on_an_s60 is not None
    assert right_on_an_s60.replacement is None


def test_names_follow_the_version_of_torch() -> None:
    found = _finding("TORCH_NCCL_BLOCKING_WAIT", "0", OLD)
    assert found is not None
    assert found.replacement == "NCCL_BLOCKING_WAIT=0"
    assert _finding("NCCL_BLOCKING_WAIT", "0", OLD) is None
    unknown = _finding("NCCL_BLOCKING_WAIT", "0", Context())
    assert unknown is not None
    assert unknown.replacement is None
    assert unknown.finding.remedy == "find out which applies: orch lint --torch VERSION"


@pytest.mark.parametrize(("torch", "level"), [("1.10.0", "WARN"), ("2.7.0", None), (None, "WARN")])
def test_variables_of_the_s60_have_no_effect_on_a_t20(torch: str | None, level: str | None) -> None:
    context = Context({"torch": torch} if torch else {}, accelerator="gcu")
    found = _finding("TORCH_ECCL_BLOCKING_WAIT", "1", context)
    assert (found and found.finding.severity.value) == level


def test_variables_of_another_accelerator_have_no_effect() -> None:
    for name, accelerator in (("NCCL_DEBUG", "gcu"), ("TORCH_NCCL_NAN_CHECK", "cpu"), ("ECCL_DEBUG", "cuda")):
        found = _finding(name, "1", Context(accelerator=accelerator))
        assert found is not None
        assert "no effect" in found.finding.text


@pytest.mark.parametrize(
    ("line", "checks"),
    [
        ("torchrun --max_retries 3 train.py", ["FAIL max_retries"]),
        ("python -m torch.distributed.run --max-retries=3 train.py", ["FAIL max_retries"]),
        ("torchrun --nnodes 2 --max-restarts 3 --master-addr a train.py", ["WARN max_restarts"]),
        ("torchrun --nnodes 2 --standalone train.py", ["FAIL standalone"]),
        ("python3.8 -u -m torch.distributed.launch --use_env --standalone --master_port 1 x.py", ["WARN master_port"]),
        ("torchrun --nnodes 2 --rdzv_backend c10d --master_addr a train.py", ["FAIL master_addr"]),
        ("torchrun --nnodes 2 --node-rank 0 --master-addr a train.py --lr 1", []),
        ("python train.py --max_retries 3", []),
        ("python train.py --ddp-timeout=36000", ["WARN ddp_timeout"]),
        ("$LAUNCHER --ddp_timeout $T", []),
    ],
)
def test_arguments(line: str, checks: list[str]) -> None:
    findings = lint_commands(read_shell(line, "file").commands, "file")
    assert [f"{found.finding.severity.value} {found.finding.check}" for found in findings] == checks


def test_mended_values_are_quoted_and_unknown_ones_are_kept() -> None:
    text = "export NCLL_DEBUG_FILE='a b.%p' NCLL_DEBUG=$LEVEL NCCL_DEBUG_FILE=\"/my log\"\n"
    findings = lint_assignments(read_shell(text, "file").assignments, NEW)
    assert (
        fixed_text(text, findings, quoted=True)
        == "export NCCL_DEBUG_FILE='a b.%p' NCLL_DEBUG=$LEVEL NCCL_DEBUG_FILE='/my log.%h.%p'\n"
    )


def test_mended_value_that_begins_with_an_equals_sign_is_quoted_for_zsh() -> None:
    text = "export NCCL_IB_HCA=mlx5_1\n"
    findings = lint_assignments(read_shell(text, "file").assignments, NEW)
    assert fixed_text(text, findings, quoted=True) == "export NCCL_IB_HCA='=mlx5_1'\n"
    assert fixed_text(text, findings, quoted=False) == "export NCCL_IB_HCA==mlx5_1\n"
    assert [found.finding.remedy for found in findings] == ["set NCCL_IB_HCA to =mlx5_1"]


def test_value_that_only_the_site_knows_has_a_next_step() -> None:
    (found,) = lint_assignments(read_shell("export NCCL_IB_HCA=mlx5\n", "file").assignments, NEW)
    assert (found.replacement, found.finding.remedy[:9]) == (None, "remove it")


def test_mended_script_is_clean_where_the_remedy_is_certain() -> None:
    text = (
        CASES / "h800_guide.sh"
    ).read_text() + "A=1 NCCL_BUFFSIZE=8M NCCL_NTHREADS=640 \\\n NCCL_DEBUG_FILE=/x python x.py\n"
    script = read_shell(text, "file")
    fixed = fixed_text(text, lint_assignments(script.assignments, NEW), quoted=True)
    assert fixed.endswith("A=1 NCCL_BUFFSIZE=8388608 \\\n NCCL_DEBUG_FILE=/x.%h.%p python x.py\n")
    assert "# NCCL_NTHREADS=640: is above" in fixed
    left = lint_assignments(read_shell(fixed, "file").assignments, NEW)
    assert [(found.finding.check, found.replacement) for found in left] == [
        ("NCCL_IB_HCA", None),
        ("NCCL_CROSS_NIC", None),
        ("NCCL_BUFFSIZE", None),
        ("NCCL_BUFFSIZE", None),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export NCCL_NET=IB NCCL_IB_DISABLE=1", "FAIL NCCL_IB_DISABLE"),
        ("export NCCL_NET=IB NCCL_IB_DISABLE=1; export NCCL_IB_DISABLE=0", ""),
        ("export NCCL_BLOCKING_WAIT=1 TORCH_NCCL_BLOCKING_WAIT=0", "WARN NCCL_BLOCKING_WAIT"),
        ("export NCCL_AVOID_RECORD_STREAMS=1 TORCH_NCCL_AVOID_RECORD_STREAMS=1", ""),
        ("export NCCL_MIN_NCHANNELS=32 NCCL_MAX_NCHANNELS=16", "FAIL NCCL_MIN_NCHANNELS"),
        ("export NCCL_MIN_CTAS=8 NCCL_MAX_CTAS=16", ""),
        ("export NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL", "WARN NCCL_P2P_LEVEL"),
        ("if x; then export NCCL_NET=IB; else export NCCL_IB_DISABLE=1; fi", ""),
        ("case $x in a) NCCL_NET=IB;; b) NCCL_IB_DISABLE=1;; esac", ""),
        ("NCCL_NET=IB python a.py\nNCCL_IB_DISABLE=1 python b.py", ""),
        ("NCCL_NET=IB NCCL_IB_DISABLE=1 python a.py", "FAIL NCCL_IB_DISABLE"),
        ("export NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "FAIL NCCL_NSOCKS_PERTHREAD"),
        ("export NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=4", ""),
        ("export TORCH_NCCL_NAN_CHECK=1\ndeepspeed --hostfile hosts x.py", "WARN deepspeed"),
        ("export TORCH_NCCL_NAN_CHECK=1\ndeepspeed --hostfile=hosts --no_ssh --node_rank 0 x.py", ""),
        ("export TORCH_NCCL_NAN_CHECK=1\ndeepspeed x.py", ""),
        ("export NCCL_DEBUG=WARN\ndeepspeed --hostfile hosts x.py", ""),
    ],
)
def test_variables_together(text: str, found: str) -> None:
    script = read_shell(text, "file")
    findings = [*lint_combinations(script.assignments), *lint_propagation(script.assignments, script.commands, "file")]
    assert ", ".join(f"{entry.finding.severity.value} {entry.finding.check}" for entry in findings) == found


BACKGROUND = """\
export WORLD_SIZE=8 TORCH_ECCL_AVOID_RECORD_STREAMS=1
for i in {0..7}; do
    export RANK=$i
    export LOCAL_RANK=$i
    python3 "$SCRIPT" --local_rank $i > "$LOG_DIR/$i.log" 2>&1 &
done
wait
"""


def test_mending_keeps_the_numbers_of_ranks_that_a_script_starts_itself() -> None:
    assert (
        fixed_text(BACKGROUND, lint_assignments(read_shell(BACKGROUND, "f").assignments, NEW), quoted=True)
        == BACKGROUND
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BACKGROUND, [(7, "WARN", "wait")]),
        (BACKGROUND.replace("wait\n", "wait -n\n"), []),
        (BACKGROUND.replace("python3", "nvidia-smi"), []),
        (BACKGROUND.replace("&\ndone", "\ndone"), []),
        ('export A=1\nB="open\nexport NCCL_NET=IB\n', [(2, "WARN", "script")]),
        ("# export NCCL_NET=IB\n", []),
    ],
)
def test_script_as_a_whole(text: str, found: list[tuple[int, str, str]]) -> None:
    findings = list(lint_script(read_shell(text, "f"), "f"))
    assert [(entry.line, entry.finding.severity.value, entry.finding.check) for entry in findings] == found
