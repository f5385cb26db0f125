"""Hostile text: names with newlines, YAML bombs, templates in values. It is refused, or stays plain text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jinja2 import TemplateNotFound, UndefinedError
from jinja2.exceptions import SecurityError

from orchestrator.errors import InventoryError
from orchestrator.inventory import model as inventories
from orchestrator.plan.shell import jinja_environment
from tests.grounds.cli import Orch

NODES = "devices: 1\nnodes: [{name: n0}]\n"


@pytest.mark.parametrize("text", ["x\\n#SBATCH --uid=0", "x\\r", "\\n", "x\\u2028y", "x\\u0085y"])
@pytest.mark.parametrize(
    "field", ["name", "slurm.partition", "slurm.account", "slurm.qos", "slurm.time", "slurm.login", "slurm.options"]
)
def test_newline_in_a_value_of_an_sbatch_line_is_refused_by_field(field: str, text: str, tmp_path: Path) -> None:
    section, _, key = field.partition(".")
    value = f'["--comment={text}"]' if key == "options" else f'"{text}"'
    error = _refused(tmp_path, f"{section}: {{{key}: {value}}}\n{NODES}" if key else f"name: {value}\n{NODES}")
    assert f"inventory.yaml:1: {field}" in error
    assert "allowed: " in error


def _refused(folder: Path, text: str) -> str:
    (folder / "inventory.yaml").write_text(text)
    with pytest.raises(InventoryError) as caught:
        inventories.load(folder / "inventory.yaml")
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("launch", ["ssh-launch", "submit"])
def test_refused_inventory_prints_the_error_alone(launch: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(f'slurm: {{account: "x\\n#SBATCH --uid=0"}}\n{NODES}')
    done = Orch(tmp_path)(launch, "--dry-run", "--", "true", code=2)
    assert "inventory.yaml:1: slurm.account" in done.stderr
    assert done.stdout == ""


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [("--nodes", "n0\n#SBATCH --uid=0"), ("--nodes", "n0;id"), ("--nodes", "$(id)"), ("-j", "1x1\n#SBATCH --uid=0")],
)
def test_newline_in_an_option_is_refused(words: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(NODES)
    done = Orch(tmp_path)("submit", "--dry-run", *words, "--", "true", code=2)
    assert words[0] in done.stderr
    assert done.stdout == ""


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('env: {X: !!python/object/apply:os.system ["touch pwned"]}\n', "the YAML tag !!python/object/apply:os.system"),
        ("env: {X: !!python/name:os.system }\n", "the YAML tag !!python/name:os.system"),
        (_bomb(), "are anchors and aliases nested?"),
        ("env: &e {X: *e}\n", "env"),
        ("env: {X: 1}\nenv: {X: 2}\n", "env: given twice, first in line 1"),
        ("env: {X: 1, X: 2}\n", "env.X: given twice, first in line 1"),
        ('env: {X: "a\\0b"}\n', "env.X: holds a NUL"),
        ("env: {X: a\0b}\n", "control character"),
        ("env: {X: " + "x" * 10_000_000 + "}\n", "larger than 1048576 bytes"),
        ("env: {X: " + "x" * 200_000 + "}\n", "env.X: longer than 130000 bytes"),
        ("env: {'A=1;id': x}\n", "env.A=1;id: not the name of a variable"),
        ("env: {'A\\n': x}\n", "not the name of a variable"),
        ("env: " + "[" * 100_000 + "\n", "nested too deep"),
    ],
    ids=range(13),
)
def test_hostile_yaml_is_refused_at_once(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text + NODES)
    began = time.monotonic()
    with pytest.raises(InventoryError) as caught:
        inventories.load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert time.monotonic() - began < 20
    assert not list(tmp_path.glob("pwned"))


TEMPLATES = [
    "{{ 7 * 7 }}",
    "{{ ''.__class__.__mro__ }}",
    "{% include '/etc/passwd' %}",
    "{{ undefined_name }}",
    "{% for x in range(10**9) %}x{% endfor %}",
]


@pytest.mark.processes
@pytest.mark.parametrize("launch", ["ssh-launch", "submit"])
def test_template_in_a_value_is_plain_text(launch: str, tmp_path: Path) -> None:
    quoted = [text.replace("'", "''") for text in TEMPLATES]
    env = "".join(f"  X{number}: '{text}'\n" for number, text in enumerate(quoted))
    workdir = f"/w {' '.join(quoted)}"
    (tmp_path / "inventory.yaml").write_text(f"env:\n{env}defaults: {{workdir: '{workdir}'}}\n{NODES}")
    printed = Orch(tmp_path)(launch, "--dry-run", "--", "true", *TEMPLATES).stdout
    for text in TEMPLATES:
        assert printed.count(text.replace("'", "'\"'\"'")) + printed.count(text) >= 3


@pytest.mark.parametrize("text", TEMPLATES)
def test_template_as_a_name_is_refused(text: str, tmp_path: Path) -> None:
    quoted = text.replace("'", "''")
    assert "inventory.yaml:1: name: " in _refused(tmp_path, f"name: '{quoted}'\n{NODES}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ ''.__class__.__mro__ }}", SecurityError),
        ("{% include '/etc/passwd' %}", TemplateNotFound),
        ("{% include '../orchestrator/cli/app.py' %}", TemplateNotFound),
        ("{{ undefined_name }}", UndefinedError),
        ("{% for x in range(10**9) %}x{% endfor %}", OverflowError),
    ],
)
def test_jinja_environment_blocks_hostile_templates(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        jinja_environment().from_string(text).render()


@pytest.mark.processes
def test_ld_preload_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("devices: 1\nnodes: [{name: n0}, {name: n1, env: {LD_PRELOAD: /x.so}}]\n")
    for words in (("env",), ("ssh-launch", "--dry-run", "-j", "2x1", "--", "true")):
        assert "warning: env: LD_PRELOAD on n1 loads code into every program" in Orch(tmp_path)(*words).stderr
