"""
The `slurm:` section of an inventory: what sbatch is told, what each field may hold, and which options are orch's own.

Every refusal says what was found and what is allowed; what the cluster itself would refuse is launchers/slurm_checks.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationInfo, field_validator

from orchestrator.inventory import fields
from orchestrator.inventory.document import Problem, beside
from orchestrator.names.addresses import matching, shown, whole_number
from orchestrator.names.slurm_options import OPTION_OF, option_name

# Which nodes, how many tasks and where their output goes; --export would cut values at commas and put them where everybody
# can read them; the last of each line make sbatch submit something else, elsewhere, nothing at all, or not say what.
_OWN_OPTIONS = frozenset(
    [
        *("nodes", "nodelist", "nodefile", "ntasks", "ntasks-per-node", "tasks-per-node"),
        *("job-name", "chdir", "output", "error", "open-mode", "export", "export-file"),
        *("requeue", "no-requeue", "no-kill", "signal"),
        *("array", "wrap", "clusters", "test-only", "wait", "parsable", "quiet", "help", "usage", "version"),
    ]
)
_MAIL_TYPES = (
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
)
_JOB = r"[0-9]+(_[0-9]+|_\*)?(\+[0-9]+)?"
_AFTER = rf"(after(any|ok|notok|corr|burstbuffer)?(:{_JOB})+|singleton)"
_GRES = r"[A-Za-z][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+){0,2}"


def check_option(option: str) -> str:
    """Give an option back that sbatch may be told; ValueError for those that orch decides, however they are spelled."""
    name = option_name(_option(option))
    # getopt takes any beginning of a name, as long as it is that of one option alone
    if own := {name} & _OWN_OPTIONS or {one for one in _OWN_OPTIONS if one.startswith(name)}:
        found = " and --".join(sorted(own))
        raise ValueError(f"{shown(option)}: orch decides --{found} itself; remove it, --nodes and -j choose nodes")
    if name not in OPTION_OF.values() and (long := [one for one in OPTION_OF.values() if one.startswith(name)]):
        raise ValueError(f"{shown(option)}: write its name in full: --{' or --'.join(long)}")
    if re.fullmatch(r"--[a-z0-9-]+(=.*)?", option) is None:
        raise ValueError(f"{shown(option)}: write --{name}=VALUE; behind a space sbatch sees no value")
    return option


def _mail_types(text: str) -> str:
    unknown = [word for word in text.split(",") if word.upper() not in _MAIL_TYPES]
    if unknown:
        raise ValueError(
            f"{shown(unknown[0])} is nothing to mail about; allowed, with commas: {', '.join(_MAIL_TYPES)}"
        )
    return text


_option = matching(r"--[a-z].*", "an sbatch option", "--name or --name=VALUE, spelled out")
_word = matching(r"[^-\s]\S*", "a Slurm name", "one word that does not start with -")
_time = matching(
    r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|UNLIMITED|INFINITE",
    "a Slurm time",
    "minutes, HH:MM:SS, D-HH or D-HH:MM:SS, such as 1-00:00:00",
)
_gres = matching(
    rf"{_GRES}(,{_GRES})*",
    "a generic resource",
    "NAME for one a rank, NAME:COUNT or NAME:TYPE:COUNT a node, such as gpu",
)
_mem = matching(
    r"[0-9]{1,12}[KMGT]?",
    "an amount of memory",
    "megabytes, or a number with K, M, G or T, such as 64G; 0 is all there is",
)
_after = matching(
    rf"{_AFTER}(,{_AFTER})*|{_AFTER}(\?{_AFTER})*",
    "a dependency",
    "afterok:JOB, afterany:JOB, afternotok:JOB, after:JOB, …, singleton; several with , (all) or ? (any)",
)

_image = matching(r"[^-\s'\"][^\s'\"]*", "an image", "a path, or what the runtime can pull, such as docker://IMAGE:TAG")
_PATH = r"/[^:,'\"]*"
_mount = matching(
    rf"{_PATH}(:{_PATH}(:(ro|rw))?)?", "a mount", "PATH, PATH:PATH_INSIDE, PATH:PATH_INSIDE:ro; paths begin with /"
)

Word: TypeAlias = Annotated[str, AfterValidator(_word)]
Time: TypeAlias = Annotated[str, AfterValidator(_time)]
Gres: TypeAlias = Annotated[str, AfterValidator(_gres)]
Memory: TypeAlias = Annotated[str, AfterValidator(_mem)]
Dependency: TypeAlias = Annotated[str, AfterValidator(_after)]
MailTypes: TypeAlias = Annotated[str, AfterValidator(_mail_types)]
Text: TypeAlias = Annotated[str, AfterValidator(matching(r".+", "a text", "characters that can be printed"))]
Cpus: TypeAlias = Annotated[int, BeforeValidator(whole_number("a number of CPUs", 1, 4096))]
Spares: TypeAlias = Annotated[int, BeforeValidator(whole_number("a number of nodes", 0, 1000))]
Retries: TypeAlias = Annotated[int, BeforeValidator(whole_number("a number of retries", 0, 10_000))]
WarnSeconds: TypeAlias = Annotated[
    int, BeforeValidator(whole_number("a number of seconds", 1, 65_535))
]  # as sbatch has
Option: TypeAlias = Annotated[str, AfterValidator(check_option)]


class Container(BaseModel):
    """The image in which the agent and its ranks run; the workdir is mounted besides `mounts`."""

    model_config = fields.STRICT

    image: Annotated[str, AfterValidator(_image)]
    runtime: Literal["pyxis", "apptainer"]
    mounts: tuple[Annotated[str, AfterValidator(_mount)], ...] = ()


class SlurmOptions(BaseModel):
    """What sbatch is told; `login` is the host to run it on, None this one. `setup` runs on every node before the agent."""

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
    login: fields.Address | None = None
    template: fields.File | None = None
    setup: tuple[Text, ...] = ()
    container: Container | None = None
    requeue: Literal["auto", "never"] = "auto"
    max_retries: Retries = 100
    spare_nodes: Spares = 0
    warn_s: WarnSeconds | None = None  # None leaves a while to save in
    options: tuple[Option, ...] = ()  # after all that have a field of their own

    @field_validator("options")
    @classmethod
    def _none_is_given_twice(cls, options: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for field, option in OPTION_OF.items():
            given = [one for one in options if option_name(one) == option]
            if given and info.data.get(field) is not None:
                raise ValueError(f"{shown(given[0])} is given twice: here, and as slurm.{field}; delete one of the two")
            if len(given) > 1:
                raise ValueError(f"--{option} is given twice: {', '.join(map(shown, given))}; delete one of the two")
        return options


def template_problems(file: str, slurm: SlurmOptions) -> list[Problem]:
    """Say why the template that the inventory `file` names cannot be read; what is wrong in it shows when it is rendered."""
    if slurm.template is None:
        return []
    path = Path(beside(file, slurm.template)).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        return [Problem(("slurm", "template"), f"{path}: {error.strerror or error}")]
    return []
