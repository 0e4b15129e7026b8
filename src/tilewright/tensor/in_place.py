"""Which results a function may compute in place of an argument.

    in_place_pairs(fn) -> ((0, 2),)      argument 0 and result 2 may share memory

Allowed if a single block reads the argument, the one that writes the result, and each instance of
it reads exactly the element that it writes. The order of instances does not matter.
"""

from __future__ import annotations

from tilewright.sym import ONE, Expr
from tilewright.tensor.ir import Block, Buffer, Function, Load, Store
from tilewright.tensor.visit import blocks, exprs, output_buffers, walk


def in_place_pairs(fn: Function) -> tuple[tuple[int, int], ...]:
    """Positions of arguments and of results; each is in one pair at most."""
    results = output_buffers(fn)
    every = list(blocks(fn.body))
    touched = {block: _touched(block) for block in every}
    found: list[tuple[int, int]] = []
    taken: set[Buffer] = set()
    for at, source in enumerate(fn.params):
        if not isinstance(source, Buffer) or source in results:
            continue
        users = [block for block in every if source in touched[block]]
        if len(users) != 1:
            continue
        for to, target in enumerate(fn.params):
            if not isinstance(target, Buffer) or target not in results or target in taken:
                continue
            writers = [block for block in every if target in touched[block]]
            if writers == users and _is_elementwise(users[0], source, target):
                found.append((at, to))
                taken.add(target)
                break
    return tuple(found)


def _touched(block: Block) -> set[Buffer]:
    regions = [*block.reads, *block.writes]
    return {region.buffer for region in regions}


def _is_alike(a: Buffer, b: Buffer) -> bool:
    same = len(a.shape) == len(b.shape) and all(
        x is y for x, y in zip(a.shape, b.shape, strict=True)
    )
    return same and a.dtype is b.dtype


def _is_elementwise(block: Block, source: Buffer, target: Buffer) -> bool:
    """Whether an instance stores once, where it reads."""
    stores = list(walk(block.body))
    if block.init is not None or len(stores) != 1 or not isinstance(stores[0], Store):
        return False
    store = stores[0]
    if store.buffer is not target or not _is_alike(source, target):
        return False
    reads: list[tuple[Expr, ...]] = [
        expr.index for expr in exprs(block.body) if isinstance(expr, Load) and expr.buffer is source
    ]
    return bool(reads) and all(_is_same(index, store.index, target) for index in reads)


def _is_same(a: tuple[Expr, ...], b: tuple[Expr, ...], buffer: Buffer) -> bool:
    return all(x is y or dim is ONE for x, y, dim in zip(a, b, buffer.shape, strict=True))
