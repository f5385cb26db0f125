"""The fixture of the verbs that act on runs of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.two_nodes import two_nodes
from tests.grounds.cli import Orch


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    """orch with an inventory of two local nodes; the agent of the second starts when the file `.gate` appears."""
    return two_nodes(tmp_path)
