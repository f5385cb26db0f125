"""Token files made of text: `python -m trainer.data tokenize`."""
