"""The order in which copies put rows of a right operand, so that threads hold neighbours of a row.

A product leaves thread q of four the columns 8 j + 2 q and 8 j + 2 q + 1 of its sums. An epilogue
wants eight neighbours in each thread: 16 bytes. So rows of the right operand, which become columns
of the product, are put in another place by the copy itself, within groups of 32:

    row 8 q + 2 j + e of the matrix  is  row 8 j + 2 q + e of the tile

To a tensor map that is a matrix of five axes (group, j, q, e, k), whose strides are no order. Then
what would be exchanged between threads is where it should be. Where anybody else reads the tile or
its sums, or a group is not whole, rows stay in order and threads exchange.
"""

from __future__ import annotations

from collections import defaultdict

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import Address, Buffer, Call, Let, Load, MaskedLoad, Stmt
from tilewright.tensor.roles import COPY, MULTICAST, PREFETCH
from tilewright.tensor.visit import exprs, walk

GROUP = 32  # columns of which four threads hold eight each
AXES = (4, 4, 2)  # of a group: j, q, e
PRODUCTS = ("wgmma.tile", "wgmma.start")
KEEPING = ("wgmma.clear", "wgmma.wait")  # whatever the order


def reordered(root: Stmt) -> frozenset[Buffer]:
    """The tiles of a kernel whose rows copies put in another order, and the sums of their
    products."""
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
    """Tiles and sums that nothing refuses, of each other neither."""
    while True:
        found = {b for right, made in sums_of.items() if {right, *made} & refused
                 for b in (right, *made)}  # fmt: skip
        if found <= refused:
            break
        refused |= found
    every = {b for right, made in sums_of.items() for b in (right, *made)}
    return frozenset(every - refused)


def _is_rounding(call: Call) -> bool:
    """Whether sums are stored by sixteen bytes of each thread."""
    if call.op != "wgmma.round":
        return False
    target = call.args[1]
    return isinstance(target, Address) and target.buffer.dtype.size_bytes == 2


def _copies_groups(call: Call, lets: dict[Var, Expr]) -> bool:
    """Whether a copy is of one matrix, and of whole groups of its rows."""
    if len(call.args) < 7:  # it has no barrier yet
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
