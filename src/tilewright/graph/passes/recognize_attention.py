"""recognize_attention: softmax(q @ k' * scale + mask) @ v becomes one operator.

The scores of all queries and keys then need not pass through memory. Scales by a number, of the
scores or of either operand before it was moved, become the operator's, and so does a tanh that caps
them; what is added is its mask, scaled where the sum is, of several known ones their sum, and a
mask known to hide exactly the keys after each query is `causal`; of dynamic sizes, where it
compares places of keys with places of queries. A choice between scores and a number so low that it
counts for nothing is the sum with a mask. Heads that are copies of fewer heads share them.

Where a mask hides every key from a query with minus infinity, softmax gives NaN and attention 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F16
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Attribute, Module, Node, Value
from tilewright.graph.match import (
    Any,
    Apply,
    Array,
    Number,
    Replacement,
    Scope,
    remade,
    rewrite_matches,
    shape_of,
)
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Const, Expr

HIDDEN_SCORE = F16.min_finite  # added to scores, it leaves nothing of them

Shape = tuple[Expr, ...]


def recognize_attention(module: Module, ctx: PassContext) -> Module:
    """Before: %s = matmul(%q, %k); %p = softmax(%s); %y = matmul(%p, %v).

    After: %y = attention(%q, %k, %v).
    """
    return rewrite_matches(
        module, (attention, regrouped_attention, known_masks, shared_heads, scaled_operands)
    )


@dataclass(frozen=True)
class _Hidden:
    """Scores are this low where a condition does not hold; or, of `is_where`, where it does."""

    cond: Value
    low: float
    is_where: bool


@dataclass
class _Scores:
    """How scores come about, outermost step first."""

    q: Value
    kt: Value
    scale: float = 1.0
    softcap: float = 0.0  # they become softcap * tanh(score / softcap)
    mask: Value | None = None
    more: list[Value] = field(default_factory=list)  # masks
    times: float = 1.0  # what these are multiplied by before they are added
    hidden: _Hidden | None = None
    known: Array | None = None  # the sum of masks, in place of one


def attention(node: Node, scope: Scope) -> Replacement:
    """From the product with the values."""
    if node.op != "matmul" or len(node.inputs) != 2:
        return None
    weights, v = _without_guard(node.inputs[0], scope), node.inputs[1]
    found = scope.producer(weights, "softmax")
    if found is None or weights is None or v is None:
        return None
    rank = len(shape_of(weights) or ())
    if tuple(found["axes"]) != (rank - 1,):
        return None
    scores = _scores(found.inputs[0], scope) or _masked_again(found.inputs[0], scope)
    if scores is None or not _have_one_batch(scores.q, scores.kt, v):
        return None
    return _Made(node, scope).attention(scores, v)


def regrouped_attention(node: Node, scope: Scope) -> Replacement:
    """The same where matrices that stand along one axis are told apart by sequence and head on the
    way, for a mask or another."""
    weights, v = node.inputs if node.op == "matmul" and len(node.inputs) == 2 else (None, None)
    levels, found = list[tuple[int, ...]](), None
    masks: list[tuple[tuple[int, ...], Array]] = []
    while weights is not None and v is not None and scope.is_used_once(weights):
        shape, made = (
            _sizes(weights),
            scope.producer(weights, "reshape", "softmax", "add", "maximum"),
        )
        if shape is None:
            return None
        levels.append(shape)
        if made is None or (made.op == "softmax" and found is not None):
            break
        weights, before = made.inputs[0], shape
        if made.op == "softmax":
            found = made if tuple(made["axes"]) == (len(shape) - 1,) else None
        elif made.op == "reshape":
            before = _sizes(weights) or ()
        elif made.op == "maximum":  # of a number so low that it is never the greater one
            low = scope.number(made.inputs[1])
            if low is None or low > HIDDEN_SCORE:
                return None
        else:
            known = [_known_mask(each, scope) for each in made.inputs]
            unknown = [x for x, at in zip(made.inputs, known, strict=True) if at is None]
            if len(unknown) != 1 or not _same(unknown[0], made.output):
                return None
            masks += [(shape, each) for each in known if each is not None]
            weights = unknown[0]
        if before[-2:] != shape[-2:] or (found is None and made.op != "reshape"):
            return None
    scores = None if found is None else _scaled(weights, scope)
    apart = next((level[:2] for level in levels if len(level) == 4), None)
    if scores is None or apart is None or len({len(level) for level in levels}) == 1:
        return None
    sizes = [_sizes(x) or () for x in (scores.q, scores.kt, v)]
    if v is None or any(len(each) != 3 or each[0] != prod(apart) for each in sizes):
        return None  # one matrix for all of the others has nothing that reshapes could tell apart
    placed = [_placed(mask, level, apart) for level, mask in masks]
    if any(mask is None for mask in placed):
        return None
    told = [mask for mask in placed if mask is not None]
    return _Made(node, scope).regrouped(scores, v, apart, told) if _leave_keys(told) else None


def _known_mask(value: Value | None, scope: Scope) -> Array | None:
    """What is added to scores where that is known: numbers, or what is seen and what is not."""
    known = scope.constant(value)
    if known is not None or value is None:
        return known
    repeated, shape = scope.producer(value, "tile", "expand"), value.tensor.static_shape
    once = None if repeated is None else scope.constant(repeated.inputs[0])
    if repeated is not None and once is not None and shape is not None:
        again = np.tile(once, repeated["repeats"]) if repeated.op == "tile" else once
        return np.broadcast_to(again, shape)
    node = scope.producer(value, "where")
    seen = None if node is None else scope.constant(node.inputs[0])
    if node is None or seen is None or scope.number(node.inputs[1]) != 0:
        return None
    low = scope.number(node.inputs[2])
    hides = low is not None and low <= HIDDEN_SCORE and bool(seen.any(-1).all())
    return seen if hides and seen.shape == value.tensor.static_shape else None


def _placed(mask: Array, level: tuple[int, ...], apart: tuple[int, ...]) -> Array | None:
    """A mask of matrices along one axis, or two, as one of sequences and heads; None where they
    are told apart otherwise."""
    if len(level) > 3:
        return mask if level[:2] == apart and len(level) == 4 else None
    if mask.ndim < 2:
        return mask
    count = 1 if mask.ndim == 2 else mask.shape[0]
    return mask.reshape(*((1, 1) if count == 1 else apart), *mask.shape[-2:])


def _leave_keys(masks: list[Array]) -> bool:
    """Whether every query has a key that no mask hides: else sums of low numbers decide."""
    hides = [~mask if mask.dtype == bool else mask <= HIDDEN_SCORE for mask in masks]
    hidden = np.logical_or.reduce(np.broadcast_arrays(*hides, np.zeros(1, bool)))
    return not bool(hidden.all(-1).any())


GUARDED = Apply("where", Apply("isnan", Any("weights")), Number(0.0), Any("weights"))


def _without_guard(value: Value | None, scope: Scope) -> Value | None:
    """Weights that nothing else uses; 0 in place of NaN is what attention gives by itself."""
    found = scope.match(GUARDED, value)
    if found is not None and value is not None and scope.is_used_once(value):
        weights: Value = found["weights"]
        return weights if scope.uses[weights] == 2 else None
    return value if value is not None and scope.is_used_once(value) else None


def _scores(value: Value | None, scope: Scope) -> _Scores | None:
    """Follow scores back to the product of queries and keys."""
    inner, factor = _without_scale(value, scope)
    if inner is not value and scope.producer(inner, "add") is not None:
        found = _scores(inner, scope)
        if found is None or found.hidden is not None or found.softcap:
            return None
        found.scale, found.times = found.scale * factor, factor
        return found
    node = scope.producer(value, "add", "where", "mul", "div", "matmul")
    if node is None or value is None or not scope.is_used_once(value):
        return None
    if node.op == "matmul":
        return _operands(node, scope)
    if node.op == "where":
        cond, kept, other = node.inputs
        is_where = scope.number(kept) is not None
        kept, other = (other, kept) if is_where else (kept, other)
        low = scope.number(other)
        found = _scaled(kept, scope) or _added(kept, scope)
        if found is None or cond is None or low is None or low > HIDDEN_SCORE:
            return None
        found.hidden = _Hidden(cond, low, is_where)
        return found if _same(value, kept) else None
    return _added(value, scope) if node.op == "add" else _scaled(value, scope)


def _added(value: Value | None, scope: Scope) -> _Scores | None:
    """Scores to which masks are added."""
    node = scope.producer(value, "add")
    if node is None or value is None or not scope.is_used_once(value):
        return None
    for kept, mask in (node.inputs, node.inputs[::-1]):
        found = _scaled(kept, scope) or _added(kept, scope)
        if found is None or mask is None or not _same(value, kept):
            continue
        if scope.number(mask) != 0:
            found.more += [] if found.mask is None else [mask]
            found.mask = found.mask or mask
        return found
    return None


def _masked_again(value: Value | None, scope: Scope) -> _Scores | None:
    """Scores to which several known masks are added, some of them while the same matrices stand in
    another order of axes: a bias of each head, and what each window hides."""
    last, total = value, None
    while (node := scope.producer(value, "add", "reshape")) is not None:
        if value is None or not scope.is_used_once(value):
            return None
        if node.op == "reshape":
            before, after = (_sizes(each) for each in (node.inputs[0], value))
            if before is None or after is None or before[-2:] != after[-2:]:
                return None
            if total is not None:
                matrix = total.shape[-2:]
                total = np.broadcast_to(total, (*after[:-2], *matrix))
                total = total.reshape(*before[:-2], *matrix)
            value = node.inputs[0]
            continue
        for kept, mask in (node.inputs, node.inputs[::-1]):
            known = scope.constant(mask)
            if known is not None and _same(value, kept) and known.ndim >= 2:
                total = known if total is None else total + known
                value = kept
                break
        else:
            return None
    found = _scaled(value, scope)
    if found is None or total is None or not _same(value, last):
        return None
    found.known = np.ascontiguousarray(total)
    return found


def _sizes(value: Value | None) -> tuple[int, ...] | None:
    """A shape of two axes or more, all of them known."""
    shape = None if value is None else value.tensor.static_shape
    return shape if shape is not None and len(shape) >= 2 else None


def _scaled(value: Value | None, scope: Scope) -> _Scores | None:
    """A product of queries and keys, times numbers; or the tanh of one, times a number."""
    value, factor = _without_scale(value, scope)
    capped = scope.producer(value, "tanh")
    if capped is not None and value is not None and scope.is_used_once(value) and factor > 0:
        found = _multiplied(*_without_scale(capped.inputs[0], scope), scope)
        if found is not None:  # factor * tanh(score), and the score is divided by the factor first
            found.scale *= factor
            found.softcap = factor
        return found
    return _multiplied(value, factor, scope)


def _multiplied(value: Value | None, factor: float, scope: Scope) -> _Scores | None:
    """A product of queries and keys, times a number."""
    node = scope.producer(value, "matmul")
    if node is None or value is None or not scope.is_used_once(value):
        return None
    found = _operands(node, scope)
    if found is not None:
        found.scale *= factor
    return found


def _operands(node: Node, scope: Scope) -> _Scores | None:
    q, first = _without_scale(node.inputs[0], scope)
    kt, second = _without_scale(node.inputs[1], scope)
    return None if q is None or kt is None else _Scores(q, kt, first * second)


def _without_scale(value: Value | None, scope: Scope) -> tuple[Value | None, float]:
    """A value before it was multiplied by numbers, and their product."""
    factor = 1.0
    while True:
        node = scope.producer(value, "mul", "div")
        if node is None or value is None or not scope.is_used_once(value):
            return value, factor
        kept, other = node.inputs
        number = scope.number(other)
        if number is None and node.op == "mul":
            kept, other = other, kept
            number = scope.number(other)
        if number is None or number == 0 or kept is None or kept.type != value.type:
            return value, factor
        factor = factor * number if node.op == "mul" else factor / number
        value = kept


def _same(a: Value | None, b: Value | None) -> bool:
    return a is not None and b is not None and a.type == b.type


def _have_one_batch(*values: Value) -> bool:
    """Whether stacks of matrices, of two dimensions at most, need no broadcasting."""
    shapes = [shape_of(value) for value in values]
    first = shapes[0]
    if first is None or not 2 <= len(first) <= 4:
        return False
    return all(
        shape is not None
        and len(shape) == len(first)
        and all(x is y or sym.equal(x, y) for x, y in zip(shape[:-2], first[:-2], strict=True))
        for shape in shapes
    )


@dataclass
class _Made:
    """The nodes that stand for one product with values."""

    root: Node
    scope: Scope
    nodes: list[Node] = field(default_factory=list)

    def attention(self, scores: _Scores, v: Value) -> list[Node]:
        rank = len(shape_of(v) or ())
        keys = self._keys(scores.kt)
        q, k, v = (self._of_rank_four(value, rank) for value in (scores.q, keys, v))
        shared = _shared(k, v, self.root, self.scope)
        if shared:
            self.nodes += shared
            k, v = (node.output for node in shared)
        attributes: dict[str, Attribute] = {"scale": scores.scale}
        if scores.softcap:
            attributes["softcap"] = scores.softcap
        mask = self._mask(replace(scores, mask=self._sum(scores), more=[]), attributes)
        inputs = (q, k, v) if mask is None else (q, k, v, mask)
        if rank == 4:
            self.nodes.append(remade(self.root, "attention", *inputs, **attributes))
            return self.nodes
        made = make_node("attention", inputs, attributes, self.root.loc)
        out = remade(self.root, "reshape", made.output, shape=_items(self.root.output))
        self.nodes += [made, out]
        return self.nodes

    def regrouped(
        self, scores: _Scores, v: Value, apart: tuple[int, ...], masks: list[Array]
    ) -> list[Node]:
        """Attention of matrices that are along one axis, by sequence and head."""
        q, k, v = [
            self._add("reshape", x, shape=(*apart, *(_sizes(x) or ())[1:]))
            for x in (scores.q, self._keys(scores.kt), v)
        ]
        attributes: dict[str, Attribute] = {"scale": scores.scale}
        if scores.softcap:
            attributes["softcap"] = scores.softcap
        inputs, total = [q, k, v], None
        past = (_sizes(k) or ())[2] - (_sizes(q) or ())[2]
        for mask in map(_once, masks):
            square = mask.shape[-2:] == ((_sizes(q) or ())[2], (_sizes(k) or ())[2])
            if square and mask.size == mask[0, 0].size and past >= 0 and _hides_behind(mask, past):
                attributes["causal"], attributes["past"] = True, past
            else:
                low = scores.q.tensor.dtype.min_finite
                added = np.where(mask, 0, low) if mask.dtype == bool else mask
                total = added if total is None else total + added
        if total is not None:
            of = scores.q.tensor.dtype.numpy
            self.nodes.append(self.scope.new_constant(total.astype(of), "mask", self.root))
            inputs.append(self.nodes[-1].output)
        self.nodes.append(make_node("attention", inputs, attributes, self.root.loc))
        made = self.nodes[-1].output
        self.nodes.append(remade(self.root, "reshape", made, shape=_items(self.root.output)))
        return self.nodes

    def _add(
        self, op: str, *inputs: Value | None, hint: str = "", **attributes: Attribute
    ) -> Value:
        self.nodes.append(self.scope.new(op, *inputs, like=self.root, hint=hint, **attributes))
        return self.nodes[-1].output

    def _keys(self, kt: Value) -> Value:
        """The keys as rows, from the operand that has them as columns."""
        rank = len(shape_of(kt) or ())
        swap = (*range(rank - 2), rank - 1, rank - 2)
        node = self.scope.producer(kt, "transpose")
        if node is not None and tuple(node["perm"]) == swap and node.inputs[0] is not None:
            return node.inputs[0]
        return self._add("transpose", kt, perm=swap, hint=kt.name)

    def _of_rank_four(self, value: Value, rank: int) -> Value:
        if rank == 4:
            return value
        return self._add("reshape", value, shape=(*[1] * (4 - rank), *_items(value)))

    def _sum(self, scores: _Scores) -> Value | None:
        """All masks that are added to the scores, as one."""
        total = scores.mask
        for mask in scores.more:
            total = self._add("add", total, mask, hint="mask")
        if total is not None and scores.times != 1.0:
            times = np.array(scores.times, scores.q.tensor.dtype.numpy)
            self.nodes.append(self.scope.new_constant(times, "times", self.root))
            total = self._add("mul", total, self.nodes[-1].output, hint="mask")
        return total

    def _mask(self, scores: _Scores, attributes: dict[str, Attribute]) -> Value | None:
        """What is added to the scores, unless it is said by attributes."""
        known, shown, hidden = scores.known, None, scores.hidden
        if hidden is not None:
            shown = None if hidden.is_where else hidden.cond
            cond = self.scope.constant(hidden.cond)
            if cond is not None:
                known = np.where(cond != hidden.is_where, 0.0, hidden.low)
        elif scores.mask is not None:
            known = self.scope.constant(scores.mask)
            shown = _shown(scores.mask, self.scope)
        past: int | Expr | None = None if known is None else _causal(known, scores)
        if past is None:
            past = _past(shown, self.scope)
        if past is not None:
            attributes["causal"] = True
            attributes["past"] = past
            return None if hidden is None else scores.mask
        if scores.known is not None:
            self.nodes.append(self.scope.new_constant(scores.known, "mask", self.root))
            return self.nodes[-1].output
        if hidden is None:
            seen = _known_mask(scores.mask, self.scope)
            if seen is None or known is not None:
                return scores.mask
            self.nodes.append(self.scope.new_constant(seen, "mask", self.root))
            return self.nodes[-1].output
        return self._hidden(scores.q, hidden, scores.mask)

    def _hidden(self, like: Value, hidden: _Hidden, mask: Value | None) -> Value:
        """The mask, or 0, where scores are seen, else a number that hides: added to any score, the
        least one gives itself, so that a query without keys has equal weights, as by the choice."""
        of = like.tensor.dtype.numpy
        low = hidden.low if hidden.low == -np.inf else like.tensor.dtype.min_finite
        least = self.scope.new_constant(np.array(low, of), "hidden", self.root)
        self.nodes.append(least)
        if mask is None:
            self.nodes.append(self.scope.new_constant(np.zeros((), of), "zero", self.root))
            mask = self.nodes[-1].output
        choices = (least.output, mask) if hidden.is_where else (mask, least.output)
        return self._add("where", hidden.cond, *choices, hint="mask")


def _items(value: Value) -> tuple[int | Expr, ...]:
    return items_of(shape_of(value) or ())


def _causal(mask: Array, scores: _Scores) -> int | None:
    """How many keys precede the first query's own, if the mask hides those after each query.

    Every query sees a key then, so that a low number hides as well as minus infinity.
    """
    rows, columns = scores.q.tensor.shape[-2], scores.kt.tensor.shape[-1]  # type: ignore[index]
    if mask.ndim < 2 or mask.size != mask.shape[-1] * mask.shape[-2]:
        return None
    if not isinstance(rows, Const) or not isinstance(columns, Const):
        return None
    if mask.shape[-2:] != (rows.value, columns.value) or rows.value > columns.value:
        return None
    past = int(columns.value - rows.value)
    return past if _hides_behind(mask, past) else None


def _hides_behind(mask: Array, past: int) -> bool:
    """Whether a mask, added or of what is seen, hides exactly the keys after each query's own."""
    matrix = mask.reshape(mask.shape[-2:])
    seen = np.tri(matrix.shape[0], matrix.shape[1], past, dtype=bool)
    if matrix.dtype == bool:
        return np.array_equal(matrix, seen)
    added = matrix.astype(np.float64)
    return bool((added[seen] == 0).all()) and bool((added[~seen] <= HIDDEN_SCORE).all())


# ------------------------------------------------------------------------------ known masks


def known_masks(node: Node, scope: Scope) -> Replacement:
    """A mask that is known is said once for all sequences, heads or queries that have the same, and
    not at all if it hides nothing; one that hides the keys after each query is `causal`."""
    mask = node.inputs[3] if node.op == "attention" and len(node.inputs) > 3 else None
    known = scope.constant(mask)
    if known is None or mask is None or known.ndim < 2 or not known.size:
        return None
    once = _once(known)
    others = tuple(node.inputs[4:])
    if bool(once.all() if once.dtype == bool else not once.any()):
        return [replace(node, inputs=_without_last((*node.inputs[:3], None, *others)))]
    how = dict(node.attributes)
    window = tuple(node.get("window", (-1, -1)))
    rows, keys = [(shape_of(x) or ())[2] for x in node.inputs[:2] if x is not None]
    is_shown = len(node.outputs) > 1  # by scores, which attributes hide by minus infinity
    is_plain = not (is_shown or how.get("causal") or any(others)) and window == (-1, -1)
    if is_plain and isinstance(keys, Const):
        square = once.size == once.shape[-1] * once.shape[-2]
        whole = isinstance(rows, Const) and once.shape[-2:] == (rows.value, keys.value)
        past = once.shape[-1] - once.shape[-2]
        if square and whole and past >= 0 and _hides_behind(once, past):
            return [remade(node, "attention", *node.inputs[:3], **{**how, "causal": True,
                                                                   "past": past})]  # fmt: skip
    if once.shape == known.shape:
        return None
    stored = scope.new_constant(np.ascontiguousarray(once), mask.name, node)
    return [stored, replace(node, inputs=(*node.inputs[:3], stored.output, *others))]


def _once(mask: Array) -> Array:
    """What repeats along an axis, once."""
    for axis in range(mask.ndim):
        first = mask.take([0], axis)
        if mask.shape[axis] > 1 and np.array_equal(np.broadcast_to(first, mask.shape), mask):
            mask = first
    return mask


def _without_last(inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """Operands without those missing at the end."""
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


# ------------------------------------------------------------------------------ dynamic masks

VIEWS = ("reshape", "expand")
KEYS_FIRST, QUERIES_FIRST = ("less_equal", "less"), ("greater_equal", "greater")  # compared
STRICTLY = ("less", "greater")  # a query does not see the key of its own place


def _shown(mask: Value, scope: Scope) -> Value | None:
    """Where a mask is 0, if it is low everywhere else."""
    node = scope.producer(_unviewed(mask, scope, _keeps_matrix), "where")
    if node is None:
        return None
    cond, kept, other = node.inputs
    low = scope.number(other)
    return cond if scope.number(kept) == 0 and low is not None and low <= HIDDEN_SCORE else None


def _past(shown: Value | None, scope: Scope) -> Expr | None:
    """How many keys precede the first query's own, where places of keys are compared with places
    of queries. Every query sees a key then."""
    compared = _unviewed(shown, scope, _keeps_matrix)
    node = scope.producer(compared, *KEYS_FIRST, *QUERIES_FIRST)
    if node is None:
        return None
    places = [_places(value, scope) for value in node.inputs]
    keys, queries = places if node.op in KEYS_FIRST else reversed(places)
    if keys is None or queries is None or (keys[0], queries[0]) != (1, 2):
        return None
    past = sym.simplify(sym.sub(sym.sub(queries[1], keys[1]), int(node.op in STRICTLY)))
    return past if sym.prove(sym.le(0, past)) else None


def _places(value: Value | None, scope: Scope) -> tuple[int, Expr] | None:
    """Which axis numbers that follow each other run along, from the last, and the first of them."""
    node = scope.producer(_unviewed(value, scope, _has_same_axes), "range")
    if node is None or value is None or node.inputs or node.get("delta") != 1:
        return None
    if not node.output.tensor.dtype.is_int:
        return None
    shape = shape_of(value) or ()
    along = [len(shape) - at for at, dim in enumerate(shape) if dim is not ONE]
    return (along[0], sym.as_expr(node["start"])) if len(along) == 1 else None


def _unviewed(value: Value | None, scope: Scope, is_passed: Callable[[Node], bool]) -> Value | None:
    """A value before views of it that pass a test."""
    while value is not None:
        node = scope.producer(value, *VIEWS)
        if node is None or not is_passed(node):
            break
        value = node.inputs[0]
    return value


def _has_same_axes(view: Node) -> bool:
    """Whether a view adds or takes away axes of one element, and repeats nothing."""
    before, after = ([dim for dim in each if dim is not ONE] for each in _shapes(view))
    return len(before) == len(after) and all(x is y for x, y in zip(before, after, strict=True))


def _keeps_matrix(view: Node) -> bool:
    """Whether the last two axes stay what they are: other axes of as many elements may come."""
    before, after = (each[-2:] for each in _shapes(view))
    if min(len(before), len(after)) < 2 or before[0] is not after[0] or before[1] is not after[1]:
        return False
    return view.op == "expand" or _has_same_axes(view)


def _shapes(view: Node) -> tuple[Shape, Shape]:
    """Before and after a view."""
    before = None if view.inputs[0] is None else shape_of(view.inputs[0])
    return before or (), shape_of(view.output) or ()


# ------------------------------------------------------------------------------ scaled operands


def scaled_operands(node: Node, scope: Scope) -> Replacement:
    """Queries or keys that were multiplied by a number, then moved at most, are not multiplied."""
    scale = node.get("scale") if node.op == "attention" else None
    if scale is None:
        return None
    nodes: list[Node] = []
    inputs = list(node.inputs)
    for at, operand in enumerate(inputs[:2]):
        moved, moves = _before_moves(operand, scope)
        value, factor = _without_scale(moved, scope)
        if value is moved:
            continue
        for each in reversed(moves):
            rest = (value, *each.inputs[1:])
            nodes.append(make_node(each.op, rest, dict(each.attributes), each.loc))
            value = nodes[-1].output
        inputs[at], scale = value, scale * factor
    if inputs == list(node.inputs):
        return None
    return *nodes, remade(node, "attention", *inputs, **{**dict(node.attributes), "scale": scale})


def _before_moves(value: Value | None, scope: Scope) -> tuple[Value | None, list[Node]]:
    """A value before nodes that only move it, and these, if nothing else uses what they give."""
    moves: list[Node] = []
    while value is not None and scope.uses.get(value, 0) <= 1:  # 0: it has just been made
        node = scope.producer(value, "reshape", "transpose", "slice")
        if node is None:
            break
        moves.append(node)
        value = node.inputs[0]
    return value, moves


# ------------------------------------------------------------------------------------ shared heads


def shared_heads(node: Node, scope: Scope) -> Replacement:
    """Keys and values of which each head is repeated are given once."""
    if node.op != "attention" or len(node.inputs) < 3:
        return None
    made = _shared(node.inputs[1], node.inputs[2], node, scope)
    if not made:
        return None
    shared = [each.output for each in made]
    return (*made, replace(node, inputs=(node.inputs[0], *shared, *node.inputs[3:])))


def _shared(k: Value | None, v: Value | None, like: Node, scope: Scope) -> list[Node]:
    """Keys and values before their heads were repeated, if those of both were."""
    nodes: list[Node] = []
    for value in (k, v):
        source = _unrepeated(value, scope)
        if source is None:
            return []
        items = items_of(source[1])
        nodes.append(scope.new("reshape", source[0], like=like, shape=items))
    return nodes


def _unrepeated(value: Value | None, scope: Scope) -> tuple[Value, Shape] | None:
    """What [b, h, 1, t, d] repeated along the third axis and seen as [b, h * r, t, d] was."""
    merged = scope.producer(value, "reshape")
    repeated = None if merged is None else scope.producer(merged.inputs[0], "expand")
    if merged is None or repeated is None or repeated.inputs[0] is None:
        return None
    source, full = shape_of(repeated.inputs[0]), shape_of(repeated.output)
    out = shape_of(merged.output)
    if source is None or full is None or out is None or len(source) != 5 or len(full) != 5:
        return None
    if len(out) != 4 or source[2] is not ONE:
        return None
    kept = (*source[:2], *source[3:])
    if any(x is not y for x, y in zip(source[:2] + source[3:], full[:2] + full[3:], strict=True)):
        return None
    if any(x is not y for x, y in zip((full[0], *full[3:]), (out[0], *out[2:]), strict=True)):
        return None
    return repeated.inputs[0], kept
