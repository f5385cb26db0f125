"""Plan a run, start it, restart it, and watch it."""
