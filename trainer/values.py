"""
Names for values whose type is Any, because it depends on the user's task, on the version of a library or on a file.

Torch 1.10 and newer ones, DeepSpeed and the vendors' packages type the same objects differently, or not at all.
"""

from __future__ import annotations

from typing import Any

Batch = Any  # of a task: tensors in any nesting of lists, tuples and dicts; a sample, too
FieldDefault = Any  # of dataclasses.field(), which mypy takes for a value of the field
Foreign = Any  # a module, class or object of a library
JsonValue = Any  # as json or yaml reads it
Model = Any  # a task's torch.nn.Module, which a strategy may have wrapped
Tree = Any  # state: dicts and lists, nested, with tensors and plain values
