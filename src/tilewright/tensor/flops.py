"""The operation count of a function, from its blocks."""

from __future__ import annotations

from tilewright import sym
from tilewright.sym import ZERO, Binary, Const, Expr, Mul, Var
from tilewright.tensor.ir import Block, Call, Function, Load, Update
from tilewright.tensor.visit import blocks, exprs, walk

# The annotation of a block with the operations one instance stands for, where those it does say
# little: of a method that gets by with fewer, or does more.
STANDS_FOR = "stands_for"


def flops_of(fn: Function) -> Expr:
    """Operations on floating-point numbers, and those of sums of products of integers, over the
    sizes; a function call counts as one."""
    total: Expr = ZERO
    for block in blocks(fn.body):
        count = _per_instance(block)
        if count:
            instances: Expr = sym.const(count)
            for it in block.iters:
                instances = sym.mul(instances, it.extent)
            total = sym.add(total, instances)
    return sym.simplify(total)


def _per_instance(block: Block) -> int:
    told = dict(block.annotations).get(STANDS_FOR)
    if isinstance(told, int):
        return told
    count = sum(1 for expr in exprs(block.body) if _is_operation(expr))
    for stmt in walk(block.body):
        if isinstance(stmt, Update):
            count += sum(1 for value in stmt.values if value.dtype.is_float)
            count += sum(2 for value in stmt.values if _is_integer_product(value))
    return count


def _is_operation(expr: Expr) -> bool:
    if isinstance(expr, (Load, Const, Var)) or not expr.dtype.is_float:
        return False
    return isinstance(expr, (Binary, Call))


def _is_integer_product(expr: Expr) -> bool:
    return isinstance(expr, Mul) and expr.dtype.is_int
