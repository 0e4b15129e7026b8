"""The interpreter: what a tensor program means, with everything checked that native code is not.

    interpret(fn, a, b, c)     runs `fn` on NumPy arrays; outputs are the caller's arrays
    source(fn)                 the Python code that runs

`docs/internals/tensor.md` tells the semantics, the modules here carry them out:

- arguments.py      checks the arguments, takes sizes from their shapes
- placement.py      where the intermediates of a scheduled program come into being
- program.py        generates the Python code of a function, on top of
  writer.py, exprs.py, accesses.py, emit.py      for one thread of control, and
  kernels.py                                     for threads in lock step
- tensor_calls.py   a tensor intrinsic as the statements of its declared behaviour
- values.py         what constants and conversions mean
- memory.py         the storage behind a buffer
- lanes.py          threads in lock step, races and barriers
- outside.py        external kernels and instructions
- failures.py       the errors, each showing the statement at fault
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.sym import Var
from tilewright.tensor.given import check_function
from tilewright.tensor.interp.arguments import bind_arguments
from tilewright.tensor.interp.program import Program
from tilewright.tensor.interp.roles import has_roles, run_roles
from tilewright.tensor.ir import REDUCE, Buffer, Function, sizes_of
from tilewright.tensor.passes.lower_inits import init_empty
from tilewright.tensor.visit import blocks


def interpret(fn: Function, *args: Any, seed: int = 0) -> None:
    """Run `fn` on NumPy arrays and numbers; arrays that it writes change in place.

    Sizes come from the shapes of the arguments. `seed` picks the order in which iterations of
    parallel loops and thread blocks run. Raises `ExecutionError` when the program does what native
    code must never do; then no argument has changed.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((12, 20), name="A")
        >>> B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
        >>> b = np.zeros((12, 20), np.float32)
        >>> tw.interpret(te.function([A, B]), np.ones((12, 20), np.float32), b)
        >>> float(b.sum())
        480.0
    """
    check_function(fn, "interpret")
    bound = bind_arguments(fn, args)
    if has_roles(fn):
        arrays = {buffer: memory.data for buffer, memory in bound.memory.items()}
        values = {var: int(value) for var, value in bound.values.items()}
        run_roles(fn, arrays, values, seed, interpret)
        bound.write_back()
        return
    if _may_reduce_nothing(fn, bound.values):
        fn = init_empty(fn)
    program = Program(fn)
    code = compile(program.source(), f"<interpreter of @{fn.name}>", "exec")
    exec(code, program.globals)
    given = [
        bound.memory[param] if isinstance(param, Buffer) else bound.values[param]
        for param in fn.params
    ]
    given += [bound.values[size] for size in sizes_of(fn) if size not in fn.params]
    with np.errstate(all="ignore"):
        program.globals["program"](*given, seed)
    bound.write_back()


def _may_reduce_nothing(fn: Function, values: Mapping[Var, Any]) -> bool:
    """Whether some reduction is over no elements, or that cannot be told before it runs."""
    known = {var: sym.const(int(value)) for var, value in values.items() if var.dtype is INDEX}
    return any(
        it.kind == REDUCE
        and block.init is not None
        and not sym.prove(sym.le(1, sym.substitute(it.extent, known)))
        for block in blocks(fn.body)
        for it in block.iters
    )


def source(fn: Function) -> str:
    """The Python code that `interpret` runs for `fn`."""
    return Program(fn).source()
