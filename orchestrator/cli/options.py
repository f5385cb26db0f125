"""The options and arguments that several verbs share; used as `@options.inventory`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import completion
from orchestrator.errors import UsageError
from orchestrator.usecases.launch_arguments import WatchedLines

Command = Callable[..., int]
Decorator = Callable[[Command], Command]
PATH = click.Path(path_type=Path)


class WholeNumber(click.IntRange):
    """A number between two limits, which help and errors name in words instead of 0<=x<=10000."""

    def _describe_range(self) -> str:
        if self.max is None:
            return f"{self.min} or more"
        return f"{self.min} to {self.max}"


def inventory_option(help_text: str) -> Decorator:
    return click.option("-i", "--inventory", metavar="FILE", shell_complete=completion.inventories, help=help_text)


def nodes_of_run(help_text: str) -> Decorator:
    """Add --node, a host list of the run, with this help text."""
    return click.option(
        "--node", "--nodes", "nodes", metavar="LIST", shell_complete=completion.nodes_of_run, help=help_text
    )


def tags(help_text: str) -> Decorator:
    """Add --tag, which may be repeated, with this help text."""
    return click.option(
        "--tag", "tags", multiple=True, metavar="WORD", shell_complete=completion.found("tags"), help=help_text
    )


def name_chosen_run(_context: click.Context, _parameter: click.Parameter, run: str) -> str:
    """Name the run that is shown if several have its name and others could be meant."""
    from orchestrator.cli.console import inform
    from orchestrator.records.runs import choice_among

    if choice := choice_among(run.partition(":")[0]):
        inform(choice)
    return run


inventory = inventory_option("Inventory file, or the name of a shipped one (local).")
nodes = click.option(
    "--nodes",
    "--node",
    "nodes",
    metavar="LIST",
    shell_complete=completion.nodes_of_inventory,
    help="Nodes to use, as in n0,n[2-5].",
)
to_host = click.option("--host", "to_host", is_flag=True, help="On the node itself, also if it has a container.")
shape = click.option("-j", "shape", metavar="NxR", help="Number of nodes and ranks on each, as in 2x8; default: all.")
skip = click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.found("checks"),
    help="Leave out this check; may be repeated.",
)
dry_run = click.option("--dry-run", is_flag=True, help="Print every file and command, start nothing.")
query = click.option(
    "--query", is_flag=True, help="With --dry-run: query the nodes or Slurm too, and print what they add to the plan."
)
follow = click.option(
    "--follow/--detach", default=True, help="Watch the run (default), or print its id and return at once."
)
quiet = click.option("--quiet", is_flag=True, help="Print only the ranks' lines, warnings and failures.")
fold = click.option(
    "--fold/--no-fold",
    default=None,
    help="Print equal lines of many ranks once; default: on a terminal, while the run is watched.",
)
all_ranks = click.option("--all-ranks", is_flag=True, help="Print every line of every rank, also their own losses.")
timestamps = click.option("--timestamps", is_flag=True, help="Print the time before each line.")
max_retries = click.option(
    "--max-retries",
    type=WholeNumber(min=0, max=10_000),
    metavar="N",
    help="Restart a run that fails after progress, or that loses a node, up to N times.",
)
elastic = click.option(
    "--elastic",
    metavar="MIN:MAX",
    help="Restart on fewer nodes if one is lost, at least MIN; use at most MAX. Over SSH only.",
)
wait_for_nodes = click.option(
    "--wait-for-nodes",
    metavar="SPAN",
    help="Time for which a restart waits for a lost node that no other replaces (10m).",
)
share = click.option("--share", is_flag=True, help="Start also on cards that another run of yours holds.")
wait_free = click.option(
    "--wait-free",
    is_flag=False,
    flag_value="1d",
    metavar="[SPAN]",
    help="Wait until no other run of yours holds the cards, for 1d if no SPAN is given.",
)
run = click.argument("run", default="latest", metavar="[RUN]", shell_complete=completion.runs, callback=name_chosen_run)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
env = click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable of the ranks for this run, before the inventory's; may be repeated.",
)
settings = click.argument(
    "settings",
    nargs=-1,
    metavar="[KEY=VALUE]... [-- PROGRAM ARGS...]",
    shell_complete=completion.found("settings", "="),
)
# Named like the fields of LaunchArguments.
_LAUNCH_OPTIONS: tuple[Decorator, ...] = (
    settings,
    inventory,
    nodes,
    shape,
    click.option("--config", type=PATH, metavar="FILE", help="Configuration of the shared trainer, YAML or JSON."),
    click.option(
        "--name", metavar="NAME", help="Name of the run, by which commands find it; default: the inventory's."
    ),
    click.option("--note", metavar="TEXT", help="Your own words about the run, shown by status and list."),
    tags("Tag of the run, for list --tag; may be repeated."),
    skip,
    click.option("--exclude-suspects", is_flag=True, help="Leave out nodes on which too many runs have failed."),
    click.option("--no-check", is_flag=True, help="Do not check the nodes before the start."),
    env,
    click.option("--debug", is_flag=True, help="Set the debugging variables of NCCL, ECCL and torch for this run."),
    click.option(
        "--per-node", is_flag=True, help="Start the program once per node: it starts its ranks itself, like torchrun."
    ),
    click.option(
        "--until-head",
        is_flag=True,
        help="With --per-node: the run ends with the program of the first node, and the others are ended.",
    ),
    click.option(
        "--bare", is_flag=True, help="Run a Python program unprepared: CUDA is not replaced, progress is not reported."
    ),
)
# Fields of `slurm:` in the inventory, which these options set for one run.
_SLURM_FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "partition": (("-p",), "Slurm partition."),
    "time": (("-t",), "Time limit, as in 30, 04:00:00 or 1-00."),
    "account": (("-A",), "Account that is charged."),
    "qos": ((), "Quality of service."),
    "job-name": ((), "Name of the job; the run's id by default."),
}


def launch(command: Command) -> Command:
    """Add the arguments of a launch, and as `program` what app.run() found after `--`."""
    command = click.pass_obj(command)
    for option in reversed(_LAUNCH_OPTIONS):
        command = option(command)
    return command


# Heading -> options, in this order, of the commands that have many.
PANELS = {
    "Nodes": ("inventory", "nodes", "shape", "exclude_suspects", "share", "wait_free"),
    "Program": ("config", "env", "debug", "per_node", "until_head", "bare"),
    "Name": ("name", "note", "tags"),
    "Checks before the start": ("skipped", "no_check", "dry_run", "query"),
    "Rungs": ("steps", "limit", "is_through_slurm"),
    "Slurm": ("partition", "time", "account", "qos", "job_name", "slurm_set", "here", "after", "sweep", "at_once"),
    "Restarts": ("max_retries", "elastic", "wait_for_nodes", "orphan_timeout", "isolation_timeout"),
    "Screen": ("follow", "quiet", "fold", "all_ranks", "timestamps"),
}


class PanelCommand(click.Command):
    """Lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        for heading, names in PANELS.items():
            if listed := [records.pop(name) for name in names if name in records]:
                with formatter.section(heading):
                    formatter.write_dl(listed)
        with formatter.section("Options"):
            formatter.write_dl(list(records.values()))


class LaunchCommand(PanelCommand):
    """Explains a program that was typed without `--`: its options are not options of orch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            ctx.ignore_unknown_options = True  # then they are among the settings
            words = self.make_parser(ctx).parse_args(typed)[0].get("settings", ())
            if words[0].startswith("-") or "=" in words[0]:
                raise
            message = f"{words[0]!r} is not a key=value setting, and {exc.option_name} is not an option of orch {ctx.info_name}"
            line = shlex.join(["orch", str(ctx.info_name), "--", *words])
            raise UsageError(message, hint=f"put a program of yours after --: {line}") from exc


def is_live() -> bool:
    """True if the state of a run that is watched can be rewritten in place: all output goes to a terminal that obeys."""
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def watch(command: Command) -> Command:
    """Add --follow/--detach, and the options of a run that is watched, as `watched`; they are refused for one that is not."""

    @wraps(command)
    def check(
        *args: Any, follow: bool, quiet: bool, fold: bool | None, all_ranks: bool, timestamps: bool, **typed: Any
    ) -> int:
        for option, is_given in (("--fold", fold), ("--all-ranks", all_ranks), ("--timestamps", timestamps)):
            if is_given and not follow:
                hint = f"watch the run later with: orch logs -f {option}"
                raise UsageError(f"{option} and --detach exclude each other", hint=hint)
        live = is_live()
        folds = live and not all_ranks if fold is None else fold
        watched = WatchedLines(quiet, folds, all_ranks, is_live=live, timestamps=timestamps)
        return command(*args, follow=follow, watched=watched, **typed)

    return follow(quiet(fold(all_ranks(timestamps(check)))))


def slurm(command: Command) -> Command:
    """Add the options for fields of `slurm:`, and pass those that were given as `slurm`; see LaunchArguments."""

    @wraps(command)
    def collect(*args: Any, slurm_set: tuple[str, ...], **typed: Any) -> int:
        values = ((name, typed.pop(name.replace("-", "_"))) for name in _SLURM_FIELDS)
        given = ((name, value) for name, value in values if value is not None)
        named = ((f"--{name}", f"slurm.{name.replace('-', '_')}={value}") for name, value in given)
        return command(*args, slurm=(*named, *(("--set", word) for word in slurm_set)), **typed)

    collect = click.option(
        "--here", is_flag=True, help="Run in the allocation of the Slurm job that orch runs in; queue no job."
    )(collect)
    collect = click.option(
        "--set", "slurm_set", multiple=True, metavar="slurm.KEY=VALUE", help="Any field of slurm: for this run."
    )(collect)
    for name, (short, help_) in reversed(_SLURM_FIELDS.items()):
        collect = click.option(*short, f"--{name}", help=help_)(collect)
    return collect
