"""Attributes of sliding windows in explicit form: strides, dilations, pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.onnx.rules.base import Context, Skip
from tilewright.graph.ops.windows import same_pads
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr


def spatial_dims(node: Context, at: int = 0) -> tuple[Expr, ...]:
    """The dimensions of input `at` after batch and channels."""
    of = node[at].type
    if not isinstance(of, TensorType) or of.shape is None:
        raise Skip(f"{node.op_type} on a tensor of unknown rank")
    return of.shape[2:]


def kernel_dims(node: Context, at: int = 1) -> tuple[Expr | int, ...]:
    """The kernel's size: from the attribute, or from the weights, input `at`."""
    given = node.attr("kernel_shape")
    return spatial_dims(node, at) if given is None else tuple(given)


def window(node: Context, kernel: Sequence[Expr | int], at: int = 0) -> dict[str, Any]:
    """Strides, dilations and explicit pads of a window over input `at`."""
    spatial = spatial_dims(node, at)
    rank = len(spatial)
    strides = tuple(node.attr("strides", (1,) * rank))
    dilations = tuple(node.attr("dilations", (1,) * rank))
    auto = node.attr("auto_pad", "NOTSET")
    pads: tuple[Expr | int, ...] = (0,) * (2 * rank)
    if auto == "NOTSET":
        pads = tuple(node.attr("pads", pads))
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        lower = auto == "SAME_LOWER"
        pads = same_pads(spatial, kernel, strides, dilations, lower=lower)
    elif auto != "VALID":
        raise Skip(f"{node.op_type} with auto_pad {auto}")
    return {"strides": strides, "dilations": dilations, "pads": pads}


def numbers(dims: Sequence[Expr | int], node: Context) -> tuple[int, ...]:
    """Convert dimensions to numbers, which must be constant."""
    found = [d.value if isinstance(d, Const) else d for d in dims]
    if not all(isinstance(d, int) for d in found):
        raise Skip(f"{node.op_type} with a kernel of unknown size")
    return tuple(int(d) for d in found if isinstance(d, int))
