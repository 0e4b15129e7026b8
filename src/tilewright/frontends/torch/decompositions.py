"""Which composite operators of PyTorch are decomposed before import, and which are kept.

Operators that the graph IR has are kept. Everything else becomes core ATen, and some of core ATen
is decomposed further, by PyTorch's own formulas, where a rule would say no more.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._export.utils import _special_op_to_preserve_cia
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.ao.quantization.fx import _decomposed as quantized
from torch.export import ExportedProgram, default_decompositions
from torch.export.exported_program import (
    _decompose_exported_program,
    _split_decomp_table_to_cia_and_python_decomp,
)

from tilewright.frontends.torch import fake_quantized, foreach, formulas

aten = torch.ops.aten

KEPT = (
    *("scaled_dot_product_attention", "linear", "matmul", "layer_norm", "group_norm", "rms_norm"),
    *("silu", "hardswish", "hardsigmoid", "gelu", "_prelu_kernel", "triu", "tril", "roll"),
    *("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "grid_sampler", "unbind.int"),
    *("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec"),
    *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("upsample_bicubic2d.vec", "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec"),
    *("_upsample_nearest_exact3d.vec", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    *("_upsample_nearest_exact3d", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "std.correction", "index_add"),
    *("var_mean.correction", "std_mean.correction", "linalg_vector_norm", "baddbmm", "addmv"),
    *("floor_divide", "erfc", "exp2", "eye", "eye.m", "linspace", "lerp.Scalar", "lerp.Tensor"),
    *("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "unfold", "split.Tensor"),
    # PyTorch's formula does not return the sums that the gradient needs.
    "_scaled_dot_product_flash_attention_for_cpu",
    # It does not truncate the ends, as eager mode does for integers.
    *("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"),
    *("adaptive_max_pool1d", "round.decimals", "index_select", "median", "cumprod"),
    "take",  # PyTorch's formula for a single position depends on its value
)
# Core operators of PyTorch whose formulas are as good as a rule.
TAKEN_APART = (
    *("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"),
    *("batch_norm_backward", "_fused_rms_norm_backward", "triu_indices", "tril_indices"),
    "rrelu_with_noise_backward",
)

# Quantization per token, by PyTorch's own functions of the same names.
FORMULAS = (
    *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"),
    *("quantize_per_token", "dequantize_per_token"),
)


def operator(name: str) -> Any:
    """The overload of a name, `default` if it names none."""
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet, None)
    return None if found is None else getattr(found, overload or "default", None)


def _without_kept(table: Any) -> None:
    """Remove the operators to keep from a table, and their in-place variants, which are only made
    functional."""
    for name in KEPT:
        packet, _, overload = name.partition(".")
        for kept in (operator(name), operator(f"{packet}_.{overload or 'default'}")):
            if kept is not None:
                table.pop(kept, None)


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """An exported program in functional form, of the operators that rules translate.

    Like `run_decompositions` with a table of our own. PyTorch's default table lists every operator,
    and replaces each composite by its own formula again at every call: some 0.3 s.
    """
    kept, formulas = _ahead_of_time()
    kept = kept | _of_torchao()
    with unset_fake_temporarily(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own warnings of deprecation
        return _decompose_exported_program(
            program,
            cia_to_decomp=kept,
            python_decomp_table=dict(formulas),
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )


@functools.cache
def _ahead_of_time() -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
    """The table for exported programs: composites to keep, and formulas for others.

    Composites in neither are decomposed by PyTorch as in eager mode.
    """
    table: Any = default_decompositions()
    _without_kept(table)
    table.update(_further())
    composites, formulas = _split_decomp_table_to_cia_and_python_decomp(table.materialize())
    kept = {op: how for op, how in composites.items() if how is _special_op_to_preserve_cia}
    return kept, formulas


def under_autograd() -> dict[Any, Callable[..., Any]]:
    """The table for graphs that AOTAutograd passes to a backend."""
    return dict(_under_autograd())


@functools.cache  # takes 0.5 s, and every operator defined by a function needs it
def _under_autograd() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    _without_kept(table)
    return {**table, **_further()}


def _further() -> dict[Any, Callable[..., Any]]:
    found = [operator(name) for name in TAKEN_APART]
    known = {op: decomposition_table[op] for op in found if op in decomposition_table}
    ours = fake_quantized.FORMULAS | foreach.FORMULAS | formulas.FORMULAS
    return known | _quantized() | ours


def _of_torchao() -> dict[Any, Callable[..., Any]]:
    """torchao's operators on quantized weights, if it has been imported: one graph operator
    each."""
    packet = getattr(torch.ops.torchao, "dequantize_affine", None)
    return {} if packet is None else {packet.default: _special_op_to_preserve_cia}


def _quantized() -> dict[Any, Callable[..., Any]]:
    """Formulas of operators of quantized models."""
    library = torch.ops.quantized_decomposed
    return {getattr(library, name).default: getattr(quantized, name) for name in FORMULAS}
