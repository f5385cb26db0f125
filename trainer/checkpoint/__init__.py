"""Checkpoints: files on disk, all ranks acting as one, when to save, export; `python -m trainer.checkpoint`. No torch here."""
