"""The command line: argv to one call in commands/, and its result or error to an exit code. The only user of typer."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from orchestrator.commands.request import Words
    from orchestrator.run import LauncherName

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs no rich, which takes as long to load as all the rest
    help="Start a training job on many machines from one inventory file, and bring every log back.",
)
inventory_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show, check or make an inventory file.")
app.add_typer(inventory_app, name="inventory")

InventoryOption = Annotated[
    str | None,
    typer.Option("-i", "--inventory", metavar="FILE", help="Inventory file, or the name of a shipped one (local)."),
]
NodesOption = Annotated[str | None, typer.Option("--nodes", metavar="LIST", help="Nodes to use, as in n0,n[2-5].")]
ShapeOption = Annotated[
    str | None, typer.Option("-j", metavar="NxR", help="Number of nodes and ranks on each, as in 2x8; default: all.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print every file and command, start nothing.")]
FollowOption = Annotated[
    bool, typer.Option("--follow/--detach", help="Watch the run (default), or print its id and return at once.")
]
OrphanOption = Annotated[
    str | None,
    typer.Option("--orphan-timeout", metavar="SPAN", help="End the ranks after so long without a supervisor."),
]
IsolationOption = Annotated[
    str | None,
    typer.Option("--isolation-timeout", metavar="SPAN", help="End the ranks of a node cut off for so long (60s)."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration of the shared trainer, YAML or JSON.")
]
BareOption = Annotated[
    bool, typer.Option("--bare", help="Run a Python program as plain Python: no help without CUDA, no progress.")
]
SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]... [-- PROGRAM ARGS...]", show_default=False)
]
RunArgument = Annotated[str, typer.Argument(metavar="[RUN]", help="Id, unique prefix, name, or latest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def submit(
    ctx: typer.Context,
    settings: SettingsArgument = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    shape: ShapeOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    follow: FollowOption = True,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=A,B", help="A run for every combination of the values; may be repeated."),
    ] = None,
    bare: BareOption = False,
) -> None:
    """Start a run through Slurm. Without -- PROGRAM the shared trainer runs, with KEY=VALUE settings."""
    if sweep:
        from orchestrator.commands.sweep import submit_sweep  # noqa: PLC0415

        words = _words("slurm", ctx, settings, (inventory, nodes, shape), config, bare=bare)
        raise typer.Exit(submit_sweep(words, sweep, dry_run=dry_run))
    raise typer.Exit(_launch("slurm", ctx, settings, (inventory, nodes, shape), config, dry_run, follow, bare=bare))


@app.command("ssh-launch")
def ssh_launch(
    ctx: typer.Context,
    settings: SettingsArgument = None,
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    shape: ShapeOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    follow: FollowOption = True,
    orphan_timeout: OrphanOption = None,
    isolation_timeout: IsolationOption = None,
    bare: BareOption = False,
) -> None:
    """Start a run over SSH, or on this machine (transport local). Otherwise as submit."""
    raise typer.Exit(
        _launch(
            "ssh",
            ctx,
            settings,
            (inventory, nodes, shape),
            config,
            dry_run,
            follow,
            (orphan_timeout, isolation_timeout),
            bare=bare,
        )
    )


def _launch(
    launcher: LauncherName,
    ctx: typer.Context,
    settings: list[str] | None,
    where: tuple[str | None, str | None, str | None],
    config: Path | None,
    dry_run: bool,
    follow: bool,
    timeouts: tuple[str | None, str | None] = (None, None),
    *,
    bare: bool,
) -> int:
    from orchestrator.commands.launch import launch  # noqa: PLC0415  commands load when they run

    words = _words(launcher, ctx, settings, where, config, timeouts, bare=bare)
    return launch(words, dry_run=dry_run, follow=follow)


def _words(
    launcher: LauncherName,
    ctx: typer.Context,
    settings: list[str] | None,
    where: tuple[str | None, str | None, str | None],
    config: Path | None,
    timeouts: tuple[str | None, str | None] = (None, None),
    *,
    bare: bool,
) -> Words:
    from orchestrator.commands.request import Words  # noqa: PLC0415  commands load when they run

    inventory, nodes, shape = where
    program: tuple[str, ...] | None = ctx.obj
    return Words(launcher, inventory, nodes, shape, config, tuple(settings or ()), program, *timeouts, bare)


@app.command()
def logs(
    run: RunArgument = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing until the run ends.")] = False,
    node: Annotated[str | None, typer.Option("--node", metavar="LIST", help="Only these nodes.")] = None,
    rank: Annotated[
        str | None, typer.Option("--rank", metavar="LIST", help="Only these ranks, as in 3 or 0-7.")
    ] = None,
    grep: Annotated[str | None, typer.Option("--grep", metavar="RE", help="Only lines that match.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="SPAN", help="Only the last 30s, 5m, 2h, 1d.")] = None,
    stream: Annotated[str | None, typer.Option("--stream", metavar="out|err|event", help="Only this stream.")] = None,
    inventory: Annotated[
        str | None,
        typer.Option(
            "-i", "--inventory", metavar="FILE", help="Find the run on these nodes: it was launched elsewhere."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the merged log of all nodes and ranks."""
    from orchestrator.commands.logs import Filter, logs  # noqa: PLC0415

    wanted = Filter(node, rank, grep, since, stream)
    raise typer.Exit(logs(run, inventory, wanted, follow=follow, tail=tail, as_json=as_json))


@app.command()
def status(run: RunArgument = "latest", as_json: JsonOption = False) -> None:
    """Show how a run stands; ends with the run's exit code."""
    from orchestrator.commands.status import status  # noqa: PLC0415

    raise typer.Exit(status(run, as_json=as_json))


@app.command("list")
def list_(
    up_to_date: Annotated[bool, typer.Option("--all", help="Ask first after all runs that have not ended.")] = False,
    sweep: Annotated[str | None, typer.Option("--sweep", metavar="ID", help="Compare the runs of a sweep.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List all runs started from this machine."""
    if sweep is not None:
        from orchestrator.commands.sweep import list_sweep  # noqa: PLC0415

        raise typer.Exit(list_sweep(sweep, as_json=as_json))
    from orchestrator.commands.status import list_runs  # noqa: PLC0415

    raise typer.Exit(list_runs(up_to_date=up_to_date, as_json=as_json))


@app.command()
def attach(run: RunArgument = "latest", follow: FollowOption = True) -> None:
    """Supervise a run again whose supervisor is gone, and watch it."""
    from orchestrator.commands.attach import attach  # noqa: PLC0415

    raise typer.Exit(attach(run, follow=follow))


@app.command()
def env(
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    node: Annotated[str | None, typer.Option("--node", metavar="LIST", help="Show only these nodes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which environment variables the ranks get from orch; secrets are hidden, nothing is started."""
    from orchestrator.commands.env import env  # noqa: PLC0415

    raise typer.Exit(env(inventory, nodes, node, as_json=as_json))


@app.command()
def stop(run: RunArgument = "latest") -> None:
    """End a run on every node."""
    from orchestrator.commands.stop import stop  # noqa: PLC0415

    raise typer.Exit(stop(run))


@app.command()
def gc(
    inventory: InventoryOption = None,
    older_than: Annotated[str, typer.Option("--older-than", metavar="SPAN", help="Only what is older.")] = "7d",
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Remove runs that hold checkpoints, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be ended and removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End stray processes of runs, and remove what old runs left."""
    from orchestrator.commands.gc import gc  # noqa: PLC0415

    raise typer.Exit(gc(older_than, inventory, checkpoints=checkpoints, dry_run=dry_run, as_json=as_json))


@inventory_app.command("show")
def inventory_show(inventory: InventoryOption = None) -> None:
    """Print the inventory as orch understands it, as JSON."""
    from orchestrator.commands.inventory import show  # noqa: PLC0415

    raise typer.Exit(show(inventory))


@inventory_app.command("validate")
def inventory_validate(inventory: InventoryOption = None) -> None:
    """Check the inventory."""
    from orchestrator.commands.inventory import validate  # noqa: PLC0415

    raise typer.Exit(validate(inventory))


@inventory_app.command("import")
def inventory_import(
    source: Annotated[str, typer.Argument(metavar="hostfile|ssh-config|scontrol", help="What to read.")],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: standard input.")] = None,
) -> None:
    """Print an inventory made from a hostfile, an ssh_config or `scontrol show node`."""
    from orchestrator.commands.inventory import import_  # noqa: PLC0415

    raise typer.Exit(import_(source, file))


def main() -> int:
    """Run the command line; returns the exit code."""
    argv, program = sys.argv[1:], None
    if argv[:1] in (["submit"], ["ssh-launch"]) and "--" in argv:
        at = argv.index("--")  # what follows is the user's, untouched
        argv, program = argv[:at], tuple(argv[at + 1 :])
    _make_output_safe()
    try:
        app(argv, obj=program, prog_name="orch")
    except OrchError as exc:
        from orchestrator.console import say_error  # noqa: PLC0415

        say_error(exc)
        return exc.exit_code
    except OSError as exc:
        from orchestrator.console import say_error  # noqa: PLC0415

        say_error(OrchError(str(exc), hint="a full disk, a closed pipe or a folder without permission"))
        return OrchError.exit_code
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 0
    return 0


def _make_output_safe() -> None:
    """A log may hold what the terminal cannot show, and a stream may have been closed (`>&-`): neither ends orch."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  open as long as orch runs
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
