"""The example task, which waits between steps: task=tests.grounds.held_segmentation:Held."""

from __future__ import annotations

from examples.segmentation.unet import Segmentation
from tests.grounds.held_task import HeldTask


class Held(HeldTask, Segmentation):
    """The same numbers."""
