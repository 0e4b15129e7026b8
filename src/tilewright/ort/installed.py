"""Submodules of an installed ONNX Runtime that are Python or data, used with Tilewright's sessions.

`onnxruntime.quantization` and others are not reimplemented: each is a module here that the
installed module of the same name replaces. Their imports of `onnxruntime` get Tilewright where it
has that name, as under `tilewright ort`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

from tilewright.ort.errors import AbsentModule, absent


def hand_over(name: str) -> None:
    """Replace a module that is being imported by the installed one."""
    last = name.rpartition(".")[2]
    found = _find(last, name)
    if found is None or found.loader is None:
        help = "install onnxruntime: its own is used then, on the sessions that are here"
        raise absent(f"onnxruntime.{last}", help, AbsentModule)
    module = module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)


def _find(last: str, name: str) -> ModuleSpec | None:
    # Not `importlib.util.find_spec`, which would find this module in `sys.modules`.
    package = PathFinder.find_spec("onnxruntime")
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec(last, folders)
    if found is None or found.origin is None:
        return None
    return spec_from_file_location(
        name, found.origin, submodule_search_locations=found.submodule_search_locations
    )
