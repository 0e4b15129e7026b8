"""Injectivity of indices: which variables are determined by an index's value.

    determined_vars((io * 8 + ii,), {io: (0, n), ii: (0, 8)}, ctx)       {io, ii}
    determined_vars((io * 8 + ii,), {io: (0, n), ii: (0, 10)}, ctx)      nothing: 8 + 0 is 0 * 8 + 8
    determined_vars((f // m, f % m), {f: (0, n * m)}, ctx)               {f}

Two facts are applied to a fixed point. A known sum of terms scale * digit determines all its digits
if every scale is greater than the largest sum of the lesser terms. And the digits x // c, x // b %
(c / b), x % b together determine x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright import sym
from tilewright.sym import ONE, Const, Context, Expr, FloorDiv, FloorMod, Var
from tilewright.sym.poly import factors, poly_of

Ranges = Mapping[Var, tuple[Expr, Expr]]


def determined_vars(known: Iterable[Expr], ranges: Ranges, ctx: Context) -> set[Var]:
    """The variables of `ranges` whose values follow from the values of the known expressions.

    All other variables are taken as given. `ctx` is about those; ranges are (start, stop).
    """
    return _Inference(ranges, ctx).run(known)


def is_injective(indices: Iterable[Expr], ranges: Ranges, ctx: Context) -> bool:
    """Whether different values of the variables certainly give different indices."""
    found = determined_vars(indices, ranges, ctx)
    return all(var in found or _is_unit(ranges[var], ctx) for var in ranges)


def _is_unit(span: tuple[Expr, Expr], ctx: Context) -> bool:
    return sym.prove(sym.le(sym.sub(span[1], span[0]), 1), ctx)


class _Inference:
    def __init__(self, ranges: Ranges, ctx: Context) -> None:
        self.ranges = ranges
        self.ctx = ctx
        self.inner = ctx.bind_all(ranges)
        self.told: set[Var] = set()
        self.atoms: set[Expr] = set()  # whose value is known
        # source -> (low, extent): source // low % extent is known; None: all above low
        self.digits: dict[Expr, list[tuple[Expr, Expr | None]]] = {}

    def run(self, known: Iterable[Expr]) -> set[Var]:
        # Simplifying may take digits of one sum apart, or put them together: look at both forms.
        given = list(known)
        simple = [sym.simplify(expr, self.inner) for expr in given]
        pending = list(dict.fromkeys((*simple, *given)))
        progress = True
        while pending and progress:
            left = [expr for expr in pending if not self._take_sum(expr)]
            progress = len(left) < len(pending)
            pending = left
            for source in self._whole_sources():
                pending.append(source)
                progress = True
        return self.told

    def _is_given(self, expr: Expr) -> bool:
        """Whether the value follows from what is known already."""
        return expr in self.atoms or not any(
            var in self.ranges and var not in self.told for var in sym.free_vars(expr)
        )

    def _take_sum(self, expr: Expr) -> bool:
        """Note the digits of a known sum; False if they cannot be separated (yet)."""
        terms: list[tuple[Expr, Expr]] = []  # scale, digit
        for monomial, coefficient in poly_of(expr).expanded().terms.items():
            moving = [atom for atom in factors(monomial) if not self._is_given(atom)]
            if not moving:
                continue
            if len(moving) > 1:
                return False
            scale: Expr = sym.const(abs(coefficient))
            for atom in factors(monomial):
                if atom is not moving[0]:
                    scale = sym.mul(atom, scale)
            terms.append((scale, moving[0]))
        if not self._stand_apart(terms):
            return False
        for _, digit in terms:
            self._take_atom(digit)
        return True

    def _stand_apart(self, terms: list[tuple[Expr, Expr]]) -> bool:
        """Whether each scale exceeds the greatest difference the lesser terms can make."""
        if len({digit for _, digit in terms}) != len(terms):
            return False
        if len(terms) == 1 and isinstance(terms[0][0], Const):
            return True
        reach: Expr = sym.ZERO
        for at, (scale, digit) in enumerate(sorted(terms, key=_weight)):
            if not sym.prove(sym.lt(reach, scale), self.ctx):
                return False
            if at + 1 < len(terms):
                width = self._width(digit)
                if width is None:
                    return False
                reach = sym.simplify(reach + scale * width, self.ctx)
        return True

    def _width(self, digit: Expr) -> Expr | None:
        """The greatest value less the least."""
        if isinstance(digit, Var):
            start, stop = self.ranges[digit]
            return None if _moves(start, stop, self.ranges) else stop - start - 1
        if isinstance(digit, FloorMod) and not _moves(digit.b, digit.b, self.ranges):
            return digit.b - 1
        found = sym.symbolic_bounds(digit, self.ranges, self.ctx)
        return None if found is None else found[1] - found[0]

    def _take_atom(self, atom: Expr) -> None:
        self.atoms.add(atom)
        if isinstance(atom, Var):
            self.told.add(atom)
            return
        source: Expr = atom
        low: Expr = ONE
        extent: Expr | None = None
        if isinstance(source, FloorMod):
            extent = source.b
            source = source.a
        while isinstance(source, FloorDiv):  # x // a // b == x // (a * b)
            low = sym.mul(low, source.b)
            source = source.a
        if source is not atom and not _moves(low, ONE if extent is None else extent, self.ranges):
            self.digits.setdefault(source, []).append((low, extent))

    def _whole_sources(self) -> list[Expr]:
        """The sources all of whose digits are known by now."""
        found = [source for source in self.digits if self._is_whole(source)]
        for source in found:
            del self.digits[source]
        return found

    def _is_whole(self, source: Expr) -> bool:
        reach: Expr = ONE
        left = [*self.digits[source], *self._leading_digits(source)]
        while left:
            place = next((k for k, d in enumerate(left) if sym.equal(d[0], reach, self.ctx)), None)
            if place is None:
                break
            extent = left.pop(place)[1]
            if extent is None:
                return True
            reach = sym.simplify(reach * extent, self.ctx)
        within = sym.logical_and(sym.le(0, source), sym.lt(source, reach))
        return sym.prove(within, self.inner)

    def _leading_digits(self, source: Expr) -> list[tuple[Expr, Expr | None]]:
        """Known digits of a sum that are digits of its greatest term: where t < c, those of x are
        digits of x * c + t, and simplifying writes (x * c + t) // (c * d) as x // d."""
        found: list[tuple[Expr, Expr | None]] = []
        for monomial, coefficient in poly_of(source).expanded().terms.items():
            (atom, *others) = factors(monomial) or (ONE,)
            if others or atom is source or atom not in self.digits or coefficient <= 0:
                continue
            scale = sym.const(coefficient)
            rest = sym.simplify(source - atom * scale, self.inner)
            within = sym.logical_and(sym.le(0, rest), sym.lt(rest, scale))
            if sym.prove(within, self.inner):
                found += [(sym.mul(low, scale), extent) for low, extent in self.digits[atom]]
        return found


def _weight(term: tuple[Expr, Expr]) -> tuple[int, int]:
    """Constants by value, then products by their number of factors."""
    scale = term[0]
    if isinstance(scale, Const):
        return 0, int(scale.value)
    return 1 + len(sym.free_vars(scale)), 0


def _moves(a: Expr, b: Expr, ranges: Ranges) -> bool:
    return any(var in ranges for var in sym.free_vars(a, b))
