#!/bin/bash
# Run local-20260102-030405-0abc: 16 nodes, 32 ranks, bundle 00000000000000000000000000000000. Nothing was started.
set -eu
umask 077

# --- node n0 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json <<'END_OF_FILE'
{
 "version": 1,
 "run_id": "local-20260102-030405-0abc",
 "attempt": 1,
 "run_dir": "~/.orch/runs/local-20260102-030405-0abc",
 "bundle_dir": "~/.orch/bundles/00000000000000000000000000000000",
 "nodes": ["n0", "local-01", "local-02", "local-03", "local-04", "local-05", "local-06", "local-07", "local-08", "local-09", "local-10", "local-11", "local-12", "local-13", "local-14", "local-15"],
 "addresses": ["n0", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14", "10.0.0.15", "10.0.0.16"],
 "ranks": [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
 "program": {"python": true, "args": ["-u", "-m", "trainer", "device=cpu", "steps=20", "model.layers=4"], "pythonpath": "", "cwd": null},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0
}
END_OF_FILE
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node n0.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'n0' --node-rank 0 "$@"
END_OF_FILE
# this is the head: orch finds an address and a free port here first, and holds the port
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-01 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-01
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-01/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-01.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-01' --node-rank 1 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-01/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-02 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-02
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-02/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-02.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-02' --node-rank 2 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-02/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-03 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-03
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-03/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-03.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-03' --node-rank 3 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-03/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-04 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-04
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-04/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-04.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-04' --node-rank 4 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-04/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-05 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-05
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-05/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-05.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-05' --node-rank 5 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-05/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-06 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-06
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-06/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-06.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-06' --node-rank 6 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-06/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-07 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-07
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-07/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-07.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-07' --node-rank 7 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-07/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-08 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-08
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-08/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-08.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-08' --node-rank 8 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-08/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-09 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-09
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-09/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-09.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-09' --node-rank 9 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-09/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-10 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-10
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-10/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-10.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-10' --node-rank 10 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-10/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-11 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-11
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-11/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-11.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-11' --node-rank 11 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-11/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-12 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-12
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-12/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-12.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-12' --node-rank 12 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-12/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-13 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-13
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-13/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-13.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-13' --node-rank 13 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-13/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-14 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-14
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-14/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-14.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-14' --node-rank 14 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-14/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'

# --- node local-15 (this machine); the bundle goes to ~/.orch/bundles/00000000000000000000000000000000
# ~/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json: the same as on n0
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-15
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-15/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node local-15.
set -eu
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'local-15' --node-rank 15 "$@"
END_OF_FILE
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/local-15/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
