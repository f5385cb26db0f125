"""What the contestants run."""
