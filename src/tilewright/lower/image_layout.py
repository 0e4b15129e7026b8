"""Layout-independent access to images: lowerings index [batch, channel, *spatial]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import te
from tilewright.base.dtype import DType
from tilewright.graph.ops.layout import CHANNELS_LAST, channels_first, channels_last
from tilewright.lower.base import Use, shape_of
from tilewright.sym import Expr
from tilewright.te import Tensor
from tilewright.tensor.ir import Value


class Image:
    """An image tensor indexed [batch, channel, *spatial] in any layout."""

    def __init__(self, tensor: Tensor, *, last: bool) -> None:
        self.tensor, self.last = tensor, last

    @property
    def shape(self) -> tuple[Expr, ...]:
        shape = tuple(self.tensor.shape)
        return channels_first(shape) if self.last else shape

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __getitem__(self, index: Sequence[Expr]) -> Expr:
        return self.tensor[channels_last(tuple(index)) if self.last else tuple(index)]


def image(use: Use, x: Tensor) -> Image:
    """The first input of an operator on images."""
    return Image(x, last=is_last(use))


def is_last(use: Use) -> bool:
    return bool(use["layout"] == CHANNELS_LAST)


def image_shape(use: Use) -> tuple[Expr, ...]:
    """The shape of the first output as [batch, channels, *spatial]."""
    shape = shape_of(use.outputs[0])
    return channels_first(shape) if is_last(use) else shape


def compute_image(
    use: Use,
    element: Callable[..., Any],
    shape: Sequence[Expr] | None = None,
    name: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> Any:
    """Make a tensor from element(n, channel, *spatial); `shape` is in that order."""
    dims = tuple(shape) if shape is not None else image_shape(use)
    if not is_last(use):
        return te.compute(dims, element, name=name or use.name, attrs=attrs)
    return te.compute(
        channels_last(dims),
        lambda *index: element(*channels_first(index)),
        name=name or use.name,
        attrs=attrs,
    )
