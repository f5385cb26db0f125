"""
Variables of Enflame's cards: ECCL, torch_gcu, TopsRider. NOT VERIFIED ON HARDWARE.

Names and values are those that Enflame's published code, its package's scripts and torch_gcu's manual contain. ECCL itself is
closed, so "no code reads it" means: no published code does.
"""

from __future__ import annotations

from orchestrator.variables.row import REMOVE, Row, Verdict, info, warn
from orchestrator.variables.values import Anything, Integer, Kind, TorchBool, Word

PACKAGE = "scripts in the TopsRider_t2x 2.5.136 package"
ZOO = "EnflameTechnology/ModelZoo"
MANUAL = "torch_gcu user guide and ProcessGroupECCL.hpp"
VLLM = "EnflameTechnology/vllm-gcu"
_FLAG = TorchBool()
_TRUTH = Anything("true or false")


def _row(name: str, kind: Kind, default: str, text: str, *verdicts: Verdict, source: str) -> Row:
    return Row(
        name, "ECCL" if name.startswith("ECCL") else "TopsRider", kind, text, default, verdicts=verdicts, source=source
    )


def _s60(name: str, kind: Kind, default: str, text: str, *verdicts: Verdict, is_debug: bool = False) -> Row:
    """A variable of torch_gcu 2.x, which a T20 does not have."""
    no_effect = warn("is read by torch_gcu 2.x only: a T20 has 1.10", "T20", better=REMOVE)
    return Row(
        name, "torch_gcu", kind, text, default, is_debug=is_debug, verdicts=(no_effect, *verdicts), source=MANUAL
    )


def _unread(name: str, remedy: str) -> Row:
    """A variable of copied scripts that no published code of Enflame contains."""
    verdict = warn(f"no published code of Enflame reads it; {remedy}", better=REMOVE)
    return Row(
        name,
        "nothing",
        Anything(),
        "In copied scripts only",
        verdicts=(verdict,),
        source="Enflame's public repositories",
    )


ENFLAME: tuple[Row, ...] = (
    # Cards
    _row("TOPS_VISIBLE_DEVICES", Anything("card numbers, as in 0,1; on an S60 also DRS-UUID"), "all", "Cards that a process uses", source="torch_gcu, core/device.py"),
    _row("ENFLAME_VISIBLE_DEVICES", Anything("all or card numbers"), "", "Cards of a container (`docker run -e`)",
        info("is read by the container toolkit alone; a process needs TOPS_VISIBLE_DEVICES"), source="Enflame container toolkit user guide"),
    _unread("GCU_VISIBLE_DEVICES", "use TOPS_VISIBLE_DEVICES"),
    _unread("DTU_VISIBLE_DEVICES", "use TOPS_VISIBLE_DEVICES"),
    _unread("GCU_MEMORY_FRACTION", "no variable is known to limit the memory"),
    _unread("GCU_FORCE_FP32", "choose the precision in the program"),
    _unread("GCU_DISABLE_AMP", "choose the precision in the program"),
    # ECCL
    _row("ECCL_RUNTIME_3_0_ENABLE", _TRUTH, "", "The 3.x runtime of ECCL", source=PACKAGE),
    _row("ECCL_ASYNC_DISABLE", _TRUTH, "", "false: collectives run asynchronously with the computation", source=PACKAGE),
    _row("ECCL_MAX_NCHANNELS", Integer(1, reader="ECCL"), "", "Most channels; the package's scripts use 1, 2 or 4", source=PACKAGE),
    _row("ECCL_MIN_NCHANNELS", Integer(1, reader="ECCL"), "", "Fewest channels", source=MANUAL),
    _row("ECCL_TOPOLOGY", Anything("1"), "", "In the 8-card diffusion script only", source=PACKAGE),
    _row("ECCL_RDMA_DISABLE", _TRUTH, "", "No RDMA", info("turns RDMA off, as an example for one node does", value="(?i)true|1"), source=f"{ZOO}, text_to_image"),
    _row("ECCL_DEBUG", Anything("level, as in WARN"), "", "Level of ECCL's log", info("is for debugging", value="(?i)info|trace", better="WARN"), source=MANUAL),
    _row("ECCL_BUFFSIZE", Integer(1, reader="ECCL", unit="bytes"), "", "Buffer per channel", source=MANUAL),
    _row("ECCL_PROTO", Word(("LL", "LL128", "SIMPLE"), "ECCL does not know it"), "", "Protocol", source=MANUAL),
    _row("ECCL_ALGO", Word(("RING", "TREE"), "ECCL does not know it"), "", "Algorithm", source=MANUAL),
    _row("ECCL_CUMEM_ENABLE", Anything("0 or 1"), "", "Allocation by ECCL", source=MANUAL),
    _row("ECCL_SHM_DISABLE", Anything("0 or 1"), "", "No shared memory between the ranks of a node", source=MANUAL),
    _row("ECCL_ALLTOALLV_MAXSIZE", Anything("bytes"), "", "Largest alltoallv", source=VLLM),
    _unread("ECCL_BACKEND", 'the backend is the argument of init_process_group("eccl")'),
    _unread("ECCL_DEVICE_TYPE", "the device is chosen in the program: xla:N on a T20, gcu:N on an S60"),
    _unread("ECCL_TIMEOUT", "the timeout is an argument of init_process_group"),
    _unread("ECCL_SOCKET_IFNAME", "no variable is known to choose the interface"),
    _unread("ECCL_IB_DISABLE", "ECCL_RDMA_DISABLE is the one in Enflame's scripts"),
    _unread("ECCL_LOG_LEVEL", "use ECCL_DEBUG"),
    _unread("ECCL_ROOT", "the libraries are found through LD_LIBRARY_PATH"),
    # torch_gcu 2.x, for the S60
    _s60("PYTORCH_GCU_ALLOC_CONF", Anything("backend:topsMallocAsync"), "", "Allocator"),
    _s60("PYTORCH_NO_GCU_MEMORY_CACHING", Anything("0 or 1"), "", "No caching of memory"),
    _s60("PYTORCH_EFML_BASED_GCU_CHECK", Anything("0 or 1"), "", "Look for cards through EFML"),
    _s60("TORCH_ECCL_ASYNC_ERROR_HANDLING", Integer(0, 3), "", "After an error, as TORCH_NCCL_ASYNC_ERROR_HANDLING; default 3", warn("ignores errors of ECCL: the ranks hang", value="0", better="3")),
    _s60("TORCH_ECCL_BLOCKING_WAIT", _FLAG, "0", "Block in wait(), with the timeout"),
    _s60("TORCH_ECCL_ENABLE_MONITORING", _FLAG, "1", "End the process when the watchdog hangs", warn("a hang in the watchdog then lasts forever", value="(?i)n|no|0|f|false", better=REMOVE)),
    _s60("TORCH_ECCL_HEARTBEAT_TIMEOUT_SEC", Integer(1, unit="s"), "600", "Silence after which the watchdog counts as hung", warn("hides a hang for more than half an hour", above=1800, better=REMOVE)),
    _s60("TORCH_ECCL_COORD_CHECK_MILSEC", Integer(1, unit="ms"), "1000", "Interval of looking for other ranks' signals"),
    _s60("TORCH_ECCL_DESYNC_DEBUG", _FLAG, "0", "Report the rank that is behind at a timeout", is_debug=True),
    _s60("TORCH_ECCL_DUMP_ON_TIMEOUT", _FLAG, "0", "Write the flight recorder at a timeout"),
    _s60("TORCH_ECCL_ENABLE_TIMING", _FLAG, "0", "Time every collective", is_debug=True),
    _s60("TORCH_ECCL_TRACE_BUFFER_SIZE", Integer(0), "", "Entries of the flight recorder; 0 in the code, 60000 in the manual"),
    _s60("TORCH_ECCL_DEBUG_INFO_PIPE_FILE", Anything("path prefix"), "", "Named pipe that triggers a dump"),
    _s60("TORCH_GCU_ECCL_SIP_NUM", Integer(1), "12", "Processors for ECCL"),
    _s60("TORCH_GCU_ENABLE_INT64_AND_UINT64", Anything("0 or 1"), "", "64-bit integers"),
    _s60("USE_GCU_DEFAULT_STREAM", Anything("0 or 1"), "", "Use the default stream"),
    _s60("ENFLAME_TORCH_GCU_ENABLE_AUTO_MIGRATION", Anything("0 or 1"), "", "Replace cuda by gcu in programs"),
    _s60("TOPS_LAUNCH_BLOCKING", Anything("0 or 1"), "", "By its name: wait for every kernel", warn("is for debugging, by its name", value="1", better=REMOVE)),
    # Runtime and compiler of the T20
    _row("ENFLAME_LOG_DEBUG_MOD", Anything("list of modules, as in ECCL,OPREG"), "", "Modules that log debug messages", info("is for debugging"), source=PACKAGE),
    _row("ENFLAME_LOG_LEVEL", Anything("level, as in ERROR"), "", "Log level of the runtime", source="public training scripts"),
    _row("ENFLAME_ENABLE_TF32", _TRUTH, "", "TF32 arithmetic", source=ZOO),
    _row("ENFLAME_CLUSTER_PARALLEL", _TRUTH, "", "In TensorFlow's scripts only", source=f"{ZOO}, tensorflow"),
    _row("ENFLAME_UMD_FLAGS", Anything(), "", "In TensorFlow's scripts only", source=f"{ZOO}, tensorflow"),
    _row("ENFLAME_MEMUSE_POLICY", Anything(), "", "In TensorFlow's scripts only", source=f"{ZOO}, tensorflow"),
    _row("ENFLAME_DEVICE_MODE", Anything(), "", "In TensorFlow's scripts only", source=f"{ZOO}, tensorflow"),
    _row("ENFLAME_COMPILE_OPTIONS_HLIR", Anything(), "", "In TensorFlow's scripts only", source=f"{ZOO}, tensorflow"),
    _row("ENFLAME_PT_ENABLE_HBM_INPLACE", Anything(), "", "In the text-to-image example only", source=ZOO),
    _row("ENFLAME_PT_EVALUATE_TENSOR_NEEDED", Anything(), "", "In the BERT example only", source=ZOO),
    _row("EFRT_MAX_KERNEL_EMIT_PER_STREAM", Integer(1, reader="the runtime"), "", "Kernels in flight per stream", source="TopsRider manual"),
    _row("TOPS_EXE_CACHE_PATH", Anything("path"), "", "Folder of compiled programs", source="public training scripts"),
    _row("TOPS_EXE_CACHE_DISABLE", Anything("true or false"), "", "No cache of compiled programs", source="public training scripts"),
    _row("ENFLAME_ENABLE_EFP", _TRUTH, "", "In copies of vendor scripts", info("is known from copies of vendor scripts only"), source="copies of vendor scripts"),
    _row("ENABLE_RDMA", _TRUTH, "", "In copies of vendor scripts", info("is known from copies of vendor scripts only"), source="copies of vendor scripts"),
    _row("PTEX_DDP_BACKEND", Anything("eccl"), "", "In copies of vendor scripts", info("is known from copies of vendor scripts only"), source="copies of vendor scripts"),
)  # fmt: skip
