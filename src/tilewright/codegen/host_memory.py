"""Memory and sizes of a model's values while its main runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.base.errors import CompilerBug
from tilewright.codegen.builder import NULL, FunctionText, Value, i1, i32, i64
from tilewright.codegen.emitter import Emitter
from tilewright.codegen.entry import CHECK_FAILED
from tilewright.graph import ir as graph_ir
from tilewright.graph.ir import Module
from tilewright.graph.memory import MemoryPlan, size_bytes, spans
from tilewright.graph.types import TensorType
from tilewright.sym import Expr, Size, Var

MAX_BYTES = 1 << 62  # an allocation of so many always fails
# The head of tw_call: the table of constants, the function that allocates outputs.
CALL = "{ ptr, ptr }"

Place = graph_ir.Value


class HostMemory:
    """Writes how values are located, allocated and freed."""

    def __init__(self, emitter: Emitter, model: Module, plan: MemoryPlan, call: Value) -> None:
        self.emitter = emitter
        self.b: FunctionText = emitter.b
        self.model = model
        self.plan = plan
        self.call = call
        self.pointers: dict[Place, Value] = {}
        self._slot_pointers: dict[Place, Value] = {}

    def take_arena(self) -> None:
        """The arena, and the address of every value in it."""
        slots, b = self.plan.slots, self.b
        if not slots:
            return
        if self.plan.offsets is not None:
            arena_bytes = min(self.plan.arena_bytes or 0, MAX_BYTES)
            arena = b.call("tw_call_arena", "ptr", self.call, i64(arena_bytes))
            self.check_memory(arena)
            for slot, offset in zip(slots, self.plan.offsets, strict=True):
                address = b.offset("i8", arena, i64(offset)) if offset else arena
                self._slot_pointers[slot.value] = address
            return
        sizes = b.alloca(f"[{len(slots)} x i64]", align=8, hint="sizes")
        for at, slot in enumerate(slots):
            b.store(self.needed(slot.value.tensor), b.offset("i64", sizes, i64(at)))
        steps = ", ".join(f"i32 {step}" for step in spans(slots))
        table = self.emitter.module.constant("spans", f"[{2 * len(slots)} x i32]", f"[{steps}]")
        count = i32(len(slots))
        offsets = b.call("tw_call_plan", "ptr", self.call, count, sizes, table)
        self.check_memory(offsets)
        arena = b.call("tw_call_arena", "ptr", self.call, i64(0))
        for at, slot in enumerate(slots):
            place = b.load("i64", b.offset("i64", offsets, i64(at)))
            self._slot_pointers[slot.value] = b.offset("i8", arena, place)

    def check_memory(self, pointer: Value) -> None:
        with self.b.when(self.b.compare("icmp eq", pointer, NULL), unlikely=True):
            self.emitter.fail(self.b.call("tw_last_code", "i32"))

    def refuse(self, text: str, *values: Value) -> None:
        """End the call with an error; `text` is a format of printf for numbers of 64 bits."""
        module = self.emitter.module
        callee = module.declare("i32", "tw_errorf", ["i32", "ptr"], variadic=True)
        args = ", ".join(map(str, (i32(CHECK_FAILED), module.string(text), *values)))
        self.emitter.fail(self.b.value("i32", f"call i32 (i32, ptr, ...) {callee}({args})"))

    def place(self, value: Place) -> Value:
        """The memory of a value about to be computed."""
        if value in self.pointers:
            return self.pointers[value]
        if value in self.plan.roots:
            return self.pointer(value)  # in the place of an operand
        index = self.plan.outputs.get(value)
        if index is not None:
            pointer = self.output(index)
        elif value in self.plan.late:
            pointer = self.late(self.needed(value.tensor))
        else:
            pointer = self._slot_pointers[value]
        self.pointers[value] = pointer
        return pointer

    def output(self, index: int) -> Value:
        """The caller's memory for a result, or that of the state it replaces."""
        if index >= len(self.model.made):
            return self.pointers[self.state(index)]
        return self.given(index, self.model.main.results[index].tensor.shape or ())

    def given(self, index: int, dims: Sequence[Expr]) -> Value:
        """The caller's memory for a result of these dimensions."""
        b = self.b
        shape = b.alloca(f"[{max(1, len(dims))} x i64]", align=8, hint="shape")
        for axis, dim in enumerate(dims):
            b.store(self.size(dim), b.offset("i64", shape, i64(axis)))
        give = b.load("ptr", b.member(CALL, self.call, 1))
        args = f"{self.call}, i32 {index}, i32 {len(dims)}, {shape}"
        pointer = b.value("ptr", f"call ptr {give.text}({args})")
        self.check_memory(pointer)
        return pointer

    def state(self, index: int) -> Place:
        """The state that a result replaces."""
        return self.model.main.params[index - len(self.model.main.results)]

    def late(self, size: Expr | Value) -> Value:
        """Memory that lasts until it is dropped, or the call ends."""
        wanted = size if isinstance(size, Value) else self.size(size)
        pointer = self.b.call("tw_call_late", "ptr", self.call, wanted)
        self.check_memory(pointer)
        return pointer

    def drop(self, pointer: Value) -> None:
        self.b.call("tw_call_drop", "void", self.call, pointer)

    def pointer(self, value: Place) -> Value:
        """Where a value is."""
        root = value
        while root not in self.pointers and root in self.plan.roots:
            root = self.plan.roots[root]
        if root not in self.pointers:
            raise CompilerBug("TW3903", f"%{value.name} has not been computed here")
        return self.pointers[root]

    def copy(self, to: Value, source: Value, size: Value) -> None:
        if to != source:
            name = "llvm.memcpy.p0.p0.i64"
            self.b.call(name, "void", to, source, size, i1(False))

    # ------------------------------------------------------------------ numbers

    def size(self, expr: Expr) -> Value:
        """The value of an expression of sizes."""
        self.emitter.forget()
        return self.emitter.expr(expr)

    def needed(self, of: TensorType) -> Value:
        """The bytes of a tensor to be; the most there is of numbers where 64 bits do not hold them.

        A model may ask for any size: what comes of an overflow must not look like a small one.
        """
        total = i64(of.dtype.size_bytes)
        for dim in of.shape or ():
            total = self.b.call("llvm.smul.fix.sat.i64", "i64", total, self.size(dim), i32(0))
        return total

    def bytes_of(self, value: Place) -> Value:
        return self.size(size_bytes(value.tensor))

    def bind(self, size: Var, value: Value) -> None:
        self.emitter.variables[size] = value
        self.emitter.non_negative[size] = None

    @contextmanager
    def body(self) -> Iterator[None]:
        """Code that may not run: behind it, sizes have the values they had before."""
        known = dict(self.emitter.variables)
        yield
        self.emitter.variables = known

    def element(self, value: Place, index: int = 0) -> Value:
        """An element of an integer or boolean tensor as a 64-bit number."""
        dtype = value.tensor.dtype
        bits = 8 * dtype.size_bytes
        pointer = self.b.offset(f"i{bits}", self.pointer(value), i64(index))
        loaded = self.b.load(f"i{bits}", pointer)
        signed = dtype.kind == "int"
        return self.b.convert("sext" if signed else "zext", loaded, "i64")

    def truth(self, value: Place) -> Value:
        return self.b.compare("icmp ne", self.element(value), i64(0))

    def saved(self, value: Place) -> Value:
        size = self.bytes_of(value)
        memory = self.late(size)
        self.copy(memory, self.pointer(value), size)
        return memory

    def bind_dims(self, value: Place, dims: Sequence[Value]) -> None:
        """Sizes that stand alone in a type take the values of its dimensions."""
        for dim, extent in zip(value.tensor.shape or (), dims, strict=True):
            if isinstance(dim, Size):
                self.bind(dim, extent)
