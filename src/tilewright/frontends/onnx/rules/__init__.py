"""Rules by which ONNX operators become ours: (domain, operator) -> rule."""

from tilewright.frontends.onnx.rules import (
    activation,
    conv,
    elementwise,
    image,
    linalg,
    norm,
    pool,
    quantize,
    signal,
)
from tilewright.frontends.onnx.rules.base import Rule

FAMILIES = {"ai.onnx": (elementwise, activation, linalg, conv, pool, norm, quantize, image, signal)}
RULES: dict[tuple[str, str], Rule] = {
    (domain, name): rule
    for domain, families in FAMILIES.items()
    for family in families
    for name, rule in family.RULES.items()
}
