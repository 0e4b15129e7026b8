"""How long a block takes, roughly: enough to tell what is worth a second core.

Counts are of cycles per vector of a core, and of bytes that memory moves meanwhile; the larger of
the two is what an instance costs.
"""

from __future__ import annotations

from tilewright.base.dtype import INDEX, DType
from tilewright.base.target import Target
from tilewright.rules.match.nest import Nest
from tilewright.sym import Cast, Const, Div, Expr, Select, Var, uses_var
from tilewright.tensor.ir import Block, Call, Load
from tilewright.tensor.visit import exprs

NS_PER_CYCLE = 0.35  # of a server at some 2.9 GHz
BYTES_PER_CYCLE = 8.0  # between the core and a cache that many kernels share
REGION_NS = 5000.0  # of work per thread that pays for waking one up
CHUNKS_PER_THREAD = 8  # parts of a region, for threads that run at different speeds

CALLS = {  # cycles of a vector of 32-bit lanes; what is not named here is one instruction or two
    **dict.fromkeys(("exp", "log", "exp2", "log2", "expm1", "log1p", "sigmoid", "tanh"), 20.0),
    **dict.fromkeys(("erf", "sin", "cos", "tan", "sinh", "cosh", "asinh", "acosh", "atanh"), 30.0),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "pow", "fmod"), 60.0),
    **dict.fromkeys(("sqrt", "rsqrt"), 18.0),
}


def cycles(expr: Expr) -> float:
    """Of one vector operation."""
    if isinstance(expr, (Var, Const, Load)) or expr.dtype is INDEX:
        return 0.0
    if isinstance(expr, Call):
        return CALLS.get(expr.op, 2.0)
    if isinstance(expr, Div):
        return 12.0
    if isinstance(expr, (Cast, Select)):
        return 1.0
    return 0.5


def is_cheap(block: Block, limit: float = 6.0) -> bool:
    """Whether computing a value anew costs no more than fetching it again."""
    return sum(cycles(expr) for expr in exprs(block.body)) <= limit


def widest(block: Block) -> DType:
    """The largest type that values of a block have on their way, indices aside."""
    types = [region.buffer.dtype for region in block.writes]
    types += [expr.dtype for expr in exprs(block.body) if not _is_index(expr)]
    return max(types, key=lambda of: of.bits)


def _is_index(expr: Expr) -> bool:
    return expr.dtype is INDEX or expr.dtype.is_bool or isinstance(expr, Const)


def lanes_of(target: Target, block: Block) -> int:
    """Elements that a vector of the machine holds of the block's widest type."""
    return max(1, target.vector_bits // max(8, widest(block).bits))


def instance_ns(nest: Nest, target: Target) -> float:
    """The time of one instance of a block in vector code."""
    lanes = lanes_of(target, nest.block)
    compute = sum(cycles(expr) for expr in exprs(nest.block.body)) / lanes
    size = 0.0
    for access in nest.accesses:
        if any(access.stride(nest.var(at)) is None for at in nest.loops):
            size += 16.0  # anywhere: a good part of a cache line
        else:
            size += access.buffer.dtype.size_bytes * _touched(nest, access.offset)
    return NS_PER_CYCLE * max(compute, size / BYTES_PER_CYCLE, 0.25 / lanes)


def _touched(nest: Nest, offset: Expr) -> float:
    """New elements of an access per instance: fewer where loops read the same ones again."""
    share = 1.0
    for at in nest.loops:
        if not uses_var(offset, {nest.var(at)}):
            share /= max(1, nest.guess(at))
    return share


def chunks(total_ns: float, threads: int) -> int:
    """Into how many parts work is worth dividing; 1 means not at all."""
    if threads < 2 or total_ns < 2 * REGION_NS:
        return 1
    return max(2, min(int(total_ns / REGION_NS), CHUNKS_PER_THREAD * threads))


def chunk_rows(rows: int, parts: int, row_ns: float, is_open: bool) -> int:
    """Rows of each of so many parts.

    Where the number of rows is open, there may be far fewer than guessed: no part is more than
    twice the work that pays for a thread.
    """
    size = max(1, rows // parts)
    return min(size, max(1, int(2 * REGION_NS / row_ns))) if is_open else size
