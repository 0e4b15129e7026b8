"""Cost of a block as vector code, by the target's machine model: a roofline per instance.

Arithmetic is counted in cycles per vector of one core, memory traffic in bytes from the cache level
that cores share; the larger of the two is the cost of an instance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tilewright import sym
from tilewright.base.dtype import I8, INDEX, DType
from tilewright.base.machine import (
    CONVERT_CYCLES,
    FUNCTION_CYCLES,
    OPERATION_CYCLES,
    OTHER_FUNCTION_CYCLES,
    Machine,
)
from tilewright.base.target import Target
from tilewright.rules.match.nest import Access, Nest, guess
from tilewright.sym import (
    ONE,
    ZERO,
    Cast,
    Const,
    Div,
    Expr,
    Select,
    Size,
    Var,
    bounds,
    fold,
    uses_var,
)
from tilewright.sym import walk as walk_exprs
from tilewright.tensor.ir import (
    Block,
    Buffer,
    Call,
    ExternCall,
    For,
    If,
    Load,
    Stmt,
    Store,
    Update,
)
from tilewright.tensor.visit import exprs, walk

CHEAP_CYCLES = 6.0  # per vector: about what storing a value and reloading it from L1 takes
TIE_SHARE = 0.01  # share of the time that breaks ties between plans of equal cost


def cycles(expr: Expr) -> float:
    """Cycles of one vector operation."""
    if isinstance(expr, (Var, Const, Load)) or expr.dtype is INDEX:
        return 0.0
    if isinstance(expr, Call):
        return FUNCTION_CYCLES.get(expr.op, OTHER_FUNCTION_CYCLES)
    if isinstance(expr, Div) and not _is_power_of_two(
        expr.b
    ):  # division by a power of two is a multiplication
        return FUNCTION_CYCLES["div"]
    if isinstance(expr, (Cast, Select)):
        return CONVERT_CYCLES
    return OPERATION_CYCLES


def _is_power_of_two(expr: Expr) -> bool:
    return isinstance(expr, Const) and math.frexp(float(expr.value))[0] == 1 / 2


def body_cycles(block: Block, lane: Var | None = None) -> float:
    """Arithmetic cycles of one vector of instances. With `lane`, predicates that do not depend on
    that iterator are counted as hoisted."""
    found = exprs(block.body)
    return sum(
        cycles(expr) for expr in found if lane is None or not _is_uniform_predicate(expr, lane)
    )


def integer_cycles(found: Sequence[DType], machine: Machine, products: Any, loads: Any) -> Any:
    """Extra cycles of integers over floats, for so many vector multiply-adds and operand loads:
    multiply and add are separate instructions, and narrow operands are widened. `found` holds the
    accumulator's type, then the operands'."""
    total, *operands = found
    if not total.is_int:
        return 0.0 * products
    narrow = sum(of.bits < total.bits for of in operands) / len(operands)
    more = products * (machine.int_multiply_add_instructions - 1) + loads * narrow
    return more / machine.fma_per_cycle


def latency_cycles(block: Block, machine: Machine) -> float:
    """Latency of one vector of instances on its own: the critical path through its operations."""

    def until(expr: Expr, operands: tuple[float, ...]) -> float:
        return max(operands, default=0.0) + cycles(expr) * machine.fma_latency_cycles

    return max(fold(expr, until) for stmt in walk(block.body) for expr in stmt.exprs())


def _is_uniform_predicate(expr: Expr, lane: Var) -> bool:
    """Whether an expression is a predicate that is uniform across the lanes and loads nothing."""
    if not expr.dtype.is_bool:
        return False
    return not any(each is lane or isinstance(each, Load) for each in walk_exprs(expr))


def _vector_iterator(nest: Nest) -> Var | None:
    """The iterator that is vectorized by default: the innermost spatial one of more than one
    instance."""
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    return nest.var(kept[-1]) if kept else None


def is_cheap(block: Block) -> bool:
    """Whether recomputing a value costs no more than loading it again."""
    return body_cycles(block) <= CHEAP_CYCLES


def widest(block: Block) -> DType:
    """The widest type of the values computed by a block, indices aside."""
    types = [region.buffer.dtype for region in block.writes]
    types += [expr.dtype for expr in _values(block) if not _is_index(expr)]
    return max(types, key=lambda of: of.bits)


def _values(block: Block) -> Iterator[Expr]:
    """The expressions that results are computed from, without the index expressions of loads."""
    stack = [expr for stmt in walk(block.body) for expr in stmt.exprs()]
    seen: set[Expr] = set()
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        yield expr
        if not isinstance(expr, Load):
            stack.extend(expr.children())


def _is_index(expr: Expr) -> bool:
    return expr.dtype is INDEX or expr.dtype.is_bool or isinstance(expr, Const)


def lanes_of(target: Target, block: Block) -> int:
    """Elements of a block's widest type in a vector register."""
    return max(1, target.vector_bits // max(I8.bits, widest(block).bits))


def instance_cycles(nest: Nest, target: Target) -> float:
    """Cycles of one instance of a block in vector code, on one core."""
    lanes, machine = lanes_of(target, nest.block), target.machine
    moved = sum(instance_bytes(nest, machine))
    return max(
        body_cycles(nest.block, _vector_iterator(nest)) / lanes,
        moved / shared_bytes_per_cycle(nest, machine),
        1.0 / (machine.loads_per_cycle * lanes),
    )


def stage_cycles(nest: Nest, made: Collection[Buffer], target: Target) -> float:
    """Cycles of all instances of a block on one core, where the buffers `made` are still in its
    L1."""
    lanes, machine = lanes_of(target, nest.block), target.machine
    pairs = list(zip(nest.accesses, instance_bytes(nest, machine), strict=True))
    near = sum(size for access, size in pairs if access.buffer in made)
    far = sum(size for access, size in pairs if access.buffer not in made)
    compute = (
        max(body_cycles(nest.block, _vector_iterator(nest)), 1.0 / machine.loads_per_cycle) / lanes
    )
    memory = far / shared_bytes_per_cycle(nest, machine) + near / machine.l1d.bytes_per_cycle
    return nest.instances * max(compute, memory)


def nest_cycles(nest: Nest, target: Target) -> float:
    """Cycles of all instances of a block, on one core."""
    return instance_cycles(nest, target) * nest.instances


def sequence_cycles(nest: Nest, target: Target) -> float:
    """Cycles of one instance of a block whose body has loops of its own: arithmetic, loads and
    stores. LLVM hoists loop-invariant expressions and vectorizes innermost loops over contiguous
    elements, so they are counted that way. A loop whose extent is loaded counts once, since such
    loops together cover the range of a loop of known extent; any other dynamic extent counts as its
    upper bound."""
    access = 1.0 / target.machine.loads_per_cycle
    written = {region.buffer for region in nest.block.writes}
    lanes = lanes_of(target, nest.block)
    total = 0.0
    stack: list[tuple[Stmt, tuple[tuple[Var, float], ...]]] = [(nest.block.body, ())]
    while stack:
        stmt, around = stack.pop()
        for expr in walk_exprs(*stmt.exprs()):
            each = cycles(expr) + access * isinstance(expr, Load)
            total += each * _times(expr, around, written) if each else 0.0
        if isinstance(stmt, (Store, Update)):
            total += access * math.prod(trips for _, trips in around)
        if isinstance(stmt, For):
            trips = _trip_count(stmt.extent, nest) / (lanes if _is_vectorizable(stmt) else 1)
            around = (*around, (stmt.var, max(1.0, trips)))
        stack += [(child, around) for child in stmt.children()]
    return total


def _times(expr: Expr, around: Sequence[tuple[Var, float]], written: Collection[Buffer]) -> float:
    """How often an expression is evaluated within loops (outermost first), hoisted out of the
    innermost ones that it does not depend on."""
    loads = (each for each in walk_exprs(expr) if isinstance(each, Load))
    if not any(load.buffer in written for load in loads):
        while around and not uses_var(expr, {around[-1][0]}):
            around = around[:-1]
    return math.prod(trips for _, trips in around)


def _is_vectorizable(loop: For) -> bool:
    """Whether LLVM can vectorize a loop: innermost, without branches, every access contiguous or
    invariant."""
    inside = list(walk(loop.body))
    if any(isinstance(stmt, (For, If, ExternCall, Update)) for stmt in inside):
        return False
    accesses = [stmt for stmt in inside if isinstance(stmt, Store)]
    found = [expr for stmt in inside for expr in walk_exprs(*stmt.exprs())]
    indices = [each.index for each in (*accesses, *found) if isinstance(each, (Store, Load))]
    return bool(accesses) and all(_is_contiguous(index, loop.var) for index in indices)


def _is_contiguous(index: Sequence[Expr], var: Var) -> bool:
    """Whether an index is invariant, or has stride 1 in its last dimension alone."""
    if any(uses_var(at, {var}) for at in index[:-1]):
        return False
    last = index[-1] if index else ZERO
    return not uses_var(last, {var}) or not uses_var(sym.sub(last, var), {var})


def _trip_count(extent: Expr, nest: Nest) -> int:
    """The assumed trip count of a loop in a block's body."""
    decides = [each for each in walk_exprs(extent) if isinstance(each, (Var, Load))]
    if all(isinstance(each, Size) for each in decides):
        return max(1, guess(extent, nest.likely))
    if any(isinstance(each, Load) for each in decides):
        return 1
    return max(1, bounds(extent).upper or 1)


def instance_bytes(nest: Nest, machine: Machine) -> list[float]:
    """Average bytes of memory traffic per instance, for each access."""
    found: list[float] = []
    lane = _vector_iterator(nest)
    for access in nest.accesses:
        size = guess_bytes(access.buffer, nest.likely)
        if lane is not None and _is_gather(access, lane):
            each = machine.l1d.line_bytes / 2  # a gather wastes most of each line
            is_near = roamed_bytes(nest, access) <= machine.l2.kept_bytes
        else:
            # Overlapping windows hit the cache for what they share.
            each = access.buffer.dtype.size_bytes * _new_element_share(nest, access.offset)
            is_near = True
        found.append(min(each, size / max(1, nest.instances)) if is_near else each)
    return found


def roamed_bytes(nest: Nest, access: Access) -> float:
    """The range of a buffer, in bytes, within which a gather's next position lies: all of it, or a
    row or plane where plain iterators index the outer dimensions."""
    size = float(guess_bytes(access.buffer, nest.likely))
    for at in nest.loops:
        stride = access.stride(nest.var(at))
        if stride is not None and stride is not ZERO:
            size /= max(1, nest.guess(at))
    return size


def _is_gather(access: Access, lane: Var) -> bool:
    """Whether an access is a gather along the lanes: its index is loaded from memory."""
    is_told = any(isinstance(expr, Load) for expr in walk_exprs(access.offset))
    return is_told and access.stride(lane) is None


def _new_element_share(nest: Nest, offset: Expr) -> float:
    """Elements of an access that are new per instance: less than 1 where loops reread the same
    ones."""
    share = 1.0
    for at in nest.loops:
        if not uses_var(offset, {nest.var(at)}):
            share /= max(1, nest.guess(at))
    return share


def shared_bytes_per_cycle(nest: Nest, machine: Machine) -> float:
    """The bandwidth at which operands arrive: kernels pass them on through the shared cache, or
    memory where they exceed it."""
    shared = machine.l3 if machine.l3.size_bytes else machine.l2
    buffers = dict.fromkeys(access.buffer for access in nest.accesses)
    size = sum(guess_bytes(each, nest.likely) for each in buffers)
    return shared.bytes_per_cycle if size <= shared.size_bytes else machine.memory_bytes_per_cycle


def guess_bytes(buffer: Buffer, likely: Mapping[Var, int]) -> int:
    """The size of a buffer; dynamic extents are guessed."""
    total = buffer.dtype.size_bytes
    for dim in buffer.shape:
        total *= guess(dim, likely)
    return total
