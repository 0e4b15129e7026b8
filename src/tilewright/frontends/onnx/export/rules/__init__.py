"""Export rules: operator -> rule, one family per file."""

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
# Operators without an ONNX equivalent, exported as functions.
COMPOSITES = frozenset(name for family in FAMILIES for name in family.COMPOSITES)
