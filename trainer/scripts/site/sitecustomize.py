"""
Python imports this at its start, before the script, as this folder is on PYTHONPATH (docs/decisions/012).

Removes itself from sys.path and runs a sitecustomize of the node, if there is one. Child processes of the script import
it too, with any Python, so nothing here may fail on an old one.
"""

import os
import sys

_SITE = os.path.dirname(os.path.abspath(__file__))
_TRAINER = os.path.dirname(os.path.dirname(_SITE))
_NAME = "_orch_trainer"

sys.path[:] = [path for path in sys.path if path != _SITE]
if sys.version_info >= (3, 8) and _NAME not in sys.modules:
    import importlib.util

    _spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(_TRAINER, "__init__.py"), submodule_search_locations=[_TRAINER]
    )
    assert _spec is not None and _spec.loader is not None, "a file"  # noqa: PT018
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
    importlib.import_module(_NAME + ".scripts").install()

_this_module = sys.modules.pop(__name__)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 -- the node's own, later on sys.path
except ImportError as _error:
    if getattr(_error, "name", __name__) != __name__:
        raise
    sys.modules[__name__] = _this_module
