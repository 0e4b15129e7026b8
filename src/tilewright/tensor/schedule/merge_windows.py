"""merge_windows: compute once what overlapping windows share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import TRUE, ZERO, Const, Expr, Select, Var, const
from tilewright.tensor.ir import (
    SERIAL,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Iter,
    Load,
    Stmt,
    Store,
    Update,
)
from tilewright.tensor.regions import access_regions
from tilewright.tensor.schedule.analysis.index_map import IndexMap
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    is_complete,
    is_reduction,
    loop_context,
    loops_on,
    replace_at,
    scope_blocks,
    scope_root,
    with_body,
)
from tilewright.tensor.schedule.transform_layout import Moved, check_movable, everything_known
from tilewright.tensor.visit import rewrite, walk

CANNOT = "cannot merge windows"


@dataclass(frozen=True, slots=True)
class _Merge:
    """A block whose results depend on two iterators through `step * window + reach * tap` alone,
    where one of the factors is 1."""

    path: Path
    block: Block
    buffer: Buffer
    axes: tuple[int, int]  # of the buffer
    window: Iter
    tap: Iter
    loops: tuple[For, For]  # over windows, and over taps
    step: int
    reach: int

    @property
    def extent(self) -> Expr:
        """The extent of what all windows together cover."""
        far = sym.mul(sym.sub(self.window.extent, 1), self.step)
        return sym.simplify(far + sym.mul(sym.sub(self.tap.extent, 1), self.reach) + 1)

    def at(self, place: Expr) -> dict[Var, Expr]:
        return _at(place, self.window.var, self.tap.var, self.reach)


def _at(place: Expr, window: Var, tap: Var, reach: int) -> dict[Var, Expr]:
    """Values of the iterators at a position: those of any window that contains it."""
    return {window: ZERO, tap: place} if reach == 1 else {window: place, tap: ZERO}


def merge_windows(fn: Function, name: str, axis: int, other: int) -> Function:
    """
    Before: for x { for k in 0..3 { T[x, k] = A[x * 2 + k] } }           ... = T[x, k]
    After:  for w in 0..(n - 1) * 2 + 3 { T[w] = A[w] }                  ... = T[x * 2 + k]
            by merge_windows(T, 0, 1)

    Dimension `axis` of the buffer indexes windows, `other` positions in a window; they are merged
    into dimension `axis`. Windows may not leave gaps between them.
    """
    found = _check(fn, name, axis, other)
    inputs = tuple([sym.size(f"i{at}") for at in range(found.buffer.rank)])
    place = sym.add(sym.mul(inputs[axis], found.step), sym.mul(inputs[other], found.reach))
    outputs = [place if at == axis else each for at, each in enumerate(inputs)]
    del outputs[other]
    shape = [found.extent if at == axis else dim for at, dim in enumerate(found.buffer.shape)]
    del shape[other]
    new = replace(found.buffer, shape=tuple(shape))
    made = _merged(found, new)
    windows, taps = found.loops
    body: Stmt = made
    for stmt in reversed(found.path[:-1]):
        if isinstance(stmt, For) and stmt is not taps:
            body = replace(stmt, stop=found.extent if stmt is windows else stmt.stop, body=body)
        if stmt is _outer(found):
            break
    top = found.path[: found.path.index(_outer(found)) + 1]
    moved = Moved(found.buffer, new, IndexMap(inputs, tuple(outputs)), everything_known(fn))
    whole = replace_at(top, body)
    assert whole is not None
    allocs = tuple([new if alloc is found.buffer else alloc for alloc in fn.allocs])
    return replace(with_body(fn, moved.stmt(whole)), allocs=allocs)


def _outer(found: _Merge) -> For:
    """The outer one of both loops."""
    return min(found.loops, key=found.path.index)


def _merged(found: _Merge, new: Buffer) -> Block:
    """The block that computes each position once."""
    block, window = found.block, found.window
    place = Iter(sym.var(window.var.name), found.extent, SPATIAL)
    mapping = found.at(place.var)

    def index(old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        kept = [place.var if at == found.axes[0] else each for at, each in enumerate(old)]
        del kept[found.axes[1]]
        return tuple(kept)

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            return replace(stmt, buffer=new, index=index(stmt.index))
        if isinstance(stmt, Update):
            return replace(stmt, buffers=(new,), index=index(stmt.index))
        return stmt

    def moved(root: Stmt) -> Stmt:
        made = rewrite(root, rule)
        return rewrite(made, None, lambda expr: sym.simplify(sym.substitute(expr, mapping)))

    body, init = moved(block.body), None if block.init is None else moved(block.init)
    kept = [
        (place if it is window else it, binding)
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it is not found.tap
    ]
    iters = tuple([it for it, _ in kept])
    reads, writes = access_regions(body, init, iters)
    bindings = tuple([binding for _, binding in kept])
    return replace(
        block, iters=iters, bindings=bindings, reads=reads, writes=writes, body=body, init=init
    )


# --------------------------------------------------------------------------- checks


def _check(fn: Function, name: str, axis: int, other: int) -> _Merge:
    path, block = path_to_block(fn, name, "merge windows")

    def no(reason: str, help: str = "") -> Exception:
        return refuse(fn, "TW2163", f"{CANNOT} of @{name}: {reason}", name, help)

    root = scope_root(fn, path)
    if not (is_complete(root, block) or is_reduction(root, block)) or len(block.writes) != 1:
        raise no("it is not the one block that makes all of one buffer")
    buffer = block.writes[0].buffer
    check_movable(fn, name, buffer)
    places = [stmt.index for stmt in _stores(block)]
    if len(set(places)) != 1 or any(isinstance(s, Block) for s in walk(block.body)):
        raise no("it stores in several places")
    if axis == other or not all(0 <= at < buffer.rank for at in (axis, other)):
        raise no(
            f"%{buffer.name} has no two dimensions {axis} and {other}",
            f"use two of 0 to {buffer.rank - 1}",
        )
    iterators: dict[Expr, Iter] = {it.var: it for it in block.iters if it.kind == SPATIAL}
    window, tap = (iterators.get(places[0][at]) for at in (axis, other))
    if window is None or tap is None or block.predicate is not TRUE:
        raise no("iterators do not count these dimensions one by one")
    loops = [_loop(path, block, it) for it in (window, tap)]
    windows, taps = loops
    if windows is None or taps is None:
        raise no("a loop over windows, or over what they see, holds more, or counts otherwise")
    factors = _factors(block, window.var, tap.var)
    if factors is None:
        raise no(
            "what it computes depends on windows and on what they see in other ways than by the "
            "place they see",
        )
    found = _Merge(path, block, buffer, (axis, other), window, tap, (windows, taps), *factors)
    ctx = loop_context(fn, ())
    far, near = (found.step, tap) if found.reach == 1 else (found.reach, window)
    if not sym.prove(sym.le(far, near.extent), ctx):
        raise no("windows may leave gaps, which nobody would compute")
    if not _is_inside(found, ctx):
        raise no("where there are no windows it would read what does not exist")
    return found


def _stores(block: Block) -> Iterator[Store | Update]:
    for root in (block.body, *(() if block.init is None else (block.init,))):
        yield from (stmt for stmt in walk(root) if isinstance(stmt, (Store, Update)))


def _loop(path: Path, block: Block, it: Iter) -> For | None:
    """The loop bound to an iterator, if it contains nothing but the block."""
    binding = block.bindings[block.iters.index(it)]
    for loop in loops_on(path):
        if loop.var is not binding or loop.start is not ZERO or loop.kind != SERIAL:
            continue
        others = [each for each in block.bindings if each is not binding]
        ends = [end for each in loops_on(path) for end in (each.start, each.stop)]
        is_alone = not any(sym.uses_var(expr, {loop.var}) for expr in (*others, *ends))
        plain = all(isinstance(stmt, (For, Block)) for stmt in path[path.index(loop) :])
        same = sym.simplify(loop.extent) is sym.simplify(it.extent)
        return loop if is_alone and plain and same and scope_blocks(loop) == [block] else None
    return None


def _factors(block: Block, window: Var, tap: Var) -> tuple[int, int] | None:
    """The factors of window and tap in the position, if the results depend on nothing else."""
    values = [value for stmt in _stores(block) for value in _values(stmt)]
    for node in sym.walk(*values):
        if not isinstance(node, Load):
            continue
        for index in node.index:
            slopes = sym.linear(index, (window, tap))
            step, reach = (slopes[0].get(v, ZERO) if slopes else ZERO for v in (window, tap))
            if not isinstance(step, Const) or not isinstance(reach, Const):
                continue
            far, near = int(step.value), int(reach.value)
            if far <= 0 or near <= 0 or (far % near and near % far):
                continue
            least = min(far, near)
            factors = (far // least, near // least)
            return factors if _depends_on(values, window, tap, factors) else None
    return None


def _values(stmt: Store | Update) -> tuple[Expr, ...]:
    return (stmt.value,) if isinstance(stmt, Store) else stmt.values


def _depends_on(values: list[Expr], window: Var, tap: Var, factors: tuple[int, int]) -> bool:
    """Whether values depend on the position alone."""
    step, reach = factors
    place = sym.add(sym.mul(window, step), sym.mul(tap, reach))
    seen = _at(place, window, tap, reach)
    return all(sym.simplify(sym.substitute(value, seen)) is sym.simplify(value) for value in values)


def _is_inside(found: _Merge, ctx: sym.Context) -> bool:
    """Whether reads are in bounds even where there is no window at all."""
    if const(found.step) is found.tap.extent or sym.prove(sym.le(1, found.window.extent), ctx):
        return True
    place = sym.var("place")
    ranges = {it.var: (ZERO, it.extent) for it in found.block.iters}
    inside = ctx.bind_all(ranges).bind(place, ZERO, found.extent)
    values = [value for stmt in _stores(found.block) for value in _values(stmt)]
    stack = [sym.substitute(value, found.at(place)) for value in values]
    while stack:
        node = stack.pop()
        if isinstance(node, Select):
            stack.append(node.cond)  # its arms are read where it says so
            continue
        stack.extend(node.children())
        if isinstance(node, Load):
            for at, dim in zip(node.index, node.buffer.shape, strict=True):
                if sym.uses_var(at, {place}) and not sym.prove(
                    sym.logical_and(sym.le(0, at), sym.lt(at, dim)), inside
                ):
                    return False
    return True
