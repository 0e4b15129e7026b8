"""What the instructions of a warpgroup on tiles without swizzle do, as loops.

    wgmma.zero(C)                     wgmma.dot(C, A, B, ...)              wgmma.store(C, Y, stride)
    for e in 0..4096 { C[e] = 0 }     for e in 0..4096 { for k in 0..16    for e in 0..4096 {
                                      { C[e] = C[e] + A[..] * B[..] } }      Y[..] = C[e] }

Operands are core matrices of 8 rows by 8 elements, `intrin/wgmma.py`. The product reads them
asynchronously (`tensor/proxies.py`): before each element is read, `READ` checks its fence.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.sym import ZERO, Cast, Expr, Var
from tilewright.tensor.ir import SERIAL, VECTOR, Address, Call, Eval, For, Load, Stmt, Store, seq

SIDE, DEPTH, CORE = 64, 16, 8  # of a product, and of a core matrix
READ = "proxy.read"


def loops_of(call: Call) -> Stmt:
    """The loops of one call."""
    at, step = sym.var("e"), sym.var("k")
    sums, *args = call.args
    place = _moved(sums, at)
    if call.op == "wgmma.dot":
        row, column = sym.floordiv(at, SIDE), sym.floormod(at, SIDE)
        a = _element(args[0], row, step, args[2:4])
        b = _element(args[1], column, step, args[4:6])
        reads = [Eval(Call(READ, (each,), BOOL)) for each in (a, b)]
        to = place.buffer.dtype
        product = sym.mul(*(Cast(Load(each.buffer, each.index), to) for each in (a, b)))
        added = sym.add(Load(place.buffer, place.index), product)
        each: Stmt = seq(*reads, Store(place.buffer, place.index, added))
        each = For(step, ZERO, sym.const(DEPTH), each, SERIAL)
    elif call.op == "wgmma.store":
        row = sym.mul(sym.floordiv(at, SIDE), args[1])
        target = _moved(args[0], sym.add(row, sym.floormod(at, SIDE)))
        each = Store(target.buffer, target.index, Load(place.buffer, place.index))
    else:
        each = Store(place.buffer, place.index, sym.const(0.0, place.buffer.dtype))
    return For(at, ZERO, sym.const(SIDE * SIDE), each, VECTOR)


def _element(start: Expr, line: Expr, step: Var, strides: list[Expr]) -> Address:
    """An element of an operand: strides are bytes between core matrices along k and across it."""
    assert isinstance(start, Address)
    size = start.buffer.dtype.size_bytes
    along, across = (sym.floordiv(stride, size) for stride in strides)
    inner = sym.add(sym.mul(sym.floormod(line, CORE), CORE), sym.floormod(step, CORE))
    rows = sym.mul(sym.floordiv(line, CORE), across)
    return _moved(start, sym.add(sym.add(rows, sym.mul(sym.floordiv(step, CORE), along)), inner))


def _moved(start: Expr, by: Expr) -> Address:
    assert isinstance(start, Address)
    (index,) = start.index
    return Address(start.buffer, (sym.add(index, by),))
