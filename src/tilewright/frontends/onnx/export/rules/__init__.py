"""How each operator is written: operator -> rule, one family per file."""

from tilewright.frontends.onnx.export.emitter import Rule
from tilewright.frontends.onnx.export.rules import (
    control,
    elementwise,
    linalg,
    nn,
    recurrent,
    sequences,
    shape,
)

FAMILIES = (elementwise, shape, linalg, nn, recurrent, control, sequences)
RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
# What ONNX has no operator for is a function of ours.
COMPOSITES = frozenset(name for family in FAMILIES for name in family.COMPOSITES)
