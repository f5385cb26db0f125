"""Programs that the contestants run."""
