"""Matrix factorizations: loops over columns, in f64, rounded once.

Temporaries (working copies, cells for sums) are additional outputs without readers.
`docs/internals/operators.md` names the algorithms.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym, te
from tilewright.base.dtype import F64, I32, I64, DType
from tilewright.graph.ops.factorizations import NEGLIGIBLE, SWEEPS
from tilewright.lower.base import Lowering, Use, shape_of
from tilewright.lower.merge_sort import load
from tilewright.lower.statements import Body, loops, procedure, seq, store, when
from tilewright.sym import ONE, ZERO, Expr
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Stmt

Shape = tuple[Expr, ...]
CELL = (ZERO,)


def _each(low: Expr | int, high: Expr, body: Callable[[Expr], Stmt], name: str) -> Stmt:
    at = sym.var(name)
    return For(at, sym.as_expr(low), high, body(at))


def _number(value: float) -> Expr:
    return te.const(value, F64)


def _add(cell: BufferView, value: Expr) -> Stmt:
    return store(cell, CELL, cell[ZERO] + value)


def _made(
    use: Use, inputs: list[Tensor], body: Body, work: list[tuple[Shape, DType]]
) -> tuple[Tensor, ...]:
    """The outputs of a use, computed in f64 (integers unchanged), with working memory."""
    types = [F64 if of.dtype.is_float else of.dtype for of in use.outputs]
    shapes = [shape_of(of) for of in use.outputs]
    rooms = [*shapes, *(shape for shape, _ in work)]
    kinds = [*types, *(of for _, of in work)]
    made = procedure(rooms, inputs, body, f"{use.name}_wide", kinds)[: len(shapes)]
    return tuple(_rounded(use, at, tensor) for at, tensor in enumerate(made))


def _rounded(use: Use, at: int, made: Tensor) -> Tensor:
    to = use.outputs[at].dtype
    if made.dtype is to:
        return made
    name = f"{use.name}_{at}"
    return te.compute(made.shape, lambda *index: te.cast(made[index], to), name=name)


def _copied(source: BufferView, to: BufferView, stack: Shape, dims: Shape) -> Stmt:
    def copy(*index: Expr) -> Stmt:
        return store(to, (*stack, *index), te.cast(source[(*stack, *index)], F64))

    return loops(dims, copy, "c")


# ------------------------------------------------------------------------------------ Cholesky


def _cholesky(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """By columns: subtract the previous columns' contribution, divide by the root of the pivot."""
    n = x.shape[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (a,), (lower, info, cell) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def left(i: Expr, j: Expr) -> Stmt:
                def less(k: Expr) -> Stmt:
                    return _add(cell, -lower[(*stack, i, k)] * lower[(*stack, j, k)])

                first = store(cell, CELL, te.cast(a[(*stack, i, j)], F64))
                return seq(first, _each(0, j, less, "k"))

            def column(j: Expr) -> Stmt:
                def below(i: Expr) -> Stmt:
                    share = cell[ZERO] / lower[(*stack, j, j)]
                    return seq(left(i, j), store(lower, (*stack, i, j), share))

                lost = te.all(te.eq(info[stack], te.const(0, I32)),
                              te.logical_not(cell[ZERO] > _number(0)))  # fmt: skip
                return seq(
                    left(j, j),
                    when([lost], store(info, stack, te.cast(j + 1, I32))),
                    store(lower, (*stack, j, j), te.sqrt(cell[ZERO])),
                    _each(j + 1, n, below, "i"),
                )

            zero = loops([n, n], lambda i, j: store(lower, (*stack, i, j), _number(0)), "z")
            return seq(zero, store(info, stack, te.const(0, I32)), loops([n], column, "j"))

        return loops(x.shape[:-2], one)

    return _made(use, [x], body, [((ONE,), F64)])


# ------------------------------------------------------------------------------------ LU


def _lu(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """Gaussian elimination with partial pivoting."""
    m, n = x.shape[-2:]
    steps = shape_of(use.outputs[1])[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (a, pivots, info, cell) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def step(j: Expr) -> Stmt:
                pivot = load(pivots, *stack, j) - 1

                def choose(i: Expr) -> Stmt:
                    better = te.abs(a[(*stack, i, j)]) > te.abs(a[(*stack, pivot, j)])
                    return when([better], store(pivots, (*stack, j), te.cast(i + 1, I32)))

                def exchange(k: Expr) -> Stmt:
                    return seq(
                        store(cell, CELL, a[(*stack, j, k)]),
                        store(a, (*stack, j, k), a[(*stack, pivot, k)]),
                        store(a, (*stack, pivot, k), cell[ZERO]),
                    )

                def eliminate(i: Expr) -> Stmt:
                    def less(k: Expr) -> Stmt:
                        value = a[(*stack, i, k)] - a[(*stack, i, j)] * a[(*stack, j, k)]
                        return store(a, (*stack, i, k), value)

                    share = a[(*stack, i, j)] / a[(*stack, j, j)]
                    return seq(store(a, (*stack, i, j), share), _each(j + 1, n, less, "k"))

                lost = te.eq(info[stack], te.const(0, I32))
                return seq(
                    store(pivots, (*stack, j), te.cast(j + 1, I32)),
                    _each(j + 1, m, choose, "i"),
                    when([te.ne(pivot, j)], loops([n], exchange, "x")),
                    If(
                        te.ne(a[(*stack, j, j)], _number(0)),
                        _each(j + 1, m, eliminate, "i"),
                        when([lost], store(info, stack, te.cast(j + 1, I32))),
                    ),
                )

            begin = seq(_copied(source, a, stack, (m, n)), store(info, stack, te.const(0, I32)))
            return seq(begin, loops([steps], step, "j"))

        return loops(x.shape[:-2], one)

    return _made(use, [x], body, [((ONE,), F64)])


def _row_order(use: Use, pivots: Tensor, rows: Tensor | None) -> Tensor:
    """The row indices after exchanging rows step by step."""
    m, steps = use.shape[-1], pivots.shape[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (given, *_), (order, cell) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def exchange(at: Expr) -> Stmt:
                last = sym.maximum(m - 1, 0)
                other = sym.minimum(sym.maximum(load(given, *stack, at) - 1, 0), last)
                return seq(
                    store(cell, CELL, order[(*stack, at)]),
                    store(order, (*stack, at), order[(*stack, other)]),
                    store(order, (*stack, other), cell[ZERO]),
                )

            count = loops([m], lambda i: store(order, (*stack, i), te.cast(i, I64)), "n")
            return seq(count, loops([sym.minimum(steps, m)], exchange, "j"))

        return loops(use.shape[:-1], one)

    inputs = [pivots] if rows is None else [pivots, rows]
    return _made(use, inputs, body, [((ONE,), I64)])[0]


# ------------------------------------------------------------------------------------ solving


def _solve(use: Use, a: Tensor, b: Tensor) -> Tensor:
    """Substitution by rows; from the last one up for an upper triangle."""
    n, columns = b.shape[-2:]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (left, right), (x,) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def row(step: Expr) -> Stmt:
                i = step if use["lower"] else n - 1 - step
                low, high = (ZERO, i) if use["lower"] else (i + 1, n)

                def less(k: Expr) -> Stmt:
                    factor = te.cast(left[(*stack, i, k)], F64)

                    def at(c: Expr) -> Stmt:
                        value = x[(*stack, i, c)] - factor * x[(*stack, k, c)]
                        return store(x, (*stack, i, c), value)

                    return loops([columns], at, "c")

                def divide(c: Expr) -> Stmt:
                    by = te.cast(left[(*stack, i, i)], F64)
                    return store(x, (*stack, i, c), x[(*stack, i, c)] / by)

                known = _each(low, high, less, "k")
                return known if use["unit"] else seq(known, loops([columns], divide, "d"))

            return seq(_copied(right, x, stack, (n, columns)), loops([n], row, "row"))

        return loops(b.shape[:-2], one)

    return _made(use, [a, b], body, [])[0]


# ------------------------------------------------------------------------------------ QR


def _householder(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """Householder reflections that eliminate the elements below the diagonal, by columns."""
    m, n = x.shape[-2:]
    steps = shape_of(use.outputs[1])[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (a, tau, cell, beta) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def step(j: Expr) -> Stmt:
                head = a[(*stack, j, j)]

                def square(i: Expr) -> Stmt:
                    return _add(cell, a[(*stack, i, j)] * a[(*stack, i, j)])

                def scale(i: Expr) -> Stmt:
                    value = a[(*stack, i, j)] / (head - beta[ZERO])
                    return store(a, (*stack, i, j), value)

                def apply(k: Expr) -> Stmt:
                    def sum_(i: Expr) -> Stmt:
                        return _add(cell, a[(*stack, i, j)] * a[(*stack, i, k)])

                    def less(i: Expr) -> Stmt:
                        value = a[(*stack, i, k)] - a[(*stack, i, j)] * cell[ZERO]
                        return store(a, (*stack, i, k), value)

                    return seq(
                        store(cell, CELL, a[(*stack, j, k)]),
                        _each(j + 1, m, sum_, "i"),
                        store(cell, CELL, cell[ZERO] * tau[(*stack, j)]),
                        store(a, (*stack, j, k), a[(*stack, j, k)] - cell[ZERO]),
                        _each(j + 1, m, less, "i"),
                    )

                length = te.copysign(te.sqrt(head * head + cell[ZERO]), head)
                reflect = seq(
                    store(beta, CELL, -length),
                    store(tau, (*stack, j), (beta[ZERO] - head) / beta[ZERO]),
                    _each(j + 1, m, scale, "i"),
                    store(a, (*stack, j, j), beta[ZERO]),
                    _each(j + 1, n, apply, "k"),
                )
                return seq(
                    store(tau, (*stack, j), _number(0)),
                    store(cell, CELL, _number(0)),
                    _each(j + 1, m, square, "i"),
                    when([cell[ZERO] > _number(0)], reflect),
                )

            return seq(_copied(source, a, stack, (m, n)), loops([steps], step, "j"))

        return loops(x.shape[:-2], one)

    return _made(use, [x], body, [((ONE,), F64), ((ONE,), F64)])


def _product(use: Use, x: Tensor, tau: Tensor) -> Tensor:
    """Apply the reflections to the identity, the last one first."""
    m, n = x.shape[-2:]
    count = tau.shape[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (packed, factors), (q, cell) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def start(i: Expr, k: Expr) -> Stmt:
                value = te.if_then_else(te.eq(i, k), _number(1), _number(0))
                return store(q, (*stack, i, k), value)

            def step(at: Expr) -> Stmt:
                j = count - 1 - at

                def reflection(i: Expr) -> Expr:
                    return te.cast(packed[(*stack, i, j)], F64)

                def apply(k: Expr) -> Stmt:
                    def sum_(i: Expr) -> Stmt:
                        return _add(cell, reflection(i) * q[(*stack, i, k)])

                    def less(i: Expr) -> Stmt:
                        value = q[(*stack, i, k)] - reflection(i) * cell[ZERO]
                        return store(q, (*stack, i, k), value)

                    share = cell[ZERO] * te.cast(factors[(*stack, j)], F64)
                    return seq(
                        store(cell, CELL, q[(*stack, j, k)]),
                        _each(j + 1, m, sum_, "i"),
                        store(cell, CELL, share),
                        store(q, (*stack, j, k), q[(*stack, j, k)] - cell[ZERO]),
                        _each(j + 1, m, less, "i"),
                    )

                return loops([n], apply, "k")

            return seq(loops([m, n], start, "s"), loops([count], step, "j"))

        return loops(x.shape[:-2], one)

    return _made(use, [x, tau], body, [((ONE,), F64)])[0]


# ------------------------------------------------------------------------------------ Jacobi


def _pairs(n: Expr, rotate: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Jacobi sweeps over all pairs of columns."""

    def column(p: Expr) -> Stmt:
        return _each(p + 1, n, lambda q: rotate(p, q), "q")

    return loops([sym.const(SWEEPS)], lambda _: loops([n], column, "p"), "sweep")


def _angle(room: BufferView, on: Expr, off: Expr, other: Expr) -> Stmt:
    """room[0], room[1]: cosine and sine of the rotation that eliminates `off` between `on` and
    `other`."""
    ratio = (other - on) / (_number(2) * off)
    tangent = te.copysign(_number(1), ratio) / (te.abs(ratio) + te.sqrt(ratio * ratio + _number(1)))
    cosine = _number(1) / te.sqrt(room[sym.const(1)] * room[sym.const(1)] + _number(1))
    return seq(
        store(room, (ONE,), tangent),
        store(room, (ZERO,), cosine),
        store(room, (ONE,), room[ONE] * room[ZERO]),
    )


def _turn(room: BufferView, one: tuple[BufferView, Shape], two: tuple[BufferView, Shape]) -> Stmt:
    """Rotate two elements."""
    (a, at), (b, bt) = one, two
    cosine, sine = room[ZERO], room[ONE]
    return seq(
        store(room, (sym.const(2),), a[at]),
        store(a, at, cosine * room[sym.const(2)] - sine * b[bt]),
        store(b, bt, sine * room[sym.const(2)] + cosine * b[bt]),
    )


def _order(
    stack: Shape, n: Expr, key: BufferView, exchange: Callable[[Expr, Expr], Stmt], *, down: bool
) -> Stmt:
    """Sort columns by their keys, exchanging neighbours."""

    def inner(at: Expr) -> Stmt:
        a, b = key[(*stack, at)], key[(*stack, at + 1)]
        return when([a < b if down else a > b], exchange(at, at + 1))

    return loops([n], lambda done: _each(0, n - 1 - done, inner, "o"), "r")


def _swap(room: BufferView, view: BufferView, one: Shape, two: Shape) -> Stmt:
    spare = (sym.const(2),)
    return seq(
        store(room, spare, view[one]), store(view, one, view[two]), store(view, two, room[spare])
    )


def _signed(
    room: BufferView, stack: Shape, n: Expr, of: BufferView, *columns: tuple[BufferView, Expr]
) -> Stmt:
    """Negate columns so that the first element of largest magnitude in those of `of` is
    positive."""
    best = sym.const(2)

    def column(j: Expr) -> Stmt:
        def greatest(k: Expr) -> Stmt:
            value = of[(*stack, k, j)]
            return when([te.abs(value) > te.abs(room[best])], store(room, (best,), value))

        def turn(view: BufferView) -> Callable[[Expr], Stmt]:
            return lambda k: store(view, (*stack, k, j), -view[(*stack, k, j)])

        turned = [loops([rows], turn(view), "t") for view, rows in columns]
        return seq(
            store(room, (best,), _number(0)),
            loops([n], greatest, "g"),
            when([room[best] < _number(0)], seq(*turned)),
        )

    return loops([n], column, "j")


def _eigh(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """Jacobi: rotate pairs of rows and columns until the off-diagonal elements vanish."""
    n = x.shape[-1]

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (values, vectors, a, room) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def copy(i: Expr, j: Expr) -> Stmt:
                row, column = sym.maximum(i, j), sym.minimum(i, j)
                unit = te.if_then_else(te.eq(i, j), _number(1), _number(0))
                return seq(
                    store(a, (i, j), te.cast(source[(*stack, row, column)], F64)),
                    store(vectors, (*stack, i, j), unit),
                )

            def rotate(p: Expr, q: Expr) -> Stmt:
                off = a[p, q]
                near = te.sqrt(te.abs(a[p, p] * a[q, q])) * _number(NEGLIGIBLE)
                seen = te.all(te.abs(off) > near, te.abs(off) > _number(1e-290))

                def columns(k: Expr) -> Stmt:
                    return seq(
                        _turn(room, (a, (k, p)), (a, (k, q))),
                        _turn(room, (vectors, (*stack, k, p)), (vectors, (*stack, k, q))),
                    )

                def rows(k: Expr) -> Stmt:
                    return _turn(room, (a, (p, k)), (a, (q, k)))

                turned = seq(
                    _angle(room, a[p, p], off, a[q, q]),
                    loops([n], columns, "k"),
                    loops([n], rows, "k"),
                )
                return when([seen], turned)

            def exchange(i: Expr, j: Expr) -> Stmt:
                def row(k: Expr) -> Stmt:
                    return _swap(room, vectors, (*stack, k, i), (*stack, k, j))

                return seq(_swap(room, values, (*stack, i), (*stack, j)), loops([n], row, "w"))

            return seq(
                loops([n, n], copy, "c"),
                _pairs(n, rotate),
                loops([n], lambda i: store(values, (*stack, i), a[i, i]), "d"),
                _order(stack, n, values, exchange, down=False),
                _signed(room, stack, n, vectors, (vectors, n)),
            )

        return loops(x.shape[:-2], one)

    return _made(use, [x], body, [((n, n), F64), ((sym.const(3),), F64)])


def _svd(use: Use, x: Tensor) -> tuple[Tensor, ...]:
    """One-sided Jacobi: rotate pairs of columns until all are orthogonal."""
    m, n = x.shape[-2:]
    three, four, five = (sym.const(at) for at in (3, 4, 5))

    def body(ins: list[BufferView], outs: list[BufferView]) -> Stmt:
        (source,), (u, s, v, room) = ins, outs

        def one(*stack: Expr) -> Stmt:
            def unit(i: Expr, j: Expr) -> Stmt:
                value = te.if_then_else(te.eq(i, j), _number(1), _number(0))
                return store(v, (*stack, i, j), value)

            def rotate(p: Expr, q: Expr) -> Stmt:
                def sums(i: Expr) -> Stmt:
                    a, b = u[(*stack, i, p)], u[(*stack, i, q)]
                    return seq(
                        store(room, (three,), room[three] + a * a),
                        store(room, (four,), room[four] + b * b),
                        store(room, (five,), room[five] + a * b),
                    )

                limit = te.sqrt(room[three] * room[four]) * _number(NEGLIGIBLE)
                seen = te.all(te.abs(room[five]) > limit, te.abs(room[five]) > _number(1e-290))

                def turn(view: BufferView) -> Callable[[Expr], Stmt]:
                    return lambda k: _turn(room, (view, (*stack, k, p)), (view, (*stack, k, q)))

                turned = seq(
                    _angle(room, room[three], room[five], room[four]),
                    loops([m], turn(u), "k"),
                    loops([n], turn(v), "k"),
                )
                zero = [store(room, (at,), _number(0)) for at in (three, four, five)]
                return seq(*zero, loops([m], sums, "i"), when([seen], turned))

            def lengths(j: Expr) -> Stmt:
                def square(i: Expr) -> Stmt:
                    value = u[(*stack, i, j)] * u[(*stack, i, j)]
                    return store(room, (three,), room[three] + value)

                def scale(i: Expr) -> Stmt:
                    value = u[(*stack, i, j)] / s[(*stack, j)]
                    return store(u, (*stack, i, j), value)

                return seq(
                    store(room, (three,), _number(0)),
                    loops([m], square, "i"),
                    store(s, (*stack, j), te.sqrt(room[three])),
                    when([s[(*stack, j)] > _number(0)], loops([m], scale, "i")),
                )

            def exchange(i: Expr, j: Expr) -> Stmt:
                def row(view: BufferView) -> Callable[[Expr], Stmt]:
                    return lambda k: _swap(room, view, (*stack, k, i), (*stack, k, j))

                values = _swap(room, s, (*stack, i), (*stack, j))
                return seq(values, loops([m], row(u), "w"), loops([n], row(v), "w"))

            return seq(
                _copied(source, u, stack, (m, n)),
                loops([n, n], unit, "z"),
                _pairs(n, rotate),
                loops([n], lengths, "l"),
                _order(stack, n, s, exchange, down=True),
                _signed(room, stack, n, v, (u, m), (v, n)),
            )

        return loops(x.shape[:-2], one)

    return _made(use, [x], body, [((sym.const(6),), F64)])


LOWERINGS: dict[str, Lowering] = {
    "cholesky": _cholesky,
    "lu": _lu,
    "row_order": _row_order,
    "triangular_solve": _solve,
    "householder": _householder,
    "householder_product": _product,
    "eigh": _eigh,
    "svd": _svd,
}
