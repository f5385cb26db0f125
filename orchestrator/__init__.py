"""orch starts a training job on many machines from one inventory file."""

__version__ = "0.1.0"
