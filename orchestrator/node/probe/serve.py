"""The probe as a program on standard input: the controller sends its modules, as those of an endpoint, and then the request."""

from __future__ import annotations

import json
import sys

from orchestrator.node.probe.collect import collect
from orchestrator.node.probe.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def serve(stream: BinaryIO) -> None:
    """Read the request, the rest of the stream, and print the facts as one line."""
    print_facts(json.loads(stream.read()))


def print_facts(request: dict, root: str = "/") -> None:  # type: ignore[type-arg]
    facts = collect({"node": "", "names": [], "folders": {}, "code": None, **request}, Source(root))
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
