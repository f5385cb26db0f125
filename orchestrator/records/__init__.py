"""The records of runs on this machine: their folders in $ORCH_HOME, and what is cached there about nodes."""
