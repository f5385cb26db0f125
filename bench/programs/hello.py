"""The shortest program: prints one line."""

from __future__ import annotations

import sys

sys.stdout.write("hello from a rank\n")
sys.stdout.flush()
