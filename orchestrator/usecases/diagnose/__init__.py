"""Find the cause of a failure, in log files or in a run."""
