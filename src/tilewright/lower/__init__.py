"""Operators as tensor expressions: one family per file, one table of all."""

from tilewright.lower import elementwise, indexing, linalg, reduction, shape
from tilewright.lower.base import Lowering, Use

FAMILIES = (elementwise, shape, indexing, reduction, linalg)
LOWERINGS: dict[str, Lowering] = {
    name: lowering for family in FAMILIES for name, lowering in family.LOWERINGS.items()
}
