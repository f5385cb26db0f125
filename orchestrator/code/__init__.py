"""The code of the user that travels to the nodes: its files, the rules that leave some out, and the archive."""
