"""The verdicts of orch itself, which it has written into the record of a run. Its verdicts win over the texts of programs."""

from __future__ import annotations

from functools import partial

from orchestrator.diagnosis.signature import Role, Signature, signature

_verdict = partial(signature, Role.VERDICT)
_root = partial(signature, Role.ROOT)
_symptom = partial(signature, Role.SYMPTOM)
_ORCH = "orch"
_KILLED_FOR_MEMORY = ("oom-killer", "cgroup-oom", "oom-kills", "run-oom-kills", "slurm-oom", "slurm-oom-task")
_LAST_MESSAGES = "journalctl --since -1h; last -x | head; dmesg -T | tail: on {node}, who or what ended it"
_WENT = "ssh {node} 'uptime; last -x | head': shows if it has rebooted; journalctl -b -1 -e: its last messages"
_ATTACHABLE = "orch submit, orch ssh-launch: --max-retries N restarts such a run, with a spare node (tags: [spare]) or when the node is back"

OF_ORCH: tuple[Signature, ...] = (
    _verdict("node-lost", r"(?P<node>\S+) is gone: it has not answered for (?P<span>\d+ s), and (?P<peers>.+?) cannot reach it either", "node", "{node} was lost: it had not answered for {span}, and {peers} could not reach it either", _WENT, _ATTACHABLE,
        literal=" is gone: it has not answered for", sample="h2 is gone: it has not answered for 7 s, and h0, h1 cannot reach it either", near="the node is gone", source=_ORCH, retry="elsewhere"),
    _verdict("node-refuses", r"(?P<node>\S+) has refused connections for (?P<span>\d+ s), longer than ssh\.refused_timeout_s", "node", "{node} was lost: its sshd had refused connections for {span}", "systemctl status sshd: on {node}", _WENT,
        literal=" has refused connections for", sample="n1 has refused connections for 60 s, longer than ssh.refused_timeout_s: n1: connection refused", near="n1 has refused the login", source=_ORCH, retry="elsewhere"),
    _verdict("node-cut-off", r"(?P<node>[\w.-]+): cut off from the supervisor and from all other nodes for (?P<span>\S+ s)", "network", "{node} was cut off from all other nodes and from orch for {span}, so it ended its ranks", "ip -s link; ping: on {node}", _ATTACHABLE,
        literal="cut off from the supervisor and from all other nodes", sample="n1: cut off from the supervisor and from all other nodes for 60 s, nothing is left running", near="n1 was cut off", source=_ORCH, retry="elsewhere"),
    _verdict("agent-killed", r"the agent of (?P<node>\S+) (?:died without a last event|was killed by SIG\w+)|(?P<node_2>[\w.-]+): (?:the agent \(pid \d+\) was ended by SIG\w+|the guard of the agent was killed)", "node", "the agent of orch on {node} was killed, which ended the ranks there; orch itself does not do that", _LAST_MESSAGES, "end no processes by name on the nodes: a search for python finds the agent, too",
        literal=("died without a last event", "the agent of", "the agent (pid", "the guard of the agent was killed"), follows=(*_KILLED_FOR_MEMORY, "node-lost"), sample=("the agent of n0 died without a last event", "the agent of n0 was killed by SIGKILL", "n0: the agent (pid 4711) was ended by SIGKILL; nothing is left running", "n0: the guard of the agent was killed, nothing is left running"), near="the agent of n0 started as pid 4711", source=_ORCH),
    _verdict("stopped-from-outside", r"(?P<node>\S+) was stopped by a signal, not by `orch stop` on this machine", "preemption", "the agent on {node} got SIGTERM, and not from orch on this machine: the host was shut down, or a user or a clean-up script ended it", _LAST_MESSAGES, retry="retry",
        literal="was stopped by a signal, not by", sample="n0 was stopped by a signal, not by `orch stop` on this machine", near="n0 was stopped by orch stop", source=_ORCH),
    _verdict("no-supervisor", r"(?P<node>[\w.-]+): no supervisor for (?P<span>\S+ s) \(--orphan-timeout\)", "node", "{node} ended its ranks, as nothing had supervised the run for {span} (--orphan-timeout)", "a longer --orphan-timeout, or none", "orch attach RUN: supervises a run again whose orch has ended", retry="retry",
        literal="(--orphan-timeout)", sample="n0: no supervisor for 60 s (--orphan-timeout), nothing is left running", near="--orphan-timeout 60s", source=_ORCH),
    _verdict("not-started", r"(?:rank \d+|the program) cannot be started on (?P<node>[\w.-]+): (?P<reason>[^\n]+)", "config", "the program cannot be started on {node}: {reason}", "change that on the machine that you launch from, and launch again",
        literal=" cannot be started on ", sample="rank 0 cannot be started on n0: ./run.sh ends its lines as Windows does: sed -i 's/\\r$//' ./run.sh", near="attempt 2 could not be started", source=_ORCH),
    _verdict("check-refused", r"the check of the nodes failed, so nothing was started\s+FAIL +(?P<finding>[^\n]+)", "config", "the check of the nodes refused the start: {finding}", "orch check: looks again, after that is corrected", "--skip NAME leaves out one check",
        literal="the check of the nodes failed", lines=2, sample="the check of the nodes failed, so nothing was started\n  FAIL  port: n1: port 29500 is in use", near="the check of the nodes failed\nfor another reason", source=_ORCH),
    _verdict("separate-trainings", r"(?P<count>\d+) trainings, not one: (?P<how>[^\n;]+); (?P<remedy>[^\n]+)", "config", "{count} trainings, not one: {how}", "docs/programs.md: One training; orch logs RUN: shows if the script fell back to a training without a group",
        literal=" trainings, not one: ", sample="2 trainings, not one: each of 2 ranks takes optimizer steps in no process group; join the ranks with torch.distributed.init_process_group()", near="one training, not two", source=_ORCH),
    _verdict("own-launcher", r"each of the (?P<count>\d+) ranks has started (?P<what>[^\n]+?)(?: itself|, which starts ranks itself); start the program once per node", "config", "each of the {count} ranks has started {what}, so that each trains on its own", "the same command with --per-node: the program then starts once per node",
        literal="ranks has started ", sample=("each of the 2 ranks has started the ranks 0, 1 itself; start the program once per node instead: `orch ssh-launch`", "each of the 2 ranks has started torchrun, which starts ranks itself; start the program once per node instead: `orch ssh-launch`"), near="each of the 2 ranks has started", source=_ORCH),
    _root("own-group", r"this script has made its own (?P<backend>\w+) group(?: at (?P<place>\S+?))?, which holds the port", "config", "on a T20 this script makes a {backend} group of torch.distributed before MMEngine makes that of the cards, and both need one port", "delete the call of torch.distributed.init_process_group that the line names: MMEngine makes the group itself under orch",
        literal="this script has made its own ", sample="error: this script has made its own gloo group at train.py:9, which holds the port of the rendezvous and carries no xla tensors", near="this script has made its own group", source=_ORCH),
    _symptom("hidden-failure", r"rank (?P<rank>\d+) failed \((?P<error>[^\n]+)\), but the program ended with 0", "code", "rank {rank}, which the program has started by hand, failed: {error}", "read the output of rank {rank}, which the script may redirect to a file", "in the script, wait for each pid: wait $pid || exit 1",
        literal=", but the program ended with 0", sample="rank 3 failed (exit code 2), but the program ended with 0: a shell's `wait` without a pid hides failures", near="rank 3 failed, and the program ended with 2", source=_ORCH),
    _symptom("no-retry-code", r"(?:rank (?P<rank>\d+)|the program) on (?P<node>\S+) exited 93\b", "code", "the program exited with 93, which declares that another attempt cannot help", "look at the last lines of that rank: orch logs RUN --node {node}", "a program that means something else by 93 needs another exit code", retry="never",
        literal="exited 93", sample="rank 0 on n0 exited 93", near="rank 0 on n0 exited 1", source=_ORCH),
    _symptom("restart-requested", r"(?:rank (?P<rank>\d+)|the program) on (?P<node>\S+) exited 99\b|the ranks requested another attempt, and Slurm did not start it", "code", "the program exited with 99, by which it requests another attempt, and none was allowed or possible", "--max-retries N at the launch, or restart: in the inventory", "a program that means something else by 99 needs another exit code", retry="retry",
        literal=("exited 99", "the ranks requested another attempt"), sample=("rank 0 on n0 exited 99", "the ranks requested another attempt, and Slurm did not start it"), near="rank 0 on n0 exited 1", source=_ORCH),
)  # fmt: skip
