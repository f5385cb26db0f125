"""
NCCL's variables, to NCCL 2.32.

First versions and defaults were read from the code of each release (NCCL_PARAM and getenv), meanings and ranges from the section
"Environment Variables" of the NCCL User Guide. The names of 2.31 and 2.32 are those in libnccl.so of NVIDIA's packages. A test
compares them with tests/cases/nccl_names.json. Numbers of the code that mean "chosen at run time" (-1, -2, undefined) are `auto` here.
"""

from __future__ import annotations

from orchestrator.variables.row import REMOVE, Row, Verdict, fail, info, warn
from orchestrator.variables.values import Adapters, Anything, Kind, NcclInteger, PathLevel, Selection, Word, WordList

DOCS = "NCCL User Guide, Environment Variables"
_FLAG = NcclInteger(choices=(0, 1))
_COUNT = NcclInteger(0)
_BYTES = NcclInteger(0, unit="bytes")
_PATH = Anything("path")
_INTERFACES = Anything("list of names or prefixes; `=` exact, `^` excludes")


def _row(
    name: str,
    kind: Kind,
    default: str | dict[str, str],
    text: str,
    *verdicts: Verdict,
    since: str = "",
    until: str = "",
    is_debug: bool = False,
    source: str = DOCS,
    undecided: str = "",
) -> Row:
    return Row("NCCL_" + name, "NCCL", kind, text, default, since, until, is_debug, verdicts, source, undecided)


def _debug(
    name: str,
    kind: Kind,
    default: str | dict[str, str],
    text: str,
    *verdicts: Verdict,
    since: str = "",
    until: str = "",
) -> Row:
    """A variable of the guide's section "Debugging"."""
    return _row(name, kind, default, text, *verdicts, since=since, until=until, is_debug=True)


NCCL: tuple[Row, ...] = (
    # Network: which adapters, interfaces and plugins
    _row("NET", Anything("IB, Socket or a plugin's name"), "auto", "Use this network or stop with an error", info("TCP sockets, about ten times slower than RDMA", value="(?i)socket"), since="2.10"),
    _row("NET_PLUGIN", Anything("suffix, file name or none"), "", "Network plugin to load", since="2.11"),
    _debug("IB_DISABLE", _FLAG, "0", "Do not use RDMA (InfiniBand or RoCE)",
        warn("turns RDMA off, so NCCL uses TCP sockets, about ten times slower", "InfiniBand", value="0*1", better=REMOVE),
        warn("turns RDMA off, so NCCL uses TCP sockets, about ten times slower", "RoCE", value="0*1", better=REMOVE)),
    _row("IB_HCA", Adapters(), "all active ports", "RDMA adapters to use",
        warn("is a prefix and takes every adapter that begins so, storage and management ports too, with which NCCL may be unable to connect; name the compute adapters: =mlx5_0,mlx5_1,…", value=r"mlx\d+(_bond)?_?|mlx|ib[ps]?|roce[ps]?|hfi|irdma|bnxt_re"),
        warn("is a prefix: mlx5_1 also takes mlx5_10 to mlx5_19", value=r"(?![\^=])(?!(?:\w+_0(?::\d+)?(?:,|$))+$).+", better="={value}"),
        warn("is a prefix: ^mlx5_1 also excludes mlx5_10 to mlx5_19", value=r"\^[^=].*")),
    _row("SOCKET_IFNAME", _INTERFACES, "ib*, then any but docker*, lo, virbr*", "Interfaces of bootstrap and socket traffic; not the RDMA path",
        warn("no other node can be reached over the loopback interface", value=r"=?lo(:\d+)?"),
        warn("is an RDMA adapter and no network interface, so NCCL finds none; adapters are named by NCCL_IB_HCA", value=r"[=^]?(mlx[45]|hfi1|bnxt_re|irdma|rocep|rdmap)\w*(,\w+)*"),
        warn("NCCL ignores a name of one letter", value="."),
        info("is a prefix, and right only where every node has IPoIB with an address on such an interface; unset, NCCL takes ib* first", value=r"ib\d*", better="={value}"),
        info("is a prefix, and wrong where a node has no such interface: names are often ens*, eno*, enp* or bond*", value=r"(eth|ens|eno|enp|bond|em)\w*")),
    _row("SOCKET_FAMILY", Word(("AF_INET", "AF_INET6"), "NCCL ignores it without a message", case_sensitive=True), "any", "IP version of sockets"),
    _row("SOCKET_MAGIC", Anything("number, 64 bits"), "built in", "Number that the job's own socket handshakes share", since="2.30"),
    _row("SOCKET_RETRY_CNT", NcclInteger(1), "34", "Retries of a refused connection", since="2.24"),
    _row("SOCKET_RETRY_SLEEP_MSEC", NcclInteger(1, unit="ms"), "100", "Pause before the first retry; later ones are longer", since="2.24"),
    _row("SOCKET_POLL_TIMEOUT_MSEC", NcclInteger(0, unit="ms"), "0", "Longest poll during bootstrap; 0 polls without pause", since="2.29"),
    _row("SOCKET_NTHREADS", NcclInteger(1, 16), "auto", "Helper threads per socket connection", since="2.4"),
    _row("NSOCKS_PERTHREAD", NcclInteger(1, 64), "auto", "Sockets per helper thread; times SOCKET_NTHREADS at most 64", since="2.4"),
    _row("COMM_ID", Anything("HOST:PORT"), "", "Address of the bootstrap root, for programs without a launcher"),
    _row("HOSTID", Anything(), "the host name", "Identity of the host", since="2.5", source="NCCL code"),
    _row("CROSS_NIC", NcclInteger(choices=(0, 1, 2)), "2", "Let a ring use different adapters on different nodes",
        info("right for rail-optimised fabrics only; elsewhere it lowers the bandwidth, and the default 2 detects both", value="0"), since="2.5"),
    # InfiniBand and RoCE
    _row("IB_TIMEOUT", NcclInteger(0), {"": "14", "2.14": "18", "2.23": "20"}, "Wait for an acknowledgement: 4.096 µs * 2^N, times IB_RETRY_CNT",
        fail("waits forever: 0, and 32 or more, mean an infinite timeout", value="0+", better="22"),
        fail("waits forever: 0, and 32 or more, mean an infinite timeout", above=31, better="22"),
        fail("a lost link hangs the job: an error comes after 32 minutes with 26, after 8.6 hours with 30 (4.096 µs * 2^N, times 7 retries)", above=25, better="22"),
        warn("gives up after a quarter of a second or less: a short disturbance of the link ends the job (error 12)", below=14, better="22")),
    _row("IB_RETRY_CNT", NcclInteger(0, 7), "7", "Retransmissions before an error"),
    _row("IB_GID_INDEX", NcclInteger(-1), {"": "0", "2.21": "auto"}, "Entry of the GID table (RoCE)",
        fail("is for RoCE, and an index beyond the short GID table of InfiniBand fails", "InfiniBand", "NCCL<2.22", above=0, better=REMOVE),
        warn("is for RoCE, and ignored", "InfiniBand", "NCCL>=2.22", above=-1, better=REMOVE),
        warn("should not be set: NCCL finds the index of each adapter, and one number is wrong where adapters or nodes differ", "RoCE", "NCCL>=2.21", above=-1, better=REMOVE),
        info("must be the index of the RoCE v2 address on every adapter of every node: compare `show_gids`; 3 is common, not universal", "RoCE", "NCCL<2.21", above=-1),
        undecided="is needed on RoCE with NCCL < 2.21 only; otherwise it is ignored, or wrong where adapters or nodes differ"),
    _row("IB_ADDR_FAMILY", Word(("AF_INET", "AF_INET6"), "NCCL ignores it without a message", case_sensitive=True), "AF_INET", "IP version of the GID that NCCL chooses", since="2.21"),
    _row("IB_ADDR_RANGE", Anything("CIDR, as in 10.0.0.0/16"), "any", "Network of the GID that NCCL chooses", since="2.21"),
    _row("IB_ROCE_VERSION_NUM", NcclInteger(choices=(1, 2)), "2", "RoCE version of the GID that NCCL chooses", since="2.21"),
    _row("IB_SL", NcclInteger(-1, 15), "0", "InfiniBand service level; a value of the site"),
    _row("IB_TC", NcclInteger(-1, 255), "0", "Traffic class; on RoCE the one that the switches treat as lossless, a value of the site"),
    _row("IB_FIFO_TC", NcclInteger(-1, 255), "that of IB_TC", "Traffic class of control messages", since="2.22"),
    _row("IB_PKEY", _COUNT, "0", "Index of the partition key", since="2.8", source="NCCL code"),
    _row("IB_PKEY_VALUE", _COUNT, "", "The partition key itself, before IB_PKEY", since="2.31", source="NCCL code"),
    _row("IB_RAIL_POLICY", Word(("NONE", "CX9", "CX9:FLIP", "CX9:ALT", "CX9:BLOCK"), "NCCL ignores it"), "NONE", "Rails of ConnectX-9 adapters", since="2.32", source="NCCL code"),
    _debug("IB_QPS_PER_CONNECTION", NcclInteger(1, 128), "1", "Queue pairs per connection", since="2.10"),
    _debug("IB_SPLIT_DATA_ON_QPS", _FLAG, {"": "1", "2.20": "0"}, "Split each message over the queue pairs", since="2.18"),
    _debug("IB_PCI_RELAXED_ORDERING", NcclInteger(choices=(0, 1, 2)), "2", "PCI relaxed ordering; 1 stops where it is not supported", since="2.12"),
    _debug("IB_ADAPTIVE_ROUTING", _FLAG, "1 on InfiniBand, 0 on RoCE", "Adaptive routing", since="2.16"),
    _debug("IB_AR_THRESHOLD", _BYTES, "8192", "Size from which messages may use adaptive routing", since="2.6"),
    _debug("IB_ECE_ENABLE", _FLAG, "1", "Enhanced connection establishment of the adapters", since="2.23"),
    _debug("IB_OOO_RQ", _FLAG, "0", "Out-of-order receive queues", since="2.30"),
    _debug("IB_MERGE_NICS", _FLAG, "1", "Use the two ports of an adapter as one device", since="2.20"),
    _row("IB_RETURN_ASYNC_EVENTS", _FLAG, "1", "Stop at a fatal event of an adapter", since="2.23"),
    _debug("IB_CUDA_SUPPORT", _FLAG, "", "GPUDirect RDMA, before NET_GDR_LEVEL", until="2.4"),
    _debug("IB_GDR_LEVEL", PathLevel(("LOC", "PIX", "PXB", "PHB", "SYS")), "", "Former name of NET_GDR_LEVEL", until="2.4"),
    # GPUDirect
    _debug("NET_GDR_LEVEL", PathLevel(("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")), "auto", "Longest distance between GPU and adapter for GPUDirect RDMA",
        warn("uses GPUDirect also across CPU sockets, slower and not safe on every board", value="SYS|[4-9]|[1-9][0-9]+", better=REMOVE),
        warn("turns GPUDirect RDMA off", value="LOC|0", better=REMOVE)),
    _debug("NET_GDR_READ", _FLAG, "auto", "GPUDirect RDMA for sending"),
    _debug("NET_GDR_C2C", _FLAG, {"": "0", "2.27": "1"}, "GPUDirect RDMA through a CPU that is joined to the GPU by C2C", since="2.26"),
    _debug("DMABUF_ENABLE", _FLAG, "1", "GPUDirect RDMA through dma-buf", since="2.13"),
    _debug("GDRCOPY_ENABLE", _FLAG, "0", "Use GDRCopy", since="2.9"),
    _debug("NET_SHARED_BUFFERS", _FLAG, "1", "One pool of buffers for all remote peers", since="2.8"),
    _debug("NET_SHARED_COMMS", _FLAG, "1", "Reuse connections with PXN", since="2.12"),
    _debug("NET_MERGE_LEVEL", PathLevel(("LOC", "PIX", "PXB", "PHB", "SYS"), numbers=("LOC", "PIX", "PXB", "PHB", "SYS")), "auto", "Longest distance of ports that are used as one device", since="2.24"),
    _row("NET_MERGE_POLICY", Word(("ALL", "RAIL"), "NCCL does not know it"), "ALL", "Merge adapters of one rail only", since="2.30"),
    _row("NETDEVS_POLICY", Anything("AUTO, ALL or MAX:N"), "AUTO", "Assignment of adapters to GPUs", since="2.28"),
    _debug("IGNORE_NET_MISMATCH", _FLAG, "1", "Accept different numbers of adapters per rank", since="2.30"),
    _debug("IGNORE_COLLNET_MISMATCH", _FLAG, "0", "Accept different numbers of CollNet devices per rank", since="2.30"),
    # Within a node
    _debug("P2P_DISABLE", _FLAG, "0", "No direct access between GPUs", warn("GPUs of a node then exchange data through host memory instead of NVLink", value="0*1", better=REMOVE)),
    _debug("P2P_LEVEL", PathLevel(("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")), "auto", "Longest distance for direct access between GPUs",
        info("has no effect where NVSwitch joins all GPUs", value="SYS|[4-9]|[1-9][0-9]+", better=REMOVE),
        warn("turns direct access off: GPUs of a node then exchange data through host memory", value="LOC|0", better=REMOVE)),
    _debug("P2P_DIRECT_DISABLE", _FLAG, "0", "No direct access to user buffers in one process", since="2.12"),
    _debug("SHM_DISABLE", _FLAG, "0", "No shared memory between the ranks of a node", warn("the ranks of a node then use the network where P2P is not possible", value="0*1", better=REMOVE)),
    _debug("NVLS_ENABLE", NcclInteger(choices=(0, 1, 2)), {"": "1", "2.18": "2"}, "NVLink SHARP; 0 if its memory cannot be had", since="2.17"),
    _debug("NVB_DISABLE", _FLAG, "0", "No NVLink path through another GPU", since="2.9"),
    _debug("PXN_DISABLE", _FLAG, "0", "No path to an adapter through another GPU", since="2.12"),
    _debug("P2P_PXN_LEVEL", NcclInteger(choices=(0, 1, 2)), "2", "PXN for send and receive", since="2.12"),
    _debug("PXN_C2C", _FLAG, {"": "0", "2.28": "1"}, "PXN to adapters behind C2C", since="2.27"),
    _debug("MNNVL_ENABLE", NcclInteger(choices=(0, 1, 2)), "2", "NVLink between nodes; 1 stops where it is missing", since="2.21"),
    _debug("MNNVL_UUID", NcclInteger(), "auto", "Identity of the NVLink domain", since="2.25"),
    _debug("MNNVL_CLIQUE_ID", NcclInteger(), "auto", "Part of the NVLink domain", since="2.23"),
    _row("MULTI_RANK_GPU_ENABLE", _FLAG, "0", "Several ranks on one GPU", since="2.30"),
    _debug("CUMEM_ENABLE", _FLAG, {"": "0", "2.19": "auto"}, "Allocate with cuMem", since="2.18"),
    _debug("CUMEM_HOST_ENABLE", _FLAG, {"": "0", "2.24": "auto"}, "Allocate host memory with cuMem", since="2.23"),
    _row("IGNORE_CPU_AFFINITY", _FLAG, "0", "Ignore the CPU affinity of the job, use that of the GPU", since="2.4"),
    # Algorithms, channels and buffers
    _debug("BUFFSIZE", NcclInteger(1, unit="bytes"), "4194304", "Buffer per channel",
        warn("is less than 64 kB: the unit is bytes", below=1 << 16, better=REMOVE),
        info("is more than the default of 4 MiB: more GPU memory per channel, without a documented gain", above=1 << 22)),
    _debug("LL_BUFFSIZE", _BYTES, "auto", "Buffer of the LL protocol", since="2.7"),
    _debug("LL128_BUFFSIZE", _BYTES, "auto", "Buffer of the LL128 protocol", since="2.7"),
    _debug("NTHREADS", NcclInteger(0), "512", "CUDA threads per block: 64, 128, 256 or 512",
        info("means the default", value="0+", better=REMOVE),
        fail("is above the maximum: NCCL uses 512, its default (640 is the maximum of NCCL_LL128_NTHREADS)", above=512, better=REMOVE),
        fail("is below the minimum: NCCL uses 64", below=64, better=REMOVE),
        fail("is not a multiple of 32: NCCL uses 512, its default", value=r"(?!(?:64|96|128|160|192|224|256|288|320|352|384|416|448|480|512)$)\d+", better=REMOVE),
        warn("is not one of the documented 64, 128, 256 and 512", value=r"(?!(?:64|128|256|512)$)\d+", better=REMOVE)),
    _debug("LL128_NTHREADS", NcclInteger(0, 640), "auto", "CUDA threads per block of the LL128 protocol", since="2.5"),
    _debug("MAX_CTAS", NcclInteger(1, 64), "auto", "Most blocks (32 before 2.25)", since="2.17"),
    _debug("MIN_CTAS", NcclInteger(1, 64), "auto", "Fewest blocks (32 before 2.25)", since="2.17"),
    _debug("MAX_NCHANNELS", NcclInteger(1), "auto", "Former name of MAX_CTAS", info("is replaced by NCCL_MAX_CTAS", "NCCL>=2.17"), since="2.5"),
    _debug("MIN_NCHANNELS", NcclInteger(0), "auto", "Former name of MIN_CTAS", info("is replaced by NCCL_MIN_CTAS", "NCCL>=2.17"), since="2.5"),
    _debug("MAX_NRINGS", NcclInteger(1), "auto", "Former name of MAX_NCHANNELS", info("is replaced by NCCL_MAX_CTAS", "NCCL>=2.17")),
    _debug("MIN_NRINGS", NcclInteger(0), "auto", "Former name of MIN_NCHANNELS", info("is replaced by NCCL_MIN_CTAS", "NCCL>=2.17")),
    _debug("NCHANNELS_PER_NET_PEER", NcclInteger(1), "auto", "Channels per remote peer for send and receive", since="2.12"),
    _debug("ALGO", Selection(("Ring", "Tree", "Collnet", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")), "auto", "Algorithms", since="2.5"),
    _debug("PROTO", Selection(("LL", "LL128", "Simple")), "auto", "Protocols",
        warn("LL128 on a machine that does not support it corrupts data", value=r"(?i)[^^]*LL128.*"), since="2.5"),
    _debug("P2P_NET_CHUNKSIZE", _BYTES, "131072", "Message size of send and receive over the network", since="2.14"),
    _debug("P2P_NVL_CHUNKSIZE", _BYTES, "524288", "Message size of send and receive over NVLink", since="2.16"),
    _debug("P2P_PCI_CHUNKSIZE", _BYTES, "131072", "Message size of send and receive over PCI", since="2.16"),
    _debug("P2P_LL_THRESHOLD", _BYTES, "16384", "Largest message of the LL protocol in send and receive", since="2.14"),
    _debug("ALLOC_P2P_NET_LL_BUFFERS", _FLAG, "0", "LL buffers for all remote peers", since="2.14"),
    _debug("PAT_ENABLE", NcclInteger(choices=(0, 1, 2)), "2", "The PAT algorithm", since="2.23"),
    _debug("SINGLE_RING_THRESHOLD", _BYTES, "", "Size below which one ring is used", until="2.3"),
    _debug("LL_THRESHOLD", _BYTES, "", "Largest message of the LL protocol", until="2.5"),
    _debug("TREE_THRESHOLD", _BYTES, "", "Largest message of the tree algorithm", since="2.4", until="2.5"),
    _debug("THREAD_THRESHOLDS", Anything(), "auto", "Sizes from which more threads are used", since="2.5"),
    _row("COLLNET_ENABLE", _FLAG, "0", "CollNet (SHARP) plugin", since="2.6"),
    _row("COLLNET_NODE_THRESHOLD", _COUNT, "2", "Fewest nodes for CollNet", since="2.9"),
    _row("CTA_POLICY", Anything("DEFAULT, EFFICIENCY, ZERO; joined by |"), "DEFAULT", "Policy for the number of blocks", since="2.27"),
    _debug("CGA_CLUSTER_SIZE", NcclInteger(0, 8), "auto", "Thread block clusters", since="2.15"),
    _debug("MEM_SYNC_DOMAIN", _FLAG, "1", "Memory synchronisation domain of NCCL's kernels", since="2.16"),
    _row("TUNER_PLUGIN", Anything("suffix, file name or none"), "", "Tuner plugin to load", since="2.19"),
    _row("PROFILER_PLUGIN", Anything("suffix, file name or none"), "", "Profiler plugin to load", since="2.23"),
    _row("ENV_PLUGIN", Anything("suffix, file name or none"), "", "Plugin that supplies variables", since="2.28"),
    # Start
    _row("OOB_NET_ENABLE", _FLAG, "0", "Exchange addresses at the start over the network instead of sockets", since="2.23"),
    _row("OOB_NET_IFNAME", _INTERFACES, "", "Interfaces for OOB_NET_ENABLE", since="2.23"),
    _row("UID_STAGGER_THRESHOLD", NcclInteger(1), "256", "Ranks from which messages to the root are spread in time", since="2.23"),
    _row("UID_STAGGER_RATE", NcclInteger(1, unit="messages/s"), "7000", "Their rate", since="2.23"),
    _debug("RUNTIME_CONNECT", _FLAG, "1", "Connect peers at their first operation", since="2.22"),
    _debug("COMM_BLOCKING", _FLAG, "auto", "Blocking communicators", since="2.14"),
    _debug("LAUNCH_MODE", Word(("PARALLEL", "GROUP"), "NCCL uses its default"), "PARALLEL", "Launch of kernels; deprecated in 2.9"),
    _debug("LAUNCH_ORDER_IMPLICIT", _FLAG, "0", "Order operations of several communicators as in the program", since="2.26"),
    _debug("GRAPH_REGISTER", _FLAG, {"": "0", "2.19": "1"}, "Register buffers in CUDA graphs", since="2.11"),
    _debug("LOCAL_REGISTER", _FLAG, "1", "Register buffers on request", since="2.19"),
    _debug("LEGACY_CUDA_REGISTER", _FLAG, "0", "Register memory of cudaMalloc, which can hang", since="2.24"),
    _debug("WIN_ENABLE", _FLAG, "1", "Window registration", since="2.27"),
    _debug("GRAPH_MIXING_SUPPORT", _FLAG, "1", "Several operations in flight from CUDA graphs", since="2.13"),
    _debug("GRAPH_STREAM_ORDERING", _FLAG, "1", "Order operations of CUDA graphs", since="2.30"),
    _debug("SET_STACK_SIZE", _FLAG, "0", "Reserve the kernels' stack at the start", since="2.9"),
    _debug("CHECKS_DISABLE", _FLAG, "0", "No checks of arguments; deprecated in 2.2.12", warn("is deprecated since NCCL 2.2.12", better=REMOVE)),
    _debug("CHECK_POINTERS", _FLAG, "0", "Check pointers at every call, which costs latency", info("checks pointers at every call, which costs latency", value="0*1", better=REMOVE)),
    _debug("CHECK_MODE", Word(("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"), "NCCL uses its default"), "DEFAULT", "Check arguments at every call", since="2.29.7"),
    _debug("LAUNCH_RACE_FATAL", _FLAG, "1", "Stop where LAUNCH_ORDER_IMPLICIT finds a race", since="2.26"),
    _debug("IPC_USE_ABSTRACT_SOCKET", _FLAG, "1", "Abstract sockets between the processes of a node", since="2.29"),
    _debug("SYM_GIN_KERNELS_ENABLE", _FLAG, "1", "Symmetric kernels over the network", since="2.29.7"),
    _row("RUN_DIAGNOSTICS", _FLAG, "0", "Test cards and links before the first operation", since="2.31", source="NCCL code"),
    Row("NCCL_TIMEOUT", "nothing", Anything(), "In copied scripts only", source="NCCL code to 2.32",
        verdicts=(warn("no NCCL and no torch reads it; the timeout is an argument of init_process_group", better=REMOVE),)),
    # Logs, files and health
    _row("DEBUG", Word(("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"), "NCCL logs nothing"), "", "Level of NCCL's log",
        info("is for debugging: every rank logs", value="(?i)info", better="WARN"),
        warn("logs every call", value="(?i)trace", better="WARN")),
    _row("DEBUG_SUBSYS", WordList(("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"), "NCCL ignores it"), "INIT,BOOTSTRAP,ENV", "Parts of NCCL that log at INFO",
        warn("logs every operation: huge logs", value="(?i)(.*,)?(all|call|coll)(,.*)?", better="INIT,NET,ENV")),
    _row("DEBUG_LEVELS", Anything("list of levels"), "", "Levels of NCCL's log, one by one", since="2.32", source="NCCL code"),
    _row("DEBUG_FILE", Anything("path; %h is the host, %p the process"), "stdout", "File of NCCL's log",
        warn("has no %p, so all ranks of a node overwrite one file", value=r"(?!.*%p)(?!/dev/std(?:out|err)$).+", better="{value}.%h.%p"),
        warn("NCCL does not expand ~", value="~.*")),
    _row("DEBUG_TIMESTAMP_FORMAT", Anything("format of strftime"), "[%F %T]", "Time in NCCL's log", since="2.26"),
    _row("DEBUG_TIMESTAMP_LEVELS", WordList(("VERSION", "WARN", "INFO", "ABORT", "TRACE", "ALL"), "NCCL ignores it"), "WARN", "Levels with a time", since="2.26"),
    _row("WARN_ENABLE_DEBUG_INFO", NcclInteger(), "0", "Log at INFO after the first warning", since="2.19", source="NCCL code"),
    _row("SET_THREAD_NAME", _FLAG, "0", "Names for NCCL's threads", since="2.12"),
    _row("TOPO_FILE", _PATH, "", "XML of the topology, which must exist on every node", since="2.6"),
    _row("TOPO_DUMP_FILE", _PATH, "", "Write the topology found", info("writes a file at every start", better=REMOVE), since="2.6"),
    _row("GRAPH_FILE", _PATH, "", "XML of the rings and trees", since="2.6", source="NCCL code"),
    _row("GRAPH_DUMP_FILE", _PATH, "", "Write the rings and trees found", since="2.6", source="NCCL code"),
    _row("CONF_FILE", _PATH, "~/.nccl.conf", "File of variables", warn("NCCL does not expand ~", value="~.*"), since="2.23"),
    _row("RAS_ENABLE", _FLAG, "1", "Answer questions about the job's health (ncclras)", since="2.24"),
    _row("RAS_ADDR", Anything("HOST:PORT"), "localhost:28028", "Address for these questions",
        warn("lets other machines query the job", value=r"(?!localhost:|127\.|\[::1\]).+"), since="2.24"),
    _row("RAS_TIMEOUT_FACTOR", NcclInteger(1), "1", "Factor for timeouts of this", since="2.24"),
)  # fmt: skip

# Read by the code of some release, to 2.32, and documented nowhere: known, and not judged.
UNDOCUMENTED: frozenset[str] = frozenset(
    f"NCCL_{name}"
    for name in """
    AGG_ALLOC_MODE AGG_CHANNEL_SIZE ALLGATHERV_ENABLE CE_CHUNK_SIZE CE_COLL_AG_MULTICAST_THRESHOLD
    CE_INTRA_GPU_MEMCPY_ENABLE CFT_ENABLE CHUNK_SIZE COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES
    CONNECT_ROUND_MAX_PEERS CREATE_THREAD_CONTEXT CUDA_PATH DEV_API_JIT DIAGNOSTICS_ECC_THRESHOLD
    DIAGNOSTICS_IB_BW_TIMEOUT DISABLE_MEM_MANAGER ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK ENQUEUE_REARCH_ENABLE
    GDAKI_FORCE_MCST GDAKI_USE_RELIABLE_DB GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
    GDRCOPY_TAIL_ENABLE GDRCOPY_USE_INTERNAL_DMABUF GDR_FLUSH_DISABLE GIN_COUNTER_POOL_SIZE GIN_ENABLE
    GIN_ERROR_QUERY_SEC GIN_EXCLUSIVE_CONTEXTS GIN_GDAKI_LAG_AWARE_DISABLE GIN_GDAKI_MAX_DEST_RD_ATOMIC
    GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_OOO_OPT GIN_IB_TC GIN_NCONNECTIONS
    GIN_NCONTEXTS GIN_PLUGIN GIN_PLUGIN_REF_COUNT GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH GIN_PROXY_QUEUE_SIZE
    GIN_SIGNAL_POOL_SIZE GIN_TYPE GRAPH_DUMP_FILE_RANK GRAPH_HELPER_DISABLE GROUP_CUDA_STREAM
    HIER_CE_COLL_AG_RAIL_RING_ENABLE HIER_CE_COLL_NUM_CTX IBVERBS_LIB IB_DATA_DIRECT IB_DEVICE_PCI_ORDER
    IB_EVENT_BASED_LB IB_EVENT_BASED_LB_REMOTE IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC
    IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER
    IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY
    IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX
    IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_ROUTABLE_FLID_GID_INDEX IB_SORT_MERGE_NICS IB_SUBNET_AWARE_ROUTING
    IB_SUBNET_PREFIX_LEN IB_USE_INLINE IB_WARN_RAIL_LOCAL IB_WQE_LATENCY_REPORT IB_WQE_LATENCY_THRESHOLD_NS
    IGNORE_DISABLED_P2P L1_SHARED_MEMORY_CARVEOUT LL128_C2C LSA_TEAM_SIZE MAX_P2P_NCHANNELS MIN_P2P_NCHANNELS
    MLOPART_RDMA_ENABLE MNNVL MNNVL_CROSS_CLIQUE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MULTI_SEGMENT_REGISTER
    NET_DISABLE_INTRA NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_MLOPART NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD
    NET_PLUGIN_REF_COUNT NO_CACHE NUM_RMA_CTX NUM_RMA_INT_CTX NVB_PRECONNECT NVLINK_UTIL_CENTRIC_SCHED_ENABLE
    NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_NCHANNELS NVLS_UB_SIZE NVTX_DISABLE P2P_EPOCH_ENABLE P2P_MAX_PEERS
    P2P_PER_CHANNEL_NET_BW P2P_PER_CHANNEL_REG_NET_BW P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY
    PARAM_DUMP_ALL PROGRESS_APPENDOP_FREQ PROGRESS_COUNTERS PROGRESS_COUNTER_MONITOR_POLL_MS
    PROGRESS_COUNTER_MONITOR_STALE_MS PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC PROXY_APPEND_BATCH_SIZE PROXY_CPUSET
    PROXY_DUMP_SIGNAL PROXY_PROFILE REPORT_CONNECT_PROGRESS RINGS RMA_DISABLE RMA_EAGER_INIT RMA_IB_WR_BATCHSIZE
    RMA_MULTI_CTX_THRESHOLD RMA_PLUGIN RMA_PLUGIN_REF_COUNT RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE
    RUN_RAS_DIAGNOSTICS SET_CPU_STACK_SIZE SHADOW_MEMPOOL_MAX_SIZE SHARED_BUFF_COUNT SHM_LOCALITY SHM_MEMCPY_MODE
    SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SOCKET_INLINE SOCKET_MIN_TASKSIZE SOCKET_RCVBUF SOCKET_SNDBUF
    SYM_CE_THRESHOLD SYM_CTAS SYM_KERNEL SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE
    SYM_TMA_ENABLE THREAD_THRESHOLD TOPO_DUMP_FILE_RANK TOPO_SCATTER_START_NET TOPO_SPLIT_MLOPART
    UNPACK_DOUBLE_NCHANNELS WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES WORK_FIFO_DEPTH
    """.split()
)
