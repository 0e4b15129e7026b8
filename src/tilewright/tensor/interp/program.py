"""The code of a whole function.

One function of the program becomes one Python function over flat NumPy arrays; `source(fn)` shows
it. A matrix product, shortened:

    for v_i in range(0, v_n):
        for v_j in range(0, v_m):
            for v_k in range(0, v_l):
                t_1 = (v_i) * n1_b_A + v_k
                t_2 = b_A[t_1]
                ...
"""

from __future__ import annotations

from tilewright.tensor import ir
from tilewright.tensor.interp.emit import Statements
from tilewright.tensor.interp.kernels import LockStep
from tilewright.tensor.ir import Buffer, For
from tilewright.tensor.visit import walk


class Program(Statements):
    """Emits a function. Thread and virtual-thread loops are left to `LockStep`."""

    def source(self) -> str:
        """The text of `def program(...)`: one parameter per parameter, then per size, then seed."""
        sizes = [size for size in ir.sizes_of(self.fn) if size not in self.fn.params]
        params = [
            ("m_" if isinstance(param, Buffer) else "") + self.name(param)
            for param in (*self.fn.params, *sizes)
        ]
        self.depth += 1
        self.levels.update((each, 0) for each in (*self.fn.params, *sizes))
        self.line("random = np.random.default_rng(seed)")
        for buffer in self.fn.buffers:
            self.unpack(buffer)
        self.stmt(self.fn.body)
        return "\n".join([f"def program({', '.join([*params, 'seed'])}):", *self.lines, ""])

    def _for(self, loop: For) -> None:
        if loop.kind in (ir.THREAD, ir.VTHREAD) and any(
            isinstance(stmt, For) and stmt.kind == ir.THREAD for stmt in walk(loop)
        ):
            LockStep(self).kernel(loop)
        elif loop.kind == ir.VTHREAD or (loop.kind == ir.VECTOR and self.pinned):
            LockStep(self).expanded_loop(loop)
        else:
            super()._for(loop)
