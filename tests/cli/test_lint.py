"""`orch lint`: output, exit codes, inventories, and files that cannot be linted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.app import app
from orchestrator.errors import UsageError
from orchestrator.usecases.checks.lint import LintOptions, lint
from orchestrator.usecases.launch.plan_launch import plan_launch
from orchestrator.usecases.launch_arguments import LaunchArguments
from tests.paths import CASES, ROOT

INVENTORY = """\
accelerator: cuda
network: infiniband
env: {NCCL_IB_TIMEOUT: 30, HF_TOKEN: hunter2, TORCH_NCCL_TOKEN: hunter2, NCCL_DEBUG: WARN}
defaults: {env: {NCCL_IB_GID_INDEX: 3}}
setup: ["export NCCL_DEBUG_SUBSYS=ALL"]
nodes:
  - {name: "n[0-3]", env: {NCCL_SOCKET_IFNAME: lo}}
  - {name: m, env: {ECCL_MAX_NCHANNELS: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return tmp_path


def _orch(*words: str) -> Result:
    return CliRunner().invoke(app, ["lint", *words], prog_name="orch", standalone_mode=False)


def test_inventory_is_linted_with_its_accelerator_and_network(folder: Path) -> None:
    assert folder.exists()
    done = _orch("--nccl", "2.23")
    assert done.return_value == 3
    lines = [line.split(": ")[0] for line in done.stdout.splitlines() if not line.startswith("     ")]
    assert lines == [
        "inventory.yaml",
        "  3  FAIL  NCCL_IB_TIMEOUT=30",
        "  4  WARN  NCCL_IB_GID_INDEX=3",
        "  5  WARN  NCCL_DEBUG_SUBSYS=ALL",
        "  7  WARN  NCCL_SOCKET_IFNAME=lo",
        "  8  INFO  ECCL_MAX_NCHANNELS=2",
    ]
    assert "(n[0-3])" in done.stdout
    assert "orch: 1 file: 1 FAIL, 3 WARN, 1 INFO" in done.stderr
    fixed = _orch("--nccl", "2.23", "--fix").stdout
    assert fixed.startswith('# env\nenv:\n  NCCL_IB_TIMEOUT: "22"\n')
    assert "hunter2" not in done.output + fixed


def test_json_has_file_line_and_replacement(folder: Path) -> None:
    script = folder / "env.sh"
    script.write_text("export NCCL_BUFFSIZE=8M\n")
    done = _orch("env.sh", "--json")
    assert done.return_value == 3
    [found] = json.loads(done.stdout)["findings"]
    assert (found["file"], found["line"], found["severity"]) == ("env.sh", 1, "FAIL")
    assert found["replacement"] == "NCCL_BUFFSIZE=8388608"
    assert _orch("env.sh", "--fix").stdout == "export NCCL_BUFFSIZE=8388608\n"


def test_findings_below_fail_end_with_0(folder: Path) -> None:
    shutil.copy(CASES / "t20_guide.sh", folder / "t20.sh")
    assert _orch("t20.sh").return_value == 0


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "inventories").glob("*.yaml")))
def test_shipped_inventories_have_no_findings(name: str) -> None:
    assert lint(str(ROOT / "inventories" / name), (), LintOptions()).findings == ()


def test_reader_follows_from_the_name_and_the_lines(folder: Path) -> None:
    names = {
        "run.sh": "NCCL_NET=IB\n",  # not exported
        "plain.txt": "NCCL_NET=IB\n",
        "my.env": "NCCL_NET=IB\n",
        "nccl.conf": "NCCL_NET='IB'\n",  # quotes
        "inv.yml": "nodes: [{name: a, env: {NCCL_NET: Socket}}]\n",
    }
    for name, text in names.items():
        (folder / name).write_text(text)
    found = lint(None, [Path(name) for name in names], LintOptions()).findings
    assert [(entry.file, entry.finding.text.partition(": ")[2].split(",")[0]) for entry in found] == [
        ("run.sh", "is not exported"),
        ("nccl.conf", "quotes"),
        ("inv.yml", "TCP sockets"),
    ]


def test_shell_blocks_of_markdown_are_linted_and_fixed(folder: Path) -> None:
    text = "# It's\n```python\nNCCL_NET=1\n```\n\n```bash\nexport NCCL_BUFFSIZE=8M\n```\nthe 'end\n"
    (folder / "guide.md").write_text(text)
    result = lint(None, [Path("guide.md")], LintOptions())
    assert [(found.line, found.finding.check) for found in result.findings] == [(7, "NCCL_BUFFSIZE")]
    assert result.fixed["guide.md"] == text.replace("8M", "8388608")


def test_script_for_aws_adapters_may_turn_ib_off(folder: Path) -> None:
    (folder / "efa.sh").write_text("export FI_PROVIDER=efa\nexport NCCL_IB_DISABLE=1\n")
    assert [found.finding.severity.value for found in lint(None, [Path("efa.sh")], LintOptions()).findings] == ["INFO"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.sh", b"\0\x01", "is a binary file"),
        ("a.sh", b"x" * (1024 * 1024 + 1), "larger than 1048576 bytes"),
        ("a.json", b'{"a": 1,\n"b"}', "a.json:2: is not JSON"),
        ("absent.sh", None, "No such file"),
    ],
)
def test_file_that_cannot_be_linted(folder: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (folder / name).write_bytes(data)
    with pytest.raises(UsageError, match=words):
        lint(None, [Path(name)], LintOptions())


def test_fifo_folder_and_version_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe.sh")
    assert lint(None, [Path("pipe.sh")], LintOptions()).findings == ()
    with pytest.raises(UsageError, match="Is a directory"):
        lint(None, [folder], LintOptions())
    with pytest.raises(UsageError, match="--nccl: 'new' is not a version"):
        lint(None, (), LintOptions(nccl="new"))


def test_bytes_that_are_not_utf_8_are_no_error(folder: Path) -> None:
    (folder / "gbk.sh").write_bytes(b"# \xd6\xd0\xce\xc4\nexport NCCL_BUFFSIZE=8M\n")
    [found] = lint(None, [Path("gbk.sh")], LintOptions()).findings
    assert found.line == 2


def test_launch_names_wrong_variables_of_the_inventory_once(folder: Path) -> None:
    (folder / "train.py").write_text("")
    arguments = LaunchArguments("ssh", "inventory.yaml", None, "2x1", None, (), ("train.py",))
    planned = plan_launch(arguments)
    planned.close()
    [warning] = [warning for warning in planned.warnings if "orch lint" in warning]
    assert warning.startswith(
        "variables of the inventory that are wrong or useless: NCCL_IB_TIMEOUT (FAIL), NCCL_IB_GID_INDEX (WARN), NCCL_SOCKET_IFNAME (WARN);"
    )
    (folder / "inventory.yaml").write_text(
        "env: {NCCL_IB_TIMEOUT: 22, NCCL_DEBUG: INFO}\naccelerator: cuda\ndevices: 1\nnodes: [{name: n}]\n"
    )
    planned = plan_launch(replace(arguments, shape=None))
    planned.close()
    assert planned.warnings == ()


@pytest.mark.processes
def test_variables_of_a_live_node_are_linted_with_its_facts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "local.yaml").write_text("transport: local\nnodes: [{name: n0}]\n")
    (folder / ".nccl.conf").write_text("NCCL_NTHREADS=640\n")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "30")
    done = _orch("-i", "local.yaml", "--node", "n0")
    assert done.return_value == 3
    assert "  FAIL  NCCL_IB_TIMEOUT=30: a lost link hangs the job" in done.stdout
    assert f"{folder}/.nccl.conf\n  1  FAIL  NCCL_NTHREADS=640: is above" in done.stdout
    assert "(n0)" in done.stdout


def _found(folder: Path, name: str, text: str) -> list[str]:
    """Line, level and name of each finding on a file."""
    (folder / name).write_text(text)
    result = lint(None, [folder / name], LintOptions())
    return [f"{found.line} {found.finding.severity.value} {found.finding.check}" for found in result.findings]


@pytest.mark.parametrize(
    ("name", "text", "findings"),
    [
        ("a.sh", "export RANK=0\npython x.py\n", []),
        ("a.sh", "export RANK=0\ntorchrun x.py\n", ["1 INFO RANK"]),
        ("a.env", "RANK=0\n", ["1 INFO RANK"]),
        ("a.sh", "export MASTER_PORT=99999\npython x.py\n", ["1 FAIL MASTER_PORT"]),
        ("a.sh", "f() { export NCCL_DEBUG=TRACE; }\nf\nf\n", ["1 WARN NCCL_DEBUG"]),
        ("a.sh", "cat > b.sh <<EOF\nexport NCCL_DEBUG=TRACE\nEOF\n", ["2 WARN NCCL_DEBUG"]),
        ("a.sh", "A=)\nexport NCCL_DEBUG=TRACE\n", ["1 WARN script", "2 WARN NCCL_DEBUG"]),
        ("a.sh", 'export NCCL_DEBUG=TRACE\nA="x\n', ["1 WARN NCCL_DEBUG", "2 WARN script"]),
        ("a.sh", "export NCCL_DEBUG = TRACE\n", ["1 WARN NCCL_DEBUG"]),
        ("a.sh", "NCCL_DEBUG = TRACE\n", ["1 WARN NCCL_DEBUG"]),
        ("a.md", "```bash\nA=)\n```\n", ["2 INFO script"]),
        ("a.md", "```bash\nNCCL_DEBUG=TRACE\n```\n", ["2 WARN NCCL_DEBUG"]),
        ("a.md", "```bash\nNCCL_IB_TIMEOUT=22\n```\n", []),
        ("a.md", "```bash\nNCCL_IB_TIMEOUT=22\npython x.py\n```\n", ["2 WARN NCCL_IB_TIMEOUT"]),
        (
            "Dockerfile",
            "FROM x\nENV NCCL_DEBUG=TRACE\nRUN export NCCL_NET=IB\n",
            ["2 WARN NCCL_DEBUG", "3 WARN NCCL_NET"],
        ),
        ("w.yaml", "jobs:\n  a:\n    env: {NCCL_DEBUG: TRACE}\n", ["3 WARN NCCL_DEBUG"]),
        ("w.yaml", "a: [\n", ["2 WARN script"]),
        ("a.sh", "#!/bin/bash\r\nx\r\n", ["1 FAIL line-ends"]),
        ("a.json", '{"num_machines": 2}', ["1 INFO json"]),
        ("s.sh", "x\n#SBATCH --nodes=2\nsrun bash -c 'python x.py'\n", ["2 WARN sbatch"]),
        ("s.sbatch", "#SBATCH --nodes=2\nsrun -K torchrun --node_rank $SLURM_NODEID x.py\n", ["2 FAIL SLURM_NODEID"]),
    ],
)
def test_files_are_read_by_their_kind(folder: Path, name: str, text: str, findings: list[str]) -> None:
    assert _found(folder, name, text) == findings


def test_notebook_is_refused(folder: Path) -> None:
    (folder / "a.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="notebooks are not read") as caught:
        lint(None, [folder / "a.ipynb"], LintOptions())
    assert "nbconvert" in str(caught.value.hint)


def test_blanks_around_the_equals_sign_are_mended(folder: Path) -> None:
    (folder / "a.sh").write_text("export NCCL_IB_TIMEOUT = 22\nNCCL_IB_TIMEOUT = 22\n")
    fixed = lint(None, [folder / "a.sh"], LintOptions()).fixed[str(folder / "a.sh")]
    assert fixed == "export NCCL_IB_TIMEOUT=22\nexport NCCL_IB_TIMEOUT=22\n"


@pytest.mark.processes
def test_only_scripts_need_the_parser() -> None:
    code = "import sys, orchestrator.usecases.launch.plan_launch, orchestrator.cli.app; sys.exit('tree_sitter' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
