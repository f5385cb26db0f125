"""
The facts of a node: the keys of the JSON object that node/probe writes, and the check of such an object.

A value that could not be read is None, or absent from its list; `missing` then has the reason by key. Nothing is guessed.
Sizes are bytes, times seconds, rates Gb/s. PCI addresses are as in sysfs ("0000:3d:00.0").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, List, Optional, TypedDict, Union, cast, get_args, get_origin, get_type_hints


class NumaNode(TypedDict):
    """`cpus` is a list of CPU numbers as in sysfs, such as "0-47,96-143"."""

    node: int
    cpus: str


class Cpus(TypedDict):
    """`usable` counts the CPUs that this process may use; `quota` the limit of the cgroup in CPUs."""

    total: int
    usable: int
    quota: Optional[float]
    governor: Optional[str]
    numa: List[NumaNode]


class Memory(TypedDict):
    """`cgroup_limit` is None without a limit."""

    total: int
    available: int
    cgroup_limit: Optional[int]
    swap_total: int


class Limit(TypedDict):
    """A resource limit of the processes that orch starts; None is unlimited."""

    soft: Optional[int]
    hard: Optional[int]


class Disk(TypedDict):
    """
    The file system of a folder that a run uses: `use` is workdir, home, tmp, shm or out.

    `identity` is equal on two nodes only if both see the same file system; `writable` is the result of writing a file. `refused` is the
    reason for which a launch refuses a workdir.
    `checkpoint` has the bytes of the newest checkpoint there, of any run in a workdir.
    """

    use: str
    path: str
    mount: str
    type: str
    identity: str
    total: int
    free: int
    inodes_free: Optional[int]
    writable: Optional[bool]
    refused: Optional[str]
    checkpoint: Optional[int]


class Clock(TypedDict):
    """`time` is read when the probe starts; `synchronized` is the kernel's report (adjtimex)."""

    time: float
    synchronized: Optional[bool]


class Address(TypedDict):
    address: str
    prefix: int


class Interface(TypedDict):
    """`kind`: ethernet, infiniband, loopback, bond, bridge, vlan or virtual; `speed` in Gb/s; `hca` the RDMA device that it belongs to."""

    name: str
    kind: str
    up: bool
    mtu: Optional[int]
    speed: Optional[float]
    addresses: List[Address]
    pci: Optional[str]
    numa: Optional[int]
    master: Optional[str]
    hca: Optional[str]


class Gid(TypedDict):
    """`type` as in sysfs: "IB/RoCE v1" or "RoCE v2"; empty slots of the table are left out."""

    index: int
    gid: str
    type: Optional[str]
    interface: Optional[str]


class HcaPort(TypedDict):
    """`state` such as ACTIVE, `physical_state` such as LinkUp, `link_layer` InfiniBand or Ethernet, as in sysfs; `counters` errors by name."""

    port: int
    state: Optional[str]
    physical_state: Optional[str]
    link_layer: Optional[str]
    rate: Optional[float]
    lid: Optional[int]
    gids: List[Gid]
    counters: Dict[str, int]


class Hca(TypedDict):
    """
    An RDMA device; `usable` is False if its character device is missing, as in a container without /dev/infiniband.

    `node_type` as in sysfs: CA for InfiniBand and RoCE, RNIC for iWARP. `physical_function` is the PCI address of the device of
    which this one is a virtual function; None if it is none, or if the machine is virtual and does not show it.
    """

    name: str
    node_type: Optional[str]
    physical_function: Optional[str]
    pci: Optional[str]
    pci_path: Optional[str]
    numa: Optional[int]
    board: Optional[str]
    firmware: Optional[str]
    usable: bool
    interfaces: List[str]
    ports: List[HcaPort]


class CardProcess(TypedDict):
    """A process on a card; `ours` is True if it belongs to this user."""

    pid: int
    name: str
    user: Optional[str]
    memory: Optional[int]
    ours: bool


class Card(TypedDict):
    """
    One accelerator card; `kind` is cuda or gcu, `index` the vendor tool's.

    `pci_path` is the resolved path below /sys/devices: cards and HCAs with a long common path are near each other. `health` holds
    the tool's values by its own names, such as ecc.errors.uncorrected.volatile.total.
    """

    kind: str
    index: int
    uuid: Optional[str]
    name: Optional[str]
    pci: Optional[str]
    pci_path: Optional[str]
    numa: Optional[int]
    memory_total: Optional[int]
    memory_used: Optional[int]
    utilization: Optional[float]
    mig: Optional[bool]
    processes: List[CardProcess]
    health: Dict[str, str]


class Library(TypedDict):
    """A shared library that the training Python loads: `version` is its own answer, `sha256` that of the file."""

    path: str
    version: Optional[str]
    sha256: Optional[str]


class Software(TypedDict):
    """
    Versions of the training Python and of what it imports; None: not installed.

    `packages` is the version by name of every installed distribution, `packages_hash` the sha256 of that table.
    `import_folders` are the folders of sources from which it also imports, as after `pip install -e`.
    """

    python: str
    executable: str
    kernel: str
    driver: Optional[str]
    cuda: Optional[str]
    torch: Optional[str]
    torch_cuda: Optional[str]
    torch_gcu: Optional[str]
    deepspeed: Optional[str]
    nccl: Optional[Library]
    packages: Dict[str, str]
    packages_hash: Optional[str]
    import_folders: List[str]


class Code(TypedDict):
    """
    The user's code on the node: the git work tree that holds `path`; `digest` is the sha256 over the names and contents of the program files in `path`.

    `identity` is that of the folder, as in Disk.
    """

    path: str
    identity: str
    commit: Optional[str]
    dirty: Optional[bool]
    digest: Optional[str]


class Names(TypedDict):
    """`resolved` has the addresses of each node name that the probe was given, as this node resolves it; empty: it does not."""

    hostname: str
    resolved: Dict[str, List[str]]


class Tool(TypedDict):
    """A vendor tool: `error` says why its output was not used (not found, killed after 10 s, exit code, unreadable)."""

    name: str
    seconds: float
    error: Optional[str]


class NodeFacts(TypedDict):
    """
    `topology` is the matrix of `nvidia-smi topo -m` by device names (GPU0, mlx5_0): X, NV8, PIX, PXB, PHB, NODE or SYS.

    `kernel_messages` are lines of the kernel log on devices (Xid, link changes), each after its UTC time; `environment` the NCCL_,
    ECCL_, TORCH_, GLOO_ … variables that ranks inherit; `nccl_conf` the text of /etc/nccl.conf and ~/.nccl.conf (or of the file in
    NCCL_CONF_FILE), by path.
    """

    format: int
    node: str
    seconds: float
    cpus: Cpus
    memory: Memory
    limits: Dict[str, Limit]
    disks: List[Disk]
    clock: Clock
    names: Names
    interfaces: List[Interface]
    hcas: List[Hca]
    cards: List[Card]
    topology: Dict[str, Dict[str, str]]
    software: Software
    code: Optional[Code]
    kernel_messages: List[str]
    environment: Dict[str, str]
    nccl_conf: Dict[str, str]
    tools: List[Tool]
    missing: Dict[str, str]


FORMAT = 1


def read_facts(value: object) -> NodeFacts:
    """
    Return the value, which has been read as JSON, as the facts of a node. Unknown keys are kept.
    Raises ValueError: it is of another format; a key is missing, or has a value of another type.
    """
    found = value.get("format") if isinstance(value, dict) else None
    if found is None:
        raise ValueError("not the facts of a node")
    if found != FORMAT:
        raise ValueError(f"facts of format {found!r}, and this version of orch reads format {FORMAT}")
    _check(value, NodeFacts, "facts")
    return cast("NodeFacts", value)


_hints = lru_cache(maxsize=None)(get_type_hints)
_NAMES = {dict: "an object", list: "a list", str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def _check(value: object, kind: Any, path: str) -> None:  # noqa: ANN401  a type, or an Optional
    """Raise ValueError, with the path of the key, unless the value is of the type."""
    if get_origin(kind) is Union:  # Optional
        if value is not None:
            _check(value, get_args(kind)[0], path)
        return
    base = get_origin(kind) or (dict if issubclass(kind, dict) else kind)
    allowed = (int, float) if base is float else base
    if not isinstance(value, allowed) or (isinstance(value, bool) and base is not bool):
        raise ValueError(f"{path} is {value!r:.60}, not {_NAMES[base]}")
    if base is list:
        for index, entry in enumerate(cast("List[object]", value)):
            _check(entry, get_args(kind)[0], f"{path}[{index}]")
    elif base is dict:
        value = cast("Dict[str, object]", value)
        is_map = get_origin(kind) is dict
        hints = dict.fromkeys(value, get_args(kind)[1]) if is_map else _hints(kind)
        for key, hint in hints.items():
            if key not in value:
                raise ValueError(f"{path}.{key} is missing")
            _check(value[key], hint, f"{path}.{key}")
