"""Steps of a scan: the product with the weights on all cores, the rest of a step by lanes.

    for t { for panel in parallel ... { for k { sums of some units, all gates } }  gates of all }

Weights are laid out panel by panel, in the order in which a step walks over them: units innermost,
then gates, then what is summed over. What was projected before the scan is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.rules import cost
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.vectorize import total
from tilewright.rules.match.nest import (
    Nest,
    attempt,
    block_of,
    fused,
    groups,
    inner_nest,
    is_expression,
    offset_of,
)
from tilewright.sym import Cast, Const, Expr, Mul, linear, uses_var
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import SCAN, TO_AND_FRO, Load, Update
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import written_buffers

REGISTERS = 24  # accumulators of gates: the rest holds weights and states
UNKNOWN_BATCH = 4  # sequences of a tile, where their number is not known


def recurrent(sch: Schedule, reference: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a block that runs once per step of a scan."""
    block = block_of(sch.function, reference.name)
    if not any(it.kind == SCAN for it in block.iters) or not is_expression(block):
        return ()
    loops = sch.get_loops(reference)
    if [loop.var for loop in loops] != list(block.bindings) or block.iters[0].kind != SCAN:
        return ()
    nest = inner_nest(sch, reference, 1)
    if nest is None or not nest.spatial or any(it.kind == SCAN for it in block.iters[1:]):
        return ()
    product = _product(sch, nest)
    if product is not None:
        return (_panels(sch, nest, product, context), reference)
    _lanes(sch, nest, context)
    return (reference,)


# ------------------------------------------------------------------------------------ other work


def _lanes(sch: Schedule, nest: Nest, context: RuleContext) -> None:
    """Lanes along the innermost loop, cores for the outermost, as far as steps allow."""
    lanes = cost.lanes_of(context.target, nest.block)
    parts = groups(nest, nest.spatial)
    inner = fused(sch, [nest.loops[at] for at in parts[-1]])
    outer = [nest.loops[at] for part in parts[:-1] for at in part]
    reduce = [nest.loops[at] for at in nest.reduce]
    work = cost.instance_ns(nest, context.target) * nest.instances
    count = cost.chunks(work, context.threads)
    if count > 1 and not outer:
        size = max(1, -(-total(nest, parts[-1]) // (count * lanes)))
        chunk, inner = sch.split(inner, [None, size * lanes])
        outer = [chunk]
    if lanes > 1 and total(nest, parts[-1]) > 1:
        step, lane = sch.split(inner, [None, lanes])
        if reduce:
            sch.reorder(*outer, step, *reduce, lane)
        attempt(sch, sch.vectorize, lane)
    if count > 1 and outer:
        attempt(sch, sch.parallel, fused(sch, outer))


# ------------------------------------------------------------------------------------ products


@dataclass(frozen=True)
class _Weights:
    """The operand of a product that is the same in every step."""

    read: int  # which read of the block
    name: str
    element_bytes: int
    gates: list[int]  # iterators of rows outside of the unit's own
    units: int  # per gate
    unit: int  # the iterator
    ordered: bool  # rows are gate * units + unit, columns what is summed over


def _product(sch: Schedule, nest: Nest) -> _Weights | None:
    body = nest.block.body
    if not isinstance(body, Update) or body.reducer.name != "sum" or len(nest.reduce) != 1:
        return None
    value = body.values[0]
    factors = [_stored(each) for each in (value.a, value.b)] if isinstance(value, Mul) else []
    loads = [each for each in factors if isinstance(each, Load)]
    if len(loads) != 2:
        return None
    unit, time = nest.spatial[-1], nest.block.iters[0].var
    for load in loads:
        offset = offset_of(load.buffer, load.index)
        if uses_var(offset, {time}) or load.buffer in written_buffers(sch.function.body):
            continue
        if not uses_var(offset, {nest.var(unit)}) or not uses_var(
            offset, {nest.var(nest.reduce[0])}
        ):
            continue
        gates = [at for at in nest.spatial[:-1] if uses_var(offset, {nest.var(at)})]
        read = next(
            (at for at, region in enumerate(nest.block.reads) if region.buffer is load.buffer), None
        )
        extent = nest.extent(unit)
        if read is None or not isinstance(extent, Const) or len(load.index) != 2:
            return None
        units = int(extent.value)
        return _Weights(
            read,
            load.buffer.name,
            load.buffer.dtype.size_bytes,
            gates,
            units,
            unit,
            _is_ordered(nest, load, gates, units),
        )
    return None


def _stored(expr: Expr) -> Expr:
    """What is read, where it is widened on the way to a product."""
    return expr.value if isinstance(expr, Cast) else expr


def _is_ordered(nest: Nest, load: Load, gates: list[int], units: int) -> bool:
    row, column = load.index
    if column is not nest.var(nest.reduce[0]) or len(gates) > 1:
        return False
    found = linear(row, [nest.var(at) for at in nest.spatial])
    if found is None:
        return False
    slopes, rest = found
    want = {nest.var(nest.spatial[-1]): 1, **{nest.var(at): units for at in gates}}
    if len(slopes) != len([v for v in want if v in slopes]):
        return False
    same = all(isinstance(s, Const) and s.value == want[v] for v, s in slopes.items())
    return same and isinstance(rest, Const) and rest.value % units == 0


def _panels(sch: Schedule, nest: Nest, weights: _Weights, context: RuleContext) -> BlockRef:
    """The product with weights that are laid out in panels of units."""
    reference = sch.get_block(nest.name)
    lanes = cost.lanes_of(context.target, nest.block)
    gates = total(nest, weights.gates)
    others = [at for at in nest.spatial[:-1] if at not in weights.gates]
    batch = total(nest, others)
    vectors = 2 if 2 * gates * batch <= REGISTERS else 1
    known = all(isinstance(nest.extent(at), Const) for at in others)
    together = max(1, min(batch if known else UNKNOWN_BATCH, REGISTERS // (gates * vectors)))
    width = lanes * vectors
    packed = sch.cache_read(reference, weights.read, "global")
    if weights.ordered:
        units = weights.units
        sch.transform_layout(
            packed,
            ("write", 0),
            f"(r, k) -> (r % {units} // {width}, k, r // {units}, r % {units} % {width})",
        )
    else:
        sch.transform_layout(packed, ("write", 0), "(r, k) -> (k, r)")
    if weights.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
    _order(sch, nest, weights, others, together, vectors, lanes, context)
    return packed


def _order(
    sch: Schedule,
    nest: Nest,
    weights: _Weights,
    others: list[int],
    together: int,
    vectors: int,
    lanes: int,
    context: RuleContext,
) -> None:
    panel, step, lane = sch.split(nest.loops[weights.unit], [None, vectors, lanes])
    outer: list[LoopRef] = []
    inner: list[LoopRef] = []
    if others:
        loops = [nest.loops[at] for at in others]
        sch.reorder(*loops, *[nest.loops[at] for at in weights.gates], panel)
        some, each = sch.split(fused(sch, loops), [None, together])
        outer, inner = [some], [each]
    gates = [nest.loops[at] for at in weights.gates]
    k = nest.loops[nest.reduce[0]]
    sch.reorder(panel, *outer, k, *inner, *gates, step, lane)
    sch.vectorize(lane)
    for loop in (*inner, *gates, step):
        sch.unroll(loop)
    work = cost.instance_ns(nest, context.target) * nest.instances
    size = nest.instances * weights.element_bytes
    shared = cost.chunks(work, context.threads) > 1
    # The runtime can walk a loop to and fro, so that a cache that is too small for all weights has
    # some of them at every step.
    if (shared or size > context.target.l2_bytes) and attempt(sch, sch.parallel, panel):
        sch.annotate(panel, "threads", 0 if shared else 1)
        sch.annotate(panel, TO_AND_FRO, True)
