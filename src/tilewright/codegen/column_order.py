"""Permuted rows of a right operand's tile, so that threads hold contiguous columns of the result.

A `wgmma` leaves thread q of four the columns 8 j + 2 q and 8 j + 2 q + 1 of the accumulators. An
epilogue wants eight contiguous columns per thread: 16 bytes. So the copy permutes the rows of the
right operand, which become columns of the result, within groups of 32:

    row 8 q + 2 j + e of the matrix  is  row 8 j + 2 q + e of the tile

For the tensor map this is a matrix of five axes (group, j, q, e, k) in another order. It replaces
the exchange between threads. Where the tile or its accumulators have other uses, or a group is
partial, rows stay in order and threads exchange.
"""

from __future__ import annotations

from collections import defaultdict

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import Address, Buffer, Call, Let, Load, MaskedLoad, Stmt
from tilewright.tensor.roles import COPY, MULTICAST, PREFETCH
from tilewright.tensor.visit import exprs, walk

GROUP = 32  # columns, of which each of four threads holds eight
AXES = (4, 4, 2)  # extents of j, q, e in a group
PRODUCTS = ("wgmma.tile", "wgmma.start")
KEEPING = ("wgmma.clear", "wgmma.wait")  # calls that do not depend on the order


def reordered(root: Stmt) -> frozenset[Buffer]:
    """The tiles of a kernel whose rows copies permute, and their accumulators."""
    lets = {stmt.var: stmt.value for stmt in walk(root) if isinstance(stmt, Let)}
    sums_of: defaultdict[Buffer, set[Buffer]] = defaultdict(set)  # by right operand
    refused: set[Buffer] = set()
    for node in exprs(root):
        if isinstance(node, (Load, MaskedLoad)):
            refused.add(node.buffer)
        if not isinstance(node, Call):
            continue
        used = [arg.buffer for arg in node.args if isinstance(arg, Address)]
        if node.op in PRODUCTS and len(used) == 3:
            made, left, right = used
            sums_of[right].add(made)
            refused.add(left)
            if not _are_groups(node.args[3]) or node.args[4] is not sym.ZERO:
                refused.add(made)
        elif node.op in (COPY, MULTICAST, PREFETCH):
            if not _copies_groups(node, lets):
                refused.add(used[0])
        elif node.op == "wgmma.rows" or _is_rounding(node):
            if not _are_groups(node.args[-1]):
                refused.add(used[0])
        elif node.op not in KEEPING:
            refused.update(used)
    return _allowed(sums_of, refused)


def _allowed(sums_of: dict[Buffer, set[Buffer]], refused: set[Buffer]) -> frozenset[Buffer]:
    """Tiles and accumulators that nothing rules out, directly or through each other."""
    while True:
        found = {b for right, made in sums_of.items() if {right, *made} & refused
                 for b in (right, *made)}  # fmt: skip
        if found <= refused:
            break
        refused |= found
    every = {b for right, made in sums_of.items() for b in (right, *made)}
    return frozenset(every - refused)


def _is_rounding(call: Call) -> bool:
    """Whether a call stores accumulators by sixteen bytes per thread."""
    if call.op != "wgmma.round":
        return False
    target = call.args[1]
    return isinstance(target, Address) and target.buffer.dtype.size_bytes == 2


def _copies_groups(call: Call, lets: dict[Var, Expr]) -> bool:
    """Whether a copy is of a single matrix, and of whole groups of its rows."""
    if len(call.args) < 7:  # without a barrier yet
        return False
    _, source, rows, width, _, height, row, *_ = call.args
    assert isinstance(source, Address)
    while any(isinstance(node, Var) and node in lets for node in sym.walk(row)):
        row = sym.substitute(row, lets)
    whole: Expr = sym.ONE
    for dim in source.buffer.shape:
        whole = sym.mul(whole, dim)
    is_one = sym.simplify(whole) is sym.simplify(sym.mul(height, width))
    return is_one and all(_are_groups(each) for each in (rows, height, row))


def _are_groups(count: Expr) -> bool:
    return sym.simplify(sym.floormod(count, GROUP)) is sym.ZERO
