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
    """Steps for exceptions whose text matches, or for an `assert` without text whose code matches `asserted`."""

    pattern: re.Pattern[str]
    steps: tuple[str, ...]
    asserted: re.Pattern[str] | None = None
    code: re.Pattern[str] | None = None
    """If given, the line of code that raised it must match too."""


def _kind(pattern: str, *steps: str, asserted: str | None = None, code: str | None = None) -> _Kind:
    return _Kind(re.compile(pattern), steps, *(None if each is None else re.compile(each) for each in (asserted, code)))


_KINDS = (
    _kind(r"(?:TypeError: .*\b(?:got an unexpected keyword argument|missing \d+ required (?:positional|keyword-only) argument|takes (?:from )?\d+(?: to \d+)? positional arguments? but)|got multiple values for)",
        "caller and function are of different versions, or the call is wrong: compare both at the two last frames of the traceback"),
    _kind(r"AttributeError: module '(?P<module>[\w.]+)' has no attribute '(?P<attribute>\w+)'",
        "{module} of the node is of another version than the program expects, or a file of the program has its name: python -c \"import {module}; print({module}.__file__, getattr({module}, '__version__', ''))\""),
    _kind(r"AttributeError: '(?P<type>\w*[Cc]onfig(?:Dict)?|\w*Arguments?|Namespace|DictConfig|EasyDict)' object has no attribute '(?P<attribute>\w+)'", "the configuration has no {attribute}: it was written for another version of the program or library, or the setting is misspelt"),
    _kind(r"(?:AttributeError|TypeError): (?:'NoneType' object|.*\bNoneType\b)", "a value is None: the step that should give it failed, or found nothing; print it at the last frame of the traceback"),
    _kind(r"AttributeError: '(?:Tensor|Parameter|DTensor)' object has no attribute '(?P<attribute>to_local|full_tensor|placements|device_mesh|_local_tensor)'", "the program expects a DTensor, a sharded tensor, and got a plain one: the model or optimizer was not sharded, or its library and torch are of versions that do not know each other"),
    _kind(r"AttributeError: ", "the object is of another kind or version than the program expects: print type(…) of it at the last frame of the traceback"),
    _kind(r"IndexError: .*\brange\b", "there are fewer cards, or entries per rank, than ranks: compare the ranks per node (--nproc_per_node, --ntasks-per-node, devices) with the cards that each rank sees, and CUDA_VISIBLE_DEVICES", code=r"(?i)\[[^\]]*(?:local_?rank|rank|local_process)[^\]]*\]|(?:devices?|gpus?)\w*\["),
    _kind(r"IndexError: ", "a position beyond the end: an empty data set or list, or one that is shorter than on other nodes; print its length at the last frame"),
    _kind(r"(?:KeyError|ConfigKeyError|ConfigAttributeError): ", "the entry does not exist: print the keys that do at the last frame of the traceback; data, a checkpoint or a configuration of another kind has other names"),
    _kind(r"ZeroDivisionError", "a number of samples, steps or ranks is 0: an empty data set, or fewer samples than ranks times batch size"),
    _kind(r"(?i)\b(?:not|in)[ -]?compatible with\b|cannot be (?:used|combined|set|enabled|specified|given|passed)\b.*\b(?:with|together|both|simultaneously|at the same time)\b|mutually exclusive|\bconflicts? with\b|\bonly one of\b|(?:can't|cannot|can not|should not|do not|don't) (?:use|set|specify|pass|provide|have) both\b|\bboth\b.*\band\b.* (?:are|is|were) (?:set|given|specified|provided)\b",
        "two settings exclude each other, and the text names both: remove one of them from the arguments, the configuration or the code"),
    _kind(r"INTERNAL ASSERT FAILED", "torch reports a defect in itself: another version of torch, or without the newest feature of the run (gradient checkpointing with reentrant, torch.compile, quantized weights); the program's own line above shows which call leads to it"),
    _kind(r"(?i)\b(?:should|must|needs? to|has to) be (?:set|specified|given|defined|configured|passed|provided) (?:with)?in\b", "a setting is in the wrong place: remove it where it is now, and set it in the file or object that the text names"),
    _kind(r"(?:AssertionError|ValueError|RuntimeError|NotImplementedError): [^\n]*?(?<![\w-])--(?P<option>[a-z][\w-]+)", "settings that do not go together: change or remove --{option}, or the other setting that the message names; the program's --help has them"),
    _kind(r"(?i)\b(?:pip|conda|apt(?:-get)?) install\b|(?:is|are|was|seems to be) not (?:been )?installed|please install\b|\binstall (?:the )?\S+ (?:package|library|to use|with|by|using)\b", "a package is missing for the Python of the ranks: install the one that the text names, on every node"),
    _kind(r"(?i)\brequires?\b[^.]*(?:[<>=]=|\bversion\b|\bor (?:newer|later|higher|above)\b)|required but found|\btoo (?:old|new)\b|\boutdated\b|\bversions? (?:mismatch|differs?|conflict|of)\b|\b(?:minimum|newer|older|incompatible|unsupported|wrong) versions?\b|\bupgrad(?:e|ing)\b|\bdowngrad(?:e|ing)\b", "a version does not fit: python -m pip list shows the installed ones; install the version that the text names, on every node"),
    _kind(r"(?i)\bdeprecated\b|\bno longer\b|\b(?:been|was|is|were) (?:removed|renamed|moved)\b|\breplaced (?:by|with)\b", "the installed version no longer has this call or setting: use what the text names, or the version of the library that the program was written for"),
    _kind(r"(?i)\bdivisible\b|\bdivides?\b|\bmultiples? of\b|\bfactor of\b", "one number must divide another: batch, layers, heads, length, or number of ranks (tensor, pipeline and data parallel); print both, and change the one that is free", asserted=r"assert .*%"),
    _kind(r"(?i)world[ _]?size|number of (?:\w+ )?(?:process(?:es)?|ranks?|gpus?|devices?|workers?|nodes?|partitions)\b|\b(?:num|n)_?(?:gpus|processes|nodes|ranks|devices)\b|parallel[_ ](?:world[_ ])?size|\bnproc\b", "the number of ranks does not fit the settings: compare nodes times ranks per node with the parallel sizes of the configuration, and with the number of ranks that saved the checkpoint", asserted=r"world_size|n_?gpus|num_(?:gpus|processes|nodes)|parallel_size"),
    _kind(r"(?i)\bd?types?\b.*\b(?:mismatch|differ|same|match|mixed|inconsistent)\b|\b(?:mixed|same|different|mismatched|inconsistent) (?:d|data ?|scalar ?)?types?\b|\bscalar type\b|\bdtype\b|\b(?:B?Float(?:16)?|Half|Double|bfloat16|float(?:16|32))\b.*\b(?:but|and)\b.*\b(?:B?Float(?:16)?|Half|Double|bfloat16|float(?:16|32))\b", "values of several types meet: cast all to the same dtype; the whole model in one (torch_dtype, bf16 or fp16), also what a LoRA, a head or a new embedding adds", asserted=r"dtype"),
    _kind(r"(?i)\bsame device\b|\bdevice (?:type|mismatch)\b|\b(?:is|are|was|be) (?:located )?on (?:the )?(?:cpu|cuda|gpu|meta|device)\b|\bmeta (?:device|tensors?)\b|\bcuda tensors?\b", "a tensor or a module is on another device than the operation needs: .to(device) with the card of LOCAL_RANK; weights on `meta` were never loaded", asserted=r"\.device\b|is_cuda|device_type"),
    _kind(r"(?i)state[_ ]?dict|missing (?:key|param|weight)|unexpected (?:key|param|weight)|\bcheckpoints?\b", "the checkpoint does not fit what loads it: compare the names and sizes of the entries with those of the model; a wrapper adds a prefix (module., _orig_mod.), an adapter or another number of ranks has other entries"),
    _kind(r"(?i)corrupt|\btrunca|invalid (?:header|magic|load key|signature)|unexpected (?:EOF|end)|end of file|EOFError|BadZipFile|PytorchStreamReader|pickl(?:e|ing) (?:data|error)|UnpicklingError|not a (?:zip|gzip|tar|valid|parquet)\b|Ran out of input|checksum|\bmd5|cannot identify image|HeaderTooLarge|Thrift|magic bytes", "a file is damaged, incomplete, or of another kind: ls -l and the first bytes (head -c 200) of it on the node; copy, download or save it again"),
    _kind(r"(?i)\bempty\b|\bno (?:valid )?(?:samples?|data|files?|images?|examples?|records?|shards?|batches)\b|\bnum_samples=0|\b0 (?:samples|examples|images|files|items)\b|\bcontains? no\b|\bat least one\b", "there is nothing to read: an empty data set, a path or filter without a hit, or fewer samples or shards than ranks and workers", asserted=r"assert len\([^)]*\)(?: *(?:>|!=) *0)?$|assert len\([^)]*\) *(?:>|!=) *0"),
    _kind(r"(?i)\bsizes? (?:mismatch|of tensor)|\bshapes?\b|\bdim(?:ension)?s?\b|\bmust match\b|\bbroadcast|\bnumel\b|\b(?:same|equal|different|mismatched) (?:length|size)s?\b|\blengths? (?:mismatch|differ|must|do)", "sizes do not go together: print the shapes at the last frame; often a configuration or tokenizer of another model, a last batch that is smaller (drop_last=True), or samples that are not padded", asserted=r"\.shape|\.size\(|\.ndim|\.dim\(|\.numel\("),
    _kind(r"(?i)\bnot (?:been |yet )*(?:initiali[sz]ed|set up|started|called|built|prepared|registered|configured)\b|\b(?:before|without) (?:calling|using|initiali[sz]|creating)|\bmust (?:first )?(?:call|be called|be initiali[sz]ed)\b|\buninitiali[sz]ed\b|\bdid you (?:forget|call)\b", "a call is missing, or comes too late or on other ranks only: the text names what must be set up first"),
    _kind(r"(?i)\balready (?:been )?(?:initiali[sz]ed|registered|exists?|running|started|defined|set|in use|created|added)\b|\btwice\b|\bmultiple times\b|\bduplicate", "something is done twice: by two ranks at once, by a second call or import, or it is left over from an earlier run"),
    _kind(r"(?i)\b(?:401|403)\b|\bgated\b|unauthori[sz]ed|\bforbidden\b|authenticat|\baccess token\b|\bnot permitted\b|\bpermission\b|\baccess (?:is )?denied\b", "access was refused: log in or set the token for the service that the text names, or look at the owner and rights of the path (ls -ld) as the user of the run on that node"),
    _kind(r"(?i)\b(?:at|to|on|from|connect(?:ing|ion)?(?: to)?|host='?) ?\(?'?(?P<host>(?:\d{1,3}\.){3}\d{1,3}|localhost|[a-z][\w-]*(?:\.[\w-]+)+)'?(?::|, (?:port=)?)(?P<port>\d{2,5})\b.*(?:refused|time|retries|unreachable|fail|reset)", "{host} did not answer at port {port}: nc -vz {host} {port}, from the node, shows if it is reached; the service there has ended, was not started, or is behind a firewall or proxy"),
    _kind(r"(?i)\b(?:Timeout|Connection\w*)Error\b|connection (?:refused|reset|timed out|aborted|error|closed)|max retries|\bunreachable\b|name resolution|getaddrinfo|name or service not known|\btime(?:d)?[ -]?out\b|\bproxy\b|\b50[0234]\b", "a service did not answer in time: look whether it runs and can be reached from the node (nc -vz); nodes without Internet need local copies, or a proxy"),
    _kind(r"(?i)out of memory|\bmemory (?:error|limit|exhausted|alloc)|\b(?:cannot|can't|failed to|unable to) allocate\b|\binsufficient memory\b|\bnot enough (?:\w+ )?memory\b", "memory does not suffice: a smaller batch, length or cache, or more ranks that share the model; free -g on the node, nvidia-smi for the cards"),
    _kind(r"\[Errno (?:2|20|21)\]|FileNotFoundError|(?i:no such file|(?:file|folder|directory|path)\b.*\b(?:not found|does(?:n't| not) exist|missing))", "a file or folder is not there on the node: ls -l; the path is relative to the folder of the run, or a cache of another node: every node needs it, or a file system that all nodes share"),
    _kind(r"\[Errno (?:5|14|30|107|108|112|116|121|122|70|71)\]|(?i:stale file handle|input/output error|errno = (?:5|116))", "the file system failed, not the program: mount, df and dmesg -T on the node; NFS or a remote mount lost its server or the file, so write to another file system, or again"),
    _kind(r"_Map_base::at|\b(?:map|vector|unordered_map)::(?:at|_M_range_check)|std::out_of_range|basic_string::_", "compiled code looked up a name or position that it does not have: this build lacks a backend, device or operator (python -c 'import torch; print(torch.__config__.show())'), or two packages are of different versions"),
    _kind(r"(?i)\bnan\b|\binf(?:inite|inity)?\b|non-finite|overflow", "a number is not finite or too large: look at the loss and gradients of the last steps; a lower learning rate, bf16 in place of fp16, or a sample to leave out"),
    _kind(r"NotImplementedError|(?i:\bunsupported\b|\bnot (?:yet |currently )?(?:supported|implemented|available)\b|\bdoes(?:n't| not) (?:yet )?support\b|\bonly supports?\b|\bonly supported\b)", "the program or library does not support this combination of model, device and options: choose another, or a newer version"),
    _kind(r"(?i)\binvalid (?:choice|value|argument|option|name|type|mode|format)\b|\bunknown\b|\bun(?:recognized|recognised|expected)\b|\bnot (?:a )?(?:valid|recognized)\b|\bnot (?:a member )?(?:in|one of|among)\b|\bchoose from\b|\bexpected one of\b|\bavailable (?:options|choices|are)\b|\b(?:must|should|has to|needs? to|can only) be\b", "a value is not one that the program accepts: the text names it, and mostly what is accepted; look for it in the arguments, the configuration and the variables of the run, or in the data"),
    _kind(r"(?i)\b(?:not|n't|nothing|cannot) (?:be )?(?:found|find|exist|located?)\b|\bcould(?:n't| not) find\b|\bno such\b|\bmissing\b", "what the text names is not there: print what is at the last frame; it has another name in this version, was not saved or copied, or is missing on this node"),
    _kind(r"(?i)\bexpect(?:ed|s|ing)?\b.*\b(?:got|found|received|given|actual|instead|but)\b", "the text has both sides, what was expected and what came: follow the second one up the traceback to the setting or the data that it is from"),
    _kind(r"AssertionError", "a value is None that the program needs: the step that should set it was left out, or failed on this rank", code=r"assert .* is not None"),
    _kind(r"AssertionError", "the program checks a condition that does not hold: the `assert` above this line names it; print both sides there"),
    _kind(r"UnicodeDecodeError", "a file is not text in this encoding: it is binary or compressed, or needs encoding=… ; PYTHONUTF8=1 if the node has no UTF-8 locale"),
    _kind(r"RecursionError", "an object contains itself, or a function never ends its recursion: the frames that repeat in the traceback name it"),
    _kind(r"(?:NameError|UnboundLocalError): ", "a name is used before it gets a value: a typing error, a missing import, or a branch that was not taken"),
    _kind(r"TypeError: ", "a value is of another type than the operation takes: print type(…) of it at the last frame of the traceback"),
    _kind(r"ValueError: ", "a setting or a value of the data is not accepted: the text names it; look at who passes it in the frames above"),
)  # fmt: skip
"""The first that matches gives the steps: names of exceptions whose text has a fixed form, then the subject of the text, then the other names."""
_SENTENCES = re.compile(r"(?<=[.!?;]) +(?=[A-Z`'\"<({])")
_INSTRUCTION = re.compile(
    r"(?<!\bto )\b(?:[Pp]lease|[Tt]ry|[Cc]onsider|Make sure|make sure|[Ee]nsure|[Ii]nstall|[Uu]pgrade|[Ss]et|[Uu]se|[Rr]un|[Pp]ass|[Cc]heck|[Ii]ncrease|[Rr]educe|[Dd]id you|[Yy]ou (?:should|need|must|can|may|have to))\b"
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


def advice(error: str, frame: str, code: str = "", caller: str = "") -> tuple[str, ...]:
    """
    Next steps for an exception.

    Args:
        frame, code: the file of the last frame and its line of code, if they are known.
        caller: the last frame of the program itself, as FILE:LINE in FUNCTION.
    """
    text = f"{name_of(error)}{error[len(error.partition(':')[0]) :]}"
    steps = _steps(text, code)
    library = library_of(frame)
    if library:
        steps.append(
            f"{library} raised it, called by the program: python -m pip show {package_of(library) or library}; compare the version with the one that the program was written for"
        )
    instruction = instruction_in(error)
    first = f"the program's own line is {caller}: {_TRACEBACK}" if caller else _TRACEBACK
    return (*([f"the message itself advises: {instruction}"] if instruction else ()), first, *steps)


def _steps(text: str, code: str) -> list[str]:
    """The steps of the first kind that fits the text, or, for an `assert` without one, its code."""
    asserted = code if text == "AssertionError" and code.startswith("assert ") else ""
    for kind in _KINDS:
        found = kind.pattern.search(text)
        if found and (kind.code is None or kind.code.search(code)):
            return [step.format(**found.groupdict()) if found.groupdict() else step for step in kind.steps]
        if asserted and kind.asserted and kind.asserted.search(asserted):
            return list(kind.steps)
    return []
