"""Code generation for expressions. A scalar is a number, a wide value an array, see `lanes.py`.

Each operation becomes one assignment, operands first. Only the chosen arm of a select is evaluated,
and `and` and `or` short-circuit. Where a choice diverges between lanes, arms are evaluated under a
mask; what is uniform is evaluated if any active lane needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX, DType
from tilewright.base.errors import Unsupported
from tilewright.sym import Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.calls import CALLS
from tilewright.tensor.interp import values
from tilewright.tensor.interp.writer import Writer
from tilewright.tensor.ir import Call, Function, Load, MaskedLoad


class Exprs(Writer):
    """Emits expressions; memory is left to the classes built on it."""

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.impure: dict[Expr, bool] = {}
        self.wide: dict[Expr, bool] = {}
        self.plain: dict[Expr, bool] = {}
        self.lanes = "one"  # the variable holding the lanes that run
        self.mask = "None"  # the variable telling which of them take part
        self.globals.update(np=np, convert=values.convert, broadcast=values.broadcast)

    def expr(self, expr: Expr) -> str:
        """Emit what computes `expr`; the text of its value, a name or a literal."""
        if isinstance(expr, Const):
            if expr.dtype is INDEX or expr.dtype.is_bool:
                return repr(expr.value)
            return self.constant(values.constant(expr), expr)
        found = self.known(expr)
        if found is not None:
            return found
        if isinstance(expr, Var):
            return self.name(expr)
        emit = _EXPRS.get(type(expr))
        if emit is None:
            raise Unsupported("TW2312", f"cannot interpret {type(expr).__name__}: {expr}")
        text = emit(self, expr)
        level = self.level_of(expr)
        if level < self.here:
            name = self.invariant(text, level)
        else:
            name = text if text.isidentifier() else self.fresh(text)
        if self.is_impure(expr):
            self.now[expr] = name
        else:
            self.scopes[level].values[expr] = name
        return name

    def level_of(self, expr: Expr) -> int:
        """The outermost scope in which the code of an expression may stand."""
        if self.lanes != "one" or not self.is_plain(expr):
            return self.here
        return self.level(sym.free_vars(expr))

    def is_plain(self, expr: Expr) -> bool:
        """Whether it is arithmetic of indices that cannot fail, wherever it is evaluated."""
        found = self.plain.get(expr)
        if found is None:
            fits = expr.dtype is INDEX or isinstance(expr, (sym.Lt, sym.Le, sym.Eq, sym.Ne))
            if isinstance(expr, (sym.FloorDiv, sym.FloorMod)):
                fits = fits and isinstance(expr.b, Const)
            found = self.plain[expr] = (
                fits and isinstance(expr, _PLAIN) and all(map(self.is_plain, expr.children()))
            )
        return found

    def is_impure(self, expr: Expr) -> bool:
        """Whether the value depends on memory."""
        found = self.impure.get(expr)
        if found is None:
            found = isinstance(expr, (Load, MaskedLoad, Call)) or any(
                self.is_impure(child) for child in expr.children()
            )
            self.impure[expr] = found
        return found

    def can_fail(self, expr: Expr) -> bool:
        """Whether evaluating it may be an error."""
        return self.is_impure(expr) or any(
            isinstance(node, (sym.FloorDiv, sym.FloorMod)) for node in sym.walk(expr)
        )

    def is_wide(self, expr: Expr) -> bool:
        """Whether the value is an array: a short vector, or one that differs between lanes."""
        found = self.wide.get(expr)
        if found is None:
            found = self.is_wide_itself(expr) or any(self.is_wide(x) for x in expr.children())
            self.wide[expr] = found
        return found

    def is_wide_itself(self, expr: Expr) -> bool:
        return expr.dtype.is_vector

    @contextmanager
    def under(self, cond: str) -> Iterator[None]:
        """Expressions meanwhile are evaluated for the lanes where a wide condition holds."""
        outer = self.mask
        self.mask = self.fresh(f"{self.lanes}.narrow({outer}, {cond})", "m")
        with self.scope():
            yield
        self.mask = outer

    def check(self, ok: str, fail: str, *args: str, wide: bool) -> None:
        """Emit a check: where `ok` is false, call `fail`."""
        if wide:
            rest = ", ".join((self.where(), *args))
            self.line(f"{self.lanes}.require({ok}, {self.mask}, {fail}, {rest})")
        else:
            self.line(f"if not ({ok}): {fail}({', '.join((self.where(), *args))})")

    def dtype(self, of: DType) -> str:
        return self.constant(of, of)

    # ------------------------------------------------------------------ one kind each

    def _infix(self, expr: sym.Binary) -> str:
        return f"{self.expr(expr.a)} {expr.symbol} {self.expr(expr.b)}"

    def _logical(self, expr: sym.Binary) -> str:
        a = self.expr(expr.a)
        if self.can_fail(expr.b):
            return self._short_circuit(expr, a)
        b = self.expr(expr.b)
        if self.is_wide(expr):
            return f"np.logical_{expr.symbol}({a}, {b})"
        return f"{a} {expr.symbol} {b}"

    def _short_circuit(self, expr: sym.Binary, a: str) -> str:
        undecided = a if isinstance(expr, sym.And) else f"np.logical_not({a})"
        if self.is_wide(expr.a):
            with self.under(undecided):
                b = self.expr(expr.b)
            return f"np.logical_{expr.symbol}({a}, {b})"
        name = self.fresh(a)
        with self.indented(f"if {undecided}:"):
            self.line(f"{name} = {self.expr(expr.b)}")
        return name

    def _not(self, expr: sym.Not) -> str:
        a = self.expr(expr.a)
        return f"np.logical_not({a})" if self.is_wide(expr) else f"not {a}"

    def _integer_division(self, expr: sym.Binary) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        self._check_divisor(expr.b, b)
        if self.mask != "None" and not self.is_wide(expr):
            return f"{a} {expr.symbol} {b} if {b} else {a}"  # no lane may have needed it
        return f"{a} {expr.symbol} {b}"

    def _check_divisor(self, divisor: Expr, text: str) -> None:
        if not isinstance(divisor, Const):
            wide = self.is_wide(divisor) or self.mask != "None"
            self.check(f"{text} != 0", "fail_division", wide=wide)

    def _extremum(self, expr: sym.Binary) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        if self.is_wide(expr):
            function = "minimum" if isinstance(expr, sym.Min) else "maximum"
            return self._retyped(f"np.{function}({a}, {b})", expr)
        order = "<=" if isinstance(expr, sym.Min) else ">="
        nan = f" or {a} != {a}" if expr.dtype.is_float else ""
        return f"{a} if {a} {order} {b}{nan} else {b}"

    def _retyped(self, text: str, expr: Expr) -> str:
        """NumPy widens four-bit integers in some functions."""
        return (
            f"{text}.astype({self.constant(expr.dtype.numpy, ('numpy', expr.dtype))}, copy=False)"
        )

    def _select(self, expr: sym.Select) -> str:
        cond = self.expr(expr.cond)
        if self.is_wide(expr.cond):
            return self._wide_select(expr, cond)
        if all(isinstance(arm, (Const, Var)) for arm in (expr.a, expr.b)):
            return f"{self.expr(expr.a)} if {cond} else {self.expr(expr.b)}"
        name = self.fresh_name("t")
        for header, arm in ((f"if {cond}:", expr.a), ("else:", expr.b)):
            with self.indented(header):
                self.line(f"{name} = {self.expr(arm)}")
        return name

    def _wide_select(self, expr: sym.Select, cond: str) -> str:
        arms = []
        for arm, chosen in ((expr.a, cond), (expr.b, f"np.logical_not({cond})")):
            if self.can_fail(arm):
                with self.under(chosen):
                    arms.append(self.expr(arm))
            else:
                arms.append(self.expr(arm))
        return self._retyped(f"np.where({cond}, {arms[0]}, {arms[1]})", expr)

    def _cast(self, expr: sym.Cast) -> str:
        value = self.expr(expr.value)
        source, target = expr.value.dtype, expr.dtype
        if source is target:
            return value
        if not self.is_wide(expr):
            if target is INDEX and not source.is_float:
                return f"int({value})"
            plain = values.plain_conversion(source, target)
            if plain:
                return f"{self.constant(target.numpy.type, ('type', target))}({plain}({value}))"
        return f"convert({value}, {self.dtype(source)}, {self.dtype(target)})"

    def _ramp(self, expr: ir.Ramp) -> str:
        base, stride = self.expr(expr.base), self.expr(expr.stride)
        steps = np.arange(expr.lanes)[None, :].astype(expr.dtype.numpy)
        return f"{base} + {stride} * {self.constant(steps, ('steps', expr.dtype))}"

    def _broadcast(self, expr: ir.Broadcast) -> str:
        return f"broadcast({self.expr(expr.value)}, {expr.lanes})"

    def _call(self, expr: Call) -> str:
        spec = CALLS.get(expr.op)
        if spec is None or spec.numpy is None:
            raise Unsupported(
                "TW2312", f"cannot interpret a call of {expr.op} inside an expression"
            )
        args = [self.expr(arg) for arg in expr.args]
        if expr.op in ("truncdiv", "truncmod"):
            self._check_divisor(expr.args[1], args[1])
        text = f"{self.constant(spec.numpy, spec.name)}({', '.join(args)})"
        if spec.boolean:
            return text
        if self.is_wide(expr):
            return self._retyped(text, expr)
        if expr.dtype is INDEX:
            return f"int({text})"
        return f"{self.constant(expr.dtype.numpy.type, ('type', expr.dtype))}({text})"

    def _load(self, expr: Load) -> str:
        if self.mask == "None" or self.is_wide(expr):
            return self.load(expr, self.mask)
        return self._load_if(f"{self.mask}.any()", expr)

    def _masked_load(self, expr: MaskedLoad) -> str:
        mask = self.expr(expr.mask)
        load = Load(expr.buffer, expr.index)
        if self.is_wide(expr):
            return self.load(load, self.fresh(f"{self.lanes}.narrow({self.mask}, {mask})", "m"))
        return self._load_if(mask if self.mask == "None" else f"{mask} and {self.mask}.any()", load)

    def _load_if(self, cond: str, expr: Load) -> str:
        """Emit a load of one number that happens only if a condition holds; zero else."""
        name = self.fresh_name("t")
        with self.indented(f"if {cond}:"):
            outer, self.mask = self.mask, "None"
            self.line(f"{name} = {self.load(expr, self.mask)}")
            self.mask = outer
        self.line(f"else: {name} = {self.constant(values.number(0, expr.dtype))}")
        return name

    def load(self, expr: Load, mask: str) -> str:
        """Emit a load with its checks; the text of the value."""
        raise NotImplementedError


_PLAIN = (
    *(Const, Var, sym.Add, sym.Sub, sym.Mul, sym.FloorDiv, sym.FloorMod, sym.Min, sym.Max),
    *(sym.Lt, sym.Le, sym.Eq, sym.Ne),
)

_EXPRS: dict[type[Expr], Callable[[Exprs, Any], str]] = {
    sym.Add: Exprs._infix,
    sym.Sub: Exprs._infix,
    sym.Mul: Exprs._infix,
    sym.Div: Exprs._infix,
    sym.Eq: Exprs._infix,
    sym.Ne: Exprs._infix,
    sym.Lt: Exprs._infix,
    sym.Le: Exprs._infix,
    sym.FloorDiv: Exprs._integer_division,
    sym.FloorMod: Exprs._integer_division,
    sym.Min: Exprs._extremum,
    sym.Max: Exprs._extremum,
    sym.And: Exprs._logical,
    sym.Or: Exprs._logical,
    sym.Not: Exprs._not,
    sym.Select: Exprs._select,
    sym.Cast: Exprs._cast,
    Load: Exprs._load,
    MaskedLoad: Exprs._masked_load,
    Call: Exprs._call,
    ir.Ramp: Exprs._ramp,
    ir.Broadcast: Exprs._broadcast,
}
