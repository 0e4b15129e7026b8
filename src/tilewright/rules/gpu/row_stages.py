"""Axes, operands and intermediates of the stages of a softmax or normalization, for GPU rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from tilewright import sym
from tilewright.base.multiprocessor import WORD_BYTES
from tilewright.rules.match.nest import Access, Nest, block_of, can_fuse, total
from tilewright.rules.match.rows import Stages
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.tensor.ir import Buffer
from tilewright.tensor.schedule import BlockRef, Schedule


def read_again(sch: Schedule, found: Stages) -> list[Buffer]:
    """Parameters whose rows more than one stage reads."""
    params = [buffer for buffer in sch.function.buffers if len(readers_of(found, buffer)) > 1]
    return [buffer for buffer in params if has_rows(found, buffer)]


def live_bytes(found: Stages, again: Sequence[Buffer], length: int) -> int:
    """The most bytes of a row that threads keep at once: a result may take the place of an operand
    at its last use."""
    names = [*reversed(list(found.members)), found.root.name]
    begins = {buffer: names.index(readers_of(found, buffer)[0]) for buffer in again}
    for (name, nest), (elements, _) in zip(
        found.members.items(), intermediates_of(found), strict=True
    ):
        if elements > 1:
            begins[nest.block.writes[0].buffer] = names.index(name)
    live = [0] * len(names)
    for buffer, begin in begins.items():
        for at in range(begin, names.index(readers_of(found, buffer)[-1])):
            live[at] += length * max(buffer.dtype.size_bytes, WORD_BYTES)
    return max(live)


def streamed(sch: Schedule, found: Stages) -> list[Buffer]:
    """Parameters of which each row is read by its own block only."""
    params = [buffer for buffer in sch.function.buffers if readers_of(found, buffer)]
    return [buffer for buffer in params if has_rows(found, buffer)]


def readers_of(found: Stages, buffer: Buffer) -> list[str]:
    """The stages that read a buffer, in program order."""
    named = [*reversed(list(found.members.items())), (found.root.name, found.root)]
    return [name for name, nest in named if any(read.buffer is buffer for read in nest.reads)]


def copied(sch: Schedule, found: Stages, buffer: Buffer) -> BlockRef:
    """A copy of a parameter in registers, which all stages read in its place."""
    first, *others = [sch.get_block(name) for name in readers_of(found, buffer)]
    reads = block_of(sch.function, first.name).reads
    index = next(at for at, read in enumerate(reads) if read.buffer is buffer)
    return sch.cache_read(first, index, "local", others)


def has_rows(found: Stages, buffer: Buffer) -> bool:
    """Whether every stage that reads a buffer reads all of it, each element at its own position."""
    for name, nest in named_stages(found):
        axes = [*rows_of(found, name).values(), *axes_inside(found, name, nest)]
        moved = [nest.var(at) for at in axes if nest.extent(at) is not ONE]
        for read in nest.reads:
            if read.buffer is buffer and (
                _factors(map(nest.extent, axes)) != _factors(buffer.shape)
                or any(read.stride(var) in (None, ZERO) for var in moved)
                or not is_in_place(nest, read)
            ):
                return False
    return True


def is_in_place(nest: Nest, access: Access) -> bool:
    """Whether an access is at exactly the position of its iterators, without an offset."""
    first = {nest.var(at): ZERO for at in nest.loops}
    return sym.simplify(sym.substitute(access.offset, first)) is ZERO


def is_last_axis(nest: Nest, found: Stages, name: str) -> bool:
    """Whether a stage runs along one contiguous axis of a row."""
    own = axes_inside(found, name, nest)
    if not own:
        return True
    if len(own) > 1:
        return False
    var = nest.var(own[0])
    strides = [access.stride(var) for access in nest.accesses]
    made = {each.block.writes[0].buffer for each in found.members.values()}
    in_place = all(is_in_place(nest, read) for read in nest.reads if read.buffer in made)
    return in_place and all(
        isinstance(stride, Const) and stride.value in (0, 1) for stride in strides
    )


def named_stages(found: Stages) -> list[tuple[str, Nest]]:
    return [(found.root.name, found.root), *found.members.items()]


def row_axes(found: Stages) -> list[int]:
    """The row iterators, without those of extent 1."""
    sink = found.root
    return [at for at in found.rows if sink.extent(at) is not ONE] or found.rows[-1:]


def adjacent_axes(found: Stages) -> list[int]:
    """The innermost row iterators that can be fused in every stage; a dynamic one stays alone."""
    *outer, last = row_axes(found)
    kept = [last]
    for at in reversed(outer):
        if found.root.is_dynamic([at, *kept]) or not all(
            _can_fuse_rows(nest, rows_of(found, name), at, kept[0])
            for name, nest in named_stages(found)
        ):
            break
        kept.insert(0, at)
    return kept


def _can_fuse_rows(nest: Nest, rows: dict[int, int], outer: int, inner: int) -> bool:
    return outer in rows and inner in rows and can_fuse(nest, rows[outer], rows[inner])


def rows_of(found: Stages, name: str) -> dict[int, int]:
    """Row iterator of the root -> that of a stage."""
    return found.row_axis_of.get(name) or {at: at for at in found.rows}


def axes_inside(found: Stages, name: str, nest: Nest) -> list[int]:
    """A stage's iterators inside of a row, without those of extent 1."""
    rows = rows_of(found, name).values()
    return [at for at in nest.loops if at not in rows and nest.extent(at) is not ONE]


def stage_length(found: Stages, name: str, nest: Nest) -> int:
    return total(nest, axes_inside(found, name, nest))


def touched_bytes(found: Stages, buffers: Iterable[Buffer]) -> int:
    """What the stages touch of buffers, each element once."""
    return sum(
        max(nest.touched(buffer) for nest in found.nests) * buffer.dtype.size_bytes
        for buffer in buffers
    )


def _factors(extents: Iterable[Expr]) -> tuple[int, Counter[Expr]]:
    """A number of elements: the product of static extents, and the dynamic ones."""
    every = list(extents)
    known = prod(int(extent.value) for extent in every if isinstance(extent, Const))
    return known, Counter(extent for extent in every if not isinstance(extent, Const))


def intermediates_of(found: Stages) -> list[tuple[int, int]]:
    """Elements per row, and their bytes, of each stage's result."""
    made = []
    for name, nest in found.members.items():
        own = [at for at in nest.spatial if at not in found.row_axis_of[name].values()]
        elements = total(nest, own)
        made.append((elements, elements * nest.block.writes[0].buffer.dtype.size_bytes))
    return made
