"""The folder that the agent puts on PYTHONPATH of programs; it holds only the module for `from orch_progress import report`."""
