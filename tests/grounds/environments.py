"""Parts of the tests of the environment push: text that any YAML reader gives back, and a program that writes its environment to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DUMP = """\
import json, os
path = os.path.join(os.environ["ORCH_RUN_DIR"], "environ-%s.json" % os.environ["RANK"])
with open(path + ".new", "w") as file:
    json.dump({name.decode("latin-1"): value.decode("latin-1") for name, value in os.environb.items()}, file)
os.rename(path + ".new", path)
"""


def yaml_mapping(values: Mapping[str, str]) -> str:
    """Write a mapping on one line with every character but ASCII letters and digits escaped."""
    return "{" + ", ".join(f"{name}: {_yaml_text(value)}" for name, value in values.items()) + "}"


def _yaml_text(text: str) -> str:
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in text) + '"'


def env_file(path: Path, values: Mapping[str, bytes]) -> Path:
    """Write a private env_file in the NUL-separated form, which takes any bytes."""
    path.touch(mode=0o600)
    path.write_bytes(b"".join(name.encode() + b"=" + value + b"\0" for name, value in values.items()))
    return path


def environs(root: Path, run_id: str) -> dict[int, dict[str, bytes]]:
    """Rank -> its whole environment, as DUMP wrote it below `root`."""
    found = {}
    for path in root.rglob(f"runs/{run_id}/environ-*.json"):
        values: dict[str, str] = json.loads(path.read_text("utf-8"))
        rank = int(path.stem.removeprefix("environ-"))
        found[rank] = {name: value.encode("latin-1") for name, value in values.items()}
    return found
