"""Kernels that no model of the zoo has, for `bench/tune.py tail`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

WEIGHTS = "w"  # the parameter that is known beforehand


@dataclass(frozen=True)
class Kernel:
    """A graph of one kernel or a few; the inputs named `w` are weights."""

    name: str
    graph: str

    def module(self) -> Any:
        """The graph with its weights as constants."""
        from tilewright.graph import ir
        from tilewright.graph.parser import parse

        parsed = parse(self.graph)
        main, random = parsed.main, np.random.default_rng(16)
        weights = [param for param in main.params if param.name == WEIGHTS]
        constants = {each.name: _weights(each, random) for each in weights}
        nodes = [
            ir.Node("constant", (), (each,), ir.attributes(data=each.name)) for each in weights
        ]
        params = tuple(param for param in main.params if param not in weights)
        made = replace(main, params=params, nodes=(*nodes, *main.nodes))
        return replace(parsed, graphs={"main": made}, constants=constants)


def _weights(value: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    sizes = [int(dim.value) for dim in value.tensor.shape]
    if value.tensor.dtype.kind == "float":
        return (0.05 * random.standard_normal(sizes)).astype(np.float32)
    return random.integers(-8, 8, sizes).astype(value.tensor.dtype.numpy)


def _conv(
    name: str,
    spatial: tuple[int, ...],
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    is_byte: bool = False,
) -> Kernel:
    """A convolution, channels first as models are exported: with a ReLU, or of bytes to sums."""
    cin, cout = channels
    pads = tuple(dilation * (each // 2) for each in kernel)
    out = [
        (size + 2 * pad - dilation * (each - 1) - 1) // stride + 1
        for size, pad, each in zip(spatial, pads, kernel, strict=True)
    ]
    shown = {
        "strides": _tuple([stride] * len(kernel)),
        "pads": _tuple([*pads, *pads]),
        "dilations": _tuple([dilation] * len(kernel)),
        "groups": groups,
    }
    attributes = ", ".join(f"{key} = {value}" for key, value in shown.items())
    x, y = _shape(1, cin, *spatial), _shape(1, cout, *out)
    w = _shape(cout, cin // groups, *kernel)
    if is_byte:
        return Kernel(
            name,
            f"""graph @main(%x: u8{x}, %w: i8{w}) -> (i32{y}) {{
              %y = conv_integer(%x, %w) {{{attributes}}}
              return %y
            }}""",
        )
    return Kernel(
        name,
        f"""graph @main(%x: f32{x}, %w: f32{w}) -> (f32{y}) {{
          %y = conv(%x, %w) {{{attributes}}}
          %z = relu(%y)
          return %z
        }}""",
    )


def _matmul(m: int, n: int, k: int, *, weights: bool = True) -> Kernel:
    b = "w" if weights else "b"
    kind = "" if weights else " of two inputs"
    return Kernel(
        f"matmul {m}x{n}x{k}{kind}",
        f"""graph @main(%x: f32[{m}, {k}], %{b}: f32[{k}, {n}]) -> (f32[{m}, {n}]) {{
          %y = matmul(%x, %{b})
          return %y
        }}""",
    )


def _one(name: str, x: str, y: str, operator: str) -> Kernel:
    return Kernel(name, f"graph @main(%x: {x}) -> ({y}) {{ %y = {operator} return %y }}")


def _reduce(name: str, shape: tuple[int, ...], axes: tuple[int, ...], op: str) -> Kernel:
    left = _shape(*(size for at, size in enumerate(shape) if at not in axes))
    operator = f"{op}(%x) {{axes = {_tuple(axes)}, keepdims = false}}"
    return _one(name, f"f32{_shape(*shape)}", f"f32{left}", operator)


def _shape(*sizes: int) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _tuple(values: object) -> str:
    assert isinstance(values, (list, tuple))
    return (
        f"({', '.join(map(str, values))},)"
        if len(values) == 1
        else f"({', '.join(map(str, values))})"
    )


KERNELS = (
    _conv("grouped 3x3, 4 groups", (28, 28), (64, 64), (3, 3), groups=4),
    _conv("grouped 3x3, 8 groups", (28, 28), (128, 128), (3, 3), groups=8),
    _conv("int8 grouped 3x3, 4 groups", (28, 28), (64, 64), (3, 3), groups=4, is_byte=True),
    _conv("dilated 3x3, by 2", (28, 28), (64, 64), (3, 3), dilation=2),
    _conv("dilated 3x3, by 4", (28, 28), (48, 48), (3, 3), dilation=4),
    _conv("5x5", (28, 28), (32, 48), (5, 5)),
    _conv("5x5/2", (56, 56), (24, 40), (5, 5), stride=2),
    _conv("7x1", (28, 28), (64, 64), (7, 1)),
    _conv("3x3, odd channels", (30, 30), (37, 53), (3, 3)),
    _conv("1x1, odd channels", (30, 30), (61, 67), (1, 1)),
    _conv("3x3/2, odd image", (35, 35), (40, 72), (3, 3), stride=2),
    _conv("1-d, 9", (1000,), (64, 64), (9,)),
    _conv("1-d, 3, dilated by 8", (1000,), (64, 64), (3,), dilation=8),
    _conv("1-d depthwise, 31", (500,), (144, 144), (31,), groups=144),
    _conv("3-d, 3x3x3", (8, 28, 28), (16, 16), (3, 3, 3)),
    _conv("3-d, 1x3x3", (8, 28, 28), (24, 32), (1, 3, 3)),
    _conv("depthwise 7x7", (28, 28), (96, 96), (7, 7), groups=96),
    _conv("depthwise 3x3, odd", (33, 33), (50, 50), (3, 3), groups=50),
    _matmul(100, 100, 100),
    _matmul(257, 129, 511),
    _matmul(37, 1000, 333),
    _matmul(3, 1500, 700),
    _matmul(500, 11, 900),
    _matmul(200, 200, 200, weights=False),
    _reduce("sum of a middle axis", (32, 100, 96), (1,), "reduce_sum"),
    _one("running sum of rows", "f32[200, 500]", "f32[200, 500]", "cumsum(%x) {axis = 1}"),
    _one(
        "running sum of a middle axis",
        "f32[16, 100, 90]",
        "f32[16, 100, 90]",
        "cumsum(%x) {axis = 1}",
    ),
    _one(
        "resize by 2, linear",
        "f32[1, 24, 40, 40]",
        "f32[1, 24, 80, 80]",
        'resize(%x) {axes = (2, 3), sizes = (80, 80), mode = "linear"}',
    ),
    _one(
        "resize 50 to 33, cubic",
        "f32[1, 16, 50, 50]",
        "f32[1, 16, 33, 33]",
        'resize(%x) {axes = (2, 3), sizes = (33, 33), mode = "cubic"}',
    ),
    _one(
        "resize 35 to 70, nearest",
        "f32[1, 40, 35, 35]",
        "f32[1, 40, 70, 70]",
        'resize(%x) {axes = (2, 3), sizes = (70, 70), mode = "nearest"}',
    ),
)
