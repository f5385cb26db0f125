"""The program: finds the verb of a command line, and turns its result or its error into an exit code."""

from __future__ import annotations

import difflib
import io
import os
import sys
from importlib import import_module
from pathlib import Path

import click

from orchestrator.cli.groups import Group
from orchestrator.errors import BUG, CLOSED_PIPE, CTRL_C, OrchError, UsageError, machine_error
from orchestrator.gc_tuning import infrequent_gc
from orchestrator.version import __version__

# Heading -> verb -> the first sentence of the help. The verb's module has the same name, and is imported when the verb runs.
GROUPS = {
    "Start runs": {
        "ssh-launch": "Start a run over SSH, or on this machine (transport local).",
        "submit": "Start a run through Slurm.",
        "rerun": "Launch a run again, with its command, inventory and options, but those given here.",
        "ladder": "Run a few steps on 1 rank, 2 ranks, one full node, two nodes and all nodes, up to the first failure.",
    },
    "Watch runs": {
        "status": "Show the state of a run; ends with the run's exit code.",
        "top": "Show a run live: its verdict, step and loss, and its nodes, ranks and cards, those first that hold up the others.",
        "web": "Show runs in a browser: state, curves of loss and rate, nodes, log; live during the run.",
        "logs": "Print the merged log of all nodes and ranks.",
        "list": "List the runs started from this machine, newest last.",
        "metrics": "Print the values of a run for Prometheus, or write them for the textfile collector of node_exporter.",
        "tensorboard": "Start TensorBoard on the head node of a run, for a browser on this machine.",
    },
    "Control runs": {
        "stop": "End a run on every node.",
        "attach": "Reconnect to a run after a reboot or a killed orch, and watch it.",
        "cp": "Copy files of a run from its nodes.",
    },
    "Find causes": {
        "diagnose": "Name the cause of a failure, of a run or in logs of any launcher: where it began, the proof and the next steps.",
        "diff": "Show the differences of two runs: code, command, environment, nodes, versions, inventory, results.",
        "stats": "Show how the time of a run was spent: ETTR, MTTF, lost time, throughput, save interval.",
    },
    "Prepare and check nodes": {
        "inventory": "Show, check or make an inventory file.",
        "nodes": "Show what the nodes have: cards, RDMA devices and versions.",
        "check": "Check the nodes before a job.",
        "bench": "Measure the nodes of an inventory.",
        "env": "Show the environment variables that ranks get from orch.",
        "lint": "Find wrong, useless and misspelt environment variables in inventories, scripts, documents, environment files, nccl.conf and DeepSpeed JSON.",
        "settings": "List the settings of the shared trainer, those with WORD in their name: orch settings lr.",
    },
    "Work on nodes": {
        "ssh": "Log in to a node of the inventory.",
        "exec": "Run a command once per node.",
        "put": "Send files and folders to the nodes.",
        "image": "Send container images to the nodes.",
        "gc": "End stray processes, and remove the garbage of old runs.",
    },
}
VERBS = {verb: text for group in GROUPS.values() for verb, text in group.items()}
WIDEST_HELP = 160  # columns; longer lines are hard to read
_WITH_PROGRAM = ("submit", "ssh-launch", "ladder", "rerun")
"""The verbs that accept a program after `--`."""
# A word that other tools have for it -> the command of orch.
_INSTEAD = {
    **dict.fromkeys(("kill", "cancel", "scancel", "end", "abort"), "orch stop RUN ends a run on every node"),
    **dict.fromkeys(
        ("ps", "ls", "runs", "history", "squeue", "queue"), "orch list shows the runs, orch status RUN one of them"
    ),
    **dict.fromkeys(
        ("htop", "nvtop", "watch", "info", "show"), "orch top RUN shows a run live, orch nodes the cards of the nodes"
    ),
    **dict.fromkeys(
        ("dashboard", "ui", "gui", "serve", "browser", "plot"), "orch web RUN shows a run with its curves in a browser"
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
_HARMLESS = "logs status top metrics list env diff stats lint diagnose check nodes inventory".split()


class LazyGroup(Group):
    """Lists the verbs without their modules, and imports the module of the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """A command without options, for the list of commands."""
        return click.Command(cmd_name, help=VERBS[cmd_name]) if cmd_name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by group, in columns of one width."""
        width = max(map(len, VERBS))
        limit = formatter.width - width - 6
        for heading, verbs in GROUPS.items():
            with formatter.section(heading):
                commands = ((verb, self.get_command(ctx, verb)) for verb in verbs)
                rows = [(verb.ljust(width), each.get_short_help_str(limit)) for verb, each in commands if each]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is None:
            return name, None, rest
        command = load(str(listed.name))
        if not ctx.resilient_parsing:
            from orchestrator.cli.option_defaults import set_option_defaults  # only for the command that runs

            set_option_defaults(ctx, list(VERBS), str(listed.name), command)
        return name, command, rest

    def hint(self, ctx: click.Context, name: str) -> str:
        """Propose another command for a wrong one, but none by its spelling that acts: it might be typed at once."""
        if name in _INSTEAD:
            return _INSTEAD[name]
        close = difflib.get_close_matches(name, _HARMLESS, n=2)
        return f"did you mean orch {' or orch '.join(close)}?" if close else super().hint(ctx, name)


def load(verb: str) -> click.Command:
    """Import a verb. Its function is named like the module, with an underscore after a name of Python's own (`list_`)."""
    name = verb.replace("-", "_")
    module = import_module(f"orchestrator.cli.{name}")
    command: click.Command = getattr(module, name if hasattr(module, name) else f"{name}_")
    from orchestrator.cli.examples import add_examples  # only for the command that runs

    add_examples(command, verb)
    return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP})
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """
    Start a training job on many machines from one inventory file, and bring every log back.

    RUN is an id, a unique prefix of one, a name given with --name or that of the inventory (the newest run of that name that has
    not ended, else the newest), or latest, the default.
    """


def main() -> int:
    """The program: run the command line of this process, which ends afterwards; returns the exit code."""
    with infrequent_gc():
        return run(sys.argv[1:])


def run(argv: list[str]) -> int:
    """Run a command line; returns the exit code."""
    program = None
    if "--" in argv and argv[0] in _WITH_PROGRAM:
        index = argv.index("--")  # the words after it are passed on unchanged
        argv, program = argv[:index], tuple(argv[index + 1 :])
    _make_output_safe()
    try:
        code: int | None = app.main(argv, prog_name="orch", standalone_mode=False, obj=program)
    except click.Abort:
        return CTRL_C
    except click.ClickException as exc:
        context = getattr(exc, "ctx", None)
        hint = f"{'orch' if context is None else context.command_path} --help shows its arguments and options"
        text = exc.format_message().rstrip(".").replace("\n", " ")
        return _end(UsageError(text[:1].lower() + text[1:], hint=hint), as_json="--json" in argv)
    except SystemExit:  # click's, with 1, when stdout is a closed pipe; no command of orch raises it
        return CLOSED_PIPE
    except Exception as exc:  # noqa: BLE001  docs/decisions/025
        return _end(exc, as_json="--json" in argv)
    return code or 0


def _end(exc: Exception, *, as_json: bool) -> int:
    """Print an error and its next step, with --json also as JSON on stdout; returns the exit code."""
    from orchestrator.cli.console import print_error, print_json_error

    error = exc if isinstance(exc, OrchError) else machine_error(exc)
    if error is not None:
        print_error(error)
        if as_json:
            print_json_error(error)
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
