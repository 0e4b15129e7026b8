"""The verifier: `verify(fn)` raises when a program breaks an invariant of its stage.

Of every stage
 1. A variable is used only where a loop, a let, a block iterator or a parameter binds it; a size
    is a dimension of a parameter, or a scalar parameter itself.               TW2030
 2. A variable is bound once in the whole function.                           TW2031
 3. A buffer is used only where it is a parameter or allocated, and it is that once.  TW2032
    Its memory is declared.                                                   TW2047
 4. Operands have the types their operation takes; a store has the type of its buffer. TW2033
 5. An access has an index per dimension, a region a range per dimension.     TW2034
 6. A sequence holds no sequence, and not exactly one statement.              TW2035
 7. Loops are of a known kind; only a thread loop names an axis, a known one.  TW2036
 8. In a kernel, that is inside an outermost thread loop, loops of one axis have one extent, which
    is known when the kernel starts; it holds no parallel loop, and no parallel or vector loop
    holds it.                                                                 TW2037
 9. A barrier stands inside thread or virtual-thread loops and outside vector loops.  TW2038
10. An address is an argument of a prefetch or of an instruction; a function with an effect is
    evaluated by `eval` alone; a function is called with the arguments it takes.  TW2039

Of stage scheduled
11. Block names are unique.                                                   TW2040
12. A block binds each iterator by one expression; iterators are spatial, reduce or scan.  TW2041
13. Body, init and regions of a block use its own iterators, sizes and scalar parameters, and what
    is bound inside it: never a loop around it.                               TW2042
14. A block declares the buffers it reads and writes, and accesses nothing that provably lies
    outside the declared regions. The accumulator of a reduction counts as written only.  TW2043
15. While there are blocks, intermediates stand in `allocs`, not in alloc statements.  TW2044

Of stages flat and device
16. There are no blocks, updates, tensor calls, and no `allocs`.              TW2045
17. An access has one index, the row-major offset. Intermediates have one dimension, unless handed
    to an external kernel.                                                    TW2034, TW2046
18. Vector and unroll loops have constant extents.                            TW2036
19. Of stage device: every thread comes to a kernel's `grid.wait`, and before it only weights are
    read, and nothing is written.                                             TW2336
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from tilewright import sym
from tilewright.base.dtype import BOOL, INDEX, DType
from tilewright.base.errors import CompilerBug, Excerpt, UserError
from tilewright.sym import Const, Context, Expr, Size, Var
from tilewright.tensor import dependent_launch, ir
from tilewright.tensor.calls import CALLS, result_type
from tilewright.tensor.ir import (
    Address,
    Block,
    Buffer,
    Call,
    For,
    Function,
    Load,
    MaskedLoad,
    Region,
    Stmt,
)
from tilewright.tensor.operand_types import type_fault
from tilewright.tensor.printer import Printer
from tilewright.tensor.regions import are_disjoint, called_regions, point
from tilewright.tensor.scopes import memory_of
from tilewright.tensor.visit import blocks, walk


class VerifyError(CompilerBug):
    """A program breaks an invariant of its stage.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[n]) stage flat { for %i in vector 0..n { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> try:
        ...     tensor.verify(fn)
        ... except tensor.VerifyError as error:
        ...     print(error.code)
        ...
        TW2036
    """


def verify(fn: Function) -> None:
    """Check every invariant of the function's stage.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> tensor.verify(fn)
    """
    verifier = _Verifier(fn)
    verifier.run()
    fault = dependent_launch.fault_of(fn) if fn.stage == ir.DEVICE else None
    if fault is not None:
        stmt, what = fault
        verifier.fail("TW2336", f"this {what}", stmt)


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a statement."""

    variables: dict[Var, None]
    buffers: dict[Buffer, None]
    block: Block | None = None
    kernel: For | None = None
    outside_kernel: dict[Var, None] | None = None
    in_threads: bool = False
    in_vector: str = ""  # the kind of a parallel or vector loop around
    ctx: Context = sym.EMPTY

    def bind(self, *variables: Var) -> _Around:
        return replace(self, variables=self.variables | dict.fromkeys(variables))


class _Verifier:
    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.flat = fn.stage != ir.SCHEDULED
        self.scalars = {p: None for p in fn.params if isinstance(p, Var)} | dict(
            ir.sizes_of(fn).items()
        )
        self.bound: set[Var] = set(self.scalars)
        self.allocated: set[Buffer] = set(fn.buffers)
        self.typed: set[Expr] = set()  # expressions whose types are known to agree
        self.names: set[str] = set()
        self.axes: dict[For, dict[str, For]] = {}  # per kernel, the first loop of each axis
        self.has_blocks = not self.flat and any(True for _ in blocks(fn.body))
        self.mark: object = None

    def fail(
        self, code: str, message: str, mark: object = None, *, has_text: bool = True
    ) -> NoReturn:
        mark = self.mark if mark is None else mark
        excerpt = None
        if has_text and mark in self.printer.out.spans:
            out = self.printer.out
            excerpt = Excerpt(tuple(out.lines), *out.spans[mark])
        raise VerifyError(
            code,
            message,
            getattr(mark, "loc", self.fn.loc),
            context=f"@{self.fn.name}, stage {self.fn.stage}",
            excerpt=excerpt,
        )

    @cached_property
    def printer(self) -> Printer:
        """The program as an error shows it, with the names it has there."""
        printer = Printer()
        printer.function(self.fn)
        return printer

    def name(self, thing: Var | Buffer) -> str:
        return f"%{self.printer.names.get(thing) or thing.name}"

    def text(self, expr: Expr) -> str:
        return self.printer.expr(expr)

    def run(self) -> None:
        fn = self.fn
        if len(self.allocated) != len(fn.buffers):
            self.fail("TW2032", "a buffer is a parameter twice")
        around = _Around(dict(self.scalars), dict.fromkeys(fn.buffers))
        for buffer in fn.buffers:
            self._buffer(buffer, around)
        for cond in fn.requires:
            self._typed(cond, around, BOOL, "a requirement")
        if self.flat and fn.allocs:
            self.fail("TW2045", f"{self.name(fn.allocs[0])} stands in allocs at stage {fn.stage}")
        for buffer in fn.allocs:
            self._allocate(buffer, around)
        around = replace(around, buffers=around.buffers | dict.fromkeys(fn.allocs))
        stack = [(fn.body, around)]
        while stack:
            stmt, around = stack.pop()
            self.mark = _mark(stmt)
            inside = _STMTS[type(stmt)](self, stmt, around)
            stack.extend(zip(reversed(stmt.children()), reversed(inside), strict=True))

    # ------------------------------------------------------------------ buffers, variables

    def _buffer(self, buffer: Buffer, around: _Around) -> None:
        try:
            memory_of(buffer.scope)
        except UserError as error:
            self.fail("TW2047", f"the memory of {self.name(buffer)}: {error.message}", buffer)
        for dim in buffer.shape:
            self._typed(dim, around, INDEX, "a dimension of", buffer)
        for axis, _, _ in buffer.align:
            if not 0 <= axis < buffer.rank:
                self.fail(
                    "TW2034", f"{self.name(buffer)} is aligned along dimension {axis}", buffer
                )

    def _allocate(self, buffer: Buffer, around: _Around) -> None:
        if buffer in self.allocated:
            self.fail("TW2032", f"{self.name(buffer)} is allocated twice", buffer)
        self.allocated.add(buffer)
        self._buffer(buffer, around)

    def _bind(self, var: Var) -> None:
        if var in self.bound:
            self.fail("TW2031", f"{self.name(var)} is bound twice")
        self.bound.add(var)

    def _use(self, buffer: Buffer, around: _Around) -> None:
        if buffer not in around.buffers:
            self.fail("TW2032", f"{self.name(buffer)} is used where it does not exist")

    # ------------------------------------------------------------------ expressions

    def _typed(
        self, expr: Expr, around: _Around, of: DType, what: str, thing: Var | Buffer | None = None
    ) -> None:
        """The expression is well formed, in scope, and of this type."""
        self._expr(expr, around)
        if expr.dtype is not of:
            what = what if thing is None else f"{what} {self.name(thing)}"
            self.fail("TW2033", f"{what} is {self.text(expr)}, of type {expr.dtype}, not {of}")

    def _expr(self, root: Expr, around: _Around) -> None:
        for expr in sym.walk(root):
            if isinstance(expr, Var):
                self._check_scope(expr, around)
            elif isinstance(expr, (Load, MaskedLoad, Address)):
                self._use(expr.buffer, around)
                self._index(expr.buffer, expr.index)
            elif isinstance(expr, Call):
                self._call(expr)
            if expr not in self.typed:
                self._check_types(expr)
                self.typed.add(expr)
            if not isinstance(expr, Call):
                self._check_no_effects(expr)

    def _check_scope(self, var: Var, around: _Around) -> None:
        if var in around.variables:
            return
        if isinstance(var, Size):
            self.fail("TW2030", f"size {var.name} is not a dimension of any parameter")
        if around.block is not None and var in self.bound:
            self.fail(
                "TW2042",
                f"block @{around.block.name} uses {self.name(var)}, which is bound outside it",
            )
        self.fail("TW2030", f"{self.name(var)} is used where nothing binds it")

    def _index(self, buffer: Buffer, index: tuple[Expr, ...]) -> None:
        want = 1 if self.flat else buffer.rank
        if len(index) != want:
            self.fail(
                "TW2034",
                f"{self.name(buffer)} is accessed with {len(index)} indices"
                + (", stage flat takes the row-major offset" if self.flat else f", it has {want}"),
            )
        lanes = max((i.dtype.lanes for i in index), default=1)
        for i in index:
            if i.dtype.scalar is not INDEX or i.dtype.lanes not in (1, lanes):
                self.fail(
                    "TW2033", f"index {self.text(i)} of {self.name(buffer)} has type {i.dtype}"
                )

    def _check_types(self, expr: Expr) -> None:
        reason = type_fault(expr)
        if reason:
            self.fail("TW2033", f"in {self.text(expr)}, {reason}")

    def _check_no_effects(self, expr: Expr) -> None:
        for child in expr.children():
            if isinstance(child, Address):
                self.fail("TW2039", f"{self.text(child)} is not an argument of an instruction")
            if isinstance(child, Call) and child.op in CALLS and CALLS[child.op].numpy is None:
                self.fail("TW2039", f"{child.op} has no value")

    def _call(self, expr: Call) -> None:
        spec = CALLS.get(expr.op)
        is_instruction = spec is None or expr.op == "prefetch"
        for arg in expr.args:
            if isinstance(arg, Address) and not is_instruction:
                self.fail("TW2039", f"{self.text(arg)} is not an argument of an instruction")
            if isinstance(arg, Call) and arg.op in CALLS and CALLS[arg.op].numpy is None:
                self.fail("TW2039", f"{arg.op} has no value")
        if spec is None:
            return
        if len(expr.args) != spec.arity:
            self.fail("TW2039", f"{expr.op} takes {spec.arity} arguments, got {len(expr.args)}")
        wrong_domain = spec.domain != "any" and any(
            not (arg.dtype.is_float if spec.domain == "float" else arg.dtype.is_int)
            for arg in expr.args
        )
        mixed = any(arg.dtype is not expr.args[0].dtype for arg in expr.args)
        if wrong_domain or mixed or (expr.dtype is not result_type(spec, expr.args)):
            types = ", ".join(str(arg.dtype) for arg in expr.args)
            self.fail("TW2039", f"{expr.op} does not take {types} to {expr.dtype}")

    # ------------------------------------------------------------------ statements

    def _store(self, stmt: ir.Store, around: _Around) -> list[_Around]:
        for expr in stmt.exprs():
            self._expr(expr, around)
        self._use(stmt.buffer, around)
        self._index(stmt.buffer, stmt.index)
        lanes = max((i.dtype.lanes for i in stmt.index), default=1)
        want = stmt.buffer.dtype.with_lanes(lanes)
        if stmt.value.dtype is not want:
            self.fail(
                "TW2033",
                f"a value of type {stmt.value.dtype} is stored to {self.name(stmt.buffer)}, "
                f"which takes {want}",
            )
        if stmt.mask is not None and stmt.mask.dtype is not BOOL.with_lanes(lanes):
            self.fail("TW2033", f"a store of {lanes} lanes has a mask of type {stmt.mask.dtype}")
        self._check_regions(stmt, [(stmt.buffer, stmt.index)], around)
        return []

    def _update(self, stmt: ir.Update, around: _Around) -> list[_Around]:
        self._not_flat("an update")
        for expr in stmt.exprs():
            self._expr(expr, around)
        reducer = stmt.reducer
        lengths = {len(stmt.buffers), len(stmt.values), len(reducer.lhs), len(reducer.rhs)}
        lengths |= {len(reducer.result), len(reducer.identity)}
        if lengths != {len(stmt.buffers)}:
            self.fail("TW2033", f"{reducer.name} combines {len(reducer.lhs)} values at a time")
        own = replace(around, variables=dict.fromkeys((*reducer.lhs, *reducer.rhs)), block=None)
        for k, buffer in enumerate(stmt.buffers):
            self._use(buffer, around)
            self._index(buffer, stmt.index)
            parts = (reducer.lhs[k], reducer.rhs[k], reducer.result[k], reducer.identity[k])
            for part in (stmt.values[k], *parts):
                if part.dtype is not buffer.dtype:
                    self.fail(
                        "TW2033",
                        f"{reducer.name} of type {part.dtype} updates {self.name(buffer)}, "
                        f"which takes {buffer.dtype}",
                    )
            self._expr(reducer.result[k], own)
        self._check_regions(stmt, [(buffer, stmt.index) for buffer in stmt.buffers], around)
        return []

    def _eval(self, stmt: ir.Eval, around: _Around) -> list[_Around]:
        self._expr(stmt.value, around)
        if isinstance(stmt.value, Address):
            self.fail("TW2039", f"{self.text(stmt.value)} is not an argument of an instruction")
        if isinstance(stmt.value, Call) and stmt.value.op.startswith("barrier."):
            if not around.in_threads:
                self.fail("TW2038", "a barrier stands outside the thread loops of a kernel")
            if around.in_vector:
                self.fail("TW2038", f"a barrier stands inside a {around.in_vector} loop")
        self._check_regions(stmt, [], around)
        return []

    def _tensor_call(self, stmt: ir.TensorCall, around: _Around) -> list[_Around]:
        self._not_flat("a tensor call")
        return self._regions_call(stmt, around)

    def _extern_call(self, stmt: ir.ExternCall, around: _Around) -> list[_Around]:
        if not 1 <= stmt.outputs <= len(stmt.regions):
            self.fail("TW2034", f"{stmt.symbol} has {stmt.outputs} outputs of {len(stmt.regions)}")
        return self._regions_call(stmt, around)

    def _regions_call(self, stmt: ir.TensorCall | ir.ExternCall, around: _Around) -> list[_Around]:
        for region in stmt.regions:
            self._region(region, around)
        self._check_regions(stmt, [], around)
        return []

    def _region(self, region: Region, around: _Around) -> None:
        self._use(region.buffer, around)
        if len(region.ranges) != region.buffer.rank:
            self.fail(
                "TW2034",
                f"a region of {self.name(region.buffer)} has {len(region.ranges)} ranges, "
                f"the buffer {region.buffer.rank} dimensions",
            )
        for r in region.ranges:
            for expr in (r.start, r.extent):
                self._typed(expr, around, INDEX, "the region of", region.buffer)

    def _seq(self, stmt: ir.Seq, around: _Around) -> list[_Around]:
        if len(stmt.stmts) == 1:
            self.fail("TW2035", "a sequence holds one statement", _mark(stmt.stmts[0]))
        for child in stmt.stmts:
            if isinstance(child, ir.Seq):
                self.fail("TW2035", "a sequence holds a sequence", _first_mark(child))
        return [around] * len(stmt.stmts)

    def _if(self, stmt: ir.If, around: _Around) -> list[_Around]:
        self._typed(stmt.cond, around, BOOL, "the condition")
        self._check_regions(stmt, [], around)
        return [around] * len(stmt.children())

    def _let(self, stmt: ir.Let, around: _Around) -> list[_Around]:
        self._typed(stmt.value, around, stmt.var.dtype, "the value of", stmt.var)
        self._check_regions(stmt, [], around)
        self._bind(stmt.var)
        return [around.bind(stmt.var)]

    def _alloc(self, stmt: ir.Alloc, around: _Around) -> list[_Around]:
        if self.has_blocks:
            self.fail(
                "TW2044",
                f"{self.name(stmt.buffer)} is allocated by a statement while there are blocks",
            )
        self._allocate(stmt.buffer, around)
        if self.flat and stmt.buffer.rank != 1 and not self._is_handed_out(stmt.buffer):
            self.fail("TW2046", f"{self.name(stmt.buffer)} has {stmt.buffer.rank} dimensions")
        return [replace(around, buffers=around.buffers | {stmt.buffer: None})]

    def _is_handed_out(self, buffer: Buffer) -> bool:
        return any(
            isinstance(stmt, ir.ExternCall) and any(r.buffer is buffer for r in stmt.regions)
            for stmt in walk(self.fn.body)
        )

    def _for(self, loop: For, around: _Around) -> list[_Around]:
        self._typed(loop.start, around, INDEX, "the start of loop", loop.var)
        self._typed(loop.stop, around, INDEX, "the stop of loop", loop.var)
        if loop.var.dtype is not INDEX:
            self.fail("TW2033", f"loop {self.name(loop.var)} runs over {loop.var.dtype}")
        self._bind(loop.var)
        self._check_kind(loop)
        inside = around.bind(loop.var)
        inside = replace(inside, ctx=inside.ctx.bind(loop.var, loop.start, loop.stop))
        if loop.kind == ir.THREAD:
            return [self._thread_loop(loop, inside, around)]
        if loop.kind == ir.PARALLEL and around.kernel is not None:
            self.fail("TW2037", f"parallel loop {self.name(loop.var)} stands inside a kernel")
        if loop.kind == ir.VTHREAD:
            return [replace(inside, in_threads=True)]
        if loop.kind in (ir.PARALLEL, ir.VECTOR):
            return [replace(inside, in_vector=loop.kind)]
        return [inside]

    def _check_kind(self, loop: For) -> None:
        var = loop.var
        if loop.kind not in ir.LOOP_KINDS:
            self.fail("TW2036", f"loop {self.name(var)} is of unknown kind {loop.kind}")
        if loop.kind == ir.THREAD and loop.thread not in ir.THREAD_AXES:
            self.fail("TW2036", f"loop {self.name(var)} is bound to unknown axis {loop.thread!r}")
        if loop.kind != ir.THREAD and loop.thread:
            self.fail(
                "TW2036", f"{loop.kind} loop {self.name(var)} names thread axis {loop.thread}"
            )
        is_expanded = loop.kind in (ir.VECTOR, ir.UNROLL)
        if self.flat and is_expanded and not isinstance(sym.simplify(loop.extent), Const):
            extent = self.text(loop.extent)
            self.fail(
                "TW2036", f"{loop.kind} loop {self.name(var)} has extent {extent}, no constant"
            )

    def _thread_loop(self, loop: For, inside: _Around, around: _Around) -> _Around:
        if around.kernel is None:
            if around.in_vector:
                self.fail(
                    "TW2037",
                    f"thread loop {self.name(loop.var)} stands inside a {around.in_vector} loop",
                )
            inside = replace(inside, kernel=loop, outside_kernel=around.variables)
            self.axes[loop] = {}
        assert inside.kernel is not None
        assert inside.outside_kernel is not None
        first = self.axes[inside.kernel].setdefault(loop.thread, loop)
        if not sym.equal(first.extent, loop.extent):
            self.fail(
                "TW2037",
                f"loop {self.name(loop.var)} has extent {self.text(loop.extent)}, loop "
                f"{self.name(first.var)} of the same axis {loop.thread} has "
                f"{self.text(first.extent)}",
            )
        for var in sym.free_vars(loop.start, loop.stop):
            if var not in inside.outside_kernel:
                self.fail(
                    "TW2037",
                    f"the extent of thread loop {self.name(loop.var)} depends on "
                    f"{self.name(var)}, which the kernel itself binds",
                )
        return replace(inside, in_threads=True)

    # ------------------------------------------------------------------ blocks

    def _block(self, block: Block, around: _Around) -> list[_Around]:
        self._not_flat(f"block @{block.name}")
        if block.name in self.names:
            self.fail("TW2040", f"there are two blocks called @{block.name}")
        self.names.add(block.name)
        if len(block.bindings) != len(block.iters):
            self.fail(
                "TW2041",
                f"block @{block.name} has {len(block.iters)} iterators and "
                f"{len(block.bindings)} bindings",
                has_text=False,
            )
        ctx = sym.EMPTY
        own = replace(around, variables=dict(self.scalars), block=block)
        for it, value in zip(block.iters, block.bindings, strict=True):
            if it.kind not in ir.ITER_KINDS:
                self.fail("TW2041", f"iterator {self.name(it.var)} is of unknown kind {it.kind}")
            self._typed(value, around, INDEX, "the binding of", it.var)
            self._typed(it.extent, own, INDEX, "the extent of", it.var)
            self._bind(it.var)
            ctx = ctx.bind(it.var, sym.ZERO, it.extent)
        self._typed(block.predicate, around, BOOL, "the predicate")
        inside = replace(own.bind(*(it.var for it in block.iters)), ctx=ctx)
        for region in (*block.reads, *block.writes):
            self._region(region, inside)
        if around.block is not None:
            self._check_nested(block, around.block)
        return [inside] * len(block.children())

    def _check_nested(self, block: Block, outer: Block) -> None:
        """What a block inside another touches, the outer one declares."""
        for word, mine, theirs in (
            ("reads", block.reads, (*outer.reads, *outer.writes)),
            ("writes", block.writes, outer.writes),
        ):
            for region in mine:
                if all(region.buffer is not other.buffer for other in theirs):
                    self.fail(
                        "TW2043",
                        f"block @{outer.name} does not declare that it {word} "
                        f"{self.name(region.buffer)}, as block @{block.name} inside it does",
                    )

    def _check_regions(
        self, stmt: Stmt, stored: list[tuple[Buffer, tuple[Expr, ...]]], around: _Around
    ) -> None:
        """What a statement of a block touches is declared, as far as can be proved."""
        block = around.block
        if block is None:
            return
        reads = [
            point(x.buffer, x.index)
            for x in sym.walk(*stmt.exprs())
            if isinstance(x, (Load, MaskedLoad))
        ]
        writes = [point(buffer, index) for buffer, index in stored]
        if isinstance(stmt, (ir.TensorCall, ir.ExternCall)):
            inputs, outputs = called_regions(stmt)
            reads.extend(inputs)
            writes.extend(outputs)
        reduces = block.init is not None or any(it.kind == ir.REDUCE for it in block.iters)
        readable = (*block.reads, *block.writes) if reduces else block.reads
        for region in reads:
            self._check_declared(region, readable, "reads", block, around)
        for region in writes:
            self._check_declared(region, block.writes, "writes", block, around)

    def _check_declared(
        self,
        region: Region,
        declared: tuple[Region, ...],
        word: str,
        block: Block,
        around: _Around,
    ) -> None:
        mine = [other for other in declared if other.buffer is region.buffer]
        if not mine:
            self.fail(
                "TW2043",
                f"block @{block.name} does not declare that it {word} {self.name(region.buffer)}",
            )
        if all(
            not _same(region, other) and are_disjoint(region, other, around.ctx) for other in mine
        ):
            index = ", ".join(self.text(r.start) for r in region.ranges)
            self.fail(
                "TW2043",
                f"block @{block.name} {word} {self.name(region.buffer)}[{index}], outside the "
                "region it declares",
            )

    def _not_flat(self, what: str) -> None:
        if self.flat:
            self.fail("TW2045", f"{what} stands at stage {self.fn.stage}")


_STMTS: dict[type[Stmt], Callable[[_Verifier, Any, _Around], list[_Around]]] = {
    ir.Store: _Verifier._store,
    ir.Update: _Verifier._update,
    ir.Eval: _Verifier._eval,
    ir.TensorCall: _Verifier._tensor_call,
    ir.ExternCall: _Verifier._extern_call,
    ir.Seq: _Verifier._seq,
    ir.If: _Verifier._if,
    ir.Let: _Verifier._let,
    ir.Alloc: _Verifier._alloc,
    ir.For: _Verifier._for,
    ir.Block: _Verifier._block,
}


def _same(a: Region, b: Region) -> bool:
    return all(
        x.start is y.start and x.extent is y.extent for x, y in zip(a.ranges, b.ranges, strict=True)
    )


def _mark(stmt: Stmt) -> object:
    """What the printer remembers the place of a statement by."""
    if isinstance(stmt, For):
        return stmt.var
    if isinstance(stmt, ir.Alloc):
        return stmt.buffer
    return stmt.name if isinstance(stmt, Block) else stmt


def _first_mark(stmt: Stmt) -> object:
    """The mark of the first statement that has one: sequences and empty bodies have none."""
    found = (inner for inner in walk(stmt) if not isinstance(inner, ir.Seq))
    first = next(found, None)
    return None if first is None else _mark(first)
