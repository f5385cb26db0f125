"""What runs on the nodes: single files of the standard library, Python >= 3.8, no import from the rest of orch."""
