"""Run a single model on an NVIDIA GPU, for compute-sanitizer and profilers.

    compute-sanitizer --tool racecheck python bench/gpu_run.py MODEL.onnx [--precision f16]
                                                   [--calls 2] [--size NAME=N ...] [--shared BYTES]

Inputs are random; integers are small. The last calls launch a graph. `--shared` compiles for so
much shared memory of a block: tools take some of what there is.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.base.target import Target
from tilewright.runtime import cuda

INTEGERS_BELOW = 2  # a mask has zeros and ones


def made_up(spec: Any, sizes: dict[str, int], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """An input of a model."""
    shape = [dim if isinstance(dim, int) else sizes.get(str(dim), 1) for dim in spec.shape]
    if spec.dtype.is_float:
        return random.standard_normal(shape).astype(spec.dtype.numpy)
    return random.integers(0, INTEGERS_BELOW, shape).astype(spec.dtype.numpy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--size", nargs="*", default=[])
    parser.add_argument("--shared", type=int)
    options = parser.parse_args()
    target = Target.parse("cuda")
    if options.shared:
        target = replace(target, shared_bytes=options.shared)
    module = tw.compile(options.model, target=target, precision=options.precision)
    sizes = {name: int(size) for name, size in (each.split("=") for each in options.size)}
    random = np.random.default_rng(0)
    given = [cuda.to_device(made_up(spec, sizes, random)) for spec in module.inputs]
    outputs = module(*given)
    for _ in range(options.calls - 1):
        module(*given, out=outputs)
    for spec, output in zip(module.outputs, outputs, strict=True):
        found = cuda.to_host(output)
        print(f"{spec.name}: {found.shape}, largest {float(np.abs(found).max()):.4g}")


if __name__ == "__main__":
    main()
