"""References to loops, blocks and decisions, which a schedule's methods take and return.

A reference names a part of the program and never holds a statement, so it stays valid for as long
as that part exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.sym import Var


@dataclass(frozen=True, slots=True)
class LoopRef:
    """A loop, by its variable.

    Examples:
        >>> from tilewright import te, tensor
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
        >>> sch = tensor.Schedule(te.function([A, B]))
        >>> sch.get_loops(sch.get_block("B"))
        [<loop %i>]
    """

    var: Var

    def __repr__(self) -> str:
        return f"<loop %{self.var.name}>"


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block, by its name.

    Examples:
        >>> from tilewright import te, tensor
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
        >>> sch = tensor.Schedule(te.function([A, B]))
        >>> sch.get_block("B")
        <block @B>
    """

    name: str

    def __repr__(self) -> str:
        return f"<block @{self.name}>"


class Decision(int):
    """A sampled integer: usable as a number, and known to the trace that drew it.

    Examples:
        >>> from tilewright import te, tensor
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
        >>> sch = tensor.Schedule(te.function([A, B]))
        >>> (i,) = sch.get_loops(sch.get_block("B"))
        >>> outer, inner = sch.sample_tile(i, n=2, decision=[2, 4])
        >>> type(outer).__name__
        'Decision'
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Decision:
        return super().__new__(cls, value)


Ref = LoopRef | BlockRef | Decision
Argument = Any  # a Ref, a number, a string, None, or nested lists of these
