"""The version of orch. setup.cfg reads this file, so it imports nothing."""

__version__ = "0.1.0"
