"""Rules by which ATen operators become ours: name and overload -> rule."""

from tilewright.frontends.torch.rules import (
    activation,
    attention,
    control,
    conv,
    creation,
    elementwise,
    image,
    indexing,
    linalg,
    norm,
    pool,
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
    activation,
    shape,
    creation,
    reduction,
    indexing,
    linalg,
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
