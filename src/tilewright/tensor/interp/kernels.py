"""Code for threads in lock step: the same statements, over arrays with one row per thread.

A kernel is an outermost loop bound to a thread axis. All axes bound anywhere inside it span its
grid: a statement runs on every thread of the grid, and a loop bound to an axis only gives its
variable the thread's position. Expressions that are the same for all threads stay numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.sym import Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.interp.accesses import LOAD, STORE
from tilewright.tensor.interp.emit import Statements
from tilewright.tensor.interp.placement import written
from tilewright.tensor.interp.warpgroups import READ, loops_of
from tilewright.tensor.interp.writer import tuple_text
from tilewright.tensor.ir import Block, Buffer, For, Load, MaskedLoad, Stmt
from tilewright.tensor.join_kernels import GRID_BARRIER
from tilewright.tensor.passes.pipeline_loops import ASYNC_RUN, COMMIT, WAIT
from tilewright.tensor.proxies import FENCE, crossing
from tilewright.tensor.regions import called_regions
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import exprs, walk

WARPGROUP = ("wgmma.zero", "wgmma.dot", "wgmma.store")  # instructions of 128 threads together
_LEAVES = (ir.Store, ir.Update, ir.TensorCall, ir.ExternCall)


class LockStep(Statements):
    """Emits what lanes do together. Shares everything with the emitter of the code around."""

    def __init__(self, around: Statements) -> None:
        self.__dict__.update(around.__dict__)
        self.varying: set[Var] = set()
        self.wide = {}
        self.axes: dict[str, str] = {}  # the thread axes of the kernel and their extents
        self.bound: list[str] = []  # the axes of the thread loops around
        self.crossing: set[Buffer] = set()  # what threads write for asynchronous instructions

    def is_wide_itself(self, expr: Expr) -> bool:
        return (
            expr in self.varying
            or isinstance(expr, (Load, MaskedLoad))
            or super().is_wide_itself(expr)
        )

    def check(self, ok: str, fail: str, *args: str, wide: bool) -> None:
        super().check(ok, fail, *args, wide=True)  # it is about one of the lanes in any case

    def vary(self, *variables: Var) -> None:
        """From here on the variables differ between lanes."""
        self.varying.update(variables)
        self.wide.clear()

    def stmt(self, stmt: Stmt) -> None:
        super().stmt(stmt)
        # Barriers are lowering's to insert: until it has, threads meet after every statement.
        if self.fn.stage == ir.SCHEDULED and not self.pinned and isinstance(stmt, _LEAVES):
            self.line(f"{self.lanes}.settle()")

    # ------------------------------------------------------------------ loops

    def kernel(self, loop: For) -> None:
        """Emit a whole kernel, launched by the code around."""
        inside = _bound(loop)
        for stmt in walk(loop):
            if isinstance(stmt, For) and stmt.kind == ir.THREAD:
                self._check_known_at_launch(stmt, inside)
                if stmt.thread not in self.axes:
                    self.axes[stmt.thread] = self.expr(stmt.extent)
        meets = any(node is GRID_BARRIER for node in exprs(loop))
        changed = written(loop)
        meets |= any(buffer.memory.owner is Owner.CLUSTER for buffer in changed)
        self.tracked, self.crossing = set(changed), crossing(loop)
        self.lanes = self.fresh_name("lanes")
        axes = ", ".join(f"{axis!r}: {extent}" for axis, extent in self.axes.items())
        with self.indented(
            f"for {self.lanes} in launch(failures, random, {{{axes}}}, "
            f"{self._private_size(loop)}, {meets}):"
        ):
            self._for(loop)

    def _private_size(self, loop: For) -> str:
        """How many elements a thread has to itself, as far as is known at launch."""
        buffers = [b for stmt in walk(loop) for b in self.homes.get(stmt, ())]
        buffers += [stmt.buffer for stmt in walk(loop) if isinstance(stmt, ir.Alloc)]
        inside = _bound(loop)
        sizes = ["0"]
        for buffer in buffers:
            known = not any(sym.uses_var(dim, inside) for dim in buffer.shape)
            if known and buffer.memory.owner in (Owner.DEVICE, Owner.THREAD):
                sizes.append(" * ".join(["1", *(self.expr(dim) for dim in buffer.shape)]))
        return " + ".join(sizes)

    def _check_known_at_launch(self, loop: For, inside: set[Var]) -> None:
        if sym.uses_var(loop.start, inside) or sym.uses_var(loop.stop, inside):
            raise ExecutionError(
                "TW2314",
                f"the extent of thread axis {loop.thread} depends on variables of its own kernel",
                loop.loc,
                help="a grid has one shape: guard what fewer threads should do by a condition",
            )

    def _for(self, loop: For) -> None:
        if loop.kind == ir.THREAD:
            self._thread_loop(loop)
        elif loop.kind in (ir.VTHREAD, ir.VECTOR, ir.PARALLEL):
            self.expanded_loop(loop)
        elif self.is_wide(loop.start) or self.is_wide(loop.stop):
            self._varying_loop(loop)
        else:
            super()._for(loop)

    def _thread_loop(self, loop: For) -> None:
        axis, extent = repr(loop.thread), self.expr(loop.extent)
        if extent != self.axes[loop.thread]:
            known = self.axes[loop.thread]
            self.check(f"{extent} == {known}", "fail_extents", axis, extent, known, wide=True)
        self.vary(loop.var)
        position = f"{self.lanes}.axes[{axis}]"
        start = "" if loop.start is sym.ZERO else f" + {self.expr(loop.start)}"
        self.line(f"{self.name(loop.var)} = {position}{start}")
        if loop.start is sym.ZERO:
            self.extents[loop.var] = loop.stop
        self.variables.append(loop.var)
        self.bound.append(loop.thread)
        with self.scope():
            self.stmt(loop.body)
        self.bound.pop()
        self.variables.pop()

    def _varying_loop(self, loop: For) -> None:
        trips = f"{self.lanes}.loop({self.expr(loop.start)}, {self.expr(loop.stop)}, {self.mask})"
        self.vary(loop.var)
        mask = self.fresh_name("m")
        with self.masked(mask):
            self.body_of_loop(loop, f"for {self.name(loop.var)}, {mask} in {trips}:")

    def expanded_loop(self, loop: For) -> None:
        """A lane per iteration, for as long as the loop lasts."""
        start, stop = self.expr(loop.start), self.expr(loop.stop)
        if self.lanes == "one":  # a virtual-thread loop outside kernels
            self.tracked = set(written(loop))
        kind = ir.VTHREAD if loop.kind == ir.VTHREAD else ir.VECTOR
        made = (
            f"{self.lanes}.expand({kind!r}, {self.constant(loop.var)}, {start}, {stop}, "
            f"{self.mask})"
        )
        with self._other_lanes(loop, made, self.name(loop.var)):
            self.vary(loop.var)
            if loop.start is sym.ZERO:
                self.extents[loop.var] = loop.stop
            self.variables.append(loop.var)
            self.stmt(loop.body)
            self.variables.pop()

    @contextmanager
    def _other_lanes(self, stmt: Stmt, made: str, *more: str) -> Iterator[None]:
        """A suite in which a statement runs on other lanes: `made` gives them, their mask, more."""
        outer = self.lanes, self.mask, self.renamed
        self.lanes, self.mask = self.fresh_name("lanes"), self.fresh_name("m")
        self.line(f"{', '.join((self.lanes, self.mask, *more))} = {made}")
        self.renamed = dict(outer[2])
        for var in self._in_scope(stmt):
            self.renamed[var] = self.fresh(f"{self.lanes}.seen({self.name(var)})", "v")
        with self.scope(closed=True), self.indented(f"if {self.lanes}.count:"):
            yield
        self.lanes, self.mask, self.renamed = outer

    def _in_scope(self, root: Stmt) -> dict[Var, None]:
        """The varying variables from outside a statement that code for it may mention."""
        bound = _bound(root)
        used = dict.fromkeys(x for x in exprs(root) if isinstance(x, Var))
        used.update(dict.fromkeys(self.variables))
        used.update(dict.fromkeys(it.var for around in self.blocks for it in around.block.iters))
        return {var: None for var in used if var in self.varying and var not in bound}

    # ------------------------------------------------------------------ masks

    @contextmanager
    def masked(self, mask: str) -> Iterator[None]:
        """Statements meanwhile run on the lanes of `mask` alone."""
        outer, self.mask = self.mask, mask
        yield
        self.mask = outer

    @contextmanager
    def where_true(self, cond: str) -> Iterator[None]:
        """A suite for the lanes where a wide condition holds."""
        mask = self.fresh(f"{self.lanes}.narrow({self.mask}, {cond})", "m")
        with self.indented(f"if {mask}.any():"), self.masked(mask):
            yield

    def _if(self, stmt: ir.If) -> None:
        if not self.is_wide(stmt.cond):
            super()._if(stmt)
            return
        cond = self.expr(stmt.cond)
        with self.where_true(cond):
            self.stmt(stmt.then)
        if stmt.otherwise is not None:
            with self.where_true(f"np.logical_not({cond})"):
                self.stmt(stmt.otherwise)

    def _let(self, stmt: ir.Let) -> None:
        if self.is_wide(stmt.value):
            self.vary(stmt.var)
        super()._let(stmt)

    # ------------------------------------------------------------------ memory

    def alloc(self, buffer: Buffer) -> None:
        shape = tuple_text(self.expr(dim) for dim in buffer.shape)
        self.line(
            f"m_{self.name(buffer)} = {self.lanes}.alloc({self.constant(buffer)}, {shape}, "
            f"{self._axes_of(buffer)})"
        )
        if buffer in self.crossing:
            self.line(f"m_{self.name(buffer)}.log_stores()")
        self.intermediates.add(buffer)
        self.tracked.add(buffer)

    def _store(self, stmt: ir.Store) -> None:
        self.wide_store(stmt, self.expr(stmt.value))

    def _update(self, stmt: ir.Update) -> None:
        added = [self.expr(value) for value in stmt.values]
        places = [self.locate(buffer, stmt.index, STORE, self.mask) for buffer in stmt.buffers]
        if self.blocks and not self.blocks[-1].loops_inside:
            number, count, point = self.iteration_number()
            self.line(
                f"{self.lanes}.check_repeated({self.constant({}, ('done', stmt))}, {count}, "
                f"{number}, m_{self.name(stmt.buffers[0])}, {places[0]}, "
                f"{self.blocks[-1].block.name!r}, {tuple_text(point)}, {self.where()})"
            )
        old = [self.read(to, place) for to, place in zip(stmt.buffers, places, strict=True)]
        self.vary(*stmt.reducer.lhs, *stmt.reducer.rhs)
        results = self.combine(stmt.reducer, old, added)
        for buffer, place, value in zip(stmt.buffers, places, results, strict=True):
            self.write(buffer, place, value)

    # ------------------------------------------------------------------ blocks, barriers, calls

    def _block(self, block: Block) -> None:
        if self.is_wide(block.predicate):
            with self.where_true(self.expr(block.predicate)):
                self.instance(block)
        else:
            super()._block(block)

    def bind_iterator(self, it: ir.Iter, binding: Expr) -> None:
        if self.is_wide(binding):
            self.vary(it.var)
        super().bind_iterator(it, binding)

    def initialise(self, block: Block) -> None:
        tests = [it.var for it in block.iters if it.kind == ir.REDUCE]
        assert block.init is not None
        if not any(self.is_wide(var) for var in tests):
            super().initialise(block)
            return
        cond = " & ".join(f"({self.name(var)} == 0)" for var in tests)
        with self.where_true(cond):
            self.stmt(block.init)

    def _eval(self, stmt: ir.Eval) -> None:
        match stmt.value:
            case ir.Call(op=op, args=args) if op == ASYNC_RUN:
                self._async_run(*args)
            case ir.Call(op=op) if op == COMMIT:
                self.line(f"{self.lanes}.commit_copies()")
            case ir.Call(op=op, args=(newer,)) if op == WAIT:
                self.line(f"{self.lanes}.wait_for_copies({self.expr(newer)}, {self.where()})")
            case ir.Call(op=op, args=(ir.Address() as read,)) if op == READ:
                place = self.locate(read.buffer, read.index, LOAD, self.mask)
                self.line(
                    f"{self.lanes}.check_fenced(m_{self.name(read.buffer)}, {place}, "
                    f"{self.where()})"
                )
            case ir.Call(op=op) if op == FENCE.op:
                self.line(f"{self.lanes}.fence({self.mask})")
            case ir.Call(op=op) if op in WARPGROUP:
                self._by_warpgroup(stmt.value)
            case _:
                super()._eval(stmt)

    def _by_warpgroup(self, call: ir.Call) -> None:
        """All threads along threadIdx.x carry an instruction out together."""
        sums, loops = call.args[0], loops_of(call)
        assert isinstance(sums, ir.Address)
        made = (
            f"{self.lanes}.together({self._axes_of(sums.buffer)}, (m_{self.name(sums.buffer)},), "
            f"{self.mask}, {self.where()})"
        )
        with self._other_lanes(loops, made):
            self.pinned = True
            self.stmt(loops)
            self.pinned = False

    def _async_run(self, target: Expr, source: Expr, count: Expr) -> None:
        """Neighbours that are stored when they are waited for; meanwhile nothing is there."""
        assert isinstance(target, ir.Address)
        assert isinstance(source, ir.Address)
        for at in range(int(str(sym.simplify(count)))):
            value = self.expr(Load(source.buffer, _moved(source, at)))
            place = self.locate(target.buffer, _moved(target, at), STORE, self.mask)
            self.line(
                f"{self.lanes}.begin_copy(m_{self.name(target.buffer)}, {place}, {value}, "
                f"{self.where()})"
            )

    def barrier(self, scope: str) -> None:
        self.line(f"{self.lanes}.barrier({self.mask}, {scope!r}, {self.where()})")

    def address(self, expr: ir.Address) -> str:
        return self.locate(expr.buffer, expr.index, "address of", self.mask)

    def _tensor_call(self, stmt: ir.TensorCall) -> None:
        """All threads of the axes that the call is not bound to carry it out together."""
        if not self.axes:  # outside kernels
            super()._tensor_call(stmt)
            return
        outputs = tuple_text(f"m_{self.name(region.buffer)}" for region in called_regions(stmt)[1])
        made = (
            f"{self.lanes}.together({self._axes_around()}, {outputs}, {self.mask}, {self.where()})"
        )
        with self._other_lanes(stmt, made):
            super()._tensor_call(stmt)

    def _axes_around(self) -> str:
        return repr(tuple(sorted(set(self.bound))))

    def _axes_of(self, buffer: Buffer) -> str:
        """The axes that tell the copies of a buffer apart; a warpgroup has one copy of its sums."""
        is_lowered = self.fn.stage == ir.DEVICE and buffer.memory.owner is Owner.UNIT
        apart = {"threadIdx.x"} if is_lowered else set()
        return repr(tuple(sorted(set(self.bound) - apart)))

    def call_outside(self, function: str, *args: str) -> None:
        self.line(
            f"{self.lanes}.call_each({function}, {self.mask}, ({', '.join(args)},), failures, "
            f"{self.where()})"
        )


def _moved(address: ir.Address, by: int) -> tuple[Expr, ...]:
    """The index of a neighbour."""
    *outer, last = address.index
    return (*outer, sym.add(last, by))


def _bound(root: Stmt) -> set[Var]:
    """The variables that come into being inside a statement."""
    bound: set[Var] = set()
    for stmt in walk(root):
        if isinstance(stmt, (For, ir.Let)):
            bound.add(stmt.var)
        elif isinstance(stmt, Block):
            bound.update(it.var for it in stmt.iters)
    return bound
