"""The core emitter: one tensor function of stage `flat` as LLVM functions.

`Emitter` writes one LLVM function; a parallel loop's body becomes a function of its own, by its own
emitter. Expressions are emitted once per statement and distinct node; operands that only one arm of
a `select` may evaluate are emitted in that arm (scalars) or under a mask (vectors).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright import sym
from tilewright.base.dtype import INDEX, U64, DType
from tilewright.base.errors import CompilerBug, Unsupported
from tilewright.codegen import hardware
from tilewright.codegen.arith import Arithmetic
from tilewright.codegen.builder import NULL, FunctionText, ModuleText, Value, i1, i32, i64, splat
from tilewright.codegen.calls import RULES
from tilewright.codegen.captures import captures
from tilewright.codegen.debug import FUNCTION, DebugInfo
from tilewright.codegen.expressions import ANY_WIDTH, EXPRESSIONS
from tilewright.codegen.facts import (
    Pitched,
    as_offsets,
    as_pitched,
    as_ramp,
    common_part,
    divisor,
    first_lanes,
    is_non_negative,
    known_lanes,
    open_lanes,
    without_constant,
)
from tilewright.codegen.handlers import Handlers
from tilewright.codegen.index_ranges import WORD, fits, is_natural
from tilewright.codegen.lanes import is_loaded, lane_of
from tilewright.codegen.lookup import bytes_of
from tilewright.codegen.lookup import emit as emit_lookup
from tilewright.codegen.loop_hints import loop_hints, trip_count
from tilewright.codegen.machine import Machine
from tilewright.codegen.memory import Accesses, Memory, Place
from tilewright.codegen.rounding import emit as emit_rounded
from tilewright.codegen.rounding import rounded
from tilewright.codegen.tiles import TileRegisters
from tilewright.codegen.types import literal, memory_type, register_type
from tilewright.sym import Const, Context, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.assembly import Assembly
from tilewright.tensor.ir import Address, Broadcast, Buffer, Call, Load, MaskedLoad, Stmt
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import prefetched, walk

WORKSPACE_ALIGN = 64
STACK_LIMIT_BYTES = 32 * 1024  # per buffer; larger ones are allocated by the runtime
STACK_TOTAL_BYTES = 64 * 1024  # per function; musl's threads have 128 KB
# What is computed from its children's values.
ARITHMETIC = frozenset((sym.Add, sym.Mul, sym.FloorDiv, sym.FloorMod, sym.Min, sym.Max))


class Emitter:
    """Writes the body of one LLVM function that returns 0 or an error code."""

    def __init__(
        self,
        module: ModuleText,
        machine: Machine,
        builder: FunctionText,
        name: str,
        handlers: Handlers,
        debug: DebugInfo | None = None,
    ) -> None:
        self.module = module
        self.machine = machine
        self.b = builder
        self.name = name
        self.handlers = handlers
        self.debug = debug
        self.arith = Arithmetic(builder, machine)
        self.access = Accesses(builder, machine)
        self.variables: dict[Var, Value] = {}
        self.memories: dict[Buffer, Memory] = {}
        self.aliases: dict[Buffer, str] = {}
        self.tiles = TileRegisters()
        self.tile_maps: dict[object, Value] = {}  # GPU: tensor maps of matrices with tiles
        self.awaited: tuple[Buffer, ...] = ()  # GPU: memory that earlier kernels may still use
        self.weights: dict[Buffer, Memory] = {}  # GPU: weights, as read after the grid wait
        self.tile_bytes = 0  # of tiles, in dynamic shared memory so far
        self.static_bytes = 0  # of other buffers in shared memory so far
        self.reordered: frozenset[Buffer] = frozenset()  # GPU: permuted tiles, see `column_order`
        self.cluster = 1  # GPU: blocks per cluster
        self.assembly: Mapping[str, Assembly] = {}
        self.non_negative: dict[Var, None] = {}
        self.ranges: Context | None = None  # if given, indices that fit are computed in 32 bits
        self.prefetch_if: Value | None = None  # the condition on prefetches
        self.is_task = False  # inside a parallel loop: further ones run serially
        self.around: list[Var] = []  # variables of enclosing loops, the innermost last
        self.lines: dict[object, str] = {}  # debug locations of statements
        self._workspaces: list[Value] = []
        self._stack_bytes = 0
        self._memo: dict[Expr, Value] = {}
        self._mask: Value | None = None
        self._is_known = True  # whether the current mask is constant

    # ------------------------------------------------------------------ statements

    def stmt(self, stmt: Stmt) -> None:
        """Emit a statement; chains of lets and sequences are followed without recursion."""
        while True:
            self._memo = {}
            self.b.debug = self.lines.get(_mark(stmt), self.b.debug)
            if isinstance(stmt, ir.Let):
                self.variables[stmt.var] = self.index(stmt.value)
                if stmt.var.dtype is INDEX and is_non_negative(stmt.value, self.non_negative):
                    self.non_negative[stmt.var] = None
                stmt = stmt.body
            elif isinstance(stmt, ir.Seq):
                if not stmt.stmts:
                    return
                for child in stmt.stmts[:-1]:
                    self.stmt(child)
                stmt = stmt.stmts[-1]
            else:
                STMTS[type(stmt)](self, stmt)
                return

    def _store(self, stmt: ir.Store) -> None:
        known = None if stmt.mask is None else known_lanes(stmt.mask)
        if known is not None and not any(known):
            return
        if known is not None and all(known):
            stmt = replace(stmt, mask=None)
        place, lanes = self._place(stmt.buffer, stmt.index)
        value = self._spread(self.expr(stmt.value), lanes)
        part = None if stmt.mask is None or place.stride != 1 else open_lanes(stmt.mask)
        if part:
            self.access.store_part(value, place, part)
            return
        left = self._first_lanes(stmt.mask, place, lanes)
        if left is not None:
            self.access.store_first(value, place, left)
            return
        mask = None if stmt.mask is None else self.expr(stmt.mask)
        if mask is not None and lanes == 1:
            with self.b.when(mask):
                self.access.store(value, place, 1)
            return
        self.access.store(value, place, lanes, None if mask is None else self._spread(mask, lanes))

    def _first_lanes(self, mask: Expr | None, place: Place, lanes: int) -> Value | None:
        """The number of leading lanes stored, where testing that is faster than a mask."""
        if not isinstance(mask, (sym.Lt, sym.Le)) or place.stride != 1 or lanes & (lanes - 1):
            return None
        found = first_lanes(mask) if self.access.has_slow_masks(place, lanes) else None
        return self.index(found[0]) if found is not None and found[1] else None

    def _update(self, stmt: ir.Update) -> None:
        lanes = max((i.dtype.lanes for i in stmt.index), default=1)
        places = [self._place(buffer, stmt.index)[0] for buffer in stmt.buffers]
        values = [self.expr(value) for value in stmt.values]
        for var, place in zip(stmt.reducer.lhs, places, strict=True):
            self.variables[var] = self.access.load(place, lanes)
        for var, value in zip(stmt.reducer.rhs, values, strict=True):
            self.variables[var] = self._spread(value, lanes)
        self._memo = {}
        with self.b.nested():  # updates by one reducer share its variables
            results = [self.expr(result) for result in stmt.reducer.result]
        for place, result in zip(places, results, strict=True):
            self.access.store(result, place, lanes)

    def _eval(self, stmt: ir.Eval) -> None:
        value = stmt.value
        handler = self.handlers.try_call(value.op) if isinstance(value, Call) else None
        if isinstance(value, Call) and handler is not None:
            handler(self, value, True)
        else:
            self.expr(value)

    def branch(self, stmt: ir.If) -> None:
        if self._prefetch_if(stmt):
            return
        cond = self.expr(stmt.cond)
        if stmt.otherwise is None:
            with self.b.when(cond):
                self.stmt(stmt.then)
            return
        with self.b.branch(cond) as (then, otherwise):
            with then:
                self.stmt(stmt.then)
            with otherwise:
                self.stmt(stmt.otherwise)

    def _prefetch_if(self, stmt: ir.If) -> bool:
        """Predicate prefetches by selecting their address: a branch in the innermost loop may make
        LLVM spill all live registers around it, accumulators among them."""
        inner = list(walk(stmt))
        if stmt.otherwise is not None or self.handlers.try_call("prefetch"):
            return False
        if any(prefetched(each) is None for each in inner if not each.children()):
            return False
        loops = [each for each in inner if isinstance(each, ir.For)]
        if not all(self._is_harmless(expr) for each in inner for expr in each.exprs()) or any(
            trip_count(loop) is None for loop in loops
        ):
            return False
        outer, cond = self.prefetch_if, self.expr(stmt.cond)
        self.prefetch_if = cond if outer is None else self.b.select(outer, cond, outer)
        self.stmt(stmt.then)
        self.prefetch_if = outer
        return True

    def _is_harmless(self, expr: Expr) -> bool:
        """Whether an expression can be evaluated speculatively."""
        divisions = (sym.FloorDiv, sym.FloorMod)
        return not is_data_dependent(expr) and all(
            isinstance(node.b, Const) for node in sym.walk(expr) if isinstance(node, divisions)
        )

    def _prefetch(self, node: Call) -> Value:
        place, (address,) = self.pointer(node.args[0]), node.args
        if self.prefetch_if is not None:
            assert isinstance(address, Address)
            first = Address(address.buffer, tuple(sym.const(0, INDEX) for _ in address.index))
            place = self.b.select(self.prefetch_if, place, self.pointer(first))
        return RULES["prefetch"](self.arith, node.dtype, node.dtype, (place,))

    def _for(self, loop: ir.For) -> None:
        if loop.kind in (ir.THREAD, ir.VTHREAD):
            raise Unsupported(
                "TW3010",
                f"loop %{loop.var.name} of kind {loop.kind} has no meaning on a CPU",
                loop.loc,
                help="bind it to no thread axis, or compile for cuda",
            )
        if loop.kind == ir.PARALLEL and not self.is_task:
            self._parallel(loop)
            return
        start, stop = self._alike(self.index(loop.start), self.index(loop.stop))
        count = trip_count(loop)
        if is_non_negative(loop.start, self.non_negative):
            self.non_negative[loop.var] = None
        if count == 1:
            self.variables[loop.var] = start
            self.stmt(loop.body)
            return
        notes = self._loop_notes(loop)
        some = count is not None and count > 0
        with self.b.loop(start, stop, hint=loop.var.name, some=some, notes=notes) as index:
            self.variables[loop.var] = index
            self.around.append(loop.var)
            self.stmt(loop.body)
            self.around.pop()

    def _loop_notes(self, loop: ir.For) -> str:
        hints = loop_hints(loop, self.around, self.machine)
        if not hints:
            return ""
        nodes = "".join(f", {self.module.metadata(hint)}" for hint in hints)
        return f", !llvm.loop {self.module.distinct(f'!{{@{nodes}}}')}"

    def _alloc(self, stmt: ir.Alloc) -> None:
        name = stmt.buffer.memory.name
        self.handlers.allocs.get(name, self.handlers.other_alloc)(self, stmt)

    def allocate(self, stmt: ir.Alloc) -> None:
        """Allocate a small buffer of static size on the stack, others by the runtime."""
        buffer = stmt.buffer
        if not buffer.memory.is_addressable:
            raise Unsupported(
                "TW3043",
                f"%{buffer.name} is in {buffer.scope}, which {self.machine.triple} does not have",
                stmt.loc,
                help="compile for a target that has it, or keep the buffer in local memory",
            )
        alias = self.aliases.get(buffer, "")
        size = buffer.constant_bytes
        if size is not None and self._fits_stack(buffer, size):
            self._stack_bytes += size
            count = max(1, size // buffer.dtype.size_bytes)
            pointer = self.b.alloca(
                f"[{count} x {memory_type(buffer.dtype)}]",
                align=WORKSPACE_ALIGN,
                hint=buffer.name,
            )
            self.memories[buffer] = Memory(pointer, WORKSPACE_ALIGN, alias)
            self.b.call("llvm.lifetime.start.p0", "void", pointer)
            self.stmt(stmt.body)
            self.b.call("llvm.lifetime.end.p0", "void", pointer)
            return
        pointer = self.b.call("tw_workspace_alloc", "ptr", self._size_bytes(buffer))
        failed = self.b.compare("icmp eq", pointer, NULL)
        with self.b.when(failed, unlikely=True):
            self.fail(i32(hardware.NO_MEMORY))
        self.memories[buffer] = Memory(pointer, WORKSPACE_ALIGN, alias)
        self._workspaces.append(pointer)
        self.stmt(stmt.body)
        self._workspaces.pop()
        self.b.call("tw_workspace_free", "void", pointer)

    def _fits_stack(self, buffer: Buffer, size: int) -> bool:
        if size == 0:
            return True
        if buffer.memory.owner is Owner.DEVICE or size > STACK_LIMIT_BYTES:
            return False
        return self._stack_bytes + size <= STACK_TOTAL_BYTES

    def _size_bytes(self, buffer: Buffer) -> Value:
        """The bytes of a buffer, -1 when that overflows: the runtime then refuses."""
        total = i64(buffer.dtype.size_bytes)
        flawed = i1(False)
        for factor in _factors(buffer.shape):
            extent = self.expr(factor)
            pair = self.b.call("llvm.smul.with.overflow.i64", "{ i64, i1 }", total, extent)
            total = self.b.value("i64", f"extractvalue {pair}, 0")
            over = self.b.value("i1", f"extractvalue {pair}, 1")
            flawed = self.b.op("or", flawed, over)
        return self.b.select(flawed, i64(-1), total)

    def fail(self, code: Value) -> None:
        """Return with an error, releasing scratch memory."""
        for pointer in reversed(self._workspaces):
            self.b.call("tw_workspace_free", "void", pointer)
        self.b.ret(code)

    def check(self, code: Value) -> None:
        """Continue only if the code is 0."""
        with self.b.when(self.b.compare("icmp ne", code, i32(0)), unlikely=True):
            self.fail(code)

    # ------------------------------------------------------------------ parallel loops

    def _parallel(self, loop: ir.For) -> None:
        """The body becomes a function of (environment, begin, end) that the runtime calls."""
        used = captures(loop.body, (loop.var,))
        start, stop = self.expr(loop.start), self.expr(loop.stop)
        values = [self.variables[var] for var in used.variables]
        values += [self.memories[buffer].pointer for buffer in used.buffers]
        values.append(start)
        types = [value.type for value in values]
        struct = "{ " + ", ".join(types) + " }"
        environment = self.b.alloca(struct, align=WORKSPACE_ALIGN, hint="environment")
        for at, value in enumerate(values):
            self.b.store(value, self.b.member(struct, environment, at))
        task = f"{self.name}.{loop.var.name}.{len(self.module.functions)}"
        self._task(task, loop, used.variables, used.buffers, struct, types)
        count = self.b.op("sub nsw", stop, start)
        threads = ir.annotation(loop, "threads", 0)
        turns = ir.annotation(loop, ir.ALTERNATING, False)
        run = "tw_parallel_alternating" if turns else "tw_parallel_for"
        code = self.b.call(run, "i32", Value("ptr", f"@{task}"), environment, count, i32(threads))
        self.check(code)

    def _task(
        self,
        name: str,
        loop: ir.For,
        variables: tuple[Var, ...],
        buffers: tuple[Buffer, ...],
        struct: str,
        types: list[str],
    ) -> None:
        params = (("ptr noalias readonly", "environment"), ("i64", "begin"), ("i64", "end"))
        lines = self.debug.lines(name) if self.debug is not None else {}
        suffix = lines.get(FUNCTION, "")
        with self.module.function("i32", name, params, linkage="internal", suffix=suffix) as (
            b,
            (environment, begin, end),
        ):
            inner = Emitter(self.module, self.machine, b, self.name, self.handlers, self.debug)
            inner.is_task, inner.ranges = True, self.ranges
            inner.aliases, inner.lines, inner.assembly = self.aliases, lines, self.assembly
            b.debug = lines.get(loop.var, "")
            members = [
                b.load(type_, b.member(struct, environment, at)) for at, type_ in enumerate(types)
            ]
            inner.variables = dict(zip(variables, members, strict=False))
            inner.non_negative = {var: None for var in variables if var in self.non_negative}
            for buffer, pointer in zip(buffers, members[len(variables) :], strict=False):
                inner.memories[buffer] = replace(self.memories[buffer], pointer=pointer)
            if is_non_negative(loop.start, self.non_negative):
                inner.non_negative[loop.var] = None
            self.handlers.begin(inner, loop.body)
            first = b.op("add nsw", begin, members[-1])
            last = b.op("add nsw", end, members[-1])
            with b.loop(first, last, hint=loop.var.name) as index:
                inner.bind(loop.var, index)
                inner.around = [loop.var]
                inner.stmt(loop.body)
            b.ret(i32(0))

    # ------------------------------------------------------------------ expressions

    def expr(self, root: Expr) -> Value:
        """The value of an expression; an index as 64 bits."""
        value = self.index(root)
        return self._of_width(value, "i64") if root.dtype is INDEX else value

    def _of_width(self, value: Value, type_: str) -> Value:
        """An index as a type that it fits."""
        if not value.text.startswith("%"):
            return Value(type_, value.text)
        return self.b.convert("sext" if type_ == "i64" else "trunc nsw", value, type_)

    def bind(self, var: Var, value: Value) -> None:
        """Bind a variable to a value, in 32 bits where it fits."""
        is_narrow = var.dtype is INDEX and self.ranges is not None and fits(var, self.ranges)
        self.variables[var] = self._of_width(value, "i32") if is_narrow else value

    def _alike(self, *values: Value) -> tuple[Value, ...]:
        """Indices in 32 bits if all of them are, else in 64."""
        is_narrow = self.ranges is not None and all(map(_is_narrow, values))
        type_ = "i32" if is_narrow else "i64"
        return tuple([self._of_width(value, type_) for value in values])

    def is_natural(self, expr: Expr) -> bool:
        """Whether an integer is certainly non-negative."""
        if is_non_negative(expr, self.non_negative):
            return True
        return self.ranges is not None and expr.dtype is INDEX and is_natural(expr, self.ranges)

    def index(self, root: Expr) -> Value:
        """The value of an expression, each node emitted once; an index may have 32 bits."""
        memo, passed = self._memo, self.b.passed
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in memo:
                continue
            if not ready:
                direct = passed.get(node)
                if direct is None:
                    direct = self._direct(node)
                if direct is not None:
                    memo[node] = direct
                    continue
                stack.append((node, True))
                stack += [(child, False) for child in node.children()[::-1]]
                continue
            args = tuple([memo[child] for child in node.children()])
            memo[node] = made = self._computed(node, args)
            if node.dtype is INDEX and not is_data_dependent(node):
                passed[node] = made
        return memo[root]

    def _computed(self, node: Expr, args: tuple[Value, ...]) -> Value:
        """A node's value from those of its children. An index whose range fits 32 bits is computed
        in 32 bits if all its operands fit too, so that nothing overflows on the way."""
        rule = EXPRESSIONS[type(node)]
        if self.ranges is None:
            return rule(self, node, args)
        given = list(args)
        indices = [at for at, child in enumerate(node.children()) if child.dtype is INDEX]
        is_narrow = node.dtype is not INDEX or fits(node, self.ranges)
        stays = (
            is_narrow and type(node) in ANY_WIDTH and all(_is_narrow(args[at]) for at in indices)
        )
        for at in indices:
            given[at] = self._of_width(args[at], "i32" if stays else "i64")
        made = rule(self, node, tuple(given))
        return self._of_width(made, "i32") if node.dtype is INDEX and is_narrow else made

    def forget(self) -> None:
        """Forget emitted values: control flow may not have passed their definitions."""
        self._memo = {}

    def _direct(self, node: Expr) -> Value | None:
        """Nodes that are not computed from all of their children's values."""
        kind = type(node)
        if kind in ARITHMETIC:
            return None
        if kind is Const:
            assert isinstance(node, Const)
            return Value(register_type(node.dtype), literal(node))
        if isinstance(node, Var):
            return self.variables[node]
        if kind is Load or kind is MaskedLoad:
            return self._load(node)
        if kind is Address:
            return self.b.convert("ptrtoint", self.pointer(node), register_type(U64))
        if kind is Call:
            assert isinstance(node, Call)
            handler = self.handlers.try_call(node.op)
            if handler is not None:
                return handler(self, node, False)
            if node.op == "prefetch":
                return self._prefetch(node)
        if kind is sym.Cast or kind is sym.Sub:
            found = rounded(node)
            return None if found is None else emit_rounded(self, found)
        if isinstance(node, sym.Select):
            if is_data_dependent(node.a) or is_data_dependent(node.b):
                return self._guarded(node.cond, node.a, node.b)
        elif isinstance(node, (sym.And, sym.Or)) and is_data_dependent(node.b):
            lanes = node.dtype.lanes
            fixed: Expr = sym.const(isinstance(node, sym.Or), sym.FALSE.dtype)
            fixed = fixed if lanes == 1 else Broadcast(fixed, lanes)
            if isinstance(node, sym.And):
                return self._guarded(node.a, node.b, fixed)
            return self._guarded(node.a, fixed, node.b)
        return None

    def pointer(self, node: Expr) -> Value:
        """The address an expression stands for, as a pointer."""
        if isinstance(node, Address):
            return self.access.address(self._place(node.buffer, node.index)[0])
        return self.b.convert("inttoptr", self.expr(node), "ptr")

    # ------------------------------------------------------------------ guarded evaluation

    def _guarded(self, cond: Expr, a: Expr, b: Expr) -> Value:
        """Select `a` or `b`, evaluating only the chosen one."""
        test = self.expr(cond)
        if not self._reads_more(a) and not self._reads_more(b):
            return self.b.select(test, self.expr(a), self.expr(b))
        if test.lanes > 1:
            is_known = self._is_known
            self._is_known = is_known and known_lanes(cond) is not None
            masked_a = self._under(test, a)
            masked_b = self._under(self.b.op("xor", test, splat(test.type, "true")), b)
            self._is_known = is_known
            return self.b.select(test, masked_a, masked_b)
        with self.b.branch(test) as (then, otherwise):
            with then:
                value_a = self._apart(a)
            with otherwise:
                value_b = self._apart(b)
        return self.b.phi((value_a, then.end), (value_b, otherwise.end))

    def _reads_more(self, root: Expr) -> bool:
        """Whether the expression has loads that this statement has not emitted yet."""
        seen: set[Expr] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if node in seen or node in self._memo or not is_data_dependent(node):
                continue
            if isinstance(node, (Load, MaskedLoad)):
                return True
            seen.add(node)
            stack.extend(node.children())
        return False

    def _apart(self, expr: Expr) -> Value:
        """Evaluate in a scope of its own: values emitted there are not reused outside."""
        outer = self._memo
        self._memo = dict(outer)
        value = self.expr(expr)
        self._memo = outer
        return value

    def _under(self, mask: Value, expr: Expr) -> Value:
        """Evaluate with loads masked."""
        if not is_data_dependent(expr):
            return self.expr(expr)
        outer = self._mask
        self._mask = mask if outer is None else self.b.op("and", outer, mask)
        value = self._apart(expr)
        self._mask = outer
        return value

    # ------------------------------------------------------------------ memory

    def _load(self, node: Expr) -> Value:
        assert isinstance(node, (Load, MaskedLoad))
        looked_up = bytes_of(node.buffer, node.index) if self.machine.byte_tables else None
        if looked_up is not None and isinstance(node, Load) and self._mask is None:
            machine, table = self.machine, self.memories[node.buffer]
            x = self.expr(looked_up)
            return emit_lookup(self.b, machine.byte_tables, machine.byte_lanes, table, x)
        place, lanes = self._place(node.buffer, node.index)
        mask, is_known = None, self._is_known
        known = known_lanes(node.mask) if isinstance(node, MaskedLoad) else None
        if isinstance(node, MaskedLoad) and not all(known or (False,)):
            mask = self._spread(self.expr(node.mask), lanes)
            is_known = is_known and known is not None
            if known is not None and self._mask is None and any(known) and place.offsets:
                loaded = self.access.load(place.of_lanes(known), lanes)
                return self.b.select(mask, loaded, Value(loaded.type, "zeroinitializer"))
        if self._mask is not None and lanes == self._mask.lanes:
            mask = self._mask if mask is None else self.b.op("and", self._mask, mask)
        if lanes == 1 and (mask is not None or self._mask is not None):
            return self._load_if(place, mask)
        if mask is not None and not is_known and self.access.has_slow_masks(place, lanes):
            return self.access.load_whole(place, lanes, mask, self._count(node.buffer))
        if mask is None and self.machine.loads_lanes and lanes > 1 and place.is_scattered:
            apart = common_part(flat_index(node.buffer, node.index))[1]
            is_steady = self.around and not sym.uses_var(apart, {self.around[-1]})
            if is_steady and is_loaded(apart):  # the indices leave the innermost loop
                each = [self.index(lane_of(apart, lane)) for lane in range(lanes)]
                return self.access.load_lanes(place, each)
        return self.access.load(place, lanes, mask)

    def _count(self, buffer: Buffer) -> Value:
        """The elements of a buffer."""
        count: Expr = sym.ONE
        for dim in buffer.shape:
            count = sym.mul(count, dim)
        return self.index(count)

    def _load_if(self, place: Place, mask: Value | None) -> Value:
        """Load one element, if its mask holds and any lane of the enclosing one does."""
        if self._mask is not None:
            lanes = self._mask.lanes
            name = f"llvm.vector.reduce.or.v{lanes}i1"
            some = self.b.call(name, "i1", self._mask)
            mask = some if mask is None else self.b.op("and", some, mask)
        assert mask is not None
        with self.b.branch(mask) as (then, otherwise):
            with then:
                loaded = self.access.load(place, 1)
            with otherwise:
                pass
        zero = Value(loaded.type, "0.0" if loaded.type in ("float", "double") else "0")
        if loaded.type == "i1":
            zero = i1(False)
        return self.b.phi((loaded, then.end), (zero, otherwise.end))

    def _place(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Place, int]:
        """Where an access goes, and its number of lanes."""
        memory = self.memories.get(buffer)
        if memory is None and not buffer.memory.is_addressable:
            raise Unsupported(
                "TW3043",
                f"%{buffer.name} is in {buffer.scope}, which loads and stores cannot reach",
                help="tensorize the blocks that fill and read it",
            )
        if memory is None:
            raise CompilerBug("TW3902", f"buffer %{buffer.name} has no memory here")
        flat = flat_index(buffer, index)
        lanes = flat.dtype.lanes
        ramp = as_ramp(flat) if lanes > 1 else (flat, sym.ZERO)
        if ramp is not None and isinstance(ramp[1], Const):
            base, stride = ramp[0], int(ramp[1].value)
            is_run = stride == 1 or lanes == 1
            if is_run and self.ranges is not None and not isinstance(base, Const):
                run = self._run(memory, base, buffer.dtype)
                return replace(run, divisor=divisor(base), stride=stride), lanes
            return Place(memory, self.index(base), divisor(base), buffer.dtype, stride), lanes
        known = as_offsets(flat) if lanes > 1 else None
        if known is not None:
            base, constant = without_constant(known[0])
            offsets = tuple(offset + constant for offset in known[1])
            part = math.gcd(divisor(base), *map(divisor, buffer.shape[-1:]))
            return Place(memory, self.index(base), 1, buffer.dtype, None, offsets, part), lanes
        if lanes == 1:
            return Place(memory, self.index(flat), 1, buffer.dtype), lanes
        rows = as_pitched(flat)
        if rows is not None and is_non_negative(rows.pitch, self.non_negative):
            place = self._rows(memory, rows, buffer.dtype)
            if place.has_runs:
                return place, lanes
        common, apart = common_part(flat)
        origin = None if isinstance(common, Const) and common.value == 0 else self.index(common)
        return Place(memory, self.index(apart), 1, buffer.dtype, origin=origin), lanes

    def _rows(self, memory: Memory, found: Pitched, of: DType) -> Place:
        """Lanes in rows with a dynamic stride."""
        index, pitch = self.index(found.base), self.index(found.pitch)
        return Place(memory, index, 1, of, offsets=found.offsets, rows=found.rows, pitch=pitch)

    def _run(self, memory: Memory, index: Expr, of: DType) -> Place:
        """Contiguous lanes from an index on. Constant offsets are kept apart, so that accesses
        share the rest of the address: LLVM does so for 64-bit sums, but not for 32-bit ones that
        may wrap."""
        near, beyond = without_constant(index)
        return Place(memory, self.index(near), 1, of, beyond=beyond)

    def _spread(self, value: Value, lanes: int) -> Value:
        """A scalar stored to a vector place goes to every lane."""
        return self.b.splat(value, lanes) if value.lanes == 1 and lanes > 1 else value


def _is_narrow(index: Value) -> bool:
    """Whether an index has 32 bits, or is a constant that fits."""
    is_number = not index.text.startswith("%")
    return index.type == "i32" or (is_number and int(index.text) in WORD)


def flat_index(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """The position of an element in row-major order."""
    if len(index) == 1:
        return index[0]
    lanes = max((i.dtype.lanes for i in index), default=1)

    def wide(expr: Expr) -> Expr:
        return expr if lanes == expr.dtype.lanes else Broadcast(expr, lanes)

    position: Expr = wide(sym.ZERO)
    for dim, part in zip(buffer.shape, index, strict=True):
        scaled = sym.mul(position, wide(dim)) if lanes == 1 else sym.Mul(position, wide(dim))
        position = sym.add(scaled, part) if lanes == 1 else sym.Add(scaled, wide(part))
    return position


def _mark(stmt: Stmt) -> object:
    """The printer's key for a statement's line."""
    if isinstance(stmt, ir.For):
        return stmt.var
    if isinstance(stmt, ir.Alloc):
        return stmt.buffer
    return stmt


def _factors(dims: tuple[Expr, ...]) -> list[Expr]:
    """The factors of a product of dimensions, to check each multiplication for overflow."""
    found: list[Expr] = []
    stack = list(reversed(dims))
    while stack:
        dim = stack.pop()
        if isinstance(dim, sym.Mul):
            stack += [dim.b, dim.a]
        else:
            found.append(dim)
    return found


STMTS: dict[type[Stmt], Callable[[Emitter, Any], None]] = {
    ir.Store: Emitter._store,
    ir.Update: Emitter._update,
    ir.Eval: Emitter._eval,
    ir.If: lambda emitter, stmt: emitter.branch(stmt),
    ir.For: Emitter._for,
    ir.Alloc: Emitter._alloc,
    ir.ExternCall: hardware.extern_call,
}
