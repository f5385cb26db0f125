"""A folder for PYTHONPATH: torch_gcu of the S60 generation."""
