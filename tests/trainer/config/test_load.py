"""The trainer's configuration: keys, limits, files, and error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.__main__ import main
from trainer.config.load import load_config, with_ranks
from trainer.errors import UserError
from trainer.run_rank import run_rank


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("steps=20", ("steps",), 20),
        ("lr=1e-4", ("lr",), 1e-4),
        ("lr=1", ("lr",), 1.0),
        ("precision=bf16", ("precision",), "bf16"),
        ("out=/a=b", ("out",), "/a=b"),
        ("model.layers=2", ("model", "layers"), 2),
        ("data.paths=a,b c", ("data", "paths"), ["a", "b c"]),
        ('data.paths=["a,b"]', ("data", "paths"), ["a,b"]),
        ("data.paths=", ("data", "paths"), []),
        ("optim.betas=0.8,0.9", ("optim", "betas"), [0.8, 0.9]),
        ("optim.warmup_steps=0", ("optim", "warmup_steps"), 0),
        ("optim.grad_clip=0", ("optim", "grad_clip"), 0.0),
        ("save_total_limit=2", ("save_total_limit",), 2),
        ("report=wandb,plot", ("report",), ["wandb", "plot"]),
        ("report=", ("report",), []),
        ("peak_tflops=989", ("peak_tflops",), 989.0),
        ("strategy=zero3", ("strategy",), "zero3"),
        ("model.size=350m", ("model", "layers"), 28),
        ("data.validation=a,b", ("data", "validation"), ["a", "b"]),
        ("data.workers=4", ("data", "workers"), 4),
        ("data.format=uint32", ("data", "format"), "uint32"),
        ("eval_steps=5", ("eval_steps",), 5),
        ("task=my.tasks:Mine", ("task",), "my.tasks:Mine"),
        ("options.width=3", ("options", "width"), 3),
        ("options.rate=0.5", ("options", "rate"), 0.5),
        ("options.name=a,b", ("options", "name"), "a,b"),
        ("options.deep=true", ("options", "deep"), True),
        ("options.of=[1, 2]", ("options", "of"), [1, 2]),
        ("options.none=", ("options", "none"), ""),
        ("compile=true", ("compile",), True),
        ("optim.fused=false", ("optim", "fused"), False),
    ],
)
def test_word_sets_its_key(word: str, path: tuple[str, ...], value: object) -> None:
    plain = load_config(words=[word]).as_dict()
    for name in path:
        plain = plain[name]
    assert plain == value
    assert type(plain) is type(value)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("stesp=3", ["unknown key 'stesp'", "did you mean 'steps'?"]),
        ("qqqqqqqq=3", ["unknown key 'qqqqqqqq'", "save_total_limit", "model.layers"]),
        ("layers=3", ["did you mean 'model.layers'"]),
        ("optim.lr=3", ["did you mean 'lr'?"]),
        ("model=3", ["'model' is a group", "model.heads"]),
        ("steps", ["expected key=value", "'steps'"]),
        ("=3", ["expected key=value"]),
        ("steps=", ["steps=: allowed: a whole number >= 1"]),
        ("steps=0", ["steps=0", "a whole number >= 1"]),
        ("steps=2.5", ["steps=2.5", "a whole number"]),
        ("lr=nan", ["lr=", "a number >= 0"]),
        ("lr=fast", ["lr=fast", "a number >= 0"]),
        ("ddp_timeout=0", ["ddp_timeout=0", "a number > 0"]),
        ("start_timeout=0", ["start_timeout=0", "a number > 0"]),
        ("save_total_limit=1", ["save_total_limit=1", ">= 2"]),
        ("precision=fp8", ["precision=fp8", "fp32, bf16, fp16"]),
        ("device=tpu", ["device=tpu", "auto, cuda, gcu, cpu"]),
        ("strategy=magic", ["strategy=magic: allowed: ddp, zero0, zero1, zero2, zero3, fsdp2"]),
        ("report=plot,tb", ["report=plot,tb: allowed: any of plot, tensorboard, wandb"]),
        ("peak_tflops=0", ["peak_tflops=0", "a number > 0"]),
        ("compile=yes", ["compile=yes: allowed: true, false"]),
        ("out=", ["out=", "not empty"]),
        ("optim.betas=0.9", ["optim.betas=0.9", "two numbers"]),
        ("optim.betas=0.9,1", ["optim.betas=0.9,1", "[0, 1)"]),
        ("optim.betas=a,b", ["optim.betas=a,b"]),
        ("optim.name=lion", ["optim.name=lion: allowed: adamw, sgd, muon"]),
        ("optim.momentum=0.9", ["optim.momentum goes with optim.name=sgd or muon; AdamW has optim.betas"]),
        ("optim.nesterov=false", ["optim.nesterov goes with optim.name=sgd or muon"]),
        ("data.paths=a,,b", ["data.paths=a,,b"]),
        ("data.paths=[1]", ["data.paths=[1]"]),
        ("model.size=2b", ["model.size=2b", "1m, 10m, 30m, 100m, 350m, 1b, 3b, 7b, 13b, 30b, 70b"]),
        ("data.format=text", ["data.format=text", "auto, bytes, uint16, uint32"]),
        ("task=mine", ["task=mine: allowed: package.module:Class"]),
        ("task=my-tasks:Mine", ["task=my-tasks:Mine: allowed: package.module:Class"]),
        ("task=:Mine", ["task=:Mine: allowed"]),
        ("options=3", ["'options' is a group", "options.NAME"]),
        ("options.=3", ["unknown key 'options.'"]),
        ("model.heads=3", ["model.width=128", "multiple of model.heads=3"]),
    ],
)
def test_wrong_word_is_named_with_the_allowed_values(word: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_config(words=[word])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("deepspeed=ds.json", "deepspeed=ds.json goes with strategy=zero0 or zero1 or zero2 or zero3, not ddp"),
        ("strategy=zero0 offload_optimizer=true", "goes with strategy=zero1 or zero2 or zero3, not zero0"),
        ("strategy=zero2 offload_param=true", "offload_param=true goes with strategy=zero3, not zero2"),
        ("strategy=fsdp2 find_unused_parameters=true", "goes with strategy=ddp, not fsdp2"),
        ("strategy=zero1 gradient_as_bucket_view=true", "goes with strategy=ddp, not zero1"),
        ("strategy=zero0 precision=fp16", "use strategy=ddp"),
        (
            "optim.name=sgd optim.betas=0.9,0.9",
            "optim.betas goes with optim.name=adamw or muon; SGD has optim.momentum",
        ),
        ("profile=7:8 steps=3", "profile=7:8: begins after the last step, steps=3"),
        ("fsdp.replicas=2", "fsdp.replicas, fsdp.reshard and fsdp.accumulate go with strategy=fsdp2, not ddp"),
        (
            "strategy=zero3 fsdp.reshard=false",
            "fsdp.replicas, fsdp.reshard and fsdp.accumulate go with strategy=fsdp2, not zero3",
        ),
        (
            "task=a:B model.layers=3",
            "model.layers: for the GPT only; options of task=a:B are written options.NAME=VALUE",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(words=words.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "ranks", "accumulation"),
    [
        ("batch=96 micro_batch=4", 3, 8),
        ("batch=96 micro_batch=4 accumulation=8", 3, 8),
        ("batch=8", 1, 1),
        ("micro_batch=4", 3, 1),
        ("accumulation=5", 3, 5),
    ],
)
def test_accumulation_follows_from_the_batch_and_the_ranks(words: str, ranks: int, accumulation: int) -> None:
    assert with_ranks(load_config(words=words.split()), ranks).accumulation == accumulation


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("batch=100", "batch=100 is no multiple of micro_batch=8 x 3 ranks = 24; nearest to it: 96 and 120"),
        ("batch=10", "batch=10 is no multiple of micro_batch=8 x 3 ranks = 24; nearest to it: 24"),
        (
            "batch=96 accumulation=1",
            "batch=96, but micro_batch=8 x 3 ranks x accumulation=1 = 24: leave batch or accumulation out",
        ),
        (
            "strategy=fsdp2 fsdp.replicas=2",
            "fsdp.replicas=2 does not divide 3 ranks into equal parts: take a number that does, such as the number of nodes",
        ),
    ],
)
def test_batch_that_does_not_divide_is_refused_as_soon_as_the_ranks_are_known(
    monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.setattr("trainer.run_rank.initialise", lambda *_: pytest.fail("the rendezvous took place"))
    env = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "3"}
    with pytest.raises(UserError) as caught:
        run_rank(load_config(words=words.split()), env, None)  # type: ignore[arg-type]  # not reached
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("a.json", '{"steps": "20"}', ['a.json: steps="20" is text: allowed: a whole number >= 1']),
        ("a.json", '{"steps": true}', ["steps=true"]),
        ("a.json", '{"model": 3}', ["'model' is a group of keys"]),
        ("a.json", '{"model": {"depth": 3}}', ["a.json: unknown key 'model.depth'"]),
        ("a.json", '{"steps": 1, "steps": 2}', ["'steps' is given twice"]),
        ("a.json", "[1]", ["must hold a mapping"]),
        ("a.json", "{", ["not valid JSON"]),
        ("a.yaml", "steps: 1\nsteps: 2\n", ["not valid YAML", "steps"]),
        ("a.yaml", "steps: [\n", ["not valid YAML"]),
        ("missing.json", None, ["cannot read the configuration file", "No such file"]),
    ],
)
def test_wrong_file_is_named_with_its_error(tmp_path: Path, name: str, text: str | None, parts: list[str]) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(str(path))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"lr": 1, "model": {"layers": 2}, "out": null}'),
        ("a.yaml", "lr: 1\nmodel: {layers: 2}\n"),
        ("a.yml", "lr: 1\nmodel:\n  layers: 2\n"),
    ],
)
def test_words_win_over_file_and_file_over_defaults(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    config = load_config(str(path), ["model.layers=5"])
    assert (config.lr, config.model.layers, config.model.heads) == (1.0, 5, 4)


def test_empty_yaml_file_means_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing yet\n")
    assert load_config(str(tmp_path / "a.yaml")) == load_config()


@pytest.mark.parametrize("batch", ["batch=24", "accumulation=3", "batch=24 accumulation=3"])
def test_printed_config_reads_back_as_the_same_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: str
) -> None:
    words = [
        *batch.split(),
        "steps=7",
        "data.paths=x,y",
        "optim.betas=0.1,0.2",
        "task=a.b:C",
        'options.of={"a": {"b": null}}',
    ]
    assert main(["--print-config", *words]) == 0
    (tmp_path / "printed.json").write_text(capsys.readouterr().out)
    assert load_config(str(tmp_path / "printed.json")).as_dict() == json.loads((tmp_path / "printed.json").read_text())
    assert load_config(str(tmp_path / "printed.json")).steps == 7
    assert with_ranks(load_config(str(tmp_path / "printed.json")), 1).accumulation == 3


@pytest.mark.parametrize("argv", [["--steps=3"], ["--config"], ["steps=x", "--print-config"]])
def test_wrong_command_line_exits_2_with_one_message(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err


def test_words_may_stand_on_both_sides_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps=3", "--print-config", "lr=1"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


@pytest.mark.processes
@pytest.mark.parametrize(("argv", "code"), [(["--print-config"], 0), (["steps=x"], 2)])
def test_config_is_checked_without_torch(argv: list[str], code: int) -> None:
    blocked = f"import sys; sys.modules['torch'] = None; from trainer.__main__ import main; sys.exit(main({argv!r}))"
    done = subprocess.run([sys.executable, "-c", blocked], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr


def test_ranks_other_than_0_print_their_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert main(["nonsense=1"]) == 2
    assert capsys.readouterr().err == "rank 3: error: unknown key 'nonsense'\n"
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"].startswith("unknown key 'nonsense'")
