"""Lower the init of a reduction to a block of its own, in front of the reduction loops.

    for i { for k { block C { init { C[i] = 0 }  C[i] += A[k] } } }
    for i { block C_init { C[i] = 0 }  for k { block C { C[i] += A[k] } } }

This leaves no branch in the loop. Where another statement is in the way, or a loop runs over
spatial and reduction iterators at once, the init stays in place under `if every reduce iterator ==
0`. An empty reduction yields its identity.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Context, Expr, Size, Var, var
from tilewright.tensor.ir import (
    REDUCE,
    Block,
    Buffer,
    For,
    Function,
    If,
    Stmt,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.passes.pipeline_loops import STAGE, expanded_plan
from tilewright.tensor.passes.rewriter import Rewriter, as_list
from tilewright.tensor.regions import substitute_region
from tilewright.tensor.visit import blocks, fresh_copy, loads, substitute, walk, written_buffers


def lower_inits(fn: Function, ctx: PassContext) -> Function:
    names = {block.name: block.init is not None for block in blocks(fn.body)}
    if not any(names.values()):
        return fn
    body = _LowerInits(set(names))(fn.body)
    assert body is not None
    return replace(fn, body=body)


def init_empty(fn: Function) -> Function:
    """The same program, with empty reductions yielding their identity, as in lowered ones.

    for i { for k in 0..n { block C } }
    for i { if n == 0 { block C_init }  for k in 0..n { block C } }
    """
    body = _InitEmpty({block.name for block in blocks(fn.body)})(fn.body)
    assert body is not None
    return replace(fn, body=body)


class _Frame:
    """An enclosing loop, and the inits to insert before it."""

    def __init__(self, loop: For, ctx: Context) -> None:
        self.loop = loop
        self.ctx = ctx  # the facts before the loop
        self.before: list[Stmt] = []


class _LowerInits(Rewriter):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.frames: list[
            _Frame
        ] = []  # enclosing loops that an init may be hoisted out of, outermost first

    def visit_for(self, loop: For) -> Stmt | None:
        frame = _Frame(loop, self.ctx)
        self.frames.append(frame)
        if annotation(loop, STAGE) is None:
            lowered = super().visit_for(loop)
        else:
            inside = self.ctx.bind(loop.var, loop.start, loop.stop)
            groups = [self.scoped(inside, stmt) for stmt in as_list(loop.body)]
            lowered = expanded_plan(loop, [as_list(done) for done in groups if done is not None])
        self.frames.pop()
        assert lowered is not None
        return seq(*frame.before, lowered) if frame.before else lowered

    def visit_if(self, stmt: If) -> Stmt | None:
        outer, self.frames = self.frames, []
        lowered = super().visit_if(stmt)
        self.frames = outer
        return lowered

    def visit_block(self, block: Block) -> Stmt | None:
        outer, self.frames = self.frames, []
        ctx = self.ctx.bind_all({it.var: (0, it.extent) for it in block.iters})
        outer_ctx, self.ctx = self.ctx, ctx
        lowered = super().visit_block(block)
        self.frames, self.ctx = outer, outer_ctx
        assert isinstance(lowered, Block)
        if lowered.init is None:
            return lowered
        for at in range(len(self.frames)):
            init = self._init_before(lowered, block, self.frames[at:])
            if init is not None:
                return self._put(lowered, init, self.frames[at])
        return self._left(lowered)

    def _put(self, block: Block, init: Stmt, frame: _Frame) -> Block:
        """Insert the init before a loop; returns the block without it."""
        frame.before.append(init)
        return replace(block, init=None)

    def _left(self, block: Block) -> Block:
        """A block whose init cannot be hoisted."""
        return _guarded(block)

    def _init_before(self, block: Block, original: Block, frames: list[_Frame]) -> Stmt | None:
        """The loops and the block that initialize all elements before the first frame."""
        first = frames[0]
        reduce_bindings = [
            at for it, at in zip(block.iters, block.bindings, strict=True) if it.kind == REDUCE
        ]
        spatial = {
            it: at for it, at in zip(block.iters, block.bindings, strict=True) if it.kind != REDUCE
        }
        reducing = sym.free_vars(*reduce_bindings)
        if first.loop.var not in reducing:
            return None
        dropped = {f.loop.var: f.loop.start for f in frames if f.loop.var in reducing}
        if any(sym.uses_var(at, dropped) for at in spatial.values()):
            return None
        if not _is_unobserved(original, first.loop):
            return None
        # With all dropped loops at their start every reduce iterator must be 0: the start must be
        # its least value, and not negative.
        conditions = []
        for binding in reduce_bindings:
            at_start = sym.simplify(sym.substitute(binding, dropped), self.ctx)
            if not sym.prove(sym.le(at_start, binding), self.ctx):
                return None
            if not sym.prove(sym.le(0, at_start), self.ctx):
                return None
            conditions.append(sym.eq(at_start, 0))
        # Conditions on reduction iterators alone do not apply to the init.
        limits = [
            sym.substitute(part, dropped)
            for part in sym.conjuncts(block.predicate)
            if not sym.uses_var(part, dropped) or any(v not in dropped for v in _variables(part))
        ]
        predicate = sym.all_of(*limits, *conditions)
        # Kept loops are copied with fresh variables.
        renamed: dict[Var, Expr] = dict(dropped)
        kept = [f.loop for f in frames if f.loop.var not in dropped]
        for loop in kept:
            renamed[loop.var] = var(loop.var.name)
        result: Stmt = self._init_block(block, renamed, predicate)
        for loop in reversed(kept):
            unroll = annotation(loop, "unroll")
            made = renamed[loop.var]
            assert isinstance(made, Var)
            result = replace(
                loop,
                var=made,
                start=sym.substitute(loop.start, renamed),
                stop=sym.substitute(loop.stop, renamed),
                body=result,
                annotations=annotated((), "unroll", unroll),
            )
        return result

    def _init_block(self, block: Block, renamed: dict[Var, Expr], predicate: Expr) -> Block:
        name = f"{block.name}_init"
        while name in self.names:
            name += "_"
        self.names.add(name)
        assert block.init is not None
        kept = [it.kind != REDUCE for it in block.iters]
        loaded = _loaded(block.init)
        first: dict[Var, Expr] = {it.var: sym.ZERO for it in block.iters if it.kind == REDUCE}
        made = replace(
            block,
            name=name,
            iters=tuple([it for it, keep in zip(block.iters, kept, strict=True) if keep]),
            bindings=tuple(
                [
                    sym.substitute(at, renamed)
                    for at, keep in zip(block.bindings, kept, strict=True)
                    if keep
                ]
            ),
            reads=tuple([substitute_region(r, first) for r in block.reads if r.buffer in loaded]),
            writes=tuple([substitute_region(r, first) for r in block.writes]),
            body=substitute(block.init, first),
            init=None,
            predicate=sym.substitute(predicate, renamed),
            annotations=(),
        )
        copied = fresh_copy(made)
        assert isinstance(copied, Block)
        return copied


class _InitEmpty(_LowerInits):
    def visit_for(self, loop: For) -> Stmt | None:
        frame = _Frame(loop, self.ctx)
        self.frames.append(frame)
        lowered = Rewriter.visit_for(self, loop)
        self.frames.pop()
        assert lowered is not None
        return seq(*frame.before, lowered) if frame.before else lowered

    def _put(self, block: Block, init: Stmt, frame: _Frame) -> Block:
        extents = [it.extent for it in block.iters if it.kind == REDUCE]
        frame.before.append(If(sym.any_of(*[sym.eq(n, 0) for n in extents]), init, None))
        return block

    def _left(self, block: Block) -> Block:
        return block


def _variables(cond: Expr) -> list[Var]:
    return [v for v in sym.free_vars(cond) if not isinstance(v, Size)]


def _guarded(block: Block) -> Block:
    """The init in place, guarded to run for the first instance of each reduction."""
    assert block.init is not None
    first = sym.all_of(*[sym.eq(it.var, 0) for it in block.iters if it.kind == REDUCE])
    init = block.init if first is sym.TRUE else If(first, block.init, None, block.loc)
    return replace(block, body=seq(init, block.body), init=None)


def _is_unobserved(block: Block, loop: For) -> bool:
    """Whether nothing else inside of the loop observes that the init runs early."""
    assert block.init is not None
    written = written_buffers(block.init)
    loaded = _loaded(block.init)
    stack: list[Stmt] = [loop.body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Block):
            touched = {region.buffer for region in stmt.writes}
            if stmt is not block:
                if any(region.buffer in written for region in (*stmt.reads, *stmt.writes)):
                    return False
                touched |= _loaded(stmt.init).keys() if stmt.init is not None else set()
            if any(buffer in loaded for buffer in touched):
                return False
            continue
        stack.extend(stmt.children())
    return True


def _loaded(stmt: Stmt) -> dict[Buffer, None]:
    exprs = [expr for inner in walk(stmt) for expr in inner.exprs()]
    return {load.buffer: None for load in loads(*exprs)}
