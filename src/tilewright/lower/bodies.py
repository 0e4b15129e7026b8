"""Lower operators with a scalar body to loops and stores."""

from __future__ import annotations

from tilewright import sym, te
from tilewright.base.dtype import I64, INDEX
from tilewright.graph.ops.slices import kept_axes
from tilewright.lower.base import Lowering, Use, front_axis
from tilewright.lower.merge_sort import load, merge_sort
from tilewright.lower.statements import loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import Let, Stmt


def _sort(use: Use, *values: Tensor) -> tuple[Tensor, ...]:
    """The positions of each line are sorted; then its elements are gathered."""
    (before,), count = use.bodies, len(values)
    shape = values[0].shape
    axis = front_axis(use["axis"], len(shape))
    rest = [dim for at, dim in enumerate(shape) if at != axis]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        made, (order, spare, cursor, verdict) = outs[:count], outs[count:]

        def line(*index: Expr) -> Stmt:
            def at(position: Expr) -> tuple[Expr, ...]:
                return (*index[:axis], position, *index[axis:])

            def compare(a: Expr, b: Expr) -> Stmt:
                """The order only needs the test whether the second element comes before the
                first."""
                pairs = [source[at(place)] for source in ins for place in (b, a)]
                (later,) = before(*pairs)
                return store(verdict, (ZERO,), te.cast(later, I64))

            def take(p: Expr) -> Stmt:
                pairs = zip(made, ins, strict=True)
                return seq(*(store(out, at(p), x[at(load(order, p))]) for out, x in pairs))

            ranked = merge_sort(shape[axis], order, spare, cursor, compare, verdict)
            return seq(ranked, loops([shape[axis]], take, "p"))

        return loops(rest, line)

    row = (shape[axis],)
    shapes = [*(x.shape for x in values), row, row, (sym.const(2),), (ONE,)]
    types = [*(x.dtype for x in values), I64, I64, I64, I64]
    return procedure(shapes, values, body, use.name, types)[:count]


def _reduce_window(use: Use, *given: Tensor) -> tuple[Tensor, ...]:
    (join,), count = use.bodies, len(given) // 2
    shape, rank = given[0].shape, given[0].ndim
    strides, dilations, pads = use["strides"], use["dilations"], use["pads"]
    window = [sym.as_expr(size) for size in use["window"]]
    is_padded = any(pad != 0 for pad in pads)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        values, starts = ins[:count], ins[count:]

        def place(*index: Expr) -> Stmt:
            def tap(*taps: Expr) -> Stmt:
                at = [
                    sym.sub(
                        sym.add(
                            sym.mul(index[axis], strides[axis]),
                            sym.mul(taps[axis], dilations[axis]),
                        ),
                        pads[axis],
                    )
                    for axis in range(rank)
                ]
                so_far = [out[index] for out in outs]
                joined = join(*so_far, *(x[tuple(at)] for x in values))
                tests = []
                for axis in range(rank) if is_padded else ():
                    tests += [sym.le(0, at[axis]), sym.lt(at[axis], shape[axis])]
                return when(tests, _together(outs, index, joined))

            begin = (store(out, index, start[()]) for out, start in zip(outs, starts, strict=True))
            return seq(*begin, loops(window, tap, "t"))

        return loops(use.shape, place)

    types = [x.dtype for x in given[:count]]
    return procedure([use.shape] * count, given, body, use.name, types)


def _together(outs: list[BufferView], index: tuple[Expr, ...], values: tuple[Expr, ...]) -> Stmt:
    """Stores of values, all of which are computed before the first store."""
    names = [sym.var(f"joined{at}", value.dtype) for at, value in enumerate(values)]
    pairs = zip(outs, names, strict=True)
    stmt = seq(*(store(out, index, name) for out, name in pairs))
    for name, value in reversed(list(zip(names, values, strict=True))):
        stmt = Let(name, value, stmt)
    return stmt


def _scatter_slices(use: Use, x: Tensor, starts: Tensor, updates: Tensor) -> Tensor:
    (join,), lead = use.bodies, starts.ndim - 1
    kept = kept_axes(use.call, "inserted", x.ndim)

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source, begins, added), (out,) = ins, outs

        def update(*index: Expr) -> Stmt:
            at: list[Expr] = [ZERO] * x.ndim
            for number, axis in enumerate(use["axes"]):
                at[axis] = te.cast(begins[(*index[:lead], number)], INDEX)
            for axis, offset in zip(kept, index[lead:], strict=True):
                at[axis] = sym.add(at[axis], offset)
            tests = []
            for place, dim in zip(at, x.shape, strict=True):
                tests += [sym.le(0, place), sym.lt(place, dim)]
            (joined,) = join(out[tuple(at)], added[index])
            return when(tests, store(out, at, joined))

        copy = loops(x.shape, lambda *index: store(out, index, source[index]))
        return seq(copy, loops(updates.shape, update, "u"))

    (made,) = procedure([x.shape], [x, starts, updates], body, use.name, [x.dtype])
    return made


LOWERINGS: dict[str, Lowering] = {
    "sort": _sort,
    "reduce_window": _reduce_window,
    "scatter_slices": _scatter_slices,
}
