"""Operators of torchvision, whose library need not be there."""

import numpy as np
import pytest
import torch

from tilewright.frontends.torch import import_program
from tilewright.graph import interpret

SCHEMA = (
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)


@pytest.fixture(scope="module")
def roi_align():
    """The operator; declared here where torchvision is not loaded."""
    kept = None
    if not hasattr(torch.ops.torchvision, "roi_align"):
        kept = torch.library.Library("torchvision", "FRAGMENT")
        kept.define(SCHEMA)
        kept.impl("roi_align", _pooled, "CPU")
        kept.impl("roi_align", _shape, "Meta")
    yield torch.ops.torchvision.roi_align
    del kept


def _shape(x, rois, scale, tall, wide, ratio, aligned):
    return x.new_empty(rois.shape[0], x.shape[1], tall, wide)


def _pooled(x, rois, scale, tall, wide, ratio, aligned):
    """The mean of samples of each bin, one by one."""
    made = torch.zeros(len(rois), x.shape[1], tall, wide)
    for at, (image, *edges) in enumerate(rois.tolist()):
        left, top, right, bottom = (edge * scale - 0.5 * aligned for edge in edges)
        high, long = bottom - top, right - left
        if not aligned:
            high, long = max(high, 1.0), max(long, 1.0)
        down, across = (
            ratio if ratio > 0 else int(np.ceil(size / bins))
            for size, bins in ((high, tall), (long, wide))
        )
        for row, column in np.ndindex(tall, wide):
            total = torch.zeros(x.shape[1])
            for i, j in np.ndindex(down, across):
                y = top + high / tall * (row + (i + 0.5) / down)
                z = left + long / wide * (column + (j + 0.5) / across)
                total += _between(x[int(image)], y, z)
            made[at, :, row, column] = total / max(down * across, 1)
    return made


def _between(image, y, x):
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros(len(image))
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    y, x = y - top, x - left
    upper = image[:, top, left] * (1 - x) + image[:, top, right] * x
    lower = image[:, bottom, left] * (1 - x) + image[:, bottom, right] * x
    return upper * (1 - y) + lower * y


class Regions(torch.nn.Module):
    def __init__(self, operator, *options):
        super().__init__()
        self.operator, self.options = operator, options

    def forward(self, x, rois):
        return self.operator(x, rois, *self.options)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
def test_regions_of_images_are_pooled_as_torchvision_does(roi_align, ratio, aligned):
    x = torch.randn(2, 3, 9, 8)
    rois = torch.tensor(
        [[0, 1.0, 2.0, 9.0, 11.5], [1, -3.0, 0.5, 4.0, 30.0], [1, 5.0, 5.0, 5.2, 5.1]]
    )
    model = Regions(roi_align, 0.5, 3, 2, ratio, aligned)
    (made,) = interpret(import_program(model, (x, rois)).module, x.numpy(), rois.numpy())
    torch.testing.assert_close(torch.from_numpy(made), model(x, rois))


def test_regions_pooled_to_a_size_that_calls_give(roi_align):
    """Networks that pool to two sizes in one place: PyTorch makes a symbol of the second."""
    x = torch.randn(2, 3, 9, 8)
    rois = torch.tensor([[0, 1.0, 2.0, 9.0, 11.5], [1, 5.0, 5.0, 5.2, 5.1]])

    def pooled(x, rois, bins):
        return roi_align(x, rois, 0.5, bins, bins, 2, False) * 2

    compiled = torch.compile(pooled, backend="tilewright", options={"fallback": "error"})
    for bins in (3, 4, 5):
        torch.testing.assert_close(compiled(x, rois, bins), pooled(x, rois, bins))
