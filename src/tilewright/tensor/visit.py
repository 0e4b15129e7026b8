"""Traversal of tensor programs. Nothing else recurses by hand.

walk(stmt)                         every statement, parents first, in program order
exprs(stmt)                        every expression node below it, each distinct node once
rewrite(stmt, rule, expr_rule)     a new program, children first; the same object if unchanged
substitute, replace_buffers        the two common rewrites
fresh_copy(stmt, mapping)          the same code once more
copies(stmt, variable, values)     the same code for each value
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import (
    THREAD,
    Address,
    Alloc,
    Block,
    Buffer,
    Call,
    Eval,
    ExternCall,
    For,
    Function,
    If,
    Let,
    Load,
    MaskedLoad,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    Update,
    seq,
)

StmtRule = Callable[[Stmt], Stmt | None]
ExprRule = Callable[[Expr], Expr]


def walk(root: Stmt) -> Iterator[Stmt]:
    """Every statement below and including `root`, parents first, in program order."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        yield stmt
        children = stmt.children()
        if children:
            stack += children[::-1]


def exprs(root: Stmt) -> Iterator[Expr]:
    """Every distinct expression node in the program below `root`."""
    return sym.walk(*(expr for stmt in walk(root) for expr in stmt.exprs()))


def blocks(root: Stmt) -> Iterator[Block]:
    """Every block, in program order."""
    return (stmt for stmt in walk(root) if isinstance(stmt, Block))


def rewrite(root: Stmt, rule: StmtRule | None = None, expr_rule: ExprRule | None = None) -> Stmt:
    """Rebuild bottom-up: first expressions by `expr_rule`, then statements by `rule`.

    `rule` may return None to drop a statement; a loop or branch whose body was dropped goes too.
    """
    empty = Seq(())
    memo: dict[Expr, Expr] = {}
    stack: list[tuple[Stmt, bool]] = [(root, False)]
    done: list[Stmt] = []
    while stack:
        stmt, children_done = stack.pop()
        children = stmt.children()
        if children and not children_done:
            stack.append((stmt, True))
            stack += [(child, False) for child in reversed(children)]
            continue
        if children:
            count = len(children)
            new = tuple(done[-count:])
            del done[-count:]
            stmt = _with_children(stmt, children, new, empty)
            if stmt is empty:
                done.append(empty)
                continue
        if expr_rule is not None:
            stmt = map_exprs(stmt, expr_rule, memo)
        if rule is not None:
            ruled = rule(stmt)
            stmt = empty if ruled is None else ruled
        done.append(stmt)
    (result,) = done
    return result


def _with_children(stmt: Stmt, old: tuple[Stmt, ...], new: tuple[Stmt, ...], empty: Seq) -> Stmt:
    if new == old:  # nodes are equal where they are the same
        return stmt
    if isinstance(stmt, Seq):
        kept = [child for child in new if child is not empty]
        return seq(*kept) if kept else empty
    if isinstance(stmt, If):
        then, otherwise = new[0], new[1] if len(new) > 1 else empty
        if then is empty and otherwise is empty:
            return empty
        if then is empty:
            return If(sym.logical_not(stmt.cond), otherwise, None, stmt.loc)
        return If(stmt.cond, then, None if otherwise is empty else otherwise, stmt.loc)
    if isinstance(stmt, Block):
        if new[0] is empty:
            return empty
        init = new[1] if len(new) > 1 and new[1] is not empty else None
        return replace(stmt, body=new[0], init=init)
    if isinstance(stmt, (For, Let, Alloc)) and new[0] is empty:
        return empty
    return stmt.with_children(new)


def map_exprs(stmt: Stmt, rule: ExprRule, memo: dict[Expr, Expr] | None = None) -> Stmt:
    """The statement with `rule` applied to every node of the expressions it holds directly."""
    old = stmt.exprs()
    if not old:
        return stmt
    memo = {} if memo is None else memo
    new = tuple([sym.rewrite(expr, rule, memo) for expr in old])
    return stmt if new == old else stmt.with_exprs(new)


def substitute(root: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """Replace variables throughout, folding constants. Binders are not renamed."""
    if not mapping:
        return root
    memo: dict[Expr, Expr] = dict(mapping.items())

    def rule(stmt: Stmt) -> Stmt:
        old = stmt.exprs()
        new = tuple([sym.replaced(expr, memo) for expr in old])
        return stmt if new == old else stmt.with_exprs(new)

    return rewrite(root, rule)


def copies(root: Stmt, variable: Var, values: Iterable[Expr]) -> list[Stmt]:
    """A copy for each value of a variable, folding constants."""
    if any(isinstance(inner, (For, Let, Alloc, Block)) for inner in walk(root)):
        return [fresh_copy(root, {variable: at}) for at in values]
    changing = sym.above(variable, [expr for stmt in walk(root) for expr in stmt.exprs()])
    made: list[Stmt] = []
    for at in values:
        memo: dict[Expr, Expr] = {variable: at}
        for expr in changing:
            memo[expr] = sym.rebuilt(expr, tuple([memo.get(x, x) for x in expr.children()]))
        made.append(rewrite(root, partial(_put, memo)))
    return made


def _put(memo: Mapping[Expr, Expr], stmt: Stmt) -> Stmt:
    old = stmt.exprs()
    new = tuple([memo.get(expr, expr) for expr in old])
    return stmt if new == old else stmt.with_exprs(new)


def replace_buffers(root: Stmt, mapping: Mapping[Buffer, Buffer]) -> Stmt:
    """Redirect every access from one buffer to another of the same shape."""
    if not mapping:
        return root

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in mapping:
            return Load(mapping[expr.buffer], expr.index)
        if isinstance(expr, MaskedLoad) and expr.buffer in mapping:
            return MaskedLoad(mapping[expr.buffer], expr.index, expr.mask)
        if isinstance(expr, Address) and expr.buffer in mapping:
            return Address(mapping[expr.buffer], expr.index)
        return expr

    def regions(old: tuple[Region, ...]) -> tuple[Region, ...]:
        return tuple([Region(mapping.get(r.buffer, r.buffer), r.ranges) for r in old])

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in mapping:
            return replace(stmt, buffer=mapping[stmt.buffer])
        if isinstance(stmt, Update) and any(buffer in mapping for buffer in stmt.buffers):
            return replace(stmt, buffers=tuple(mapping.get(b, b) for b in stmt.buffers))
        if isinstance(stmt, (TensorCall, ExternCall)):
            return replace(stmt, regions=regions(stmt.regions))
        if isinstance(stmt, Block):
            return replace(stmt, reads=regions(stmt.reads), writes=regions(stmt.writes))
        if isinstance(stmt, Alloc) and stmt.buffer in mapping:
            return replace(stmt, buffer=mapping[stmt.buffer])
        return stmt

    return rewrite(root, rule, expr_rule)


def fresh_copy(root: Stmt, mapping: Mapping[Var, Expr] | None = None) -> Stmt:
    """A copy with variables and buffers of its own, `mapping` substituted on the way.

    Loops are known by their variables and buffers by identity, so code that is duplicated needs it.
    """
    memo: dict[Expr, Expr] = {}
    memo.update((mapping or {}).items())
    renamed: dict[Var, Var] = {}
    buffers: dict[Buffer, Buffer] = {}
    for stmt in walk(root):
        kind = type(stmt)
        if kind is For or kind is Let:
            bound: Var = stmt.var  # type: ignore[attr-defined]
            memo[bound] = renamed[bound] = sym.var(bound.name, bound.dtype)
        elif kind is Block:
            for it in stmt.iters:  # type: ignore[attr-defined]
                memo[it.var] = renamed[it.var] = sym.var(it.var.name, it.var.dtype)
        elif kind is Alloc:
            old: Buffer = stmt.buffer  # type: ignore[attr-defined]
            shape = tuple([sym.replaced(dim, memo) for dim in old.shape])
            buffers[old] = replace(old, shape=shape)
    if not memo and not buffers:
        return root

    def rebind(stmt: Stmt) -> Stmt:
        exprs = stmt.exprs()
        if exprs:
            stmt = stmt.with_exprs(tuple([sym.replaced(x, memo) for x in exprs]))
        if isinstance(stmt, (For, Let)):
            return replace(stmt, var=renamed[stmt.var])
        if isinstance(stmt, Block):
            iters = [replace(it, var=renamed[it.var]) for it in stmt.iters]
            return replace(stmt, iters=tuple(iters))
        return stmt

    return replace_buffers(rewrite(root, rebind), buffers)


def loads(*roots: Expr) -> Iterator[Load | MaskedLoad]:
    """The distinct loads inside expressions."""
    return (node for node in sym.walk(*roots) if isinstance(node, (Load, MaskedLoad)))


def prefetched(stmt: Stmt) -> Buffer | None:
    """The buffer whose memory the statement asks for ahead of time; None if it does not."""
    value = stmt.value if isinstance(stmt, Eval) else None
    if isinstance(value, Call) and value.op == "prefetch" and isinstance(value.args[0], Address):
        return value.args[0].buffer
    return None


def without_prefetches(root: Stmt, gone: Buffer) -> Stmt:
    """The program with no request for a buffer that is no more: they are hints."""
    if not any(prefetched(stmt) is gone for stmt in walk(root)):
        return root
    return rewrite(root, lambda stmt: None if prefetched(stmt) is gone else stmt)


def written_buffers(root: Stmt) -> dict[Buffer, None]:
    """The buffers stored to, in order of first store."""
    found: dict[Buffer, None] = {}
    for stmt in walk(root):
        if isinstance(stmt, Store):
            found[stmt.buffer] = None
        elif isinstance(stmt, Update):
            found.update(dict.fromkeys(stmt.buffers))
        elif isinstance(stmt, Block):
            found.update(dict.fromkeys(region.buffer for region in stmt.writes))
        elif isinstance(stmt, ExternCall):
            found.update(dict.fromkeys(r.buffer for r in stmt.regions[-stmt.outputs :]))
    return found


OUTPUTS = "outputs"  # attribute: positions of the parameters written, where statements hide it


def output_buffers(fn: Function) -> dict[Buffer, None]:
    """The parameters a function writes."""
    for key, positions in fn.attrs:
        if key == OUTPUTS:
            assert isinstance(positions, tuple)
            chosen = [fn.params[at] for at in positions if isinstance(at, int)]
            return {param: None for param in chosen if isinstance(param, Buffer)}
    written = written_buffers(fn.body)
    return {buffer: None for buffer in fn.buffers if buffer in written}


def kernels_of(root: Stmt) -> Iterator[For]:
    """The outermost thread loops."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, For) and stmt.kind == THREAD:
            yield stmt
        else:
            stack.extend(reversed(stmt.children()))
