"""Variables with a domain: axes of computations, reductions and threads."""

from __future__ import annotations

from typing import Any

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.base.intern import interned
from tilewright.sym import Expr, Var
from tilewright.te.source import clean_name, type_error, value_error
from tilewright.tensor.ir import REDUCE, SPATIAL, Range

THREAD_AXIS = "thread"


@interned
class IterVar(Var):
    """A variable with the domain start..stop, usable as an expression.

    Examples:
        >>> from tilewright import te
        >>> k = te.reduce_axis((0, 8), name="k")
        >>> k.kind, str(k.extent)
        ('reduce', '8')
    """

    start: Expr
    stop: Expr
    kind: str  # spatial, reduce, thread
    thread_tag: str

    @property
    def var(self) -> Var:
        return self

    @property
    def extent(self) -> Expr:
        return sym.simplify(sym.sub(self.stop, self.start))

    @property
    def dom(self) -> Range:
        """The domain as a range."""
        return Range(self.start, self.extent)


def make_axis(name: str, start: Expr, stop: Expr, kind: str, thread_tag: str = "") -> IterVar:
    """Make an axis, unique like every variable."""
    return IterVar(name, INDEX, sym.var(name).uid, start, stop, kind, thread_tag)


def spatial_axis(name: str, extent: Expr) -> IterVar:
    return make_axis(name, sym.ZERO, extent, SPATIAL)


def reduce_axis(dom: Any, name: str = "rv", thread_tag: str = "") -> IterVar:
    """Make an axis to reduce over, from `dom[0]` up to but not including `dom[1]`.

    Examples:
        >>> from tilewright import te
        >>> k = te.reduce_axis((0, 8), name="k")
        >>> print(k.extent)
        8
    """
    start, stop = _domain(dom, "reduce_axis")
    axis = make_axis(clean_name(name), start, stop, REDUCE, thread_tag)
    extent = axis.extent
    if isinstance(extent, sym.Const) and extent.value < 0:
        raise value_error(
            "TW2407", f"reduce axis {axis.name} runs from {start} to {stop}, backwards"
        )
    return axis


def thread_axis(dom: Any = None, tag: str = "", name: str = "") -> IterVar:
    """Make an axis bound to a hardware thread index, such as `te.thread_axis("threadIdx.x")`.

    Examples:
        >>> from tilewright import te
        >>> te.thread_axis("threadIdx.x").thread_tag
        'threadIdx.x'
    """
    if isinstance(dom, str):
        dom, tag = None, dom
    if not tag:
        raise value_error("TW2407", "a thread axis needs a tag such as threadIdx.x")
    start, stop = (sym.ZERO, sym.ZERO) if dom is None else _domain(dom, "thread_axis")
    return make_axis(clean_name(name or tag), start, stop, THREAD_AXIS, tag)


def _domain(dom: Any, what: str) -> tuple[Expr, Expr]:
    if isinstance(dom, Range):
        return dom.start, sym.add(dom.start, dom.extent)
    if not isinstance(dom, (tuple, list)) or len(dom) != 2:
        raise type_error(
            "TW2407", f"{what} takes a pair (start, stop), got {dom!r}", help="write (0, n)"
        )
    return bound(dom[0], what), bound(dom[1], what)


def bound(value: Any, what: str) -> Expr:
    """Check an integer expression of sizes and constants: a dimension, or an end of a domain."""
    if isinstance(value, (bool, float, str)) or value is None:
        raise type_error("TW2402", f"{what} takes integers and sizes, got {value!r}")
    expr = sym.as_expr(value)
    if expr.dtype is not INDEX:
        raise type_error(
            "TW2402",
            f"{what} takes integers and sizes, got {expr} of type {expr.dtype}",
            help=f'declare the size as te.var("{getattr(expr, "name", "n")}")',
        )
    for node in sym.walk(expr):
        if isinstance(node, Var) and not isinstance(node, sym.Size):
            raise type_error(
                "TW2402",
                f"{what} depends on the variable {node}",
                help="it may depend on sizes and constants only",
            )
        if not isinstance(node, _ARITHMETIC):
            raise type_error(
                "TW2402",
                f"{what} depends on {node}, which is computed at run time",
                help="it may depend on sizes and constants only",
            )
    return sym.simplify(expr)


_ARITHMETIC = (Var, sym.Const, sym.Binary, sym.Not, sym.Select, sym.Cast)
