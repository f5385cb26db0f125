"""`python -m trainer.data tokenize`: the tokens of documents, in parts, by several processes, continued after a kill."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.grounds import components
from tests.grounds.chats import SPECIAL, write_records, write_tokenizer
from tests.paths import ROOT
from tests.until import until
from trainer.data.__main__ import main
from trainer.data.corpus import pieces
from trainer.data.corpus.command import ProgressLines
from trainer.data.corpus.folder import TokenFolder
from trainer.data.corpus.shard import kind_for
from trainer.data.files import find_tokens
from trainer.data.tokenizer import Tokenizer

pytestmark = pytest.mark.processes

SMALL = 3000  # bytes of a part: a few files make many
SOURCES = [Path(sysconfig.get_paths()["stdlib"], name) for name in ("bisect.py", "heapq.py", "textwrap.py")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_BYTES", SMALL)
    monkeypatch.setattr(pieces, "PARTS", 10**9)


def tokenize(folder: Path, output: Path, *texts: Path, words: Sequence[str] = ("--processes", "3")) -> list[int]:
    """The tokens that the trainer reads from the new folder."""
    assert main(["tokenize", *map(str, texts), "--tokenizer", str(folder), "--output", str(output), *words]) == 0
    assert not output.with_name(f"{output.name}.partial").exists()
    found = find_tokens([str(output)], "auto")
    tokens: list[int] = found.read(0, len(found)).tolist()
    return tokens


def expected(folder: Path, documents: Sequence[str]) -> list[int]:
    tokenizer = Tokenizer(folder)
    end = tokenizer.token("eos_token")
    assert end is not None
    return [token for text in documents for ids in tokenizer.encode([text]) for token in (*ids, end)]


def test_text_file_is_one_document_in_several_files_of_tokens(folder: Path, tmp_path: Path) -> None:
    texts = [path.read_text("utf-8") for path in SOURCES]
    assert tokenize(folder, tmp_path / "out", *SOURCES) == expected(folder, texts)
    assert len(list((tmp_path / "out").glob("*.npy"))) > 5
    manifest = json.loads((tmp_path / "out" / ".tokens.json").read_text())
    assert (manifest["documents"], manifest["kind"], len(manifest["contents"])) == (3, "uint16", 64)


def test_block_of_a_long_text_does_not_end_within_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.corpus.documents.BLOCK_BYTES", 64)
    texts = [path.read_text("utf-8") for path in SOURCES]
    folder = write_tokenizer(tmp_path / "tokenizer", size=600, texts=texts)  # has tokens of several spaces
    assert tokenize(folder, tmp_path / "out", SOURCES[0]) == expected(folder, [SOURCES[0].read_text("utf-8")])


def _write_parquet(path: Path, columns: dict[str, list[Any]], *, rows: int) -> None:
    """`rows` is the size of a row group."""
    components.module("pyarrow")
    table = importlib.import_module("pyarrow").table(columns)
    importlib.import_module("pyarrow.parquet").write_table(table, str(path), row_group_size=rows)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_each_record_is_a_document(folder: Path, tmp_path: Path, form: str) -> None:
    texts = [f"{number} plus {number} is\n {2 * number} é" * (1 + number % 7) for number in range(300)]
    path = tmp_path / f"a.{form}"
    if form == "jsonl":
        write_records(path, [{"id": 1, "body": text} for text in texts])
    else:
        _write_parquet(path, {"id": [1] * 300, "body": texts}, rows=40)
    tokens = tokenize(folder, tmp_path / "out", path, words=("--field", "body", "--processes", "2"))
    assert tokens == expected(folder, texts)
    assert len(list((tmp_path / "out").glob("*.npy"))) > 3


def _packed(content: bytes, form: str) -> bytes:
    """In two members or frames, as files that were appended to each other have."""
    half = len(content) // 2
    if form == "gz":
        return gzip.compress(content[:half]) + gzip.compress(content[half:])
    components.module("zstandard")
    compress = importlib.import_module("zstandard").ZstdCompressor().compress
    return bytes(compress(content[:half]) + compress(content[half:]))


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_compressed_files_have_the_tokens_of_their_texts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("trainer.data.corpus.documents.BLOCK_BYTES", 4096)  # a text has several blocks
    texts = [path.read_text("utf-8") for path in SOURCES]
    records = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / f"a.jsonl.{form}").write_bytes(_packed(records, form))
    (tmp_path / f"b.json.{form}").write_bytes(_packed(json.dumps([{"text": text} for text in texts]).encode(), form))
    (tmp_path / f"c.py.{form}").write_bytes(_packed(SOURCES[0].read_bytes(), form))
    tokens = tokenize(
        folder, tmp_path / "out", *(tmp_path / f"{name}.{form}" for name in ("a.jsonl", "b.json", "c.py"))
    )
    assert tokens == expected(folder, [*texts, *texts, texts[0]])
    assert len(list((tmp_path / "out").glob("*.npy"))) == 3


@pytest.mark.parametrize("start", ["", "\ufeff \n"])
def test_json_file_is_a_list_of_records_or_else_a_text(folder: Path, tmp_path: Path, start: str) -> None:
    records = [{"id": number, "text": f"{number} é\n"} for number in range(900)]
    (tmp_path / "a.json").write_text(start + json.dumps(records, indent=1), "utf-8")
    (tmp_path / "b.json").write_text('{"text": 5}')
    tokens = tokenize(folder, tmp_path / "out", tmp_path / "a.json", tmp_path / "b.json")
    assert tokens == expected(folder, [*(str(record["text"]) for record in records), '{"text": 5}'])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"text": "a"}, 5]', ", record 2: a number, no record"),
        ('[{"text": "a"}, {"body": "b"}]', ", record 2: no field 'text': its keys are body; name another --field"),
        ('[{"text": "a"},', ": not valid JSON: Expecting value at column 16"),
    ],
)
def test_invalid_list_of_records_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    assert f"error: {tmp_path / 'a.json'}{reason}\n" in _error(folder, tmp_path, capsys, str(tmp_path / "a.json"))


@pytest.mark.parametrize("form", ["gz", "zst"])
@pytest.mark.parametrize(
    ("content", "damage", "reason"),
    [
        (b'{"text": "a"}\n' * 999, lambda packed: packed[:-9], "is cut short"),
        (b'{"text": "a"}\n' * 999, lambda packed: packed + b"more", "cannot be unpacked: "),
        (b'{"text": "a"}\n' * 999, lambda _: b"plain text", "cannot be unpacked: "),
        (b'{"text": "a"}\n{"text": 5}\n', bytes, "line 2: text is number: a text is needed"),
        (b"abc\0def", bytes, "no text but binary data: "),
    ],
    ids=["cut short", "more after the end", "not compressed", "invalid record", "binary"],
)
def test_damaged_compressed_file_is_named(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    content: bytes,
    damage: Callable[[bytes], bytes],
    reason: str,
) -> None:
    path = tmp_path / f"a.jsonl.{form}"
    path.write_bytes(damage(_packed(content, form)))
    error = _error(folder, tmp_path, capsys, str(path))
    assert error.startswith(f"error: {path}")
    assert reason in error


def test_zstandard_that_is_missing_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "zstandard" else find(name))
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    assert _error(folder, tmp_path, capsys, str(path)) == (
        f"error: {path}: zstd needs the package zstandard, which is not installed for {sys.executable}\n"
    )


def test_document_begins_with_bos_if_the_tokenizer_writes_one(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin, end = (int(tokenizer.token_to_id(text) or 0) for text in SPECIAL[:2])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], begin)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    text = "what is 1 plus 1?\n" * 400
    (tmp_path / "a.txt").write_text(text)
    tokens = tokenize(folder, tmp_path / "out", tmp_path / "a.txt")
    assert (tokens[0], tokens[-1], tokens.count(begin), tokens.count(end)) == (begin, end, 1, 1)


@pytest.mark.parametrize(("vocabulary", "kind"), [(256, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_type_holds_the_vocabulary(vocabulary: int, kind: str) -> None:
    assert kind_for(vocabulary) == kind


def test_large_vocabulary_is_written_as_uint32_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {f"w{number}": number for number in range(70_000)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "w1"}')
    (tmp_path / "a.txt").write_text("w5 w69999 w65536")
    assert tokenize(tmp_path, tmp_path / "out", tmp_path / "a.txt") == [5, 69_999, 65_536, 1]
    assert "type=uint32 holds the 70000 tokens of " in capsys.readouterr().out


def _error(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["tokenize", "--tokenizer", str(folder), "--output", str(tmp_path / "out"), *words]) == 2
    assert not (tmp_path / "out").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": ', "not valid JSON: Expecting value at column 10"),
        ('["text"]', "a list, no record"),
        ('{"body": "x"}', "no field 'text': its keys are body; name another --field"),
        ('{"messages": []}', "no field 'text': its keys are messages; chats are not tokenized before"),
        ('{"text": 5}', "text is number: a text is needed"),
        ('{"text": "\\ud800"}', "has \\ud800, half of a character"),
    ],
)
def test_invalid_record_is_named_with_its_line_in_any_part(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"text": "what is 1 plus 1?"}\n' * 1000
    path.write_text(f"{good}\n{line}\n{good}")
    assert f"error: {path}, line 1002: {reason}" in _error(folder, tmp_path, capsys, str(path))


def test_wrong_bytes_in_a_text_are_named_with_their_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456\n" * 1000 + b"abc\xff\n" + b"0123456\n" * 1000)
    assert f"error: {path}, line 1001: not valid UTF-8 at byte 8003 of the file\n" in _error(
        folder, tmp_path, capsys, str(path)
    )


@pytest.mark.parametrize(("number", "rows"), [(3, ["a", "b", None]), (1, [None])])
def test_row_without_a_text_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, rows: list[str | None]
) -> None:
    path = tmp_path / "a.parquet"
    _write_parquet(path, {"text": rows}, rows=2)
    assert f"error: {path}, row {number}: text is null: a text is needed" in _error(folder, tmp_path, capsys, str(path))
    words = (str(path), "--field", "body", "--output", str(tmp_path / "new"))
    assert f"error: {path}: no column 'body': it has text; name another --field" in _error(
        folder, tmp_path, capsys, *words
    )


def test_files_that_are_no_text_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, empty, wrong = tmp_path / "a.jsonl", tmp_path / "b.txt", tmp_path / "c.parquet"
    packed.write_bytes(gzip.compress(b"{}"))
    empty.touch()
    wrong.write_text("no Parquet")
    assert f"error: {packed}: no text but gzip: name it a.jsonl.gz" in _error(folder, tmp_path, capsys, str(packed))
    assert "no text in it" in _error(folder, tmp_path, capsys, str(empty))
    assert f"error: tokenize: {tmp_path / 'none'}: no such file or folder" in _error(
        folder, tmp_path, capsys, str(tmp_path / "none")
    )
    assert "allowed: a whole number above 0" in _error(folder, tmp_path, capsys, str(packed), "--processes", "0")
    assert f"error: {wrong}: " in _error(folder, tmp_path, capsys, str(wrong))


def test_tokenizer_without_an_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    (folder / "tokenizer_config.json").unlink()
    assert "no eos_token in tokenizer_config.json beside it" in _error(folder, tmp_path, capsys, str(SOURCES[0]))


def test_folder_of_other_texts_is_not_touched_and_the_same_command_does_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    tokens = tokenize(folder, output, SOURCES[0])
    assert tokenize(folder, output, SOURCES[0]) == tokens
    assert f"{output}: is done; nothing is left to tokenize\n" in capsys.readouterr().out
    words = ["tokenize", str(SOURCES[1]), "--tokenizer", str(folder), "--output", str(output)]
    assert main(words) == 2
    assert f"error: {output}: exists, and was not made of these texts" in capsys.readouterr().err
    started = TokenFolder(tmp_path / "new", {"texts": []}, 1)
    with started.open():
        pass
    assert main([*words[:-1], str(tmp_path / "new")]) == 2
    assert f"error: {tmp_path / 'new.partial'}: has parts of other texts" in capsys.readouterr().err


PROGRAM = f"""
import sys
from trainer.data.__main__ import main
from trainer.data.corpus import pieces
pieces.LEAST_BYTES, pieces.PARTS = {SMALL}, 10**9
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "tokenize", *words], env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_killed_at_any_moment_it_continues_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    records = [{"text": f"what is {number} plus {number}? it is {2 * number}\n" * 40} for number in range(3000)]
    path = write_records(tmp_path / "a.jsonl", records)
    words = (str(path), "--tokenizer", str(folder), "--processes", "2")
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    results = partial / ".parts"
    for goal in (0, 1, 20):  # before the first part, and after some more of the others
        done = len(list(results.glob("*.json")))
        with _started(*words, "--output", str(output)) as process:
            until(
                lambda: results.exists() and len(list(results.glob("*.json"))) >= done + goal,
                awaited="parts that are done",
            )
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGKILL)
        until(lambda: not any(_is_running(child) for child in children), awaited="the end of all processes")
        assert partial.exists()
        assert not output.exists()
    kept = {shard: shard.stat().st_mtime_ns for shard in partial.glob("*.npy")}
    with _started(*words, "--output", str(output)) as process:
        assert process.wait(120) == 0
    assert len(kept) >= 20
    with _started(*words, "--output", str(tmp_path / "whole")) as process:
        assert process.wait(120) == 0
    names = sorted(shard.name for shard in output.glob("*.npy"))
    assert names == sorted(shard.name for shard in (tmp_path / "whole").glob("*.npy"))
    assert all((output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    assert sum((output / shard.name).stat().st_mtime_ns == made for shard, made in kept.items()) >= len(kept) - 2
    assert not (output / ".parts").exists()


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_progress_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 4.0, 5.0, 6.0])
    lines = ProgressLines(100_000_000, lambda: next(times))
    for _ in range(3):
        lines.add(10_000_000, 1000)
    assert capsys.readouterr().out == "tokenize done_mb=20.0 total_mb=100.0 tokens=2000 mb/s=4.00 eta=0:00:20\n"
