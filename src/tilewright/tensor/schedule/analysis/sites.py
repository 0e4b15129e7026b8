"""Where blocks stand: the blocks of one scope with the ways to them, edits that keep it in order.

A *scope* is the body of the function or of an enclosing block. Primitives that move blocks stay
inside one scope; what an enclosing block declares to read and write follows its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tilewright import sym
from tilewright.sym import Context, Expr, Var
from tilewright.tensor.ir import Block, Buffer, For, Function, If, Region, Seq, Stmt, seq
from tilewright.tensor.regions import access_regions, union
from tilewright.tensor.schedule.analysis.tree import Path, find_loop, reads_of, with_body, writes_of
from tilewright.tensor.visit import blocks, walk


@dataclass(frozen=True, slots=True)
class Site:
    """A block of a scope: its place in program order, and the way to it from the root."""

    block: Block
    path: Path
    order: int

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple([stmt for stmt in inside_scope(self.path) if isinstance(stmt, For)])


@dataclass(frozen=True, slots=True)
class Scope:
    """The blocks of one scope, in program order."""

    holder: Block | None  # the enclosing block
    prefix: Path  # from the root down to that block
    root: Stmt
    sites: tuple[Site, ...]

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.block.name == name)

    def readers(self, buffer: Buffer, but: Block | None = None) -> list[Site]:
        return [s for s in self.sites if s.block is not but and buffer in reads_of(s.block)]

    def writers(self, buffer: Buffer, but: Block | None = None) -> list[Site]:
        return [s for s in self.sites if s.block is not but and buffer in writes_of(s.block)]


def scope_of(path: Path) -> Scope:
    """The scope in which the last statement of a path lives."""
    cut = scope_depth(path)
    prefix = path[:cut]
    holder = prefix[-1] if prefix else None
    assert holder is None or isinstance(holder, Block)
    root = path[cut]  # a block has two scopes, its body and its init
    found: list[Site] = []
    stack: list[tuple[Stmt, Path]] = [(root, prefix)]
    while stack:
        stmt, above = stack.pop()
        here = (*above, stmt)
        if isinstance(stmt, Block):
            found.append(Site(stmt, here, len(found)))
        else:
            stack.extend((child, here) for child in reversed(stmt.children()))
    return Scope(holder, prefix, root, tuple(found))


def scope_depth(path: Path) -> int:
    """How many statements of a path lie outside of the scope of its last."""
    for at in range(len(path) - 2, -1, -1):
        if isinstance(path[at], Block):
            return at + 1
    return 0


def inside_scope(path: Path) -> Path:
    return path[scope_depth(path) :]


def same_scope(a: Path, b: Path) -> bool:
    """Whether two statements live in one scope."""
    cut = scope_depth(a)
    return cut == scope_depth(b) and common_depth(a, b) > cut


def common_depth(a: Path, b: Path) -> int:
    """How many statements from the root on the paths share."""
    depth = 0
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        depth += 1
    return depth


def shared_loops(a: Path, b: Path) -> tuple[For, ...]:
    """The loops around both, inside their scope, outermost first."""
    shared = a[: common_depth(a, b)]
    return tuple([stmt for stmt in inside_scope((*shared, a[-1])) if isinstance(stmt, For)])


def loops_below(path: Path, top: Stmt) -> tuple[For, ...]:
    """The loops on a path inside of `top`, outermost first."""
    at = next(k for k, stmt in enumerate(path) if stmt is top)
    return tuple([stmt for stmt in path[at + 1 :] if isinstance(stmt, For)])


def loops_above(scope: Scope, path: Path, place: int) -> list[For]:
    """The loops of the scope around `path[place]`."""
    return [stmt for stmt in path[len(scope.prefix) : place] if isinstance(stmt, For)]


def is_under(path: Path, top: Stmt) -> bool:
    return any(stmt is top for stmt in path)


def is_touched_outside(fn: Function, scope: Scope, buffer: Buffer) -> bool:
    """Whether blocks of other scopes use the buffer; blocks around the scope do not count."""
    if scope.holder is None:
        return False
    around = [stmt for stmt in scope.prefix if isinstance(stmt, Block)]
    inside = set(blocks(scope.root))
    return any(
        buffer in reads_of(block) or buffer in writes_of(block)
        for block in blocks(fn.body)
        if block not in inside and block not in around
    )


# --------------------------------------------------------------------------- edits


def put(path: Path, new: Stmt | None) -> Stmt | None:
    """The root with the last statement of a path replaced, or taken out where `new` is None.

    Emptied loops go too; blocks around declare what their bodies touch now.
    """
    for parent, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if new is child:
            return path[0]
        if isinstance(parent, Seq):
            kept = [new if c is child else c for c in parent.stmts]
            left = [stmt for stmt in kept if stmt is not None]
            new = seq(*left) if left else None
        elif isinstance(parent, If):
            new = _branch(parent, child, new)
        elif new is None:
            continue  # a loop, a let or a block around nothing
        elif isinstance(parent, Block):
            new = with_regions(parent.with_children(_children(parent, child, new)))
        else:
            new = parent.with_children(_children(parent, child, new))
    return new


def _children(parent: Stmt, child: Stmt, new: Stmt) -> tuple[Stmt, ...]:
    return tuple([new if c is child else c for c in parent.children()])


def _branch(parent: If, child: Stmt, new: Stmt | None) -> Stmt | None:
    then = new if parent.then is child else parent.then
    otherwise = new if parent.otherwise is child else parent.otherwise
    if then is None:
        if otherwise is None:
            return None
        return If(sym.logical_not(parent.cond), otherwise, None, parent.loc)
    return If(parent.cond, then, otherwise, parent.loc)


def with_regions(block: Stmt) -> Stmt:
    """The block with the regions that its body touches."""
    assert isinstance(block, Block)
    reads, writes = access_regions(block.body, block.init, block.iters)
    return replace(block, reads=reads, writes=writes)


def child_holding(body: Stmt, block: Block) -> Stmt:
    """The statement of a loop's body in which a block stands."""
    children = body.stmts if isinstance(body, Seq) else (body,)
    return next(child for child in children if any(stmt is block for stmt in walk(child)))


def put_beside(
    fn: Function, var: Var, block: Block, nest: Stmt, insert: Callable[[Stmt, Stmt, Stmt], Stmt]
) -> Function:
    """The function with a nest before or after the part of a loop's body where a block stands."""
    path = find_loop(fn, var)
    assert path is not None
    loop = path[-1]
    assert isinstance(loop, For)
    body = insert(loop.body, child_holding(loop.body, block), nest)
    return with_body(fn, put(path, replace(loop, body=body)))


# --------------------------------------------------------------------------- what is known


def known_variables(fn: Function, scope: Scope, loops: Sequence[For]) -> set[Var]:
    """What an index may speak of at a place inside `loops`."""
    found = {param for param in fn.params if isinstance(param, Var)}
    if scope.holder is not None:
        found.update(it.var for it in scope.holder.iters)
    found.update(loop.var for loop in loops)
    return found


def scope_context(fn: Function, scope: Scope, loops: Sequence[For]) -> Context:
    """What is known inside loops of a scope: ranges, iterators around, requirements."""
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    if scope.holder is not None:
        ctx = ctx.bind_all({it.var: (sym.ZERO, it.extent) for it in scope.holder.iters})
    return ctx.bind_all({loop.var: (loop.start, loop.stop) for loop in loops})


def speaks_only_of(expr: Expr, known: set[Var]) -> bool:
    """Whether all variables besides sizes are known ones."""
    return all(v in known or isinstance(v, sym.Size) for v in sym.free_vars(expr))


def region_of(regions: Sequence[Region], buffer: Buffer) -> Region:
    """What a block declares about a buffer, as one box."""
    found = [region for region in regions if region.buffer is buffer]
    return reduce(lambda a, b: union(a, b, sym.EMPTY), found)
