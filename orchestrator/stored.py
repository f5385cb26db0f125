"""Values that this or another version of orch has stored: the versions share the fields that both know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any


class MissingFields(ValueError):
    """Stored data lacks fields that this version cannot do without."""


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """
    The entries of `data` that are fields of the dataclass `kind`; a field with a default may be missing.

    Raises:
        MissingFields: a field without a default is missing.
    """
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    if missing := sorted(required - data.keys()):
        raise MissingFields(f"{kind.__name__} has no {', '.join(missing)}")
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
