"""Convolutions of ResNet-18, built by the tensor expressions of either compiler."""

from __future__ import annotations

import time
from typing import Any

WALL, PROCESSOR = "wall", "processor"
CLOCKS = {WALL: time.perf_counter, PROCESSOR: time.thread_time}  # seconds
# channels, outputs, size of the result, kernel, step
RESNET18 = (
    (3, 64, 112, 7, 2),
    (64, 64, 56, 3, 1),
    (64, 64, 56, 1, 1),
    (64, 128, 28, 3, 2),
    (64, 128, 28, 1, 2),
    (128, 128, 28, 3, 1),
    (128, 256, 14, 3, 2),
    (128, 256, 14, 1, 2),
    (256, 256, 14, 3, 1),
    (256, 512, 7, 3, 2),
    (256, 512, 7, 1, 2),
    (512, 512, 7, 3, 1),
)


def convolution_by(
    te: Any, channels: int, outputs: int, size: int, kernel: int, step: int
) -> list[Any]:
    """The same in the tensor expressions of a module: ours, or TVM's, which has these names too."""
    side = (size - 1) * step + kernel
    x = te.placeholder((1, channels, side, side), name="x")
    k = te.placeholder((outputs, channels, kernel, kernel), name="k")
    c = te.reduce_axis((0, channels), name="c")
    dy, dx = te.reduce_axis((0, kernel), name="dy"), te.reduce_axis((0, kernel), name="dx")
    y = te.compute(
        (1, outputs, size, size),
        lambda n, o, row, column: te.sum(
            x[n, c, row * step + dy, column * step + dx] * k[o, c, dy, dx], axis=(c, dy, dx)
        ),
        name="y",
    )
    return [x, k, y]
