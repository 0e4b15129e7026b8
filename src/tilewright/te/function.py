"""`te.function`: compile tensors to a tensor function, one loop nest around one block per stage.

    f = te.function([A, B, C], name="matmul")

Stages are in dependence order. Blocks have the tensors' names, loops the argument names of the
computing functions, block iterators the same with a prefix `v`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright import sym
from tilewright.base.loc import Loc
from tilewright.base.text import Names
from tilewright.sym import ZERO, Const, Expr, Size, Var
from tilewright.te.axis import IterVar
from tilewright.te.bounds import EntryChecks, Stage
from tilewright.te.operation import (
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    Read,
    Reduce,
    ScanOp,
    Tensor,
)
from tilewright.te.scan import recurrent_stages
from tilewright.te.source import clean_name, type_error, user_loc, value_error
from tilewright.te.stages import Stages, stages_of
from tilewright.tensor.ir import (
    REDUCE,
    SCAN,
    SPATIAL,
    Annotations,
    Block,
    Buffer,
    ExternCall,
    For,
    Function,
    Iter,
    Let,
    Load,
    Stmt,
    Store,
    Update,
    seq,
)
from tilewright.tensor.regions import access_regions
from tilewright.tensor.visit import exprs as all_exprs
from tilewright.tensor.visit import replace_buffers, walk


def function(
    args: Sequence[Tensor | Var], name: str = "main", requires: Sequence[Expr] = ()
) -> Function:
    """Make a function of placeholders and scalars (inputs) and computed tensors (outputs).

    Every size must be a dimension of some argument, or an argument. `requires` are conditions on
    sizes, checked at entry in addition to the bounds of reads.

    Examples:
        >>> from tilewright import te
        >>> n = te.var("n")
        >>> A = te.placeholder((n,), name="A")
        >>> B = te.compute((n,), lambda i: A[i] * 2.0, name="B")
        >>> print(te.function([A, B], name="twice"), end="")
        func @twice(%A: f32[n], %B: f32[n]) stage scheduled {
          for %i in 0..n {
            block @B(%vi: spatial n = %i) {
              reads %A[%vi]
              writes %B[%vi]
              %B[%vi] = %A[%vi] * 2.0
            }
          }
        }
    """
    loc = user_loc()
    params = _checked_arguments(args)
    stages = stages_of([arg for arg in params if isinstance(arg, Tensor)])
    lowering = _Lowering(params, stages)
    for cond in requires:
        lowering.checks.add(cond)
    body = [lowering.stage(op) for op in stages.order]
    fn = Function(
        clean_name(name),
        tuple([lowering.buffers[p] if isinstance(p, Tensor) else p for p in params]),
        seq(*body),
        tuple(lowering.allocs),
        lowering.checks.requires,
        loc=loc,
    )
    _check_sizes(fn)
    return fn


def _checked_arguments(args: Any) -> tuple[Tensor | Var, ...]:
    if not isinstance(args, (tuple, list)):
        raise type_error("TW2422", f"te.function takes a list of arguments, got {args!r}")
    for k, arg in enumerate(args):
        if not isinstance(arg, (Tensor, Var)) or isinstance(arg, IterVar):
            raise type_error(
                "TW2422",
                f"argument {k} is {arg!r}, neither a tensor nor a te.var",
            )
        if any(arg is other for other in args[:k]):
            raise value_error("TW2422", f"argument {k} is {arg.name}, which is given twice")
    if not any(isinstance(arg, Tensor) and not isinstance(arg.op, PlaceholderOp) for arg in args):
        raise value_error(
            "TW2422", "no argument is a computed tensor", help="pass the results, too"
        )
    return tuple(args)


def _check_sizes(fn: Function) -> None:
    """Check that every size and scalar is determined by the arguments."""
    known: set[Var] = {param for param in fn.params if isinstance(param, Var)}
    for buffer in fn.buffers:
        known.update(dim for dim in buffer.shape if isinstance(dim, Size))
    bound = {stmt.var for stmt in walk(fn.body) if isinstance(stmt, (For, Let))}
    for stmt in walk(fn.body):
        if isinstance(stmt, Block):
            bound.update(it.var for it in stmt.iters)
    shapes = [dim for buffer in (*fn.buffers, *fn.allocs) for dim in buffer.shape]
    for node in (*sym.free_vars(*shapes, *fn.requires), *all_exprs(fn.body)):
        if not isinstance(node, Var) or node in known or node in bound:
            continue
        if isinstance(node, Size):
            raise value_error(
                "TW2424",
                f"size {node} is not a dimension of any argument",
                loc=fn.loc,
                help=f"pass it as an argument: te.function([{node}, ...])",
            )
        raise value_error(
            "TW2424",
            f"the scalar {node} is used but is not an argument",
            loc=fn.loc,
            help=f"pass it: te.function([{node.name}, ...])",
        )


class _TimeLoop:
    """The time loop shared by the stages of a scan."""

    def __init__(self, name: str, scan: ScanOp) -> None:
        self.loop = sym.var(name)
        self.start = scan.scan_axis.start
        self.extent = scan.scan_axis.extent


class _Lowering:
    """Builds the statements of one function, and collects buffers, allocations and checks."""

    def __init__(self, params: tuple[Tensor | Var, ...], stages: Stages) -> None:
        self.checks = EntryChecks()
        self.buffers: dict[Tensor, Buffer] = {}
        self.allocs: list[Buffer] = []
        self.stages = stages
        self._block_names = Names()
        for param in params:
            if isinstance(param, Tensor):
                buffer = Buffer(param.name, param.shape, param.dtype)
                self.buffers[param] = buffer
                self.checks.add_shape(param.name, param.shape, param.op.loc, given=True)
        for op in stages.order:
            if isinstance(op, ScanOp):
                self._place_states(op)

    # ------------------------------------------------------------------ buffers

    def _target(self, tensor: Tensor) -> Buffer:
        """The tensor's buffer; a new allocation unless it has one."""
        found = self.buffers.get(tensor)
        if found is None:
            found = self.buffers[tensor] = Buffer(tensor.name, tensor.shape, tensor.dtype)
            self.allocs.append(found)
            self.checks.add_shape(tensor.name, tensor.shape, tensor.op.loc, given=False)
        return found

    def _place_states(self, scan: ScanOp) -> None:
        """Let an init without other uses write directly to its state."""
        for init, state in zip(scan.init, scan.outputs, strict=True):
            buffer = self._target(state)
            computed = isinstance(init.op, ComputeOp)
            if computed and init not in self.buffers and self.stages.uses[init] == 1:
                self.buffers[init] = buffer

    # ------------------------------------------------------------------ stages

    def stage(self, op: Operation) -> Stmt:
        if isinstance(op, ComputeOp):
            return self._compute(op, None)
        if isinstance(op, ScanOp):
            return self._scan(op)
        assert isinstance(op, ExternOp)
        return self._extern(op)

    def _compute(self, op: ComputeOp, step: _TimeLoop | None) -> Stmt:
        targets = tuple([self._target(tensor) for tensor in op.outputs])
        nest = _LoopNest(op.loc)
        for k, axis in enumerate(op.axis):
            if k == 0 and step is not None:
                nest.add(axis, step.extent, step.start, SCAN, step.loop)
            else:
                nest.add(axis, axis.stop, ZERO, SPATIAL)
        index = tuple([nest.values[axis] for axis in op.axis])
        whole = op.reduction
        if whole is None:
            values = tuple([self._lower(value, nest) for value in op.body])
            self.checks.add_reads(nest.stage(op.name), values)
            return self._block(op, nest, _stores(targets, index, values, op.loc), None)
        inits = whole.init or whole.reducer.identity
        first = tuple([self._lower(value, nest) for value in inits])
        self.checks.add_reads(nest.stage(op.name), first)
        init = _stores(targets, index, first, op.loc)
        if any(isinstance(axis.extent, Const) and axis.extent.value == 0 for axis in whole.axes):
            return self._block(op, nest, init, None)  # an empty reduction: only the init remains
        for axis in whole.axes:
            nest.add(axis, axis.extent, axis.start, REDUCE)
        values = tuple([self._lower(source, nest) for source in _guarded_sources(whole)])
        self.checks.add_reads(nest.stage(op.name), values)
        body = Update(whole.reducer, targets, index, values, op.loc)
        return self._block(op, nest, body, init)

    def _lower(self, value: Expr, nest: _LoopNest) -> Expr:
        """The expression in terms of block iterators and buffers."""

        def rule(expr: Expr) -> Expr:
            if isinstance(expr, Read):
                index = expr.index
                if nest.shifted:
                    index = tuple([sym.simplify(i) for i in index])
                return Load(self.buffers[expr.tensor], index)
            return sym.rebuild(expr)

        return sym.rewrite(value, rule, dict(nest.values))

    def _block(self, op: Operation, nest: _LoopNest, body: Stmt, init: Stmt | None) -> Stmt:
        name = self._block_names(object(), op.name)
        iters = tuple(nest.iters)
        reads, writes = access_regions(body, init, iters)
        annotations: Annotations = getattr(op, "annotations", ())
        block = Block(
            name,
            iters,
            tuple(nest.bindings),
            reads,
            writes,
            body,
            init,
            annotations=annotations,
            loc=op.loc,
        )
        return nest.around(block)

    def _extern(self, op: ExternOp) -> Stmt:
        mapping = {b: self.buffers[t] for b, t in zip(op.ins, op.inputs, strict=True)}
        mapping |= {b: self._target(t) for b, t in zip(op.outs, op.outputs, strict=True)}
        blocks = []
        for over, stmt in ((op.over, op.body), *op.then):
            body = replace_buffers(stmt, mapping)
            if isinstance(body, ExternCall):
                body = replace(body, loc=op.loc)
            nest = _LoopNest(op.loc)
            for var, extent in over:
                nest.add_plain(var, extent)
            blocks.append(self._block(op, nest, body, None))
        return seq(*blocks)

    # ------------------------------------------------------------------ scans

    def _scan(self, scan: ScanOp) -> Stmt:
        start, total = scan.scan_axis.start, scan.scan_axis.stop
        self.checks.add_steps(scan.name, start, total, scan.loc)
        before: list[Stmt] = []
        for state, init in zip(scan.outputs, scan.init, strict=True):
            if self.buffers[init] is not self.buffers[state]:
                before.append(self._copied_init(scan, init, self.buffers[state]))
        inner = recurrent_stages(scan)
        for tensor in (tensor for op in inner for tensor in op.outputs):
            self.buffers.pop(tensor, None)  # another scan may use the same stages
        for k, state in enumerate(scan.outputs):
            self.buffers[scan.state[k]] = self.buffers[scan.update[k]] = self.buffers[state]
        first = inner[-1]
        assert isinstance(first, ComputeOp)
        step = _TimeLoop(first.axis[0].name, scan)
        steps = []
        for op in inner:
            assert isinstance(op, ComputeOp)
            steps.append(self._compute(op, step))
        return seq(*before, For(step.loop, ZERO, step.extent, seq(*steps), loc=scan.loc))

    def _copied_init(self, scan: ScanOp, init: Tensor, state: Buffer) -> Stmt:
        nest = _LoopNest(scan.loc)
        for k, extent in enumerate(init.shape):
            nest.add_plain(sym.var(f"vi{k}"), extent)
        index = tuple([it.var for it in nest.iters])
        body = Store(state, index, Load(self.buffers[init], index), loc=scan.loc)
        named = PlaceholderOp(f"{scan.name}_init", init.shape, init.dtype, scan.loc)
        return self._block(named, nest, body, None)


class _LoopNest:
    """A loop nest and the block iterators bound to it."""

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.loops: list[tuple[Var, Expr]] = []
        self.iters: list[Iter] = []
        self.bindings: list[Expr] = []
        self.values: dict[Expr, Expr] = {}  # axis -> its value in terms of the iterators
        self.axes: dict[Var, Expr] = {}  # the inverse
        self.shifted = False

    def stage(self, name: str) -> Stage:
        return Stage(name, tuple(self.iters), dict(self.axes), self.loc)

    def add(
        self, axis: IterVar, extent: Expr, start: Expr, kind: str, loop: Var | None = None
    ) -> None:
        """Add an iterator over 0..extent for an axis that starts at `start`."""
        if loop is None:
            loop = sym.var(axis.name)
            self.loops.append((loop, extent))
        inner = sym.var(f"v{axis.name}")
        self.iters.append(Iter(inner, extent, kind))
        self.bindings.append(loop)
        self.values[axis] = sym.add(inner, start)
        self.axes[inner] = sym.sub(axis, start)
        self.shifted |= start is not ZERO

    def add_plain(self, var: Var, extent: Expr) -> None:
        """Add an existing iterator, with a new loop."""
        loop = sym.var(var.name.removeprefix("v"))
        self.iters.append(Iter(var, extent))
        self.bindings.append(loop)
        self.loops.append((loop, extent))

    def around(self, stmt: Stmt) -> Stmt:
        for loop, extent in reversed(self.loops):
            stmt = For(loop, ZERO, extent, stmt, loc=self.loc)
        return stmt


def _stores(
    targets: tuple[Buffer, ...], index: tuple[Expr, ...], values: tuple[Expr, ...], loc: Loc
) -> Stmt:
    return seq(*(Store(b, index, value, loc=loc) for b, value in zip(targets, values, strict=True)))


def _guarded_sources(whole: Reduce) -> tuple[Expr, ...]:
    """The values to combine: the identity where the condition is false."""
    return tuple(
        [
            sym.select(whole.where, source, identity)
            for source, identity in zip(whole.sources, whole.reducer.identity, strict=True)
        ]
    )
