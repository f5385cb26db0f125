"""The state of runs, and their end."""
