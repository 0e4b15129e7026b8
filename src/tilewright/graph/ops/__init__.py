"""All operators, one family per file, in one table."""

from tilewright.graph.op import Op
from tilewright.graph.ops import (
    cast,
    conv,
    elementwise,
    image,
    linalg,
    norm,
    pool,
    quantize,
    recurrent,
)

FAMILIES = (elementwise, cast, linalg, conv, pool, norm, quantize, recurrent, image)
OPS: dict[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
