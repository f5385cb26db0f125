#!/bin/bash
# Run slurm-pyxis-20260102-030405-0abc: 2 nodes, 16 ranks, bundle 00000000000000000000000000000000. Nothing was started.
# The bundle, which has the agent and the code, is not in this text: a launch without --dry-run sends it before the commands.
set -eu
umask 077

# --- on this machine, whose /data/orch the nodes share; the bundle goes to /data/orch/bundles/00000000000000000000000000000000
mkdir -p /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/job.json <<'END_OF_FILE'
{
 "version": 1,
 "run_id": "slurm-pyxis-20260102-030405-0abc",
 "attempt": 1,
 "run_dir": "/data/orch/runs/slurm-pyxis-20260102-030405-0abc",
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
mkdir -p /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/setup.sh <<'END_OF_FILE'
#!/bin/bash
# Run slurm-pyxis-20260102-030405-0abc: run the inventory's setup lines, then the command in the arguments. In bash, where `module` and `conda` are
# functions. The lines print to standard error, because the batch script of a Slurm job may read standard output.
orch_failed() {
    umask 077
    folder=${orch_command[1]%/*}/$SLURMD_NODENAME # beside node.sh
    mkdir -p "$folder"
    echo "setup: this line ended with $1 on $SLURMD_NODENAME: $orch_line" | tee "$folder/agent.log" >&2
    exit 4
}

orch_command=("$@")
set -- # else a sourced script would see these arguments
trap 'orch_failed "$?"' EXIT # a line may call exit, or source a file that does
trap 'exit 143' TERM         # it took too long
# shellcheck disable=SC2016  # they are expanded by eval
for orch_line in \
    'module load cuda/12.4 && source "$HOME/env/bin/activate"' \
    'echo "it is $SLURMD_NODENAME'"'"'s" # up'; do
    # /bin/sh does not pass functions on: define those of the user's shell again
    case $orch_line in
    "module "* | "ml "*)
        if [ -z "$(type -t module)" ] && [ -r "${MODULESHOME:-}/init/bash" ]; then
            # shellcheck source=/dev/null
            . "$MODULESHOME/init/bash"
        fi
        ;;
    "conda "*) [ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)" ;;
    esac </dev/null >&2
    eval "$orch_line" </dev/null >&2 || exit
done
trap - EXIT TERM
exec "${orch_command[@]}"
END_OF_FILE
mkdir -p /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/node.sh <<'END_OF_FILE'
#!/bin/sh
# Run slurm-pyxis-20260102-030405-0abc: environment and agent of each node; srun runs this script once per node.
set -eu
if [ -z "${ORCH_IS_SET_UP:-}" ]; then
    ORCH_IS_SET_UP=1 exec /bin/bash /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/setup.sh /bin/sh "$0" "$@"
fi
unset ORCH_IS_SET_UP
python=/opt/conda/bin/python3
case $1 in
run) # in the image
    python=/usr/local/bin/python3
    # python, torchrun and the like are those beside the inventory's python
    export PATH=/usr/local/bin"${PATH:+:$PATH}"
    ;;
*)
    # python, torchrun and the like are those beside the inventory's python
    export PATH=/opt/conda/bin"${PATH:+:$PATH}"
    ;;
esac
export LD_LIBRARY_PATH='/opt/a b/lib'
ORCH_ADDRESS=$SLURMD_NODENAME
case $SLURMD_NODENAME in
'slurm-pyxis-01')
    ORCH_ADDRESS='10.0.0.2'
    ;;
esac
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
run)
    set -- run "${0%/*}/job.json" --node "$SLURMD_NODENAME" --node-rank "$SLURM_NODEID" --rendezvous "${2:--}"
    ;;
esac
exec "$python" -E -s -S /data/orch/bundles/00000000000000000000000000000000/orchestrator/node/__main__.py "$@"
END_OF_FILE
mkdir -p /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1
cat >/data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/submit.sbatch <<'END_OF_FILE'
#!/bin/bash
#SBATCH --job-name=slurm-pyxis-20260102-030405-0abc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --partition=gpu,long
#SBATCH --account=proj
#SBATCH --qos=high
#SBATCH --time=1-00:00:00
#SBATCH --reservation=week
#SBATCH '--constraint=h800&ib'
#SBATCH --gres=gpu:h800:8
#SBATCH --mem=0
#SBATCH --exclusive=user
#SBATCH --exclude=n[5,7]
#SBATCH --dependency=afterok:12
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=train@example.org
#SBATCH '--comment=it'"'"'s "a" $comment'
#SBATCH --cpus-per-task=96
#SBATCH --nice=5
# Run slurm-pyxis-20260102-030405-0abc. Slurm runs this script on the head, the first node of the allocation, and from the start after a requeue.
set -euo pipefail

run_dir=/data/orch/runs/slurm-pyxis-20260102-030405-0abc

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

while :; do
    head=$SLURMD_NODENAME
    reserve=(/bin/sh "$folder/node.sh" rendezvous)
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
        srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 --unbuffered \
            '--container-image=nvcr.io#nvidia/pytorch:24.01-py3' \
            '--container-mounts=/data/orch:/data/orch,/scratch:/scratch,/data/sets:/sets:ro' \
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
            srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=30 --time=1 \
                /bin/sh "$folder/node.sh" forget </dev/null &
            wait "$!" || true
        fi
        exit "$code"
    fi
    folder=$next
done
END_OF_FILE
sbatch --parsable --job-name=slurm-pyxis-20260102-030405-0abc --chdir /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1 /data/orch/runs/slurm-pyxis-20260102-030405-0abc/attempt-1/submit.sbatch
