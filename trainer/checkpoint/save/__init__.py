"""How a state is written: by all ranks or rank 0, at once or in the background, and the disk space for it."""
