#!/bin/bash
# Run local-20260102-030405-0abc: 1 node, 2 ranks, bundle 00000000000000000000000000000000. Nothing was started.
# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.
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
 "nodes": ["n0"],
 "addresses": ["n0"],
 "ranks": [2],
 "program": {"python": true, "args": ["-u", "train.py", "--n", "3", "a b$c \"d\""], "pythonpath": "trainer/scripts/site", "cwd": "sub dir"},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": 60.0,
 "accelerator": "cpu"
}
END_OF_FILE
mkdir -p "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0
cat >"$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run local-20260102-030405-0abc, attempt 1: environment and agent of node n0.
set -eu
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
export OMP_NUM_THREADS='1'
exec /opt/conda/bin/python3 -E -s -S "$HOME"/.orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py run "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/job.json \
    --node 'n0' --node-rank 0 "$@"
END_OF_FILE
# the head: orch first chooses an address and a free port here, and keeps the port bound
/bin/sh "$HOME"/.orch/runs/local-20260102-030405-0abc/attempt-1/n0/node.sh --rendezvous 'ADDRESS PORT HOST_ID of the head'
