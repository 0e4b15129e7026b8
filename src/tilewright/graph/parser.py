"""Parse the text of a model: `parse(str(module)) == module` (large constants are passed
separately).

Result types may be omitted; they are then inferred from the operator's declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.text import Token, Tokens
from tilewright.graph import ir
from tilewright.graph.build import constant_type, make_call
from tilewright.graph.contents import Contents
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.op import check_countable
from tilewright.graph.printer import unquoted
from tilewright.graph.types import MapType, OptionalType, SequenceType, TensorType, Type
from tilewright.sym import Expr, Size, size
from tilewright.sym.text import ExprParser
from tilewright.tensor.ir import Function
from tilewright.tensor.parser import Parser as TensorParser

Constants = Mapping[str, np.ndarray[Any, Any]]


def parse(text: str, constants: Constants | None = None, path: str = "<text>") -> Module:
    """Parse a module; a bare `graph @name` is a module with that graph.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> graph.parse(str(module)) == module
        True
    """
    return _Parser(Tokens(text, path), constants or {}).module()


class _Sizes(dict[str, Size]):
    """Sizes, created where a type first mentions them."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Size:
        self[name] = made = size(name)
        return made


class _Parser(ExprParser):
    def __init__(self, tokens: Tokens, constants: Constants) -> None:
        super().__init__(tokens, _Sizes(), {})
        self.constants: dict[str, np.ndarray[Any, Any]] = dict(constants)
        self.values: dict[str, Value] = {}
        self.contents = Contents()

    def module(self) -> Module:
        tokens = self.tokens
        graphs: dict[str, Graph] = {}
        functions: dict[str, Function] = {}
        stage = ir.IMPORTED
        outputs: tuple[str, ...] = ()
        states: tuple[str, ...] = ()
        if tokens.accept("module"):
            tokens.expect("stage")
            stage = tokens.expect_kind("name", "a stage").text
            if tokens.accept("outputs"):
                outputs = self._names()
            if tokens.accept("states"):
                states = self._states()
            tokens.expect("{")
            while not tokens.accept("}"):
                self._named_graph(graphs)
        else:
            while tokens.at("graph"):
                self._named_graph(graphs)
        while tokens.at("func"):
            fn = TensorParser(tokens).function()
            functions[fn.name] = fn
        if tokens.current.kind != "end":
            tokens.fail("expected a graph, a function or the end of the text")
        return Module(graphs, self.constants, functions, stage, outputs, states)

    def _names(self) -> tuple[str, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found: list[str] = []
        while not tokens.accept(")"):
            found.append(unquoted(tokens.expect_kind("string", "a name").text))
            tokens.accept(",")
        return tuple(found)

    def _states(self) -> tuple[str, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found: list[str] = []
        while not tokens.at(")"):
            found.append(str(self._attribute("state")))
            if not tokens.accept(","):
                break
        tokens.expect(")")
        return tuple(found)

    def _named_graph(self, graphs: dict[str, Graph]) -> None:
        self.tokens.expect("graph")
        name = self.tokens.expect_kind("global", "a graph name").text[1:]
        graphs[name] = self._graph(name)

    def _graph(self, name: str) -> Graph:
        tokens = self.tokens
        outer, self.values = self.values, {}
        known, self.contents = self.contents, Contents()
        loc = tokens.location()
        params = []
        tokens.expect("(")
        while not tokens.at(")"):
            token = tokens.expect_kind("local", "a parameter")
            tokens.expect(":")
            params.append(self._define(token, self.type()))
            check_countable(params[-1].type, loc)
            if not tokens.accept(","):
                break
        tokens.expect(")")
        if tokens.accept("->"):
            tokens.expect("(")
            while not tokens.at(")"):
                self.type()
                if not tokens.accept(","):
                    break
            tokens.expect(")")
        tokens.expect("{")
        nodes = []
        while not tokens.accept("return"):
            nodes.append(self._node())
        results = []
        while tokens.current.kind == "local":
            results.append(self._use(tokens.next()))
            tokens.accept(",")
        tokens.expect("}")
        self.values, self.contents = outer, known
        return Graph(name, tuple(params), tuple(nodes), tuple(results), loc)

    def _node(self) -> Node:
        tokens = self.tokens
        loc = tokens.location()
        outputs: list[tuple[Token, Type | None]] = []
        while tokens.current.kind == "local":
            token = tokens.next()
            outputs.append((token, self.type() if tokens.accept(":") else None))
            tokens.accept(",")
        if outputs:
            tokens.expect("=")
        word = tokens.expect_kind("name", "an operator")
        tokens.expect("(")
        inputs: list[Value | None] = []
        while not tokens.at(")"):
            inputs.append(None if tokens.accept("none") else self._use(tokens.next()))
            if not tokens.accept(","):
                break
        tokens.expect(")")
        attributes: dict[str, Attribute] = {}
        hint = outputs[0][0].text[1:] if outputs else word.text
        if tokens.accept("{"):
            while not tokens.at("}"):
                key = tokens.expect_kind("name", "an attribute").text
                tokens.expect("=")
                attributes[key] = self._attribute(hint)
                if not tokens.accept(","):
                    break
            tokens.expect("}")
        bodies = []
        if tokens.accept("do"):
            tokens.expect("{")
            while tokens.accept("graph"):
                bodies.append(self._graph("body"))
            tokens.expect("}")
        types = [of for _, of in outputs if of is not None]
        infer = len(types) < len(outputs)
        if word.text == "constant":
            types = types or [constant_type(self.constants[str(attributes["data"])])]
        elif infer:
            if word.text == "call":
                tokens.fail("the result types of a call must be written", word)
            op, call = make_call(
                word.text,
                inputs,
                attributes,
                *self.contents.of(inputs),
                bodies=tuple(bodies),
                loc=loc,
                outputs=len(outputs),
            )
            types = op.gives(call)
        values = tuple(
            self._define(token, of) for (token, _), of in zip(outputs, types, strict=True)
        )
        if word.text == "constant":
            self.contents.learn(values[0], self.constants[str(attributes["data"])])
        elif infer:
            self.contents.follow(op, call, values)
        return Node(
            word.text, tuple(inputs), values, ir.attributes(**attributes), tuple(bodies), loc
        )

    def type(self) -> Type:
        tokens = self.tokens
        for word, make in (("seq", SequenceType), ("opt", OptionalType)):
            if tokens.accept(word):
                tokens.expect("<")
                inner = self.type()
                tokens.expect(">")
                return make(inner)
        if tokens.accept("map"):
            tokens.expect("<")
            key = self.dtype()
            tokens.expect(",")
            made = MapType(key, self.dtype())
            tokens.expect(">")
            return made
        of = self.dtype()
        tokens.expect("[")
        if tokens.accept("*"):
            tokens.expect("]")
            return TensorType(of, None)
        dims: list[Expr] = []
        while not tokens.at("]"):
            dims.append(self.expr())
            if not tokens.accept(","):
                break
        tokens.expect("]")
        return TensorType(of, tuple(dims))

    def _attribute(self, hint: str) -> Attribute:
        tokens = self.tokens
        token = tokens.current
        if token.kind == "global":
            tokens.next()
            return token.text[1:]
        if token.kind == "string":
            tokens.next()
            return unquoted(token.text)
        if tokens.accept("none"):
            return None
        if tokens.accept("dtype"):
            return self.dtype()
        if tokens.accept("expr"):
            return self.expr()
        if tokens.accept("type"):
            return self.type()
        if token.text in ("true", "false"):
            tokens.next()
            return token.text == "true"
        if tokens.accept("("):
            items = []
            while not tokens.at(")"):
                items.append(self._attribute(hint))
                if not tokens.accept(","):
                    break
            tokens.expect(")")
            return tuple(items)
        if token.kind == "name" and tokens.peek().text == "[":
            return self._array(hint)
        return self._number()

    def _number(self) -> int | float:
        negative = self.tokens.accept("-")
        token = self.tokens.next()
        if token.kind == "int":
            value: int | float = int(token.text)
        elif token.kind == "float" or token.text in ("inf", "nan"):
            value = float(token.text)
        else:
            self.tokens.fail("expected a value", token)
        return -value if negative else value

    def _array(self, hint: str) -> str:
        of = self.type()
        assert isinstance(of, TensorType)
        shape = of.static_shape
        self.tokens.expect("(")
        items: list[Any] = []
        while not self.tokens.at(")"):
            if self.tokens.current.text in ("true", "false"):
                items.append(self.tokens.next().text == "true")
            elif self.tokens.current.kind == "string":
                items.append(unquoted(self.tokens.next().text))
            else:
                items.append(self._number())
            if not self.tokens.accept(","):
                break
        self.tokens.expect(")")
        name, count = hint, 0
        while name in self.constants:
            count += 1
            name = f"{hint}_{count}"
        self.constants[name] = np.array(items).astype(of.dtype.numpy).reshape(shape or ())
        return name

    def _define(self, token: Token, of: Type) -> Value:
        name = token.text[1:]
        if name in self.values:
            self.tokens.fail(f"{token.text} is already defined", token)
        self.values[name] = value = Value(name, of)
        return value

    def _use(self, token: Token) -> Value:
        found = self.values.get(token.text[1:])
        if found is None:
            self.tokens.fail(f"{token.text} is not defined", token)
        return found
