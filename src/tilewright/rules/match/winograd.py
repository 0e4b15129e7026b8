"""The stages of a Winograd convolution, found from its GEMM (`lower/winograd.py` makes them)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.base.extents import ASSUMED
from tilewright.graph.winograd import (
    COLUMNS,
    HALF,
    IMAGE,
    PADDED,
    PRODUCT,
    RESULT,
    ROLE,
    WEIGHTS,
)
from tilewright.rules.context import RuleContext
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import Nest, attempt, block_of, nest_of
from tilewright.sym import ONE, Add, Const, Expr, Mul, Sub, free_vars
from tilewright.tensor.ir import Load, annotation
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import exprs


@dataclass(frozen=True)
class Parts:
    """The stages of one Winograd convolution."""

    product: Nest
    image: BlockRef
    half: BlockRef
    padded: BlockRef
    weights: tuple[BlockRef, ...]  # the last one is what the GEMM reads
    columns: BlockRef
    result: BlockRef  # assembles the output image from tiles, with the inlined epilogue
    image_operations: int  # to transform a row or column of a tile
    weights_operations: int
    result_operations: int
    tile: int  # outputs of a tile along an axis
    groups: int
    is_constant: bool  # weights are constant

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return number(self.product.extent(0))

    @property
    def window(self) -> int:
        return self.size - self.tile + 1

    @property
    def is_last(self) -> bool:
        """Whether channels are the last index of images and tiles."""
        return _is_last(self.product)


def number(expr: Expr, unknown: int = ASSUMED.elements) -> int:
    return int(expr.value) if isinstance(expr, Const) else unknown


def parts_of(sch: Schedule, reference: BlockRef, context: RuleContext) -> Parts | None:
    """The stages around a Winograd GEMM; None if the block is none, or other blocks have come
    between."""
    if annotation(block_of(sch.function, reference.name), ROLE) != PRODUCT:
        return None
    product = nest_of(sch, reference)
    image = _role(sch, sch.get_producers(reference), IMAGE)
    weights = _role(sch, sch.get_producers(reference), WEIGHTS)
    columns = _role(sch, sch.get_consumers(reference), COLUMNS)
    half = None if image is None else _role(sch, sch.get_producers(image), HALF)
    padded = None if half is None else _role(sch, sch.get_producers(half), PADDED)
    if product is None or weights is None or columns is None:
        return None
    if image is None or half is None or padded is None:
        return None
    before = _role(sch, sch.get_producers(weights), WEIGHTS)
    result = _role(sch, sch.get_consumers(columns), RESULT)
    if result is None:
        return None
    chain = (weights,) if before is None else (before, weights)
    return Parts(
        product,
        image,
        half,
        padded,
        chain,
        columns,
        result,
        image_operations=_operations(sch, half),
        weights_operations=_operations(sch, weights),
        result_operations=_operations(sch, columns),
        tile=_tile(sch, columns, product),
        groups=_groups(sch, image, weights),
        is_constant=_are_constant(sch, chain, context),
    )


def _is_last(product: Nest) -> bool:
    summed = product.var(product.reduce[0])
    loads = [expr for expr in exprs(product.block.body) if isinstance(expr, Load)]
    return any(summed in free_vars(load.index[-1]) for load in loads)


def _tile(sch: Schedule, columns: BlockRef, product: Nest) -> int:
    """Outputs of a tile along an axis."""
    shape = block_of(sch.function, columns.name).writes[0].buffer.shape
    return number(shape[-3] if _is_last(product) else shape[-2])


def _groups(sch: Schedule, image: BlockRef, weights: BlockRef) -> int:
    """The number of groups: channels of the image over channels summed per output."""
    v, u = (block_of(sch.function, each.name).writes[0].buffer for each in (image, weights))
    return number(v.shape[-1], 1) // number(u.shape[-2], 1) if len(v.shape) > len(u.shape) else 1


def _operations(sch: Schedule, reference: BlockRef) -> int:
    """Additions and multiplications of a transform, for all of its results together."""
    block = block_of(sch.function, reference.name)
    found = (expr for expr in exprs(block.body) if isinstance(expr, (Add, Sub, Mul)))
    return sum(expr.dtype.name != "index" for expr in found)


def _role(sch: Schedule, references: list[BlockRef], role: str) -> BlockRef | None:
    found = [
        reference
        for reference in references
        if annotation(block_of(sch.function, reference.name), ROLE) == role
    ]
    return found[0] if len(found) == 1 and nest_of(sch, found[0]) is not None else None


def followed(sch: Schedule, parts: Parts) -> Parts:
    """Inline the last stage into its consumer, where there is one that keeps its order."""
    readers = sch.get_consumers(parts.result)
    if len(readers) != 1 or not epilogue_blocks(sch, parts.result):
        return parts
    if not _keeps_order(sch, parts.result, readers[0]):
        return parts
    joined = attempt(sch, sch.compute_inline, parts.result)
    return replace(parts, result=readers[0]) if joined else parts


def _keeps_order(sch: Schedule, result: BlockRef, reader: BlockRef) -> bool:
    """Whether the consumer is elementwise, so that tiles stay tiles."""
    made = block_of(sch.function, result.name).writes[0].buffer
    body = block_of(sch.function, reader.name)
    loads = [expr for expr in exprs(body.body) if isinstance(expr, Load) and expr.buffer is made]
    return all(
        len(load.index) == len(body.iters)
        and all(
            at is it.var or (isinstance(at, Const) and it.extent is ONE)
            for at, it in zip(load.index, body.iters, strict=True)
        )
        for load in loads
    )


def _are_constant(sch: Schedule, chain: tuple[BlockRef, ...], context: RuleContext) -> bool:
    """Whether stages read only constants and each other."""
    stages = [block_of(sch.function, each.name) for each in chain]
    made = {region.buffer for stage in stages for region in stage.writes}
    read = [region.buffer for stage in stages for region in stage.reads]
    return all(buffer in made or buffer.name in context.constants for buffer in read)
