"""Name the cause of a failed run from its logs: a catalogue of signatures, and the weighing of what was found. Pure."""
