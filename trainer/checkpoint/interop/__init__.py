"""Weights in the formats of others: init=PATH reads them, `python -m trainer.checkpoint export` writes them."""
