"""recognize_bands: attention masks along the diagonal become attributes, whose keys are skipped.

    %m = logical_and(less_equal(%key, %query), greater(%key, sub(%query, 16)))
    %y = attention(%q, %k, %v, %m)
    %y = attention(%q, %k, %v) {causal = true, window = (15, -1)}

Causal masks and sliding windows hide keys by the difference between the places of a key and a
query. Which, is told by numbers that are known, or by what a program compares: places that are
computed from ranges (`graph/places.py`). Of several conditions that must hold, those that are no
such band stay a mask: padding, say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, remade, rewrite_matches, shape_of
from tilewright.graph.passes.recognize_attention import HIDDEN_SCORE
from tilewright.graph.places import Places
from tilewright.sym import Const, Context, Expr, Le, Lt, Max, Min, Var


def recognize_bands(module: Module, ctx: PassContext) -> Module:
    return rewrite_matches(module, (known_band, computed_band))


@dataclass(frozen=True)
class _Band:
    """Keys that are seen: low <= key - query <= high; None: no limit."""

    low: Expr | None
    high: Expr | None

    def attributes(self, rows: Expr, keys: Expr) -> dict[str, Attribute] | None:
        """The same as attributes; None if these cannot say it."""
        if self.high is None and self.low is None:
            return {}
        # Where the last query is that of the last key, if the band is around it.
        past = sym.simplify(sym.sub(keys, rows))
        for end, is_within in ((self.low, sym.le), (self.high, lambda a, b: sym.le(b, a))):
            if end is not None and not sym.prove(is_within(end, past)):
                past = end
        left = None if self.low is None else sym.simplify(sym.sub(past, self.low))
        right = None if self.high is None else sym.simplify(sym.sub(self.high, past))
        if any(x is not None and (not isinstance(x, Const) or x.value < 0) for x in (left, right)):
            return None
        before, after = (-1 if not isinstance(x, Const) else int(x.value) for x in (left, right))
        is_causal = after == 0
        made: dict[str, Attribute] = {}
        if past is not sym.ZERO:
            made["past"] = int(past.value) if isinstance(past, Const) else past
        if is_causal:
            made["causal"] = True
        if before >= 0 or after > 0:
            made["window"] = (before, -1 if is_causal else after)
        return made

    def leaves_a_key(self, rows: Expr, keys: Expr) -> bool:
        """Whether every query certainly sees a key."""
        first = self.low is None or sym.prove(sym.le(sym.add(rows, self.low), keys))
        last = self.high is None or sym.prove(sym.le(0, self.high))
        some = self.low is None or self.high is None or sym.prove(sym.le(self.low, self.high))
        return first and last and some


def _is_open(node: Node) -> bool:
    """Whether a node is attention with a mask, and without a band or lengths."""
    if node.op != "attention" or len(node.inputs) != 4 or len(node.outputs) > 1:
        return False
    window = tuple(node.get("window", (-1, -1)))
    return not node.get("causal", False) and window == (-1, -1)


def _sizes(node: Node) -> tuple[Expr, Expr]:
    """The numbers of queries and keys."""
    q, k = node.inputs[:2]
    assert q is not None
    assert k is not None
    return (shape_of(q) or ())[2], (shape_of(k) or ())[2]


def _banded(node: Node, band: _Band, mask: Value | None) -> Node | None:
    """Attention with a band and what is left of the mask."""
    made = band.attributes(*_sizes(node))
    if made is None:
        return None
    inputs = node.inputs[:3] if mask is None else (*node.inputs[:3], mask)
    return remade(node, "attention", *inputs, **{**dict(node.attributes), **made})


# ------------------------------------------------------------------------------ known masks


def known_band(node: Node, scope: Scope) -> Replacement:
    """A mask of numbers that are the same for all sequences and heads."""
    known = scope.constant(node.inputs[3]) if _is_open(node) else None
    rows, keys = _sizes(node) if known is not None else (sym.ZERO, sym.ZERO)
    if known is None or not isinstance(rows, Const) or not isinstance(keys, Const):
        return None
    if known.ndim < 2 or known.shape[-2:] != (rows.value, keys.value):
        return None
    if known.size != known.shape[-1] * known.shape[-2]:
        return None
    seen = _seen(known.reshape(known.shape[-2:]))
    band = None if seen is None else _band_of(seen)
    made = None if band is None else _banded(node, band, None)
    return None if made is None else [made]


def _seen(mask: Array) -> Array | None:
    """Which keys a mask shows; None if it does more than that."""
    if mask.dtype == bool:
        return mask
    added = mask.astype(np.float64)
    seen = added == 0
    return seen if bool((added[~seen] <= HIDDEN_SCORE).all()) else None


def _band_of(seen: Array) -> _Band | None:
    """The band that shows these keys, at least one of each query."""
    if not seen.size or not bool(seen.any(-1).all()):
        return None
    rows, keys = seen.shape
    gap = np.arange(keys) - np.arange(rows)[:, None]
    low, high = int(gap[seen].min()), int(gap[seen].max())
    if not np.array_equal(seen, (gap >= low) & (gap <= high)):
        return None
    return _Band(
        None if low <= 1 - rows else sym.const(low), None if high >= keys - 1 else sym.const(high)
    )


# ------------------------------------------------------------------------------ computed masks


def computed_band(node: Node, scope: Scope) -> Replacement:
    """A mask that compares places."""
    mask = node.inputs[3] if _is_open(node) else None
    if mask is None or not all(map(_has_rank_four, node.inputs[:3])):
        return None
    conditions, is_added = _conditions(mask, scope)
    asked = _Asked.of(node, scope)
    bands = [asked.band(each) for each in conditions]
    found = [band for band in bands if band is not None]
    left = [each for each, band in zip(conditions, bands, strict=True) if band is None]
    band = _both(found)
    if not found or band is None:
        return None
    # A low number hides as minus infinity does where there is another key.
    if is_added and (left or not band.leaves_a_key(*_sizes(node))):
        return None
    if len(left) == len(conditions):
        return None
    nodes: list[Node] = []
    rest: Value | None = None
    for each in left:
        if rest is not None:
            nodes.append(scope.new("logical_and", rest, each, like=node))
            each = nodes[-1].output
        rest = each
    made = _banded(node, band, rest)
    return None if made is None else [*nodes, made]


def _has_rank_four(value: Value | None) -> bool:
    return value is not None and len(shape_of(value) or ()) == 4


def _conditions(mask: Value, scope: Scope) -> tuple[list[Value], bool]:
    """The conditions that must all hold for a key to be seen, and whether it is hidden by a number
    that is added."""
    is_added = False
    if not mask.tensor.dtype.is_bool:
        node = scope.producer(mask, "where")
        if node is None or node.inputs[0] is None:
            return [], True
        shown, low = scope.number(node.inputs[1]), scope.number(node.inputs[2])
        if shown != 0 or low is None or low > HIDDEN_SCORE:
            return [], True
        is_added = low != -np.inf
        mask = node.inputs[0]
    found, stack = [], [mask]
    while stack:
        value = stack.pop()
        node = scope.producer(value, "logical_and")
        if node is None:
            found.append(value)
        else:
            stack.extend(x for x in reversed(node.inputs) if x is not None)
    return found, is_added


@dataclass(frozen=True)
class _Asked:
    """Where a condition is asked for: at any sequence, head, query and key."""

    places: Places
    at: tuple[Var, Var, Var, Var]

    @staticmethod
    def of(node: Node, scope: Scope) -> _Asked:
        q, at = node.inputs[0], tuple(sym.var(name) for name in ("b", "h", "q", "k"))
        assert q is not None
        ctx, dims = Context(), ((shape_of(q) or ())[:2], _sizes(node))
        for var, dim in zip(at, (*dims[0], *dims[1]), strict=True):
            ctx = ctx.bind(var, 0, dim).assume(sym.le(1, dim))
        return _Asked(Places(scope, ctx), at)  # type: ignore[arg-type]  # four of them

    def band(self, cond: Value) -> _Band | None:
        """The band that a condition is."""
        shape = cond.tensor.shape
        if shape is None or len(shape) > len(self.at):
            return None
        aligned = self.at[len(self.at) - len(shape) :]
        index = [sym.ZERO if x is sym.ONE else v for v, x in zip(aligned, shape, strict=True)]
        found = self.places.element(cond, tuple(index))
        if found is None:
            return None
        bands = [self._band(part) for each in sym.conjuncts(found) for part in _apart(each)]
        return None if any(each is None for each in bands) else _both(bands)

    def _band(self, cond: Expr) -> _Band | None:
        """Of a comparison of the places of a key and a query."""
        if cond is sym.TRUE:
            return _Band(None, None)
        if not isinstance(cond, Lt | Le):
            return None
        gap = sym.sub(sym.sub(cond.b, cond.a), int(isinstance(cond, Lt)))  # >= 0
        found = sym.linear(gap, self.at)
        *_, query, key = self.at
        if found is None or set(found[0]) != {query, key}:
            return None
        slopes = [x.value if isinstance(x, Const) else 0 for x in (found[0][query], found[0][key])]
        rest = sym.simplify(found[1])
        if slopes == [1, -1]:
            return _Band(None, rest)
        return _Band(sym.simplify(sym.sub(0, rest)), None) if slopes == [-1, 1] else None


def _apart(cond: Expr) -> list[Expr]:
    """A comparison with a maximum or minimum as one with each: |x| <= n, max(x, -x) <= n."""
    if isinstance(cond, Lt | Le):
        made = sym.lt if isinstance(cond, Lt) else sym.le
        if isinstance(cond.a, Max):
            return [part for x in (cond.a.a, cond.a.b) for part in _apart(made(x, cond.b))]
        if isinstance(cond.b, Min):
            return [part for x in (cond.b.a, cond.b.b) for part in _apart(made(cond.a, x))]
    return [cond]


def _both(bands: Sequence[_Band | None]) -> _Band | None:
    """What several bands show together; None if that is not known."""
    lows = list(dict.fromkeys(x.low for x in bands if x is not None and x.low is not None))
    highs = list(dict.fromkeys(x.high for x in bands if x is not None and x.high is not None))
    low, high = (
        next((x for x in ends if all(sym.prove(is_inner(x, y)) for y in ends)), None)
        for ends, is_inner in ((lows, lambda x, y: sym.le(y, x)), (highs, sym.le))
    )
    if (lows and low is None) or (highs and high is None):
        return None
    return _Band(low, high)
