"""Values and rules that also run on nodes, in the batch script of a Slurm job: standard library, Python 3.8 or newer."""
