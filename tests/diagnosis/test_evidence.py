"""The prefixes of lines, as launchers and loggers write them."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.evidence import Origin, origin_of

NOON = 1_795_348_800.0


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("KeyError: 'x'", Origin("KeyError: 'x'")),
        ("[n0:3] KeyError: 'x'", Origin("KeyError: 'x'", "n0", 3)),
        ("[h800-01:-] rank 3 exited 1", Origin("rank 3 exited 1", "h800-01")),
        ("[n0:4711] [[9,0],2] ORTE_ERROR_LOG: x", Origin("[[9,0],2] ORTE_ERROR_LOG: x", "n0")),
        ("[n0:04711] *** An error occurred", Origin("*** An error occurred", "n0")),
        ("[n0:4711] pml_ucx.c:419 Error: x", Origin("pml_ucx.c:419 Error: x", "n0")),
        ("[rank3]: KeyError: 'x'", Origin("KeyError: 'x'", None, 3)),
        ("worker-1: [rank3]: KeyError: 'x'", Origin("KeyError: 'x'", "worker-1", 3)),
        ("0: [rank3]: KeyError: 'x'", Origin("KeyError: 'x'", None, 3)),
        (" 7: KeyError: 'x'", Origin("KeyError: 'x'", None, 7)),
        ("[default1]:KeyError: 'x'", Origin("KeyError: 'x'", None, 1, is_local=True)),
        ("[n1:3] [default1]:KeyError: 'x'", Origin("KeyError: 'x'", "n1", 3)),
        ("[1,5]<stderr>: KeyError: 'x'", Origin("KeyError: 'x'", None, 5)),
        ("2026-11-22T12:00:00.500Z KeyError: 'x'", Origin("KeyError: 'x'", None, None, NOON + 0.5)),
        ("[2026-11-22 12:00:00,250] [n0:3] KeyError: 'x'", Origin("KeyError: 'x'", "n0", 3, NOON + 0.25)),
        (
            "n0:4711:4712 [3] bootstrap.cc:45 NCCL WARN no",
            Origin("bootstrap.cc:45 NCCL WARN no", "n0"),
        ),
        ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] x", Origin("[Rank 0] x", None, 0)),
        ("srun: error: n0: task 1: Killed", Origin("srun: error: n0: task 1: Killed")),
        ("1: slurmstepd-n1: error: execve(): x", Origin("error: execve(): x", "n1", 1)),
        ("train1.py: error: wrong", Origin("train1.py: error: wrong")),
        ("(WorkerDict pid=7, ip=10.0.0.7) KeyError: 'x'", Origin("KeyError: 'x'", "10.0.0.7")),
        ("(TaskRunner pid=7) [rank2]: KeyError: 'x'", Origin("KeyError: 'x'", None, 2)),
        ("2026-13-45 12:00:00 x", Origin("x")),
    ],
)
def test_the_prefixes_of_a_line(line: str, origin: Origin) -> None:
    assert origin_of(line) == origin
