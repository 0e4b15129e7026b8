"""Lower blocks: iterators are replaced by their bindings, predicates become branches.

block @C(%vi: spatial n = %io * 8 + %ii) {      if %io * 8 + %ii < n {
  where %io * 8 + %ii < n                          C[%io * 8 + %ii] = ...
  C[%vi] = ...                                   }
}
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import TRUE, Expr
from tilewright.tensor.ir import Block, For, Function, If, Seq, Stmt, annotation
from tilewright.tensor.passes.pipeline_loops import STAGE, expanded_plan
from tilewright.tensor.passes.rewriter import Rewriter, as_list, with_body


def lower_blocks(fn: Function, ctx: PassContext) -> Function:
    body = _LowerBlocks()(fn.body)
    if body is fn.body:
        return fn
    return replace(fn, body=Seq(()) if body is None else body)


class _LowerBlocks(Rewriter):
    """`self.memo` maps the iterators in scope, and expressions already substituted, to their
    values."""

    tracks = False

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[Expr, Expr] = {}

    def __call__(self, stmt: Stmt) -> Stmt | None:
        if self.memo and not isinstance(stmt, Block):
            old = stmt.exprs()
            if old:
                new = tuple([sym.replaced(expr, self.memo) for expr in old])
                if any(a is not b for a, b in zip(old, new, strict=True)):
                    stmt = stmt.with_exprs(new)
        return super().__call__(stmt)

    def visit_block(self, block: Block) -> Stmt | None:
        outer = self.memo
        values = [sym.replaced(at, outer) for at in block.bindings]
        predicate = sym.replaced(block.predicate, outer)
        self.memo = dict(outer)
        self.memo.update(zip([it.var for it in block.iters], values, strict=True))
        body = self(block.body)
        self.memo = outer
        if predicate is TRUE or body is None:
            return body
        return If(predicate, body, None, block.loc)

    def visit_for(self, loop: For) -> Stmt | None:
        if annotation(loop, STAGE) is None:
            return with_body(loop, self(loop.body))
        groups = [self(stmt) for stmt in as_list(loop.body)]
        return expanded_plan(loop, [[] if done is None else as_list(done) for done in groups])
