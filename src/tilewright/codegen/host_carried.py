"""Values assigned in several places of a model's main: by branches, and by iterations of loops."""

from __future__ import annotations

from tilewright import sym
from tilewright.codegen.builder import NULL, Value, i64
from tilewright.codegen.host_memory import HostMemory, Place


class Carried:
    """A value that control flow assigns in several places: in fixed memory, or by a pointer
    slot."""

    def __init__(self, host: HostMemory, value: Place) -> None:
        self.host = host
        self.value = value
        self.fixed = host.plan.root(value) not in host.plan.late and value not in host.plan.late
        b = host.b
        rank = len(value.tensor.shape or ())
        if self.fixed:
            self.memory = host.place(value)
        else:
            self.slot = b.alloca("ptr", align=8, hint="carried")
            b.store(NULL, self.slot)
            self.dims = b.alloca(f"[{max(1, rank)} x i64]", align=8, hint="dims")

    def set(self, value: Place) -> None:
        self.set_from(self.host.pointer(value), value)

    def set_from(self, source: Value, value: Place) -> None:
        """Take the elements at `source`, of the type of `value`."""
        host, b = self.host, self.host.b
        size = host.bytes_of(value)
        if self.fixed:
            host.copy(self.memory, source, size)
            return
        memory = host.late(size)
        host.copy(memory, source, size)
        host.drop(b.load("ptr", self.slot))
        b.store(memory, self.slot)
        for axis, dim in enumerate(value.tensor.shape or ()):
            b.store(host.size(dim), b.offset("i64", self.dims, i64(axis)))

    def _extents(self) -> list[Value]:
        b = self.host.b
        rank = len(self.value.tensor.shape or ())
        return [b.load("i64", b.offset("i64", self.dims, i64(axis))) for axis in range(rank)]

    def lend(self, param: Place) -> None:
        """Show the present value to a body as its parameter."""
        if self.fixed:
            self.host.pointers[param] = self.memory
            self.host.bind_dims(param, [self.host.size(d) for d in self.value.tensor.shape or ()])
            return
        self.host.pointers[param] = self.host.b.load("ptr", self.slot)
        self.host.bind_dims(param, self._extents())

    def publish(self) -> None:
        """The value is what was set last."""
        if not self.fixed:
            self.host.pointers[self.value] = self.host.b.load("ptr", self.slot)
            self.host.bind_dims(self.value, self._extents())


class Given:
    """A result whose rank differs between branches."""

    def __init__(self, host: HostMemory, index: int) -> None:
        self.host = host
        self.index = index

    def set(self, value: Place) -> None:
        dims = value.tensor.shape
        if dims is not None:  # else a branch inside has given it
            memory = self.host.given(self.index, dims)
            self.host.copy(memory, self.host.pointer(value), self.host.bytes_of(value))

    def publish(self) -> None:
        """Nobody here reads it."""


class Rows:
    """The stacked results of a loop's iterations."""

    def __init__(self, host: HostMemory, value: Place) -> None:
        self.host = host
        self.value = value
        self.fixed = value not in host.plan.late
        b = host.b
        if self.fixed:
            self.memory = host.place(value)
            return
        rank = len(value.tensor.shape or ())
        self.slot = b.alloca("ptr", align=8, hint="rows")
        self.capacity = b.alloca("i64", align=8, hint="capacity")
        self.dims = b.alloca(f"[{rank} x i64]", align=8, hint="dims")
        b.store(host.late(i64(0)), self.slot)
        b.store(i64(0), self.capacity)
        bound = host.emitter.variables
        self.open = []  # axes as long as the first round's row
        for axis, dim in enumerate(value.tensor.shape or ()):
            known = axis > 0 and all(size in bound for size in sym.free_vars(dim))
            b.store(host.size(dim) if known else i64(0), b.offset("i64", self.dims, i64(axis)))
            if axis > 0 and not known:
                self.open.append(axis)

    def add(self, value: Place, at: Value) -> None:
        host, b = self.host, self.host.b
        size = host.bytes_of(value)
        used = b.op("mul", size, at)
        if not self.fixed:
            self._check_shape(value, at)
            needed = b.op("add", used, size)
            short = b.compare("icmp slt", b.load("i64", self.capacity), needed)
            with b.when(short):
                room = b.op("mul", needed, i64(2))
                old = b.load("ptr", self.slot)
                grown = b.call("tw_call_grow", "ptr", host.call, old, used, room)
                host.check_memory(grown)
                b.store(grown, self.slot)
                b.store(room, self.capacity)
            b.store(b.op("add", at, i64(1)), b.offset("i64", self.dims, i64(0)))
            for axis, dim in enumerate(value.tensor.shape or ()):
                b.store(host.size(dim), b.offset("i64", self.dims, i64(axis + 1)))
        memory = self.memory if self.fixed else b.load("ptr", self.slot)
        host.copy(b.offset("i8", memory, used), host.pointer(value), size)

    def _check_shape(self, value: Place, at: Value) -> None:
        """A row of another shape than those before it has no place beside them."""
        host, b, shape = self.host, self.host.b, value.tensor.shape or ()
        name = self.value.name.replace("%", "%%")
        for axis in self.open:
            had = b.load("i64", b.offset("i64", self.dims, i64(axis)))
            got = host.size(shape[axis - 1])
            differs = b.op("and", b.compare("icmp ne", got, had), b.compare("icmp ne", at, i64(0)))
            with b.when(differs, unlikely=True):
                told = f"dimension {axis - 1} is %lld, and was %lld before"
                host.refuse(f"{name}: iterations give rows of different shapes: {told}", got, had)

    def publish(self) -> None:
        if self.fixed:
            return
        host, b = self.host, self.host.b
        rank = len(self.value.tensor.shape or ())
        host.pointers[self.value] = b.load("ptr", self.slot)
        extents = [b.load("i64", b.offset("i64", self.dims, i64(axis))) for axis in range(rank)]
        host.bind_dims(self.value, extents)
