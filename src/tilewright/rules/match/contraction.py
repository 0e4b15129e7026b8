"""Contractions of two operands, by structure: which iterators are batch, m, n and k.

    C[b, i, j] = sum over k of A[b, i, k] * B[b, k, j]

Layouts do not matter: an iterator is classified by the operands that use it. The last n runs along
the contiguous dimension of the result, so B is whichever operand uses that iterator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.rules.match.nest import Access, Nest, block_of, nest_of, offset_of
from tilewright.sym import ONE, Cast, Const, Expr, Mul, Select, const
from tilewright.tensor.constants import UNPACKS
from tilewright.tensor.ir import Block, Call, Load, Update, annotation
from tilewright.tensor.reducers import builtin
from tilewright.tensor.schedule import BlockRef, Schedule

UNPACKING = ("bit_and", "shift_left", "shift_right")


@dataclass(frozen=True)
class Contraction:
    """A contraction. Iterators are named by their position in the block.

    `batch` indexes independent GEMMs, `m` only A, `n` only B, the last of them contiguous in the
    result; `k` is summed over.
    """

    nest: Nest
    a: Load
    b: Load
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    unpacks_b: bool = False  # a producer dequantizes B from a narrower type

    @property
    def block(self) -> Block:
        return self.nest.block

    def extent(self, at: int) -> int | None:
        """The extent of an iterator, where it is static."""
        found = self.nest.extent(at)
        return int(found.value) if isinstance(found, Const) else None

    def guess(self, positions: tuple[int, ...]) -> int:
        """The product of some iterators' extents; dynamic ones are guessed."""
        total = 1
        for at in positions:
            total *= self.nest.guess(at)
        return total

    def stride(self, load: Load, at: int) -> Expr | None:
        """The stride of an operand along an iterator, in elements."""
        return Access(load.buffer, offset_of(load.buffer, load.index), False).stride(
            self.nest.var(at)
        )

    def read_index(self, load: Load) -> int:
        """Which of the block's reads an operand is."""
        return next(i for i, r in enumerate(self.block.reads) if r.buffer is load.buffer)


def find_contraction(
    sch: Schedule, block: BlockRef, *, is_masked: bool = False
) -> Contraction | None:
    """The contraction that a block computes; None if it is none. Only on request one whose terms
    are zero where a condition fails."""
    nest = nest_of(sch, block)
    found = None if nest is None else contraction(nest, is_masked=is_masked)
    if found is None:
        return None
    made = [block_of(sch.function, ref.name) for ref in sch.get_producers(block)]
    return replace(
        found,
        unpacks_b=any(
            annotation(each, UNPACKS, False) and each.writes[0].buffer is found.b.buffer
            for each in made
        ),
    )


def operands(block: Block, *, is_masked: bool = False) -> tuple[Load, Load] | None:
    """The two loads whose products a block sums, casts aside; on request where a condition
    holds."""
    body = block.body
    if not isinstance(body, Update) or len(body.buffers) != 1:
        return None
    if body.reducer is not builtin("sum", body.buffers[0].dtype):
        return None
    (product,) = body.values
    if is_masked and isinstance(product, Select) and product.b is const(0, product.dtype):
        product = product.a
    if not isinstance(product, Mul):
        return None
    a, b = _loaded(product.a), _loaded(product.b)
    if a is None or b is None or a.buffer is b.buffer:
        return None
    return a, b


def _loaded(expr: Expr) -> Load | None:
    """The load behind casts and rounding to TF32."""
    while isinstance(expr, Cast) or is_tf32(expr):
        (expr,) = expr.children()
    return expr if isinstance(expr, Load) else None


def stored_operand(expr: Expr) -> Load | None:
    """The load of bytes behind casts and the bit operations that unpack sub-byte values."""
    while isinstance(expr, Cast) or (isinstance(expr, Call) and expr.op in UNPACKING):
        expr = expr.children()[0]
    is_byte = isinstance(expr, Load) and expr.buffer.dtype.size_bytes == 1
    return expr if isinstance(expr, Load) and is_byte else None


def is_tf32(expr: Expr) -> bool:
    """Whether an operand is rounded to TF32 for tensor cores."""
    return isinstance(expr, Call) and expr.op == "round_tf32"


def multiplies_tf32(block: Block) -> bool:
    """Whether both operands of a contraction are rounded to TF32."""
    product = block.body.values[0] if isinstance(block.body, Update) else None
    return isinstance(product, Mul) and is_tf32(product.a) and is_tf32(product.b)


def contraction(nest: Nest, *, is_masked: bool = False) -> Contraction | None:
    """The contraction that a nest computes; None if it is none."""
    found = operands(nest.block, is_masked=is_masked)
    written = nest.block.body.index if isinstance(nest.block.body, Update) else ()
    if found is None or not written or not nest.reduce:
        return None
    if nest.spatial != list(range(len(nest.spatial))):
        return None  # lowering puts reduction iterators last
    uses = [set(sym.free_vars(*load.index)) for load in found]
    summed = [at for at in nest.reduce if nest.extent(at) is not ONE] or nest.reduce
    if not all(nest.var(at) in used for at in summed for used in uses):
        return None
    last = _contiguous(nest, written)
    if last is None or (nest.var(last) in uses[0]) == (nest.var(last) in uses[1]):
        return None
    first, second = (0, 1) if nest.var(last) in uses[1] else (1, 0)
    batch, m, n = [], [], []
    for at in nest.spatial:
        var, extent = nest.var(at), nest.extent(at)
        in_a, in_b = var in uses[first], var in uses[second]
        if extent is ONE and at != last:
            batch.append(at)
        elif in_a and not in_b:
            m.append(at)
        elif in_b and not in_a:
            n.append(at)
        elif in_a:
            batch.append(at)
        else:
            return None  # the result is broadcast along an iterator that neither operand uses
    n.remove(last)
    return Contraction(
        nest,
        found[first],
        found[second],
        tuple(batch),
        tuple(m),
        (*n, last),
        tuple(nest.reduce),
    )


def _contiguous(nest: Nest, written: tuple[Expr, ...]) -> int | None:
    """The iterator along which the result is contiguous; dimensions of extent 1 are skipped."""
    for at in reversed(written):
        if isinstance(at, Const):
            continue
        position = next((i for i in nest.spatial if nest.var(i) is at), None)
        if position is None or nest.extent(position) is not ONE:
            return position
    return None
