"""The loop IR: buffers, loops, blocks.

A function moves through stages. `scheduled`: loops around blocks; a block isolates one computation
behind its iterators and the regions it reads and writes, so that schedule primitives can prove
what they do. `flat`: no blocks; plain loops over one-dimensional buffers, vectors explicit, ready
for a code generator. `verify.py` lists the invariants of each, `docs/internals/tensor.md` the text.

Expressions are `sym` expressions with the leaves added here; they are interned. Statements and
buffers carry identity: two equal-looking loops are two loops. Nothing is edited in place.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from tilewright.base.dtype import U64, DType
from tilewright.base.html import program
from tilewright.base.intern import interned, node, set_once
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.sym import TRUE, ZERO, Const, Expr, Size, Var, sub
from tilewright.tensor.scopes import MemoryScope, memory_of

# --------------------------------------------------------------------------- buffers

Value = int | float | str | bool | tuple["Value", ...]  # of annotations
Annotations = tuple[tuple[str, Value], ...]


@node
class Buffer:
    """A dense array in some memory. Unique by identity; the name is a hint.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> fn.params[0].name, fn.params[0].dtype
        ('x', dtype('f32'))
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: str = "global"
    align: tuple[tuple[int, int, int], ...] = ()  # (axis, factor, offset) of storage_align

    @property
    def constant_bytes(self) -> int | None:
        """Its size; None where a dimension is dynamic."""
        size = self.dtype.size_bytes
        for dim in self.shape:
            if not isinstance(dim, Const):
                return None
            size *= int(dim.value)
        return size

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def memory(self) -> MemoryScope:
        """The declaration that the scope names."""
        return memory_of(self.scope)

    def __repr__(self) -> str:
        dims = ", ".join(str(dim) for dim in self.shape)
        return f"<Buffer %{self.name}: {self.dtype}[{dims}] in {self.scope}>"


@node
class Range:
    """`extent` consecutive integers from `start`."""

    start: Expr
    extent: Expr


@node
class Region:
    """A box inside a buffer."""

    buffer: Buffer
    ranges: tuple[Range, ...]


# --------------------------------------------------------------------------- expressions


@interned
class Load(Expr):
    """An element; with a vector index, a vector of elements."""

    buffer: Buffer
    index: tuple[Expr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", _loaded(self.buffer, self.index))

    def children(self) -> tuple[Expr, ...]:
        return self.index

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, children)


@interned
class MaskedLoad(Expr):
    """A vector load that touches only lanes whose mask is true; the others are zero."""

    buffer: Buffer
    index: tuple[Expr, ...]
    mask: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", _loaded(self.buffer, self.index))

    def children(self) -> tuple[Expr, ...]:
        return (*self.index, self.mask)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return MaskedLoad(self.buffer, children[:-1], children[-1])


@interned
class Address(Expr):
    """The address of an element, for hardware instructions and external kernels."""

    buffer: Buffer
    index: tuple[Expr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", U64)

    def children(self) -> tuple[Expr, ...]:
        return self.index

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Address(self.buffer, children)


@interned
class Call(Expr):
    """A scalar function or an instruction by name; the known ones stand in `calls.py`."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Call(self.op, children, self.dtype)


@interned
class Ramp(Expr):
    """The vector base, base + stride, ..., of `lanes` elements."""

    base: Expr
    stride: Expr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.base.dtype.with_lanes(self.lanes))

    def children(self) -> tuple[Expr, ...]:
        return (self.base, self.stride)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        base, stride = children
        return Ramp(base, stride, self.lanes)


@interned
class Broadcast(Expr):
    """A vector of `lanes` equal elements."""

    value: Expr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.value.dtype.with_lanes(self.lanes))

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Broadcast(children[0], self.lanes)


def _loaded(buffer: Buffer, index: tuple[Expr, ...]) -> DType:
    lanes = max((i.dtype.lanes for i in index), default=1)
    return buffer.dtype if lanes == 1 else buffer.dtype.with_lanes(lanes)


# --------------------------------------------------------------------------- reductions


@node
class Reducer:
    """A commutative, associative combination of tuples, with its identity element.

    `result[k]` combines `lhs` (so far) with `rhs` (new). Built-in ones stand in `reducers.py`.
    """

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Expr, ...]


# --------------------------------------------------------------------------- statements

SERIAL, PARALLEL, VECTOR = "serial", "parallel", "vector"
UNROLL, THREAD, VTHREAD = "unroll", "thread", "vthread"
LOOP_KINDS = (SERIAL, PARALLEL, VECTOR, UNROLL, THREAD, VTHREAD)
BLOCK_LEVEL, THREAD_LEVEL = "blockIdx", "threadIdx"  # of the axes of thread loops
CLUSTER_AXIS = f"{BLOCK_LEVEL}.y"  # along which the blocks of a cluster are, if there are any
RESIDENT = "resident"  # annotation of a kernel's loop: blocks a multiprocessor is to have room for
THREAD_AXES = tuple(f"{level}.{axis}" for level in (BLOCK_LEVEL, THREAD_LEVEL) for axis in "xyz")


def level_of(axis: str) -> str:
    """The level of a thread axis: threadIdx of threadIdx.x."""
    return axis.partition(".")[0]


# An annotation of parallel loops: what ran last comes first, when the loop runs again.
ALTERNATING = "alternating"

SPATIAL, REDUCE, SCAN = "spatial", "reduce", "scan"
ITER_KINDS = (SPATIAL, REDUCE, SCAN)


class Stmt:
    """Base of statements. `children` are statements, `exprs` the expressions held directly."""

    __slots__ = ()
    loc: Loc

    def children(self) -> tuple[Stmt, ...]:
        return ()

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return self

    def exprs(self) -> tuple[Expr, ...]:
        return ()

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        return self


@node
class Store(Stmt):
    """buffer[index] = value. With a vector index, lanes whose mask is false are left alone."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None
    loc: Loc = UNKNOWN

    def exprs(self) -> tuple[Expr, ...]:
        mask = () if self.mask is None else (self.mask,)
        return (*self.index, self.value, *mask)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        rank = len(self.index)
        mask = exprs[rank + 1] if self.mask is not None else None
        return Store(self.buffer, exprs[:rank], exprs[rank], mask, self.loc)


@node
class Update(Stmt):
    """A step of a reduction: buffers[index] = reducer(buffers[index], values), all at once."""

    reducer: Reducer
    buffers: tuple[Buffer, ...]
    index: tuple[Expr, ...]
    values: tuple[Expr, ...]
    loc: Loc = UNKNOWN

    def exprs(self) -> tuple[Expr, ...]:
        return (*self.index, *self.values)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        rank = len(self.index)
        return Update(self.reducer, self.buffers, exprs[:rank], exprs[rank:], self.loc)


@node
class Eval(Stmt):
    """An expression evaluated for its effect: a barrier, a prefetch, an instruction."""

    value: Expr
    loc: Loc = UNKNOWN

    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        return Eval(exprs[0], self.loc)


@node
class TensorCall(Stmt):
    """A tensor intrinsic applied to regions, in the order of its parameters (outputs last).

    `phase`: compute overwrites the outputs, reset sets them to the identity, update accumulates.
    """

    intrin: str
    phase: str
    regions: tuple[Region, ...]
    arguments: tuple[tuple[str, int], ...] = ()  # of an intrinsic with parameters
    loc: Loc = UNKNOWN

    def exprs(self) -> tuple[Expr, ...]:
        return region_exprs(self.regions)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        return replace(self, regions=with_region_exprs(self.regions, exprs))


@node
class ExternCall(Stmt):
    """An external kernel called with whole regions; the last `outputs` of them are written."""

    symbol: str
    regions: tuple[Region, ...]
    outputs: int = 1
    loc: Loc = UNKNOWN

    def exprs(self) -> tuple[Expr, ...]:
        return region_exprs(self.regions)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        regions = with_region_exprs(self.regions, exprs)
        return ExternCall(self.symbol, regions, self.outputs, self.loc)


@node
class Seq(Stmt):
    """Statements one after another; never nested, never of length one. Build with `seq`."""

    stmts: tuple[Stmt, ...]
    loc: Loc = UNKNOWN

    def children(self) -> tuple[Stmt, ...]:
        return self.stmts

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return seq(*children)


@node
class If(Stmt):
    cond: Expr
    then: Stmt
    otherwise: Stmt | None = None
    loc: Loc = UNKNOWN

    def children(self) -> tuple[Stmt, ...]:
        return (self.then,) if self.otherwise is None else (self.then, self.otherwise)

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return If(self.cond, children[0], children[1] if len(children) > 1 else None, self.loc)

    def exprs(self) -> tuple[Expr, ...]:
        return (self.cond,)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        return If(exprs[0], self.then, self.otherwise, self.loc)


@node
class Let(Stmt):
    """`var` names `value` inside `body`."""

    var: Var
    value: Expr
    body: Stmt
    loc: Loc = UNKNOWN

    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return Let(self.var, self.value, children[0], self.loc)

    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        return Let(self.var, exprs[0], self.body, self.loc)


@node
class Alloc(Stmt):
    """`buffer` exists inside `body`. From the flat stage on; before, `Function.allocs`."""

    buffer: Buffer
    body: Stmt
    loc: Loc = UNKNOWN

    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return Alloc(self.buffer, children[0], self.loc)


@node
class For(Stmt):
    """`body` for every `var` in start..stop. A loop is known by its variable.

    parallel, vector: iterations are independent. An intermediate buffer that is used only inside
    such a loop is private to each iteration.
    thread: iterations are threads. Loops on one axis within a kernel are one axis: a loop on
    threadIdx.x inside another on threadIdx.x runs just the iteration of the thread it is in.
    Before lowering inserts barriers, threads of a block run in lock step, statement by statement.
    `shared` buffers belong to a block of threads, `local` ones to a thread. A tensor call is
    carried out once by all threads that the thread loops around it do not tell apart; memory of a
    special unit, as `wgmma.sum`, belongs to such a group of threads.
    """

    var: Var
    start: Expr
    stop: Expr
    body: Stmt
    kind: str = SERIAL
    thread: str = ""  # of kind thread: blockIdx.x, threadIdx.y, ...
    annotations: Annotations = ()
    loc: Loc = UNKNOWN

    @property
    def extent(self) -> Expr:
        return self.stop if self.start is ZERO else sub(self.stop, self.start)

    @property
    def level(self) -> str:
        """Of a thread loop: over blocks of threads, or over the threads of one."""
        return level_of(self.thread)

    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return For(
            self.var,
            self.start,
            self.stop,
            children[0],
            self.kind,
            self.thread,
            self.annotations,
            self.loc,
        )

    def exprs(self) -> tuple[Expr, ...]:
        return (self.start, self.stop)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        start, stop = exprs
        return For(
            self.var,
            start,
            stop,
            self.body,
            self.kind,
            self.thread,
            self.annotations,
            self.loc,
        )


@node
class Iter:
    """A block iterator: `var` takes each value of 0..extent once."""

    var: Var
    extent: Expr
    kind: str = SPATIAL


@node
class Block(Stmt):
    """One computation. Its body speaks only of its iterators and of sizes, never of loops.

    `bindings` gives the iterators their values from the loops around; instances whose `predicate`
    (over loop variables) is false do not run. `init` runs before the body where every reduce
    iterator is 0. A block is known by its name, unique in the function.
    """

    name: str
    iters: tuple[Iter, ...]
    bindings: tuple[Expr, ...]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr = TRUE
    annotations: Annotations = ()
    loc: Loc = UNKNOWN

    def children(self) -> tuple[Stmt, ...]:
        return (self.body,) if self.init is None else (self.body, self.init)

    def with_children(self, children: tuple[Stmt, ...]) -> Stmt:
        return replace(self, body=children[0], init=children[1] if len(children) > 1 else None)

    def exprs(self) -> tuple[Expr, ...]:
        extents = tuple([it.extent for it in self.iters])
        regions = (*region_exprs(self.reads), *region_exprs(self.writes))
        return (*self.bindings, self.predicate, *extents, *regions)

    def with_exprs(self, exprs: tuple[Expr, ...]) -> Stmt:
        n = len(self.iters)
        extents = exprs[n + 1 : 2 * n + 1]
        at = 2 * n + 1 + 2 * sum(len(region.ranges) for region in self.reads)
        return replace(
            self,
            bindings=exprs[:n],
            predicate=exprs[n],
            iters=tuple(
                it if it.extent is extent else Iter(it.var, extent, it.kind)
                for it, extent in zip(self.iters, extents, strict=True)
            ),
            reads=with_region_exprs(self.reads, exprs[2 * n + 1 : at]),
            writes=with_region_exprs(self.writes, exprs[at:]),
        )


def region_exprs(regions: tuple[Region, ...]) -> tuple[Expr, ...]:
    """start, extent, start, extent, ... of every range."""
    return tuple([x for region in regions for r in region.ranges for x in (r.start, r.extent)])


def with_region_exprs(regions: tuple[Region, ...], exprs: tuple[Expr, ...]) -> tuple[Region, ...]:
    """The regions with the expressions of `region_exprs` replaced."""
    at = iter(exprs)
    return tuple(
        [
            Region(region.buffer, tuple([Range(next(at), next(at)) for _ in region.ranges]))
            for region in regions
        ]
    )


def seq(*stmts: Stmt) -> Stmt:
    """Statements in order, nested sequences joined; one statement stands alone."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


# --------------------------------------------------------------------------- functions

SCHEDULED, FLAT, DEVICE = "scheduled", "flat", "device"
STAGES = (SCHEDULED, FLAT, DEVICE)


@node
class Function:
    """A tensor function. Parameters are buffers (outputs last) and scalars.

    Sizes in the parameters' shapes take their values from the arguments; `requires` is checked at
    entry, before anything else runs. `==` compares structure, names of variables aside.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> fn.name, fn.stage
        ('f', 'scheduled')
        >>> tensor.parse(str(fn)) == fn
        True
    """

    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt
    allocs: tuple[Buffer, ...] = ()
    requires: tuple[Expr, ...] = ()
    stage: str = SCHEDULED
    attrs: Annotations = ()
    loc: Loc = UNKNOWN

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The parameters that are buffers."""
        return tuple(param for param in self.params if isinstance(param, Buffer))

    def __repr__(self) -> str:
        return f"<Function @{self.name}, stage {self.stage}>"

    def _repr_html_(self) -> str:
        """The program, in notebooks."""
        return program(f"@{self.name}, stage {self.stage}", str(self))

    def __hash__(self) -> int:
        return hash((self.name, len(self.params), self.stage))


# Of a block: no instance writes what another one reads or writes. What places its data tells cannot
# be proved; the interpreter finds races.
INDEPENDENT = "independent"


def annotation(holder: For | Block, key: str, default: Any = None) -> Any:
    """The value annotated under `key`."""
    for name, value in holder.annotations:
        if name == key:
            return value
    return default


def annotated(holder: Annotations, key: str, value: Value | None) -> Annotations:
    """The annotations with `key` set, or removed when `value` is None; sorted by key."""
    kept = [(name, old) for name, old in holder if name != key]
    if value is not None:
        kept.append((key, value))
    return tuple(sorted(kept, key=lambda item: item[0]))


def sizes_of(fn: Function) -> dict[Size, None]:
    """The dimension variables of the parameters, in order of appearance."""
    found: dict[Size, None] = {}
    for buffer in fn.buffers:
        for dim in buffer.shape:
            if isinstance(dim, Size):
                found[dim] = None
    return found
