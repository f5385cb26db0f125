"""The connections to the nodes of a run: opened when they are needed, shared by threads, and opened again once they are lost."""
