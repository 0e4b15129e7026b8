"""Rules by which ATen operators become ours: name and overload -> rule."""

from tilewright.frontends.torch.rules import (
    activation,
    attention,
    bessel,
    control,
    conv,
    creation,
    elementwise,
    factors,
    image,
    indexing,
    linalg,
    norm,
    pool,
    recurrences,
    recurrent,
    reduction,
    search,
    shape,
    sorting,
    special,
)
from tilewright.frontends.torch.rules.base import Rule

FAMILIES = (
    elementwise,
    special,
    bessel,
    recurrences,
    activation,
    shape,
    creation,
    reduction,
    indexing,
    linalg,
    factors,
    attention,
    conv,
    pool,
    norm,
    image,
    recurrent,
    sorting,
    search,
    control,
)
RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
