"""Benchmarks, side by side with what others do the same job with. Nothing here is a test, and no test reads the clock."""
