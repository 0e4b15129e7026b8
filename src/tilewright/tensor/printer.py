"""Tensor functions as text; `parser.py` reads it back. Grammar: `docs/internals/tensor.md`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tilewright.base.text import Names, Writer
from tilewright.sym import ONE, TRUE, Size, Var
from tilewright.sym.text import FORMATTERS, ExprPrinter
from tilewright.tensor import ir
from tilewright.tensor.calls import CALLS
from tilewright.tensor.ir import Buffer, Function, Region, Stmt
from tilewright.tensor.parameters import reference
from tilewright.tensor.reducers import is_builtin
from tilewright.tensor.visit import walk

Span = tuple[int, int, int]  # line (1-based), column, width


class Printer:
    """Writes one function; afterwards `spans` tells where loops and blocks stand."""

    def __init__(self, *, canonical: bool = False) -> None:
        self.names = Names()
        self.canonical = canonical
        self.out = Writer()
        self.expr = ExprPrinter(self.names)
        self._reducers: dict[ir.Reducer, str] = {}

    def function(self, fn: Function) -> str:
        self._name_all(fn)
        params = ", ".join(self._param(param) for param in fn.params)
        self.out.line(f"func @{fn.name}({params}) stage {fn.stage} {{")
        with self.out.indented():
            for key, value in fn.attrs:
                self.out.line(f"attr {key} = {format_value(value)}")
            for cond in fn.requires:
                self.out.line(f"require {self.expr(cond)}")
            self._declare_reducers(fn)
            for buffer in fn.allocs:
                self.out.line(f"alloc {self._declare(buffer)}", mark=buffer)
            self.stmt(fn.body)
        self.out.line("}")
        return self.out.text()

    def _name_all(self, fn: Function) -> None:
        """Reserve names in a fixed order; a canonical text numbers everything."""
        for param in fn.params:
            shape = param.shape if isinstance(param, Buffer) else ()
            for dim in shape:
                if isinstance(dim, Size):
                    self._name(dim)
            self._name(param)
        if self.canonical:
            for buffer in fn.allocs:
                self._name(buffer)
            for stmt in walk(fn.body):
                if isinstance(stmt, (ir.For, ir.Let)):
                    self._name(stmt.var)
                elif isinstance(stmt, ir.Block):
                    for it in stmt.iters:
                        self._name(it.var)
                elif isinstance(stmt, ir.Alloc):
                    self._name(stmt.buffer)

    def _name(self, thing: Var | Buffer) -> str:
        hint = "v" if self.canonical else thing.name
        return self.names(thing, hint)

    def _param(self, param: Buffer | Var) -> str:
        if isinstance(param, Var):
            return f"{self.expr.name(param)}: {param.dtype}"
        return self._declare(param)

    def _declare(self, buffer: Buffer) -> str:
        dims = ", ".join(self.expr(dim) for dim in buffer.shape)
        text = f"%{self._name(buffer)}: {buffer.dtype}[{dims}]"
        if buffer.scope != "global":
            text += f" in {buffer.scope}"
        for axis, factor, offset in buffer.align:
            text += f" align({axis}, {factor}, {offset})"
        return text

    def _declare_reducers(self, fn: Function) -> None:
        for stmt in walk(fn.body):
            if isinstance(stmt, ir.Update) and stmt.reducer not in self._reducers:
                reducer = stmt.reducer
                if is_builtin(reducer):
                    self._reducers[reducer] = reducer.name
                    continue
                name = self._reducers[reducer] = self.names(reducer, reducer.name)
                variables = ", ".join(
                    f"%{self._name(v)}: {v.dtype}" for v in (*reducer.lhs, *reducer.rhs)
                )
                result = ", ".join(self.expr(x) for x in reducer.result)
                identity = ", ".join(self.expr(x) for x in reducer.identity)
                self.out.line(f"reducer {name}({variables}) = ({result}) identity ({identity})")

    # ------------------------------------------------------------------ statements

    def stmt(self, stmt: Stmt) -> None:
        _STMTS[type(stmt)](self, stmt)

    def _body(
        self, stmt: Stmt, header: str, mark: object = None, at: int = 0, width: int = 0
    ) -> None:
        self.out.line(f"{header} {{", mark, at, width)
        with self.out.indented():
            self.stmt(stmt)
        self.out.line("}")

    def _for(self, loop: ir.For) -> None:
        name = f"%{self._name(loop.var)}"
        kind = {ir.SERIAL: "", ir.THREAD: f"thread({loop.thread}) "}.get(loop.kind, loop.kind + " ")
        notes = ", ".join(f"{k} = {format_value(v)}" for k, v in loop.annotations)
        notes = f" [{notes}]" if notes else ""
        header = f"for {name} in {kind}{self.expr(loop.start)}..{self.expr(loop.stop)}{notes}"
        self._body(loop.body, header, loop.var, 4, len(name))

    def _block(self, block: ir.Block) -> None:
        iters = ", ".join(
            f"%{self._name(it.var)}: {it.kind} {self.expr(it.extent)} = {self.expr(value)}"
            for it, value in zip(block.iters, block.bindings, strict=True)
        )
        self.out.line(f"block @{block.name}({iters}) {{", block.name, 6, len(block.name) + 1)
        with self.out.indented():
            if block.predicate is not TRUE:
                self.out.line(f"where {self.expr(block.predicate)}")
            for word, regions in (("reads", block.reads), ("writes", block.writes)):
                if regions:
                    self.out.line(f"{word} {', '.join(self.region(r) for r in regions)}")
            for key, value in block.annotations:
                self.out.line(f"annotate {key} = {format_value(value)}")
            if block.init is not None:
                self._body(block.init, "init")
            self.stmt(block.body)
        self.out.line("}")

    def _store(self, store: ir.Store) -> None:
        text = f"{self.access(store.buffer, store.index)} = {self.expr(store.value, typed=True)}"
        if store.mask is not None:
            text += f" where {self.expr(store.mask)}"
        self.out.line(text, store)

    def _update(self, update: ir.Update) -> None:
        targets = [self.access(buffer, update.index) for buffer in update.buffers]
        values = [self.expr(value, typed=True) for value in update.values]
        left, right = ", ".join(targets), ", ".join(values)
        if len(targets) > 1:
            left, right = f"({left})", f"({right})"
        self.out.line(f"{left} {self._reducers[update.reducer]}= {right}", update)

    def _eval(self, stmt: ir.Eval) -> None:
        self.out.line(f"eval {self.expr(stmt.value)}", stmt)

    def _tensor_call(self, stmt: ir.TensorCall) -> None:
        regions = ", ".join(self.region(region) for region in stmt.regions)
        intrin = reference(stmt.intrin, stmt.arguments)
        self.out.line(f"call {intrin}.{stmt.phase}({regions})", stmt)

    def _extern_call(self, stmt: ir.ExternCall) -> None:
        inputs, outputs = stmt.regions[: -stmt.outputs], stmt.regions[-stmt.outputs :]
        left = ", ".join(self.region(region) for region in inputs)
        right = ", ".join(self.region(region) for region in outputs)
        self.out.line(f"extern {stmt.symbol}({left}) -> ({right})", stmt)

    def _seq(self, stmt: ir.Seq) -> None:
        for index, child in enumerate(stmt.stmts):
            if isinstance(child, (ir.Let, ir.Alloc)) and index + 1 < len(stmt.stmts):
                self.out.line("{")  # keeps what follows outside its scope
                with self.out.indented():
                    self.stmt(child)
                self.out.line("}")
            else:
                self.stmt(child)

    def _if(self, stmt: ir.If) -> None:
        self.out.line(f"if {self.expr(stmt.cond)} {{", stmt)
        with self.out.indented():
            self.stmt(stmt.then)
        if stmt.otherwise is not None:
            self.out.line("} else {")
            with self.out.indented():
                self.stmt(stmt.otherwise)
        self.out.line("}")

    def _let(self, stmt: ir.Let) -> None:
        name = f"%{self._name(stmt.var)}"
        value = self.expr(stmt.value, typed=True)
        self.out.line(f"let {name}: {stmt.var.dtype} = {value}", stmt)
        self.stmt(stmt.body)

    def _alloc(self, stmt: ir.Alloc) -> None:
        self.out.line(f"alloc {self._declare(stmt.buffer)}", stmt.buffer)
        self.stmt(stmt.body)

    # ------------------------------------------------------------------ pieces

    def access(self, buffer: Buffer, index: tuple[Any, ...]) -> str:
        return f"%{self._name(buffer)}[{', '.join(self.expr(i) for i in index)}]"

    def region(self, region: Region) -> str:
        parts = []
        for r in region.ranges:
            start = self.expr(r.start)
            parts.append(start if r.extent is ONE else f"{start} +: {self.expr(r.extent)}")
        return f"%{self._name(region.buffer)}[{', '.join(parts)}]"


_STMTS: dict[type[Stmt], Callable[[Printer, Any], None]] = {
    ir.For: Printer._for,
    ir.Block: Printer._block,
    ir.Store: Printer._store,
    ir.Update: Printer._update,
    ir.Eval: Printer._eval,
    ir.TensorCall: Printer._tensor_call,
    ir.ExternCall: Printer._extern_call,
    ir.Seq: Printer._seq,
    ir.If: Printer._if,
    ir.Let: Printer._let,
    ir.Alloc: Printer._alloc,
}


def _access(buffer: Buffer, index: tuple[Any, ...], printer: ExprPrinter) -> str:
    name = printer.names(buffer, buffer.name) if printer.names is not None else buffer.name
    return f"%{name}[{', '.join(printer(i) for i in index)}]"


def _format_call(expr: ir.Call, printer: ExprPrinter) -> str:
    suffix = "" if expr.op in CALLS else f":{expr.dtype}"
    return f"{expr.op}{suffix}({', '.join(printer(arg) for arg in expr.args)})"


FORMATTERS.update(
    {
        ir.Load: lambda x, p: _access(x.buffer, x.index, p),
        ir.MaskedLoad: lambda x, p: f"masked({_access(x.buffer, x.index, p)}, {p(x.mask)})",
        ir.Address: lambda x, p: f"address({_access(x.buffer, x.index, p)})",
        ir.Call: _format_call,
        ir.Ramp: lambda x, p: f"ramp({p(x.base)}, {p(x.stride)}, {x.lanes})",
        ir.Broadcast: lambda x, p: f"broadcast({p(x.value)}, {x.lanes})",
    }
)


def format_value(value: ir.Value) -> str:
    """An annotation's value: numbers, strings in quotes, nested tuples in parentheses."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())  # always one line
    if isinstance(value, tuple):
        return "(" + "".join(f"{format_value(item)}, " for item in value).rstrip() + ")"
    return repr(value)


def format_function(fn: Function) -> str:
    """The text of a function.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> print(tensor.format_function(fn), end="")
        func @f(%x: f32[4]) stage scheduled {
          for %i in 0..4 {
            %x[%i] = 1.0
          }
        }
    """
    return Printer().function(fn)


def format_with_spans(fn: Function) -> tuple[str, dict[object, Span]]:
    """The text, and where each loop (by variable) and block (by name) stands in it."""
    printer = Printer()
    text = printer.function(fn)
    return text, printer.out.spans


def canonical_text(fn: Function) -> str:
    """A text equal for exactly the functions of equal structure."""
    return Printer(canonical=True).function(fn)


def _equal(self: Function, other: object) -> bool:
    if self is other:
        return True
    if not isinstance(other, Function):
        return False
    return canonical_text(self) == canonical_text(other)


Function.__str__ = format_function  # type: ignore[method-assign, assignment]  # see ir.py
Function.__eq__ = _equal  # type: ignore[method-assign, assignment]  # see ir.py
