"""Random int8 layers, for tests that compare the compiler with the interpreter.

    found = random_layers(seed=7)
    part = compile_part(found.graph, found.constants, target)
    part.run(*found.inputs)          # equals interpret(found.module, *found.inputs)

Odd sizes, strides, dilations, groups, one-sided pads, channels not divisible by blocks, any zero
points and limits; convolutions, depthwise ones, GEMMs, max pools, sums, copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import I8
from tilewright.graph import Builder, Graph, Module, TensorType, Value
from tilewright.sym import const

Array = np.ndarray[Any, Any]
MULTIPLIER = 1 << 30


@dataclass(frozen=True)
class Layers:
    """A graph with its constants as parameters; the complete module; and inputs."""

    graph: Graph
    constants: dict[Value, Array]
    module: Module
    inputs: tuple[Array, ...]


def random_layers(seed: int) -> Layers:
    maker = _Maker(np.random.default_rng(seed))
    kinds = (
        *(maker.conv, maker.conv, maker.depthwise, maker.matmul, maker.pool, maker.residual),
        maker.concat,
    )
    result = kinds[seed % len(kinds)]()
    return maker.done(result)


class _Maker:
    def __init__(self, random: np.random.Generator) -> None:
        self._random, self._builder = random, Builder()
        self._constants: dict[Value, Array] = {}
        self._inputs: dict[Value, Array] = {}

    def _from(self, low: int, high: int) -> int:
        """A number in a closed range."""
        return int(self._random.integers(low, high + 1))

    def _bytes(self, *shape: int) -> Array:
        return self._random.integers(-128, 128, shape).astype(np.int8)

    def _weights(self, *shape: int) -> Array:
        """8-bit or 4-bit weights."""
        return self._bytes(*shape) if self._from(0, 2) else self._bytes(*shape) >> 4

    def _input(self, *shape: int) -> Value:
        name = f"x{len(self._inputs)}"
        value = self._builder.param(name, TensorType(I8, tuple(map(const, shape))))
        self._inputs[value] = self._bytes(*shape)
        return value

    def _constant(self, array: Array) -> Value:
        value = self._builder.constant(array)
        self._constants[value] = array
        return value

    def _parameters(self, outs: int, terms: int) -> list[Value]:
        """Bias, multiplier and shift of channels whose sums have `terms` terms."""
        bias = self._random.integers(-1000, 1000, outs)
        multiplier = self._random.integers(MULTIPLIER // 2, MULTIPLIER, outs)
        shift = 30 + self._random.integers(4, 8, outs) + max(1, terms).bit_length() // 2
        return [self._constant(one.astype(np.int32)) for one in (bias, multiplier, shift)]

    def _limits(self) -> dict[str, Any]:
        low, high = sorted((self._from(-128, 0), self._from(1, 127)))
        return {"zero": self._from(-20, 20), "low": low, "high": high}

    def _window(self, size: tuple[int, int]) -> dict[str, Any]:
        """Random kernel, strides, pads and dilations that fit."""
        kernel, dilations = [], []
        for extent in size:
            kernel.append(self._from(1, min(3, extent)))
            reach = max(1, (extent - 1) // max(1, kernel[-1] - 1))
            dilations.append(self._from(1, min(2, reach)))
        pads = [self._from(0, max(0, kernel[at % 2] - 1)) for at in range(4)]
        return {
            "kernel": tuple(kernel), "strides": (self._from(1, 2), self._from(1, 2)),
            "pads": tuple(pads), "dilations": tuple(dilations),
        }  # fmt: skip

    def _conv_of(self, x: Value, outs: int, groups: int, window: dict[str, Any]) -> Value:
        ins = (x.tensor.static_shape or ())[1]
        kernel = window["kernel"]
        w = self._constant(self._weights(outs, ins // groups, *kernel))
        given = self._parameters(outs, ins // groups * int(np.prod(kernel)))
        rest = {name: value for name, value in window.items() if name != "kernel"}
        return self._builder.add(
            "quantized_conv", x, w, *given, groups=groups, x_zero=self._from(-30, 30),
            **rest, **self._limits(),
        )  # fmt: skip

    def _image(self, channels: int) -> Value:
        return self._input(self._from(1, 2), channels, self._from(3, 9), self._from(3, 9))

    def conv(self) -> Value:
        groups = self._from(1, 2)
        x = self._image(groups * self._from(1, 20))
        _, _, rows, columns = x.tensor.static_shape or ()
        window = self._window((rows, columns))
        return self._conv_of(x, groups * self._from(1, 20), groups, window)

    def depthwise(self) -> Value:
        channels = self._from(2, 24)
        x = self._image(channels)
        _, _, rows, columns = x.tensor.static_shape or ()
        return self._conv_of(x, channels, channels, self._window((rows, columns)))

    def matmul(self) -> Value:
        m, k, n = self._from(1, 9), self._from(1, 40), self._from(1, 40)
        x, w = self._input(m, k), self._constant(self._weights(k, n))
        given = self._parameters(n, k)
        return self._builder.add(
            "quantized_matmul", x, w, *given, x_zero=self._from(-30, 30), **self._limits()
        )

    def pool(self) -> Value:
        x = self._image(self._from(1, 24))
        _, _, rows, columns = x.tensor.static_shape or ()
        return self._builder.add("quantized_max_pool", x, **self._window((rows, columns)))

    def residual(self) -> Value:
        """A sum of a convolution and its input, or of two inputs; with small or large factors."""
        x = self._image(self._from(1, 24))
        shape = x.tensor.static_shape or ()
        window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
        other = self._conv_of(x, shape[1], 1, window) if self._from(0, 2) else self._input(*shape)
        terms = (x, other) if self._from(0, 1) else (other, x)
        more = 7 * self._from(0, 1)
        a, b = (self._from(1, 100 << more) for _ in terms)
        b *= 1 if self._from(0, 1) else -1
        return self._builder.add(
            "quantized_add", *terms, a=a, b=b, bias=self._from(-500, 500),
            multiplier=self._from(MULTIPLIER // 2, MULTIPLIER), shift=self._from(36, 38) + more,
            **self._limits(),
        )  # fmt: skip

    def concat(self) -> Value:
        """Concatenated images along any axis, or matrices."""
        shape = [self._from(1, 2), 32, self._from(3, 9), self._from(3, 9)]
        if not self._from(0, 2):
            shape = [4 * self._from(1, 3), 32]
        axis, count = self._from(0, len(shape) - 1), self._from(1, 3)
        shape[0] *= 2 if axis == 0 else 1
        operands = []
        for _ in range(count):
            own = self._from(1, 2)
            operands.append(
                self._input(*(own * n if at == axis else n for at, n in enumerate(shape)))
            )
        return self._builder.add(
            "quantized_concat", *operands, axis=axis,
            biases=tuple([self._from(-100, 100) for _ in operands]),
            multipliers=tuple([self._from(MULTIPLIER // 2, MULTIPLIER) for _ in operands]),
            shifts=tuple([self._from(29, 31) for _ in operands]),
            **self._limits(),
        )  # fmt: skip

    def done(self, result: Value) -> Layers:
        module = self._builder.module(result)
        layers = tuple(node for node in module.main.nodes if node.op != "constant")
        params = (*self._inputs, *self._constants)
        graph = Graph("part", params, layers, (result,))
        return Layers(graph, self._constants, module, tuple(self._inputs.values()))
