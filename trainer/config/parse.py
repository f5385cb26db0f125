"""Read a --config file, JSON or YAML, into plain values; every mistake in it is a UserError."""

from __future__ import annotations

import importlib
import importlib.util
import json
from typing import Any, Dict

from trainer.errors import UserError
from trainer.values import JsonValue


def read_settings(path: str) -> dict[str, Any]:
    """The file's mapping. Raises UserError: missing, unreadable, not valid JSON or YAML, a key twice, or not a mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the configuration file {path}: {reason}") from exc
    settings = _read_yaml(path, text) if path.endswith((".yaml", ".yml")) else _read_json(path, text)
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path}: the file must hold a mapping of keys to values, got {type(settings).__name__}")
    return settings


def _read_json(path: str, text: str) -> JsonValue:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: Dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UserError(f"{path}: key {key!r} is given twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=refuse_twice)
    except ValueError as exc:
        raise UserError(f"{path}: not valid JSON: {exc} (a YAML file must end in .yaml or .yml)") from exc


def _read_yaml(path: str, text: str) -> JsonValue:
    """By ruamel.yaml, which refuses a key given twice, else by PyYAML; a node may have neither."""
    if importlib.util.find_spec("ruamel") and importlib.util.find_spec("ruamel.yaml"):
        library = importlib.import_module("ruamel.yaml")
        read = library.YAML(typ="safe", pure=True).load
        wrong = importlib.import_module("ruamel.yaml.error").YAMLError
    elif importlib.util.find_spec("yaml"):
        library = importlib.import_module("yaml")
        read, wrong = library.safe_load, library.YAMLError
    else:
        raise UserError(
            f"{path}: this Python has no YAML library (ruamel.yaml or PyYAML); write the configuration as JSON"
        )
    try:
        return read(text)
    except wrong as exc:
        raise UserError(f"{path}: not valid YAML: {exc}") from exc
