"""
The programs that run on nodes: standard library only, Python >= 3.8, no import from the rest of orch.

Types are imported under `TYPE_CHECKING = False`, which type checkers treat as typing.TYPE_CHECKING: importing typing would
cost every connection and every agent some milliseconds. Functions import the modules that only they need for the same reason.
"""
