"""The programs that a node runs, the endpoint and the probe: a loader on the command line, and the modules of node/ on its stdin."""

from __future__ import annotations

import functools
import marshal
import re
import zlib
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from orchestrator.fanout import once
from orchestrator.node.run.ownership import LOADER
from orchestrator.resources import node_folder

OLDEST_PYTHON = (3, 8)
# A program: the modules of some packages, and the modules of node/ that they import; the packages themselves are empty. A node
# executes a module at its first import.
NODE = "orchestrator.node"
ENDPOINT = f"{NODE}.endpoint"
PROBE, VENDOR = f"{NODE}.probe", f"{NODE}.vendor"
TEXT_FORMAT = 4  # of marshal, which every Python since 3.4 reads; byte code is read by one version only
LEVEL = 3  # of zlib: level 9 takes 27 ms of CPU per command instead of 3, for 9 of 78 KB

# -S and -s: without site packages, whose scan takes long.
FLAGS = ("-E", "-s", "-S", "-c", LOADER)
MARKER = "orch-endpoint-f1b7c0d2"
# Runs in any Python, at least to report its version. It ignores modules such as json.py in the home folder.
# Compiling takes a third of the start: modules that every connection needs are also sent as byte code, for the same Python.
BOOTSTRAP = """
sys.path[:] = [entry for entry in sys.path if entry]
sys.stdout.write("\\n@MARKER@ %d.%d.%d\\n" % tuple(sys.version_info[:3]))
sys.stdout.flush()
if sys.version_info >= @OLDEST_PYTHON@:
    import marshal, zlib, _frozen_importlib, _frozen_importlib_external
    magic, code_size, text_size = i.readline().split()
    code, text = i.read(int(code_size)), i.read(int(text_size))
    is_same_python = magic.decode() == _frozen_importlib_external.MAGIC_NUMBER.hex()
    modules = marshal.loads(zlib.decompress(code)) if is_same_python else {}
    texts = [text]

    class Sent:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in modules and name.startswith("orchestrator") and texts:
                modules.update({**marshal.loads(zlib.decompress(texts.pop())), **modules})
            if name in modules:
                return _frozen_importlib.ModuleSpec(name, Sent, is_package=name in @PACKAGES@)

        create_module = staticmethod(lambda spec: None)

        @staticmethod
        def exec_module(module):
            program = modules[module.__name__]
            exec(compile(program, module.__name__, "exec") if isinstance(program, str) else program, module.__dict__)

    sys.meta_path.insert(0, Sent)
    from @ENTRY@ import serve
    serve(i)
"""


@once
def program() -> bytes:
    """The endpoint. Modules that neither a start nor the supervision of a run needs are sent as text only."""
    modules = [f"{ENDPOINT}.{name}" for name in ("serve", "fork", "push", "reading", "report")]
    return _packed([ENDPOINT], [*modules, f"{NODE}.ranks.stacks"])


@once
def probe_program() -> bytes:
    """The probe. A request, as JSON, follows it."""
    return _packed([PROBE, VENDOR])


def _packed(packages: Sequence[str], compiled: Sequence[str] | None = None) -> bytes:
    """
    The loader's input: the length of the bootstrap, the bootstrap, and the modules, as byte code and as text.

    Args:
        packages: their modules are the program; the first one has the module `serve`.
        compiled: the modules of which there is byte code, with those that they import at module level; all by default.
    """
    modules = [f"{name}.{file.stem}" for name in packages for file in sorted(_folder(name).glob("[!_]*.py"))]
    names = _with_imports(modules, _IMPORT)
    parts = [name.split(".") for name in names]
    packages_of_all = sorted({".".join(of_name[:count]) for of_name in parts for count in range(1, len(of_name))})
    empty = dict.fromkeys(packages_of_all, "")
    texts = {name: _source(name) for name in names} | empty
    with_code = names if compiled is None else _with_imports(compiled, _IMPORT_AT_START)
    # compiled once, kept by Python
    codes = {name: SourceFileLoader(name, str(_file(name))).get_code(name) for name in with_code} | empty
    code, text = (zlib.compress(data, LEVEL) for data in (marshal.dumps(codes), marshal.dumps(texts, TEXT_FORMAT)))
    entry = f"{packages[0]}.serve"
    values = {"MARKER": MARKER, "OLDEST_PYTHON": OLDEST_PYTHON, "PACKAGES": packages_of_all, "ENTRY": entry}
    bootstrap = re.sub("@(\\w+)@", lambda found: str(values[found.group(1)]), BOOTSTRAP).encode()
    magic = MAGIC_NUMBER.hex().encode()
    return b"%d\n%b%b %d %d\n%b%b" % (len(bootstrap), bootstrap, magic, len(code), len(text), code, text)


# Modules that only an agent needs are not sent: the bundle holds them.
_NAME = rf"{NODE}\.(?!agent\.)[.\w]+"
_IMPORT = re.compile(rf"^ *from ({_NAME}) import", re.MULTILINE)
_IMPORT_AT_START = re.compile(rf"^from ({_NAME}) import", re.MULTILINE)  # at module level


def _with_imports(modules: Sequence[str], pattern: re.Pattern[str]) -> set[str]:
    """The modules, and the modules of node/ that they import, directly or through others; no packages."""
    found: set[str] = set()
    new = set(modules)
    while new:
        found |= new
        imported = {name for module in new for name in pattern.findall(_source(module))}
        new = {name for name in imported if not _folder(name).is_dir()} - found
    return found


_FOR_TYPE_CHECKERS = re.compile(r"^TYPE_CHECKING = False\nif TYPE_CHECKING:\n(?:    .*\n|\n)*", re.MULTILINE)


@functools.cache
def _source(name: str) -> str:
    """The text of a module without its TYPE_CHECKING blocks."""
    return _FOR_TYPE_CHECKERS.sub("TYPE_CHECKING = False\n", _file(name).read_text("utf-8"))


def _file(name: str) -> Path:
    return _folder(name).with_suffix(".py")


def _folder(name: str) -> Path:
    return node_folder().joinpath(*name.split(".")[2:])
