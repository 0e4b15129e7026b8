"""Kernels to measure tuning with: convolutions of ResNet-18, depthwise ones, GEMMs of BERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tune_shapes import RESNET18, convolution_by

from tilewright import te
from tilewright.base.target import Target
from tilewright.tensor.ir import Function
from tilewright.tune.fleet import Fleet
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.space import Points


def convolution(channels: int, outputs: int, size: int, kernel: int, step: int) -> Function:
    """Of an image of `size` x `size` results, channels first, batch 1, padded beforehand."""
    tensors = convolution_by(te, channels, outputs, size, kernel, step)
    return te.function(tensors, name=f"conv{kernel}_{channels}_{outputs}_{size}_{step}")


def depthwise(channels: int, size: int, step: int) -> Function:
    """A window of each channel by itself, channels last."""
    side = (size - 1) * step + 3
    x = te.placeholder((1, side, side, channels), name="x")
    k = te.placeholder((channels, 1, 3, 3), name="k")
    one = te.reduce_axis((0, 1), name="one")
    dy, dx = te.reduce_axis((0, 3), name="dy"), te.reduce_axis((0, 3), name="dx")
    y = te.compute(
        (1, size, size, channels),
        lambda n, row, column, c: te.sum(
            x[n, row * step + dy, column * step + dx, c + one] * k[c, one, dy, dx],
            axis=(one, dy, dx),
        ),
        name="y",
    )
    return te.function([x, k, y], name=f"depthwise_{channels}_{size}_{step}")


def gemm(m: int, n: int, k: int) -> Function:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    return te.function([a, b, c], name=f"gemm_{m}_{n}_{k}")


DEPTHWISE = (
    (32, 112, 1),
    (96, 56, 2),
    (144, 56, 1),
    (144, 28, 2),
    (192, 28, 1),
    (192, 14, 2),
    (384, 14, 1),
    (576, 7, 2),
    (960, 7, 1),
)
BERT = (
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (128, 2304, 768),
    (64, 768, 768),
    (32, 3072, 768),
    (128, 128, 64),
    (128, 64, 128),
)
CASES: dict[str, Callable[[], Function]] = {
    **{f"resnet18 {at}": partial(convolution, *each) for at, each in enumerate(RESNET18)},
    **{f"depthwise {at}": partial(depthwise, *each) for at, each in enumerate(DEPTHWISE)},
    **{f"bert {at}": partial(gemm, *each) for at, each in enumerate(BERT)},
}


@dataclass(frozen=True)
class Row:
    """A point and what it took."""

    point: Points
    ns: float


def message_of(space: SketchSpace, choice: str, **more: object) -> dict[str, object]:
    """The task of measuring a point."""
    context = space.context
    return {
        "kind": "measure",
        "function": str(space.function),
        "target": str(context.target),
        "threads": context.threads,
        "trace": str(space.schedule(choice).trace),
        "pairs": 5,
        "seconds": 0.3,
        "lease_s": 60.0,
        **more,
    }


def measured(space: SketchSpace, points: Points, fleet: Fleet) -> Mapping[int, float]:
    """Nanoseconds of each row that could be measured: the least, as noise only adds."""
    rows, messages = [], []
    for row in range(len(points)):
        try:
            messages.append(message_of(space, space.choice(points, row)))
            rows.append(row)
        except ValueError:  # a refusal of the schedule
            continue
    return {
        rows[result.task]: float(min(result.value["ns"]))
        for result in fleet.submit(messages)
        if not result.error
    }


def spaces(only: str, threads: int, cases: Sequence[str] = ()) -> dict[str, SketchSpace]:
    target = Target.parse("cpu")
    return {
        name: SketchSpace(make(), target, threads=threads)
        for name, make in CASES.items()
        if only in name and (not cases or name in cases)
    }
