"""Passes on models: pure functions `(Module, PassContext) -> Module`, one per file."""

from tilewright.graph.passes.assign_layout import assign_layout
from tilewright.graph.passes.cancel_quantization import cancel_quantization
from tilewright.graph.passes.cancel_reshapes import cancel_reshapes
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.check_indices import check_indices
from tilewright.graph.passes.choose_attention import choose_attention
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.graph.passes.decompose import decompose
from tilewright.graph.passes.decompose_quantized import decompose_quantized
from tilewright.graph.passes.densify_groups import densify_groups
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fold_scales import fold_scales
from tilewright.graph.passes.fold_zero_points import fold_zero_points
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_single_nodes import fuse_single_nodes
from tilewright.graph.passes.hoist_padding import hoist_padding
from tilewright.graph.passes.hoist_strides import hoist_strides
from tilewright.graph.passes.im2col_convolutions import im2col_convolutions
from tilewright.graph.passes.infer_shapes import infer_shapes
from tilewright.graph.passes.lift_reshapes import lift_reshapes
from tilewright.graph.passes.lower_precision import (
    lower_precision,
    lower_precision_f16,
    lower_precision_tf32,
)
from tilewright.graph.passes.match_signs import match_signs
from tilewright.graph.passes.merge_common_subexpressions import merge_common_subexpressions
from tilewright.graph.passes.merge_parallel_convolutions import merge_parallel_convolutions
from tilewright.graph.passes.merge_parallel_matmuls import merge_parallel_matmuls
from tilewright.graph.passes.merge_query_heads import merge_query_heads
from tilewright.graph.passes.merge_window_axes import merge_window_axes
from tilewright.graph.passes.nest_switches import nest_switches
from tilewright.graph.passes.pack_weights import pack_weights
from tilewright.graph.passes.parallelize_scatters import parallelize_scatters
from tilewright.graph.passes.parallelize_sorts import parallelize_sorts
from tilewright.graph.passes.prefer_integers import prefer_integers
from tilewright.graph.passes.propagate_sizes import propagate_sizes
from tilewright.graph.passes.quantize_by_reciprocals import quantize_by_reciprocals
from tilewright.graph.passes.recognize_attention import recognize_attention
from tilewright.graph.passes.recognize_bands import recognize_bands
from tilewright.graph.passes.recognize_float8 import recognize_float8
from tilewright.graph.passes.recognize_norms import recognize_norms
from tilewright.graph.passes.recognize_quantized import recognize_quantized
from tilewright.graph.passes.recognize_segments import recognize_segments
from tilewright.graph.passes.remove_dead_nodes import remove_dead_nodes
from tilewright.graph.passes.remove_invariant_carries import remove_invariant_carries
from tilewright.graph.passes.round_stored import round_stored
from tilewright.graph.passes.simplify_arithmetic import simplify_arithmetic
from tilewright.graph.passes.simplify_shapes import simplify_shapes
from tilewright.graph.passes.sink_transposes import sink_transposes
from tilewright.graph.passes.split_conv_transpose import split_conv_transpose
from tilewright.graph.passes.split_dilations import split_dilations
from tilewright.graph.passes.split_matmuls import split_matmuls
from tilewright.graph.passes.split_scans import split_scans
from tilewright.graph.passes.stack_sequences import stack_sequences
from tilewright.graph.passes.stream_attention import stream_attention
from tilewright.graph.passes.tabulate_bytes import tabulate_bytes
from tilewright.graph.passes.trim_sequences import trim_sequences
from tilewright.graph.passes.trim_windows import trim_windows
from tilewright.graph.passes.unroll_single_steps import unroll_single_steps
from tilewright.graph.passes.upcast_bytes import upcast_bytes
from tilewright.graph.passes.upcast_halves import upcast_halves, upcast_halves_bf16
from tilewright.graph.passes.upcast_matmuls import upcast_matmuls

# First of all: matmuls of a quantized model become integer matmuls, if the target has instructions
# for them (PREFERRED) or if the user asks for it (QUANTIZED).
PREFERRED = (prefer_integers,)
QUANTIZED = (recognize_quantized, quantize_by_reciprocals)

# With reduced precision: operands of 8-bit floats are multiplied as they are.
FLOAT8 = (recognize_float8,)

# From an imported model to a canonical one: shapes inferred, constants folded, no common
# subexpressions.
CANONICAL = (
    propagate_sizes,
    stack_sequences,
    infer_shapes,
    simplify_shapes,
    remove_invariant_carries,
    remove_dead_nodes,
    fold_constants,
    canonicalize,
    merge_common_subexpressions,
    remove_dead_nodes,
)

# For targets where kernels with dynamic sizes cost nothing.
TRIMMED = (trim_sequences, merge_common_subexpressions, remove_dead_nodes)

# Rewrites of a canonical model that save work and change results by rounding only.
OPTIMIZED = (
    decompose_quantized,
    decompose,
    cancel_quantization,
    simplify_arithmetic,
    cancel_reshapes,
    sink_transposes,
    canonicalize,
    remove_dead_nodes,
    fold_batch_norm,
    merge_parallel_convolutions,
    match_signs,
    fold_zero_points,
    sink_transposes,
    recognize_norms,
    recognize_attention,
    recognize_bands,
    decompose,
    canonicalize,
    remove_dead_nodes,
    merge_parallel_matmuls,
    pack_weights,
    upcast_matmuls,
    cancel_reshapes,
    split_conv_transpose,
    trim_windows,
    fold_constants,
    merge_common_subexpressions,
    remove_dead_nodes,
)

# Channels-last layout where it pays; transposes fold into weights, and inverse ones cancel.
LAYOUT = (
    assign_layout,
    fold_constants,
    canonicalize,
    merge_common_subexpressions,
    remove_dead_nodes,
    merge_window_axes,
    split_dilations,
    choose_winograd,
    hoist_padding,
    hoist_strides,
)

# For targets with many threads, where every kernel launch costs: binary choices instead of many-way
# ones, sorting by counting, scatters as gathers, and recurrent layers of one step without a scan.
UNROLLED = (
    nest_switches,
    parallelize_sorts,
    split_scans,
    parallelize_scatters,
    unroll_single_steps,
    cancel_reshapes,
    canonicalize,
    fold_constants,
    merge_common_subexpressions,
    remove_dead_nodes,
)

# Reduced precision for a model that is stored with it: upcast first, since passes match f32.
UPCAST = (upcast_halves_bf16,)
UPCAST_F16 = (upcast_halves,)

# With reduced precision: operands of matmuls in 16 bits (or tf32); weights are rounded now.
LOWER_PRECISION = (lower_precision, fold_constants, merge_common_subexpressions, remove_dead_nodes)
LOWER_PRECISION_F16 = (lower_precision_f16, *LOWER_PRECISION[1:])
LOWER_PRECISION_TF32 = (lower_precision_tf32, *LOWER_PRECISION[1:])

# f32 matmuls as sums of bf16 matmuls: as exact, on faster instructions.
SPLIT = (split_matmuls, merge_common_subexpressions, remove_dead_nodes)

# Where tensor cores compute the matmuls of attention.
STREAMED = (stream_attention, merge_query_heads)

# With integer matmuls: functions of bytes become lookup tables, and scales are multiplied together.
SCALED = (tabulate_bytes, remove_dead_nodes, fold_scales, remove_dead_nodes)

# Integer convolutions: im2col, and operands in the width that the target multiplies.
UNFOLDED = (
    densify_groups,
    im2col_convolutions,
    upcast_bytes,
    canonicalize,
    remove_dead_nodes,
)

# From a canonical model to kernels: `fused` nodes, control flow, and nodes that are not fused.
FUSED = (
    check_indices,
    recognize_segments,
    remove_dead_nodes,
    choose_attention,
    fuse,
    fuse_single_nodes,
    remove_dead_nodes,
)
