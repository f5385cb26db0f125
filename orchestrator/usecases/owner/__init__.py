"""The process that owns a run over SSH, and the part of the command line that shows it."""
