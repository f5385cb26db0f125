"""Advice for exceptions that no signature knows."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.advice import advice, is_repeated, library_of, package_of

TIMM = "/opt/venv/lib/python3.11/site-packages/timm/models/vit.py"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("KeyError: 'pixel_values'", "print the keys"),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", "a value is None"),
        ("AttributeError: module 'timm' has no attribute 'create'", "import timm; print(timm.__file__"),
        ("AttributeError: 'LlamaConfig' object has no attribute 'mlp_bias'", "has no mlp_bias"),
        ("TypeError: f() got an unexpected keyword argument 'x'", "different versions"),
        ("my.data.AssertionError", "the `assert` above"),
        ("ZeroDivisionError: division by zero", "an empty data set"),
    ],
)
def test_the_advice_fits_the_kind_of_the_exception(error: str, word: str) -> None:
    first, second = advice(error, "")
    assert first == "look at the traceback above this line in the log of that rank"
    assert word in second


def test_an_instruction_in_a_message_of_several_sentences_is_a_step() -> None:
    error = (
        "ValueError: Found `optimizer` in the config, but no `scheduler`. Please configure a scheduler in the config."
    )
    assert advice(error, "")[0] == "the message itself advises: Please configure a scheduler in the config."
    assert "advises" not in advice("ValueError: Please configure a scheduler.", "")[0], "it is the cause already"
    assert "advises" not in advice("ValueError: Found 3. Expected 4.", "")[0]


def test_the_library_that_raised_it_is_named() -> None:
    assert "python -m pip show timm" in advice("RuntimeError: no", TIMM)[-1]
    assert len(advice("RuntimeError: no", "/app/train.py")) == 1
    assert (library_of(TIMM), library_of("/app/train.py")) == ("timm", "")


def test_a_module_is_named_by_its_package() -> None:
    assert [package_of(name) for name in ("cv2.gapi", "flash_attn", "timm")] == ["opencv-python", "flash-attn", "timm"]


def test_only_exceptions_that_depend_on_the_program_alone_come_back_in_each_attempt() -> None:
    assert is_repeated("KeyError: 'a'")
    assert is_repeated("omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct")
    assert not is_repeated("RuntimeError: no")
    assert not is_repeated("torch.distributed.DistNetworkError: no")
