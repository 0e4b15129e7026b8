"""How long a block takes in vector code, by the target's machine model.

Arithmetic is counted in cycles per vector of a core, and memory in bytes from the level that cores
share; the larger of the two is what an instance costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tilewright.base.dtype import I8, INDEX, DType
from tilewright.base.machine import (
    CONVERT_CYCLES,
    FUNCTION_CYCLES,
    OPERATION_CYCLES,
    OTHER_FUNCTION_CYCLES,
    Machine,
)
from tilewright.base.target import Target
from tilewright.rules.match.nest import DYNAMIC_EXTENT, Access, Nest, assumed, guess
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
from tilewright.tensor.ir import Block, Buffer, Call, For, Load, Store, Update
from tilewright.tensor.visit import exprs, walk

CHEAP_CYCLES = 6.0  # per vector: fetching a value again from L1 takes as long
TIE_SHARE = 0.01  # of the time: what decides between plans that are otherwise alike


def cycles(expr: Expr) -> float:
    """Of one vector operation."""
    if isinstance(expr, (Var, Const, Load)) or expr.dtype is INDEX:
        return 0.0
    if isinstance(expr, Call):
        return FUNCTION_CYCLES.get(expr.op, OTHER_FUNCTION_CYCLES)
    if isinstance(expr, Div) and not _is_power_of_two(expr.b):  # those are multiplications
        return FUNCTION_CYCLES["div"]
    if isinstance(expr, (Cast, Select)):
        return CONVERT_CYCLES
    return OPERATION_CYCLES


def _is_power_of_two(expr: Expr) -> bool:
    return isinstance(expr, Const) and math.frexp(float(expr.value))[0] == 1 / 2


def body_cycles(block: Block, lane: Var | None = None) -> float:
    """Of one vector of instances, whatever they read and write. Where lanes are known to be along
    an iterator, what is asked of other places is asked once for all of them."""
    found = exprs(block.body)
    return sum(cycles(expr) for expr in found if lane is None or not _is_place(expr, lane))


def integer_cycles(found: Sequence[DType], machine: Machine, products: Any, loads: Any) -> Any:
    """What integers take beyond floats: of so many vectors of products along with sums, and of so
    many vectors of operands, which are widened to the type of the sums, the first one of these."""
    total, *operands = found
    if not total.is_int:
        return 0.0 * products
    narrow = sum(of.bits < total.bits for of in operands) / len(operands)
    more = products * (machine.int_multiply_add_instructions - 1) + loads * narrow
    return more / machine.fma_per_cycle


def latency_cycles(block: Block, machine: Machine) -> float:
    """Until a vector of instances is done that starts alone: each operation waits for the slowest
    of its operands."""

    def until(expr: Expr, operands: tuple[float, ...]) -> float:
        return max(operands, default=0.0) + cycles(expr) * machine.fma_latency_cycles

    return max(fold(expr, until) for stmt in walk(block.body) for expr in stmt.exprs())


def _is_place(expr: Expr, lane: Var) -> bool:
    """Whether an expression asks where instances are, other than along an iterator."""
    if not expr.dtype.is_bool:
        return False
    return not any(each is lane or isinstance(each, Load) for each in walk_exprs(expr))


def _lane(nest: Nest) -> Var | None:
    """The iterator that lanes run along by default: the innermost of several instances."""
    kept = [at for at in nest.spatial if nest.extent(at) is not ONE]
    return nest.var(kept[-1]) if kept else None


def is_cheap(block: Block) -> bool:
    """Whether computing a value anew costs no more than fetching it again."""
    return body_cycles(block) <= CHEAP_CYCLES


def widest(block: Block) -> DType:
    """The largest type that values of a block have on their way, indices aside."""
    types = [region.buffer.dtype for region in block.writes]
    types += [expr.dtype for expr in _values(block) if not _is_index(expr)]
    return max(types, key=lambda of: of.bits)


def _values(block: Block) -> Iterator[Expr]:
    """What results are computed from, but not where elements are read: positions that do not fit
    one vector take several."""
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
    """Elements that a vector of the machine holds of the block's widest type."""
    return max(1, target.vector_bits // max(I8.bits, widest(block).bits))


def instance_cycles(nest: Nest, target: Target) -> float:
    """Of one instance of a block in vector code, on one core."""
    lanes, machine = lanes_of(target, nest.block), target.machine
    moved = sum(instance_bytes(nest, machine))
    return max(
        body_cycles(nest.block, _lane(nest)) / lanes,
        moved / shared_bytes_per_cycle(nest, machine),
        1.0 / (machine.loads_per_cycle * lanes),
    )


def stage_cycles(nest: Nest, made: Collection[Buffer], target: Target) -> float:
    """Of all instances of a block, on one core, where some buffers are still in its L1."""
    lanes, machine = lanes_of(target, nest.block), target.machine
    pairs = list(zip(nest.accesses, instance_bytes(nest, machine), strict=True))
    near = sum(size for access, size in pairs if access.buffer in made)
    far = sum(size for access, size in pairs if access.buffer not in made)
    compute = max(body_cycles(nest.block, _lane(nest)), 1.0 / machine.loads_per_cycle) / lanes
    memory = far / shared_bytes_per_cycle(nest, machine) + near / machine.l1d.bytes_per_cycle
    return nest.instances * max(compute, memory)


def nest_cycles(nest: Nest, target: Target) -> float:
    """Of all instances of a block, on one core."""
    return instance_cycles(nest, target) * nest.instances


def sequence_cycles(nest: Nest, machine: Machine) -> float:
    """Of one instance of a block whose body has loops of its own, step by step: arithmetic, and
    every load and store. Loops whose extent is computed on the way count once, as they go over
    parts of what loops of known extents do, or as often as they can run at most."""
    access = 1.0 / machine.loads_per_cycle
    total, stack = 0.0, [(nest.block.body, 1.0)]
    while stack:
        stmt, times = stack.pop()
        own = list(walk_exprs(*stmt.exprs()))
        moved = sum(isinstance(expr, Load) for expr in own) + isinstance(stmt, (Store, Update))
        total += times * (sum(map(cycles, own)) + moved * access)
        if isinstance(stmt, For):
            times *= _turns(stmt.extent, nest)
        stack += [(child, times) for child in stmt.children()]
    return total


def _turns(extent: Expr, nest: Nest) -> int:
    """Of a loop in a block's body."""
    decides = [each for each in walk_exprs(extent) if isinstance(each, (Var, Load))]
    if all(isinstance(each, Size) for each in decides):
        return max(1, assumed(extent, DYNAMIC_EXTENT, nest.likely))
    if any(isinstance(each, Load) for each in decides):
        return 1
    return max(1, bounds(extent).upper or 1)


def instance_bytes(nest: Nest, machine: Machine) -> list[float]:
    """What every access of one instance moves, in the mean."""
    found: list[float] = []
    lane = _lane(nest)
    for access in nest.accesses:
        size = guess_bytes(access.buffer)
        if lane is not None and _is_anywhere(access, lane):
            each = machine.l1d.line_bytes / 2  # a good part of a line
            is_near = roamed_bytes(nest, access) <= machine.l2.kept_bytes
        else:
            # Windows that overlap find most of what they see in a cache.
            each = access.buffer.dtype.size_bytes * _touched(nest, access.offset)
            is_near = True
        found.append(min(each, size / max(1, nest.instances)) if is_near else each)
    return found


def roamed_bytes(nest: Nest, access: Access) -> float:
    """Of a buffer, what an access may read next: all, or a row or plane where iterators tell."""
    size = float(guess_bytes(access.buffer))
    for at in nest.loops:
        stride = access.stride(nest.var(at))
        if stride is not None and stride is not ZERO:
            size /= max(1, nest.guess(at))
    return size


def _is_anywhere(access: Access, lane: Var) -> bool:
    """Whether neighbours along the lanes are read at positions that memory tells."""
    is_told = any(isinstance(expr, Load) for expr in walk_exprs(access.offset))
    return is_told and access.stride(lane) is None


def _touched(nest: Nest, offset: Expr) -> float:
    """New elements of an access per instance: fewer where loops read the same ones again."""
    share = 1.0
    for at in nest.loops:
        if not uses_var(offset, {nest.var(at)}):
            share /= max(1, nest.guess(at))
    return share


def shared_bytes_per_cycle(nest: Nest, machine: Machine) -> float:
    """At which operands come: kernels hand them on through the cache that cores share."""
    shared = machine.l3 if machine.l3.size_bytes else machine.l2
    size = sum(guess_bytes(each) for each in dict.fromkeys(a.buffer for a in nest.accesses))
    return shared.bytes_per_cycle if size <= shared.size_bytes else machine.memory_bytes_per_cycle


def guess_bytes(buffer: Buffer) -> int:
    """The memory of a buffer; dynamic extents are guessed."""
    total = buffer.dtype.size_bytes
    for dim in buffer.shape:
        total *= guess(dim)
    return total
