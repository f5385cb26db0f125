"""Slurm's reasons for a pending job, and states that need one, with a sentence on what the user can do; others have none."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

_WAIT = "nothing to do but wait"
_ADMIN = "ask an admin of the cluster"
_SMALLER = "request fewer nodes or a shorter time, or wait until others of the group end"
_AFTER_YOUR_JOBS = "it starts when jobs of yours end"
_NEVER = "the job will not start like this: orch stop it, and submit it with"

# man squeue, JOB REASON CODES, and https://slurm.schedmd.com/resource_limits.html; the first pattern that matches applies.
SENTENCES = {
    "Resources": f"the nodes that it requests are not free yet; {_WAIT}",
    "Priority": f"other jobs of higher priority go first; {_WAIT}, a shorter time limit may let it start earlier (backfill)",
    "None": f"the scheduler has not considered it yet; {_WAIT}",
    "WaitingForScheduling": f"the scheduler has not considered it yet; {_WAIT}",
    "SchedDefer": f"the scheduler has not considered it yet; {_WAIT}",
    "Cleaning": f"nodes are being cleaned up after its last attempt; {_WAIT}",
    "Prolog": f"its nodes are being prepared; {_WAIT}",
    "BeginTime": "it may not begin before a set time: begin: in the options, or the pause after a requeue; scontrol update "
    "JobId=<id> StartTime=now begins it at once",
    "Dependency": "it waits for another job, named as its dependency, to end",
    "DependencyNeverSatisfied": f"the job that it depends on did not end as it had to; {_NEVER} another dependency",
    "JobHeldUser": "it is held by its user; scontrol release <id> releases it",
    "JobHeldAdmin": f"it is held by an admin, or by Slurm after too many tries; {_ADMIN}",
    "launch failed requeued held": f"its nodes failed to start it, and Slurm holds it; scontrol release <id> tries again, or {_ADMIN}",
    "job requeued in held state": "it was requeued and is held; scontrol release <id> releases it",
    "JobHoldMaxRequeue": f"it was requeued too often and is held; {_ADMIN}",
    "BadConstraints": f"no node has what it requests; {_NEVER} nodes, features, memory or devices that sinfo shows",
    "PartitionNodeLimit": f"it requests more nodes than the partition allows or has up; {_NEVER} fewer nodes",
    "PartitionTimeLimit": f"it requests more time than the partition allows; {_NEVER} a shorter slurm.time (sinfo shows the limit)",
    "PartitionDown": f"the partition is down: it takes jobs but starts none; {_ADMIN}, or submit to another slurm.partition",
    "PartitionInactive": f"the partition is inactive; {_ADMIN}, or submit to another slurm.partition",
    "PartitionConfig": f"the partition does not allow what it requests; {_NEVER} another slurm.partition or size",
    "ReqNodeNotAvail*UnavailableNodes:*": "nodes are down, drained or do not answer: {nodes}; "
    "wait until an admin brings them back, or submit with other nodes (sinfo -R says why)",
    "ReqNodeNotAvail*": "a node that it names is in use or reserved, perhaps for maintenance that begins before the job would end; "
    "wait, request a shorter time, or submit with other nodes",
    "NodeDown": f"a node that it needs is down; {_ADMIN} (sinfo -R says why), or submit with other nodes",
    "Nodes required for job are DOWN*": "nodes that it needs are down, drained or reserved for jobs of higher priority; "
    "wait until they are back (sinfo -R says why), or submit with other nodes",
    "FrontEndDown": f"no front end node is up; {_ADMIN}",
    "SystemFailure": f"Slurm itself, its file system or its network failed; {_ADMIN}",
    "JobLaunchFailure": f"its nodes could not start it; {_ADMIN}",
    "Reservation": f"its reservation has not begun; {_WAIT} (scontrol show reservation)",
    "ReservationDeleted": f"its reservation was deleted; {_NEVER} another one",
    "ReservationMaxPreempt": f"it may not interrupt its reservation again; {_WAIT}",
    "Licenses": f"licences that it requests are in use; {_WAIT} (scontrol show licenses)",
    "BurstBuffer*": f"its burst buffer is not ready; {_WAIT}",
    "InvalidAccount": f"its account does not exist or is not yours; {_NEVER} a slurm.account of yours (sacctmgr show associations)",
    "AccountNotAllowed": f"its account may not use the partition; {_NEVER} another slurm.account or slurm.partition",
    "InvalidQOS": f"its QOS does not exist or is not yours; {_NEVER} a QOS of yours (sacctmgr show associations)",
    "QOSNotAllowed": f"its QOS may not be used in the partition; {_NEVER} another QOS or slurm.partition",
    "QOSUsageThreshold": f"usage has fallen below the QOS's threshold; {_ADMIN}",
    "QOSMax*PerUser*": f"you have as much running as its QOS allows one user; {_AFTER_YOUR_JOBS}",
    "QOSMax*PerAccount*": f"its account has as much running as its QOS allows; {_WAIT}",
    "QOSMax*": f"it requests more than its QOS allows one job; {_NEVER} less, or another QOS",
    "QOSMin*": f"it requests less than its QOS demands; {_NEVER} more, or another QOS",
    "QOSGrp*Minutes*": "the QOS's budget is used up; wait until it is renewed, or use another QOS",
    "QOSGrp*": f"all jobs of the QOS together have reached a limit; {_SMALLER}",
    "QOSJobLimit": f"its QOS has as many jobs running as it may; {_WAIT}",
    "QOSResourceLimit": f"its QOS has reached a limit; {_SMALLER}",
    "QOSTimeLimit": f"it requests more time than its QOS allows; {_NEVER} a shorter slurm.time",
    "AssocGrp*Minutes*": "the account's budget is used up; wait until it is renewed, or use another slurm.account",
    "AssocGrp*": f"all jobs of the account together have reached a limit; {_SMALLER}",
    "AssocMaxJobsLimit": f"you have as many jobs running as your account allows; {_AFTER_YOUR_JOBS}",
    "AssocMaxSubmitJobLimit": f"you have as many jobs submitted as your account allows; {_AFTER_YOUR_JOBS}",
    "AssocMax*": f"it requests more than your account allows one job; {_NEVER} less, or another slurm.account",
    "AssociationJobLimit": f"your account has as many jobs running as it may; {_AFTER_YOUR_JOBS}",
    "AssociationResourceLimit": f"your account has reached a limit; {_SMALLER}",
    "AssociationTimeLimit": f"it requests more time than your account allows; {_NEVER} a shorter slurm.time",
    "MaxGRESPerAccount": f"its account uses as many devices as it may; {_SMALLER}",
    "InactiveLimit": f"it was idle for longer than the cluster allows; {_ADMIN}",
    "DeadLine": f"it cannot end before its deadline; {_NEVER} a later one or a shorter time",
}
STATES = {
    "SUSPENDED": "its processes are stopped, so nothing is printed; it continues when an admin or Slurm resumes it "
    "(scontrol resume <id>)",
    "STOPPED": "its processes were sent SIGSTOP, so nothing is printed; scancel --signal=CONT <id> continues them",
}
LOST_HOST = (
    "{lost_host}, the node of the batch script, is lost, and the job keeps the other nodes; they requeue it, or end it, "
    "in about a minute; if they do not, scontrol requeue {job} does it"
)
_NODES = re.compile(r"UnavailableNodes:\s*(\S+?)\)?$")


def explanation(state: str, reason: str, job: str, lost_host: str = "") -> str:
    """The sentence for a lost batch host, or Slurm's state or else reason, with the job's id in its commands; empty if there is none."""
    if lost_host:
        return LOST_HOST.format(lost_host=lost_host, job=job)
    plain = reason.replace("_", " ").strip("() ")  # scontrol writes _ for a space; some versions add brackets
    sentence = STATES.get(state) or next(
        (text for pattern, text in SENTENCES.items() if fnmatchcase(plain, pattern)), ""
    )
    nodes = _NODES.search(plain)
    return sentence.replace("<id>", job).replace("{nodes}", nodes[1] if nodes else "")
