"""Lowering passes, one per file; what runs is the tuple.

flat = lower(fn)                 # stage scheduled -> flat
run_passes(fn, LOWER_CPU[:4])    # any prefix is a program that prints and runs
"""

from __future__ import annotations

from tilewright.base.passes import Pass, PassContext, run_passes
from tilewright.tensor.ir import Function
from tilewright.tensor.passes.assign_memory import assign_memory
from tilewright.tensor.passes.bind_threads import bind_threads
from tilewright.tensor.passes.check_capacity import check_capacity
from tilewright.tensor.passes.compact_buffers import compact_buffers
from tilewright.tensor.passes.cut_sums import cut_sums
from tilewright.tensor.passes.enter_device import enter_device
from tilewright.tensor.passes.expand_updates import expand_updates
from tilewright.tensor.passes.flatten_buffers import flatten_buffers
from tilewright.tensor.passes.fold_padding import fold_padding
from tilewright.tensor.passes.fold_scale import fold_scale
from tilewright.tensor.passes.fold_windows import fold_windows, read_windows
from tilewright.tensor.passes.hoist_allocations import hoist_allocations
from tilewright.tensor.passes.hoist_invariants import hoist_invariants
from tilewright.tensor.passes.inject_virtual_threads import inject_virtual_threads
from tilewright.tensor.passes.insert_barriers import insert_barriers
from tilewright.tensor.passes.insert_fences import insert_fences
from tilewright.tensor.passes.interleave_loops import interleave_loops
from tilewright.tensor.passes.launch_dependents import launch_dependents
from tilewright.tensor.passes.lower_blocks import lower_blocks
from tilewright.tensor.passes.lower_inits import lower_inits
from tilewright.tensor.passes.lower_tensor_calls import lower_tensor_calls
from tilewright.tensor.passes.merge_dimensions import merge_dimensions
from tilewright.tensor.passes.partition_loops import partition_loops
from tilewright.tensor.passes.pipeline_loops import pipeline_loops
from tilewright.tensor.passes.place_allocations import place_allocations
from tilewright.tensor.passes.plan_double_buffers import plan_double_buffers
from tilewright.tensor.passes.prefetch_epilogue import prefetch_epilogue
from tilewright.tensor.passes.remove_no_ops import remove_no_ops
from tilewright.tensor.passes.reuse_results import reuse_results
from tilewright.tensor.passes.reuse_storage import reuse_storage
from tilewright.tensor.passes.share_copies import share_copies
from tilewright.tensor.passes.simplify_program import simplify_program
from tilewright.tensor.passes.skip_masked_steps import skip_masked_steps
from tilewright.tensor.passes.skip_unread import skip_unread
from tilewright.tensor.passes.specialize_roles import specialize_roles
from tilewright.tensor.passes.unmask_locals import unmask_locals
from tilewright.tensor.passes.unroll_loops import unroll_loops
from tilewright.tensor.passes.upcast_locals import upcast_locals
from tilewright.tensor.passes.vectorize_loops import vectorize_loops

TensorPass = Pass[Function]

LOWER_CPU: tuple[TensorPass, ...] = (
    lower_inits,
    plan_double_buffers,
    lower_blocks,
    expand_updates,
    place_allocations,
    skip_unread,
    reuse_results,
    compact_buffers,
    pipeline_loops,
    interleave_loops,
    inject_virtual_threads,
    lower_tensor_calls,
    hoist_allocations,
    flatten_buffers,
    reuse_storage,
    assign_memory,
    simplify_program,
    partition_loops,
    vectorize_loops,
    unroll_loops,
    unmask_locals,
    cut_sums,
    hoist_invariants,
    remove_no_ops,
    check_capacity,
)
LOWER_GPU: tuple[TensorPass, ...] = (
    fold_padding,
    fold_windows,
    lower_inits,
    plan_double_buffers,
    lower_blocks,
    expand_updates,
    bind_threads,
    place_allocations,
    merge_dimensions,
    compact_buffers,
    pipeline_loops,
    inject_virtual_threads,
    insert_barriers,
    lower_tensor_calls,
    skip_masked_steps,
    fold_scale,
    specialize_roles,
    read_windows,
    share_copies,
    insert_fences,
    hoist_allocations,
    flatten_buffers,
    simplify_program,
    partition_loops,
    vectorize_loops,
    unroll_loops,
    unmask_locals,
    upcast_locals,
    hoist_invariants,
    remove_no_ops,
    check_capacity,
    prefetch_epilogue,
    launch_dependents,
    enter_device,
)
PIPELINES: dict[str, tuple[TensorPass, ...]] = {"cpu": LOWER_CPU, "gpu": LOWER_GPU}
PASSES: dict[str, TensorPass] = {
    step.__name__: step for pipeline in PIPELINES.values() for step in pipeline
}


def lower(fn: Function, target_kind: str = "cpu", ctx: PassContext | None = None) -> Function:
    """A scheduled function in the form its code generator takes.

    Examples:
        >>> from tilewright import tensor
        >>> text = "func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 1.0 } }"
        >>> fn = tensor.parse(text)
        >>> tensor.lower(fn, "cpu").stage
        'flat'
    """
    return run_passes(fn, PIPELINES[target_kind], ctx)
