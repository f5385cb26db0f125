"""Failures within a training of two ranks: in the data loader, the model, its hooks, the optimizer, and while it saves."""

from __future__ import annotations

import textwrap

from bench.failures.provoked import Provoked

_TRAINING = """
import datetime, os, signal, sys, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])

class Data(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        # item
        return torch.ones(8)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, batch):
        # forward
        return self.second(self.first(batch).relu())

def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    model = DistributedDataParallel(Model())
    # model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {}
    # loader
    for step, batch in enumerate(DataLoader(Data(), batch_size=4, num_workers=1, **options)):
        loss = model(batch).sum()
        # loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step={step} loss={loss.item()}", flush=True)
        # step
    if rank == 0:
        state = model.module.state_dict()
        # save
        torch.save(state, "model.pt")
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def _training(
    name: str,
    signature: str,
    kind: str,
    ranks: tuple[int, ...] | None = (1,),
    fixed: tuple[str, str] | None = None,
    **lines: str,
) -> Provoked:
    """A training with lines instead of the comments of these names."""
    program = _TRAINING
    for name_of_comment, text in lines.items():
        comment = f"# {name_of_comment}\n"
        begin = program.index(comment)
        indent = " " * (begin - program.rindex("\n", 0, begin) - 1)
        program = program.replace(indent + comment, textwrap.indent(f"{text}\n", indent))
    return Provoked(name, program, [signature], kind, ranks, fixed)


TRAINING = (
    _training(
        "NaN",
        "not-a-number",
        "numbers",
        loss="if step == 3 and rank == 1: loss = loss * float('nan')\n"
        "if not torch.isfinite(loss): raise FloatingPointError(f'non-finite loss at step {step}')",
    ),
    _training(
        "training that diverges",
        "not-a-number",
        "numbers",
        None,
        ("1e20", "1e-2"),
        loss="loss = (loss * 1e20) ** 2\nif loss.isinf() or loss.isnan(): raise ValueError(f'Loss is {loss.item()} at step {step}')",
    ),
    _training(
        "dead DataLoader worker",
        "worker-killed",
        "unknown",
        item="if rank == 1 and index == 9: os.kill(os.getpid(), signal.SIGKILL)",
    ),
    _training(
        "segmentation fault of a DataLoader worker",
        "worker-crashed",
        "code",
        item="if rank == 1 and index == 9:\n    import ctypes\n    ctypes.string_at(0)",
    ),
    _training(
        "error in a DataLoader worker", "python-error", "code", item="if rank == 1 and index == 9: {}['input_ids']"
    ),
    _training(
        "missing file in a DataLoader worker",
        "file-not-found",
        "config",
        (0,),
        item="if rank == 0 and index == 9: open('/data/shard-9.bin')",
    ),
    _training(
        "timeout of the DataLoader",
        "loader-timeout",
        "hang",
        item="if rank == 1 and index == 9: time.sleep(600)",
        loader="options = {'timeout': 3}",
    ),
    _training(
        "samples of different lengths",
        "samples-differ",
        "code",
        item="if rank == 1 and index == 9: return torch.ones(9)",
    ),
    _training(
        "lambda for a spawned DataLoader worker",
        "cannot-pickle",
        "code",
        None,
        ("lambda samples: torch.stack(samples)", "torch.utils.data.default_collate"),
        loader="options = {'collate_fn': lambda samples: torch.stack(samples), 'multiprocessing_context': 'spawn'}",
    ),
    _training("hang in the data loader", "gloo-timeout", "hang", item="if rank == 1 and index == 9: time.sleep(600)"),
    _training(
        "error in a hook of backward",
        "python-error",
        "code",
        model="def check(gradient):\n    if rank == 1: raise RuntimeError('the gradient has a wrong sign')\n"
        "model.module.second.weight.register_hook(check)",
    ),
    _training(
        "tensor changed in place",
        "changed-in-place",
        "code",
        None,
        ("hidden.mul_(2)", "hidden = hidden * 2"),
        forward="hidden = self.first(batch).sigmoid()\nout = self.second(hidden)\nhidden.mul_(2)\nreturn out + hidden.sum()",
    ),
    _training(
        "wrong dtype",
        "dtypes-differ",
        "code",
        None,
        ("torch.bfloat16", "self.first.weight.dtype"),
        forward="batch = batch.to(torch.bfloat16)",
    ),
    _training("wrong shape", "shapes-differ", "code", None, ("[:, :7]", "[:, :8]"), forward="batch = batch[:, :7]"),
    _training(
        "model of another configuration",
        "state-differs",
        "config",
        None,
        ("torch.nn.Linear(4, 4)", "torch.nn.Linear(8, 8)"),
        model="torch.save(torch.nn.Linear(4, 4).state_dict(), f'old-{rank}.pt')\nmodel.module.first.load_state_dict(torch.load(f'old-{rank}.pt'))",
    ),
    _training(
        "CUDA in a build without it",
        "torch-without-cuda",
        "config",
        None,
        ("model.module.cuda()", ""),
        model="model.module.cuda()",
    ),
    _training(
        "index out of range of an embedding",
        "index-out-of-range",
        "code",
        loss="if rank == 1: torch.nn.Embedding(10, 4)(torch.tensor([10]))",
    ),
    _training(
        "SIGKILL within a training",
        "killed",
        "unknown",
        step="if rank == 1 and step == 3: os.kill(os.getpid(), signal.SIGKILL)",
    ),
    _training("error while rank 0 saves", "python-error", "code", (0,), save="state['step'] = steps"),
    _training(
        "disk full while rank 0 saves", "checkpoint-not-written", "storage", (0,), save="torch.save(state, '/dev/full')"
    ),
    _training(
        "SIGSEGV while rank 0 saves", "segmentation-fault", "code", (0,), save="import ctypes\nctypes.string_at(0)"
    ),
    _training(
        "different numbers of batches",
        "ended-early",
        "code",
        (1,),
        ("if rank == 1 and step == 3: return dist.destroy_process_group()", ""),
        step="if rank == 1 and step == 3: return dist.destroy_process_group()",
    ),
)
