"""Writing the inventory of a test ground."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ruamel.yaml import YAML


def write_inventory(path: Path, base: Mapping[str, object], extra: Mapping[str, object]) -> Path:
    """Write `base` with `extra` over it: mappings are merged one level deep, everything else is replaced."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(merged, file)
    return path
