"""Writing the inventory of a test ground."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ruamel.yaml import YAML


def write_inventory(path: Path, base: Mapping[str, object], extra: Mapping[str, object]) -> Path:
    """Write `base` with `extra` over it: mappings are merged one level deep, where None deletes; the rest is replaced."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(merged, file)
    return path


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in {**below, **above}.items() if value is not None}
