"""Translation rules of ONNX operators: (domain, operator) -> rule."""

from tilewright.frontends.onnx.rules import (
    activation,
    attention,
    control,
    conv,
    drafts,
    dropout,
    elementwise,
    image,
    indexing,
    linalg,
    loss,
    maps,
    microsoft,
    microsoft_attention,
    microsoft_blocked,
    microsoft_experts,
    microsoft_images,
    microsoft_others,
    microsoft_states,
    ml,
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
    strings,
    training,
    trees,
)
from tilewright.frontends.onnx.rules.base import Rule

FAMILIES = {
    "ai.onnx": (
        elementwise,
        activation,
        linalg,
        conv,
        pool,
        norm,
        quantize,
        attention,
        recurrent,
        image,
        signal,
        loss,
        dropout,
        indexing,
        reduction,
        shape,
        sorting,
        random,
        sequences,
        control,
        strings,
        drafts,
    ),
    "ai.onnx.ml": (ml, trees, maps),
    "ai.onnx.preview.training": (training,),
    "com.microsoft": (
        microsoft,
        microsoft_attention,
        microsoft_experts,
        microsoft_images,
        microsoft_others,
        microsoft_states,
    ),
    microsoft_blocked.DOMAIN: (microsoft_blocked,),
}
RULES: dict[tuple[str, str], Rule] = {
    (domain, name): rule
    for domain, families in FAMILIES.items()
    for family in families
    for name, rule in family.RULES.items()
}
