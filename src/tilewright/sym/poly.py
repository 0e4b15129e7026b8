"""Integer polynomials over atoms: the normal form of `simplify`, `bounds` and `prove`.

A polynomial is a sum of integer multiples of monomials, plus a constant. A monomial is an atom (a
variable, a floor division, a load, ...) or a `Product` of several. Terms are kept in order of first
appearance, so that `io * 8 + ii` is printed as written.

A product of sums is kept factored, with sums as factors: `i * (m + 1) + j` is then easily divided
by `m + 1`. `expanded` multiplies out, as equality and proofs require.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from hashlib import blake2b
from math import gcd

from tilewright.sym.expr import ZERO, Add, Const, Expr, Mul, Size, Sub, Var, const
from tilewright.sym.visit import fold, walk

Product = tuple[Expr, ...]  # two or more factors, in the order of `rank`
Monomial = Expr | Product
NO_TERMS: Mapping[Monomial, int] = {}
_KEEP = 1 << 16
_MAX_WRITTEN = 64  # nodes of an expression that is ranked by its text

_ranks: dict[Expr, tuple[object, ...]] = {}


def rank(expr: Expr) -> tuple[object, ...]:
    """The sort key of a factor in a product: loop variables, then sizes; sums last of each.

    Variables are ordered by creation, which is deterministic.
    """
    found = _ranks.get(expr)
    if found is None:
        if len(_ranks) > _KEEP:
            _ranks.clear()
        if isinstance(expr, Var):
            found = (2 if isinstance(expr, Size) else 0, 0, expr.uid, "")
        else:
            inside = [v for v in walk(expr) if isinstance(v, Var)]
            order = 2 if type(expr) in _SUMS and all(isinstance(v, Size) for v in inside) else 0
            oldest = min((v.uid for v in inside), default=0)
            found = (order, 2 if type(expr) in _SUMS else 1, oldest, _text(expr))
        _ranks[expr] = found
    return found


def _text(expr: Expr) -> str:
    """A deterministic identification of an expression: its text, or a digest of a long one.

    Shared subexpressions are printed once per use, so that the text may be exponentially long.
    """
    if fold(expr, lambda _, sizes: 1 + sum(sizes)) <= _MAX_WRITTEN:
        return str(expr)
    return fold(expr, _digest)


def _digest(expr: Expr, below: tuple[str, ...]) -> str:
    """The digest of one node, given those of its children, which are replaced by variables of these
    names."""
    children = expr.children()
    if not children:
        return str(expr)
    names = zip(children, below, strict=True)
    shallow = expr.with_children(tuple([_placeholder(child, name) for child, name in names]))
    return blake2b(str(shallow).encode(), digest_size=16).hexdigest()


def _placeholder(child: Expr, name: str) -> Expr:
    return child if isinstance(child, (Const, Var)) else Var(name, child.dtype, 0)


def factors(monomial: Monomial) -> tuple[Expr, ...]:
    return monomial if isinstance(monomial, tuple) else (monomial,)


def monomial_of(parts: tuple[Expr, ...]) -> Monomial:
    return parts[0] if len(parts) == 1 else tuple(sorted(parts, key=rank))


def term(parts: tuple[Expr, ...], coefficient: int) -> Poly:
    """The monomial of factors times an integer; no factors make 1, a lone sum stays a sum."""
    if not parts:
        return constant(coefficient)
    if len(parts) == 1 and type(parts[0]) in _SUMS:
        return poly_of(parts[0]).scaled(coefficient)
    return Poly({monomial_of(parts): coefficient}, 0)


def divide_monomial(whole: Monomial, part: Monomial) -> tuple[Expr, ...] | None:
    """The factors of `whole` without those of `part`."""
    if whole is part:
        return ()
    if not isinstance(whole, tuple):
        return () if (whole,) == part else None
    left = list(whole)
    for factor in factors(part):
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


class Poly:
    """A sum of integer multiples of monomials plus a constant. Immutable once built."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: Mapping[Monomial, int], constant: int) -> None:
        self.terms = terms
        self.const = constant

    def __repr__(self) -> str:
        return f"<Poly {self.expr()}>"

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def is_nil(self) -> bool:
        return not self.terms and self.const == 0

    def same(self, other: Poly) -> bool:
        return self.const == other.const and self.terms == other.terms

    def key(self) -> tuple[object, ...]:
        """The key of equal polynomials, for memo tables."""
        return (self.const, frozenset(self.terms.items()))

    def atom(self) -> Expr | None:
        """The atom, if the polynomial is just one."""
        if self.const == 0 and len(self.terms) == 1:
            (monomial, coefficient), *_ = self.terms.items()
            if coefficient == 1 and isinstance(monomial, Expr):
                return monomial
        return None

    def plus(self, other: Poly, times: int = 1) -> Poly:
        """self + times * other."""
        if not other.terms:
            return Poly(self.terms, self.const + times * other.const)
        if not self.terms and times == 1:
            return Poly(other.terms, self.const + other.const)
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + times * coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Poly(terms, self.const + times * other.const)

    def shifted(self, by: int) -> Poly:
        return Poly(self.terms, self.const + by) if by else self

    def scaled(self, by: int) -> Poly:
        if by == 1:
            return self
        if by == 0:
            return NIL
        return Poly({m: c * by for m, c in self.terms.items()}, self.const * by)

    def divided(self, by: int) -> Poly:
        """Divide exactly by an integer."""
        return Poly({m: c // by for m, c in self.terms.items()}, self.const // by)

    def without(self, monomial: Monomial) -> Poly:
        return Poly({m: c for m, c in self.terms.items() if m != monomial}, self.const)

    def times(self, other: Poly) -> Poly:
        """The product, with sums as factors instead of multiplied out."""
        if not other.terms:
            return self.scaled(other.const)
        if not self.terms:
            return other.scaled(self.const)
        a_scale, a_parts = self._as_factors()
        b_scale, b_parts = other._as_factors()
        return Poly({monomial_of(a_parts + b_parts): a_scale * b_scale}, 0)

    def _as_factors(self) -> tuple[int, tuple[Expr, ...]]:
        if self.const == 0 and len(self.terms) == 1:
            (monomial, coefficient), *_ = self.terms.items()
            return coefficient, factors(monomial)
        content = self.content()
        whole = self if content == 1 else self.divided(content)
        return content, (whole.expr(),)

    def content(self) -> int:
        """The greatest common divisor of all coefficients and the constant."""
        return reduce(gcd, self.terms.values(), self.const)

    def multiplied_out(self, other: Poly) -> Poly:
        """The product, multiplied out term by term."""
        terms: dict[Monomial, int] = {}
        a_terms: list[tuple[tuple[Expr, ...], int]] = [
            (factors(m), c) for m, c in self.terms.items()
        ]
        b_terms: list[tuple[tuple[Expr, ...], int]] = [
            (factors(m), c) for m, c in other.terms.items()
        ]
        if self.const:
            a_terms.append(((), self.const))
        if other.const:
            b_terms.append(((), other.const))
        constant = 0
        for a_parts, a in a_terms:
            for b_parts, b in b_terms:
                parts = a_parts + b_parts
                if not parts:
                    constant += a * b
                    continue
                monomial = monomial_of(parts)
                total = terms.get(monomial, 0) + a * b
                if total:
                    terms[monomial] = total
                else:
                    terms.pop(monomial, None)
        return Poly(terms, constant)

    def has_factored_sums(self) -> bool:
        for monomial in self.terms:
            if isinstance(monomial, tuple) and any(type(f) in _SUMS for f in monomial):
                return True
        return False

    def expanded(self) -> Poly:
        """The same value with products of sums multiplied out."""
        if not self.has_factored_sums():
            return self
        total = Poly(NO_TERMS, self.const)
        for monomial, coefficient in self.terms.items():
            part = Poly(NO_TERMS, coefficient)
            for factor in factors(monomial):
                part = part.multiplied_out(poly_of(factor).expanded())
            total = total.plus(part)
        return total

    def replaced(self, atom: Expr, by: Poly) -> Poly:
        """Replace an atom where it is a factor of a term (not inside other atoms)."""
        total = Poly(NO_TERMS, self.const)
        for monomial, coefficient in self.terms.items():
            parts = factors(monomial)
            if atom not in parts:
                total = total.plus(Poly({monomial: coefficient}, 0))
                continue
            part = Poly(NO_TERMS, coefficient)
            for factor in parts:
                one = by if factor is atom else Poly({factor: 1}, 0)
                part = part.multiplied_out(one)
            total = total.plus(part)
        return total

    def cost(self) -> int:
        """The approximate number of operations."""
        total = len(self.terms) + (1 if self.const else 0)
        for monomial, coefficient in self.terms.items():
            if isinstance(monomial, tuple):
                total += sum(len(poly_of(f).terms) + 1 if type(f) in _SUMS else 1 for f in monomial)
            if coefficient not in (1, -1):
                total += 1
        return total

    def expr(self) -> Expr:
        """Convert to an expression: a positive term first, the others in order, the constant
        last."""
        terms = self.terms
        if not terms:
            return number(self.const)
        result: Expr | None = None
        constant = self.const
        ordered = list(terms.items())
        if ordered[0][1] < 0:
            first = next((k for k, (_, c) in enumerate(ordered) if c > 0), None)
            if first is not None:
                ordered.insert(0, ordered.pop(first))
            elif constant > 0:
                result, constant = number(constant), 0
        for monomial, coefficient in ordered:
            if result is None:
                result = _term(monomial, coefficient)
            elif coefficient < 0:
                result = Sub(result, _term(monomial, -coefficient))
            else:
                result = Add(result, _term(monomial, coefficient))
        assert result is not None
        if constant > 0:
            result = Add(result, number(constant))
        elif constant < 0:
            result = Sub(result, number(-constant))
        return result


def _term(monomial: Monomial, coefficient: int) -> Expr:
    result: Expr
    if isinstance(monomial, tuple):
        result = reduce(Mul, monomial)
    else:
        result = monomial
    return result if coefficient == 1 else Mul(result, number(coefficient))


_SUMS: frozenset[type[Expr]] = frozenset((Add, Sub))
NIL = Poly(NO_TERMS, 0)
UNIT = Poly(NO_TERMS, 1)
_known: dict[Expr, Poly] = {ZERO: NIL}


_numbers: dict[int, Const] = {}


def number(value: int) -> Const:
    """The index constant, cached."""
    found = _numbers.get(value)
    if found is None:
        if len(_numbers) > _KEEP:
            _numbers.clear()
        found = _numbers[value] = const(value)
    return found


def constant(value: int) -> Poly:
    return Poly(NO_TERMS, value)


def poly_of(expr: Expr) -> Poly:
    """Convert an index expression; anything but + - * is an atom."""
    found = _known.get(expr)
    if found is None:
        if len(_known) > _KEEP:
            _known.clear()
        found = _known[expr] = _read(expr)
    return found


def _read(expr: Expr) -> Poly:
    terms: dict[Monomial, int] = {}
    total = 0
    stack = [(expr, 1)]
    while stack:
        node, scale = stack.pop()
        kind = type(node)
        if kind is Add:
            stack.append((node.b, scale))  # type: ignore[attr-defined]
            stack.append((node.a, scale))  # type: ignore[attr-defined]
        elif kind is Sub:
            stack.append((node.b, -scale))  # type: ignore[attr-defined]
            stack.append((node.a, scale))  # type: ignore[attr-defined]
        elif kind is Const:
            total += scale * node.value  # type: ignore[attr-defined]
        elif kind is Mul:
            a, b = node.children()
            if type(b) is Const:
                stack.append((a, scale * int(b.value)))
            elif type(a) is Const:
                stack.append((b, scale * int(a.value)))
            else:
                product = poly_of(a).times(poly_of(b))
                total += scale * product.const
                for monomial, coefficient in product.terms.items():
                    terms[monomial] = terms.get(monomial, 0) + scale * coefficient
        else:
            terms[node] = terms.get(node, 0) + scale
    if 0 in terms.values():
        terms = {m: c for m, c in terms.items() if c}
    return Poly(terms, total)
