"""Chat records: rendered as transformers does, masked by answers, packed without an effect on the loss."""

from __future__ import annotations

import fcntl
import json
import pickle
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.grounds.chats import MARKED, TEMPLATE, TOKENS, chat, sums, write_records, write_tokenizer
from tests.grounds.llama_logits import VARIANTS, fill
from trainer.config.load import load_config
from trainer.data.chat_records import read_records
from trainer.data.conversations import load_conversations, tokenized
from trainer.data.language import count_targets, inputs_of, open_language
from trainer.data.packing import IGNORED, PackedConversations, pack
from trainer.data.tokenizer import Tokenizer
from trainer.errors import UserError
from trainer.tasks.llama import Llama
from trainer.tasks.load import load_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(folder: Path, records: list[Any], tmp_path: Path, template: str | None = None) -> list[tuple[str, str]]:
    """The text of each conversation, and of the trained tokens, with | between parts."""
    tokenizer = Tokenizer(folder)
    tokenizer.template = tokenizer.template if template is None else template
    decode: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True).decode
    found = []
    for ids, mask in tokenized(read_records(write_records(tmp_path / "a.jsonl", records), "data.paths"), tokenizer):
        parts, before = "", 0
        for token, trained in zip(ids, mask, strict=True):
            parts += ("|" if trained and not before else "") + (decode([token]) if trained else "")
            before = trained
        found.append((decode(ids), parts))
    return found


def test_tokens_are_those_of_transformers_and_answers_alone_are_trained(folder: Path, tmp_path: Path) -> None:
    record = chat("what is 1 plus 1?", "it is 2", "sure?", "yes <|end|> no")
    [(text, trained)] = read(folder, [record], tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert text == theirs.apply_chat_template(record["messages"], tokenize=False)
    assert trained == "|it is 2<|end|>\n|yes <|end|> no<|end|>\n"


def test_marked_parts_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    record = chat("what is 1 plus 1?", "it is 2", "sure?", "yes")
    tokenizer = Tokenizer(folder)
    tokenizer.template = MARKED
    [(ids, mask)] = tokenized(read_records(write_records(tmp_path / "a.jsonl", [record]), ""), tokenizer)
    theirs: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True).apply_chat_template(
        record["messages"], chat_template=MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    assert {"input_ids": ids, "assistant_masks": list(mask)} == {
        name: theirs[name] for name in ("input_ids", "assistant_masks")
    }
    [(_, trained)] = read(folder, [record], tmp_path, MARKED)
    assert trained == "|\nit is 2<|end|>|\nyes<|end|>"


def test_only_the_completion_is_trained(folder: Path, tmp_path: Path) -> None:
    turns = chat("what is 1 plus 1?", "2", "sure?", "yes")["messages"]
    chats = {"prompt": turns[:3], "completion": turns[3:]}
    plain = {"prompt": "what is 1 plus 1?\n", "completion": "it is 2"}
    for template in (TEMPLATE, MARKED):
        [(text, trained), (plain_text, plain_trained)] = read(folder, [chats, plain], tmp_path, template)
        assert text.startswith("<|begin|>[user]\nwhat is 1 plus 1?<|end|>\n[assistant]\n2<|end|>")
        assert trained.strip("|\n") == "yes<|end|>"
        assert (plain_text, plain_trained) == ("what is 1 plus 1?\nit is 2<|end|>", "|it is 2<|end|>")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: not valid JSON: Expecting property name"),
        ("[]", "line 3: a list, no record"),
        ("{}", "line 3: neither messages nor prompt: it is empty; a line has to be "),
        ('{"text": "a"}', "line 3: neither messages nor prompt: its keys are text"),
        ('{"messages": [], "prompt": ""}', "line 3: both messages and prompt"),
        ('{"messages": []}', "line 3: messages is empty"),
        ('{"messages": ["a"]}', "line 3: messages[0] is text, no message"),
        ('{"messages": [{"content": "a"}]}', "line 3: messages[0] has no role, a text such as user or assistant"),
        ('{"messages": [{"role": "user"}]}', "line 3: messages[0] has no content: a text is needed"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}',
            "line 3: messages[0] has a list as content: a text is needed",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            "line 3: messages has no message with role=assistant, so nothing would be trained",
        ),
        ('{"instruction": "a"}', "line 3: the record has no output; a line has to be "),
        ('{"instruction": 5, "output": "a"}', "line 3: the record has a number as instruction: a text is needed"),
        ('{"instruction": "a", "output": ""}', "line 3: output is empty"),
        (
            '{"instruction": "a", "output": "b", "history": [["a"]]}',
            "line 3: history[0] is no pair of texts, a question",
        ),
        ('{"conversations": []}', "line 3: conversations is empty"),
        ('{"conversations": {}}', "line 3: conversations is mapping: a list is needed"),
        ('{"conversations": ["a"]}', "line 3: conversations[0] is text, no turn"),
        ('{"conversations": [{"value": "a"}]}', "line 3: conversations[0] has from=None: allowed: human, user, gpt"),
        ('{"conversations": [{"from": "gpt"}]}', "line 3: conversations[0] has no value"),
        ('{"conversations": [{"from": "human", "value": "a"}]}', "line 3: messages has no message with role=assistant"),
        ('{"prompt": "a"}', "line 3: has no completion"),
        ('{"prompt": "a", "completion": ""}', "line 3: completion is empty"),
        ('{"prompt": "a", "completion": [{"role": "user", "content": ""}]}', "line 3: prompt is text: a list of"),
        ("[" * 100000, "line 3: nested too deeply"),
        (r'{"prompt": "a \ud83d", "completion": "b"}', r"line 3: has \ud83d, half of a character; a line has"),
    ],
)
def test_invalid_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(chat('a', 'b'))}\n\n{line}\n")
    with pytest.raises(UserError) as caught:
        read_records(path, "data.paths")
    assert str(caught.value).startswith(f"data.paths: {path}: {message}")


ALPACA = {
    "instruction": "what is 1 plus 1?",
    "input": "sure?",
    "output": "it is 2",
    "system": "be short",
    "history": [["a", "b"]],
}
SHAREGPT = {
    "system": "be short",
    "conversations": [
        {"from": "human", "value": "a"},
        {"from": "gpt", "value": "b"},
        {"from": "user", "value": "what is 1 plus 1?\nsure?"},
        {"from": "assistant", "value": "it is 2"},
    ],
    "tools": [{"name": "sum"}],
}


def test_alpaca_and_sharegpt_are_read_as_messages_of_which_answers_alone_are_trained(
    folder: Path, tmp_path: Path
) -> None:
    texts = read(folder, [ALPACA, SHAREGPT], tmp_path)
    assert texts[0] == texts[1]
    text, trained = texts[0]
    assert text == (
        "<|begin|>[system]\nbe short<|end|>\n[user]\na<|end|>\n[assistant]\nb<|end|>\n"
        "[user]\nwhat is 1 plus 1?\nsure?<|end|>\n[assistant]\nit is 2<|end|>\n"
    )
    assert trained == "|b<|end|>\n|it is 2<|end|>\n"
    records = read_records(write_records(tmp_path / "a.jsonl", [SHAREGPT]), "")
    assert records[0].tools == [{"name": "sum"}]


def test_list_of_records_in_a_json_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "alpaca_data.json"
    path.write_text(json.dumps([{"instruction": "a", "input": "", "output": "b"}, chat("a", "b")], indent=1))
    first, second = read_records(path, "data.paths")
    assert first.messages == second.messages
    assert second.origin == f"{path}, record 2"
    path.write_text(json.dumps([chat("a", "b"), {"instruction": "a"}]))
    with pytest.raises(UserError, match=r"alpaca_data.json: record 2: the record has no output; a record has to be "):
        read_records(path, "data.paths")
    for text, reason in (
        ("{}", "a mapping; the file has to be a list of records"),
        (
            '[\n{"a": 1},\n]',
            "not valid JSON: Illegal trailing comma before end of array at line 2, column 9|at line 3, column 1",
        ),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=reason):
            read_records(path, "data.paths")


def test_llama_reads_a_json_file_as_chats(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "alpaca_data.json"
    path.write_text(json.dumps([{"instruction": f"what is {number}?", "output": "it"} for number in range(20)]))
    config = load_config(words=[f"data.paths={path}", f"data.tokenizer={folder}"])
    samples = open_language(config, "train", context=48, vocabulary=TOKENS, folder=folder, model={})
    assert isinstance(samples, PackedConversations)
    assert samples.description.startswith("20 conversations in ")


def test_chats_of_editors_on_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(chat("a", "b")), "utf-8-sig")
    assert [record.messages[1]["content"] for record in read_records(path, "data.paths")] == ["b"]


def test_all_invalid_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n' + b"7\n" * 5)
    with pytest.raises(UserError, match=r"line 1: not valid UTF-8 at byte 13; line 2: a number.*; and 3 more lines; a"):
        read_records(path, "data.paths")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", r"has no chat template \(chat_template.jinja, or chat_template in tokenizer_config.json\), which records"),
        ("{% if %}", r"its chat template is no Jinja: Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", r"a.jsonl, line 1: the chat .* fails: roles must alternate$"),
        ("{{ strftime_now('%Y') }}", r"fails: 'strftime_now' is undefined; a date would change the data"),
        ("{{ messages[0].content + 1 }}", r"a.jsonl, line 1: the chat template of .* fails: TypeError: can only"),
        ("{{ ''.__class__.__mro__ }}", r"a.jsonl, line 1: .* access to attribute '__class__' .* is unsafe"),
        ("{{ messages | length }}", r"line 1: .* writes the prompt before message 2 differently if more messages"),
        ("{{ messages[-1].content }}", r"line 1: .* writes the prompt before message 2 differently if more messages"),
        ("{% generation %}{% endgeneration %}", r"line 1: .* its chat template marks no part to be trained"),
    ],
)
def test_template_that_cannot_be_used_is_refused(folder: Path, tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(folder, [chat("one", "two")], tmp_path, template)


def test_token_across_the_border_of_an_answer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"a.jsonl, line 1: the tokens of the text up to an answer's border are not the"
    ):
        read(folder, [{"prompt": "what is 1 pl", "completion": "us 2"}], tmp_path)


def test_work_grows_with_the_turns_and_not_with_their_square(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, encoded = Tokenizer(folder), [0]
    encode = tokenizer.encode_with_offsets

    def counted(texts: Sequence[str]) -> Any:  # of the tokenizer
        encoded[0] += sum(map(len, texts))
        return encode(texts)

    monkeypatch.setattr(tokenizer, "encode_with_offsets", counted)
    [record] = read_records(write_records(tmp_path / "a.jsonl", [chat(*["what is 1 plus 1?"] * 200)]), "")
    [(ids, mask)] = tokenized([record], tokenizer)
    assert 100 <= sum(mask) < len(ids)  # 100 answers
    assert encoded[0] < 200 * 32 + 200 * 100  # the whole, and some tokens before each border


def test_conversation_without_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokenizer.encode_with_offsets = lambda texts: [([], []) for _ in texts]  # type: ignore[method-assign]
    path = write_records(tmp_path / "a.jsonl", [{"prompt": "", "completion": "a"}])
    with pytest.raises(
        UserError, match=r"a.jsonl, line 1: its text of 1 characters has no tokens, by .*tokenizer.json"
    ):
        list(tokenized(read_records(path, ""), tokenizer))


def test_text_cannot_claim_to_be_an_answer(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 1: contains U\+FDD0 or U\+FDD1"):
        read(folder, [chat("a \ufdd0 b", "c")], tmp_path, MARKED)


def test_tokens_are_made_once_until_they_or_the_data_change(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tokenizer = write_records(tmp_path / "a.jsonl", sums(4)), Tokenizer(folder)
    first = load_conversations([path], tokenizer, "data.paths")
    made: list[int] = []

    def counted(*arguments: Any) -> Any:  # of tokenized()
        made.append(1)
        return tokenized(*arguments)

    monkeypatch.setattr("trainer.data.conversations.tokenized", counted)
    second = load_conversations([path], tokenizer, "data.paths")
    assert not made
    assert second.digest == first.digest
    damaged = bytearray(first.path.read_bytes())
    damaged[-60] ^= 1
    first.path.write_bytes(damaged)
    assert torch.equal(load_conversations([path], tokenizer, "data.paths").tokens, second.tokens)
    assert len(made) == 1
    write_records(path, sums(5))
    assert load_conversations([path], tokenizer, "data.paths").digest != first.digest
    assert len(made) == 2


def test_who_waited_for_the_tokens_takes_them_or_their_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that another process found invalid is not looked for again; a later start looks."""
    path, tokenizer = write_records(tmp_path / "a.jsonl", sums(2)), Tokenizer(folder)
    wait, made = fcntl.flock, threading.Barrier(2)

    def waiting(file: Any, kind: int) -> None:  # of fcntl
        if kind == fcntl.LOCK_EX:
            made.wait(30)  # both have opened the lock file
        wait(file, kind)

    counted: list[int] = []

    def failing(*_: Any) -> Any:  # of tokenized()
        counted.append(1)
        raise UserError("line 1: too\nbad")

    def counting(*args: Any) -> Any:  # of tokenized()
        counted.append(2)
        return tokenized(*args)

    def problem(_: int) -> str:
        with pytest.raises(UserError) as caught:
            load_conversations([path], tokenizer, "data.paths")
        return str(caught.value)

    def digest(_: int) -> str:
        return load_conversations([path], tokenizer, "data.paths").digest

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr("trainer.data.conversations.fcntl.flock", waiting)
        patch.setattr("trainer.data.conversations.tokenized", failing)
        assert {" ".join(text.split()) for text in pool.map(problem, range(2))} == {"line 1: too bad"}
        assert len(counted) == 1
        patch.setattr("trainer.data.conversations.tokenized", counting)
        assert len(set(pool.map(digest, range(2)))) == 1
    assert counted == [1, 2]
    [kept] = (tmp_path / "cache" / "orch" / "chat").glob("*.safetensors*")
    assert kept.stat().st_mode & 0o777 == 0o600


def _packs(lengths: list[int], context: int) -> list[list[int]]:
    members, ends = (part.tolist() for part in pack(torch.tensor(lengths), context))
    return [members[first:last] for first, last in pairwise([0, *ends])]


@pytest.mark.parametrize("context", [7, 64, 1000])
def test_packing_holds_each_once_and_wastes_little(context: int) -> None:
    draw = random.Random(context)
    lengths = [draw.randint(1, context) for _ in range(3000)]
    packs = _packs(lengths, context)
    assert sorted(member for members in packs for member in members) == list(range(3000))
    filled = [sum(lengths[member] for member in members) for members in packs]
    assert max(filled) <= context
    assert sum(lengths) / (context * len(packs)) > 0.97
    assert packs == _packs(lengths, context)


def write_task(folder: Path, tmp_path: Path, records: list[Any], *words: str) -> Any:  # the task
    shape = {**VARIANTS["llama"], "vocab_size": TOKENS, "max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    data = write_records(tmp_path / "chat.jsonl", records)
    settings = (f"options.shape={tmp_path}", f"data.tokenizer={folder}", f"data.paths={data}", *words)
    return load_task(load_config(words=["task=trainer.tasks.llama:Llama", *settings]))


def test_packed_loss_is_that_of_each_conversation_alone(folder: Path, tmp_path: Path) -> None:
    task: Llama = write_task(folder, tmp_path, sums(9), "options.context=160")
    samples = task.build_data("train")
    assert isinstance(samples, PackedConversations)
    model = task.build_model()
    fill(model)
    batch = task.collate([samples[index] for index in range(len(samples))])
    packed = task.loss(model, batch)
    tokenizer, alone, terms = Tokenizer(folder), torch.zeros(()), 0
    for ids, mask in tokenized(read_records(tmp_path / "chat.jsonl", ""), tokenizer):
        target = [token if trained else IGNORED for token, trained in zip(ids, mask, strict=True)]
        alone = alone + model(torch.tensor([ids[:-1]]), torch.tensor([target[1:]]))
        terms += sum(mask)
    assert len(samples) < 9
    assert int(task.count_terms(batch)) == terms
    assert float(packed.detach()) == pytest.approx(float(alone.detach()), rel=1e-6)
    gradients = torch.autograd.grad(packed, list(model.parameters()))
    for ours, theirs in zip(gradients, torch.autograd.grad(alone, list(model.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_long_conversations_are_cut_and_counted(folder: Path, tmp_path: Path) -> None:
    records = [*sums(3), chat("word " * 90, "late"), chat("a", "word " * 90)]
    samples = write_task(folder, tmp_path, records, "options.context=150").build_data("train")
    assert samples.description.endswith("2 cut at options.context=150, 1 left out, without an answer in it")
    assert samples.description.startswith("4 conversations in ")
    batch = torch.stack([samples[index] for index in range(len(samples))])
    assert f" {int(count_targets(batch))} of them trained" in samples.description
    assert int(inputs_of(batch)[2].max()) == 149  # type: ignore[union-attr]
    with pytest.raises(
        UserError,
        match=r"^data.paths: no answer is within the first options.context=16 tokens of a conversation: raise options",
    ):
        write_task(folder, tmp_path, records[3:4], "options.context=16").build_data("train")


def test_samples_can_be_sent_to_a_new_process(folder: Path, tmp_path: Path) -> None:
    samples = write_task(folder, tmp_path, sums(5)).build_data("train")
    sent = pickle.loads(pickle.dumps(samples))
    assert torch.equal(sent[0], samples[0])
    assert sent.digest() == samples.digest()


def test_tokenizer_of_another_model_is_refused_with_numbers(folder: Path, tmp_path: Path) -> None:
    task = write_task(folder, tmp_path, sums(2))
    (tmp_path / "config.json").write_text(json.dumps({**task.shape.raw, "vocab_size": 291}))
    words = [f"options.shape={tmp_path}", f"data.tokenizer={folder}", f"data.paths={tmp_path / 'chat.jsonl'}"]
    small = load_task(load_config(words=["task=trainer.tasks.llama:Llama", *words]))
    with pytest.raises(
        UserError, match=r"^data.tokenizer: .*tokenizer.json does not fit .* go up to 291, .* vocab_size=291 allows 290"
    ):
        small.build_data("train")
    (tmp_path / "config.json").write_text(json.dumps({**task.shape.raw, "vocab_size": 400, "eos_token_id": [1, 350]}))
    large = load_task(load_config(words=["task=trainer.tasks.llama:Llama", *words]))
    with pytest.raises(UserError, match=r"it has 292 tokens, and none with the number of the model's eos_token_id=350"):
        large.build_data("train")


def test_missing_and_wrong_tokenizer_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data.tokenizer: .*/tokenizer.json: cannot be read: No such file"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"^data.tokenizer: .*/tokenizer.json: no tokenizer: "):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(UserError, match=r"tokenizer.json: a pointer of Git LFS instead of the file"):
        Tokenizer(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"^data.tokenizer: .*/tokenizer_config.json: not valid JSON: "):
        Tokenizer(tmp_path)


def test_template_of_tokenizer_config_json_is_read(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, template="")
    settings = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    for value, expected in (("a", "a"), (named, "a"), (None, "")):
        settings.write_text(json.dumps({"chat_template": value, "eos_token": {"content": "<|end|>"}}))
        tokenizer = Tokenizer(tmp_path)
        assert (tokenizer.template, tokenizer.token("eos_token")) == (expected, 1)


def test_other_files_among_records_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_records(tmp_path / "data" / "b.jsonl", sums(2))
    (tmp_path / "data" / "a.txt").write_text("text")
    task = write_task(folder, tmp_path, sums(2), f"data.paths={tmp_path / 'data'}")
    with pytest.raises(UserError, match=r"^data.paths: .*b.jsonl has chat records and .*a.txt has none: name files of"):
        task.build_data("train")
