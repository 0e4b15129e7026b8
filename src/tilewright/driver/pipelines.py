"""The passes of each kind of target and precision, in order."""

from __future__ import annotations

from tilewright.base.passes import Pass
from tilewright.base.target import CPU, CUDA
from tilewright.graph.ir import Module
from tilewright.graph.passes import (
    CANONICAL,
    FLOAT8,
    FUSED,
    LAYOUT,
    LOWER_PRECISION,
    LOWER_PRECISION_F16,
    LOWER_PRECISION_TF32,
    OPTIMIZED,
    PREFERRED,
    QUANTIZED,
    SCALED,
    SPLIT,
    STREAMED,
    TRIMMED,
    UNFOLDED,
    UNROLLED,
)
from tilewright.graph.passes.check_indices import check_indices
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.graph.passes.densify_groups import densify_groups

Passes = tuple[Pass[Module], ...]

# A kernel on a GPU cannot stop the call: indices out of range are clamped there.
UNCHECKED = tuple(step for step in FUSED if step is not check_indices)

PIPELINES: dict[tuple[str, str], Passes] = {
    (CPU, "f32"): (
        *PREFERRED,
        *CANONICAL,
        *TRIMMED,
        *OPTIMIZED,
        *SCALED,
        *LAYOUT,
        *UNFOLDED,
        *FUSED,
    ),
    (CPU, "bf16"): (
        *PREFERRED,
        *CANONICAL,
        *TRIMMED,
        *OPTIMIZED,
        *SCALED,
        *LAYOUT,
        *LOWER_PRECISION,
        *UNFOLDED,
        *FUSED,
    ),
    (CPU, "bf16x6"): (
        *PREFERRED,
        *CANONICAL,
        *TRIMMED,
        *OPTIMIZED,
        *SCALED,
        *LAYOUT,
        *SPLIT,
        *UNFOLDED,
        *FUSED,
    ),
    (CUDA, "f32"): (
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        choose_winograd,
        *STREAMED,
        *UNCHECKED,
    ),
    (CUDA, "bf16"): (
        *FLOAT8,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *LAYOUT,
        densify_groups,
        *LOWER_PRECISION,
        *STREAMED,
        *UNCHECKED,
    ),
    (CUDA, "f16"): (
        *FLOAT8,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *LAYOUT,
        densify_groups,
        *LOWER_PRECISION_F16,
        *STREAMED,
        *UNCHECKED,
    ),
    (CUDA, "tf32"): (
        *FLOAT8,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *LAYOUT,
        *LOWER_PRECISION_TF32,
        *STREAMED,
        *UNCHECKED,
    ),
    (CUDA, "int8"): (
        *FLOAT8,
        *QUANTIZED,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *SCALED,
        *LAYOUT,
        *UNFOLDED,
        *STREAMED,
        *UNCHECKED,
    ),
    (CPU, "int8"): (
        *QUANTIZED,
        *CANONICAL,
        *TRIMMED,
        *OPTIMIZED,
        *SCALED,
        *LAYOUT,
        *UNFOLDED,
        *FUSED,
    ),
}
PRECISIONS = tuple(dict.fromkeys(precision for _, precision in PIPELINES))
