"""Inline cheap producers into their consumers, before any rule is tried."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.rules import cost
from tilewright.rules.match.contraction import operands
from tilewright.rules.match.nest import block_of
from tilewright.sym import ONE, Expr, uses_var
from tilewright.tensor.ir import REDUCE, SCAN, Block, Load, Store
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import blocks, exprs, walk

MAX_RECOMPUTED_LOADS = 3  # loads of a value that may be recomputed instead of stored
MAX_TREE_NODES = 1000  # of an expression as a tree, with shared subexpressions expanded


def inline_producers(sch: Schedule) -> None:
    """Inline every elementwise block that is no result and not too expensive to recompute."""
    left = list(blocks(sch.function.body))
    while left:
        left = _inline(sch, left)
    for block in blocks(sch.function.body):
        if _copies_running_sum(sch, block):
            sch.attempt(sch.reverse_compute_inline, BlockRef(block.name))


def _copies_running_sum(sch: Schedule, block: Block) -> bool:
    """Whether a block copies the states of a scan of one block: that may write the copy itself."""
    if not isinstance(block.body, Store) or not isinstance(block.body.value, Load):
        return False
    found = [block_of(sch.function, each.name) for each in sch.get_producers(BlockRef(block.name))]
    steps = [each for each in found if any(it.kind == SCAN for it in each.iters)]
    if len(found) != 2 or len(steps) != 1:
        return False
    outermost, *_ = sch.get_loops(BlockRef(steps[0].name))
    return len(sch.get_child_blocks(outermost)) == 1


def _inline(sch: Schedule, found: list[Block]) -> list[Block]:
    """Inline some blocks; returns those of several readers whose readers have since become one."""
    shared: list[Block] = []
    for block in found:
        reference = sch.get_block(block.name)
        readers = sch.get_consumers(reference)
        if not readers or block.annotations:  # annotated by lowering: a stage that a rule places
            continue
        block = block_of(sch.function, block.name)
        if _tree_nodes(block) > MAX_TREE_NODES:
            continue
        consumers = [block_of(sch.function, reader.name) for reader in readers]
        again = len(readers) > 1 or any(_is_recomputed_by(block, reader) for reader in consumers)
        if again and (not _is_cheap(block) or (len(readers) > 1 and _follows_sum(sch, block))):
            shared += [block] if len(readers) > 1 else []
            continue
        if not _is_move(block) and any(_is_gemm_operand(block, reader) for reader in consumers):
            continue
        try:
            sch.compute_inline(reference)
        except ScheduleError:
            continue  # a reduction, a result, an opaque body: it stays
    return [block for block in shared if len(sch.get_consumers(sch.get_block(block.name))) == 1]


def _tree_nodes(block: Block) -> int:
    """The size of a block's expressions as trees."""
    sizes: dict[Expr, int] = {}
    roots = [expr for stmt in walk(block.body) for expr in stmt.exprs()]
    stack = list(roots)
    while stack:
        expr = stack[-1]
        missing = [child for child in expr.children() if child not in sizes]
        if missing:
            stack.extend(missing)
            continue
        sizes[expr] = 1 + sum(sizes[child] for child in expr.children())
        stack.pop()
    return sum(sizes[root] for root in roots)


def _follows_sum(sch: Schedule, block: Block) -> bool:
    """Whether a block maps the result of a reduction element by element: it will be an epilogue."""
    place = [it.var for it in block.iters]
    for producer in sch.get_producers(sch.get_block(block.name)):
        source = block_of(sch.function, producer.name)
        if not any(it.kind == REDUCE for it in source.iters):
            continue
        made = [region.buffer for region in source.writes]
        for expr in exprs(block.body):
            if isinstance(expr, Load) and expr.buffer in made and list(expr.index) == place:
                return True
    return False


def _is_recomputed_by(block: Block, reader: Block) -> bool:
    """Whether a consumer reads the same element in several instances."""
    made = [region.buffer for region in block.writes]
    for expr in exprs(reader.body):
        if isinstance(expr, Load) and expr.buffer in made:
            for it in reader.iters:
                used = any(uses_var(index, {it.var}) for index in expr.index)
                if it.extent is not ONE and not used:
                    return True
    return False


def _is_gemm_operand(block: Block, reader: Block) -> bool:
    """Whether a consumer is a contraction that reads the elements many times, unchanged."""
    return operands(reader, is_masked=True) is not None and _axes(reader) > _axes(block)


def _axes(block: Block) -> int:
    return sum(it.extent is not ONE for it in block.iters)


def _is_move(block: Block) -> bool:
    """Whether a block copies values unchanged."""
    return isinstance(block.body, Store) and isinstance(block.body.value, Load)


def _is_cheap(block: Block) -> bool:
    loads = sum(isinstance(expr, Load) for expr in exprs(block.body))
    return loads <= MAX_RECOMPUTED_LOADS and cost.is_cheap(block)
