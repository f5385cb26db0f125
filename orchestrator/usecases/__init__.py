"""Use cases: each returns values and prints nothing."""
