"""
The shared trainer: a GPT on text or a user-defined task, one process per rank, with checkpoints that survive a crash.

Started as `python -m trainer` by orch's agent or by torchrun; shares only argv, environment and files with the orchestrator.
Runs on Python 3.8 and torch 1.10: newer features are looked up, never assumed.
"""
