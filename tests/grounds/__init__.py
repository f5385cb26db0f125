"""Real places to run against: an sshd whose loopback addresses are nodes, a Slurm cluster, ports that misbehave."""
