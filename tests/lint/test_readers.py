"""The linter's readers: shell scripts as bash reads them, environment files, nccl.conf, and random text."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath

import pytest

from orchestrator.lint.assignment import Script, Unread
from orchestrator.lint.deepspeed import NotJson, lint_deepspeed
from orchestrator.lint.files import read_env_file, read_nccl_conf
from orchestrator.lint.fix import fixed_text
from orchestrator.lint.judge import lint_assignments
from orchestrator.lint.script import lint_whole
from orchestrator.lint.shell import read_shell
from orchestrator.lint.sources import sources
from orchestrator.variables.conditions import Context
from tests.paths import CASES

SCRIPT = r"""#!/bin/bash
set -e  # a comment, NCCL_A=comment
export NCCL_A=plain
NCCL_B='single # $x'; export NCCL_B
export NCCL_C="double \"quoted\" \$x $NCCL_A" NCCL_D=${NCCL_A}_suffix
export NCCL_E=${UNSET:-default} NCCL_F="${UNSET:-"in quotes"}" NCCL_G=${NCCL_A:-unused}
export NCCL_H=con\
tinued
if [ -n "$NCCL_A" ]; then export NCCL_I=in-if; fi
cat > /dev/null <<EOF
export NCCL_A=here-document
EOF
cat <<-'END' > /dev/null
	NCCL_A=here-document
	END
declare -x NCCL_J=declared
NCCL_K=${UNSET:-${UNSET2:-nested}}
export NCCL_K
export NCCL_L=a\ b NCCL_M=1,2 NCCL_N==x NCCL_O=$'x'
(export NCCL_P=subshell)
true && export NCCL_Q=and || export NCCL_R=or
export NCCL_S="# no comment" NCCL_T=a#b
export NCCL_U=`echo x` NCCL_V=$(echo ")") NCCL_W=$((1+2))
arr=(NCCL_A=1 NCCL_A=2)
x() { local NCCL_X=1; }
DIR="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"
export NCCL_AA=between NCCL_AB="$(printf '%s' "it's (")" NCCL_AC=$'it\'s' NCCL_AD="${UNSET:-a}'"
((NUMBER = 1 << 3)); SIZE=$((1<<20)); NAME="$(case x in a) echo ")";; (x) echo "(";; esac)"  # it's
text=$(cat <<EOF
don't " (
EOF
)
export NCCL_AE=after
echo "unclosed ' and NCCL_A=2" > /dev/null
export NCCL_Y="two
lines"
"""


def test_assignments_are_those_of_bash() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{SCRIPT}\nenv -0"], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    bash = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry.startswith("NCCL_"))
    ours = {found.name: found.value for found in read_shell(SCRIPT, "s").assignments if found.name.startswith("NCCL_")}
    unknown = {name for name, value in ours.items() if value is None}
    assert unknown == {"NCCL_U", "NCCL_V", "NCCL_W", "NCCL_AB"}
    not_run = {"NCCL_P", "NCCL_R", "NCCL_X"}
    assert {name: value for name, value in ours.items() if name not in unknown | not_run} == {
        name: value for name, value in bash.items() if name not in unknown
    }


@pytest.mark.parametrize(
    "opening",
    ['B="open', "B='open", "B=$(open", "B=`open", "cat <<E", 'B="$(cat "', "B=$'open", "if x; then", "f() {"],
)
def test_line_of_what_does_not_end_is_named(opening: str) -> None:
    script = read_shell(f"export A=1\n{opening}\nexport NCCL_NET=IB\n", "s")
    assert (script.assignments[0].name, script.assignments[0].value) == ("A", "1")
    assert script.unread == (Unread(2, is_rest=True),)


@pytest.mark.parametrize("line", ["B=)", "if ; then x; fi", "B=${open"])
def test_lines_that_are_no_shell_are_named_and_the_others_are_read(line: str) -> None:
    script = read_shell(f"export A=1\n{line}\nexport NCCL_NET=IB\n", "s")
    names = {found.name: found.value for found in script.assignments}
    assert (names["A"], names["NCCL_NET"]) == ("1", "IB")
    assert script.unread == (Unread(2),)


@pytest.mark.parametrize(
    "text",
    [
        "B=${X:$Y+1}\n",
        "x \\",
        "x=\n\ny=\nexport Z=\n",
        "[[ $x =~ ^a$ ]] && y\n",
        "",
        "export SEED=$(($BASE - 1 + 10#$N))\n",
        "exec 3<>pipe-$$\nexec {fd}<>/dev/fuse\n",
        "if a; then if b; then c; fi \\\n else d; fi\n",
    ],
)
def test_lines_that_bash_accepts_are_read(text: str) -> None:
    assert read_shell(f"export A=1\n{text}", "s").unread == ()


def test_function_that_is_called_twice_sets_its_variables_once() -> None:
    assert len(read_shell("f() { export A=1 B=$1; }\nf 1\nf 2\n", "s").assignments) == 3


def test_script_that_is_nested_too_deeply_is_named() -> None:
    script = read_shell("{\n" * 100 + "export A=1\n" + "}\n" * 100, "s")
    assert script.unread[0].line > 50


def test_commands_in_the_background() -> None:
    script = read_shell("python a &> log &\nb && c || d\ne 2>&1 >x &\nf &", "s")
    assert [script.commands[index][0].value for index in sorted(script.background)] == ["python", "e", "f"]


def test_lines_and_inline_assignments() -> None:
    script = read_shell("\n\nNCCL_A=1 \\\nNCCL_B=2 mpirun -x NCCL_DEBUG=INFO -e 'NCCL_NET=IB' -x PATH train &\n", "s")
    assert [(found.name, found.value, found.line) for found in script.assignments] == [
        ("NCCL_A", "1", 3),
        ("NCCL_B", "2", 4),
        ("NCCL_DEBUG", "INFO", 4),
        ("NCCL_NET", "IB", 4),
    ]
    assert [word.value for word in script.commands[0]][:2] == ["mpirun", "-x"]


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("NCCL_NET=IB\npython x.py\n", True),
        ("NCCL_NET=IB\nexport NCCL_NET\n", False),
        ("export NCCL_NET\nNCCL_NET=IB\n", False),
        ("set -a\nNCCL_NET=IB\n", False),
        ("NCCL_NET=IB python x.py\n", False),
        ("env NCCL_NET=IB python x.py\n", False),
        ("MY_NAME=1\n", False),
        ("WORLD_SIZE=16\ntorchrun --nproc-per-node $WORLD_SIZE x.py\n", False),
    ],
)
def test_variable_that_is_not_exported_is_reported(text: str, is_reported: bool) -> None:
    findings = lint_assignments(read_shell(text, "s").assignments, Context())
    assert any("not exported" in found.finding.text for found in findings) == is_reported


@pytest.mark.parametrize(
    "text",
    [
        'check_pass "NCCL_IB_DISABLE=0 (enabled)"\n',
        "echo NCCL_DEBUG=TRACE 'NCCL_DEBUG=TRACE'\n",
        "rank=$(cat rank.txt); world_size=8\n",
        "nccl_ib_hca=mlx5_0\nexport NCCL_IB_HCA==$nccl_ib_hca\n",
        "NCCL_VERSION=2.21\n",
    ],
)
def test_texts_and_own_variables_of_a_script_are_no_findings(text: str) -> None:
    assert lint_assignments(read_shell(text, "s").assignments, Context()) == []


def test_env_file() -> None:
    text = "# c\nNCCL_A=1\nexport NCCL_B = 2\nexport NCCL_C='x y'\n  NCCL_D=a b # note\r\nnoise\n"
    found = read_env_file(text, "f")
    assert [(entry.name, entry.value, entry.line) for entry in found] == [
        ("NCCL_A", "1", 2),
        ("NCCL_C", "x y", 4),
        ("NCCL_D", "a b", 5),
    ]


def test_nccl_conf_is_read_as_nccl_does() -> None:
    text = '#NCCL_DEBUG=INFO\nNCCL_NET=IB\nexport NCCL_DEBUG=WARN\nNCCL_IB_HCA="=mlx5_0"\nNCCL_IB_TIMEOUT=22 # why\nnoise\n'
    found = read_nccl_conf(text, "nccl.conf")
    assert [(entry.line, bool(entry.fault)) for entry in found] == [
        (2, False),
        (3, True),
        (4, True),
        (5, True),
        (6, True),
    ]
    findings = lint_assignments(found, Context())
    assert fixed_text(text, findings, quoted=False).splitlines()[:5] == [
        "#NCCL_DEBUG=INFO",
        "NCCL_NET=IB",
        "NCCL_DEBUG=WARN",
        "NCCL_IB_HCA==mlx5_0",
        "NCCL_IB_TIMEOUT=22",
    ]


def test_line_without_a_name_is_no_error() -> None:
    assert lint_assignments(read_nccl_conf("=1\n", "nccl.conf"), Context()) == []


def test_deepspeed_block_of_the_guide() -> None:
    findings, strict = lint_deepspeed((CASES / "zero3_guide.json").read_text(), "f", Context())
    assert [(found.line, found.finding.severity.value, found.finding.check) for found in findings] == [
        (6, "WARN", "json"),
        (1, "INFO", "train_micro_batch_size_per_gpu"),
        (1, "INFO", "bf16"),
        (6, "WARN", "reduce_bucket_size"),
        (7, "INFO", "stage3_prefetch_bucket_size"),
        (8, "INFO", "stage3_param_persistence_threshold"),
        (9, "INFO", "stage3_max_live_parameters"),
        (10, "INFO", "stage3_max_reuse_distance"),
    ]
    assert '"reduce_bucket_size": 500000000,' in strict
    assert "json" not in [found.finding.check for found in lint_deepspeed(strict, "f", Context())[0]]


@pytest.mark.parametrize(
    ("zero", "level", "words"),
    [
        ('"reduce_bucket_size": "5e8"', "FAIL", "is text"),
        ('"reduce_bucket_size": 5.5', "FAIL", "not an integer"),
        ('"reduce_bucket_size": "auto"', "INFO", '"auto" is understood'),
        ('"reduce_bucket_sizes": 1', "FAIL", "did you mean reduce_bucket_size"),
        ('"cpu_offload": true', "INFO", "deprecated"),
        ('"stage": 3, "stage": 2', "FAIL", "twice"),
    ],
)
def test_zero_keys(zero: str, level: str, words: str) -> None:
    text = f'{{"train_batch_size": 8, "bf16": {{"enabled": true}}, "zero_optimization": {{{zero}}}}}'
    [found] = lint_deepspeed(text, "f", Context())[0]
    assert found.finding.severity.value == level
    assert words in found.finding.text


def test_automatic_values_are_named_with_their_section() -> None:
    text = '{"train_batch_size": 8, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}'
    [found] = lint_deepspeed(text, "f", Context())[0]
    assert found.finding.text.endswith(": bf16.enabled, fp16.enabled")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": [}', "[" * 200_000, '{"a": 1e}', "{" + "1" * 5000 + "}"])
def test_invalid_json_is_named(text: str) -> None:
    with pytest.raises(NotJson):
        lint_deepspeed(text, "f", Context())


def _shell(text: str) -> None:
    for source in sources(PurePath("f.sh"), text, "f"):
        _check(source.script, text)


def _document(text: str) -> None:
    for source in sources(PurePath("f.md"), f"```bash\n{text}\n```\n", "f"):
        _check(source.script, f"```bash\n{text}\n```\n")


def _dockerfile(text: str) -> None:
    for source in sources(PurePath("Dockerfile"), text, "f"):
        _check(source.script, text)


def _yaml(text: str) -> None:
    for source in sources(PurePath("f.yaml"), text, "f"):
        _check(source.script, text)


def _check(script: Script, text: str) -> None:
    assert len(script.assignments) <= len(text)
    for found in script.assignments:
        if found.start is not None:
            assert text[found.start : found.end].strip("\"'\\").startswith(found.name[0])
    findings = [*lint_assignments(script.assignments, Context()), *lint_whole(script, "f")]
    fixed_text(text, findings, quoted=True)
    for inner in script.embedded:
        _check(inner, text)


def _lines(text: str) -> None:
    for read in (read_env_file, read_nccl_conf):
        fixed_text(text, lint_assignments(read(text, "f"), Context()), quoted=False)


def _json(text: str) -> None:
    with suppress(NotJson):
        lint_deepspeed(text, "f", Context())


@pytest.mark.parametrize("read", [_shell, _document, _dockerfile, _yaml, _lines, _json])
def test_readers_accept_any_text(read: Callable[[str], None]) -> None:
    rng = random.Random(12)
    seeds = [(CASES / name).read_text() for name in ("h800_guide.sh", "t20_guide.sh", "zero3_guide.json")]
    tokens = [
        *"\n\t \"'`$(){}[]\\;&|<>#=,:^%0é\x00\x7f",
        "<<EOF",
        "${A:-",
        "$((",
        "NCCL_IB_TIMEOUT=",
        "export ",
        "5e8",
        "//",
    ]
    for seed in seeds:
        for _ in range(60):
            text = list(seed)
            for _ in range(rng.randrange(1, 12)):
                start = rng.randrange(len(text))
                text[start : start + rng.randrange(0, 20)] = rng.choices(tokens, k=rng.randrange(0, 4))
            read("".join(text))


@pytest.mark.parametrize(
    "text", ['"$(', "${A:-", '\\"', '"`', "<<E\n", "A=$A$A\n", "((", "'\"", "\\\n", "{ ", "if x; then "]
)
def test_hostile_repetition_takes_linear_time(text: str) -> None:
    _shell(text * 20_000)  # pytest's timeout is the limit: quadratic time would be minutes


@pytest.mark.parametrize(
    ("text", "checks"),
    [
        ('{"num_machines": 2, "mixed_precision": "bf16"}', ["json"]),
        ('{"zero_optimisation": {}, "train_batch_size": 8, "bf16": {}}', ["zero_optimisation"]),
        ("{}", ["train_micro_batch_size_per_gpu", "bf16"]),
    ],
)
def test_json_without_a_key_of_deepspeed_is_not_judged_as_its_configuration(text: str, checks: list[str]) -> None:
    findings, _ = lint_deepspeed(text, "f", Context())
    assert [found.finding.check for found in findings] == checks
