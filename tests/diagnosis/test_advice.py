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
        ("ValueError: `a` is not compatible with `b`", "remove one of them"),
        ("AssertionError: --alpha needs --beta", "change or remove --alpha"),
        ("ImportError: Please install apex to use this", "a package is missing"),
        ("RuntimeError: x requires torch>=2.3", "a version does not fit"),
        ("ValueError: `x` was removed in 4.50", "no longer has this call"),
        ("AssertionError: heads must be divisible by tp", "must divide another"),
        ("RuntimeError: saved with world size 8", "the number of ranks does not fit"),
        ("RuntimeError: expected scalar type Half but found Float", "the same dtype"),
        ("RuntimeError: weight is on cuda:0, must be on the same device", "another device"),
        ("RuntimeError: Unexpected key(s) in state_dict", "the checkpoint does not fit"),
        ("OSError: file is truncated", "damaged, incomplete"),
        ("ValueError: the list of files is empty", "nothing to read"),
        ("RuntimeError: shape '[2]' is invalid", "print the shapes"),
        ("RuntimeError: the group is not initialized", "a call is missing"),
        ("ValueError: x is already registered", "done twice"),
        ("OSError: 403 for url", "access was refused"),
        ("ConnectionError: connect to 10.0.0.7:6379 refused", "nc -vz 10.0.0.7 6379"),
        ("TimeoutError: no answer", "did not answer in time"),
        ("OSError: [Errno 14] Bad address", "the file system failed"),
        ("RuntimeError: this is not supported", "choose another, or a newer"),
        ("ValueError: Unknown scheduler x", "a value is not one"),
        ("RuntimeError: could not find the plan", "is not there"),
        ("RuntimeError: expected 3 but got 4", "both sides"),
    ],
)
def test_the_advice_fits_the_kind_of_the_exception(error: str, word: str) -> None:
    first, second = advice(error, "")
    assert first == "look at the traceback above this line in the log of that rank"
    assert word in second


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        ("AssertionError", "assert len(set(t.dtype for t in tensors)) == 1", "the same dtype"),
        ("AssertionError", "assert layers % size == 0", "must divide another"),
        ("AssertionError", "assert args.world_size == 8", "the number of ranks"),
        ("AssertionError", "assert x.shape[0] == y.shape[0]", "print the shapes"),
        ("AssertionError", "assert len(files) > 0", "nothing to read"),
        ("AssertionError", "assert self.engine is not None", "a value is None"),
        ("IndexError: list index out of range", "return self.devices[self.local_rank]", "ranks per node"),
        ("IndexError: list index out of range", "return samples[index]", "a position beyond"),
    ],
)
def test_an_exception_without_a_text_is_explained_by_its_code(error: str, code: str, word: str) -> None:
    assert word in advice(error, "", code)[1]


def test_the_line_of_the_program_is_named() -> None:
    assert "/app/train.py:81 in step" in advice("RuntimeError: x", TIMM, "", "/app/train.py:81 in step")[0]


def test_an_instruction_in_a_message_of_several_sentences_is_a_step() -> None:
    error = (
        "ValueError: Found `optimizer` in the config, but no `scheduler`. Please configure a scheduler in the config."
    )
    assert advice(error, "")[0] == "the message itself advises: Please configure a scheduler in the config."
    assert "advises" not in advice("ValueError: Please configure a scheduler.", "")[0], "it is the cause already"
    assert "advises" not in advice("ValueError: Found 3. Expected 4.", "")[0]
    assert "advises" not in advice("ValueError: Attempted to set a flag. This failed.", "")[0]


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
