#!/bin/bash
# Run slurm-spares-20260102-030405-0abc: 2 nodes and 1 spare, 16 ranks, bundle 00000000000000000000000000000000. Nothing was started.
# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.
set -eu
umask 077

# --- on this machine, whose /data/orch the nodes share; the bundle goes to /data/orch/bundles/00000000000000000000000000000000
mkdir -p /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1/job.json <<'END_OF_FILE'
{
 "version": 1,
 "run_id": "slurm-spares-20260102-030405-0abc",
 "attempt": 1,
 "run_dir": "/data/orch/runs/slurm-spares-20260102-030405-0abc",
 "bundle_dir": "/data/orch/bundles/00000000000000000000000000000000",
 "nodes": null,
 "addresses": [],
 "ranks": [8, 8],
 "program": {"python": true, "args": ["-u", "train.py", "--n", "3", "a b$c \"d\""], "pythonpath": "trainer/scripts/site", "cwd": "sub dir"},
 "grace_s": 10.0,
 "orphan_timeout_s": null,
 "isolation_timeout_s": null,
 "accelerator": "cuda",
 "slurm": {"requeue": "auto", "max_retries": 100, "warn_s": 90, "spares": []}
}
END_OF_FILE
mkdir -p /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run slurm-spares-20260102-030405-0abc: environment and agent of each node; srun runs this script once per node.
set -eu
# A probe that Slurm's warning or a preemption ends would count as a node without an answer; SIGKILL follows if the job is over.
[ "${1-}" != probe ] || trap '' USR2 TERM
[ "${1-}" != watch ] || trap '' USR2 # Slurm's warning goes to every step
# python, torchrun and the like are those beside the inventory's python
export PATH=/opt/conda/bin"${PATH:+:$PATH}"
ORCH_ADDRESS=$SLURMD_NODENAME
case $SLURMD_NODENAME in
'slurm-spares-01')
    ORCH_ADDRESS='10.0.0.2'
    ;;
esac
case $1 in
probe | check | variables)
    verb=$1
    shift
    exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/portable/job_check/__main__.py "$verb" "${0%/*}/job.json" "$@"
    ;;
esac
# Not before the check has written it: the node may share its folder over NFS, which remembers that a file was missing.
if [ -e "${0%/*}/variables.sh" ]; then
    # shellcheck source=/dev/null
    . "${0%/*}/variables.sh"
fi
case $1 in
rendezvous)
    set -- rendezvous --address "$ORCH_ADDRESS" --job "${0%/*}/job.json"
    ;;
attempt)
    set -- attempt "${0%/*}/job.json"
    ;;
nodes)
    set -- nodes "${0%/*}/job.json"
    ;;
next)
    shift
    set -- next "${0%/*}/job.json" "$@"
    ;;
forget)
    set -- forget "${0%/*}/job.json" --node "$SLURMD_NODENAME"
    ;;
watch)
    set -- watch "${0%/*}/job.json" "$2"
    ;;
run)
    set -- run "${0%/*}/job.json" --node "$SLURMD_NODENAME" --node-rank "$SLURM_NODEID" --rendezvous "${2:--}"
    ;;
esac
exec /opt/conda/bin/python3 -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py "$@"
END_OF_FILE
mkdir -p /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1/submit.sbatch <<'END_OF_FILE'
#!/bin/bash
#SBATCH --job-name=slurm-spares-20260102-030405-0abc
#SBATCH --nodes=3
#SBATCH --no-kill
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --cpus-per-task=8
# Run slurm-spares-20260102-030405-0abc. Slurm runs this script on the head, the first node of the allocation, and from the start after a requeue.
set -euo pipefail

run_dir=/data/orch/runs/slurm-spares-20260102-030405-0abc

# Each attempt has its own folder; the first attempt's folder holds the scripts.
folder=$run_dir/attempt-1
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
    folder=$(/bin/sh "$folder/node.sh" attempt)
elif compgen -G "$folder/*/agent.json" >/dev/null; then
    # Somebody has submitted this script again: the ranks would write over the logs and the results of the run.
    echo "orch: error: run ${run_dir##*/} has started before, and is not started a second time in its folder; next: orch rerun ${run_dir##*/}" >&2
    exit 2
fi

# On SIGTERM, Slurm ends the job: `next` has until SIGKILL to decide whether the job is requeued.
ended=0
trap 'ended=1' TERM

# With --no-kill, the job outlives this node, too: then the other nodes miss the heartbeat of this one, and requeue the job.
: >"$run_dir/heartbeat"
trap 'rm -f "$run_dir/heartbeat"' EXIT
srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --no-kill --overlap --mem=0 --gres=none \
    --cpu-bind=none --kill-on-bad-exit=0 /bin/sh "$folder/node.sh" watch "$SLURMD_NODENAME" </dev/null >/dev/null 2>&1 &

# Each node of the allocation writes its facts, and `check` judges them: it exits with 3 if the job must not start.
begun=$(date +%s)
srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --no-kill --cpu-bind=none --kill-on-bad-exit=0 --wait=600 --time=15 \
    /bin/sh "$folder/node.sh" probe </dev/null &
wait "$!" || true # `check` names the nodes that did not answer
if [ "$ended" = 1 ]; then
    exit 143
fi
code=0
/bin/sh "$folder/node.sh" check "$begun" || code=$?
if [ "$ended" = 1 ]; then
    exit 143
fi
if [ "$code" = 3 ]; then
    exit 3
fi

while :; do
    head=$SLURMD_NODENAME
    reserve=(/bin/sh "$folder/node.sh" rendezvous)
    # The nodes of this attempt, the head first. Failed nodes are left out as long as spares remain.
    nodes=$(/bin/sh "$folder/node.sh" nodes)
    if [ "${nodes%%,*}" != "$head" ]; then
        head=${nodes%%,*}
        reserve=(srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap --mem=0 --gres=none --cpu-bind=none --unbuffered "${reserve[@]}")
    fi
    for try in 1 2 3; do
        # The head chooses an address and a free port just before the start, and keeps the port bound while the ranks run.
        # It waits for a line, because bash removes the descriptors of a coprocess at once when it has ended.
        coproc holder { read -r && exec "${reserve[@]}"; }
        holder_pid=$!
        exec 3<&"${holder[0]}" # bash does not pass the descriptors of a coprocess to background commands
        echo >&"${holder[1]}"

        # One srun with one task per node: the agent, which starts the node's ranks. Environment values are in the node script, mode 0600.
        # The rendezvous arrives on standard input, which srun passes to all tasks.
        # In the background, because bash handles signals at once only in `wait`.
        status=0
        srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist="$nodes" --no-kill --cpu-bind=none --kill-on-bad-exit=1 --unbuffered \
            /bin/sh "$folder/node.sh" run <&3 &
        wait "$!" || status=$?
        kill "$holder_pid" 2>/dev/null || true
        wait "$holder_pid" || true
        exec 3<&-

        # Retry on another port only if this port was in use.
        taken=$folder/$head/port-taken
        if [ "$status" = 0 ] || [ "$try" = 3 ] || [ "$ended" = 1 ] || ! [ -e "$taken" ]; then
            break
        fi
        rm -f "$taken"
    done

    # `next` prints the folder of the next attempt in this allocation, or nothing to end the job with the exit code of `next`.
    code=0
    next=$(/bin/sh "$folder/node.sh" next "$status" "$ended") || code=$?
    if [ -z "$next" ] || [ "$ended" = 1 ]; then
        # No attempt follows a failure: free what agents have left for one in the memory of the nodes. In a job that Slurm ends, no step starts.
        kept=("$run_dir"/attempt-*/*/memory-kept)
        if [ "$code" != 0 ] && [ "$ended" = 0 ] && [ -e "${kept[0]}" ]; then
            srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --no-kill --cpu-bind=none --kill-on-bad-exit=0 --wait=30 --time=1 \
                /bin/sh "$folder/node.sh" forget </dev/null &
            wait "$!" || true
        fi
        exit "$code"
    fi
    folder=$next
    /bin/sh "$folder/node.sh" variables || true
done
END_OF_FILE
mkdir -p /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1/check.json <<'END_OF_FILE'
{
 "workdir": "/data/orch",
 "out": null,
 "code": null,
 "editable": null,
 "skipped": [],
 "python_may_differ": false,
 "usual": {"ranks": 8, "accelerator": "cuda", "network": "auto", "env": [], "private": []},
 "nodes": {"n0": {}, "slurm-spares-01": {"address": "10.0.0.2"}}
}
END_OF_FILE
sbatch --parsable --job-name=slurm-spares-20260102-030405-0abc --chdir /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1 /data/orch/runs/slurm-spares-20260102-030405-0abc/attempt-1/submit.sbatch
