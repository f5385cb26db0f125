"""Checkpoints: files on disk, collective saving and resuming, when to save, export; `python -m trainer.checkpoint`. No torch here."""
