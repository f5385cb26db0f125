#!/bin/bash
# Run h800-20260102-030405-0abc: 2 nodes, 16 ranks, bundle 00000000000000000000000000000000. Nothing was started.
# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.
set -eu
umask 077

# --- node h800-00 (ssh train@10.0.0.1); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json <<'END_OF_FILE'
{
 "version": 1,
 "run_id": "h800-20260102-030405-0abc",
 "attempt": 1,
 "run_dir": "/data/orch/runs/h800-20260102-030405-0abc",
 "bundle_dir": "/data/orch/bundles/00000000000000000000000000000000",
 "nodes": ["h800-00", "h800-01"],
 "addresses": ["10.0.0.1", "10.0.0.2"],
 "ranks": [8, 8],
 "program": {"python": true, "args": ["-u", "train.py", "--n", "3", "a b$c \"d\""], "pythonpath": "trainer/scripts/site", "cwd": "sub dir"},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0,
 "accelerator": "cuda",
 "network": "infiniband"
}
END_OF_FILE
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-00.
set -eu
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
export NCCL_NET='IB'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-00' --node-rank 0 "$@"
END_OF_FILE
# the head: orch first chooses an address and a free port here, and keeps the port bound
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-01 (ssh train@10.0.0.2); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-01.
set -eu
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
export NCCL_NET='IB'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-01' --node-rank 1 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
