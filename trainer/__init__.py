"""
The shared trainer: a GPT on text or a task of the user's, one process a rank, with checkpoints that survive a crash.

Started as `python -m trainer` by orch's agent or by torchrun; it meets the orchestrator in argv, environment and files.
Runs on Python 3.8 and torch 1.10: newer features are looked up, never assumed.
"""
