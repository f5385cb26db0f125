"""The check of a Slurm job's nodes in its allocation: a program of the bundle, for Python 3.8 and the standard library alone."""
