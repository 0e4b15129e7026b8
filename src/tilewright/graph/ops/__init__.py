"""All operators, one family per file, in one table."""

from tilewright.graph.op import Op
from tilewright.graph.ops import (
    attention,
    cast,
    control,
    conv,
    elementwise,
    image,
    indexing,
    linalg,
    norm,
    pool,
    quantize,
    random,
    recurrent,
    reduction,
    sequences,
    shape,
    signal,
    sorting,
)

FAMILIES = (
    elementwise,
    cast,
    linalg,
    conv,
    pool,
    norm,
    quantize,
    recurrent,
    image,
    attention,
    signal,
    indexing,
    reduction,
    shape,
    sorting,
    random,
    sequences,
    control,
)
OPS: dict[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
