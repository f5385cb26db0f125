"""`--after RUN`: make a Slurm job depend on the jobs of runs that are recorded here."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import UsageError
from orchestrator.inventory.model import Inventory
from orchestrator.inventory.slurm_settings import SlurmSetting, with_slurm_settings
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.runs import find_run, find_sweep, is_sweep
from orchestrator.run import RunRecord, RunState
from orchestrator.usecases.runs.refresh import refresh

KINDS = ("afterok", "afternotok", "afterany", "after")  # man sbatch, --dependency


def with_dependencies(inventory: Inventory, words: Sequence[str]) -> tuple[Inventory, list[str]]:
    """
    Return the inventory with `slurm.dependency` for each `[KIND:]RUN`, and warnings about runs that need no waiting.

    Raises:
        UsageError: a run does not exist, has no Slurm job, or has ended so that the job would never start.
    """
    dependencies, warnings = [], []
    for word in words:
        kind, name = _parse(word)
        runs = _runs(name)
        job = _job(runs, word, inventory.slurm.login)
        records = [record for _, record in runs]
        if job is None:
            raise UsageError(
                f"--after {word}: run {records[0].id} is {records[0].state.value} and has no Slurm job",
                hint=f"orch status {records[0].id} shows why",
            )
        is_refuted = kind == "afterok" and any(
            record.state.ended and record.state is not RunState.DONE for record in records
        )
        if not is_refuted and not all(record.state.final for record in records):
            dependencies.append(f"{kind}:{job}")
        elif _is_satisfied(kind, is_done=all(record.state is RunState.DONE for record in records)):
            warnings.append(f"--after {word}: Slurm job {job} has ended already, so the new job does not wait for it")
        else:
            states = ", ".join(sorted({record.state.value for record in records}))
            raise UsageError(
                f"--after {word}: the run is {states}, so a job that waits for it by {kind} would never start",
                hint=f"--after afterany:{name} starts whatever its result, or omit --after",
            )
    if not dependencies:
        return inventory, warnings
    given = [inventory.slurm.dependency] if inventory.slurm.dependency else []
    setting = SlurmSetting("--after", ("dependency",), ",".join([*given, *dependencies]))
    return with_slurm_settings(inventory, [setting]), warnings


def _parse(word: str) -> tuple[str, str]:
    kind, _, name = word.rpartition(":")
    if kind and kind not in KINDS:
        raise UsageError(
            f"--after {word}: {kind} is not a kind of dependency; allowed: {', '.join(KINDS)}",
            hint="as in --after RUN or --after afterany:RUN",
        )
    return kind or "afterok", name


def _is_satisfied(kind: str, *, is_done: bool) -> bool:
    """Return whether a run that has ended satisfies a dependency of this kind."""
    return {"afterok": is_done, "afternotok": not is_done}.get(kind, True)


def _runs(name: str) -> list[tuple[RunFolder, RunRecord]]:
    """The run, or the runs of the sweep, with their present states."""
    folders = [folder for folder, _ in find_sweep(name)] if is_sweep(name) else [find_run(name)]
    recorded = [(folder, folder.read()) for folder in folders]
    return [
        (folder, record if record.state.final or record.launcher != "slurm" else refresh(folder).record)
        for folder, record in recorded
    ]


def _job(runs: Sequence[tuple[RunFolder, RunRecord]], word: str, login: str | None) -> str | None:
    """The id of the job to wait for, which for a whole sweep is the array's; None if none was submitted."""
    folder, record = runs[0]
    if record.launcher != "slurm":
        raise UsageError(
            f"--after {word}: run {record.id} was started over SSH, and Slurm can only wait for its own jobs",
            hint=f"orch logs -f {record.id} waits until it ends",
        )
    plan = folder.read_plan()
    if plan.allocation is not None:
        raise UsageError(
            f"--after {word}: run {record.id} is a step in your Slurm job {plan.allocation}, and no job",
            hint=f"--set slurm.dependency=afterany:{plan.allocation} waits for that job",
        )
    other_login = plan.slurm["login"]
    if record.slurm_job and other_login != login:
        raise UsageError(
            f"--after {word}: run {record.id} was submitted on {other_login or 'this machine'}, and this one would be on "
            f"{login or 'this machine'}, perhaps another cluster, where its job id means another job",
            hint=f"if it is the same cluster: --set slurm.dependency=afterok:{record.slurm_job}",
        )
    return record.slurm_job.partition("_")[0] if record.slurm_job and len(runs) > 1 else record.slurm_job
