"""Writing LLVM IR as text: a module's parts, and functions with structured control flow.

LLVM parses text faster than Python can build objects for it, and every instruction, attribute and
type of LLVM is within reach.

    module = ModuleText(machine)
    with module.function("i32", "f", (("ptr", "p"), ("i64", "n"))) as (b, (p, n)):
        with b.loop(i64(0), n, hint="i") as i:
            b.store(b.op("add", ...), ...)
        b.ret(i32(0))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.base.text import Names
from tilewright.codegen.types import element_of, lanes_of, mangled, vector


class Value(NamedTuple):
    """An operand: its LLVM type and text."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)


def i64(number: int) -> Value:
    return Value("i64", str(number))


def i32(number: int) -> Value:
    return Value("i32", str(number))


def i1(truth: bool) -> Value:
    return Value("i1", "true" if truth else "false")


NULL = Value("ptr", "null")


def splat(of: str, text: str) -> Value:
    """A constant in every lane of type `of`."""
    if lanes_of(of) == 1:
        return Value(of, text)
    return Value(of, f"splat ({element_of(of)} {text})")


_UNSAFE = re.compile(r"[^A-Za-z0-9_.$-]")


def symbol(name: str) -> str:
    """A name LLVM takes without quotes."""
    return _UNSAFE.sub("_", name)


@dataclass
class ModuleText:
    """The parts of one LLVM module, put together by `text()`."""

    triple: str
    data_layout: str
    attributes: str  # of every function
    types: dict[str, str] = field(default_factory=dict)
    declarations: dict[str, str] = field(default_factory=dict)
    global_lines: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    named_metadata: list[str] = field(default_factory=list)
    _metadata: list[str] = field(default_factory=list)
    _metadata_ids: dict[str, str] = field(default_factory=dict)
    _strings: dict[str, Value] = field(default_factory=dict)
    _zeros: Value | None = None

    def text(self) -> str:
        parts = [f'target datalayout = "{self.data_layout}"', f'target triple = "{self.triple}"']
        parts += [f"%{name} = type {body}" for name, body in self.types.items()]
        parts += self.global_lines
        parts += self.functions
        parts += self.declarations.values()
        parts.append(f"attributes #0 = {{ {self.attributes} }}")
        parts += self.named_metadata
        parts += self._metadata
        return "\n".join(parts) + "\n"

    def metadata(self, body: str) -> str:
        """A metadata node, the same one for the same text."""
        found = self._metadata_ids.get(body)
        if found is None:
            found = self._metadata_ids[body] = self._add_metadata(body)
        return found

    def distinct(self, body: str) -> str:
        """A metadata node of its own; `@` stands for the node itself."""
        name = f"!{len(self._metadata)}"
        return self._add_metadata("distinct " + body.replace("@", name))

    def _add_metadata(self, body: str) -> str:
        name = f"!{len(self._metadata)}"
        self._metadata.append(f"{name} = {body}")
        return name

    def declare(
        self, result: str, name: str, args: Sequence[str], *, variadic: bool = False
    ) -> str:
        """Make an external function or intrinsic known; its symbol with the @."""
        rest = ", ..." if variadic else ""
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(args)}{rest})")
        return f"@{name}"

    def constant(self, name: str, type_: str, body: str) -> Value:
        """A private constant; the same name must mean the same thing."""
        self.global_lines.append(f"@{name} = private unnamed_addr constant {type_} {body}")
        return Value("ptr", f"@{name}")

    def string(self, text: str) -> Value:
        """A C string."""
        found = self._strings.get(text)
        if found is None:
            data = text.encode() + b"\0"
            body = "".join(
                chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data
            )
            name = f".str.{len(self._strings)}"
            found = self._strings[text] = self.constant(name, f"[{len(data)} x i8]", f'c"{body}"')
        return found

    def zeros(self) -> Value:
        """Eight bytes that may be read in the place of some that may not."""
        if self._zeros is None:
            self._zeros = self.constant(".zeros", "i64", "0")
        return self._zeros

    @contextmanager
    def function(
        self,
        result: str,
        name: str,
        params: Sequence[tuple[str, str]],
        *,
        linkage: str = "",
        suffix: str = "",
    ) -> Iterator[tuple[FunctionText, list[Value]]]:
        """A function definition; parameters are (type with attributes, name hint)."""
        builder = FunctionText(self)
        values = []
        shown = []
        for type_, hint in params:
            value = Value(type_.split(" ", 1)[0], builder.fresh(hint))
            values.append(value)
            shown.append(f"{type_} {value.text}")
        yield builder, values
        head = f"define {linkage + ' ' if linkage else ''}{result} @{name}({', '.join(shown)})"
        self.functions.append(f"{head} #0{suffix} {{\n{builder.text()}}}")


class FunctionText:
    """The instructions of one function, written in order."""

    def __init__(self, module: ModuleText) -> None:
        self.module = module
        self.debug = ""  # appended to every instruction
        self.block = "entry"
        self.ended = False  # the current block has its terminator
        self.before_return: list[str] = []  # functions to call on every way out
        self._allocas: list[str] = []
        self._lines: list[str] = []
        # Values that depend on nothing but what they are known by, an instruction or whatever a
        # user of this writes more than once, and whose writing control has passed here.
        self.passed: dict[object, Value] = {}
        self._names = Names()
        self._count = 0
        self._names(self, "entry")

    def text(self) -> str:
        lines = ["entry:", *self._allocas, *self._lines]
        if not self.ended:
            lines.append("  unreachable")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ names and lines

    def fresh(self, hint: str = "") -> str:
        if hint:
            return "%" + self._names(object_key(), symbol(hint))
        self._count += 1
        return f"%.{self._count}"

    def _label(self, hint: str) -> str:
        return self._names(object_key(), symbol(hint))

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}{self.debug}")

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label
        self.ended = False

    # ------------------------------------------------------------------ instructions

    def value(self, type_: str, text: str, hint: str = "") -> Value:
        """The result of an instruction, `text` being everything after the `=`."""
        name = self.fresh(hint)
        self._lines.append(f"  {name} = {text}{self.debug}")
        return Value(type_, name)

    def pure(self, type_: str, text: str) -> Value:
        """The result of an instruction that depends on its operands alone: it is written once
        where control has passed it already. LLVM would find so too, at some cost."""
        found = self.passed.get(text)
        if found is None:
            found = self.passed[text] = self.value(type_, text)
        return found

    @contextmanager
    def nested(self) -> Iterator[None]:
        """What is written inside is not known afterwards: control may not pass it."""
        outer = self.passed
        self.passed = dict(outer)
        yield
        self.passed = outer

    def op(self, name: str, a: Value, b: Value) -> Value:
        """An instruction with two operands and a result of one type: `fadd contract`."""
        return self.pure(a.type, f"{name} {a.type} {a.text}, {b.text}")

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """`icmp slt` and the like."""
        return self.pure(vector("i1", a.lanes), f"{name} {a.type} {a.text}, {b.text}")

    def convert(self, name: str, a: Value, to: str) -> Value:
        """`sext`, `bitcast`, ...; nothing when the type stays."""
        return a if a.type == to else self.pure(to, f"{name} {a} to {to}")

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return self.pure(a.type, f"select {cond}, {a}, {b}")

    def intrinsic(self, name: str, result: str, *args: Value, flags: str = "") -> Value:
        """A call of an LLVM intrinsic overloaded on the type of its result."""
        return self.call(f"llvm.{name}.{mangled(result)}", result, *args, flags=flags)

    def call(self, name: str, result: str, *args: Value, flags: str = "") -> Value:
        """A call of a function by its full name."""
        callee = self.module.declare(result, name, [arg.type for arg in args])
        shown = ", ".join(str(arg) for arg in args)
        text = f"call {flags + ' ' if flags else ''}{result} {callee}({shown})"
        if result == "void":
            self.line(text)
            return Value("void", "")
        return self.value(result, text)

    def load(self, type_: str, pointer: Value, *, align: int = 0, extra: str = "") -> Value:
        """`align` 0: the type's own alignment."""
        aligned = f", align {align}" if align else ""
        return self.value(type_, f"load {type_}, {pointer}{aligned}{extra}")

    def store(self, value: Value, pointer: Value, *, align: int = 0, extra: str = "") -> None:
        aligned = f", align {align}" if align else ""
        self.line(f"store {value}, {pointer}{aligned}{extra}")

    def offset(self, element: str, pointer: Value, index: Value) -> Value:
        """The address of an element; a vector of them for a vector index."""
        type_ = vector("ptr", index.lanes)
        return self.pure(type_, f"getelementptr inbounds {element}, {pointer}, {index}")

    def member(self, struct: str, pointer: Value, *path: int) -> Value:
        """The address of a member of a structure."""
        steps = "".join(f", i32 {step}" for step in path)
        return self.pure("ptr", f"getelementptr inbounds {struct}, {pointer}, i32 0{steps}")

    def alloca(self, type_: str, *, align: int, hint: str = "") -> Value:
        """Stack memory, in the entry block so that it can become registers."""
        name = self.fresh(hint or "stack")
        self._allocas.append(f"  {name} = alloca {type_}, align {align}")
        return Value("ptr", name)

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector of equal lanes."""
        if lanes == 1:
            return value
        type_ = vector(value.type, lanes)
        if not value.text.startswith("%"):
            return splat(type_, value.text)
        one = self.pure(type_, f"insertelement {type_} poison, {value}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.pure(type_, f"shufflevector {one}, {type_} poison, {mask}")

    def with_bytes(self, value: Value, above: Sequence[int]) -> Value:
        """Each byte of a vector with known bytes above it, in the order of memory."""
        lanes, known = value.lanes, sorted(set(above))
        constant = ", ".join(f"i8 {known[at] if at < len(known) else 0}" for at in range(lanes))
        places = [lanes + known.index(each) for each in above]
        picks = [pick for lane in range(lanes) for pick in (lane, *places)]
        mask = ", ".join(f"i32 {pick}" for pick in picks)
        type_ = f"<{len(picks)} x i8>"
        shown = f"shufflevector {value}, {value.type} <{constant}>, <{len(picks)} x i32> <{mask}>"
        return self.pure(type_, shown)

    def shuffle(self, value: Value, picks: Sequence[int]) -> Value:
        """The vector of the picked lanes."""
        type_ = vector(element_of(value.type), len(picks))
        mask = ", ".join(f"i32 {pick}" for pick in picks)
        shown = f"shufflevector {value}, {value.type} poison, <{len(picks)} x i32> <{mask}>"
        return self.pure(type_, shown)

    def widen(self, value: Value, lanes: int) -> Value:
        """The vector with lanes of no meaning added at its end."""
        if value.lanes == lanes:
            return value
        if value.lanes == 1:
            type_ = vector(value.type, lanes)
            return self.pure(type_, f"insertelement {type_} poison, {value}, i64 0")
        type_ = vector(element_of(value.type), lanes)
        picks = [str(i) if i < value.lanes else "poison" for i in range(lanes)]
        mask = ", ".join(f"i32 {pick}" for pick in picks)
        shown = f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{mask}>"
        return self.pure(type_, shown)

    def concat(self, first: Value, second: Value | None = None) -> Value:
        """Two vectors of one type in a row; the second has no meaning if absent."""
        lanes = first.lanes * 2
        rest = f"{first.type} poison" if second is None else str(second)
        mask = ", ".join(f"i32 {i}" for i in range(lanes))
        type_ = vector(element_of(first.type), lanes)
        return self.pure(type_, f"shufflevector {first}, {rest}, <{lanes} x i32> <{mask}>")

    def interleave(self, evens: Value, odds: Value) -> Value:
        """The lanes of two vectors, or two numbers, of one type in turns."""
        lanes = 2 * evens.lanes
        type_ = vector(element_of(evens.type), lanes)
        if evens.lanes == 1:
            first = self.widen(evens, lanes)
            return self.pure(type_, f"insertelement {first}, {odds}, i64 1")
        mask = ", ".join(f"i32 {at // 2 + at % 2 * evens.lanes}" for at in range(lanes))
        return self.pure(type_, f"shufflevector {evens}, {odds}, <{lanes} x i32> <{mask}>")

    def extract(self, value: Value, lane: int) -> Value:
        return self.pure(element_of(value.type), f"extractelement {value}, i64 {lane}")

    def phi(self, *arms: tuple[Value, str]) -> Value:
        """The value of the arm that control came from: (value, block)."""
        shown = ", ".join(f"[ {value.text}, %{block} ]" for value, block in arms)
        return self.value(arms[0][0].type, f"phi {arms[0][0].type} {shown}")

    def ret(self, value: Value | None = None) -> None:
        for callee in self.before_return:
            self.line(f"call void {callee}()")
        self.line("ret void" if value is None else f"ret {value}")
        self.ended = True

    def jump(self, label: str) -> None:
        if not self.ended:
            self.line(f"br label %{label}")
            self.ended = True

    # ------------------------------------------------------------------ control flow

    @contextmanager
    def loop(
        self, start: Value, stop: Value, *, hint: str = "i", some: bool = False, notes: str = ""
    ) -> Iterator[Value]:
        """Runs the body for start, start + 1, ... below stop. `some`: there is a first one."""
        body, latch, done = (self._label(f"{hint}{end}") for end in (".loop", ".next", ".done"))
        before = self.block
        if some:
            self.jump(body)
        else:
            enter = self.compare("icmp slt", start, stop)
            before = self.block
            self.line(f"br {enter}, label %{body}, label %{done}")
        self._start(body)
        step = self.fresh(f"{hint}.step")
        index = self.value(
            start.type, f"phi {start.type} [ {start.text}, %{before} ], [ {step}, %{latch} ]", hint
        )
        with self.nested():
            yield index
            self.jump(latch)
            self._start(latch)
            self._lines.append(f"  {step} = add nsw {index}, 1{self.debug}")
            again = self.compare("icmp slt", Value(start.type, step), stop)
            self.line(f"br {again}, label %{body}, label %{done}{notes}")
        self._start(done)

    @contextmanager
    def repeat(self, go_on: Callable[[], Value]) -> Iterator[None]:
        """Runs the body again and again while a condition, written anew each time, holds."""
        head, body, done = (self._label(end) for end in ("again", "round", "over"))
        self.jump(head)
        self._start(head)
        self.line(f"br {go_on()}, label %{body}, label %{done}")
        self._start(body)
        with self.nested():
            yield
        self.jump(head)
        self._start(done)

    @contextmanager
    def when(self, cond: Value, *, unlikely: bool = False) -> Iterator[None]:
        """Runs the body if the condition holds."""
        then, done = self._label("then"), self._label("done")
        weights = ""
        if unlikely:
            node = self.module.metadata('!{!"branch_weights", i32 1, i32 4000}')
            weights = f", !prof {node}"
        self.line(f"br {cond}, label %{then}, label %{done}{weights}")
        self._start(then)
        with self.nested():
            yield
        self.jump(done)
        self._start(done)

    @contextmanager
    def branch(self, cond: Value) -> Iterator[tuple[Arm, Arm]]:
        """Two arms; each is entered with `with`, in order, and both must be."""
        then, otherwise, done = (self._label(end) for end in ("then", "else", "done"))
        self.line(f"br {cond}, label %{then}, label %{otherwise}")
        yield Arm(self, then, done), Arm(self, otherwise, done)
        self._start(done)

    @contextmanager
    def choose(self, index: Value, count: int) -> Iterator[list[Arm]]:
        """As many arms, one of which runs; the last for an index that none has."""
        arms, done = [self._label(f"arm{at}") for at in range(count)], self._label("done")
        cases = " ".join(f"{index.type} {at}, label %{arm}" for at, arm in enumerate(arms[:-1]))
        self.line(f"switch {index}, label %{arms[-1]} [{cases}]")
        yield [Arm(self, arm, done) for arm in arms]
        self._start(done)


class Arm:
    """One side of a branch; `end` is the block that leaves it."""

    def __init__(self, builder: FunctionText, label: str, done: str) -> None:
        self._builder = builder
        self._label = label
        self._done = done
        self.end = label
        self._inside = builder.nested()

    def __enter__(self) -> Arm:
        self._builder._start(self._label)
        self._inside.__enter__()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._inside.__exit__(None, None, None)
        self.end = self._builder.block
        self._builder.jump(self._done)


def object_key() -> object:
    """A key of its own in a table of names."""
    return object()
