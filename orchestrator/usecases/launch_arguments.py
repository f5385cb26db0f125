"""The arguments of a launch, which a command passes on to the process that launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.run import ByLauncher, LauncherName

if TYPE_CHECKING:
    from orchestrator.inventory.slurm_settings import SlurmSetting


@dataclass(frozen=True, slots=True)
class LaunchArguments(ByLauncher):
    """The arguments of a launch as typed. `settings` are the KEY=VALUE words, `program` the words after `--`."""

    launcher: LauncherName
    inventory: str | None
    nodes: str | None
    shape: str | None
    config: Path | None
    settings: tuple[str, ...]
    program: tuple[str, ...] | None
    orphan_timeout: str | None = None
    isolation_timeout: str | None = None
    wait_for_nodes: str | None = None
    bare: bool = False
    per_node: bool = False
    until_head: bool = False
    name: str | None = None
    note: str | None = None
    tags: tuple[str, ...] = ()
    debug: bool = False
    max_retries: int | None = None
    elastic: str | None = None
    """MIN:MAX, the numbers of nodes with which the run may continue."""
    slurm: tuple[tuple[str, str], ...] = ()
    """Options that set a field of `slurm:`, each with its name and slurm.FIELD=VALUE."""
    after: tuple[str, ...] = ()
    """Runs to wait for, each as [KIND:]RUN."""
    here: bool = False
    """Run in the allocation of the Slurm job in which orch runs."""
    module: str = "trainer"
    """The module of the shared trainer that runs without `program`."""
    no_check: bool = False
    """Start without the check of the nodes."""
    skipped: tuple[str, ...] = ()
    """The names of checks that are left out before a start."""
    share: bool = False
    """Start also on cards that other runs of this user hold."""
    wait_free: str | None = None
    """The longest wait for cards that other runs of this user hold, as typed."""
    exclude_suspects: bool = False
    """Leave out nodes on which more runs have failed than chance explains."""
    rerun_of: str | None = None
    """The id of the run that this launch repeats."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that the ranks get instead of those of the inventory; None: they do not get it."""
    env: tuple[str, ...] = ()
    """NAME=VALUE of --env, each; they win over `variables`."""
    is_trial: bool = False
    """A run of `orch ladder` or `--prove`: see Request."""

    @property
    def all_variables(self) -> dict[str, str | None]:
        """`variables` and those of --env; UsageError if one of these is wrong."""
        if not self.env:
            return dict(self.variables)
        from orchestrator.inventory.variables import parse_variables  # slow, and most launches have none

        return {**self.variables, **parse_variables(self.env)}

    @property
    def wait_free_s(self) -> float | None:
        """`wait_free` in seconds; UsageError if it is no time span, or --share is given too."""
        if self.wait_free is None:
            return None
        from orchestrator.usecases.durations import seconds  # few launches wait

        if self.share:
            hint = "--share starts at once on the same cards: omit one"
            raise UsageError("--wait-free and --share exclude each other", hint=hint)
        return seconds("--wait-free", self.wait_free)

    @property
    def slurm_settings(self) -> list[SlurmSetting]:
        """The fields of `slurm:` for this run; UsageError if one is not of the form slurm.FIELD=VALUE."""
        from orchestrator.inventory.slurm_settings import parse_setting  # slow, and not needed over SSH

        return [parse_setting(option, word) for option, word in self.slurm]


@dataclass(frozen=True, slots=True)
class WatchedLines:
    """The selection of the lines of a run that is watched, and how they are shown."""

    quiet: bool = False
    """Without events."""
    fold: bool = False
    """Equal lines of many ranks are printed once."""
    all_ranks: bool = False
    """With the losses of single ranks, of which rank 0 prints the mean."""
    is_live: bool = False
    """The present state of the run is shown on a terminal."""
    timestamps: bool = False
    """Each line begins with its time."""
