"""Faults of real clusters, caused on purpose: docs/faults.md lists them."""
