"""Test grounds: an sshd whose loopback addresses are nodes, namespaces as hosts, a Slurm cluster, ports that refuse or hang."""
