"""
A torch with the names of torch 1.10 and no behaviour, to test that modules can be imported with it.

`python -m tests.doubles.bare_torch NAMES.json MODULE…` imports the modules; NAMES holds the names of each module of torch.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List


class Placeholder:
    """Serves as a base class, a decorator or a constant."""

    def __call__(self, *args: Any) -> Any:
        return args[0] if args else self


def install(names: Dict[str, List[str]]) -> None:
    modules = {name: ModuleType(name) for name in names if not name.rpartition(".")[2][0].isupper()}
    for name, module in modules.items():
        for attribute in names[name]:
            setattr(module, attribute, modules.get(f"{name}.{attribute}") or type(attribute, (Placeholder,), {}))
        module.__path__ = []
        sys.modules[name] = module


if __name__ == "__main__":
    install(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
