#!/bin/bash
# Run t20-20260102-030405-0abc: 2 nodes, 16 ranks, bundle 00000000000000000000000000000000. Nothing was started.
# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.
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
 "nodes": ["t20-0", "t20-01"],
 "addresses": ["10.0.1.1", "10.0.0.2"],
 "ranks": [8, 8],
 "program": {"python": true, "args": ["-u", "train.py", "--n", "3", "a b$c \"d\""], "pythonpath": "trainer/scripts/site", "cwd": "sub dir"},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0,
 "accelerator": "gcu"
}
END_OF_FILE
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-0.
set -eu
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-0' --node-rank 0 "$@"
END_OF_FILE
# the head: orch first chooses an address and a free port here, and keeps the port bound
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-0/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node t20-01 (ssh train@10.0.0.2); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json: the same as on t20-0
mkdir -p /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01
cat >/data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run t20-20260102-030405-0abc, attempt 1: environment and agent of node t20-01.
set -eu
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
export ECCL_RUNTIME_3_0_ENABLE='true'
export ECCL_ASYNC_DISABLE='false'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/t20-20260102-030405-0abc/attempt-1/job.json \
    --node 't20-01' --node-rank 1 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/t20-20260102-030405-0abc/attempt-1/t20-01/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
