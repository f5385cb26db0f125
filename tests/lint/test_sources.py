"""Readers of files: shell as bash runs it, here-documents, Markdown, Dockerfiles, sbatch and YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import pytest

from orchestrator.lint.assignment import Assignment, Script
from orchestrator.lint.fix import fixed_text
from orchestrator.lint.judge import lint_assignments
from orchestrator.lint.shell import read_shell
from orchestrator.lint.sources import is_inventory, is_shell_script, sources
from orchestrator.variables.conditions import Context


def _all(script: Script) -> Iterator[Assignment]:
    yield from script.assignments
    for inner in script.embedded:
        yield from _all(inner)


def _read(name: str, text: str) -> list[tuple[str, str | None, int]]:
    """Name, value and line of each assignment in a file, also in scripts within it."""
    found = [entry for source in sources(PurePath(name), text, name) for entry in _all(source.script)]
    for entry in found:
        if entry.start is not None and "\\" not in text[entry.start : entry.end]:
            assert text[entry.start : entry.end].strip("\"'").startswith(entry.name)
            assert text.count("\n", 0, entry.start) + 1 == entry.line
    return [(entry.name, entry.value, entry.line) for entry in found]


def _values(text: str) -> dict[str, str | None]:
    return {name: value for name, value, _ in _read("s.sh", text)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=${X:-5}", "5"),
        ("A=${X:-${Y:-6}}", "6"),
        ('A="${X:-"a b"}"', "a b"),
        ("X=1; A=${X:-5}", "1"),
        ("X=; A=${X:-5}", "5"),
        ("X=; A=${X-5}", ""),
        (": ${A:=7}", "7"),
        ("A=${X#y}", None),
        ("X=(a b); A=${X[1]}", "b"),
        ("X=(a b); X+=(c); A=${X[*]}", "abc"),
        ("A=$'x\\ty'", "x\ty"),
        ("X=1; if y; then X=2; fi; A=$X", None),
        ("if y; then X=2; else X=2; fi; A=$X", "2"),
        ("case $y in a) X=1;; *) X=2;; esac; A=$X", None),
        ("for X in a; do A=$X; done", "a"),
        ("for X in a b; do A=$X; done", None),
        ("for X in {0..7}; do A=$X; done", None),
        ("X=1; while y; do A=$X; X=2; done", None),
        ("f() { A=$1; }; f x", "x"),
        ("f() { A=$X; }; X=late; f", "late"),
        ("f() { local X=1; }; X=2; f; A=$X", "2"),
        ("X=1; (X=2); A=$X", "1"),
        ("X=1; unset X; A=$X", None),
        ("X=1 y; A=$X", None),
        ("A=$(echo x)", None),
        ("X=\nexport A=2", "2"),
        ("X= Y=1\nZ=\nexport A=$Y", "1"),
        ("A=1 \\\n  y", "1"),
        ("A=1\r\n", "1"),
    ],
)
def test_values_are_those_of_a_shell(text: str, value: str | None) -> None:
    assert _values(text)["A"] == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'ARGS="--nnodes 2 --node_rank 0"\ntorchrun $ARGS x.py',
            ["torchrun", "--nnodes", "2", "--node_rank", "0", "x.py"],
        ),
        ('ARGS=(--nnodes 2 "a b")\ntorchrun "${ARGS[@]}" x.py', ["torchrun", "--nnodes", "2", "a b", "x.py"]),
        ('CMD="torchrun x.py"\n$CMD', ["torchrun", "x.py"]),
        ('X="a b"\ny "$X"c', ["y", "a bc"]),
        ('X=(); y "${X[@]}" z', ["y", "z"]),
        ("nohup sudo A=1 y z &", ["y", "z"]),
        ("y 2>&1 > f <<< x", ["y"]),
        ("x \\\r\n  --y\r\n", ["x", "--y"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    assert [word.value for word in read_shell(text, "s").commands[-1]] == words


@pytest.mark.parametrize(
    "text",
    [
        "cat > run.sh <<'EOF'\nexport NCCL_DEBUG=INFO\nEOF\n",
        "cat <<EOF | tee -a run.sh\nexport NCCL_DEBUG=INFO\nEOF\n",
        "tee ~/.bashrc <<EOF\nexport NCCL_DEBUG=INFO\nEOF\n",
        "cat >> /etc/nccl.conf <<EOF\nNCCL_DEBUG=INFO\nEOF\n",
        "cat > .deepspeed_env <<EOF\nNCCL_DEBUG=INFO\nEOF\n",
        "cat > /root/.cluster_env <<EOF\n# all\nexport NCCL_DEBUG=INFO\nEOF\n",
        "ssh host <<EOF\nexport NCCL_DEBUG=INFO\nEOF\n",
        "sbatch <<EOF\n#!/bin/bash\nEOF\nexport NCCL_DEBUG=INFO\n",
        "ssh host '\nexport NCCL_DEBUG=INFO'\n",
        "bash -lc '\nexport NCCL_DEBUG=INFO'\n",
        "srun bash -c '\nexport NCCL_DEBUG=INFO'\n",
        "docker exec box bash -c '\nexport NCCL_DEBUG=INFO'\n",
        "eval '\nexport NCCL_DEBUG=INFO'\n",
        "echo 'export NCCL_DEBUG=INFO' >> ~/.bashrc\n",
        "#SBATCH --export=ALL,NCCL_DEBUG=INFO\n",
        "srun --export=ALL,NCCL_DEBUG=INFO x\n",
        "docker run -e NCCL_DEBUG=INFO x\n",
        "kubectl exec pod -- env NCCL_DEBUG=INFO x\n",
    ],
)
def test_variables_of_scripts_within_scripts_are_read(text: str) -> None:
    assert ("NCCL_DEBUG", "INFO") in {(name, value) for name, value, _ in _read("s.sh", text)}


@pytest.mark.parametrize(
    "text",
    [
        "cat <<EOF\nexport NCCL_DEBUG=INFO\nEOF\n",
        "cat > x.py <<EOF\nNCCL_DEBUG=INFO\nEOF\n",
        "echo NCCL_DEBUG=INFO > log\n",
    ],
)
def test_texts_that_nothing_runs_are_not_read(text: str) -> None:
    assert _read("s.sh", text) == []


def test_escaped_dollar_in_a_document_keeps_its_offset() -> None:
    text = "cat > a.sh <<EOF\nX=\\$Y\nexport NCCL_IB_TIMEOUT=30\nEOF\n"
    assert _read("s.sh", text) == [("X", None, 2), ("NCCL_IB_TIMEOUT", "30", 3)]
    [source] = sources(PurePath("s.sh"), text, "s")
    findings = lint_assignments(_all(source.script), Context())
    assert "export NCCL_IB_TIMEOUT=22\n" in fixed_text(text, findings, quoted=True)


def test_blocks_of_markdown() -> None:
    text = """\
# Guide
    ```bash
    export NCCL_A=1
    cat > x.sh <<EOF
    export NCCL_B=2
    EOF
    ```
~~~console
$ export NCCL_C=3 \\
    NCCL_D=4
NCCL_OUTPUT=5
user@h:~$ export NCCL_E=$(x)
~~~
```
export NCCL_F=6
torchrun --node_rank <rank> x.py
```
```bash
export NCCL_K=<address>
```
```python
NCCL_G=7
```
```
NCCL_G=a text
```
> ```sh
> export NCCL_H=8
> ```
```dockerfile
ENV NCCL_I=9
```
```yaml
env: {NCCL_J: "10"}
```
"""
    assert _read("g.md", text) == [
        ("NCCL_A", "1", 3),
        ("NCCL_B", "2", 5),
        ("NCCL_C", "3", 9),
        ("NCCL_D", "4", 10),
        ("NCCL_E", None, 12),
        ("NCCL_F", "6", 15),
        ("NCCL_K", None, 19),
        ("NCCL_H", "8", 28),
        ("NCCL_I", "9", 31),
        ("NCCL_J", "10", 34),
    ]
    assert all(not source.script.unread for source in sources(PurePath("g.md"), text, "g"))


def test_script_with_the_name_of_a_document_is_read_as_a_script() -> None:
    assert _read("help.md", "#!/bin/bash\nexport NCCL_A=1\n") == [("NCCL_A", "1", 2)]


def test_block_of_markdown_is_mended_within_the_document() -> None:
    text = "- x\n\n  ```bash\n  export NCCL_IB_TIMEOUT=30\n  ```\n"
    [source] = sources(PurePath("g.md"), text, "g")
    findings = lint_assignments(source.script.assignments, Context())
    assert fixed_text(text, findings, quoted=True) == text.replace("30", "22")


def test_dockerfile() -> None:
    text = """\
# syntax=docker/dockerfile:1
FROM x
ENV NCCL_A=1 \\
    # a comment
    NCCL_B="two words"
ENV NCCL_C three
ARG NCCL_ARG=1
RUN --mount=type=cache,target=/x echo "NCCL_NOT=1" && \\
    NCCL_D=4 make
RUN <<EOF
export NCCL_E=5
EOF
RUN bash -e <<"END"
export NCCL_F=6
END
CMD ["torchrun", "--nnodes=2", "--master_addr=localhost", "x.py"]
ENV NCCL_G=7
"""
    assert _read("Dockerfile.cuda", text) == [
        ("NCCL_A", "1", 3),
        ("NCCL_B", "two words", 5),
        ("NCCL_C", "three", 6),
        ("NCCL_G", "7", 17),
        ("NCCL_D", "4", 9),
        ("NCCL_E", "5", 11),
        ("NCCL_F", "6", 14),
    ]


def test_blank_after_the_backslash_of_a_dockerfile_continues_the_line() -> None:
    [_, run] = [source.script for source in sources(PurePath("Dockerfile"), "RUN cd build \\ \n    && cmake .\n", "d")]
    assert run.unread == ()
    assert [[word.value for word in command] for command in run.commands] == [["cd", "build"], ["cmake", "."]]


def test_options_of_a_run_may_be_on_several_lines() -> None:
    text = 'RUN --mount=type=cache,target=/a \\\n  --mount=type=cache,target=/b \\\n  <<"EOF" bash -ex\nexport NCCL_A=1\nEOF\n'
    [_, run] = [source.script for source in sources(PurePath("Dockerfile"), text, "d")]
    assert run.unread == ()
    assert [(entry.name, entry.line) for entry in run.assignments] == [("NCCL_A", 4)]


def test_export_of_a_run_is_lost() -> None:
    scripts = [source.script for source in sources(PurePath("Dockerfile"), "RUN export NCCL_DEBUG=WARN\n", "d")]
    [found] = lint_assignments([entry for script in scripts for entry in script.assignments], Context())
    assert "for this RUN only" in found.finding.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("jobs:\n  a:\n    env:\n      NCCL_A: 1\n      NCCL_B: ${{ x }}\n", [("NCCL_A", "1", 4), ("NCCL_B", None, 5)]),
        ("services:\n  t:\n    environment:\n      - NCCL_A=1\n      - PASSED\n", [("NCCL_A", "1", 4)]),
        ("spec:\n- env:\n  - name: NCCL_A\n    value: '1'\n  - name: B\n    valueFrom: {}\n", [("NCCL_A", "1", 3)]),
        ("jobs:\n  a:\n    steps:\n    - run: |\n        export NCCL_A=1\n", [("NCCL_A", "1", 5)]),
        ("spec:\n  command: [bash, -c]\n  args:\n  - export NCCL_A=1\n", []),
        ("spec:\n  command: [bash, -c, 'export NCCL_A=1']\n", [("NCCL_A", "1", 2)]),
        ("envs: {NCCL_A: 1}\n---\nenvs:\n  NCCL_B: 2\n", [("NCCL_A", "1", 1), ("NCCL_B", "2", 4)]),
        ("setup: |\n\n  export NCCL_A=1\n", [("NCCL_A", "1", 3)]),
        ("env_vars:\n  NCCL_A: null\n  NCCL_B:\n  NCCL_C: ''\n", [("NCCL_C", "", 4)]),
        ("- a\n- b\n", []),
    ],
)
def test_yaml(text: str, found: list[tuple[str, str | None, int]]) -> None:
    assert _read("x.yaml", text) == found


def test_number_in_the_env_of_kubernetes_is_a_fault() -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  env:\n  - name: NCCL_DEBUG\n    value: 1\n  - {name: NCCL_NET, value: IB}\n"
    [source] = sources(PurePath("x.yaml"), text, "x")
    assert [bool(entry.fault) for entry in source.script.assignments] == [True, False]


def test_yaml_that_cannot_be_parsed_is_named() -> None:
    [source] = sources(PurePath("x.yaml"), "a: 1\nb: [\nc: {{ x }}\n", "x")
    assert source.script.unread[0].language == "YAML"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nnodes:\n  - name: n0\n", True),
        ("workdir: /x\n", True),
        ("nodes: # two\n- name: n0\n", True),
        ("nodes: 2\nsetup: x\n", False),
        ("apiVersion: v1\nkind: Pod\nnodes:\n- a\n", False),
    ],
)
def test_inventories_differ_from_other_yaml(text: str, expected: bool) -> None:
    assert is_inventory(text) is expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("a.sh", "x", True), ("a", "#!/bin/bash\r\nx", True), ("a", "x", False), ("a", "#!/usr/bin/env python3\n", False)],
)
def test_scripts_of_a_shell_are_known_by_name_or_first_line(name: str, text: str, expected: bool) -> None:
    assert is_shell_script(PurePath(name), text) is expected


def test_python_is_read_for_the_variables_that_it_sets() -> None:
    """As torch's tutorials write them. It is parsed: quotes and brackets of Python are none of a shell."""
    text = """#!/usr/bin/env python
'''It's a program (with a bracket.'''
import os
from os import environ
os.environ["NCCL_BUFFSIZE"] = "8M"
os.environ['MASTER_PORT'] = str(12355)
environ.setdefault("NCCL_DEBUG", level)
os.environ.update({"NCCL_A": "1", **more}, NCCL_B=f"{x}")
os.putenv("NCCL_C", "2")
os.environ["RANK"] = "0"
other["NCCL_D"] = "1"
"""
    expected = [("NCCL_BUFFSIZE", "8M", 5), ("MASTER_PORT", "12355", 6), ("NCCL_DEBUG", None, 7)]
    expected += [("NCCL_B", None, 8), ("NCCL_A", "1", 8), ("NCCL_C", "2", 9)]
    assert _read("train.py", text) == _read("train", text) == expected
    [source] = sources(PurePath("broken.py"), "def f(:\n", "broken.py")
    assert [(entry.line, entry.language) for entry in source.script.unread] == [(1, "Python")]
