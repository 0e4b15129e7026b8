"""The interpreter: reference semantics of tensor programs, with checks that native code lacks.

    interpret(fn, a, b, c)     runs `fn` on NumPy arrays; outputs are the caller's arrays
    source(fn)                 the Python code that runs

`docs/internals/tensor.md` tells the semantics, the modules here carry them out:

- arguments.py      checks the arguments, takes sizes from their shapes
- placement.py      where the intermediates of a scheduled program are allocated
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
from tilewright.tensor.interp.lanes import Lanes
from tilewright.tensor.interp.placement import written
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
    Interpreter(fn).run(*args, seed=seed)


class Interpreter:
    """A function that is looked through, and its Python code made, once for all runs."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.changed = written(fn.body)
        self.has_roles = has_roles(fn)
        self.programs: dict[bool, Program] = {}  # by whether empty reductions are provided for

    def run(self, *args: Any, seed: int = 0) -> None:
        """What `interpret` does."""
        fn = self.fn
        bound = bind_arguments(fn, args, self.changed)
        if self.has_roles:
            arrays = {buffer: memory.data for buffer, memory in bound.memory.items()}
            values = {var: int(value) for var, value in bound.values.items()}
            run_roles(fn, arrays, values, seed, lambda part: Interpreter(part).run)
        else:
            given = [
                bound.memory[param] if isinstance(param, Buffer) else bound.values[param]
                for param in fn.params
            ]
            given += [bound.values[size] for size in sizes_of(fn) if size not in fn.params]
            program = self._program(_may_reduce_nothing(fn, bound.values))
            program.globals["one"] = Lanes(program.failures, 1)
            with np.errstate(all="ignore"):
                program.globals["program"](*given, seed)
        bound.write_back()

    def _program(self, may_reduce_nothing: bool) -> Program:
        found = self.programs.get(may_reduce_nothing)
        if found is None:
            fn = init_empty(self.fn) if may_reduce_nothing else self.fn
            found = self.programs[may_reduce_nothing] = Program(fn)
            code = compile(found.source(), f"<interpreter of @{fn.name}>", "exec")
            exec(code, found.globals)
        return found


def _may_reduce_nothing(fn: Function, values: Mapping[Var, Any]) -> bool:
    """Whether some reduction is over no elements, or that is not known before it runs."""
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
