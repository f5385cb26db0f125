"""Advice for exceptions that no signature knows: by their kind, their text, and the library that raised them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LIBRARY = re.compile(r"/(?:site|dist)-packages/(?P<name>[A-Za-z]\w*)[/.]")
_NAME = re.compile(r"(?:[\w<>]+\.)*(?P<name>\w+)")
_REPEATED = frozenset(
    {
        "ArithmeticError", "AssertionError", "AttributeError", "ImportError", "IndexError", "InstantiationException", "KeyError", "LookupError", "ModuleNotFoundError",
        "NameError", "NotImplementedError", "RecursionError", "StopIteration", "TypeError", "UnboundLocalError", "UnicodeDecodeError", "ValidationError",
        "ValueError", "ZeroDivisionError", "ConfigAttributeError", "ConfigKeyError", "MisconfigurationException", "ArgumentError", "ParserError", "InterpolationKeyError",
    }
)  # fmt: skip
"""Exceptions that the same program with the same data raises each time."""
_PACKAGES = {
    "PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml", "skimage": "scikit-image", "pytorch_lightning": "pytorch-lightning",
    "flash_attn": "flash-attn", "huggingface_hub": "huggingface-hub", "sentence_transformers": "sentence-transformers", "google": "protobuf", "dateutil": "python-dateutil",
    "attr": "attrs", "bs4": "beautifulsoup4", "dotenv": "python-dotenv", "Crypto": "pycryptodome", "git": "gitpython", "serial": "pyserial", "faiss": "faiss-cpu",
    "transformer_engine": "transformer-engine", "mpl_toolkits": "matplotlib", "absl": "absl-py", "hydra": "hydra-core", "msgpack": "msgpack", "jwt": "pyjwt",
    "pycocotools": "pycocotools", "ruamel": "ruamel.yaml", "zmq": "pyzmq", "fitz": "pymupdf", "llava": "", "slurm_utils": "",
}  # fmt: skip
"""Module -> the package of PyPI that has it, where the names differ; empty if none has."""


@dataclass(frozen=True)
class _Kind:
    """Steps for exceptions whose text matches; `library` must be known for steps that name it."""

    pattern: re.Pattern[str]
    steps: tuple[str, ...]


def _kind(pattern: str, *steps: str) -> _Kind:
    return _Kind(re.compile(pattern), steps)


_KINDS = (
    _kind(r"(?:TypeError: .*\b(?:got an unexpected keyword argument|missing \d+ required (?:positional|keyword-only) argument|takes \d+ positional arguments? but)|got multiple values for)",
        "caller and function are of different versions, or the call is wrong: compare both at the two last frames of the traceback"),
    _kind(r"AttributeError: module '(?P<module>[\w.]+)' has no attribute '(?P<attribute>\w+)'",
        "{module} of the node is of another version than the program expects, or a file of the program has its name: python -c \"import {module}; print({module}.__file__, getattr({module}, '__version__', ''))\""),
    _kind(r"AttributeError: '(?P<type>\w*[Cc]onfig|Namespace|DictConfig)' object has no attribute '(?P<attribute>\w+)'", "the configuration has no {attribute}: it was written for another version of the program or library, or the setting is misspelt"),
    _kind(r"(?:AttributeError|TypeError): 'NoneType' object", "a value is None: the step that should give it failed, or found nothing; print it at the last frame of the traceback"),
    _kind(r"AttributeError: ", "the object is of another kind or version than the program expects: print type(…) of it at the last frame of the traceback"),
    _kind(r"(?:KeyError|ConfigKeyError|ConfigAttributeError): ", "the entry does not exist: print the keys that do at the last frame of the traceback; data, a checkpoint or a configuration of another kind has other names"),
    _kind(r"IndexError: ", "a position beyond the end: an empty data set or list, or one that is shorter than on other nodes; print its length at the last frame"),
    _kind(r"ZeroDivisionError", "a number of samples, steps or ranks is 0: an empty data set, or fewer samples than ranks times batch size"),
    _kind(r"(?:AssertionError|ValueError|RuntimeError|NotImplementedError): [^\n]*?(?<![\w-])--(?P<option>[a-z][\w-]+)", "settings that do not go together: change or remove --{option}, or the other setting that the message names; the program's --help has them"),
    _kind(r"AssertionError", "the program checks a condition that does not hold: the `assert` above this line names it; print both sides there"),
    _kind(r"NotImplementedError", "the program or library does not support this combination of model, device and options: choose another, or a newer version"),
    _kind(r"UnicodeDecodeError", "a file is not text in this encoding: it is binary or compressed, or needs encoding=… ; PYTHONUTF8=1 if the node has no UTF-8 locale"),
    _kind(r"RecursionError", "an object contains itself, or a function never ends its recursion: the frames that repeat in the traceback name it"),
    _kind(r"(?:NameError|UnboundLocalError): ", "a name is used before it gets a value: a typing error, a missing import, or a branch that was not taken"),
    _kind(r"TypeError: ", "a value is of another type than the operation takes: print type(…) of it at the last frame of the traceback"),
    _kind(r"ValueError: ", "a setting or a value of the data is not accepted: the text names it; look at who passes it in the frames above"),
)  # fmt: skip
_SENTENCES = re.compile(r"(?<=[.!?;]) +(?=[A-Z`'\"<({])")
_INSTRUCTION = re.compile(
    r"\b(?:[Pp]lease|[Tt]ry|[Cc]onsider|Make sure|make sure|[Ee]nsure|[Ii]nstall|[Uu]pgrade|[Ss]et|[Uu]se|[Rr]un|[Pp]ass|[Cc]heck|[Ii]ncrease|[Rr]educe|[Dd]id you|[Yy]ou (?:should|need|must|can|may|have to))\b"
)
MOST_QUOTED = 240
"""Characters of an instruction that are quoted."""
_TRACEBACK = "look at the traceback above this line in the log of that rank"


def name_of(error: str) -> str:
    """The name of an exception, without its module."""
    found = _NAME.match(error)
    return "" if found is None else found["name"]


def is_repeated(error: str) -> bool:
    """True if the same program raises the exception in each attempt."""
    return name_of(error) in _REPEATED


def library_of(frame: str) -> str:
    """The module of an installed package that a file belongs to; empty for other files."""
    found = _LIBRARY.search(frame)
    return "" if found is None else found["name"]


def package_of(module: str) -> str:
    """The package that has a module, as pip names it; empty if none is known to have it."""
    name = module.partition(".")[0]
    return _PACKAGES.get(name, name)


def instruction_in(error: str) -> str:
    """The sentence of an exception's message, of two or more, that is an instruction; empty without one."""
    sentences = _SENTENCES.split(error.partition(": ")[2])
    instructions = [each for each in sentences if _INSTRUCTION.search(each) and len(each) <= MOST_QUOTED]
    return instructions[0] if instructions and len(sentences) > 1 else ""


def advice(error: str, frame: str) -> tuple[str, ...]:
    """Next steps for an exception, whose last frame is in the file `frame`, or in an unknown one."""
    text = f"{name_of(error)}{error[len(error.partition(':')[0]) :]}"
    steps = []
    for kind in _KINDS:
        found = kind.pattern.search(text)
        if found:
            steps = [step.format(**found.groupdict()) if found.groupdict() else step for step in kind.steps]
            break
    library = library_of(frame)
    if library:
        steps.append(
            f"{library} raised it, called by the program: python -m pip show {package_of(library) or library}; compare the version with the one that the program was written for"
        )
    instruction = instruction_in(error)
    return (*([f"the message itself advises: {instruction}"] if instruction else ()), _TRACEBACK, *steps)
