"""Start a run, and each of the later attempts: connect, send the code, check the nodes, resolve the plan, start the agents."""
