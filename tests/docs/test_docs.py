"""The documentation matches the code: commands, options, fields, links with their anchors, and examples that parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.app import VERBS, app, run
from orchestrator.inventory import model as inventory
from orchestrator.inventory import slurm
from orchestrator.portable.checks.quick import CHECKS
from tests.paths import ROOT
from trainer.comm.config import CommConfig
from trainer.config.load import schemas_by_key

DOCS = ROOT / "docs"
COMMANDS = tuple(VERBS)
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *ROOT.glob("inventories/*.md"))
)
GUIDES = [page for page in PAGES if not page.startswith("docs/decisions/")]
LAUNCHES = ("submit", "ssh-launch")


def _help(*words: str) -> str:
    done = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}).invoke(
        app, [*words, "--help"], prog_name="orch"
    )
    assert done.exit_code == 0, done.output
    return done.output


def _text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def test_help_lists_every_verb() -> None:
    listed = re.findall(r"^  ([a-z][a-z-]+) ", _help().partition("Options:")[2], re.MULTILINE)
    assert set(listed) == set(COMMANDS)


def test_settings_of_the_benchmark_are_documented() -> None:
    page = _text("docs/bandwidth.md")
    assert not [field.name for field in fields(CommConfig) if f"| `{field.name}` |" not in page]


def test_every_quick_check_has_a_row() -> None:
    section = _text("docs/checks.md").partition("\n## The checks\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", cell) for cell in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)]
    assert [name for names in rows for name in names] == list(CHECKS)


def test_every_field_of_an_inventory_is_documented() -> None:
    text = _text("docs/inventories.md")
    models = (inventory._InventoryFile, inventory._Entry, inventory.SshOptions, slurm.SlurmOptions)
    names = {name for model in models for name in model.model_fields}
    missing = sorted(name for name in names if not re.search(rf"^\|[^|]*`{name}`[^|]*\|", text, re.MULTILINE))
    assert not missing, f"docs/inventories.md has no row for {missing}"


def test_defaults_of_ssh_fields_are_those_documented() -> None:
    section = _text("docs/inventories.md").partition("\n## ssh\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([\w.~/-]+)`? \|", section, re.MULTILINE))
    for name, field in inventory.SshOptions.model_fields.items():
        if isinstance(field.default, (int, float)):
            assert float(rows[name]) == field.default, name
        elif field.default is not None:
            assert rows[name] == field.default, name


def test_every_key_of_the_trainer_is_documented() -> None:
    text = _text("docs/trainer.md")
    for key in schemas_by_key():
        assert f"`{key}`" in text, f"docs/trainer.md does not explain {key}"


def _anchors(page: Path) -> set[str]:
    """The anchors of the headings, which have to be the same on GitHub and on the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    anchors = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        github, site = re.sub(r"\s", "-", words), re.sub(r"[-\s]+", "-", words)
        assert github == site, f"{page}: the heading {heading!r} has two anchors: {github}, {site}"
        anchors.add(site)
    return anchors


@pytest.mark.parametrize("page", PAGES)
def test_links_have_existing_targets(page: str) -> None:
    path = ROOT / page
    code = re.compile(r"^```.*?^```|^    [^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", code.sub("", _text(page))):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), f"{page} links to {target}"
        assert not page.startswith("docs/") or found.is_relative_to(DOCS), f"{page}: {target} is not on the site"
        assert not anchor or anchor in _anchors(found), f"{page}: {target} has no heading #{anchor}"


def test_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r": ([\w./-]+\.md)$", nav, re.MULTILINE))
    decisions = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("decisions/[0-9]*.md")}
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")} - decisions


def test_each_decision_is_in_one_section_of_the_index_with_its_own_title() -> None:
    listed: list[tuple[str, str]] = []
    for section in _text("docs/decisions/index.md").split("\n## ")[1:]:
        heading, _, entries = section.partition("\n\n- ")
        rows = re.findall(r"^- \[(.*?)\]\(([^)]+)\)", f"- {entries}", re.MULTILINE)
        assert rows, f"no decision in: {heading}"
        assert len(rows) == f"- {entries}".count("\n- ") + 1
        assert rows == sorted(rows, key=lambda row: row[1])
        assert all((ROOT / name).exists() for name in re.findall(r"`([^`]+)`", heading)), heading
        listed += rows
    titles = {
        path.name: path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        for path in DOCS.glob("decisions/[0-9]*.md")
    }
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


def test_decisions_that_are_superseded_are_marked() -> None:
    index = _text("docs/decisions/index.md")
    for path in DOCS.glob("decisions/[0-9]*.md"):
        by = re.search(r"^Superseded by .*\(([^)]+)\)", path.read_text("utf-8"), re.MULTILINE)
        entry = next(line for line in index.splitlines() if line.startswith(f"- [{path.name[:3]} "))
        assert ("superseded by" in entry) == (by is not None), entry
        assert by is None or f"]({by[1]})" in entry, entry


@pytest.mark.parametrize("path", sorted(DOCS.glob("decisions/[0-9]*.md")), ids=lambda path: path.stem)
def test_title_of_a_decision_is_short_and_has_its_number(path: Path) -> None:
    heading = path.read_text("utf-8").partition("\n")[0]
    number, _, title = heading.removeprefix("# ").partition(" ")
    assert number == path.name[:3]
    assert 10 < len(title) <= 90, title
    assert not title.endswith("."), title


def test_how_it_works_names_files_that_exist() -> None:
    for name in re.findall(r"`((?:orchestrator|trainer|templates)/[\w./-]*)`", _text("docs/how-it-works.md")):
        assert (ROOT / name).exists(), name


def test_each_row_of_the_file_table_names_existing_definitions() -> None:
    section = _text("docs/how-it-works.md").partition("\n## Where things are\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", section, re.MULTILINE)[1:]  # without its header
    assert len(rows) > 20
    assert len(rows) == section.count("\n|") - 2
    for subject, paths, definitions in rows:
        files = [ROOT / path for path in re.findall(r"`([^`]+)`", paths)]
        names = re.findall(r"`([^`]+)`", definitions)
        assert files, subject
        assert names, subject
        assert all(path.exists() for path in files), subject
        modules = [module for path in files for module in (path.glob("*.py") if path.is_dir() else [path])]
        texts = [module.read_text("utf-8") for module in modules]
        for name in names:
            assert any(re.search(rf"^(?:class |def |){name}\b", text, re.MULTILINE) for text in texts), name


def _code(page: str) -> Iterator[str]:
    """The lines of a page's code blocks, without comments; lines continued by a backslash are joined."""
    text = re.sub(r"\\\n\s*", "", _text(page))
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    for line in (line for block in blocks for line in block.splitlines()):
        yield re.sub(r"\s+#.*", "", line.strip())


def _examples(page: str) -> Iterator[list[str]]:
    """The words of each command line of orch, also in a sentence or table, except for usage forms such as `orch logs [RUN]`."""
    for line in (*_code(page), *re.findall(r"(?<!`)`(orch [^`\n]+)`", _text(page))):
        command = re.split(r"\s[>|]\s|\s&&\s", line)[-1 if "| orch" in line else 0]
        if command.startswith("orch ") and not re.search(
            r"[\[…|]|->|\b[A-Z]{3,}\b", command.partition(" -- ")[0].replace("n[", "")
        ):
            yield shlex.split(command)[1:]


def _named(page: str) -> set[str]:
    """The commands that a page names as code."""
    spans = re.findall(r"`orch ([a-z][a-z-]+)", _text(page))
    return {*spans, *(found[1] for line in _code(page) if (found := re.match(r"orch ([a-z][a-z-]+)", line)))}


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_only_existing_commands(page: str) -> None:
    assert _named(page) <= set(COMMANDS)


@pytest.mark.parametrize("page", GUIDES)
def test_examples_parse(page: str) -> None:
    """click reports unknown options and wrong values before it handles --help."""
    for words in _examples(page):
        known = words[: words.index("--")] if "--" in words else words
        done = CliRunner().invoke(app, [*known, "--help"], prog_name="orch")
        assert done.exit_code == 0, f"{page}: orch {shlex.join(words)}\n{done.output}"


@pytest.mark.processes
def test_launches_in_guides_can_be_planned_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the shipped inventory that the guides copy, and --dry-run instead of the inventory's nodes."""
    (tmp_path / "inventory.yaml").write_text(_text("inventories/h800.yaml").replace("h800-[00-15]", "n[0-15]"))
    for name in ("train.py", "hello.py", "count.py", "run.sh"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / ".orch-home"))
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-15]"}
    launches = {tuple(words) for page in GUIDES for words in _examples(page) if words[0] in LAUNCHES}
    assert len(launches) > 10
    for words in sorted(launches):
        if "--sweep" not in words:
            extra = [] if "--dry-run" in words else ["--dry-run"]
            with monkeypatch.context() as patch:
                for name, value in (job if "--here" in words else {}).items():
                    patch.setenv(name, value)
                code = run([words[0], *extra, *words[1:]])
            assert code == 0, f"orch {shlex.join(words)}\n{capsys.readouterr().err}"
            capsys.readouterr()


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    for page in (*PAGES, "Makefile", "setup.cfg", "pyproject.toml", "scripts/release-check.sh"):
        named = set(re.findall(r"(?:^ *|[`#·] ?)make ([a-z][a-z-]*)", _text(page), re.MULTILINE))
        assert not named - targets, f"{page}: the Makefile has no target called {named - targets}"


def test_security_promises_name_tests_and_rows_that_exist() -> None:
    text = _text("SECURITY.md")
    for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py|tests/\w[\w/]*)`", text):
        assert (ROOT / name).exists() or (ROOT / "tests" / "security" / name).is_file(), name
    rows = set(re.findall(r"^\| (S\d+) \|", _text("docs/faults.md"), re.MULTILINE))
    promised = set(re.findall(r"\bS\d+\b", text))
    assert len(promised) > 10
    assert promised <= rows


@pytest.mark.parametrize("page", [page for page in GUIDES if page not in {"docs/benchmarks.md", "docs/faults.md"}])
def test_pages_are_readable(page: str) -> None:
    """Also as plain text: lines and table cells have a limited length."""
    for line in re.sub(r"^```.*?^```", "", _text(page), flags=re.MULTILINE | re.DOTALL).splitlines():
        cells = line.strip("|").split(" | ") if line.startswith("|") else []
        assert len(line) <= 170 or cells, line
        for cell in cells:
            assert len(re.sub(r"\]\([^)]*\)", "", cell)) <= 200, cell
