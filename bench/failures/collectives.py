"""Failures of the rendezvous and of collective operations, with gloo."""

from __future__ import annotations

from bench.failures.provoked import HEAD, WAIT, Provoked, on_rank

GLOO = "import datetime, torch, torch.distributed as dist\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=8))\n"
DDP = f"{GLOO}from torch.nn.parallel import DistributedDataParallel as DDP\n"
_STORE = "import datetime, torch.distributed as dist\nshort = datetime.timedelta(seconds=3)\n"
_STEPS = "for step in range({0}): dist.all_reduce(torch.ones(4))\n"


def _together(
    name: str,
    lines: str,
    signature: str | None,
    kind: str,
    ranks: tuple[int, ...] | None = None,
    fixed: tuple[str, str] | None = None,
) -> Provoked:
    """A failure of both ranks, which run the same lines."""
    return Provoked(name, HEAD + lines, [signature], kind, ranks, fixed)


COLLECTIVES = (
    Provoked(
        "port taken",
        on_rank(
            1,
            "import socket, torch.distributed as dist\nheld = socket.create_server(('', 0))\n"
            "dist.TCPStore('127.0.0.1', held.getsockname()[1], 2, is_master=True, wait_for_workers=False)",
        ),
        ["port-taken"],
        "network",
        fixed=("held.getsockname()[1]", "0"),
    ),
    Provoked(
        "wrong backend",
        f"{HEAD}import torch.distributed as dist\ndist.init_process_group('nccl')\n",
        ["nccl-not-built-in", "no-gpu"],
        "config",
        None,
    ),
    _together("backend without its module", "import torch.distributed as dist\ndist.init_process_group('eccl')\n", "unknown-backend", "config"),
    _together(
        "no MASTER_ADDR",
        f"os.environ.pop('MASTER_ADDR', None)\n{GLOO}",
        "no-rendezvous-variables",
        "config",
        None,
        ("os.environ.pop('MASTER_ADDR', None)", ""),
    ),
    _together(
        "missing rank",
        f"{_STORE}if rank == 1: time.sleep(600)\ndist.TCPStore('127.0.0.1', 0, 2, is_master=True, timeout=short)\n",
        "clients-missing",
        "network",
    ),
    Provoked(
        "rendezvous that refuses",
        on_rank(1, f"{_STORE}dist.TCPStore('127.0.0.1', 1, 2, is_master=False, timeout=short)"),
        ["store-unreachable"],
        "network",
    ),
    Provoked(
        "name of the head is unknown",
        on_rank(1, f"{_STORE}dist.TCPStore('head.of.the.site.invalid', 29500, 2, is_master=False, timeout=short)"),
        ["name-unknown"],
        "config",
    ),
    Provoked(
        "another program at the port",
        on_rank(
            1,
            f"{_STORE}import socketserver, threading\nclass Proxy(socketserver.BaseRequestHandler):\n    def handle(self):\n"
            "        self.request.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\n"
            "proxy = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Proxy)\n"
            "threading.Thread(target=proxy.serve_forever, daemon=True).start()\n"
            "dist.TCPStore('127.0.0.1', proxy.server_address[1], 2, is_master=False, timeout=short)",
        ),
        ["foreign-server"],
        "config",
    ),
    _together("wrong interface", f"os.environ['GLOO_SOCKET_IFNAME'] = 'none0'\n{GLOO}", "gloo-no-interface", "config"),
    _together(
        "wrong interface of one rank",
        f"if rank == 1: os.environ['GLOO_SOCKET_IFNAME'] = 'none0'\n{GLOO}",
        "gloo-no-interface",
        "config",
        (1,),
        ("if rank == 1: os.environ['GLOO_SOCKET_IFNAME'] = 'none0'", ""),
    ),
    _together(
        "SIGSTOP",
        f"{GLOO}dist.barrier()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(torch.ones(1))\n",
        "gloo-timeout",
        "hang",
        (1,),
    ),
    _together(
        "rank that does not call a collective",
        f"{GLOO}dist.barrier()\nif rank == 0: dist.all_reduce(torch.ones(1)){WAIT}",
        "gloo-timeout",
        "hang",
        (1,),
    ),
    _together(
        "deadlock by a lock",
        f"import threading\nlock = threading.Lock()\n{GLOO}dist.barrier()\nif rank == 1:\n    lock.acquire()\n    lock.acquire()\n"
        "dist.all_reduce(torch.ones(1))\n",
        "gloo-timeout",
        "hang",
        (1,),
    ),
    _together(
        "monitored barrier",
        f"{GLOO}if rank == 0: dist.monitored_barrier(timeout=datetime.timedelta(seconds=3)){WAIT}",
        "monitored-barrier",
        "hang",
        (1,),
    ),
    _together(
        "rank that ends early",
        f"{GLOO}{_STEPS.format('3 if rank == 1 else 10')}dist.destroy_process_group()\n",
        "ended-early",
        "code",
        (1,),
        ("3 if rank == 1 else 10", "3"),
    ),
    _together(
        "different sizes in an all_reduce",
        f"{GLOO}dist.all_reduce(torch.ones(10 if rank == 1 else 4))\n",
        "gloo-sizes-differ",
        "code",
        None,
        ("10 if rank == 1 else 4", "4"),
    ),
    _together(
        "different collectives",
        f"os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\n{GLOO}x = torch.ones(4)\n"
        "dist.broadcast(x, 0) if rank == 1 else dist.all_reduce(x)\n",
        "collectives-differ",
        "code",
        None,
        ("dist.broadcast(x, 0) if rank == 1 else ", ""),
    ),
    _together(
        "unused parameters",
        f"{DDP}class Half(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)\n"
        "    def forward(self, x):\n        return self.a(x)\n"
        "model = DDP(Half())\nfor _ in range(3):\n    model(torch.ones(1, 2)).sum().backward()\n",
        "ddp-unused-parameters",
        "code",
    ),
    _together(
        "differing models",
        f"{DDP}DDP(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(1 + rank)]))\n",
        "ddp-models-differ",
        "code",
        None,
        ("1 + rank", "1"),
    ),
    _together(
        "differing sizes of models",
        f"{DDP}DDP(torch.nn.Linear(2, 2 + rank))\n",
        "ddp-sizes-differ",
        "code",
        None,
        ("2 + rank", "2"),
    ),
    _together("device_ids on CPU", f"{DDP}DDP(torch.nn.Linear(2, 1), device_ids=[rank])\n", "ddp-model-on-cpu", "code"),
)  # fmt: skip
