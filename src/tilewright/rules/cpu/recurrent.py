"""Steps of a scan (LSTM, GRU, running sums): the recurrent GEMM on all cores, the rest vectorized.

    for t { for panel in parallel ... { for k { sums of some units, all gates } }  gates of all }

Weights are packed by panel in the order a step traverses them: units innermost, then gates, then k.
The input projection is done before the scan and no part of it. Where the target has dot products
for the types, the lanes of units hold groups of k.

The rest of a step is a long dependence chain of functions per vector: where the out-of-order window
is shorter than that chain, several vectors are interleaved.

A step that is one block and reads only its own element of the previous step, as a running sum does,
is an independent chain per element: threads may take chains, each with all of its steps.

    for chains in parallel ... { for t { the step of some chains, vectorized } }

Where the steps of a chain are contiguous in memory, as for a running sum along rows, vectorizing
across chains would gather: instead, scalar chains may be interleaved, to hide each other's latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dots import Dot, dots_of
from tilewright.base.extents import ASSUMED
from tilewright.base.machine import LOOP_CYCLES, Machine
from tilewright.rules import cost as costs
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.dot_model import register_tile
from tilewright.rules.cpu.dot_model import tile_cycles as dot_tile_cycles
from tilewright.rules.cpu.gemm_model import (
    ceil_div,
    is_unrollable,
    near_unroll_candidates,
    tiles_cycles,
)
from tilewright.rules.match.nest import (
    Nest,
    attempt,
    block_of,
    fused,
    groups,
    inner_nest,
    is_expression,
    offset_of,
    total,
)
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import (
    NONE,
    Axes,
    Forms,
    Work,
    chunk_cycles,
    forms_candidates,
    forms_legal,
    forms_terms,
)
from tilewright.rules.space import Column, Columns, Cost, Space, Value, doublings, unit
from tilewright.sym import ONE, Cast, Const, Expr, Mul, Var, const, linear, uses_var
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import ALTERNATING, SCAN, Load, Range, Update
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import written_buffers

PANELS, ROWS, INNER = "panels", "rows", "inner"  # the axis split across threads
PANEL_VECTORS = (1, 2, 4, 8)  # candidates for the vectors of a panel


@dataclass(frozen=True)
class RecurrentPlan:
    """The schedule of a block that runs once per step of a scan."""

    vectors: int = unit("vectors", "of units in a panel of weights, or interleaved in other work")
    sequences: int = unit("sequences", "of the register tile")
    k_unroll: int = unit("steps of k", "per iteration of the unrolled loop")
    alternate: bool = unit("flag", "alternating direction along panels, step by step")
    parallel: str = unit("axis", "split across threads")
    chunk: int = unit("rows or vectors", "in a thread's chunk")
    chains: bool = unit("flag", "a thread runs all steps of its share, without a barrier per step")
    beside: int = unit("chains", "scalar ones that are interleaved; 0: lanes are chains")


@dataclass(frozen=True)
class Weights:
    """The operand of a GEMM that is the same in every step."""

    read: int  # index among the block's reads
    name: str
    element_bytes: int
    gates: list[int]  # iterators of its rows outside of `unit`
    units: int  # per gate
    unit: int  # the iterator over units
    ordered: bool  # rows are gate * units + unit, columns are k
    is_whole: bool  # this block multiplies by all of its gates
    dot: Dot | None  # the dot-product instruction, if there is one


@dataclass(frozen=True)
class Recurrent:
    """A block that runs once per step of a scan: a GEMM with weights, or anything else."""

    nest: Nest
    weights: Weights | None
    lanes: int
    steps: int
    are_chains: bool  # each element depends on its own past alone
    along_steps: bool  # the inputs of a chain's steps are contiguous

    @property
    def others(self) -> list[int]:
        """A GEMM's iterators over sequences."""
        gates = [] if self.weights is None else self.weights.gates
        return [at for at in self.nest.spatial[:-1] if at not in gates]

    @property
    def parts(self) -> list[list[int]]:
        """The loops of other work, grouped into those that can be fused."""
        return groups(self.nest, self.nest.spatial)

    @property
    def assumed_share(self) -> float:
        """The work of a step relative to that of its nest with guessed extents: a dynamic batch of
        sequences is assumed to be small."""
        *outer, _ = self.parts
        rows = [at for part in outer for at in part]
        if self.weights is not None or self.are_chains or self.nest.has_range(rows):
            return 1.0
        return min(1.0, ASSUMED.sequences / total(self.nest, rows))

    @property
    def sequences(self) -> int:
        """The sequences of a call."""
        if self.nest.has_range(self.others):
            return total(self.nest, self.others)
        return ASSUMED.sequences

    def axes(self, context: RuleContext, *, vectors: int = 1, steps: int = 1) -> Axes:
        """The parallel axes, within one step or over all of them."""
        work = costs.nest_cycles(self.nest, context.target) * steps * self.assumed_share
        if self.weights is not None:
            panels = ceil_div(self.weights.units, vectors * self.lanes)
            return {PANELS: Work(panels, work / panels, is_static=True)} if panels > 1 else {}
        *outer, inner = self.parts
        rows = total(self.nest, [at for part in outer for at in part])
        rows = max(1, round(rows * self.assumed_share))
        if outer:
            return {ROWS: Work(rows, work / rows)} if rows > 1 else {}
        turns = ceil_div(total(self.nest, inner), self.lanes)
        return {INNER: Work(turns, work / turns)} if turns > 1 else {}

    @property
    def may_interleave(self) -> bool:
        """Whether vectors of other work are independent, so that they may be interleaved."""
        return self.weights is None and not self.are_chains and not self.nest.reduce

    @property
    def unrolls_k(self) -> bool:
        if self.weights is None or self.weights.dot is not None:
            return False
        return isinstance(self.nest.extent(self.nest.reduce[0]), Const)

    @property
    def form(self) -> str:
        """The field of the plan that the parallel axes depend on."""
        return "chains" if self.weights is None else "vectors"

    def forms(self, context: RuleContext) -> Forms:
        found: dict[Value, Axes]
        if self.weights is None:
            found = {0: self.axes(context)}
            return found | ({1: self.axes(context, steps=self.steps)} if self.are_chains else {})
        found = {count: self.axes(context, vectors=count) for count in PANEL_VECTORS}
        return found


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Recurrent | None:
    found = block_of(sch.function, block.name)
    if not any(it.kind == SCAN for it in found.iters) or not is_expression(found):
        return None
    loops = sch.get_loops(block)
    if [loop.var for loop in loops] != list(found.bindings) or found.iters[0].kind != SCAN:
        return None
    nest = inner_nest(sch, block, 1)
    if nest is None or not nest.spatial or any(it.kind == SCAN for it in found.iters[1:]):
        return None
    weights, lanes = _weights(sch, nest, context), costs.lanes_of(context.target, found)
    if weights is not None and weights.dot is not None:
        lanes = weights.dot.lanes
    are_chains = (
        weights is None
        and len(sch.get_child_blocks(loops[0])) == 1
        and _is_elementwise_recurrence(nest)
    )
    along = are_chains and _are_steps_contiguous(sch, nest)
    return Recurrent(nest, weights, lanes, nest.guess(0), are_chains, along)


def _are_steps_contiguous(sch: Schedule, nest: Nest) -> bool:
    """Whether inputs are contiguous along steps, and the output is so, too, or can be: a local
    buffer whose first dimension is the step."""
    time, written = nest.block.iters[0].var, nest.block.writes[0]
    read = [access for access in nest.reads if access.buffer is not written.buffer]
    is_along = [access.stride(time) is ONE for access in read]
    if not is_along or not all(is_along):
        return False
    return _is_written_along(nest) or _can_be_written_along(sch, nest)


def _is_written_along(nest: Nest) -> bool:
    """Whether the output is contiguous along steps."""
    time = nest.block.iters[0].var
    return all(access.stride(time) is ONE for access in nest.writes)


def _can_be_written_along(sch: Schedule, nest: Nest) -> bool:
    time, written = nest.block.iters[0].var, nest.block.writes[0]
    if written.buffer not in sch.function.allocs or len(written.ranges) < 2:
        return False
    first, *others = [_uses(each, {time}) for each in written.ranges]
    return first and not any(others)


def _is_elementwise_recurrence(nest: Nest) -> bool:
    """Whether a step reads only its own element of other steps' results."""
    if len(nest.block.writes) != 1:
        return False
    written = nest.block.writes[0]
    elements = {nest.var(at) for at in nest.spatial}
    again = [region for region in nest.block.reads if region.buffer is written.buffer]
    return all(
        (mine.start is theirs.start and mine.extent is theirs.extent)
        or not any(_uses(each, elements) for each in (mine, theirs))
        for region in again
        for mine, theirs in zip(region.ranges, written.ranges, strict=True)
    )


def _uses(span: Range, names: set[Var]) -> bool:
    return uses_var(span.start, names) or uses_var(span.extent, names)


def plans(found: Recurrent, context: RuleContext) -> Space[RecurrentPlan]:
    forms, registers = found.forms(context), context.target.vector_registers
    machine, gates, sequences, k = context.target.machine, 1, 1, 1
    if found.weights is not None:
        gates = total(found.nest, found.weights.gates)
        sequences = found.sequences
        k = found.nest.guess(found.nest.reduce[0])

    def legal(c: Columns) -> Column:
        """Accumulators, weights of a gate and broadcasts fit the registers, as do all reads of
        interleaved vectors. Where panels are split across threads, each keeps its own in L2 by
        traversing them in alternating direction."""
        if found.weights is None:
            fits = c["vectors"] * len(found.nest.reads) <= registers
        else:
            sums = gates * c["vectors"] * c["sequences"]
            fits = sums + c["vectors"] + c["sequences"] <= registers
            body = 2 * sums + c["sequences"]  # multiply-adds, weight loads, broadcasts
            fits &= is_unrollable(k, body, c["k_unroll"], machine)
        fits |= (c["vectors"] * c["sequences"] == 1) & (c["k_unroll"] == 1)
        alternates = (c["parallel"] != PANELS) | (c["alternate"] == 1)
        shared = (c["chains"] == 0) | (c["parallel"] != NONE) | (c["beside"] > 0)
        shared &= (c["beside"] == 0) | (c["chains"] == 1)
        ok: Column = fits & alternates & shared & forms_legal(c, found.form, forms, context)
        return ok

    return Space(
        RecurrentPlan,
        {
            "vectors": _vectors(found),
            "sequences": tuple(range(1, min(sequences, registers) + 1)),
            "k_unroll": near_unroll_candidates(machine) if found.unrolls_k else (1,),
            "alternate": (0, 1) if found.weights is not None else (0,),
            **forms_candidates(forms, context),
            "chains": (0, 1) if found.are_chains else (0,),
            "beside": (0, *doublings(_most_beside(found, machine))[1:])
            if found.along_steps
            else (0,),
        },
        legal,
    )


def _most_beside(found: Recurrent, machine: Machine) -> int:
    """The lines that interleaved chains read and write must stay in L1 even where all of them map
    to one set, as rows of a power of two do."""
    written = found.nest.block.writes[0].buffer
    streams = 1 + sum(access.buffer is not written for access in found.nest.reads)
    return max(2, min(found.lanes, machine.l1d.ways // streams))


def _vectors(found: Recurrent) -> tuple[int, ...]:
    """Candidates for `vectors`; interleaved vectors divide the row."""
    if found.weights is not None:
        return PANEL_VECTORS
    if not found.may_interleave:
        return PANEL_VECTORS[:1]
    row = total(found.nest, found.parts[-1])
    return tuple([n for n in PANEL_VECTORS if n == 1 or row % (n * found.lanes) == 0])


def cost(found: Recurrent, c: Columns, context: RuleContext) -> Cost:
    target, machine, nest = context.target, context.target.machine, found.nest
    weights, forms = found.weights, found.forms(context)
    if weights is None:
        at_once = np.where(c["chains"] == 1, found.steps, 1)  # steps per parallel region
        one = np.maximum(1.0, machine.fma_latency_cycles / np.maximum(1, c["beside"]))
        one = one + LOOP_CYCLES / np.maximum(1, c["beside"])  # per scalar step of a chain
        lanes = costs.nest_cycles(nest, target) * (found.lanes if found.along_steps else 1)
        waiting = (
            _latency_bound_cycles(found, c["vectors"], machine) if found.may_interleave else 0.0
        )
        by_lanes = np.maximum(lanes, waiting) * found.assumed_share
        serial = np.where(c["beside"] > 0, one * nest.instances, by_lanes) * at_once
        terms = forms_terms(c, found.form, forms, serial, context)
        return Cost.of(**_over_steps(terms, found.steps / at_once, machine))
    if nest.has_range(found.others):
        terms = _gemm_terms(found, weights, c, found.sequences, context)
        return Cost.of(**_over_steps(terms, found.steps, machine))
    # Per sequence: most calls have a single one, but with several, threads and tiles do better.
    alone, several = (
        _gemm_terms(found, weights, c, batch, context) for batch in (1, found.sequences)
    )
    terms = {name: (term + several[name] / found.sequences) / 2 for name, term in alone.items()}
    return Cost.of(**_over_steps(terms, found.steps, machine))


def _latency_bound_cycles(found: Recurrent, vectors: Column, machine: Machine) -> Column:
    """Cycles of a step bound by latency: groups of vectors overlap as far as the out-of-order
    window reaches."""
    block = found.nest.block
    instructions = vectors * costs.body_cycles(block) * machine.fma_per_cycle
    in_flight = np.maximum(1.0, machine.reorder_window / np.maximum(1.0, instructions))
    groups = found.nest.instances / (vectors * found.lanes)
    waiting: Column = groups * costs.latency_cycles(block, machine) / in_flight
    return waiting


def _over_steps(terms: dict[str, Column], steps: Any, machine: Machine) -> dict[str, Column]:
    """Terms over all steps. Threads are woken for the first; between steps they spin, and data
    moves between cores as from one kernel to the next."""
    per_step = {name: term * steps for name, term in terms.items()}
    share = 2 * machine.kernel_call_ns / max(machine.thread_wake_ns, machine.cycle_ns)
    return per_step | {"wake": terms["wake"] * (1 + (steps - 1) * share)}


def _gemm_terms(
    found: Recurrent, weights: Weights, c: Columns, batch: int, context: RuleContext
) -> dict[str, Column]:
    """Cost terms of one step, for so many sequences."""
    machine, nest, forms = context.target.machine, found.nest, found.forms(context)
    gates, k = total(nest, weights.gates), nest.guess(nest.reduce[0])
    # Per step of k: all gates of a panel, and one broadcast per sequence.
    panels = ceil_div(weights.units, c["vectors"] * found.lanes)
    groups = ceil_div(batch, c["sequences"])
    width = gates * c["vectors"]
    if weights.dot is None:
        compute = panels * k * tiles_cycles(batch, width, c["sequences"], width, machine)
        at_once = 1
    else:
        each = dot_tile_cycles(weights.dot, machine, c["sequences"], width, k, near=True)
        compute = panels * groups * each
        at_once = weights.dot.steps
    # A slot for the branch of each iteration.
    turns = panels * groups * k / (at_once * c["k_unroll"]) / machine.fma_per_cycle
    moved = _weight_cycles(found, weights, c, batch, context)
    hidden = np.minimum(compute, moved) * (1 - machine.exposed_l2_share)
    terms = forms_terms(c, found.form, forms, compute + moved - hidden + turns, context)
    by_runtime = (c["parallel"] == NONE) & (c["alternate"] == 1)
    return terms | {"dispatch": terms["dispatch"] + by_runtime * chunk_cycles(machine)}


def _weight_cycles(
    found: Recurrent, weights: Weights, c: Columns, batch: int, context: RuleContext
) -> Column:
    """Cycles to load the weights of one step from where the previous step left them. Weights that
    exceed a cache are evicted before reuse if traversed in the same order; in alternating
    direction, what was used last is still there: in L1, whole panels."""
    machine, nest = context.target.machine, found.nest
    gates, k = total(nest, weights.gates), nest.guess(nest.reduce[0])
    panels = ceil_div(weights.units, c["vectors"] * found.lanes)
    groups = ceil_div(batch, c["sequences"])
    size_bytes = gates * weights.units * k * weights.element_bytes
    threads = np.where(c["parallel"] == PANELS, context.threads, 1)
    l1, panel = machine.l1d, size_bytes / panels

    def left(whole: int, kept: Column | int) -> Column:
        if_turned = np.where(c["alternate"] == 1, np.minimum(size_bytes, kept * threads), 0.0)
        return np.where(size_bytes <= whole * threads, size_bytes, if_turned)

    in_l1 = left(l1.size_bytes, l1.kept_bytes // panel * panel)
    # Inputs and states of all steps stream through, and take a part of L2.
    room = machine.l2.size_bytes - machine.l2.block_bytes
    in_l2 = np.maximum(in_l1, left(room, room))
    far = machine.l3.bytes_per_cycle or machine.memory_bytes_per_cycle
    near = np.where(panel <= l1.kept_bytes, l1.bytes_per_cycle, machine.l2.bytes_per_cycle)
    moved: Column = (
        in_l1 / l1.bytes_per_cycle
        + (in_l2 - in_l1) / machine.l2.bytes_per_cycle
        + (size_bytes - in_l2) / far
        + (groups - 1) * size_bytes / near  # a panel is reread for further sequences
    )
    return moved


def apply(
    sch: Schedule, found: Recurrent, plan: RecurrentPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    block = BlockRef(found.nest.name)
    if found.weights is None:
        _schedule_map(sch, found, plan)
        return (block,)
    return (_schedule_gemm(sch, found, found.weights, plan, context), block)


# ------------------------------------------------------------------------------------ other work


def _schedule_map(sch: Schedule, found: Recurrent, plan: RecurrentPlan) -> None:
    """Vectorize the innermost loop and parallelize the outermost, as far as steps allow."""
    nest, lanes, parts = found.nest, found.lanes, found.parts
    step = sch.get_loops(BlockRef(nest.name))[0]
    *apart, inner = _inner_loops(sch, found, plan)
    outer = [*[nest.loops[at] for part in parts[:-1] for at in part], *apart]
    reduce = [nest.loops[at] for at in nest.reduce]
    if plan.parallel == INNER and not apart:
        piece, inner = sch.split(inner, [None, plan.chunk * lanes])
        outer = [piece]
    if plan.beside:
        outer = _interleave_chains(sch, found, plan, outer, inner)
    elif plan.chains:
        sch.reorder(*outer, step)
    if not plan.beside and lanes > 1 and total(nest, parts[-1]) > 1:
        vector, lane = sch.split(inner, [None, plan.vectors * lanes])
        if reduce:
            sch.reorder(*outer, vector, *reduce, lane)
        attempt(sch, sch.vectorize, lane)
    if plan.parallel != NONE:
        chunk = plan.chunk if plan.parallel == ROWS else 1
        attempt(sch, _parallelize, sch, outer, chunk)


def _inner_loops(sch: Schedule, found: Recurrent, plan: RecurrentPlan) -> list[LoopRef]:
    """The innermost loops that can be fused, as one loop. Chains are split along the last of them
    alone if what runs together does not divide them all: else a chain would be a quotient of a
    guarded loop, of which nothing can be proved."""
    nest, inner = found.nest, found.parts[-1]
    loops = [nest.loops[at] for at in inner]
    together = plan.beside or (plan.chunk * found.lanes if plan.parallel == INNER else 1)
    if plan.chains and (nest.is_dynamic(inner) or total(nest, inner) % together):
        return loops
    return [fused(sch, loops)]


def _interleave_chains(
    sch: Schedule, found: Recurrent, plan: RecurrentPlan, outer: list[LoopRef], inner: LoopRef
) -> list[LoopRef]:
    """Interleave scalar chains, and lay their results out by chain; returns the loops around
    them."""
    block = BlockRef(found.nest.name)
    step = sch.get_loops(block)[0]
    group, near = sch.split(inner, [None, plan.beside])
    sch.reorder(*outer, group, step, near)
    sch.unroll(near)
    if _is_written_along(found.nest):
        return outer or [group]
    names = [f"i{at}" for at in range(len(found.nest.block.writes[0].ranges) - 1)]
    order = f"({', '.join(['t', *names])}) -> ({', '.join([*names, 't'])})"
    sch.transform_layout(block, ("write", 0), order)
    return outer or [group]


def _parallelize(sch: Schedule, outer: list[LoopRef], chunk: int) -> None:
    whole = fused(sch, outer)
    if chunk > 1:
        whole, _ = sch.split(whole, [None, chunk])
    sch.parallel(whole)


# ------------------------------------------------------------------------------------ GEMM


def _weights(sch: Schedule, nest: Nest, context: RuleContext) -> Weights | None:
    body = nest.block.body
    if not isinstance(body, Update) or body.reducer.name != "sum" or len(nest.reduce) != 1:
        return None
    value = body.values[0]
    factors = (
        [_without_widening(each) for each in (value.a, value.b)] if isinstance(value, Mul) else []
    )
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
        units, ordered = int(extent.value), _is_ordered(nest, load, gates, int(extent.value))
        rows = total(nest, gates) * units
        state = loads[1 - loads.index(load)]
        dot = _dot(nest, state, load, context) if ordered else None
        return Weights(
            read,
            load.buffer.name,
            load.buffer.dtype.size_bytes,
            gates,
            units,
            unit,
            ordered,
            load.buffer.shape[0] is const(rows),
            dot,
        )
    return None


def _dot(nest: Nest, state: Load, weights: Load, context: RuleContext) -> Dot | None:
    """The dot-product instruction along k, if the target has one for the types."""
    k, made = nest.reduce[0], nest.block.writes[0].buffer.dtype
    extent = nest.extent(k)
    if not isinstance(extent, Const) or state.index[-1] is not nest.var(k):
        return None
    types = (state.buffer.dtype.name, weights.buffer.dtype.name, made.name)
    found = dots_of(context.target, *types)
    return next((dot for dot in found if extent.value % dot.steps == 0), None)


def _without_widening(expr: Expr) -> Expr:
    """The operand of a product, without the cast that widens it."""
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


def _schedule_gemm(
    sch: Schedule, found: Recurrent, weights: Weights, plan: RecurrentPlan, context: RuleContext
) -> BlockRef:
    """The GEMM by weights packed in panels of units."""
    width = found.lanes * plan.vectors
    packed = sch.cache_read(BlockRef(found.nest.name), weights.read, "global")
    if weights.ordered:
        units = weights.units
        k, grouped = "k", ""
        if weights.dot is not None:
            k, grouped = f"k // {weights.dot.group}", f", k % {weights.dot.group}"
        where, gate, unit = f"r % {units} // {width}", f"r // {units}", f"r % {units} % {width}"
        # Gates that other blocks multiply by must not be interleaved with those read here.
        order = [where, k, gate] if weights.is_whole else [gate, where, k]
        places = f"{', '.join(order)}, {unit}{grouped}"
        sch.transform_layout(packed, ("write", 0), f"(r, k) -> ({places})")
    else:
        sch.transform_layout(packed, ("write", 0), "(r, k) -> (k, r)")
    if weights.name in context.constants:
        sch.annotate(packed, CONSTANT, True)
    panel = _tile_gemm(sch, found, weights, plan)
    # Only the runtime alternates: the loop must be parallel, if only of one thread.
    if (plan.parallel != NONE or plan.alternate) and attempt(sch, sch.parallel, panel):
        sch.annotate(panel, "threads", 0 if plan.parallel != NONE else 1)
        if plan.alternate:
            sch.annotate(panel, ALTERNATING, True)
    return packed


def _tile_gemm(sch: Schedule, found: Recurrent, weights: Weights, plan: RecurrentPlan) -> LoopRef:
    """Split and order the loops around register tiles; returns the loop over panels."""
    nest = found.nest
    panel, step, lane = sch.split(nest.loops[weights.unit], [None, plan.vectors, found.lanes])
    outer: list[LoopRef] = []
    inner: list[LoopRef] = []
    gates = [nest.loops[at] for at in weights.gates]
    if found.others:
        loops = [nest.loops[at] for at in found.others]
        sch.reorder(*loops, *gates, panel)
        some, each = sch.split(fused(sch, loops), [None, plan.sequences])
        outer, inner = [some], [each]
        if nest.is_dynamic(found.others):  # there may be fewer than a register tile has
            sch.annotate(some, TAILS, True)
    k, dot = nest.loops[nest.reduce[0]], weights.dot
    if dot is None:
        if plan.k_unroll > 1:
            k, near = sch.split(k, [None, plan.k_unroll])
            inner = [near, *inner]
        sch.reorder(panel, *outer, k, *inner, *gates, step, lane)
        sch.vectorize(lane)
    else:
        k, grouped = sch.split(k, [None, dot.steps])
        *before, last = register_tile(dot, inner, step)
        sch.reorder(panel, *outer, k, *gates, *before, last, lane, grouped)
    for loop in (*inner, *gates, step):
        sch.unroll(loop)
    if dot is not None:
        init = sch.decompose_reduction(BlockRef(nest.name), k)
        sch.tensorize(lane, dot.name)
        sch.tensorize(sch.get_loops(init)[-1], dot.name)
    return panel


RECURRENT = Rule("recurrent", RecurrentPlan, match, plans, cost, apply)
