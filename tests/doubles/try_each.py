"""
Run statements, each in its own process, with torch_gcu of one generation on its path, or none.

`python -m tests.doubles.try_each`: a JSON list of ["t20", "s60" or "none", statement] on stdin, a list of their errors on stdout.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Dict

import torch
import torch.distributed

GENERATIONS = Path(__file__).parent


def names(generation: str) -> Dict[str, Any]:
    """The names that a statement can use: the generation's modules; join() makes a group of one rank, with_gradients() a model with gradients."""
    sys.path.insert(0, str(GENERATIONS / generation))
    stock = torch.nn.parallel.DistributedDataParallel
    known: Dict[str, Any] = {"torch": torch, "os": os, "dist": torch.distributed, "DDP": stock, "StockDDP": stock}
    if generation == "t20":
        known["gcu"] = importlib.import_module("torch_gcu")
        known["dist"] = importlib.import_module("torch_gcu.distributed")
        known["DDP"] = importlib.import_module("torch_gcu.nn.parallel").DistributedDataParallel
    elif generation == "s60":
        known["gcu"] = importlib.import_module("torch_gcu").gcu
    alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}

    def join(backend: str = "eccl", **more: Any) -> None:
        known["dist"].init_process_group(backend, **{**alone, **more})

    card = {"t20": "xla:0", "s60": "gcu:0", "none": "cpu"}[generation]
    ones = torch.ones(1, 2).to(card)

    def model(device: str) -> torch.nn.Module:
        return torch.nn.Linear(2, 2).to(device)

    def with_gradients(device: str) -> torch.nn.Module:
        made = model(device)
        made(ones).sum().backward()
        return made

    return {
        **known,
        "join": join,
        "CARD": card,
        "ONES": ones,
        "ALONE": alone,
        "model": model,
        "with_gradients": with_gradients,
    }


def outcome(generation: str, statement: str) -> str:
    try:
        exec(statement, names(generation))  # noqa: S102 -- the tests' own
    except Exception as exc:  # noqa: BLE001 -- any error is a result
        return f"{type(exc).__name__}: {exc}"
    return "nothing was raised"


def main() -> None:
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("torch._dynamo"):
        importlib.import_module("torch._dynamo")  # otherwise every child would spend seconds on it
    answers = []
    for generation, statement in json.load(sys.stdin):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(outcome(generation, statement))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            answers.append(answer.read())
        os.waitpid(child, 0)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
