"""A folder for PYTHONPATH: torch_gcu of the T20 generation."""
