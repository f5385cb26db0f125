#!/bin/bash
# Run t20-20260102-030405-0abc: 16 nodes, 128 ranks, bundle 00000000000000000000000000000000. Nothing was started.
set -eu
umask 077

# --- node t20-0 (ssh train@10.0.1.1); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json <<'END_OF_FILE'
{
 "version": 1,
 "run_id": "t20-20260102-030405-0abc",
 "attempt": 1,
 "run_dir": "/data/orch/runs/t20-20260102-030405-0abc",
 "bundle_dir": "/data/orch/bundles/00000000000000000000000000000000",
 "nodes": ["t20-0", "t20-01", "t20-02", "t20-03", "t20-04", "t20-05", "t20-06", "t20-07", "t20-08", "t20-09", "t20-10", "t20-11", "t20-12", "t20-13", "t20-14", "t20-15"],
 "addresses": ["10.0.1.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14", "10.0.0.15", "10.0.0.16"],
 "ranks": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8],
 "program": {"python": true, "args": ["-u", "-m", "trainer", "device=gcu", "steps=20", "model.layers=4"], "pythonpath": "", "cwd": null},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0
}
END_OF_FILE
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-0.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-0' --node-rank 0 "$@"
END_OF_FILE
# this is the head: orch finds an address and a free port here first, and holds the port
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-01 (ssh train@10.0.0.2); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-01.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-01' --node-rank 1 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-02 (ssh train@10.0.0.3); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-02
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-02/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-02.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-02' --node-rank 2 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-02/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-03 (ssh train@10.0.0.4); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-03
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-03/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-03.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-03' --node-rank 3 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-03/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-04 (ssh train@10.0.0.5); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-04
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-04/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-04.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-04' --node-rank 4 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-04/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-05 (ssh train@10.0.0.6); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-05
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-05/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-05.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-05' --node-rank 5 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-05/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-06 (ssh train@10.0.0.7); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-06
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-06/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-06.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-06' --node-rank 6 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-06/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-07 (ssh train@10.0.0.8); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-07
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-07/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-07.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-07' --node-rank 7 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-07/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-08 (ssh train@10.0.0.9); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-08
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-08/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-08.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-08' --node-rank 8 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-08/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-09 (ssh train@10.0.0.10); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-09
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-09/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-09.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-09' --node-rank 9 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-09/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-10 (ssh train@10.0.0.11); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-10
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-10/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-10.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-10' --node-rank 10 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-10/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-11 (ssh train@10.0.0.12); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-11
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-11/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-11.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-11' --node-rank 11 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-11/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-12 (ssh train@10.0.0.13); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-12
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-12/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-12.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-12' --node-rank 12 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-12/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-13 (ssh train@10.0.0.14); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-13
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-13/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-13.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-13' --node-rank 13 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-13/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-14 (ssh train@10.0.0.15); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-14
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-14/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-14.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-14' --node-rank 14 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-14/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-15 (ssh train@10.0.0.16); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-15
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-15/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-15.
set -eu
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-15' --node-rank 15 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-15/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
