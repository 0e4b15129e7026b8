"""Operators as tensor expressions: one family per file, one table of all."""

from tilewright.lower import (
    attention,
    bodies,
    boxes,
    conv,
    deform,
    det,
    elementwise,
    factors,
    image,
    indexing,
    linalg,
    norm,
    pool,
    quantize,
    random,
    recurrent,
    reduction,
    regions,
    search,
    shape,
    signal,
    slices,
    sorting,
    trees,
)
from tilewright.lower.base import Lowering, Refusal, Use

FAMILIES = (
    elementwise,
    shape,
    indexing,
    slices,
    bodies,
    reduction,
    linalg,
    conv,
    pool,
    norm,
    quantize,
    attention,
    recurrent,
    image,
    signal,
    sorting,
    search,
    boxes,
    regions,
    deform,
    det,
    factors,
    random,
    trees,
)
LOWERINGS: dict[str, Lowering] = {
    name: lowering for family in FAMILIES for name, lowering in family.LOWERINGS.items()
}
# Operators whose lowering does not take every use.
REFUSALS: dict[str, Refusal] = {
    **conv.REFUSALS,
    **elementwise.REFUSALS,
    **image.REFUSALS,
    **quantize.REFUSALS,
}
