"""The passes of each kind of target and precision, in order."""

from __future__ import annotations

from tilewright.base.errors import UserError
from tilewright.base.passes import Pass
from tilewright.base.target import ACCEL, CPU, CUDA, Target
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
    UPCAST,
    UPCAST_F16,
)
from tilewright.graph.passes.check_indices import check_indices
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.graph.passes.densify_groups import densify_groups
from tilewright.graph.passes.lift_reshapes import lift_reshapes
from tilewright.graph.passes.lower_precision import is_long
from tilewright.graph.passes.round_stored import round_stored
from tilewright.graph.passes.upcast_matmuls import PRODUCTS
from tilewright.graph.visit import walk

Passes = tuple[Pass[Module], ...]

# A kernel on a GPU cannot stop the call: indices out of range are clamped there.
UNCHECKED = (*(step for step in FUSED if step is not check_indices), lift_reshapes)
ROUNDED = (*(step for step in UNCHECKED if step is not lift_reshapes), round_stored, lift_reshapes)

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
        *UPCAST,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *LAYOUT,
        densify_groups,
        *LOWER_PRECISION,
        *STREAMED,
        *ROUNDED,
    ),
    (CUDA, "f16"): (
        *FLOAT8,
        *UPCAST_F16,
        *CANONICAL,
        *OPTIMIZED,
        *UNROLLED,
        *LAYOUT,
        densify_groups,
        *LOWER_PRECISION_F16,
        *STREAMED,
        *ROUNDED,
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


def check_precision(target: Target, precision: str) -> None:
    """Check that models can be compiled for a target with this precision."""
    kind = CPU if target.kind == ACCEL else target.kind  # the host runs what is not accelerated
    if (kind, precision) not in PIPELINES:
        raise UserError(
            "TW6003",
            f"there is no precision {precision!r} for {target}",
            help=f"use {', '.join(each for other, each in PIPELINES if other == kind)}",
        )


def passes_of(target: Target, precision: str) -> Passes:
    """The passes for a target and a precision; for an accelerator those of its host."""
    check_precision(target, precision)
    return PIPELINES[CPU if target.kind == ACCEL else target.kind, precision]


def precision_for(module: Module, target: Target, asked: str) -> str:
    """The precision asked for; on a GPU that of the model itself, where all it multiplies is of
    fewer bits than asked for: tensor cores lose nothing then."""
    if target.kind != CUDA or asked != "f32":
        return asked
    found = {
        node.inputs[0].tensor.dtype.name
        for node in walk(module.main)
        if node.op in PRODUCTS
        and node.inputs[0] is not None
        and (node.op != "matmul" or is_long(node.inputs[0]))
    }
    (own,) = found if len(found) == 1 else (asked,)
    return own if (CUDA, own) in PIPELINES else asked
