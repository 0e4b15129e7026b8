"""Native code must give the interpreter's answer, bit for bit: the data are small integers.

Programs bound to threads of a GPU have no native form here. LLVM's optimizer takes longer than all
the rest together, so that only one program in a few goes through it.
"""

from __future__ import annotations

import faulthandler

import numpy as np
from programs import Program

from tilewright.codegen.build import build
from tilewright.tensor import Function

OPTIMIZED = 4  # one in so many seeds

faulthandler.enable()  # a crash names the program's seed no more: let it name the place at least


def differs(
    program: Program, flat: Function, inputs: list[np.ndarray], wanted: list[np.ndarray], seed: int
) -> str:
    """What the native code of `flat` gets wrong; empty if nothing."""
    run = build(flat, optimize=seed % OPTIMIZED == 0, use_cache=False)
    have = [array.copy() for array in inputs]
    run(*have)
    for buffer, got, want in zip(program.function.buffers, have, wanted, strict=True):
        if not np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
            return f"%{buffer.name} differs\nhave {got}\nwant {want}\n{flat}"
    return ""
