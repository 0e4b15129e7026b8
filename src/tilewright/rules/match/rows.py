"""Fusible chains of row-wise stages, by structure: reductions and the elementwise stages around
them.

    max of row; exp and sum of row; row / sum

A *row* is an index of the loops that all the reductions keep: the loops of the last stage that
every reduction before it has too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.rules.match.nest import Nest, is_expression, nest_of
from tilewright.sym import Const, Var
from tilewright.tensor.ir import REDUCE, SPATIAL, Block, Buffer, Function, Load, Store, Update
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import blocks, exprs, output_buffers, walk


@dataclass
class Stages:
    """The stages that end in one block, the root, and the iterators of it that all of them
    share."""

    root: Nest
    members: dict[str, Nest]  # without the root, in reverse program order
    rows: list[int]  # the shared iterators, as positions in the root
    row_axis_of: dict[str, dict[int, int]]  # per member: row iterator of the root -> its own

    @property
    def nests(self) -> tuple[Nest, ...]:
        return (self.root, *self.members.values())


class _Uses:
    """The blocks of a program, the readers of each one's result, and the program's outputs."""

    def __init__(self, fn: Function) -> None:
        self.order = list(blocks(fn.body))
        self.outputs = output_buffers(fn)
        self.readers: dict[Buffer, list[Block]] = {}
        for block in self.order:
            for region in block.reads:
                self.readers.setdefault(region.buffer, []).append(block)

    def of(self, block: Block) -> list[Block]:
        """The other readers of a block's result; none where it is an output."""
        made = [region.buffer for region in block.writes]
        if any(buffer in self.outputs for buffer in made):
            return []
        readers = [each for buffer in made for each in self.readers.get(buffer, ())]
        return [reader for reader in readers if reader is not block]


def stages_of(sch: Schedule, reference: BlockRef, *, with_prologue: bool = False) -> Stages | None:
    """The reductions, and the stages between them, that feed a block without reductions.

    A prologue is the elementwise producer of the rows: with GELU and a normalization, the GELU.
    """
    return _stages_of(sch, reference, None, with_prologue)


def _stages_of(
    sch: Schedule, reference: BlockRef, known: _Uses | None, with_prologue: bool = False
) -> Stages | None:
    root = nest_of(sch, reference)
    if root is None or root.reduce or not root.loops or not is_expression(root.block):
        return None
    uses = known or _Uses(sch.function)
    members: dict[str, Nest] = {}
    for block in reversed(uses.order):
        users = uses.of(block)
        if block is root.block or not users:
            continue
        if any(user is not root.block and user.name not in members for user in users):
            continue
        if is_expression(block) and own_axes(block):
            nest = nest_of(sch, sch.get_block(block.name))
            if nest is not None:
                members[block.name] = nest
    if not any(nest.reduce for nest in members.values()):
        return None
    return _with_rows(root, members, with_prologue)


def is_part_of_later(sch: Schedule, reference: BlockRef) -> bool:
    """Whether the block is a stage of a larger chain that ends in a later block."""
    uses = _Uses(sch.function)
    at = next(at for at, block in enumerate(uses.order) if block.name == reference.name)
    reached = {id(user) for user in uses.of(uses.order[at])}
    for block in uses.order[at + 1 :]:  # the chain's root uses it, directly or not
        if id(block) in reached:
            reached.update(id(user) for user in uses.of(block))
            found = _stages_of(sch, sch.get_block(block.name), uses)
            if found is not None and reference.name in found.members:
                return True
    return False


def _with_rows(root: Nest, members: dict[str, Nest], with_prologue: bool) -> Stages | None:
    """The row iterators that all members share; members that share none are dropped."""
    chosen = dict(members)
    kept = list(root.loops)
    while True:
        row_axis_of: dict[str, dict[int, int]] = {root.name: {at: at for at in kept}}
        nests = {root.name: root, **chosen}
        lost: set[int] = set()
        for name, nest in chosen.items():
            found = _mapped(nest, nests, row_axis_of, kept)
            if nest.reduce or _uses_reduction(nest, chosen):
                lost.update(at for at in kept if at not in found)
            elif any(at not in found for at in kept if not (with_prologue and at in lost)):
                chosen = _without(name, chosen)
                break
            row_axis_of[name] = found
        else:
            if not lost:
                break
            kept = [at for at in kept if at not in lost]
            if not kept:
                return None
    if not any(nest.reduce for nest in chosen.values()):
        return None
    return Stages(root, dict(chosen), kept, row_axis_of)


def _without(name: str, members: dict[str, Nest]) -> dict[str, Nest]:
    """The members except one and its producers."""
    gone = {name}
    for each, nest in members.items():  # consumers first
        made = [region.buffer for region in nest.block.writes]
        if any(region.buffer in made for other in gone for region in members[other].block.reads):
            gone.add(each)
    return {each: nest for each, nest in members.items() if each not in gone}


def _uses_reduction(nest: Nest, members: dict[str, Nest]) -> bool:
    found = {nest.name}
    for each, other in members.items():
        made = [region.buffer for region in other.block.writes]
        used = any(region.buffer in made for name in found for region in members[name].block.reads)
        if used:
            found.add(each)
            if other.reduce:
                return True
    return False


def _mapped(
    nest: Nest, nests: dict[str, Nest], row_axis_of: dict[str, dict[int, int]], rows: list[int]
) -> dict[int, int]:
    """Row iterator of the root -> iterator of a member, where all its readers agree."""
    axes = own_axes(nest.block)
    assert axes is not None
    found: dict[int, int] | None = None
    made = [region.buffer for region in nest.block.writes]
    for name, user in nests.items():
        if name not in row_axis_of:
            continue
        for expr in exprs(user.block.body):
            if not isinstance(expr, Load) or expr.buffer not in made:
                continue
            here = {
                row: axes[dim]
                for row, at in row_axis_of[name].items()
                for dim, index in enumerate(expr.index)
                if dim in axes and index is user.var(at)
            }
            found = here if found is None else _intersection(found, here)
    return {row: at for row, at in (found or {}).items() if row in rows}


def _intersection(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {row: at for row, at in a.items() if b.get(row) == at}


def own_axes(block: Block) -> dict[int, int] | None:
    """Dimension of the result -> the spatial iterator that indexes it, if each has one of its
    own."""
    indices = [stmt.index for stmt in walk(block.body) if isinstance(stmt, (Store, Update))]
    if not indices or any(index != indices[0] for index in indices):
        return None
    place = {it.var: at for at, it in enumerate(block.iters) if it.kind == SPATIAL}
    axes: dict[int, int] = {}
    for dim, index in enumerate(indices[0]):
        if isinstance(index, Var) and index in place and place[index] not in axes.values():
            axes[dim] = place[index]
        elif not isinstance(index, Const):
            return None
    free = [it for it in block.iters if it.kind not in (SPATIAL, REDUCE)]
    return None if free else axes
