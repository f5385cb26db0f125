"""The communication benchmark: bandwidths of collectives and of point to point, and a test of each device."""
