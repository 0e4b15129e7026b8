"""Finding and replacing statements in the loop tree; how blocks depend on each other.

A loop is known by its variable, a block by its name: both survive every rewrite that keeps them,
so handles need no forwarding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    SCAN,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Seq,
    Stmt,
    seq,
)
from tilewright.tensor.visit import blocks, walk

Path = tuple[Stmt, ...]  # from a root statement down to a statement, both included


# --------------------------------------------------------------------------- paths


def find_path(root: Stmt, wanted: Stmt) -> Path | None:
    """The way from `root` to the statement `wanted`, by identity."""
    return _search(root, lambda stmt: stmt is wanted)


def find_loop(fn: Function, var: Var) -> Path | None:
    """The way to the loop over `var`."""
    return _places_of(fn).get(var)


def find_block(fn: Function, name: str) -> Path | None:
    """The way to the block `name`."""
    return _places_of(fn).get(name)


_recent: dict[Stmt, dict[Var | str, Path]] = {}  # of the programs looked at last


def _places_of(fn: Function) -> dict[Var | str, Path]:
    """The ways to all loops, by variable, and to all blocks, by name."""
    found = _recent.get(fn.body)
    if found is None:
        found = {}
        stack: list[tuple[Stmt, Path]] = [(fn.body, ())]
        while stack:
            stmt, above = stack.pop()
            children = stmt.children()
            if not children:
                continue
            path = (*above, stmt)
            if isinstance(stmt, For):
                found.setdefault(stmt.var, path)
            elif isinstance(stmt, Block):
                found.setdefault(stmt.name, path)
            stack += [(child, path) for child in children[::-1]]
        while len(_recent) >= 4:
            _recent.pop(next(iter(_recent)), None)
        _recent[fn.body] = found
    return found


def _search(root: Stmt, test: Callable[[Stmt], bool]) -> Path | None:
    stack: list[tuple[Stmt, int]] = [(root, 0)]
    path: list[Stmt] = []
    while stack:
        stmt, depth = stack.pop()
        del path[depth:]
        path.append(stmt)
        if test(stmt):
            return tuple(path)
        stack.extend((child, depth + 1) for child in reversed(stmt.children()))
    return None


def replace_at(path: Path, new: Stmt | None) -> Stmt | None:
    """The root with the last statement of `path` replaced; None removes it and emptied parents."""
    for parent, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if new is child:
            return path[0]
        if new is None:
            kept = tuple(c for c in parent.children() if c is not child)
            new = seq(*kept) if isinstance(parent, Seq) and kept else None
        else:
            children = tuple([new if c is child else c for c in parent.children()])
            new = parent.with_children(children)
    return new


def with_body(fn: Function, body: Stmt | None) -> Function:
    """The function over another body; the same object if it is the same body."""
    return fn if body is fn.body else replace(fn, body=Seq(()) if body is None else body)


def loops_on(path: Path) -> tuple[For, ...]:
    """The loops along a path, outermost first, inside the innermost enclosing block."""
    start = 0
    for at, stmt in enumerate(path[:-1]):
        if isinstance(stmt, Block):
            start = at + 1
    return tuple([stmt for stmt in path[start:] if isinstance(stmt, For)])


def scope_root(fn: Function, path: Path) -> Stmt:
    """The tree in which a path's last statement lives: the function's or a block's body."""
    for at in range(len(path) - 2, -1, -1):
        if isinstance(path[at], Block):
            return path[at + 1]
    return fn.body


def scope_blocks(root: Stmt) -> list[Block]:
    """The blocks of one scope in program order; blocks nested inside them are not listed."""
    found: list[Block] = []
    stack = [root]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Block):
            found.append(stmt)
        else:
            stack.extend(reversed(stmt.children()))
    return found


def loop_ranges(loops: Iterable[For]) -> dict[Var, tuple[Expr, Expr]]:
    """Variable -> (start, stop)."""
    return {loop.var: (loop.start, loop.stop) for loop in loops}


def loop_context(fn: Function, loops: Iterable[For]) -> sym.Context:
    """What is known inside these loops: their ranges and the function's requirements."""
    ctx = sym.EMPTY
    for cond in fn.requires:
        ctx = ctx.assume(cond)
    return ctx.bind_all(loop_ranges(loops))


def insert_before(stmt: Stmt, anchor: Stmt, new: Stmt) -> Stmt:
    """`stmt` (the anchor, or a sequence holding it) with `new` placed right before the anchor."""
    children = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    out: list[Stmt] = []
    for child in children:
        if child is anchor:
            out.append(new)
        out.append(child)
    return seq(*out)


def insert_after(stmt: Stmt, anchor: Stmt, new: Stmt) -> Stmt:
    """`stmt` (the anchor, or a sequence holding it) with `new` placed right after the anchor."""
    children = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    out: list[Stmt] = []
    for child in children:
        out.append(child)
        if child is anchor:
            out.append(new)
    return seq(*out)


def nest(loops: Sequence[For], body: Stmt) -> Stmt:
    """The loops, outermost first, around `body`."""
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body


# --------------------------------------------------------------------------- dependences


def reads_of(block: Block) -> dict[Buffer, None]:
    return {region.buffer: None for region in block.reads}


def writes_of(block: Block) -> dict[Buffer, None]:
    return {region.buffer: None for region in block.writes}


def producers(root: Stmt, block: Block) -> list[Block]:
    """The other blocks of the scope that write what `block` reads, in program order."""
    wanted = reads_of(block)
    return [
        other
        for other in scope_blocks(root)
        if other is not block and any(buffer in wanted for buffer in writes_of(other))
    ]


def consumers(root: Stmt, block: Block) -> list[Block]:
    """The other blocks of the scope that read what `block` writes, in program order."""
    made = writes_of(block)
    return [
        other
        for other in scope_blocks(root)
        if other is not block and any(buffer in made for buffer in reads_of(other))
    ]


def sole_writer(root: Stmt, block: Block) -> bool:
    """Whether no other block of the scope writes the same buffers."""
    made = writes_of(block)
    return not any(
        buffer in made
        for other in scope_blocks(root)
        if other is not block
        for buffer in writes_of(other)
    )


def is_complete(root: Stmt, block: Block) -> bool:
    """Every instance writes its own elements from finished inputs: it may run in any order, and
    more than once."""
    return (
        all(it.kind == SPATIAL for it in block.iters)
        and sole_writer(root, block)
        and not any(buffer in reads_of(block) for buffer in writes_of(block))
    )


def is_reduction(root: Stmt, block: Block) -> bool:
    """It starts from its own `init` and folds instances of its reduce iterators together."""
    return (
        block.init is not None
        and any(it.kind == REDUCE for it in block.iters)
        and all(it.kind in (SPATIAL, REDUCE) for it in block.iters)
        and sole_writer(root, block)
        and not any(buffer in reads_of(block) for buffer in writes_of(block))
    )


def vars_of_kind(block: Block, kind: str) -> dict[Var, None]:
    """The loop variables that the block's iterators of one kind are bound to."""
    found: dict[Var, None] = {}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.kind == kind:
            found.update(sym.free_vars(binding))
    return found


def ordered_vars(block: Block) -> dict[Var, None]:
    """The loop variables whose order matters to the block: of its reduce and scan iterators."""
    return {**vars_of_kind(block, REDUCE), **vars_of_kind(block, SCAN)}


def block_names(fn: Function) -> set[str]:
    return {block.name for block in blocks(fn.body)}


def fresh_block_name(fn: Function, hint: str) -> str:
    """`hint`, or `hint_1`, ... if a block is called so already."""
    taken = block_names(fn)
    name, count = hint, 0
    while name in taken:
        count += 1
        name = f"{hint}_{count}"
    return name


def all_loops(root: Stmt) -> list[For]:
    """Every loop below and including `root`, outermost first."""
    return [stmt for stmt in walk(root) if isinstance(stmt, For)]
