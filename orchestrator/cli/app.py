"""The command line: turns argv into one call in commands/, and its result or error into an exit code. The only user of click."""

from __future__ import annotations

import difflib
import io
import os
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.errors import BUG, CLOSED_PIPE, CTRL_C, OrchError, UsageError, machine_error
from orchestrator.gc_tuning import infrequent_gc
from orchestrator.version import __version__

if TYPE_CHECKING:
    from orchestrator.actions.launch_arguments import LaunchArguments
    from orchestrator.run import LauncherName

# Each command imports its own modules: importing the modules of all commands takes longer than most commands run.


def _run_names(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.actions.completion import run_names

    return [name for name in run_names() if name.startswith(beginning)]


def _inventories(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.actions.completion import inventories

    return [name for name in inventories(beginning) if name.startswith(beginning)]


def _nodes_of_run(context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.actions.completion import nodes_of_run

    typed = next(iter(context.args), "")  # click does not assign words before an option that has no value yet
    return _after_comma(nodes_of_run(typed.partition(":")[0] or "latest"), beginning)


def _nodes_of_inventory(context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.actions.completion import nodes_of_inventory

    return _after_comma(nodes_of_inventory(context.params.get("inventory")), beginning)


def _after_comma(names: list[str], beginning: str) -> list[str]:
    """Complete the last name of a host list."""
    listed, comma, last = beginning.rpartition(",")
    return [f"{listed}{comma}{name}" for name in names if name.startswith(last)]


_Command = Callable[..., int]
_PATH = click.Path(path_type=Path)


def _shipped_inventories(_context: click.Context, _parameter: click.Parameter, beginning: str) -> list[str]:
    from orchestrator.actions.inventory import shipped_names

    return [name for name in shipped_names() if name.startswith(beginning)]


_inventory = click.option(
    "-i",
    "--inventory",
    metavar="FILE",
    shell_complete=_inventories,
    help="Inventory file, or the name of a shipped one (local).",
)
_nodes = click.option(
    "--nodes", metavar="LIST", shell_complete=_nodes_of_inventory, help="Nodes to use, as in n0,n[2-5]."
)
_shape = click.option("-j", "shape", metavar="NxR", help="Number of nodes and ranks on each, as in 2x8; default: all.")
_dry_run = click.option("--dry-run", is_flag=True, help="Print every file and command, start nothing.")
_follow = click.option(
    "--follow/--detach", default=True, help="Watch the run (default), or print its id and return at once."
)
_quiet = click.option("--quiet", is_flag=True, help="Print only the ranks' lines, warnings and failures.")
_fold = click.option("--fold", is_flag=True, help="Print equal lines of many ranks once.")
_max_retries = click.option(
    "--max-retries",
    type=click.IntRange(min=0, max=10_000),
    metavar="N",
    help="Restart a run that fails after progress, or that loses a node, up to N times.",
)
_elastic = click.option(
    "--elastic",
    metavar="MIN:MAX",
    help="Restart on fewer nodes if one is lost, at least MIN; use at most MAX. Over SSH only.",
)
_wait_for_nodes = click.option(
    "--wait-for-nodes",
    metavar="SPAN",
    help="Time for which a restart waits for a lost node that no other replaces (10m).",
)


def _say_which(_context: click.Context, _parameter: click.Parameter, run: str) -> str:
    """Name the run that is shown if several have its name and others could be meant."""
    from orchestrator.cli.console import inform
    from orchestrator.records.runs import choice_among

    if choice := choice_among(run.partition(":")[0]):
        inform(choice)
    return run


_run = click.argument("run", default="latest", metavar="[RUN]", shell_complete=_run_names, callback=_say_which)
_STATES = ("PENDING", "STARTING", "RUNNING", "DONE", "FAILED", "STOPPED", "LOST")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_env = click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable of the ranks for this run, before the inventory's; may be repeated.",
)
# Named like the fields of LaunchArguments.
_LAUNCH_OPTIONS: tuple[Callable[[_Command], _Command], ...] = (
    click.argument("settings", nargs=-1, metavar="[KEY=VALUE]... [-- PROGRAM ARGS...]"),
    _inventory,
    _nodes,
    _shape,
    click.option("--config", type=_PATH, metavar="FILE", help="Configuration of the shared trainer, YAML or JSON."),
    click.option(
        "--name", metavar="NAME", help="Name of the run, by which commands find it; default: the inventory's."
    ),
    click.option("--note", metavar="TEXT", help="Your own words about the run, shown by status and list."),
    click.option(
        "--tag", "tags", multiple=True, metavar="WORD", help="Tag of the run, for list --tag; may be repeated."
    ),
    click.option("--skip", "skipped", multiple=True, metavar="NAME", help="Leave out this check; may be repeated."),
    click.option("--exclude-suspects", is_flag=True, help="Leave out nodes on which too many runs have failed."),
    click.option("--no-check", is_flag=True, help="Do not check the nodes before the start."),
    _env,
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


def _launch_options(command: _Command) -> _Command:
    """Add the arguments of a launch to a command, and the program that main() found after `--`."""
    command = click.pass_obj(command)
    for option in reversed(_LAUNCH_OPTIONS):
        command = option(command)
    return command


class _Launch(click.Command):
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


def _watch_options(command: _Command) -> _Command:
    """Add --follow/--detach, --quiet and --fold; lines of a run that is not watched cannot be folded."""

    @wraps(command)
    def check(*args: Any, follow: bool, fold: bool, **typed: Any) -> int:  # arguments of any command
        if fold and not follow:
            raise UsageError(
                "--fold and --detach exclude each other", hint="watch the run later with: orch logs -f --fold"
            )
        return command(*args, follow=follow, fold=fold, **typed)

    return _follow(_quiet(_fold(check)))


# A word that other tools have for it -> the command of orch.
_INSTEAD = {
    **dict.fromkeys(("kill", "cancel", "scancel", "end", "abort"), "orch stop RUN ends a run on every node"),
    **dict.fromkeys(
        ("ps", "ls", "runs", "history", "squeue", "queue"), "orch list shows the runs, orch status RUN one of them"
    ),
    **dict.fromkeys(
        ("top", "htop", "watch", "info", "show"), "orch status RUN shows a run, orch nodes the cards of the nodes"
    ),
    **dict.fromkeys(("restart", "retry", "resume", "repeat"), "orch rerun RUN launches a run again"),
    **dict.fromkeys(
        ("run", "launch", "start", "torchrun", "sbatch", "srun"),
        "orch ssh-launch -- PROGRAM starts a run over SSH or on this machine, orch submit -- PROGRAM through Slurm",
    ),
    **dict.fromkeys(("tail", "log", "follow", "cat"), "orch logs -f RUN prints the log of a run and follows it"),
    **dict.fromkeys(
        ("rm", "remove", "delete", "clean", "prune"), "orch gc --dry-run shows what old runs have left behind"
    ),
    **dict.fromkeys(
        ("scp", "copy", "fetch", "download", "get"), "orch cp RUN:PATH DIR copies files of a run to this machine"
    ),
    **dict.fromkeys(("pdsh", "clush", "shell", "sh"), "orch exec -- COMMAND runs a command on every node"),
    **dict.fromkeys(("sinfo", "hosts", "gpus", "nvidia-smi"), "orch nodes shows the cards and versions of the nodes"),
    **dict.fromkeys(("doctor", "test", "preflight"), "orch check checks the nodes"),
    **dict.fromkeys(("why", "explain", "debug"), "orch diagnose RUN names the cause of a failure"),
    **dict.fromkeys(("help", "commands"), "orch --help lists the commands"),
}
# The only commands that are proposed by their spelling: they change nothing.
_HARMLESS = ("logs", "status", "list", "env", "diff", "stats", "lint", "diagnose", "check", "nodes", "inventory")


class _InOrder(click.Group):
    """Lists its commands in the order of this file: those that start a run come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Propose another command for a wrong one, but none by its spelling that acts: it might be typed at once."""
        name = args[0]
        if name in self.commands or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, _HARMLESS, n=2) if self is app else []
        hint = (
            f"did you mean orch {' or orch '.join(close)}?"
            if close
            else f"{ctx.command_path} --help lists the commands"
        )
        if self is app:
            hint = _INSTEAD.get(name, hint)
        raise UsageError(f"{ctx.command_path} has no command {name!r}", hint=hint)


@click.group(cls=_InOrder)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """
    Start a training job on many machines from one inventory file, and bring every log back.

    RUN is an id, a unique prefix of one, a name given with --name or that of the inventory (the newest run of that name that has
    not ended, else the newest), or latest, the default.
    """


def _slurm_options(command: _Command) -> _Command:
    """Add the options for fields of `slurm:`, and pass those that were given as `slurm`; see LaunchArguments."""

    @wraps(command)
    def collect(*args: Any, slurm_set: tuple[str, ...], **typed: Any) -> int:  # arguments of any command
        values = ((name, typed.pop(name.replace("-", "_"))) for name in _SLURM_FIELDS)
        named = (
            (f"--{name}", f"slurm.{name.replace('-', '_')}={value}") for name, value in values if value is not None
        )
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


@app.command(cls=_Launch)
@_launch_options
@_slurm_options
@click.option(
    "--after", multiple=True, metavar="[KIND:]RUN", help="Start after this run; KIND: afterok (default), afterany, …"
)
@_max_retries
@_elastic
@_dry_run
@_watch_options
@click.option(
    "--sweep", multiple=True, metavar="KEY=A,B", help="Start one run per combination of the values; may be repeated."
)
@click.option("--at-once", type=click.IntRange(min=1), metavar="N", help="Run at most N runs of the sweep at a time.")
def submit(
    program: tuple[str, ...] | None,
    dry_run: bool,
    follow: bool,
    quiet: bool,
    fold: bool,
    sweep: tuple[str, ...],
    at_once: int | None,
    **typed: Any,  # see _launch_options
) -> int:
    """
    Start a run through Slurm.

    Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings.

    \b
    orch submit -i h800.yaml -- train.py
    orch submit -i h800.yaml --time 1-0 steps=1000
    """  # noqa: D301  click's mark of lines that are not wrapped
    arguments = _arguments("slurm", program, typed)
    if sweep:
        from orchestrator.cli.sweep import submit_sweep

        return submit_sweep(arguments, sweep, at_once, dry_run=dry_run)
    if at_once is not None:
        raise UsageError("--at-once is for the runs of a sweep", hint="give --sweep KEY=A,B as well, or omit --at-once")
    from orchestrator.cli.launch import launch

    return launch(arguments, dry_run=dry_run, follow=follow, quiet=quiet, fold=fold)


@app.command(cls=_Launch)
@_launch_options
@_max_retries
@_elastic
@_dry_run
@_watch_options
@click.option("--orphan-timeout", metavar="SPAN", help="End the ranks after this time without a supervisor.")
@click.option(
    "--isolation-timeout", metavar="SPAN", help="End the ranks of a node that is cut off for this time (60s)."
)
@_wait_for_nodes
def ssh_launch(
    program: tuple[str, ...] | None,
    dry_run: bool,
    follow: bool,
    quiet: bool,
    fold: bool,
    **typed: Any,  # see _launch_options
) -> int:
    """
    Start a run over SSH, or on this machine (transport local).

    Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings.

    \b
    orch ssh-launch -i h800.yaml -- train.py
    orch ssh-launch -i local steps=20
    """  # noqa: D301  as above
    from orchestrator.cli.launch import launch

    return launch(_arguments("ssh", program, typed), dry_run=dry_run, follow=follow, quiet=quiet, fold=fold)


@app.command(cls=_Launch)
@_launch_options
@click.option("--slurm", "is_through_slurm", is_flag=True, help="Submit each rung as a job; as submit does.")
@_slurm_options
@_dry_run
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Steps of each rung.")
@click.option("--limit", metavar="SPAN", default="2m", show_default=True, help="Time limit of each rung.")
def ladder(
    program: tuple[str, ...] | None,
    is_through_slurm: bool,
    dry_run: bool,
    steps: int,
    limit: str,
    **typed: Any,  # see _launch_options
) -> int:
    """
    Run a few steps on 1 rank, 2 ranks, one full node, two nodes and all nodes, up to the first failure.

    The options are those of ssh-launch, and with --slurm or --here those of submit; --debug is always on.
    """
    from orchestrator.actions.ladder import LadderOptions
    from orchestrator.cli.ladder import ladder

    is_slurm = is_through_slurm or typed["here"]
    if typed["slurm"] and not is_slurm:
        option = typed["slurm"][0][0]
        raise UsageError(f"{option} is for rungs through Slurm", hint=f"add --slurm or --here, or omit {option}")
    return ladder(
        _arguments("slurm" if is_slurm else "ssh", program, typed), LadderOptions.of(steps, limit), dry_run=dry_run
    )


def _arguments(launcher: LauncherName, program: tuple[str, ...] | None, typed: dict[str, Any]) -> LaunchArguments:
    from orchestrator.actions.launch_arguments import LaunchArguments

    return LaunchArguments(launcher, program=program, **typed)


@app.command()
@_run
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run ends.")
@click.option("--node", "--nodes", "nodes", metavar="LIST", shell_complete=_nodes_of_run, help="Only these nodes.")
@click.option("--rank", "ranks", metavar="LIST", help="Only these ranks, as in 3 or 0-7.")
@click.option("--grep", "pattern", metavar="RE", help="Only lines that match.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="SPAN", help="Only the last 30s, 5m, 2h, 1d.")
@click.option("--stream", metavar="out|err|event|batch", help="Only this stream.")
@_fold
@click.option(
    "-i",
    "--inventory",
    metavar="FILE",
    shell_complete=_inventories,
    help="Find the run on these nodes: it was launched elsewhere.",
)
@_json
def logs(
    run: str,
    inventory: str | None,
    follow: bool,
    tail: int | None,
    fold: bool,
    as_json: bool,
    **wanted: str | None,
) -> int:
    """Print the merged log of all nodes and ranks."""
    from orchestrator.actions.logs import Filter
    from orchestrator.cli.logs import logs

    return logs(run, inventory, Filter(**wanted), follow=follow, tail=tail, fold=fold, as_json=as_json)


@app.command()
@_run
@_json
def status(run: str, as_json: bool) -> int:
    """Show the state of a run; ends with the run's exit code."""
    from orchestrator.cli.status import status

    return status(run, as_json=as_json)


@app.command("list")
@click.option("--all", "up_to_date", is_flag=True, help="Query all unfinished runs first.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N runs.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES, case_sensitive=False),
    help="Only runs in this state; may be repeated.",
)
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="Only runs with this tag; with each, if repeated.")
@click.option("--sweep", metavar="ID", help="Compare the runs of a sweep.")
@_json
def list_(sweep: str | None, up_to_date: bool, as_json: bool, **wanted: Any) -> int:  # fields of RunSelection
    """List the runs started from this machine, newest last."""
    if sweep is not None:
        from orchestrator.cli.sweep import list_sweep

        return list_sweep(sweep, as_json=as_json)
    from orchestrator.cli.list import list_runs
    from orchestrator.records.runs import RunSelection

    return list_runs(RunSelection(**wanted), up_to_date=up_to_date, as_json=as_json)


@app.command()
@_run
@_watch_options
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines.",
)
@_wait_for_nodes
def attach(run: str, follow: bool, quiet: bool, fold: bool, tail: int, wait_for_nodes: str | None) -> int:
    """Reconnect to a run after a reboot or a killed orch, and watch it."""
    from orchestrator.cli.attach import attach

    return attach(run, follow=follow, quiet=quiet, fold=fold, tail=tail, wait_for_nodes=wait_for_nodes)


@app.command()
@_inventory
@_nodes
@click.option("--node", metavar="LIST", shell_complete=_nodes_of_inventory, help="Show only these nodes.")
@click.option("--explain", is_flag=True, help="Query the nodes, and show origin and reason of every variable.")
@click.option("--export", is_flag=True, help="As --explain, as lines for a shell: for a launch by hand.")
@click.option("--facts", type=_PATH, metavar="FILE", help="With --explain: the output of an earlier --explain --json.")
@click.option("--debug", is_flag=True, help="With --explain: as with --debug of the launch.")
@click.option(
    "--env", "given", multiple=True, metavar="NAME=VALUE", help="With --explain: as with --env of the launch."
)
@_json
def env(
    inventory: str | None,
    nodes: str | None,
    node: str | None,
    explain: bool,
    export: bool,
    facts: Path | None,
    debug: bool,
    given: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the environment variables that ranks get from orch. Secrets are hidden, nothing is started."""
    from orchestrator.cli import env

    if not explain and not export:
        if option := "--debug" if debug else "--facts" if facts is not None else "--env" if given else "":
            raise UsageError(f"{option} is for --explain and --export", hint="add --explain")
        return env.env(inventory, nodes, node, as_json=as_json)
    return env.explain(
        inventory, nodes, node, facts_file=facts, debug=debug, given=given, export=export, as_json=as_json
    )


@app.command()
@click.argument("run", metavar="RUN", shell_complete=_run_names)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]... [-- PROGRAM ARGS...]")
@click.option("--nodes", metavar="LIST", help="Use these nodes instead, as in n0,n[2-5].")
@_max_retries
@_env
@_slurm_options
@_wait_for_nodes
@_dry_run
@_watch_options
@click.pass_obj
def rerun(
    program: tuple[str, ...] | None,
    /,
    run: str,
    settings: tuple[str, ...],
    nodes: str | None,
    dry_run: bool,
    follow: bool,
    quiet: bool,
    fold: bool,
    **changed: Any,  # fields of Changes
) -> int:
    """
    Launch a run again, with its command, inventory and options, but those given here. Reports what has changed since.

    KEY=VALUE replaces a setting of the shared trainer, -- PROGRAM ARGS the program of another run.
    """
    from orchestrator.actions.rerun import Changes, rerun_arguments
    from orchestrator.cli.launch import launch

    arguments = rerun_arguments(run, nodes, settings, Changes(program, **changed))
    return launch(arguments, dry_run=dry_run, follow=follow, quiet=quiet, fold=fold)


@app.command()
@click.argument("first", metavar="RUN", shell_complete=_run_names)
@click.argument("second", metavar="RUN", shell_complete=_run_names)
@_json
def diff(first: str, second: str, as_json: bool) -> int:
    """Show the differences of two runs: code, command, environment, nodes, versions, inventory, results."""
    from orchestrator.cli.diff import diff_runs

    return diff_runs(first, second, as_json=as_json)


@app.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=_run_names)
@click.option("--against", metavar="RUN", shell_complete=_run_names, help="Compare the throughput with this run.")
@_json
def stats(run: str | None, against: str | None, as_json: bool) -> int:
    """Show how the time of a run was spent: ETTR, MTTF, lost time, throughput, save interval. Without RUN: of all runs."""
    from orchestrator.cli.stats import stats

    if run is None and against is not None:
        raise UsageError("--against compares one run", hint=f"orch stats RUN --against {against}")
    return stats(run, against, as_json=as_json)


@app.command()
@_inventory
@click.argument("files", nargs=-1, type=_PATH, metavar="[FILE]...")
@click.option(
    "--node",
    "nodes",
    metavar="LIST",
    shell_complete=_nodes_of_inventory,
    help="Lint the variables that these nodes have, with their versions.",
)
@click.option(
    "--nccl", metavar="VERSION", help="Version of NCCL, as in 2.21; default: report for which ones it is wrong."
)
@click.option(
    "--torch", metavar="VERSION", help="Version of torch, as in 2.4; default: report for which ones it is wrong."
)
@click.option(
    "--network", type=click.Choice(("infiniband", "roce", "ethernet")), help="Default: that of the inventory."
)
@click.option("--fix", is_flag=True, help="Print the mended files instead of the findings; nothing is written.")
@_json
def lint(
    inventory: str | None, files: tuple[Path, ...], nodes: str | None, as_json: bool, fix: bool, **stated: str | None
) -> int:
    """
    Find wrong, useless and misspelt environment variables in inventories, scripts, environment files, nccl.conf and DeepSpeed JSON.

    Without FILE, the inventory is linted.
    """
    from orchestrator.actions.lint import LintOptions
    from orchestrator.cli.lint import lint_files

    return lint_files(inventory, files, LintOptions(**stated), nodes=nodes, as_json=as_json, fix=fix)


@app.command()
@click.argument("word", required=False)
@_json
def settings(word: str | None, as_json: bool) -> int:
    """List the settings of the shared trainer, those with WORD in their name: orch settings lr."""
    from orchestrator.cli.settings import settings

    return settings(word, as_json=as_json)


@app.command()
@click.argument("words", nargs=-1, metavar="[RUN | FILE...]")
@click.option("--signatures", type=_PATH, metavar="FILE", help="Your own signatures; default: $ORCH_HOME/signatures.")
@click.option("--prove", is_flag=True, help="Run the failure again in small, without and with its remedy.")
@_json
def diagnose(words: tuple[str, ...], signatures: Path | None, prove: bool, as_json: bool) -> int:
    """
    Name the cause of a failure, of a run or in logs of any launcher: where it began, the proof and the next steps.

    FILE is a log, a folder of logs, or - for standard input.
    """
    if prove:
        from orchestrator.cli.prove import prove_remedy

        return prove_remedy(words, signatures, as_json=as_json)
    from orchestrator.cli.diagnose import diagnose

    return diagnose(words, signatures, as_json=as_json)


@app.command()
@_inventory
@_nodes
@click.option(
    "--level",
    type=click.Choice(("quick", "full")),
    default="quick",
    help="full also measures devices, nodes and links.",
)
@click.option("--skip", "skipped", multiple=True, metavar="NAME", help="Leave out this check; may be repeated.")
@_json
def check(inventory: str | None, nodes: str | None, skipped: tuple[str, ...], level: str, as_json: bool) -> int:
    """Check the nodes before a job. Ends with 3 if a check failed."""
    from orchestrator.cli.check import check

    return check(inventory, nodes, skipped, is_full=level == "full", as_json=as_json)


@app.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=_run_names)
@click.option(
    "-i",
    "--inventory",
    metavar="FILE",
    shell_complete=_inventories,
    help="Find the run on these nodes: its record is gone, or elsewhere.",
)
@click.option("--all", "all_runs", is_flag=True, help="End all runs recorded here that have not ended.")
def stop(run: str | None, inventory: str | None, *, all_runs: bool) -> int:
    """End a run on every node. Without RUN: the only run that has not ended."""
    from orchestrator.cli.stop import stop, stop_all

    if all_runs and (run is not None or inventory is not None):
        raise UsageError("--all ends every run recorded here, so RUN and -i cannot be given with it")
    return stop_all() if all_runs else stop(run, inventory)


@app.command()
@_inventory
@click.argument("node", shell_complete=_nodes_of_inventory)
def ssh(inventory: str | None, node: str) -> int:
    """Log in to a node of the inventory. With its address, user, port, jump host and host key rule."""
    from orchestrator.cli.ssh import ssh

    ssh(inventory, node)


@app.command("exec", context_settings={"allow_interspersed_args": False})
@_inventory
@_nodes
@click.argument("words", nargs=-1, required=True, metavar="[--] COMMAND [ARGS...]")
def exec_(inventory: str | None, nodes: str | None, words: tuple[str, ...]) -> int:
    """Run a command once per node. One word is a line for the shell. Ends with the largest exit code."""
    from orchestrator.cli.exec import run_on_nodes

    return run_on_nodes(inventory, nodes, words)


@app.command()
@click.argument("source", metavar="RUN:PATH", callback=_say_which)
@click.argument("destination", type=_PATH, default=".", metavar="[DIR]")
@click.option("--node", "--nodes", "nodes", metavar="LIST", shell_complete=_nodes_of_run, help="Only from these nodes.")
def cp(source: str, destination: Path, nodes: str | None) -> int:
    """Copy files of a run from its nodes. PATH is relative to the ranks' working folder."""
    from orchestrator.cli.cp import copy_files

    return copy_files(source, destination, nodes)


@app.group("bench", cls=_InOrder)
def bench_app() -> None:
    """Measure the nodes of an inventory."""


@bench_app.command("comm")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@_inventory
@_nodes
@_shape
@click.option("--op", metavar="LIST", help="all-reduce, all-gather, reduce-scatter, broadcast, send-recv.")
@click.option("--sizes", metavar="SIZES", help="Bytes, as in 4K,1M or FIRST:LAST[:FACTOR]; default: 1K:256M:4.")
@click.option("--dtype", metavar="TYPE", help="fp32 (default), bf16 or fp16.")
@click.option("--pairs", is_flag=True, help="Measure each pair of ranks instead of all ranks together.")
@click.option("--slurm", "by_slurm", is_flag=True, help="Start it through Slurm.")
@click.option("--png", type=_PATH, metavar="FILE", help="Draw bandwidth by size, or a heat map of the pairs.")
@_quiet
@_json
def bench_comm(
    settings: tuple[str, ...],
    by_slurm: bool,
    inventory: str | None,
    nodes: str | None,
    shape: str | None,
    pairs: bool,
    png: Path | None,
    quiet: bool,
    as_json: bool,
    **typed: str | None,
) -> int:
    """Measure collectives and point to point between ranks, as nccl-tests does."""
    from orchestrator.actions.benchmark import arguments
    from orchestrator.cli.bench import bench_comm

    words = [f"{key}={value}" for key, value in typed.items() if value is not None]
    words += ["groups=pairs"] if pairs else []
    launcher: LauncherName = "slurm" if by_slurm else "ssh"
    launch = arguments(inventory, nodes, shape, (*words, *settings), launcher=launcher)
    return bench_comm(launch, as_json=as_json, png=png, quiet=quiet)


@app.command()
@_inventory
@_nodes
@_json
def nodes(inventory: str | None, nodes: str | None, as_json: bool) -> int:
    """Show what the nodes have: cards, RDMA devices and versions."""
    from orchestrator.cli import nodes as command

    return command.nodes(inventory, nodes, as_json=as_json)


@app.command()
@_inventory
@click.option("--older-than", default="7d", show_default=True, metavar="SPAN", help="Only garbage older than this.")
@click.option(
    "--forget", metavar="LIST", help="Nodes that do not exist any more: do not search them, drop their records."
)
@click.option(
    "--results", is_flag=True, help="Also remove runs that hold results: checkpoints, or any file of the program."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be ended and removed.")
@_json
def gc(inventory: str | None, older_than: str, forget: str | None, **flags: bool) -> int:
    """End stray processes, and remove the garbage of old runs."""
    from orchestrator.cli.gc import gc

    return gc(older_than, inventory, forget, **flags)


@app.group("inventory", cls=_InOrder)
def inventory_app() -> None:
    """Show, check or make an inventory file."""


@inventory_app.command("show")
@_inventory
def inventory_show(inventory: str | None) -> int:
    """Print the inventory as JSON, with patterns expanded and defaults applied."""
    from orchestrator.cli.inventory import show

    return show(inventory)


@inventory_app.command("validate")
@_inventory
def inventory_validate(inventory: str | None) -> int:
    """Check the inventory."""
    from orchestrator.cli.inventory import validate

    return validate(inventory)


@inventory_app.command("new")
@click.argument("name", shell_complete=_shipped_inventories)
def inventory_new(name: str) -> int:
    """Print a shipped inventory, to begin one of yours: orch inventory new h800 > inventory.yaml."""
    from orchestrator.cli.inventory import new

    return new(name)


@inventory_app.command("import")
@click.argument("source", metavar="hostfile|ssh-config|scontrol")
@click.argument("file", type=_PATH, required=False)
def inventory_import(source: str, file: Path | None) -> int:
    """Print an inventory made from a hostfile, an ssh_config or `scontrol show node`; from standard input without FILE."""
    from orchestrator.cli.inventory import import_

    return import_(source, file)


def main() -> int:
    """The program: run the command line of this process, which ends afterwards; returns the exit code."""
    with infrequent_gc():
        return run(sys.argv[1:])


def run(argv: list[str]) -> int:
    """Run a command line; returns the exit code."""
    program = None
    if argv[:1] in (["submit"], ["ssh-launch"], ["ladder"], ["rerun"]) and "--" in argv:
        index = argv.index("--")  # the words after it are passed on unchanged
        argv, program = argv[:index], tuple(argv[index + 1 :])
    _make_output_safe()
    try:
        code: int | None = app.main(argv, prog_name="orch", standalone_mode=False, obj=program)
    except click.Abort:
        return CTRL_C
    except click.ClickException as exc:
        exc.show()
        return UsageError.exit_code
    except SystemExit:  # click's, with 1, when stdout is a closed pipe; no command of orch raises it
        return CLOSED_PIPE
    except Exception as exc:  # noqa: BLE001  docs/decisions/025
        return _end(exc)
    return code or 0


def _end(exc: Exception) -> int:
    """Print an error and its next step; returns the exit code."""
    from orchestrator.cli.console import print_error

    error = exc if isinstance(exc, OrchError) else machine_error(exc)
    if error is not None:
        print_error(error)
        return error.exit_code
    sys.excepthook(type(exc), exc, exc.__traceback__)
    message = f"a bug in orch: {type(exc).__name__}: {exc}"
    print_error(OrchError(message, hint=f"report it with the lines above; this is orch {__version__}"))
    return BUG


def _make_output_safe() -> None:
    """Escape characters that the terminal cannot show, and replace closed streams (`>&-`): neither must end orch."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  open as long as orch runs
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
