"""Replace each tensor call by its intrinsic's implementation.

    call gemm8x8.update(A[i +: 8, k +: 8], ..)      eval gemm8x8_step(address(A[i, k]), ...)

The implementation's tile parameters become the regions of the call: an element of a tile is an
element of the buffer, and `stride(address, axis)` is the stride of the buffer's axis that the
tile's axis runs along. A phase without an implementation becomes the loops of the declared
behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext, run_passes
from tilewright.sym import ONE, Const, Expr, Size, Var
from tilewright.tensor.assembly import assembly_attributes
from tilewright.tensor.intrin import COMPUTE, RESET, TensorIntrin, intrinsic
from tilewright.tensor.ir import (
    Address,
    Alloc,
    Annotations,
    Block,
    Buffer,
    Call,
    Function,
    Load,
    MaskedLoad,
    Ramp,
    Region,
    Stmt,
    Store,
    TensorCall,
    annotated,
)
from tilewright.tensor.passes.expand_updates import expand_updates
from tilewright.tensor.passes.flatten_buffers import STRIDE, strides_of
from tilewright.tensor.passes.lower_blocks import lower_blocks
from tilewright.tensor.passes.lower_inits import lower_inits
from tilewright.tensor.visit import (
    OUTPUTS,
    blocks,
    fresh_copy,
    rewrite,
    substitute,
    walk,
    written_buffers,
)


def lower_tensor_calls(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(stmt, TensorCall) for stmt in walk(fn.body)):
        return fn
    implementations: dict[tuple[TensorIntrin, str], Stmt] = {}

    def rule(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, TensorCall):
            return stmt
        intrin = intrinsic(stmt.intrin, stmt.arguments, stmt.loc)
        key = (intrin, stmt.phase)
        if key not in implementations:
            implementations[key] = _implementation(intrin, stmt.phase)
        return _instantiated(implementations[key], intrin, stmt)

    outputs = _written_params(fn)
    attrs = annotated(_with_assembly(fn), OUTPUTS, outputs)
    return replace(fn, body=rewrite(fn.body, rule), attrs=attrs)


def _with_assembly(fn: Function) -> Annotations:
    """The function's attributes, with the inline assembly of the intrinsics it calls."""
    attrs = fn.attrs
    for stmt in walk(fn.body):
        if isinstance(stmt, TensorCall):
            for key, value in assembly_attributes(intrinsic(stmt.intrin, stmt.arguments).behavior):
                attrs = annotated(attrs, key, value)
    return attrs


def _written_params(fn: Function) -> tuple[int, ...]:
    """Positions of the parameters that are written: instructions on addresses do not show it."""
    written = written_buffers(fn.body)
    for stmt in walk(fn.body):
        if isinstance(stmt, TensorCall):
            outputs = len(intrinsic(stmt.intrin, stmt.arguments).outputs)
            written.update({region.buffer: None for region in stmt.regions[-outputs:]})
    return tuple(at for at, param in enumerate(fn.params) if param in written)


def _implementation(intrin: TensorIntrin, phase: str) -> Stmt:
    given = intrin.implementation(phase)
    if given is not None:
        return given
    behavior = intrin.behavior
    names = {block.name for block in blocks(behavior.body)}
    if phase != COMPUTE:
        split = lower_inits(behavior, PassContext())
        body = rewrite(split.body, lambda stmt: stmt if _is_wanted(stmt, names, phase) else None)
        behavior = replace(behavior, body=body)
    lowered = run_passes(behavior, (lower_inits, lower_blocks, expand_updates))
    body = lowered.body
    for buffer in lowered.allocs:
        body = Alloc(buffer, body)
    return body


def _is_wanted(stmt: Stmt, names: set[str], phase: str) -> bool:
    """Whether a block of a behaviour belongs to this phase: init to reset, the rest to update."""
    return not isinstance(stmt, Block) or (stmt.name in names) != (phase == RESET)


def _instantiated(stmt: Stmt, intrin: TensorIntrin, call: TensorCall) -> Stmt:
    tiles: dict[Buffer, tuple[Region, dict[int, int]]] = {}
    sizes: dict[Var, Expr] = {}
    buffers = intrin.behavior.buffers
    named = buffers[-len(call.regions) :] if call.phase == RESET else buffers
    for tile, region in zip(named, call.regions, strict=True):
        axes = _matched_axes(tile, region, call)
        tiles[tile] = (region, axes)
        for axis, dim in enumerate(tile.shape):
            if isinstance(dim, Size):
                sizes[dim] = region.ranges[axes[axis]].extent

    def strides(expr: Expr) -> Expr:
        if isinstance(expr, Call) and expr.op == STRIDE:
            address, axis = expr.args
            if isinstance(address, Address) and address.buffer in tiles:
                assert isinstance(axis, Const)
                behind = tiles[address.buffer][1][int(axis.value)]
                return Call(STRIDE, (address, sym.const(behind)), expr.dtype)
        return expr

    def moved(tile: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        region, axes = tiles[tile]
        full = [r.start for r in region.ranges]
        for axis, at in enumerate(index):
            start = full[axes[axis]]
            if isinstance(at, Ramp):
                _check_in_a_row(tile, at.lanes, region, axes, call)
                full[axes[axis]] = Ramp(sym.add(start, at.base), at.stride, at.lanes)
            else:
                full[axes[axis]] = sym.add(start, at)
        return region.buffer, tuple(full)

    def elements(expr: Expr) -> Expr:
        if isinstance(expr, (Load, Address)) and expr.buffer in tiles:
            return type(expr)(*moved(expr.buffer, expr.index))
        if isinstance(expr, MaskedLoad) and expr.buffer in tiles:
            return MaskedLoad(*moved(expr.buffer, expr.index), expr.mask)
        return expr

    def stores(inner: Stmt) -> Stmt:
        if isinstance(inner, Store) and inner.buffer in tiles:
            buffer, index = moved(inner.buffer, inner.index)
            return replace(inner, buffer=buffer, index=index)
        return inner

    done = fresh_copy(stmt)
    steps: tuple[tuple[Callable[[Stmt], Stmt] | None, Callable[[Expr], Expr]], ...]
    steps = ((None, strides), (stores, elements))
    for stmt_rule, expr_rule in steps:
        done = rewrite(done, stmt_rule, expr_rule)
    return substitute(done, sizes)


def _check_in_a_row(
    tile: Buffer, count: int, region: Region, axes: dict[int, int], call: TensorCall
) -> None:
    """Check that the last `count` elements of a tile, which one vector holds, are contiguous."""
    strides = strides_of(region.buffer)
    width: Expr = ONE
    for axis in reversed(range(tile.rank)):
        if sym.prove(sym.le(count, width)):
            return
        behind = axes[axis]
        if not sym.equal(strides[behind], width, sym.EMPTY):
            raise Unsupported(
                "TW2206",
                f"{call.intrin} takes {count} elements of %{tile.name} in a row; along dimension "
                f"{behind} of %{region.buffer.name} they lie {strides[behind]} apart, not {width}",
                call.loc,
                help="pack the operand: cache_read, then transform_layout of the copy",
            )
        width = sym.mul(width, tile.shape[axis])


def _matched_axes(tile: Buffer, region: Region, call: TensorCall) -> dict[int, int]:
    """Axis of a tile -> axis of the region it runs along; others have extent 1."""
    spare = len(region.ranges) - tile.rank
    kept = []
    for axis, r in enumerate(region.ranges):
        if spare > 0 and r.extent is ONE:
            spare -= 1
        else:
            kept.append(axis)
    if len(kept) != tile.rank:
        raise Unsupported(
            "TW2201",
            f"tile %{tile.name} of {call.intrin} has {tile.rank} dimensions, "
            f"its region in %{region.buffer.name} has {len(kept)}",
            call.loc,
            help="tensorize a block whose region has as many non-unit dimensions as the tile",
        )
    return dict(enumerate(kept))
