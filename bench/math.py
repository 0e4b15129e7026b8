"""Transcendental functions: greatest error in ulps and throughput, against NumPy and libm.

    python bench/math.py [--json FILE] [--dtype f32] [--only exp,tanh]

The error is measured against NumPy's result in f64 (f32) or long double (f64), over the range of
arguments named in the table and all magnitudes inside it; that of gelu is in units of the argument.
Throughput is that of one core over arrays that stay in the cache, in millions of elements per
second; `libm` is a loop of scalar calls into the C library, compiled here by the system's `cc`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

if __name__ == "math":
    # A script's folder comes first in the search for modules, so that scripts beside this one find
    # it in the standard library's place: hand on to that.
    _elsewhere = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]
    _spec = importlib.machinery.PathFinder.find_spec("math", _elsewhere)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["math"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["math"])
else:
    import math_functions

    math_functions.main(__doc__)
