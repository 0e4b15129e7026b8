"""Operators as tensor expressions: one family per file, one table of all."""

from tilewright.lower import (
    attention,
    bodies,
    conv,
    deform,
    det,
    elementwise,
    factorizations,
    indexing,
    linalg,
    norm,
    pool,
    quantize,
    random,
    recurrent,
    reduction,
    resize,
    roi,
    search,
    shape,
    signal,
    slices,
    sorting,
    suppression,
    trees,
)
from tilewright.lower.base import Lowering, Refusal, Requirement, Use

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
    resize,
    signal,
    sorting,
    suppression,
    search,
    roi,
    deform,
    det,
    factorizations,
    random,
    trees,
)
LOWERINGS: dict[str, Lowering] = {
    name: lowering for family in FAMILIES for name, lowering in family.LOWERINGS.items()
}
# Operators whose lowering does not support all uses.
REFUSALS: dict[str, Refusal] = {
    **conv.REFUSALS,
    **elementwise.REFUSALS,
    **quantize.REFUSALS,
}
# Conditions on sizes without which an operator is undefined, checked in calls.
REQUIREMENTS: dict[str, Requirement] = {
    **indexing.REQUIREMENTS,
    **resize.REQUIREMENTS,
}
