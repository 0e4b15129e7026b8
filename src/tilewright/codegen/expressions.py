"""How each node of an expression becomes instructions, given the values of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tilewright import sym
from tilewright.base.dtype import I32, INDEX, DType
from tilewright.base.errors import Unsupported
from tilewright.codegen.arith import Arithmetic
from tilewright.codegen.builder import FunctionText, Value, splat
from tilewright.codegen.calls import RULES
from tilewright.codegen.facts import first_lanes
from tilewright.codegen.index_ranges import fits
from tilewright.codegen.math import FORMULAS, expand_call
from tilewright.codegen.types import vector
from tilewright.sym import Const, Context, Expr
from tilewright.tensor.ir import Broadcast, Call, Ramp


class Computing(Protocol):
    """The emitter, as these rules see it."""

    b: FunctionText
    arith: Arithmetic
    ranges: Context | None

    def expr(self, root: Expr) -> Value:
        """Write an expression; its value, of an index in 64 bits."""

    def index(self, root: Expr) -> Value:
        """The same, where an index may have 32 bits."""

    def is_natural(self, expr: Expr) -> bool:
        """Whether an integer is certainly not below 0."""


Rule = Callable[[Computing, Any, tuple[Value, ...]], Value]


def _arithmetic(name: str) -> Rule:
    def rule(e: Computing, node: sym.Binary, args: tuple[Value, ...]) -> Value:
        of = node.dtype
        natural = (
            e.ranges is not None and of is INDEX and all(map(e.is_natural, (node.a, node.b, node)))
        )
        return e.arith.binary(name, args[0], args[1], of, natural=natural)

    return rule


def _minmax(name: str) -> Rule:
    return lambda e, node, args: e.arith.minmax(name, args[0], args[1], node.dtype)


def _compare(name: str) -> Rule:
    return lambda e, node, args: e.arith.compare(name, args[0], args[1], node.a.dtype)


def _order(name: str) -> Rule:
    """Comparisons of places: where only the first lanes pass, or only the last, count those."""
    compare = _compare(name)

    def rule(e: Computing, node: sym.Lt | sym.Le, args: tuple[Value, ...]) -> Value:
        found = first_lanes(node)
        if found is None:
            return compare(e, node, args)
        lanes = node.dtype.lanes
        inside = sym.maximum(sym.minimum(found[0], lanes), 0)
        number = e.index(inside)
        count = e.b.splat(e.arith.convert.cast(number, _width(INDEX, number), I32), lanes)
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        test = "icmp ult" if found[1] else "icmp uge"
        return e.b.compare(test, Value(count.type, f"<{numbers}>"), count)

    return rule


def _division(want: str) -> Rule:
    def rule(e: Computing, node: sym.Binary, args: tuple[Value, ...]) -> Value:
        a, by = args
        of = _width(node.dtype, a)
        positive = e.is_natural(node.a)
        number = node.b.value if isinstance(node.b, Broadcast) else node.b
        if isinstance(number, Const):
            return e.arith.divmod_const(want, a, int(number.value), of, positive)
        return e.arith.divmod(want, a, by, of, positive and e.is_natural(node.b))

    return rule


def _not(e: Computing, node: sym.Not, args: tuple[Value, ...]) -> Value:
    return e.b.op("xor", args[0], splat(args[0].type, "true"))


def _logical(name: str) -> Rule:
    return lambda e, node, args: e.b.op(name, *args)


def _select(e: Computing, node: sym.Select, args: tuple[Value, ...]) -> Value:
    return e.b.select(*args)


def _cast(e: Computing, node: sym.Cast, args: tuple[Value, ...]) -> Value:
    is_narrow = node.dtype is INDEX and e.ranges is not None and fits(node, e.ranges)
    have, want = _width(node.value.dtype, args[0]), I32 if is_narrow else node.dtype
    return e.arith.convert.cast(args[0], have, want)


def _width(of: DType, value: Value) -> DType:
    """The type of a value: an index may have 32 bits."""
    return I32 if of is INDEX and value.type == "i32" else of


def _ramp(e: Computing, node: Ramp, args: tuple[Value, ...]) -> Value:
    base, stride = args
    lanes = node.lanes
    type_ = vector(base.type, lanes)
    steps = ", ".join(f"{base.type} {lane}" for lane in range(lanes))
    scaled = e.b.op("mul", Value(type_, f"<{steps}>"), e.b.splat(stride, lanes))
    return e.b.op("add", e.b.splat(base, lanes), scaled)


def _broadcast(e: Computing, node: Broadcast, args: tuple[Value, ...]) -> Value:
    (value,) = args
    if value.lanes == 1:
        return e.b.splat(value, node.lanes)
    picks = [lane % value.lanes for lane in range(node.lanes)]
    return e.b.shuffle(value, picks)


def _call(e: Computing, node: Call, args: tuple[Value, ...]) -> Value:
    machine = e.arith.machine
    expanded = expand_call(node, tables=machine.looks_up, powers=machine.raises_two)
    if expanded is not node:
        return e.expr(expanded)
    rule = RULES.get(node.op)
    if rule is None:
        raise Unsupported(
            "TW3011",
            f"no code for the function {node.op}",
            help=f"known here: {', '.join(sorted((*RULES, *FORMULAS)))}",
        )
    of = node.args[0].dtype if node.args else node.dtype
    return rule(e.arith, of, node.dtype, args)


# Instructions of any width give what they do of these.
ANY_WIDTH = frozenset(
    {sym.Add, sym.Sub, sym.Mul, sym.FloorDiv, sym.FloorMod, sym.Min, sym.Max}
    | {sym.Eq, sym.Ne, sym.Lt, sym.Le, sym.Select, sym.Cast}
)
EXPRESSIONS: dict[type[Expr], Rule] = {
    sym.Add: _arithmetic("add"),
    sym.Sub: _arithmetic("sub"),
    sym.Mul: _arithmetic("mul"),
    sym.Div: _arithmetic("div"),
    sym.FloorDiv: _division("div"),
    sym.FloorMod: _division("mod"),
    sym.Min: _minmax("min"),
    sym.Max: _minmax("max"),
    sym.Eq: _compare("eq"),
    sym.Ne: _compare("ne"),
    sym.Lt: _order("lt"),
    sym.Le: _order("le"),
    sym.And: _logical("and"),
    sym.Or: _logical("or"),
    sym.Not: _not,
    sym.Select: _select,
    sym.Cast: _cast,
    Ramp: _ramp,
    Broadcast: _broadcast,
    Call: _call,
}
