"""
The programs that run on nodes: standard library only, Python >= 3.8, no import from the rest of orch.

Types are imported under `TYPE_CHECKING = False`, which type checkers treat as typing.TYPE_CHECKING: importing typing would
cost every connection and every agent some milliseconds. Functions import the modules that only they need for the same reason.

Programs: agent/ owns a node's ranks, endpoint/ answers the controller, batch/ decides on attempts under Slurm, probe/ collects facts,
report/ is for programs of users. They share protocol/ (the keys of requests), run/ (a run's folder, its files and its processes),
ranks/ (what ranks are, report and start), vendor/ (the tools of the cards) and system/ (files and processes).
"""
