#!/bin/bash
# Run h800-20260102-030405-0abc: 16 nodes, 128 ranks, bundle 00000000000000000000000000000000. Nothing was started.
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
 "nodes": ["h800-00", "h800-01", "h800-02", "h800-03", "h800-04", "h800-05", "h800-06", "h800-07", "h800-08", "h800-09", "h800-10", "h800-11", "h800-12", "h800-13", "h800-14", "h800-15"],
 "addresses": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14", "10.0.0.15", "10.0.0.16"],
 "ranks": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8],
 "program": {"python": true, "args": ["-u", "-m", "trainer", "device=cuda", "steps=20", "model.layers=4"], "pythonpath": "", "cwd": null},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0
}
END_OF_FILE
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-00.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-00' --node-rank 0 "$@"
END_OF_FILE
# this is the head: orch finds an address and a free port here first, and holds the port
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-00/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-01 (ssh train@10.0.0.2); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-01.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-01' --node-rank 1 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-01/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-02 (ssh train@10.0.0.3); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-02
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-02/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-02.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-02' --node-rank 2 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-02/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-03 (ssh train@10.0.0.4); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-03
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-03/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-03.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-03' --node-rank 3 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-03/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-04 (ssh train@10.0.0.5); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-04
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-04/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-04.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-04' --node-rank 4 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-04/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-05 (ssh train@10.0.0.6); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-05
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-05/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-05.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-05' --node-rank 5 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-05/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-06 (ssh train@10.0.0.7); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-06
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-06/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-06.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-06' --node-rank 6 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-06/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-07 (ssh train@10.0.0.8); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-07
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-07/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-07.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-07' --node-rank 7 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-07/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-08 (ssh train@10.0.0.9); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-08
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-08/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-08.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-08' --node-rank 8 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-08/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-09 (ssh train@10.0.0.10); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-09
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-09/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-09.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-09' --node-rank 9 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-09/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-10 (ssh train@10.0.0.11); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-10
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-10/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-10.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-10' --node-rank 10 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-10/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-11 (ssh train@10.0.0.12); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-11
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-11/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-11.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-11' --node-rank 11 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-11/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-12 (ssh train@10.0.0.13); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-12
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-12/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-12.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-12' --node-rank 12 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-12/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-13 (ssh train@10.0.0.14); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-13
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-13/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-13.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-13' --node-rank 13 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-13/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-14 (ssh train@10.0.0.15); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-14
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-14/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-14.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-14' --node-rank 14 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-14/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node h800-15 (ssh train@10.0.0.16); the bundle goes to /data/orch/bundles/00000000000000000000000000000000
# /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json: the same as on h800-00
mkdir -p /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-15
cat >/data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-15/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run h800-20260102-030405-0abc, attempt 1: environment and agent of node h800-15.
set -eu
export NCCL_NET='IB'
export NCCL_IB_HCA='=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7'
export NCCL_IB_TIMEOUT='22'
export NCCL_DEBUG='WARN'
export TORCH_NCCL_ASYNC_ERROR_HANDLING='3'
export OMP_NUM_THREADS='8'
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run /data/orch/runs/h800-20260102-030405-0abc/attempt-1/job.json \
    --node 'h800-15' --node-rank 15 "$@"
END_OF_FILE
/bin/sh /data/orch/runs/h800-20260102-030405-0abc/attempt-1/h800-15/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
