"""Code for statements, as one thread of control runs them; `kernels.py` has many."""

from __future__ import annotations

from tilewright.base.dtype import INDEX
from tilewright.sym import TRUE, ZERO, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.calls import CALLS
from tilewright.tensor.dependent_launch import EFFECTLESS
from tilewright.tensor.interp import lanes
from tilewright.tensor.interp.accesses import LOAD, STORE, Accesses, OpenBlock, OpenLoop
from tilewright.tensor.interp.failures import CHECKS
from tilewright.tensor.interp.intervals import lies_below
from tilewright.tensor.interp.memory import Memory, next_stamp
from tilewright.tensor.interp.outside import call_extern, call_instruction, elements
from tilewright.tensor.interp.placement import accessed, written
from tilewright.tensor.interp.tensor_calls import expand_tensor_call, spread, without_blocks
from tilewright.tensor.interp.writer import mark_of, tuple_text
from tilewright.tensor.intrin import UPDATE
from tilewright.tensor.ir import Block, Buffer, Call, For, Function, Stmt
from tilewright.tensor.visit import walk

_DEEPEST = 12  # Python refuses more than 20 nested loops: go on in a nested function


class Statements(Accesses):
    """Emits statements."""

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.nesting = 0
        self.pinned = False  # statements that stand for the one in the program
        self.globals.update(
            Memory=Memory,
            next_stamp=next_stamp,
            launch=lanes.launch,
            failures=self.failures,
            call_extern=call_extern,
            call_instruction=call_instruction,
            elements=elements,
        )
        for name in CHECKS:
            self.globals[f"fail_{name}"] = getattr(self.failures, name)

    def stmt(self, stmt: Stmt) -> None:
        """Emit a statement, and before it the intermediates that live there."""
        for buffer in self.homes.get(stmt, ()):
            self.alloc(buffer)
        outer = self.mark
        if not self.pinned:
            self.mark = mark_of(stmt)
        self.now = {}
        getattr(self, _STMTS[type(stmt)])(stmt)
        self.now = {}
        self.mark = outer

    # ------------------------------------------------------------------ memory

    def alloc(self, buffer: Buffer) -> None:
        shape = tuple_text(self.expr(dim) for dim in buffer.shape)
        self.line(f"m_{self.name(buffer)} = Memory({self.constant(buffer)}, {shape})")
        self.intermediates.add(buffer)
        self.unpack(buffer)

    def unpack(self, buffer: Buffer) -> None:
        """Emit variables for the parts of a buffer's memory."""
        name = self.name(buffer)
        self.levels[buffer] = self.here
        self.line(f"{name} = m_{name}.data")
        if buffer in self.intermediates:
            self.line(f"w_{name} = m_{name}.plain_written")
        if buffer in self.stamped:
            self.line(f"s_{name} = m_{name}.plain_stamps")
        if buffer.shape:
            dims = ", ".join(f"n{axis}_{name}" for axis in range(buffer.rank))
            self.line(f"{dims}, = m_{name}.shape")

    def _alloc(self, stmt: ir.Alloc) -> None:
        self.alloc(stmt.buffer)
        self.stmt(stmt.body)

    def _store(self, stmt: ir.Store) -> None:
        value = self.expr(stmt.value)
        if stmt.mask is None and self.is_dense(stmt.buffer, stmt.index, self.mask):
            self.dense_store(stmt, value)
        elif any(self.is_wide(i) for i in stmt.index) or self.is_wide(stmt.value):
            self.wide_store(stmt, value)
        elif stmt.mask is None:
            self._scalar_store(stmt, value)
        else:
            mask = self.expr(stmt.mask)
            with self.indented(f"if {mask}:"):
                self._scalar_store(stmt, value)

    def _scalar_store(self, stmt: ir.Store, value: str) -> None:
        element = self.element(stmt.buffer, stmt.index, STORE)
        self.log_write(stmt.buffer, element)
        self.put(stmt.buffer, element, value)
        if stmt.buffer in self.stamped:
            self.line(f"s_{self.name(stmt.buffer)}[{element}] = next_stamp()")

    def wide_store(self, stmt: ir.Store, value: str) -> None:
        mask = self.mask
        if stmt.mask is not None:
            mask = self.fresh(f"{self.lanes}.narrow({mask}, {self.expr(stmt.mask)})", "m")
        place = self.locate(stmt.buffer, stmt.index, STORE, mask)
        self.write(stmt.buffer, place, value)
        if stmt.buffer in self.stamped:
            self.line(f"{self.lanes}.stamp(m_{self.name(stmt.buffer)}, {place})")

    def _update(self, stmt: ir.Update) -> None:
        added = [self.expr(value) for value in stmt.values]
        elements = []
        for buffer in stmt.buffers:
            element = self.element(buffer, stmt.index, STORE)
            elements.append(element)
            self.check_written(buffer, element)
            self.log_read(buffer, element)
            self.log_write(buffer, element)
        self._check_repeated(stmt, elements[0])
        old = []
        for buffer, element in zip(stmt.buffers, elements, strict=True):
            text = f"{self.name(buffer)}[{element}]"
            old.append(self.fresh(f"int({text})" if buffer.dtype is INDEX else text))
        results = self.combine(stmt.reducer, old, added)
        for buffer, element, result in zip(stmt.buffers, elements, results, strict=True):
            self.line(f"{self.name(buffer)}[{element}] = {result}")  # it held a value before

    def combine(self, reducer: ir.Reducer, old: list[str], added: list[str]) -> list[str]:
        """Emit a step of a reduction; the texts of the new values."""
        with self.scope(closed=True):  # the reducer's variables mean something else next time
            self.now.update(zip(reducer.lhs, old, strict=True))
            self.now.update(zip(reducer.rhs, added, strict=True))
            return [self.expr(result) for result in reducer.result]

    def _check_repeated(self, stmt: ir.Update, element: str) -> None:
        """An instance of a reduction adds once to a value between two stores to it."""
        if not self.blocks or self.blocks[-1].loops_inside:
            return
        number, _, point = self.iteration_number()
        done = self.constant({}, ("done", stmt))
        name = self.name(stmt.buffers[0])
        stamp = self.fresh(f"s_{name}[{element}]")
        args = (f"m_{name}", element, repr(self.blocks[-1].block.name), tuple_text(point))
        self.check(f"{done}.get({number}) != {stamp}", "fail_repeated", *args, wide=False)
        self.line(f"{done}[{number}] = {stamp}")

    # ------------------------------------------------------------------ calls

    def _eval(self, stmt: ir.Eval) -> None:
        value = stmt.value
        if not isinstance(value, Call) or (value.op in CALLS and CALLS[value.op].numpy is not None):
            self.expr(value)
        elif value.op.startswith("barrier."):
            self.barrier(value.op.removeprefix("barrier."))
        elif value.op != "prefetch" and value.op not in EFFECTLESS:
            self._instruction(value)

    def barrier(self, scope: str) -> None:
        self.line(f"fail_stray_barrier({self.where()}, 'outside a kernel')")

    def _instruction(self, call: Call) -> None:
        """An instruction of some hardware: arguments are numbers and addresses."""
        args = []
        for arg in call.args:
            if isinstance(arg, ir.Address):
                place = self.address(arg)
                args.append(f"(m_{self.name(arg.buffer)}, {place})")
            else:
                args.append(self.expr(arg))
        self.call_outside("call_instruction", repr(call.op), tuple_text(args))

    def address(self, expr: ir.Address) -> str:
        return self.element(expr.buffer, expr.index, "address of")

    def _extern_call(self, stmt: ir.ExternCall) -> None:
        first_output = len(stmt.regions) - stmt.outputs
        boxes = []
        for number, region in enumerate(stmt.regions):
            starts = [self.expr(r.start) for r in region.ranges]
            extents = tuple_text(self.expr(r.extent) for r in region.ranges)
            name = self.name(region.buffer)
            box = self.fresh(f"(m_{name}, {tuple_text(starts)}, {extents})", "box")
            boxes.append(box)
            self.check_box(region, starts, STORE if number >= first_output else LOAD)
            if any(region.buffer in around.logs for around in self.concurrent):
                with self.indented(f"for e in elements({box}):"):
                    self.log_read(region.buffer, "e")
                    if number >= first_output:
                        self.log_write(region.buffer, "e")
        args = (repr(stmt.symbol), tuple_text(boxes), repr(stmt.outputs))
        self.call_outside("call_extern", *args)

    def call_outside(self, function: str, *args: str) -> None:
        self.line(f"{function}({', '.join(args)}, failures, {self.where()})")

    def _tensor_call(self, stmt: ir.TensorCall) -> None:
        self.pinned = True
        expanded = expand_tensor_call(stmt)
        if not self.blocks and stmt.phase == UPDATE:  # nothing tells its instances apart any more
            expanded = without_blocks(expanded)
        self.stmt(spread(expanded))
        self.pinned = False

    # ------------------------------------------------------------------ structure

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
        with self.scope():
            self.levels[stmt.var] = self.here
            self.stmt(stmt.body)
        if shown:
            self.variables.pop()

    def _for(self, loop: For) -> None:
        domain = f"range({self.expr(loop.start)}, {self.expr(loop.stop)})"
        concurrent = loop.kind in (ir.PARALLEL, ir.VECTOR)
        if concurrent:
            self.concurrent.append(self._open_logs(loop))
            domain = f"random.permutation({domain}).tolist()"
        if loop.start is ZERO:
            self.extents[loop.var] = loop.stop
        self.body_of_loop(loop, f"for {self.name(loop.var)} in {domain}:")
        if concurrent:
            self.concurrent.pop()

    def body_of_loop(self, loop: For, header: str) -> None:
        """Emit a Python loop around the body."""
        self.variables.append(loop.var)
        self.nesting += 1
        if self.blocks:
            self.blocks[-1].loops_inside += 1
        with self.indented(header):
            self.levels[loop.var] = self.here
            if self.nesting % _DEEPEST == 0:
                function = self.fresh_name("deeper")
                with self.indented(f"def {function}():"):
                    self.stmt(loop.body)
                self.line(f"{function}()")
            else:
                self.stmt(loop.body)
        if self.blocks:
            self.blocks[-1].loops_inside -= 1
        self.nesting -= 1
        self.variables.pop()

    def _open_logs(self, loop: For) -> OpenLoop:
        """Logs of who read and wrote what, for the buffers that iterations share and write."""
        around = OpenLoop(loop)
        inside = list(walk(loop.body))
        private = {buffer for stmt in inside for buffer in self.homes.get(stmt, ())}
        private.update(stmt.buffer for stmt in inside if isinstance(stmt, ir.Alloc))
        changed = written(loop.body)
        for buffer in {buffer: None for stmt in inside for buffer in accessed(stmt)}:
            if buffer in changed and buffer not in private:
                log = around.logs[buffer] = self.fresh_name("log")
                self.line(f"w_{log}, r_{log}, q_{log} = {{}}, {{}}, {{}}")
        return around

    def _block(self, block: Block) -> None:
        if block.predicate is TRUE:
            self.instance(block)
            return
        cond = self.expr(block.predicate)
        with self.indented(f"if {cond}:"):
            self.instance(block)

    def instance(self, block: Block) -> None:
        """Emit one run of a block: its iterators, its init, its body."""
        outer, self.renamed = self.renamed, dict(self.renamed)
        with self.scope():
            self.open_block(block)
            if block.init is not None:
                self.initialise(block)
            self.stmt(block.body)
            self.blocks.pop()
        self.renamed = outer

    def open_block(self, block: Block) -> None:
        for it, binding in zip(block.iters, block.bindings, strict=True):
            self.bind_iterator(it, binding)
            name = self.name(it.var)
            known = isinstance(binding, Var) and self.extents.get(binding) is it.extent
            if not known and not lies_below(binding, it.extent, self.extents):
                extent = self.expr(it.extent)
                args = (self.constant(it.var), name, extent, repr(block.name))
                wide = self.is_wide(binding)
                ok = f"(0 <= {name}) & ({name} < {extent})" if wide else f"0 <= {name} < {extent}"
                self.check(ok, "fail_domain", *args, wide=wide)
            self.extents[it.var] = it.extent
        self.blocks.append(OpenBlock(block))

    def bind_iterator(self, it: ir.Iter, binding: Expr) -> None:
        """Emit the value of an iterator, or name what has it already."""
        value = self.expr(binding)
        self.renamed.pop(it.var, None)
        if self.lanes == "one" and self.is_plain(binding):
            self.renamed[it.var] = value
            self.levels[it.var] = self.level_of(binding)
        else:
            self.line(f"{self.name(it.var)} = {value}")
            self.levels[it.var] = self.here

    def initialise(self, block: Block) -> None:
        """Emit the init of a block, which runs where every reduce iterator is 0."""
        tests = [f"{self.name(it.var)} == 0" for it in block.iters if it.kind == ir.REDUCE]
        assert block.init is not None
        with self.indented(f"if {' and '.join(tests) or 'True'}:"):
            self.stmt(block.init)


_STMTS: dict[type[Stmt], str] = {
    ir.Store: "_store",
    ir.Update: "_update",
    ir.Eval: "_eval",
    ir.TensorCall: "_tensor_call",
    ir.ExternCall: "_extern_call",
    ir.Seq: "_seq",
    ir.If: "_if",
    ir.Let: "_let",
    ir.Alloc: "_alloc",
    ir.For: "_for",
    ir.Block: "_block",
}
