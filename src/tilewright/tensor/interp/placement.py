"""Which buffers a program uses, and where the intermediates of a scheduled one are allocated.

A scheduled function lists its intermediates at the top, without ownership. The rule, which lowering
follows too: an intermediate whose accesses are all inside of a parallel, vector, thread or
virtual-thread loop is private to each iteration of it; otherwise there is one for all. A reduction
continues from its last iteration, so loops over it are outside of the accumulator's allocation. In
a kernel the memory scope has the last word, see `lanes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright import sym
from tilewright.tensor.ir import (
    REDUCE,
    SERIAL,
    UNROLL,
    Address,
    Block,
    Buffer,
    Call,
    ExternCall,
    For,
    Function,
    Load,
    MaskedLoad,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.passes.flatten_buffers import STRIDE
from tilewright.tensor.regions import called_regions
from tilewright.tensor.roles import COPY, MULTICAST
from tilewright.tensor.visit import exprs, prefetched, walk, written_buffers


@dataclass(frozen=True, slots=True)
class _Path:
    """The statements from the body of the function down to one, and which child each step took."""

    stmts: tuple[Stmt, ...]
    steps: tuple[int, ...]

    def common(self, other: _Path) -> _Path:
        shared = 0
        for mine, theirs in zip(self.steps, other.steps, strict=False):
            if mine != theirs:
                break
            shared += 1
        return self.until(shared)

    def until(self, depth: int) -> _Path:
        """The first so many steps."""
        return _Path(self.stmts[: depth + 1], self.steps[:depth])

    def outside_of_reduction(self) -> _Path:
        """The way to the outermost loop that a reduction around the last statement runs over."""
        summed = {
            var
            for block in self.stmts
            if isinstance(block, Block)
            for it, at in zip(block.iters, block.bindings, strict=True)
            if it.kind == REDUCE
            for var in sym.free_vars(at)
        }
        loops = (at for at, s in enumerate(self.stmts) if isinstance(s, For) and s.var in summed)
        return self.until(next(loops, len(self.steps)))

    def home(self) -> Stmt:
        """The body of the innermost concurrent loop on the way, or of the function."""
        home = self.stmts[0]
        for stmt, child in zip(self.stmts, self.stmts[1:], strict=False):
            if isinstance(stmt, For) and stmt.kind not in (SERIAL, UNROLL):
                home = child
        return home


def homes(fn: Function) -> dict[Stmt, list[Buffer]]:
    """The statements around which the function's intermediates come into being."""
    found: dict[Buffer, _Path] = {}
    for path in _paths(fn.body):
        stmt = path.stmts[-1]
        if prefetched(stmt) is not None:
            continue  # no use: it may stand where the buffer is no more
        for buffer in accessed(stmt):
            fills = isinstance(stmt, Update) and buffer in stmt.buffers
            used = path.outside_of_reduction() if fills else path
            found[buffer] = found[buffer].common(used) if buffer in found else used
    result: dict[Stmt, list[Buffer]] = {}
    for buffer in fn.allocs:
        home = found[buffer].home() if buffer in found else fn.body
        result.setdefault(home, []).append(buffer)
    return result


def _paths(root: Stmt) -> Iterator[_Path]:
    stack = [_Path((root,), ())]
    while stack:
        path = stack.pop()
        yield path
        children = path.stmts[-1].children()
        stack.extend(
            _Path((*path.stmts, children[step]), (*path.steps, step))
            for step in reversed(range(len(children)))
        )


def accessed(stmt: Stmt) -> dict[Buffer, None]:
    """The buffers a statement touches itself, its children aside; declared regions do not count."""
    found: dict[Buffer, None] = {}
    roots = (*stmt.bindings, stmt.predicate) if isinstance(stmt, Block) else stmt.exprs()
    for node in sym.walk(*roots):
        if isinstance(node, (Load, MaskedLoad, Address)):
            found[node.buffer] = None
    if isinstance(stmt, Store):
        found[stmt.buffer] = None
    elif isinstance(stmt, Update):
        found.update(dict.fromkeys(stmt.buffers))
    elif isinstance(stmt, (TensorCall, ExternCall)):
        found.update(dict.fromkeys(region.buffer for region in stmt.regions))
    return found


def written(root: Stmt) -> dict[Buffer, None]:
    """The buffers that may change below a statement."""
    found = written_buffers(root)
    for stmt in walk(root):
        if isinstance(stmt, TensorCall):
            found.update(dict.fromkeys(region.buffer for region in called_regions(stmt)[1]))
    # An instruction may write through any address that it is given, but for those it reads from.
    for node in exprs(root):
        if isinstance(node, Call) and node.op != STRIDE:
            given = node.args[:1] if node.op in (COPY, MULTICAST) else node.args
            addresses = [part for arg in given for part in sym.walk(arg)]
            found.update(dict.fromkeys(x.buffer for x in addresses if isinstance(x, Address)))
    return found
