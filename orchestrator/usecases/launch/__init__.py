"""Plan a run and start it, again, or once more, and watch it."""
