"""Dot products of short groups, accumulated in the lanes of one vector register.

    vnni_u8_dot       AVX-512 VNNI: 16 lanes of i32, each the sum of 4 products u8 x i8
    vnni_u8_dot_256   AVX-VNNI: the same in 8 lanes
    vnni_i8_dot, vnni_i8_dot_256    the same instructions, the group that every lane uses being i8
    madd_i16_dot      AVX-512: 16 lanes of i32, each the sum of 2 products i16 x i16
    madd_i16_dot_256  AVX2: the same in 8 lanes; bytes are widened first, so that nothing saturates
    bf16_dot          AVX512-BF16: 16 lanes of f32, each the sum of 2 products of bf16
    neon_sdot         AArch64: 4 lanes of i32, each the sum of 4 products i8 x i8; neon_udot for u8,
                      neon_usdot for u8 x i8
    neon_sdot_by_element, ...   four such groups of A in one register, each used by its number
    madd_i8_rows, neon_sdot_rows    groups of A and B alike, one per lane: parts of the dot product
                      of two rows

Except for those of rows, A is one group that is broadcast to all lanes; B has a group per lane,
contiguous in memory. Integers wrap like any i32: all of these are bit-exact.
"""

from __future__ import annotations

from functools import partial

from tilewright import sym
from tilewright.base.dots import CODE_DOTS, DOTS, ROW_DOTS, Dot
from tilewright.base.dtype import DType, dtype
from tilewright.intrin.declare import declare
from tilewright.sym import ONE, ZERO, Expr
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import Broadcast, Buffer, Call, Load, Ramp, Stmt, Store


def _behavior(dot: Dot) -> str:
    lanes, group, steps = dot.lanes, dot.group, dot.steps
    shape, at = f"{lanes}, {group}", "%vj, %vk"
    if dot.groups > 1:
        shape, at = f"{dot.groups}, {shape}", f"%vk // {group}, %vj, %vk % {group}"
    return f"""
    func @{dot.name}(%A: {dot.a}[{steps}], %B: {dot.b}[{shape}], %C: {dot.c}[{lanes}])
        stage scheduled {{
      for %j in 0..{lanes} {{ for %k in 0..{steps} {{
        block @C(%vj: spatial {lanes} = %j, %vk: reduce {steps} = %k) {{
          reads %A[%vk], %B[{at}]
          writes %C[%vj]
          init {{
            %C[%vj] = 0
          }}
          %C[%vj] sum= {dot.c}(%A[%vk]) * {dot.c}(%B[{at}])
        }}
      }} }}
    }}
    """


def reinterpret(value: Expr, to: DType) -> Expr:
    """Bitcast to another type of the same size."""
    return Call("reinterpret", (value,), to)


def _vector(buffer: Buffer, lanes: int, *leading: Expr) -> Expr:
    """`lanes` elements from the first one on, or from the first of a row."""
    before = leading or (ZERO,) * (buffer.rank - 1)
    return Load(buffer, (*before, Ramp(ZERO, ONE, lanes)))


def _declared(dot: Dot) -> TensorIntrin:
    lanes, size = dot.lanes, dot.lanes * dot.group
    group_type = dtype("i32")  # one group of A, as bits
    a_type, b_type = dtype(dot.a).with_lanes(size), dtype(dot.b).with_lanes(size)

    def shared(A: Buffer) -> list[Expr]:
        """Broadcast a group of A to every lane."""
        if dot.groups == 1:
            found = [reinterpret(_vector(A, dot.group), group_type)]
        else:
            whole = reinterpret(_vector(A, dot.steps), group_type.with_lanes(dot.groups))
            found = [Call("lane", (whole, sym.const(at)), group_type) for at in range(dot.groups)]
        return [reinterpret(Broadcast(each, lanes), a_type) for each in found]

    def own(B: Buffer, at: int) -> Expr:
        """A group of B per lane."""
        leading = (ZERO,) * (B.rank - 1) if dot.groups == 1 else (sym.const(at), ZERO)
        whole = reinterpret(_vector(B, size, *leading), group_type.with_lanes(lanes))
        return reinterpret(whole, b_type)

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        total = _vector(C, lanes)
        for at, left in enumerate(shared(A)):
            pair = (left, own(B, at))
            # Where the order is free, the by-element operand comes second; otherwise unsigned bytes
            # come first.
            if dot.a == dot.b or dot.b == "u8":
                pair = pair[::-1]
            if dot.adds:
                total = Call(dot.llvm, (total, *pair), total.dtype)
            else:
                total = sym.add(total, Call(dot.llvm, pair, total.dtype))
        return Store(C, (Ramp(ZERO, ONE, lanes),), total)

    return declare(_behavior(dot), reset=partial(_reset, lanes), update=update)


def _reset(lanes: int, A: Buffer, B: Buffer, C: Buffer) -> Stmt:
    zero = Broadcast(sym.const(0, C.dtype), lanes)
    return Store(C, (Ramp(ZERO, ONE, lanes),), zero)


def _declared_rows(dot: Dot) -> TensorIntrin:
    lanes, size, at = dot.lanes, dot.lanes * dot.group, f"%vj * {dot.group} + %vk"
    behavior = f"""
    func @{dot.name}(%A: {dot.a}[{size}], %B: {dot.b}[{size}], %C: {dot.c}[{lanes}])
        stage scheduled {{
      for %j in 0..{lanes} {{ for %k in 0..{dot.group} {{
        block @C(%vj: spatial {lanes} = %j, %vk: reduce {dot.group} = %k) {{
          reads %A[{at}], %B[{at}]
          writes %C[%vj]
          init {{
            %C[%vj] = 0
          }}
          %C[%vj] sum= {dot.c}(%A[{at}]) * {dot.c}(%B[{at}])
        }}
      }} }}
    }}
    """

    def row(X: Buffer) -> Expr:
        whole = _vector(X, size)
        return sym.cast(whole, dtype(dot.takes).with_lanes(size)) if dot.takes else whole

    def update(A: Buffer, B: Buffer, C: Buffer) -> Stmt:
        total = _vector(C, lanes)
        added = (total,) if dot.adds else ()
        made = Call(dot.llvm, (*added, row(A), row(B)), total.dtype)
        return Store(C, (Ramp(ZERO, ONE, lanes),), made if dot.adds else sym.add(total, made))

    return declare(behavior, reset=partial(_reset, lanes), update=update)


INTRINSICS: dict[str, TensorIntrin] = {
    **{dot.name: _declared(dot) for dot in (*DOTS, *CODE_DOTS)},
    **{dot.name: _declared_rows(dot) for dot in ROW_DOTS},
}
