"""Reads the text of a tensor function back: `parse(str(fn)) == fn`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from tilewright.base.dtype import BOOL, F32, INDEX, DType
from tilewright.base.loc import Loc
from tilewright.base.text import Token, Tokens
from tilewright.sym import ONE, TRUE, Expr, Size, Var, size, var
from tilewright.sym.text import ExprParser
from tilewright.tensor import ir
from tilewright.tensor.calls import CALLS, result_type
from tilewright.tensor.intrin import PHASES
from tilewright.tensor.ir import Buffer, Function, Range, Region, Stmt
from tilewright.tensor.parameters import Arguments, parse_arguments, reference
from tilewright.tensor.reducers import NAMES, builtin
from tilewright.tensor.scopes import memory_of

T = TypeVar("T")


def parse(text: str, path: str = "<text>") -> Function:
    """The one function written in `text`.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> fn.stage
        'scheduled'
    """
    tokens = Tokens(text, path)
    fn = Parser(tokens).function()
    if tokens.current.kind != "end":
        tokens.fail("expected the end of the text")
    return fn


def parse_all(text: str, path: str = "<text>") -> list[Function]:
    """All functions written in `text`, in order.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage flat { %x[0] = 1.0 }"
        >>> [fn.name for fn in tensor.parse_all(text + text.replace("@f", "@g"))]
        ['f', 'g']
    """
    tokens = Tokens(text, path)
    functions = []
    while tokens.current.kind != "end":
        functions.append(Parser(tokens).function())
    return functions


class Parser(ExprParser):
    """A recursive-descent parser over one function's scope."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens, {}, {})
        self.buffers: dict[str, Buffer] = {}
        self.reducers: dict[str, ir.Reducer] = {}
        self.stage = ir.SCHEDULED
        self.in_header = False

    # ------------------------------------------------------------------ functions

    def function(self) -> Function:
        tokens = self.tokens
        tokens.expect("func")
        loc = tokens.location()
        name = tokens.expect_kind("global", "a function name").text[1:]
        params: list[Buffer | Var] = []
        tokens.expect("(")
        self._find_sizes()
        self.in_header = True
        while not tokens.at(")"):
            params.append(self._param())
            if not tokens.accept(","):
                break
        self.in_header = False
        tokens.expect(")")
        tokens.expect("stage")
        word = tokens.expect_kind("name", "a stage")
        if word.text not in ir.STAGES:
            tokens.fail(f"unknown stage {word.text}, expected {', '.join(ir.STAGES)}", word)
        self.stage = word.text
        tokens.expect("{")
        attrs: list[tuple[str, ir.Value]] = []
        requires: list[Expr] = []
        allocs: list[Buffer] = []
        while True:
            if tokens.accept("attr"):
                attrs.append(self._setting())
            elif tokens.accept("require"):
                requires.append(self.expr(BOOL))
            elif tokens.at("reducer"):
                self._reducer()
            elif self.stage == ir.SCHEDULED and tokens.accept("alloc"):
                allocs.append(self._declaration())
            else:
                break
        body = self._stmts()
        return Function(
            name,
            tuple(params),
            body,
            tuple(allocs),
            tuple(requires),
            self.stage,
            tuple(attrs),
            loc,
        )

    def _param(self) -> Buffer | Var:
        if self.tokens.current.kind == "name":  # a size passed as a scalar
            token = self.tokens.next()
            self.tokens.expect(":")
            self.dtype()
            return self._size(token.text)
        if self.tokens.peek(3).text == "[":
            return self._declaration()
        token = self.tokens.expect_kind("local", "a parameter")
        self.tokens.expect(":")
        return self._bind(token, self.dtype())

    def _declaration(self) -> Buffer:
        token = self.tokens.expect_kind("local", "a buffer name")
        self._check_new(token)
        self.tokens.expect(":")
        of = self.dtype()
        shape = tuple(self._list("[", "]", self._dim))
        scope = "global"
        if self.tokens.accept("in"):
            scope = self._scope()
        align = []
        while self.tokens.accept("align"):
            numbers = self._list("(", ")", self._int)
            align.append((numbers[0], numbers[1], numbers[2]))
        buffer = Buffer(token.text[1:], shape, of, scope, tuple(align))
        self.buffers[buffer.name] = buffer
        return buffer

    def _scope(self) -> str:
        loc = self.tokens.location()
        name = self.tokens.expect_kind("name", "a memory scope").text
        return memory_of(reference(name, parse_arguments(self.tokens)), loc).reference

    def _find_sizes(self) -> None:
        """Sizes of the header, which may be used before the parameter that gives them."""
        brackets = parens = ahead = 0
        before = "("
        while parens >= 0 and self.tokens.peek(ahead).kind != "end":
            token, after = self.tokens.peek(ahead), self.tokens.peek(ahead + 1).text
            brackets += (token.text == "[") - (token.text == "]")
            parens += (token.text == "(") - (token.text == ")")
            alone = before in ("[", ",") and after in (",", "]") if brackets else after == ":"
            if token.kind == "name" and not parens and alone:
                self._size(token.text)
            before = token.text
            ahead += 1

    def _dim(self) -> Expr:
        token = self.tokens.current
        if self.in_header and token.kind == "name" and self.tokens.peek().text in (",", "]"):
            self.tokens.next()
            return self._size(token.text)
        return self.expr()

    def _size(self, name: str) -> Size:
        if name not in self.sizes:
            self.sizes[name] = size(name)
        return self.sizes[name]

    def _reducer(self) -> None:
        tokens = self.tokens
        tokens.expect("reducer")
        token = tokens.expect_kind("name", "a reducer name")
        outer = dict(self.scope)
        variables = self._list("(", ")", self._typed_var)
        tokens.expect("=")
        half = len(variables) // 2
        lhs, rhs = tuple(variables[:half]), tuple(variables[half:])
        result = self._exprs([v.dtype for v in lhs])
        tokens.expect("identity")
        identity = self._exprs([v.dtype for v in lhs])
        self.scope = outer
        self.reducers[token.text] = ir.Reducer(token.text, lhs, rhs, result, identity)

    def _typed_var(self) -> Var:
        token = self.tokens.expect_kind("local", "a variable")
        self.tokens.expect(":")
        return self._bind(token, self.dtype())

    def _setting(self) -> tuple[str, ir.Value]:
        key = self.tokens.expect_kind("name", "a key").text
        self.tokens.expect("=")
        return key, self._value()

    def _value(self) -> ir.Value:
        token = self.tokens.next()
        if token.kind == "string":
            try:
                return str(json.loads(token.text, strict=False))
            except ValueError:
                self.tokens.fail("this string has an escape that means nothing", token)
        if token.kind in ("int", "float"):
            return int(token.text) if token.kind == "int" else float(token.text)
        if token.text in ("true", "false"):
            return token.text == "true"
        if token.text == "-":
            value = self._value()
            if not isinstance(value, (int, float)):
                self.tokens.fail("expected a number after -", token)
            return -value
        if token.text in ("inf", "nan"):
            return float(token.text)
        if token.text == "(":
            items = []
            while not self.tokens.at(")"):
                items.append(self._value())
                if not self.tokens.accept(","):
                    break
            self.tokens.expect(")")
            return tuple(items)
        self.tokens.fail("expected a number, a string or a tuple", token)

    # ------------------------------------------------------------------ statements

    def _stmts(self) -> Stmt:
        """Statements up to the closing brace; `let` and `alloc` scope over what follows them."""
        scope, buffers = dict(self.scope), dict(self.buffers)
        groups: list[list[Stmt]] = [[]]
        binders: list[Stmt] = []
        while not self.tokens.accept("}"):
            if self.tokens.accept("{"):  # a group that ends the scope of a let or alloc
                groups[-1].append(self._stmts())
                continue
            stmt = self._stmt()
            if isinstance(stmt, (ir.Let, ir.Alloc)):
                binders.append(stmt)
                groups.append([])
            else:
                groups[-1].append(stmt)
        self.scope, self.buffers = scope, buffers
        last = groups.pop()
        body = ir.seq(*last) if last else ir.Seq(())
        while binders:
            body = binders.pop().with_children((body,))
            before = groups.pop()
            body = ir.seq(*before, body) if before else body
        return body

    def _stmt(self) -> Stmt:
        tokens = self.tokens
        if tokens.current.kind == "local" or tokens.at("("):
            return self._assignment()
        loc = tokens.location()
        word = tokens.expect_kind("name", "a statement")
        if word.text == "for":
            return self._for(loc)
        if word.text == "block":
            return self._block(loc)
        if word.text == "if":
            return self._if(loc)
        if word.text == "let":
            token = tokens.expect_kind("local", "a variable")
            tokens.expect(":")
            of = self.dtype()
            tokens.expect("=")
            value = self.expr(of)
            return ir.Let(self._bind(token, of), value, ir.Seq(()), loc)
        if word.text == "alloc":
            return ir.Alloc(self._declaration(), ir.Seq(()), loc)
        if word.text == "eval":
            return ir.Eval(self.expr(), loc)
        if word.text == "call":
            return self._tensor_call(loc)
        if word.text == "extern":
            symbol = tokens.expect_kind("name", "a symbol").text
            inputs = self._list("(", ")", self._region)
            tokens.expect("->")
            outputs = self._list("(", ")", self._region)
            return ir.ExternCall(symbol, (*inputs, *outputs), len(outputs), loc)
        tokens.fail(f"unknown statement {word.text!r}", word)

    def _tensor_call(self, loc: Loc) -> Stmt:
        tokens = self.tokens
        name = tokens.expect_kind("name", "an intrinsic").text
        intrin, _, phase = name.rpartition(".")
        arguments: Arguments = ()
        if phase not in PHASES and tokens.at("("):
            arguments = parse_arguments(tokens)
            tokens.expect(".")
            intrin, phase = name, tokens.expect_kind("name", "a phase").text
        if phase not in PHASES or not intrin:
            tokens.fail("expected NAME.compute, NAME.reset or NAME.update")
        regions = tuple(self._list("(", ")", self._region))
        return ir.TensorCall(intrin, phase, regions, arguments, loc)

    def _for(self, loc: Loc) -> Stmt:
        tokens = self.tokens
        token = tokens.expect_kind("local", "a loop variable")
        tokens.expect("in")
        kind, thread = ir.SERIAL, ""
        if tokens.current.kind == "name" and tokens.current.text in ir.LOOP_KINDS:
            kind = tokens.next().text
            if kind == ir.THREAD:
                tokens.expect("(")
                thread = tokens.expect_kind("name", "a thread axis").text
                tokens.expect(")")
        start = self.expr()
        tokens.expect("..")
        stop = self.expr()
        notes = []
        if tokens.accept("["):
            while not tokens.at("]"):
                notes.append(self._setting())
                if not tokens.accept(","):
                    break
            tokens.expect("]")
        outer = dict(self.scope)
        loop_var = self._bind(token, INDEX)
        tokens.expect("{")
        body = self._stmts()
        self.scope = outer
        return ir.For(loop_var, start, stop, body, kind, thread, tuple(notes), loc)

    def _block(self, loc: Loc) -> Stmt:
        tokens = self.tokens
        name = tokens.expect_kind("global", "a block name").text[1:]
        outer = dict(self.scope)
        parsed = self._list("(", ")", self._iter)
        predicate: Expr = TRUE
        tokens.expect("{")
        if tokens.accept("where"):
            predicate = self.expr(BOOL)
        iters, bindings = [], []
        for token, binding, kind, extent in parsed:
            iters.append(ir.Iter(self._bind(token, INDEX), extent, kind))
            bindings.append(binding)
        reads = self._regions("reads")
        writes = self._regions("writes")
        notes = []
        while tokens.accept("annotate"):
            notes.append(self._setting())
        init = None
        if tokens.accept("init"):
            tokens.expect("{")
            init = self._stmts()
        body = self._stmts()
        self.scope = outer
        return ir.Block(
            name,
            tuple(iters),
            tuple(bindings),
            reads,
            writes,
            body,
            init,
            predicate,
            tuple(notes),
            loc,
        )

    def _iter(self) -> tuple[Token, Expr, str, Expr]:
        token = self.tokens.expect_kind("local", "a block iterator")
        self.tokens.expect(":")
        kind = self.tokens.expect_kind("name", "spatial, reduce or scan")
        if kind.text not in ir.ITER_KINDS:
            self.tokens.fail(f"unknown iterator kind {kind.text}", kind)
        extent = self.expr()
        self.tokens.expect("=")
        return token, self.expr(), kind.text, extent

    def _regions(self, word: str) -> tuple[Region, ...]:
        regions: list[Region] = []
        if self.tokens.accept(word):
            regions.append(self._region())
            while self.tokens.accept(","):
                regions.append(self._region())
        return tuple(regions)

    def _region(self) -> Region:
        buffer = self._buffer(self.tokens.expect_kind("local", "a buffer"))
        return Region(buffer, tuple(self._list("[", "]", self._range)))

    def _range(self) -> Range:
        start = self.expr()
        return Range(start, self.expr() if self.tokens.accept("+:") else ONE)

    def _if(self, loc: Loc) -> Stmt:
        cond = self.expr(BOOL)
        self.tokens.expect("{")
        then = self._stmts()
        otherwise = None
        if self.tokens.accept("else"):
            self.tokens.expect("{")
            otherwise = self._stmts()
        return ir.If(cond, then, otherwise, loc)

    def _assignment(self) -> Stmt:
        tokens = self.tokens
        loc = tokens.location()
        if tokens.at("("):
            targets = self._list("(", ")", self._access)
        else:
            targets = [self._access()]
        buffers = tuple(buffer for buffer, _ in targets)
        index = targets[0][1]
        if tokens.accept("="):
            value = self.expr(buffers[0].dtype)
            mask = self.expr(BOOL) if tokens.accept("where") else None
            return ir.Store(buffers[0], index, value, mask, loc)
        token = tokens.expect_kind("name", "'=' or a reduction such as sum=")
        tokens.expect("=")
        if len(targets) > 1:
            values = self._exprs([buffer.dtype for buffer in buffers])
        else:
            values = (self.expr(buffers[0].dtype),)
        reducer = self.reducers.get(token.text)
        if reducer is None:
            if token.text not in NAMES:
                tokens.fail(f"unknown reduction {token.text}", token)
            reducer = builtin(token.text, *(buffer.dtype for buffer in buffers))
        return ir.Update(reducer, buffers, index, values, loc)

    # ------------------------------------------------------------------ expressions

    def local(self, token: Token) -> Expr:
        if token.text[1:] in self.buffers:
            index = tuple(self._list("[", "]", self.expr))
            buffer = self._buffer(token)
            self._check_rank(buffer, index, token)
            return ir.Load(buffer, index)
        return super().local(token)

    def call(self, token: Token, of: DType | None) -> Expr:
        name = token.text
        if name == "ramp":
            base = self.expr()
            self.tokens.expect(",")
            stride = self.expr()
            self.tokens.expect(",")
            lanes = self._int()
            self.tokens.expect(")")
            return ir.Ramp(base, stride, lanes)
        if name == "broadcast":
            token = self.tokens.current
            value = self.expr(F32 if token.kind == "float" else INDEX)
            self.tokens.expect(",")
            lanes = self._int()
            self.tokens.expect(")")
            return ir.Broadcast(value, lanes)
        if name == "masked":
            buffer, index = self._access()
            self.tokens.expect(",")
            mask = self.expr(BOOL)
            self.tokens.expect(")")
            return ir.MaskedLoad(buffer, index, mask)
        if name == "address":
            buffer, index = self._access()
            self.tokens.expect(")")
            return ir.Address(buffer, index)
        args = []
        while not self.tokens.at(")"):
            args.append(self.expr())
            if not self.tokens.accept(","):
                break
        self.tokens.expect(")")
        if of is None:
            spec = CALLS.get(name)
            if spec is None:
                self.tokens.fail(f"unknown function {name}", token)
            of = result_type(spec, tuple(args))
        return ir.Call(name, tuple(args), of)

    # ------------------------------------------------------------------ pieces

    def _access(self) -> tuple[Buffer, tuple[Expr, ...]]:
        token = self.tokens.expect_kind("local", "a buffer")
        buffer = self._buffer(token)
        index = tuple(self._list("[", "]", self.expr))
        self._check_rank(buffer, index, token)
        return buffer, index

    def _buffer(self, token: Token) -> Buffer:
        found = self.buffers.get(token.text[1:])
        if found is None:
            self.tokens.fail(f"buffer {token.text} is not declared", token)
        return found

    def _check_rank(self, buffer: Buffer, index: tuple[Expr, ...], token: Token) -> None:
        if self.stage != ir.SCHEDULED and len(index) == 1:
            return  # the row-major offset
        if len(index) != buffer.rank:
            self.tokens.fail(
                f"{token.text} has {buffer.rank} dimensions, indexed with {len(index)}", token
            )

    def _bind(self, token: Token, of: DType) -> Var:
        self._check_new(token)
        made = var(token.text[1:], of)
        self.scope[made.name] = made
        return made

    def _check_new(self, token: Token) -> None:
        name = token.text[1:]
        if name in self.scope or name in self.buffers:
            self.tokens.fail(f"{token.text} is already defined", token)

    def _exprs(self, dtypes: list[DType]) -> tuple[Expr, ...]:
        kinds = iter(dtypes)
        return tuple(self._list("(", ")", lambda: self.expr(next(kinds))))

    def _int(self) -> int:
        negative = self.tokens.accept("-")
        number = int(self.tokens.expect_kind("int", "an integer").text)
        return -number if negative else number

    def _list(self, opening: str, closing: str, item: Callable[[], T]) -> list[T]:
        self.tokens.expect(opening)
        items: list[T] = []
        while not self.tokens.at(closing):
            items.append(item())
            if not self.tokens.accept(","):
                break
        self.tokens.expect(closing)
        return items
