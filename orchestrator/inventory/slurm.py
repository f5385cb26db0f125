"""
The `slurm:` section of an inventory: its fields, their checks, and the sbatch options that only orch sets.

Every message names the value that was found and the values that are allowed. Checks against the cluster itself are in
launchers/slurm/checks.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationInfo, field_validator

from orchestrator.inventory import fields
from orchestrator.inventory.document import Problem, resolve_path
from orchestrator.portable.names.addresses import displayed, integer_check, pattern_check
from orchestrator.portable.names.slurm_options import OPTION_OF, option_name

# Option -> how to get its effect. orch sets the nodes, the tasks and their output itself; --export would cut values at commas and
# let other users read them; with the options from `array` on, sbatch would submit several jobs, another script, to other clusters,
# or nothing, or wait, or not print the job id as orch reads it.
_RESERVED_OPTIONS = {
    **dict.fromkeys(
        ("nodes", "nodelist", "nodefile", "ntasks", "ntasks-per-node", "tasks-per-node"), "--nodes and -j choose nodes"
    ),
    "job-name": "slurm.job_name sets it",
    "chdir": "workdir sets the folder of all runs",
    **dict.fromkeys(("output", "error", "open-mode"), "`orch logs` prints the output"),
    **dict.fromkeys(("export", "export-file"), "env and env_file set the variables of the ranks"),
    **dict.fromkeys(("requeue", "no-requeue"), "slurm.requeue sets it"),
    **dict.fromkeys(
        ("gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task", "ntasks-per-gpu", "gpu-bind"),
        "slurm.gres: gpu requests one card per rank of a node, gpu:8 eight per node; a job of orch has one task per node",
    ),
    "no-kill": "slurm.spare_nodes sets it",
    "signal": "slurm.warn_s sets it",
    "array": "--sweep submits an array",
    "wrap": "the program follows `--`",
    "clusters": "slurm.login names a login node of the cluster",
    "test-only": "--dry-run submits nothing",
    "wait": "--follow waits for the end",
    **dict.fromkeys(("parsable", "quiet", "help", "usage", "version"), "it changes what sbatch prints"),
}
_CARDS = "slurm.gres: gpu requests one card per rank of a node, gpu:8 eight per node"
_OTHER_OPTIONS = frozenset(
    "begin bell burst-buffer cluster-constraint contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu deadline distribution environment extra-node-info "
    "gid gpu-freq gpus-per-socket hint hold image kill-on-invalid-dep licenses mcs-label mem-bind mem-per-cpu mem-per-gpu mincpus module network nice "
    "ntasks-per-core ntasks-per-socket overcommit oversubscribe power prefer priority profile propagate reboot sockets-per-node spread-job switches "
    "thread-spec threads-per-core tmp use-min-nodes wait-all-nodes wckey".split()
)
"""Options of sbatch that `options` passes on."""
_LETTERS = dict(
    zip(
        "ACGJNcdnpqtwx",
        (
            "account constraint gpus job-name nodes cpus-per-task dependency ntasks partition qos time nodelist exclude".split()
        ),
        strict=True,
    )
)
_MAIL_TYPES = (
    "NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50"
).split()
_JOB = r"[0-9]+(_[0-9]+|_\*)?(\+[0-9]+)?"
_AFTER = rf"(after(any|ok|notok|corr|burstbuffer)?(:{_JOB})+|singleton)"
_GRES = r"[A-Za-z][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+){0,2}"


def sbatch_option(key: str) -> str:
    """A sentence on an option of sbatch that is written as a key of `slurm:`; empty for any other key."""
    name = key.replace("_", "-")
    field = next((field for field, option in OPTION_OF.items() if option == name), "")
    if field == "cpus":
        return "--cpus-per-task is the field cpus, which counts those of a node: 8 tasks with 12 each are 96"
    if field and field != key:
        return f"--{name} is the field {field}"
    if name.startswith("container-"):
        return "slurm.container has the image and its mounts"
    if name.startswith("gpus"):
        return f"for cards: {_CARDS}"
    if name in _RESERVED_OPTIONS:
        return f"orch decides --{name} itself; remove it: {_RESERVED_OPTIONS[name]}"
    return (
        f'options of sbatch without a field are in slurm.options: ["--{name}=VALUE"]' if name in _OTHER_OPTIONS else ""
    )


def check_option(option: str) -> str:
    """Return an option that users may pass to sbatch; ValueError for options that orch sets, also if abbreviated."""
    short = re.fullmatch(r"-([A-Za-z])[ =]?(.*)", option)
    if short is not None and short[1] in _LETTERS:
        full = _LETTERS[short[1]]
        instead = (
            f"orch decides --{full} itself; remove it: {_RESERVED_OPTIONS[full]}" if full in _RESERVED_OPTIONS else ""
        )
        written = f"write its name in full: --{full}={short[2] or 'VALUE'}"
        raise ValueError(f"{displayed(option)}: {instead or written}")
    name = option_name(_check_option_form(option))
    # getopt accepts any unambiguous prefix of a name
    reserved = [name] if name in _RESERVED_OPTIONS else [full for full in _RESERVED_OPTIONS if full.startswith(name)]
    if reserved:
        names = " and --".join(sorted(reserved))
        instead = ", ".join(dict.fromkeys(_RESERVED_OPTIONS[full] for full in sorted(reserved)))
        raise ValueError(f"{displayed(option)}: orch decides --{names} itself; remove it: {instead}")
    full_names = [full for full in OPTION_OF.values() if full.startswith(name)]
    if full_names and name not in full_names:
        raise ValueError(f"{displayed(option)}: write its name in full: --{' or --'.join(full_names)}")
    if re.fullmatch(r"--[a-z0-9-]+(=.*)?", option) is None:
        raise ValueError(f"{displayed(option)}: write --{name}=VALUE; sbatch reads no value after a space")
    return option


def _check_mail_types(text: str) -> str:
    unknown = [word for word in text.split(",") if word.upper() not in _MAIL_TYPES]
    if unknown:
        raise ValueError(f"{displayed(unknown[0])} is not a mail type; allowed, with commas: {', '.join(_MAIL_TYPES)}")
    return text


_check_option_form = pattern_check(r"--[a-z].*", "an sbatch option", "--name or --name=VALUE, spelled out")
_check_word = pattern_check(r"[^-\s]\S*", "a Slurm name", "one word that does not start with -")
_check_time = pattern_check(
    r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|UNLIMITED|INFINITE",
    "a Slurm time",
    "minutes, HH:MM:SS, D-HH or D-HH:MM:SS, such as 1-00:00:00",
)
_check_gres = pattern_check(
    rf"{_GRES}(,{_GRES})*",
    "a generic resource",
    "NAME for one per rank, NAME:COUNT or NAME:TYPE:COUNT per node, such as gpu",
)
_check_memory = pattern_check(
    r"[0-9]{1,12}[KMGT]?",
    "an amount of memory",
    "megabytes, or a number with K, M, G or T, such as 64G; 0 for all of it",
)
_check_dependency = pattern_check(
    rf"{_AFTER}(,{_AFTER})*|{_AFTER}(\?{_AFTER})*",
    "a dependency",
    "afterok:JOB, afterany:JOB, afternotok:JOB, after:JOB, …, singleton; several with , (all) or ? (any)",
)

_check_image = pattern_check(
    r"[^-\s'\"][^\s'\"]*", "an image", "a path, or an image that the runtime can pull, such as docker://IMAGE:TAG"
)
_PATH = r"/[^:,'\"]*"
_check_mount = pattern_check(
    rf"{_PATH}(:{_PATH}(:(ro|rw))?)?", "a mount", "PATH, PATH:PATH_INSIDE, PATH:PATH_INSIDE:ro; paths begin with /"
)

Word: TypeAlias = Annotated[str, AfterValidator(_check_word)]
Time: TypeAlias = Annotated[str, AfterValidator(_check_time)]
Gres: TypeAlias = Annotated[str, AfterValidator(_check_gres)]
Memory: TypeAlias = Annotated[str, AfterValidator(_check_memory)]
Dependency: TypeAlias = Annotated[str, AfterValidator(_check_dependency)]
MailTypes: TypeAlias = Annotated[str, AfterValidator(_check_mail_types)]
Text: TypeAlias = Annotated[str, AfterValidator(pattern_check(r".+", "a text", "characters that can be printed"))]
Cpus: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of CPUs", 1, 4096))]
Spares: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of nodes", 0, 1000))]
# The limits of sbatch --signal.
WarnSeconds: TypeAlias = Annotated[int, BeforeValidator(integer_check("a number of seconds", 1, 65_535))]
Option: TypeAlias = Annotated[str, AfterValidator(check_option)]


Image: TypeAlias = Annotated[str, AfterValidator(_check_image)]
Mount: TypeAlias = Annotated[str, AfterValidator(_check_mount)]


class Container(BaseModel):
    """The image in which the agent and its ranks run; the workdir is mounted in addition to `mounts`."""

    model_config = fields.STRICT

    image: Image
    runtime: Literal["pyxis", "apptainer"]
    mounts: tuple[Mount, ...] = ()
    python: fields.Executable | None = None
    """The Python in the image; None: its path is that of the nodes' Python."""


class SlurmOptions(BaseModel):
    """The options of sbatch. It runs on host `login`, or here if None; the lines of `setup` follow those of the inventory."""

    model_config = fields.STRICT

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    time: Time | None = None
    reservation: Word | None = None
    constraint: Word | None = None
    gres: Gres | None = None
    cpus: Cpus | None = None
    mem: Memory | None = None
    exclusive: Literal["true", "false", "user", "mcs"] | None = None
    exclude: fields.NamePattern | None = None
    dependency: Dependency | None = None
    mail_type: MailTypes | None = None
    mail_user: Word | None = None
    comment: Text | None = None
    job_name: Word | None = None  # None: the id of the run, or of the sweep
    login: fields.Address | None = None
    template: fields.File | None = None
    setup: tuple[fields.SetupLine, ...] = ()
    container: Container | None = None
    requeue: Literal["auto", "never"] = "auto"
    max_retries: fields.Retries | None = None  # None: that of `restart:`, else 100
    spare_nodes: Spares = 0
    warn_s: WarnSeconds | None = None  # None: see names.slurm_options.warn_s
    options: tuple[Option, ...] = ()  # written after the options that have a field

    @field_validator("options")
    @classmethod
    def _check_given_once(cls, options: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for field, option in OPTION_OF.items():
            given = [entry for entry in options if option_name(entry) == option]
            if given and info.data.get(field) is not None:
                raise ValueError(
                    f"{displayed(given[0])} is given twice: here, and as slurm.{field}; delete one of the two"
                )
            if len(given) > 1:
                named = ", ".join(map(displayed, given))
                raise ValueError(f"--{option} is given twice: {named}; delete one of the two")
        return options


def template_problems(file: str, slurm: SlurmOptions) -> list[Problem]:
    """Report a template that the inventory `file` names and that cannot be read; its content is checked when it is rendered."""
    if slurm.template is None:
        return []
    path = Path(resolve_path(file, slurm.template)).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        return [Problem(("slurm", "template"), f"{path}: {error.strerror or error}")]
    return []
