"""The parts of ONNX Runtime that are Python, or data: those of an installed one, on our sessions.

`onnxruntime.quantization` and its like are not written again: each is a module here that the
installed module of that name takes the place of. What they import of `onnxruntime` is ours where
that name is, as it is under `tilewright ort`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

from tilewright.ort.errors import AbsentModule, absent


def hand_over(name: str) -> None:
    """Put the installed module in the place of ours, which is being imported."""
    last = name.rpartition(".")[2]
    found = _find(last, name)
    if found is None or found.loader is None:
        help = "install onnxruntime: its own is used then, on the sessions that are here"
        raise absent(f"onnxruntime.{last}", help, AbsentModule)
    module = module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)


def _find(last: str, name: str) -> ModuleSpec | None:
    # Not by `find_spec` of importlib.util, which answers what `sys.modules` has: us.
    package = PathFinder.find_spec("onnxruntime")
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec(last, folders)
    if found is None or found.origin is None:
        return None
    return spec_from_file_location(
        name, found.origin, submodule_search_locations=found.submodule_search_locations
    )
