"""Read what runs have left: logs, events, metrics, files."""
