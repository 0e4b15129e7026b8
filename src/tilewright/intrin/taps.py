"""Per-channel windows by dot products: each lane reduces rows, with weights per lane.

    C[j] += sum over k of A[k, j] * B[k // group, j, k % group]       rows of A, vertically adjacent

An instruction takes a lane's group from adjacent bytes, which come from different rows: they are
interleaved in registers, once for all windows that contain them. A partial group is zero-padded, so
that its weights are irrelevant. Families, by numbers of rows and of vectors of lanes:

    vnni_u8_taps, vnni_u8_taps_256     AVX-512 VNNI and AVX-VNNI: u8 x i8, groups of 4
    madd_u8_taps, madd_u8_taps_256     AVX-512 and AVX2: groups of 2, widened to i16
    neon_sdot_taps, neon_usdot_taps    AArch64: i8 x i8, u8 x i8, groups of 4
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright import sym
from tilewright.base.dots import TAP_DOTS, Dot
from tilewright.base.dtype import I16, I32, DType, dtype
from tilewright.intrin.declare import member
from tilewright.intrin.dot import reinterpret
from tilewright.sym import ONE, Expr
from tilewright.tensor.intrin import TensorIntrin, declare_family
from tilewright.tensor.ir import Broadcast, Buffer, Call, Load, Ramp, Seq, Stmt, Store
from tilewright.tensor.parameters import Parameter

ROWS = Parameter("rows", 2)
VECTORS = Parameter("vectors", 1)
ZIPPED_BYTES = 16  # bytes per vector that two instructions interleave with another


def spare_places(dot: Dot, rows: int) -> int:
    """Missing rows in the first group."""
    return -rows % dot.group


def is_zipped(dot: Dot) -> bool:
    """Whether rows are interleaved; wider vectors interleave within 128-bit lanes only, so they
    shift and combine words instead."""
    return dot.lanes * I32.size_bytes == ZIPPED_BYTES and not dot.takes


def column_instructions(dot: Dot, rows: int, vectors: Any) -> Any:
    """Instructions to build a column, without loads; of numbers or columns.

    Interleaving makes pairs of bytes, then pairs of pairs. Words take a conversion and a shift per
    row, and an OR with the previous ones.
    """
    groups = -(-rows // dot.group)
    if is_zipped(dot):
        return groups * (2 * -(-vectors // 2) + vectors)
    return (3 * rows - groups) * vectors


def _behavior(dot: Dot, rows: int, width: int) -> str:
    spare = spare_places(dot, rows)
    groups, place = (rows + spare) // dot.group, f"(%vk + {spare})"
    shape, at = f"{width}, {dot.group}", f"%vj, {place}"
    if groups > 1:
        shape, at = f"{groups}, {shape}", f"{place} // {dot.group}, %vj, {place} % {dot.group}"
    return f"""
    func @{dot.name}(%A: {dot.a}[{rows}, {width}], %B: {dot.b}[{shape}], %C: {dot.c}[{width}])
        stage scheduled {{
      for %j in 0..{width} {{ for %k in 0..{rows} {{
        block @C(%vj: spatial {width} = %j, %vk: reduce {rows} = %k) {{
          reads %A[%vk, %vj], %B[{at}]
          writes %C[%vj]
          init {{
            %C[%vj] = 0
          }}
          %C[%vj] sum= {dot.c}(%A[%vk, %vj]) * {dot.c}(%B[{at}])
        }}
      }} }}
    }}
    """


def _lanes(at: int, count: int) -> Expr:
    return Ramp(sym.const(at), ONE, count)


def _member(dot: Dot, rows: int, vectors: int) -> TensorIntrin:
    lanes, width, size = dot.lanes, dot.lanes * vectors, dot.lanes * dot.group
    spare = spare_places(dot, rows)
    groups = (rows + spare) // dot.group
    a_type, taken = dtype(dot.a), dtype(dot.takes or dot.a).with_lanes(size)

    def row(A: Buffer, place: int, at: int, count: int) -> Expr:
        """A row of `lanes` elements; zeros for a missing row."""
        if place < spare:
            return Broadcast(sym.const(0, a_type), count)
        return Load(A, (sym.const(place - spare), _lanes(at, count)))

    def zipped(A: Buffer, group: int) -> list[Expr]:
        """Interleave the bytes of each lane, for all vectors."""
        first, second, third, fourth = (
            _filled(row(A, group * dot.group + place, 0, width)) for place in range(dot.group)
        )
        words = I16.with_lanes(ZIPPED_BYTES)  # compiled to two steps instead of a table lookup
        halves = [_interleaved(*two) for two in ((first, second), (third, fourth))]
        whole = _interleaved(*[reinterpret(half, words) for half in halves])
        whole = reinterpret(whole, a_type.with_lanes(dot.group * ZIPPED_BYTES))
        name = f"llvm.vector.extract.v{size}i8.v{dot.group * ZIPPED_BYTES}i8"
        return [Call(name, (whole, sym.const(size * at)), taken) for at in range(vectors)]

    def words(A: Buffer, group: int) -> list[Expr]:
        """A 32-bit word per lane with its group."""
        found: list[Expr] = []
        for vector in range(vectors):
            word: Expr | None = None
            for at in range(dot.group):
                place = group * dot.group + at
                if place < spare:
                    continue
                each = sym.cast(row(A, place, vector * lanes, lanes), I32.with_lanes(lanes))
                if at:
                    each = Call("shift_left", (each, _shift(at, dot)), each.dtype)
                word = each if word is None else Call("bit_or", (word, each), each.dtype)
            assert word is not None
            found.append(reinterpret(word, taken))
        return found

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        totals: list[Expr] = [Load(C, (_lanes(v * lanes, lanes),)) for v in range(vectors)]
        for group in range(groups):
            parts = (zipped if is_zipped(dot) else words)(A, group)
            leading = (sym.const(group),) if groups > 1 else ()
            for vector, part in enumerate(parts):
                weights = Load(B, (*leading, sym.const(vector * lanes), _lanes(0, size)))
                pair = (part, sym.cast(weights, taken) if dot.takes else weights)
                totals[vector] = _added(dot, totals[vector], pair)
        stores = [Store(C, (_lanes(v * lanes, lanes),), each) for v, each in enumerate(totals)]
        return Seq(tuple(stores))

    return member(_behavior(dot, rows, width), reset=partial(_reset, lanes, vectors), update=update)


def _shift(at: int, dot: Dot) -> Expr:
    return Broadcast(sym.const(at * I32.bits // dot.group, I32), dot.lanes)


def _added(dot: Dot, total: Expr, pair: tuple[Expr, Expr]) -> Expr:
    if dot.adds:
        return Call(dot.llvm, (total, *pair), total.dtype)
    return sym.add(total, Call(dot.llvm, pair, total.dtype))


def _filled(row: Expr) -> Expr:
    """A row zero-padded to a whole vector."""
    if row.dtype.lanes == ZIPPED_BYTES:
        return row
    to = row.dtype.with_lanes(ZIPPED_BYTES)
    zeros = Broadcast(sym.const(0, row.dtype.scalar), ZIPPED_BYTES)
    name = f"llvm.vector.insert.v{ZIPPED_BYTES}i8.v{row.dtype.lanes}i8"
    return Call(name, (zeros, row, sym.const(0)), to)


def _interleaved(a: Expr, b: Expr) -> Expr:
    """a[0], b[0], a[1], b[1], ..."""
    to: DType = a.dtype.with_lanes(2 * a.dtype.lanes)
    return Call(f"llvm.vector.interleave2.v{to.lanes}i{to.bits}", (a, b), to)


def _reset(lanes: int, vectors: int, A: Buffer, B: Buffer, C: Buffer) -> Stmt:
    zero = Broadcast(sym.const(0, C.dtype), lanes)
    return Seq(tuple([Store(C, (_lanes(v * lanes, lanes),), zero) for v in range(vectors)]))


FAMILIES = tuple(
    declare_family(dot.name, (ROWS, VECTORS), partial(_member, dot)) for dot in TAP_DOTS
)
