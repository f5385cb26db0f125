"""Benchmarks of orch beside other programs that do the same job. Nothing here is a test, and no test depends on timing."""
