"""
torch's variables for distributed training, gloo's and tensorpipe's interfaces.

Names, defaults and parsers are those of ProcessGroupNCCL.hpp, FlightRecorder.hpp, Utils.hpp and debug.cpp in torch 2.13 to 2.15; a test
compares them with tests/cases/torch_names.json.
"""

from __future__ import annotations

from orchestrator.portable.findings import Severity
from orchestrator.variables.row import REMOVE, Row, Verdict, fail, info, warn
from orchestrator.variables.values import AllocatorOptions, Anything, Integer, Kind, TorchBool, Word

NCCL_GROUP = "torch, ProcessGroupNCCL.hpp"
_FLAG = TorchBool()
_ALLOCATOR = AllocatorOptions(
    flags=frozenset(
        "expandable_segments graph_capture_record_stream_reuse pinned_free_catch_all pinned_use_background_threads "
        "pinned_use_cuda_host_register pinned_use_hip_host_register release_lock_on_cudamalloc release_lock_on_hipmalloc "
        "throw_on_cudamalloc_oom".split()
    ),
    settings=frozenset(
        "backend expandable_segments_reserve expandable_segments_reserve_by_class garbage_collection_threshold "
        "large_segment_size_mb max_non_split_rounding_mb max_split_size_mb per_process_memory_fraction "
        "pinned_max_cached_size_mb pinned_max_round_threshold_mb pinned_num_register_threads pinned_reserve_segment_size_mb "
        "roundup_bypass_threshold_mb roundup_power2_divisions".split()
    ),
)
"""The names that some torch from 1.10 to 2.15 knows."""
_FIRST = "2.2"
"""The first torch with names that begin with TORCH_NCCL_."""


def _group(
    name: str,
    kind: Kind,
    default: str | dict[str, str],
    text: str,
    *verdicts: Verdict,
    since: str = _FIRST,
    is_debug: bool = False,
) -> Row:
    """A variable of torch's process group for NCCL."""
    return Row("TORCH_NCCL_" + name, "torch", kind, text, default, since, "", is_debug, verdicts, NCCL_GROUP)


def _old(name: str, kind: Kind, text: str, *verdicts: Verdict, value: str = "") -> Row:
    """The name of a variable before torch 2.2; TORCH_NCCL_… wins where both are set."""
    renamed = Verdict(Severity.WARN, "is the old name", ("torch>=2.2",), value, name=f"TORCH_{name}")
    return Row(name, "torch", kind, text, verdicts=(*verdicts, renamed), source=NCCL_GROUP)


def _row(
    name: str,
    kind: Kind,
    default: str | dict[str, str],
    text: str,
    *verdicts: Verdict,
    since: str = "",
    is_debug: bool = False,
    source: str,
) -> Row:
    return Row(name, "torch", kind, text, default, since, "", is_debug, verdicts, source)


def _unread(name: str, remedy: str) -> Row:
    """A variable of copied scripts that no torch reads."""
    verdicts = (warn(f"no torch reads it; {remedy}", better=REMOVE),)
    return Row(name, "nothing", Anything(), "In copied scripts only", source="torch code to 2.15", verdicts=verdicts)


TORCH: tuple[Row, ...] = (
    _group("ASYNC_ERROR_HANDLING", Integer(0, 3), "3; under torchrun 1; orch sets 3", "After an error: 0 nothing, 1 abort and exit, 2 abort, 3 exit",
        warn("ignores errors of NCCL: the ranks hang", value="0", better="3"),
        warn("aborts communicators before the exit, which may itself hang; the flight recorder wants 3", value="1", better="3"),
        warn("aborts communicators and does not exit: the ranks continue without each other", value="2", better="3")),
    _group("BLOCKING_WAIT", _FLAG, "0", "Block in wait(), with the timeout", warn("turns off the handling of asynchronous errors", value="(?i)y|yes|1|t|true", better=REMOVE)),
    _group("ENABLE_MONITORING", _FLAG, "1", "End the process when the watchdog hangs", warn("a hang in the watchdog then lasts forever", value="(?i)n|no|0|f|false", better=REMOVE)),
    _group("HEARTBEAT_TIMEOUT_SEC", Integer(1, unit="s"), {"": "600", "2.5": "480"}, "Silence after which the watchdog counts as hung",
        warn("hides a hang for more than half an hour", above=1800, better=REMOVE)),
    _group("DUMP_ON_TIMEOUT", _FLAG, "0 before, 1 in newer versions; orch sets 1", "Write the flight recorder at a timeout"),
    _group("WAIT_TIMEOUT_DUMP_MILSEC", Integer(0, unit="ms"), "15000 (2000 and 60000 in older versions)", "Time for that dump"),
    _group("COORD_CHECK_MILSEC", Integer(1, unit="ms"), "1000", "Interval of looking for other ranks' signals"),
    _group("TRACE_BUFFER_SIZE", Integer(0), {"": "0", "2.9": "2000"}, "Entries of the flight recorder; 0 turns it off", info("is called TORCH_FR_BUFFER_SIZE from torch 2.9 on", "torch>=2.9")),
    _group("DEBUG_INFO_TEMP_FILE", Anything("path prefix"), "", "Files of the flight recorder", info("is called TORCH_FR_DUMP_TEMP_FILE from torch 2.9 on", "torch>=2.9")),
    _group("DEBUG_INFO_PIPE_FILE", Anything("path prefix"), "", "Named pipe that triggers a dump"),
    _group("TRACE_CPP_STACK", _FLAG, "0", "C++ stacks in the flight recorder", info("is called TORCH_FR_CPP_STACK from torch 2.9 on", "torch>=2.9")),
    _group("DESYNC_DEBUG", _FLAG, "0", "Report the rank that is behind at a timeout", is_debug=True),
    _group("ENABLE_TIMING", _FLAG, "0", "Time every collective", info("can itself hang the watchdog: for debugging only", value="(?i)y|yes|1|t|true", better=REMOVE)),
    _group("NAN_CHECK", _FLAG, "0", "Check every collective for NaN", is_debug=True),
    _group("PROPAGATE_ERROR", _FLAG, "", "Send errors to all ranks through the store"),
    _group("RETHROW_CUDA_ERRORS", _FLAG, "1", "Raise CUDA errors of the watchdog"),
    _group("LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", _FLAG, "1", "Log C++ stacks after an unclean end"),
    _group("EXTRA_DUMP_ON_EXEC", _FLAG, "0", "Only active collectives in the dump"),
    _group("CUDA_EVENT_CACHE", _FLAG, "auto", "Reuse CUDA events"),
    _group("USE_COMM_NONBLOCKING", _FLAG, "auto", "Create communicators without waiting for all ranks", since="2.1"),
    _group("NONBLOCKING_TIMEOUT", Integer(1, unit="s"), "1800", "Wait for such a communicator", since="2.1"),
    _group("HIGH_PRIORITY", _FLAG, "0", "Streams of high priority"),
    _group("AVOID_RECORD_STREAMS", _FLAG, "auto", "Keep references instead of record_stream", info("is not read: torch 2.15 has no such choice", "torch>=2.15", better=REMOVE)),
    _group("TEARDOWN_ON_TIMEOUT", _FLAG, "0", "End the process at a timeout, also without RETHROW_CUDA_ERRORS", since="2.15"),
    _group("USE_TENSOR_REGISTER_ALLOCATOR_HOOK", _FLAG, "0", "Register the allocator's memory with NCCL"),
    _group("BCAST_UNIQUEID", _FLAG, "", "Rank 0 broadcasts NCCL's id"),
    _group("RANKS_PER_ROOT", Integer(1), "auto", "Ranks per root at the start"),
    _group("SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", _FLAG, "auto", "Warn about serialised send and receive"),
    _row("TORCH_FR_BUFFER_SIZE", Integer(0), "2000", "Entries of the flight recorder; 0 turns it off", since="2.9", source="torch, FlightRecorder.hpp"),
    _row("TORCH_FR_CPP_STACK", _FLAG, "0", "C++ stacks in the flight recorder", since="2.9", source="torch, FlightRecorder.hpp"),
    _row("TORCH_FR_DUMP_TEMP_FILE", Anything("path prefix"), "", "Files of the flight recorder", since="2.9", source="torch, FlightRecorder.hpp"),
    _row("TORCH_FR_DUMP_ON_TIMEOUT", _FLAG, "1", "Write the flight recorder at a timeout", since="2.15", source="torch, FlightRecorder.hpp"),
    _row("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", Integer(0, unit="ms"), "15000", "Time for that dump", since="2.15", source="torch, FlightRecorder.hpp"),
    _row("TORCH_DIST_USE_NCCL2", Anything("0: the former process group"), "1", "Process group for NCCL", since="2.14", source="torch, distributed_c10d.py"),
    _row("TORCH_DIST_NAN_CHECK", Anything("0 or 1"), "0", "Check every collective for NaN", since="2.14", is_debug=True, source="torch, distributed_c10d.py"),
    _row("TORCH_DIST_INIT_BARRIER", Integer(0, 1), "0", "A barrier at the end of init_process_group", source="torch, distributed_c10d.py"),
    _row("TORCH_DISTRIBUTED_USE_TORCHCOMMS", Anything("0 or 1"), "0", "torchcomms instead of torch's process groups; needs that package", source="torch, distributed/config.py"),
    _row("TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P", Anything("0 or 1"), "0", "A communicator per pair of pipeline stages", since="2.15", source="torch, distributed/config.py"),
    _row("TORCH_GLOO_LAZY_INIT", Anything("0 or 1"), "0", "Connect gloo's peers at their first operation", source="torch, ProcessGroupGloo.hpp"),
    _row("PYTORCH_CUDA_ALLOC_CONF", _ALLOCATOR, "", "Options of the allocator of GPU memory", source="torch, CUDAAllocatorConfig.h"),
    _row("PYTORCH_ALLOC_CONF", _ALLOCATOR, "", "Options of the allocator of GPU memory", since="2.9", source="torch, AllocatorConfig.h"),
    _unread("TORCH_DISTRIBUTED_TIMEOUT", "the timeout is an argument of init_process_group"),
    _unread("TORCH_DISTRIBUTED_BACKEND", "the backend is an argument of init_process_group"),
    _unread("GLOO_TIMEOUT_SECONDS", "the timeout is an argument of init_process_group"),
    _old("NCCL_ASYNC_ERROR_HANDLING", Integer(0, 3), "Before torch 2.2: TORCH_NCCL_ASYNC_ERROR_HANDLING",
        warn("is the old name of TORCH_NCCL_ASYNC_ERROR_HANDLING, and worse than the default 3: the abort may hang", "torch>=2.2", value="[012]", better=REMOVE),
        value="3"),
    _old("NCCL_BLOCKING_WAIT", _FLAG, "Before torch 2.2: TORCH_NCCL_BLOCKING_WAIT"),
    _old("NCCL_DESYNC_DEBUG", _FLAG, "Before torch 2.2: TORCH_NCCL_DESYNC_DEBUG"),
    _old("NCCL_ENABLE_TIMING", _FLAG, "Before torch 2.2: TORCH_NCCL_ENABLE_TIMING"),
    _old("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", _FLAG, "Before torch 2.2: TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"),
    _row("TORCH_DISTRIBUTED_DEBUG", Word(("OFF", "INFO", "DETAIL"), "torch stops with an error"), "OFF", "Checks of collectives and logs of DDP",
        warn("compares every collective between the ranks, which is slow: for debugging only", value="(?i)detail", better=REMOVE),
        info("is for debugging", value="(?i)info", better=REMOVE), source="torch, debug.cpp"),
    _row("GLOO_SOCKET_IFNAME", Anything("interface names, exactly, separated by commas"), "interface of the host name's address", "Interfaces of gloo",
        fail("gloo takes exact names: the `=` of NCCL_SOCKET_IFNAME is part of the name there", value="=(.+)", better="{rest}"),
        fail("gloo takes exact names and excludes none", value=r"\^.*"),
        warn("no other node can be reached over the loopback interface", value="lo"), source="torch, ProcessGroupGloo"),
    _row("TP_SOCKET_IFNAME", Anything("interface name"), "", "Interface of tensorpipe: RPC only, not of collectives", source="torch, tensorpipe"),
    _row("TORCHELASTIC_USE_AGENT_STORE", Word(("True", "False"), "torch takes it for False", severity=Severity.INFO), "", "Set by launchers: every rank is a client of the launcher's store",
        warn("left over from another launcher, it leaves the rendezvous without a host: unset TORCHELASTIC_*", value="(?i)true", better=REMOVE), source="torch, rendezvous.py"),
    _row("TORCH_DEVICE_BACKEND_AUTOLOAD", Anything("0 or 1"), "1", "Load torch_gcu and other device packages with torch",
        info('then `import torch_gcu` must come before init_process_group("eccl")', value="0"), source="torch_gcu, setup.py"),
)  # fmt: skip
