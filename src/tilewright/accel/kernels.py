"""Simulator kernels, compiled for the host from the declared steps.

    print(kernel_function("mac", geometry))     # the steps of a task, one after the other
    kernels = load_kernels(geometry)            # called by the C simulators

A declared step (`declared.py`) refers to its operands; its kernel locates them in memories, by
tables with rows of dst, src and aux entries. GEMM is computed in chains: steps that accumulate in
one entry of acc, with operands at common offsets from each chain's start. Memory sizes are
arguments, so that kernels depend only on the array's shape and its taps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from tilewright import sym
from tilewright.accel.declared import STEPS, accumulation, step_function
from tilewright.base.dots import row_dot_of
from tilewright.base.dtype import I64, INDEX
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.codegen.build import CompiledFunction, compile_object, load_object
from tilewright.intrin.dot import INTRINSICS
from tilewright.sym import Expr, Var, const, size, var
from tilewright.tensor import ir
from tilewright.tensor.ir import Block, Buffer, For, Function, Iter, Load, Range, Region, Stmt, seq
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.schedule.schedule import LoopRef
from tilewright.tensor.visit import rewrite

DST, SRC, AUX = range(3)  # columns of a table
# For each operand of a step: the column, and an offset in entries.
COLUMNS = {
    "src": (SRC, 0),
    "aux": (AUX, 0),
    "bias": (AUX, 0),
    "multiplier": (AUX, 1),
    "shift": (AUX, 2),
    **dict.fromkeys(("old", "acc", "out"), (DST, 0)),
}
MAX_LANES = 16  # maximal vector length of a kernel
Entry = tuple[Buffer, Expr]  # an entry of a memory


@dataclass(frozen=True, slots=True)
class Rows:
    """A loop over the rows of a table, and the corresponding block iterator."""

    table: Buffer
    kind: str
    loop: Var = field(default_factory=partial(var, "row"))
    own: Var = field(default_factory=partial(var, "at"))

    def number(self, column: int) -> Expr:
        return Load(self.table, (self.own, const(column)))

    def around(self, body: Stmt) -> Stmt:
        return For(self.loop, const(0), self.table.shape[0], body)


def kernel_name(name: str, g: Geometry) -> str:
    """The name of a step's kernel in a library."""
    return f"vta_{name}_{g.batch}x{g.block_in}x{g.block_out}_{g.taps}"


def kernel_function(name: str, g: Geometry) -> Function:
    """A tensor function that executes steps of one kind; memories are among its parameters."""
    step = step_function(name, g)
    made = _chains(step, accumulation(g)) if name == "gemm" else _in_turn(step)
    return replace(made, name=kernel_name(name, g))


def _memory(of: Buffer, name: str) -> Buffer:
    return Buffer(name, (size(f"{name}_entries"), *of.shape), of.dtype)


def _in_turn(step: Function) -> Function:
    """Execute steps in sequence: each may depend on earlier ones."""
    rows = Rows(Buffer("steps", (size("n"), const(3)), I64), ir.SCAN)
    memories: dict[str, Buffer] = {}
    entries: dict[Buffer, Entry] = {}
    for operand in step.buffers:
        if operand.name in COLUMNS:
            column, more = COLUMNS[operand.name]
            name = "acc" if operand.dtype.bits == 32 else "out"
            memory = memories.setdefault(name, _memory(operand, name))
            entries[operand] = memory, sym.cast(rows.number(column) + more, INDEX)
    limits = tuple(one for one in step.buffers if one not in entries)
    body = rows.around(_over(step.body, entries, rows))
    return replace(step, params=(*memories.values(), *limits, rows.table), body=body)


def _chains(step: Function, adds: Function) -> Function:
    """Execute chains of steps: the products of each are summed, then added to acc."""
    inp, wgt, product = step.buffers
    near, far, acc = (_memory(one, one.name) for one in step.buffers)
    count = size("n")
    chains = Rows(Buffer("chains", (count, const(3)), I64), ir.SPATIAL)
    steps = Rows(Buffer("steps", (size("m"), const(2)), I64), ir.REDUCE)
    total = Buffer("sum", (count, *product.shape), product.dtype)
    offsets = [chains.number(at) + steps.number(at - SRC) for at in (SRC, AUX)]
    src, aux = (sym.cast(one, INDEX) for one in offsets)
    entries = {inp: (near, src), wgt: (far, aux), product: (total, chains.own)}
    summed = chains.around(steps.around(_over(step.body, entries, chains, steps, name="sum")))
    made, first, old, result = adds.buffers
    again = Rows(chains.table, ir.SCAN)
    firsts = replace(first, shape=(count, *first.shape))
    dst = acc, sym.cast(again.number(DST), INDEX)
    entries = {made: (total, again.own), first: (firsts, again.own), old: dst, result: dst}
    added = again.around(_over(adds.body, entries, again))
    params = (near, far, chains.table, firsts, steps.table, acc)
    return replace(step, params=params, allocs=(total,), body=seq(summed, added))


def _over(body: Stmt, entries: Mapping[Buffer, Entry], *rows: Rows, name: str = "acc") -> Stmt:
    """A step with entries of memories as operands, in a block that follows tables."""

    def region(one: Region) -> Region:
        if one.buffer not in entries:
            return one
        memory, entry = entries[one.buffer]
        return Region(memory, (Range(entry, const(1)), *one.ranges))

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.Store):
            memory, entry = entries[stmt.buffer]
            return replace(stmt, buffer=memory, index=(entry, *stmt.index))
        if isinstance(stmt, ir.Update):
            memory, entry = entries[stmt.buffers[0]]
            return replace(stmt, buffers=(memory,), index=(entry, *stmt.index))
        if isinstance(stmt, Block):
            tables = [
                Region(one.table, (Range(one.own, const(1)), Range(const(0), one.table.shape[1])))
                for one in rows
            ]
            return replace(
                stmt,
                name=name,
                iters=(*(Iter(one.own, one.table.shape[0], one.kind) for one in rows), *stmt.iters),
                bindings=(*(one.loop for one in rows), *stmt.bindings),
                reads=(*map(region, stmt.reads), *tables),
                writes=tuple(map(region, stmt.writes)),
            )
        return stmt

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in entries:
            memory, entry = entries[expr.buffer]
            return Load(memory, (entry, *expr.index))
        return expr

    return rewrite(body, rule, expr_rule)


# ------------------------------------------------------------------------------- schedules


def scheduled_kernel(name: str, g: Geometry, target: Target) -> Function:
    """Schedule a kernel for a host."""
    sch = Schedule(kernel_function(name, g))
    adds = sch.get_block("acc")
    if name == "gemm":
        _schedule_sums(sch, g, target)
    _vectorize(sch, sch.get_loops(adds)[-1], g.block_out)
    return sch.function


def _vectorize(sch: Schedule, loop: LoopRef, extent: int) -> None:
    if extent > MAX_LANES and extent % MAX_LANES == 0:
        _, loop = sch.split(loop, [None, MAX_LANES])
    sch.vectorize(loop)


def _schedule_sums(sch: Schedule, g: Geometry, target: Target) -> None:
    """Compute one vector of results at a time, in registers for the length of a chain."""
    total, at = sch.get_block("sum"), sch.get_loops(sch.get_block("acc"))[1]
    dot = row_dot_of(target, g.block_in)
    if dot is None:
        sch.compute_at(total, at)
        return
    *_, k = sch.get_loops(total)
    _, lanes, _ = sch.split(k, [None, dot.lanes, dot.group])
    parts = sch.rfactor(lanes, 3)
    sch.compute_at(total, at)
    sch.compute_at(parts, at)
    lanes, _, _, outputs, steps, deep, group = sch.get_loops(parts)[-7:]
    kept = math.gcd(g.block_out, target.vector_registers // 2)
    outputs, row = sch.split(outputs, [None, kept])
    sch.reorder(outputs, steps, deep, row, lanes, group)
    begin = sch.decompose_reduction(parts, steps)
    sch.unroll(row)
    *_, row, cleared = sch.get_loops(begin)
    sch.unroll(row)
    sch.vectorize(cleared)
    sch.tensorize(lanes, INTRINSICS[dot.name])
    *_, row, lane = sch.get_loops(total)
    sch.unroll(row)
    sch.unroll(lane)


# ------------------------------------------------------------------------------- native code


def kernel_objects(geometry: Geometry, target: Target) -> tuple[bytes, ...]:
    """Object code of all kernels for a host, by `kernel_name`."""
    return tuple([compile_object(scheduled_kernel(one, geometry, target), target) for one in STEPS])


def load_kernels(geometry: Geometry) -> tuple[CompiledFunction, ...]:
    """Kernels of a geometry on this machine."""
    g = geometry
    return _loaded(Geometry(g.batch, g.block_in, g.block_out, taps=g.taps))


@cache
def _loaded(geometry: Geometry) -> tuple[CompiledFunction, ...]:
    target = Target.host()
    functions = [scheduled_kernel(one, geometry, target) for one in STEPS]
    return tuple([load_object(one, target, compile_object(one, target)) for one in functions])
