"""The passes of each kind of target and precision, in order."""

from __future__ import annotations

from tilewright.base.passes import Pass
from tilewright.base.target import CPU, CUDA
from tilewright.graph.ir import Module
from tilewright.graph.passes import (
    CANONICAL,
    FUSED,
    LAYOUT,
    LOWER_PRECISION,
    OPTIMIZED,
    PADDED,
    QUANTIZED,
    SCALED,
    UNFOLDED,
)

Passes = tuple[Pass[Module], ...]

PIPELINES: dict[tuple[str, str], Passes] = {
    (CPU, "f32"): (*CANONICAL, *OPTIMIZED, *LAYOUT, *UNFOLDED, *FUSED),
    (CPU, "bf16"): (
        *CANONICAL,
        *OPTIMIZED,
        *LAYOUT,
        *LOWER_PRECISION,
        *UNFOLDED,
        *FUSED,
    ),
    (CUDA, "f32"): (*CANONICAL, *OPTIMIZED, *PADDED, *FUSED),
    (CUDA, "bf16"): (*CANONICAL, *OPTIMIZED, *LOWER_PRECISION, *PADDED, *FUSED),
    (CPU, "int8"): (*QUANTIZED, *CANONICAL, *OPTIMIZED, *SCALED, *LAYOUT, *UNFOLDED, *FUSED),
}
PRECISIONS = tuple(dict.fromkeys(precision for _, precision in PIPELINES))
