"""Generates the Python code that carries out a program, with every check in it.

One function of the program becomes one Python function over flat NumPy arrays. Each distinct
expression gets a variable of its own, so that the code reads top to bottom; `source(fn)` shows it.

    for i in range(0, n):
        if not (0 <= i < n0_A): fail_bounds(...)
        t1 = A[i]
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX, DType
from tilewright.base.errors import Unsupported
from tilewright.base.text import Names
from tilewright.sym import ONE, TRUE, ZERO, Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.calls import CALLS
from tilewright.tensor.interp import values
from tilewright.tensor.interp.failures import Failures
from tilewright.tensor.interp.memory import Memory, next_stamp
from tilewright.tensor.interp.placement import accessed, homes
from tilewright.tensor.ir import Block, Buffer, Call, For, Function, Load, Stmt
from tilewright.tensor.visit import walk, written_buffers

_DEEPEST = 12  # Python refuses more than 20 nested loops: go on in a nested function


@dataclass(slots=True)
class _Scope:
    """A stretch of straight code: what is computed in it stays valid to its end."""

    pure: dict[Expr, str] = field(default_factory=dict)


@dataclass(slots=True)
class _OpenBlock:
    """A block around the statement being emitted."""

    block: Block
    point: tuple[str, ...]  # its iterators in the code
    bounds: dict[ir.Region, list[tuple[str, str]]] = field(default_factory=dict)
    own_loops: int = 0  # loops inside the block around the current statement


@dataclass(slots=True)
class _OpenLoop:
    """A parallel or vector loop around the statement being emitted, with its access logs."""

    loop: For
    name: str
    logged: dict[Buffer, str]


class Emitter:
    """Emits one function. `scopes` and the other stacks mirror the nesting of statements."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.failures = Failures(fn)
        self.lines: list[str] = []
        self.depth = 0
        self.names = Names()
        self.globals: dict[str, Any] = {
            "np": np,
            "Memory": Memory,
            "next_stamp": next_stamp,
            "convert": values.convert,
            **{
                f"fail_{name}": getattr(self.failures, name)
                for name in (
                    "bounds",
                    "uninitialised",
                    "race",
                    "region",
                    "domain",
                    "repeated",
                    "division",
                )
            },
        }
        self.constants: dict[object, str] = {}
        self.scopes = [_Scope()]
        self.now: dict[Expr, str] = {}  # values that hold for the current statement only
        self.impure: dict[Expr, bool] = {}
        self.variables: list[Var] = []  # of loops and lets around
        self.extents: dict[Var, Expr] = {}  # variables known to lie in 0..extent
        self.blocks: list[_OpenBlock] = []
        self.concurrent: list[_OpenLoop] = []
        self.mark: object = None
        self.nesting = 0
        self.intermediates: set[Buffer] = set()
        self.homes = homes(fn)
        self.stamped = {
            buffer
            for stmt in walk(fn.body)
            if isinstance(stmt, ir.Update)
            for buffer in stmt.buffers
        }

    # ------------------------------------------------------------------ the program

    def program(self) -> str:
        """The source of `def program(...)`: one parameter per parameter, then per size."""
        sizes = [size for size in ir.sizes_of(self.fn) if size not in self.fn.params]
        params = [
            ("m_" if isinstance(param, Buffer) else "") + self.name(param)
            for param in (*self.fn.params, *sizes)
        ]
        self.line("np_random = np.random.default_rng(seed)")
        for buffer in self.fn.buffers:
            self._unpack(buffer)
        self.stmt(self.fn.body)
        body = "\n".join(self.lines) or "pass"
        head = f"def program({', '.join([*params, 'seed'])}):\n"
        return head + "\n".join("    " + line for line in body.split("\n")) + "\n"

    # ------------------------------------------------------------------ writing

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self, header: str) -> Iterator[None]:
        """A suite with a scope of its own."""
        self.line(header)
        before = len(self.lines)
        self.depth += 1
        self.scopes.append(_Scope())
        now, self.now = self.now, dict(self.now)
        yield
        self.now = now
        self.scopes.pop()
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def name(self, thing: Var | Buffer) -> str:
        """The Python variable of a variable or buffer."""
        found = self.names.get(thing)
        if found is None:
            hint = "".join(c if c.isalnum() else "_" for c in thing.name)
            found = self.names(thing, f"{'b' if isinstance(thing, Buffer) else 'v'}_{hint}")
        return found

    def fresh(self, text: str) -> str:
        """A new variable holding the value of `text`."""
        name = self.names(object(), "t")
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: Any, key: object = None) -> str:
        """A global holding an object the code refers to."""
        key = id(value) if key is None else key
        if key not in self.constants:
            name = self.names(("constant", key), "k")
            self.constants[key] = name
            self.globals[name] = value
        return self.constants[key]

    def where(self) -> str:
        """The arguments every failure takes: the place and the values of the variables around."""
        variables = tuple(self.variables)
        number = self.failures.site(self.mark, variables)
        return f"{number}, {_tuple(self.name(var) for var in variables)}"

    # ------------------------------------------------------------------ expressions

    def expr(self, expr: Expr) -> str:
        """Emit what computes `expr`; the text of its value, a name or a literal."""
        if isinstance(expr, Const):
            if expr.dtype is INDEX or expr.dtype.is_bool:
                return repr(expr.value)
            return self.constant(values.constant(expr), expr)
        found = self.now.get(expr)
        if found is not None:
            return found
        if isinstance(expr, Var):
            return self.name(expr)
        for scope in reversed(self.scopes):
            if expr in scope.pure:
                return scope.pure[expr]
        emit = _EXPRS.get(type(expr))
        if emit is None:
            raise Unsupported("TW2312", f"cannot interpret {type(expr).__name__}: {expr}")
        text = emit(self, expr)
        name = text if text.isidentifier() else self.fresh(text)
        if self.is_impure(expr):
            self.now[expr] = name
        else:
            self.scopes[-1].pure[expr] = name
        return name

    def is_impure(self, expr: Expr) -> bool:
        """Whether the value depends on memory, or on a variable bound for one statement."""
        found = self.impure.get(expr)
        if found is None:
            found = isinstance(expr, (Load, ir.MaskedLoad, Call)) or any(
                self.is_impure(child) for child in expr.children()
            )
            self.impure[expr] = found
        return found

    def _infix(self, expr: sym.Binary) -> str:
        return f"{self.expr(expr.a)} {expr.symbol} {self.expr(expr.b)}"

    def _logical(self, expr: sym.Binary) -> str:
        # Both operands have been evaluated when this runs: `and` does not guard.
        return f"{self.expr(expr.a)} {expr.symbol} {self.expr(expr.b)}"

    def _not(self, expr: sym.Not) -> str:
        return f"not {self.expr(expr.a)}"

    def _integer_division(self, expr: sym.Binary) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        if not isinstance(expr.b, Const):
            self.line(f"if {b} == 0: fail_division({self.where()})")
        return f"{a} {expr.symbol} {b}"

    def _extremum(self, expr: sym.Binary) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        order = "<=" if isinstance(expr, sym.Min) else ">="
        nan = f" or {a} != {a}" if expr.dtype.is_float else ""
        return f"{a} if {a} {order} {b}{nan} else {b}"

    def _select(self, expr: sym.Select) -> str:
        cond = self.expr(expr.cond)
        if all(isinstance(arm, (Const, Var)) for arm in (expr.a, expr.b)):
            return f"{self.expr(expr.a)} if {cond} else {self.expr(expr.b)}"
        name = self.names(object(), "t")
        for header, arm in ((f"if {cond}:", expr.a), ("else:", expr.b)):
            with self.indented(header):
                self.line(f"{name} = {self.expr(arm)}")
        return name

    def _cast(self, expr: sym.Cast) -> str:
        value = self.expr(expr.value)
        source, target = expr.value.dtype, expr.dtype
        if source is target:
            return value
        return f"convert({value}, {self.dtype(source)}, {self.dtype(target)})"

    def dtype(self, of: DType) -> str:
        return self.constant(of, of)

    def _load(self, expr: Load) -> str:
        element = self.element(expr.buffer, expr.index, "load of")
        self._check_written(expr.buffer, expr.index, element)
        self._log_read(expr.buffer, expr.index, element)
        text = f"{self.name(expr.buffer)}[{element}]"
        return f"int({text})" if expr.dtype is INDEX else text

    def _call(self, expr: Call) -> str:
        spec = CALLS.get(expr.op)
        if spec is None or spec.numpy is None:
            raise Unsupported("TW2312", f"cannot interpret the call of {expr.op}")
        args = [self.expr(arg) for arg in expr.args]
        if expr.op in ("truncdiv", "truncmod"):
            self.line(f"if {args[1]} == 0: fail_division({self.where()})")
        text = f"{self.constant(spec.numpy, spec.name)}({', '.join(args)})"
        if spec.boolean:
            return text
        if expr.dtype is INDEX:
            return f"int({text})"
        return f"{self.constant(expr.dtype.numpy.type, ('type', expr.dtype))}({text})"

    # ------------------------------------------------------------------ accesses

    def element(self, buffer: Buffer, index: tuple[Expr, ...], what: str) -> str:
        """Emit the checks of an access; the text of the element's flat position."""
        name = self.name(buffer)
        texts = [self.expr(i) for i in index]
        tests = [
            f"0 <= {text} < n{axis}_{name}"
            for axis, (text, i, dim) in enumerate(zip(texts, index, buffer.shape, strict=True))
            if not (isinstance(i, Var) and self.extents.get(i) is dim)
        ]
        if tests:
            self.line(
                f"if not ({' and '.join(tests)}): fail_bounds({self.where()}, {what!r}, "
                f"m_{name}.buffer, {_tuple(texts)}, m_{name}.shape)"
            )
        self._check_regions(buffer, index, texts, what)
        position = texts[0] if texts else "0"
        for axis, text in enumerate(texts[1:], 1):
            position = f"({position}) * n{axis}_{name} + {text}"
        return position if position.isidentifier() or position == "0" else self.fresh(position)

    def _check_regions(
        self, buffer: Buffer, index: tuple[Expr, ...], texts: list[str], what: str
    ) -> None:
        """The access lies in a region that every block around declares."""
        for around in self.blocks:
            block = around.block
            regions = [
                region
                for region in (block.reads if what == "load of" else block.writes)
                if region.buffer is buffer
            ]
            if any(_is_exactly(region, index) for region in regions):
                continue
            inside = [
                " and ".join(
                    f"{low} <= {text} < {high}"
                    for (low, high), text in zip(
                        self._region_bounds(around, region), texts, strict=True
                    )
                )
                for region in regions
            ]
            test = " or ".join(f"({text or 'True'})" for text in inside) or "False"
            self.line(
                f"if not ({test}): fail_region({self.where()}, {what!r}, "
                f"m_{self.name(buffer)}.buffer, {_tuple(texts)}, {block.name!r})"
            )

    def _region_bounds(self, around: _OpenBlock, region: ir.Region) -> list[tuple[str, str]]:
        return [(self.expr(r.start), self.expr(sym.Add(r.start, r.extent))) for r in region.ranges]

    def _check_written(self, buffer: Buffer, index: tuple[Expr, ...], element: str) -> None:
        if buffer in self.intermediates:
            name = self.name(buffer)
            texts = _tuple(self.expr(i) for i in index)
            self.line(
                f"if not w_{name}[{element}]: "
                f"fail_uninitialised({self.where()}, m_{name}.buffer, {texts})"
            )

    def _log_read(self, buffer: Buffer, index: tuple[Expr, ...], element: str) -> None:
        for around in self.concurrent:
            log = around.logged.get(buffer)
            if log is None:
                continue
            me = around.name
            fail = self._race(around, buffer, index, "read", me)
            self.line(f"if w_{log}.get({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('written', w_{log}[{element}]))")
            self.line(f"if r_{log}.setdefault({element}, {me}) != {me}: q_{log}[{element}] = {me}")

    def _log_write(self, buffer: Buffer, index: tuple[Expr, ...], element: str) -> None:
        for around in self.concurrent:
            log = around.logged.get(buffer)
            if log is None:
                continue
            me = around.name
            fail = self._race(around, buffer, index, "written", me)
            self.line(f"if w_{log}.setdefault({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('written', w_{log}[{element}]))")
            self.line(f"if r_{log}.get({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('read', r_{log}[{element}]))")
            self.line(f"if {element} in q_{log}:")
            self.line(f"    {fail}, ('read', q_{log}[{element}]))")

    def _race(
        self, around: _OpenLoop, buffer: Buffer, index: tuple[Expr, ...], what: str, me: str
    ) -> str:
        texts = _tuple(self.expr(i) for i in index)
        loop = self.constant(around.loop.var)
        return (
            f"fail_race({self.where()}, {around.loop.kind!r}, {loop}, "
            f"m_{self.name(buffer)}.buffer, {texts}, ({what!r}, {me})"
        )

    # ------------------------------------------------------------------ statements

    def stmt(self, stmt: Stmt) -> None:
        for buffer in self.homes.get(stmt, ()):
            self.alloc(buffer)
        emit = _STMTS.get(type(stmt))
        if emit is None:
            raise Unsupported("TW2312", f"cannot interpret {type(stmt).__name__}", stmt.loc)
        outer, self.mark = self.mark, _mark(stmt)
        self.now = {}
        emit(self, stmt)
        self.now = {}
        self.mark = outer

    def alloc(self, buffer: Buffer) -> None:
        shape = _tuple(self.expr(dim) for dim in buffer.shape)
        stamps = ".with_stamps()" if buffer in self.stamped else ""
        self.line(f"m_{self.name(buffer)} = Memory({self.constant(buffer)}, {shape}){stamps}")
        self.intermediates.add(buffer)
        self._unpack(buffer)

    def _unpack(self, buffer: Buffer) -> None:
        name = self.name(buffer)
        self.line(f"{name} = m_{name}.data")
        if buffer in self.intermediates:
            self.line(f"w_{name} = m_{name}.written")
        if buffer in self.stamped:
            prefix = "" if buffer in self.intermediates else f"m_{name}.with_stamps(); "
            self.line(f"{prefix}s_{name} = m_{name}.stamps")
        if buffer.shape:
            dims = ", ".join(f"n{axis}_{name}" for axis in range(buffer.rank))
            self.line(f"{dims}, = m_{name}.shape")

    def _store(self, stmt: ir.Store) -> None:
        value = self.expr(stmt.value)
        element = self.element(stmt.buffer, stmt.index, "store to")
        self._log_write(stmt.buffer, stmt.index, element)
        self._put(stmt.buffer, element, value)
        if stmt.buffer in self.stamped:
            self.line(f"s_{self.name(stmt.buffer)}[{element}] = next_stamp()")

    def _put(self, buffer: Buffer, element: str, value: str) -> None:
        name = self.name(buffer)
        self.line(f"{name}[{element}] = {value}")
        if buffer in self.intermediates:
            self.line(f"w_{name}[{element}] = 1")

    def _update(self, stmt: ir.Update) -> None:
        reducer = stmt.reducer
        added = [self.expr(value) for value in stmt.values]
        elements = []
        for buffer in stmt.buffers:
            element = self.element(buffer, stmt.index, "store to")
            elements.append(element)
            self._check_written(buffer, stmt.index, element)
            self._log_read(buffer, stmt.index, element)
            self._log_write(buffer, stmt.index, element)
        self._check_repeated(stmt, elements[0])
        for lhs, buffer, element in zip(reducer.lhs, stmt.buffers, elements, strict=True):
            old = f"{self.name(buffer)}[{element}]"
            self.now[lhs] = self.fresh(f"int({old})" if lhs.dtype is INDEX else old)
        self.now.update(zip(reducer.rhs, added, strict=True))
        self.scopes.append(_Scope())  # the reducer's variables mean something else next time
        results = [self.expr(result) for result in reducer.result]
        self.scopes.pop()
        for buffer, element, result in zip(stmt.buffers, elements, results, strict=True):
            self._put(buffer, element, result)

    def _check_repeated(self, stmt: ir.Update, element: str) -> None:
        """An instance of a reduction adds once to a value between two stores to it."""
        if not self.blocks or self.blocks[-1].own_loops:
            return
        point: tuple[str, ...] = ()
        number = "0"
        for around in self.blocks:
            for it, text in zip(around.block.iters, around.point, strict=True):
                number = text if number == "0" else f"({number}) * {self.expr(it.extent)} + {text}"
                point = (*point, text)
        key = self.fresh(number)
        done = self.constant({}, ("done", stmt))
        name = self.name(stmt.buffers[0])
        index = _tuple(self.expr(i) for i in stmt.index)
        stamp = self.fresh(f"s_{name}[{element}]")
        self.line(
            f"if {done}.get({key}) == {stamp}: fail_repeated({self.where()}, m_{name}.buffer, "
            f"{index}, {self.blocks[-1].block.name!r}, {_tuple(point)})"
        )
        self.line(f"{done}[{key}] = {stamp}")

    def _seq(self, stmt: ir.Seq) -> None:
        for child in stmt.stmts:
            self.stmt(child)

    def _if(self, stmt: ir.If) -> None:
        cond = self.expr(stmt.cond)
        with self.indented(f"if {cond}:"):
            self.stmt(stmt.then)
        if stmt.otherwise is not None:
            with self.indented("else:"):
                self.stmt(stmt.otherwise)

    def _let(self, stmt: ir.Let) -> None:
        self.line(f"{self.name(stmt.var)} = {self.expr(stmt.value)}")
        shown = stmt.var.dtype is INDEX
        if shown:
            self.variables.append(stmt.var)
        self.scopes.append(_Scope())
        self.stmt(stmt.body)
        self.scopes.pop()
        if shown:
            self.variables.pop()

    def _alloc(self, stmt: ir.Alloc) -> None:
        self.alloc(stmt.buffer)
        self.stmt(stmt.body)

    def _for(self, loop: For) -> None:
        start, stop, name = self.expr(loop.start), self.expr(loop.stop), self.name(loop.var)
        domain = f"range({start}, {stop})"
        shared = loop.kind in (ir.PARALLEL, ir.VECTOR)
        if shared:
            self.concurrent.append(_OpenLoop(loop, name, self._open_logs(loop)))
            domain = f"(np_random.permutation({domain}).tolist())"
        if loop.start is ZERO:
            self.extents[loop.var] = loop.stop
        self.variables.append(loop.var)
        if self.blocks:
            self.blocks[-1].own_loops += 1
        self.nesting += 1
        with self.indented(f"for {name} in {domain}:"):
            if self.nesting % _DEEPEST == 0:
                function = self.names(object(), "deeper")
                with self.indented(f"def {function}():"):
                    self.stmt(loop.body)
                self.line(f"{function}()")
            else:
                self.stmt(loop.body)
        self.nesting -= 1
        if self.blocks:
            self.blocks[-1].own_loops -= 1
        self.variables.pop()
        if shared:
            self.concurrent.pop()

    def _open_logs(self, loop: For) -> dict[Buffer, str]:
        """Logs of who read and wrote what, for the buffers that iterations share and write."""
        private = {buffer for stmt in walk(loop.body) for buffer in self.homes.get(stmt, ())}
        private.update(s.buffer for s in walk(loop.body) if isinstance(s, ir.Alloc))
        touched = {buffer: None for stmt in walk(loop.body) for buffer in accessed(stmt)}
        written = written_buffers(loop.body)
        logged = {}
        for buffer in touched:
            if buffer in written and buffer not in private:
                log = logged[buffer] = self.names(object(), "log")
                self.line(f"w_{log}, r_{log}, q_{log} = {{}}, {{}}, {{}}")
        return logged

    def _block(self, block: Block) -> None:
        if block.predicate is TRUE:
            self._block_instance(block)
            return
        cond = self.expr(block.predicate)
        with self.indented(f"if {cond}:"):
            self._block_instance(block)

    def _block_instance(self, block: Block) -> None:
        point = []
        self.scopes.append(_Scope())
        for it, binding in zip(block.iters, block.bindings, strict=True):
            name, value = self.name(it.var), self.expr(binding)
            self.line(f"{name} = {value}")
            point.append(name)
            if not (isinstance(binding, Var) and self.extents.get(binding) is it.extent):
                extent = self.expr(it.extent)
                self.line(
                    f"if not 0 <= {name} < {extent}: fail_domain({self.where()}, "
                    f"{self.constant(it.var)}, {name}, {extent}, {block.name!r})"
                )
            self.extents[it.var] = it.extent
        self.blocks.append(_OpenBlock(block, tuple(point)))
        if block.init is not None:
            tests = [
                f"{name} == 0"
                for name, it in zip(point, block.iters, strict=True)
                if it.kind == ir.REDUCE
            ]
            with self.indented(f"if {' and '.join(tests) or 'True'}:"):
                self.stmt(block.init)
        self.stmt(block.body)
        self.blocks.pop()
        self.scopes.pop()


def _is_exactly(region: ir.Region, index: tuple[Expr, ...]) -> bool:
    return all(r.start is i and r.extent is ONE for r, i in zip(region.ranges, index, strict=True))


def _tuple(texts: Any) -> str:
    return "(" + "".join(f"{text}, " for text in texts) + ")"


def _mark(stmt: Stmt) -> object:
    """What the printer remembers the place of a statement by."""
    if isinstance(stmt, For):
        return stmt.var
    return stmt.name if isinstance(stmt, Block) else stmt


_EXPRS: dict[type[Expr], Callable[[Emitter, Any], str]] = {
    sym.Add: Emitter._infix,
    sym.Sub: Emitter._infix,
    sym.Mul: Emitter._infix,
    sym.Div: Emitter._infix,
    sym.Eq: Emitter._infix,
    sym.Ne: Emitter._infix,
    sym.Lt: Emitter._infix,
    sym.Le: Emitter._infix,
    sym.FloorDiv: Emitter._integer_division,
    sym.FloorMod: Emitter._integer_division,
    sym.Min: Emitter._extremum,
    sym.Max: Emitter._extremum,
    sym.And: Emitter._logical,
    sym.Or: Emitter._logical,
    sym.Not: Emitter._not,
    sym.Select: Emitter._select,
    sym.Cast: Emitter._cast,
    Load: Emitter._load,
    Call: Emitter._call,
}

_STMTS: dict[type[Stmt], Callable[[Emitter, Any], None]] = {
    ir.Store: Emitter._store,
    ir.Update: Emitter._update,
    ir.Seq: Emitter._seq,
    ir.If: Emitter._if,
    ir.Let: Emitter._let,
    ir.Alloc: Emitter._alloc,
    ir.For: Emitter._for,
    ir.Block: Emitter._block,
}
