"""Models of one ONNX operator, at sizes that networks have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Made = Callable[[np.random.Generator], Array]
IMAGE_AXES = (2, 3)
IR_VERSION, OPSET = 10, 21


def floats(*shape: int, dtype: str = "f4") -> Made:
    return lambda rng: rng.random(shape, np.float32).astype(dtype)


def numbers(most: int, *shape: int, dtype: str = "i8", least: int = 0) -> Made:
    return lambda rng: rng.integers(least, most, shape).astype(dtype)


def bits(*shape: int) -> Made:
    return lambda rng: rng.random(shape) > 0.5


@dataclass(frozen=True)
class Case:
    """An operator, its inputs, attributes, and inputs that are constants."""

    op: str
    of: str  # what tells it from others of the operator
    inputs: Mapping[str, Made]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    is_dynamic: bool = False  # height and width, or the first two axes, are open
    opset: int = OPSET

    @property
    def name(self) -> str:
        return f"{self.op} {self.of}" + (", dynamic" if self.is_dynamic else "")

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        return {name: made(rng) for name, made in self.inputs.items()}

    def model(self) -> bytes:
        """Inputs come before constants; constants called `_` are inputs that are left out."""
        names = [*self.inputs, *("" if name.startswith("_") else name for name in self.constants)]
        results = [f"y{at}" for at in range(self.results)]
        node = helper.make_node(self.op, names, results, **self.attributes)
        given = [self._port(name, array) for name, array in self.arrays().items()]
        held = [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in self.constants.items()
            if not name.startswith("_")
        ]
        ports = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph([node], "operator", given, ports, held)
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model)
        for port in model.graph.output:
            if port.type.WhichOneof("value") is None:  # a norm that ONNX has as a function
                port.type.CopyFrom(given[0].type)
        return bytes(model.SerializeToString())

    def _port(self, name: str, array: Array) -> onnx.ValueInfoProto:
        shape: list[int | str] = list(array.shape)
        if self.is_dynamic:
            for axis in IMAGE_AXES if array.ndim == 4 else range(min(2, array.ndim)):
                shape[axis] = f"{name}{axis}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, shape)


def cases() -> Iterator[Case]:
    for is_dynamic in (False, True):
        yield from _images(is_dynamic)
        yield from _recurrent(is_dynamic)
    yield from _rows()
    yield from _moves()
    yield from _convolutions()


def _images(is_dynamic: bool) -> Iterator[Case]:
    def resize(mode: str, shape: tuple[int, ...], scale: float, dtype: str = "f4") -> Case:
        made = floats(*shape) if dtype == "f4" else numbers(256, *shape, dtype=dtype)
        how = {"mode": mode}
        if mode == "nearest":
            how |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        scales = np.array([1, 1, scale, scale], np.float32)
        of = f"{mode} {'x'.join(map(str, shape[1:]))} by {scale}" + (", bytes" * (dtype == "u1"))
        return Case("Resize", of, {"x": made}, how, {"_": 0, "s": scales}, is_dynamic=is_dynamic)

    yield resize("linear", (1, 3, 480, 640), 0.5)
    yield resize("linear", (1, 3, 480, 640), 0.5, "u1")
    yield resize("linear", (1, 64, 40, 40), 2.0)
    yield resize("nearest", (1, 64, 20, 20), 2.0)
    yield resize("nearest", (1, 256, 20, 20), 2.0)
    yield resize("cubic", (1, 16, 40, 40), 2.0)
    for channels, side in ((32, 64), (256, 32)):
        grid = lambda rng, side=side: 2 * rng.random((1, side, side, 2), np.float32) - 1  # noqa: E731
        given = {"x": floats(1, channels, side, side), "grid": grid}
        yield Case(
            "GridSample", f"{channels}x{side}x{side}", given, is_dynamic=is_dynamic, opset=16
        )
    for op, window, stride, channels, side in (
        ("AveragePool", 3, 1, 64, 112),
        ("AveragePool", 2, 2, 64, 112),
        ("MaxPool", 3, 2, 64, 112),
        ("MaxPool", 5, 1, 256, 20),
        ("MaxPool", 13, 1, 64, 26),
    ):
        how = {"kernel_shape": [window] * 2, "strides": [stride] * 2}
        how |= {"pads": [window // 2 if window % 2 else 0] * 4}
        of = f"{window}x{window}, stride {stride}, {channels}x{side}x{side}"
        yield Case(op, of, {"x": floats(1, channels, side, side)}, how, is_dynamic=is_dynamic)


def _recurrent(is_dynamic: bool) -> Iterator[Case]:
    for op, gates, steps, rows, inputs, units in (
        ("LSTM", 4, 50, 4, 128, 128),
        ("GRU", 3, 50, 4, 128, 128),
        ("GRU", 3, 100, 1, 64, 256),
    ):
        rng = np.random.default_rng(1)
        weights = {
            name: 0.1 * rng.standard_normal(shape).astype(np.float32)
            for name, shape in (
                ("w", (1, gates * units, inputs)),
                ("r", (1, gates * units, units)),
                ("b", (1, 2 * gates * units)),
            )
        }
        given = {"x": floats(steps, rows, inputs)}
        of = f"{steps} steps of {rows} x {inputs}, {units} units"
        yield Case(op, of, given, {"hidden_size": units}, weights, is_dynamic=is_dynamic)


def _rows() -> Iterator[Case]:
    """Sums, norms, searches and functions along rows."""
    for axis, rows, columns in ((1, 64, 4096), (0, 512, 1024)):
        of = f"{rows}x{columns}, axis {axis}"
        yield Case("CumSum", of, {"x": floats(rows, columns)}, {}, {"a": np.array(axis)})
    for op, shape, axes in (
        ("ReduceMean", (8, 512, 256), [1]),
        ("ReduceMax", (4096, 256), [-1]),
        ("ReduceSum", (512, 1024), [0]),
        ("ReduceLogSumExp", (8, 64, 56, 56), [2, 3]),
    ):
        of = f"{'x'.join(map(str, shape))}, axes {axes}"
        yield Case(op, of, {"x": floats(*shape)}, {}, {"a": np.array(axes)})
    yield Case("ArgMax", "21x256x256, axis 1", {"x": floats(1, 21, 256, 256)}, {"axis": 1})
    yield Case("ArgMax", "256x5000", {"x": floats(256, 5000)}, {"axis": -1})
    yield Case("Softmax", "21x256x256, axis 1", {"x": floats(1, 21, 256, 256)}, {"axis": 1})
    yield Case("Softmax", "2048x512", {"x": floats(2048, 512)})
    yield Case("LogSoftmax", "128x30522", {"x": floats(128, 30522)})
    norm = {"x": floats(512, 768), "s": floats(768), "b": floats(768)}
    yield Case("LayerNormalization", "512x768", norm)
    image = {"x": floats(1, 64, 128, 128), "s": floats(64), "b": floats(64)}
    yield Case("InstanceNormalization", "64x128x128", image)
    image = {"x": floats(1, 256, 32, 32), "s": floats(256), "b": floats(256)}
    yield Case("GroupNormalization", "256x32x32, 32 groups", image, {"num_groups": 32})
    yield Case("LRN", "96x55x55", {"x": floats(1, 96, 55, 55)}, {"size": 5})
    yield Case("TopK", "100 of 100000", {"x": floats(1, 100_000)}, {}, {"k": [100]}, results=2)
    yield Case("Unique", "10000", {"x": numbers(1000, 10_000)})
    yield Case("NonZero", "500x500", {"x": bits(500, 500)})
    for op in ("Erf", "Gelu", "Sin", "Tanh", "Mish"):
        yield Case(op, "1024x1024", {"x": floats(1024, 1024)}, opset=22 if op == "Mish" else OPSET)
    yield Case("Mod", "512x512 of i64", {"x": numbers(1000, 512, 512),
                                         "z": numbers(100, 512, 512, least=1)})  # fmt: skip
    scale = {"s": np.float32(0.01), "z": np.uint8(3)}
    yield Case("QuantizeLinear", "1024x1024", {"x": floats(1024, 1024)}, {}, scale)
    yield Case("DynamicQuantizeLinear", "1024x1024", {"x": floats(1024, 1024)}, results=3)


def _moves() -> Iterator[Case]:
    """Operators that compute nothing."""
    yield Case("Transpose", "8x128x12x64", {"x": floats(8, 128, 12, 64)}, {"perm": [0, 2, 1, 3]})
    yield Case("Transpose", "64x112x112 to NHWC", {"x": floats(1, 64, 112, 112)},
               {"perm": [0, 2, 3, 1]})  # fmt: skip
    yield Case("Transpose", "bytes, 480x640x3 to NCHW",
               {"x": numbers(256, 1, 480, 640, 3, dtype="u1")}, {"perm": [0, 3, 1, 2]})  # fmt: skip
    yield Case("Gather", "128 of 50000x256",
               {"x": floats(50_000, 256), "i": numbers(50_000, 1, 128)})  # fmt: skip
    yield Case("GatherElements", "1000x64 of 1000x256",
               {"x": floats(1000, 256), "i": numbers(256, 1000, 64)}, {"axis": 1})  # fmt: skip
    rows = {"x": floats(100, 100, 64), "i": numbers(100, 2000, 2), "u": floats(2000, 64)}
    yield Case("ScatterND", "2000 of 100x100x64", rows)
    yield Case("Pad", "reflect, 64x128x128", {"x": floats(1, 64, 128, 128)}, {"mode": "reflect"},
               {"p": [0, 0, 3, 3, 0, 0, 3, 3]})  # fmt: skip
    yield Case("Concat", "64 and 128 x56x56",
               {"x": floats(1, 64, 56, 56), "z": floats(1, 128, 56, 56)}, {"axis": 1})  # fmt: skip
    yield Case("Expand", "64x1x100 to 8x64x50x100", {"x": floats(1, 64, 1, 100)}, {},
               {"s": [8, 64, 50, 100]})  # fmt: skip
    yield Case("DepthToSpace", "64x64x64 by 2", {"x": floats(1, 64, 64, 64)}, {"blocksize": 2})
    yield Case("Col2Im", "64 of 32x32", {"x": floats(1, 576, 1024)}, {"pads": [1] * 4},
               {"s": [32, 32], "b": [3, 3]})  # fmt: skip


def _convolutions() -> Iterator[Case]:
    for channels, out, side, window, stride, groups in (
        (3, 64, 224, 7, 2, 1),
        (64, 128, 56, 3, 2, 1),
        (256, 512, 56, 1, 2, 1),
        (64, 64, 56, 3, 1, 4),
        (1, 16, 256, 3, 1, 1),
    ):
        weights = {"w": floats(out, channels // groups, window, window)(np.random.default_rng(1))}
        how = {"strides": [stride] * 2, "pads": [window // 2] * 4, "group": groups}
        of = f"{window}x{window}, stride {stride}, {channels} to {out} of {side}x{side}"
        of += f", {groups} groups" if groups > 1 else ""
        yield Case("Conv", of, {"x": floats(1, channels, side, side)}, how, weights)
    for window, groups in ((4, 1), (2, 1), (4, 64)):
        channels = 64 if groups > 1 else 128
        each = 1 if groups > 1 else 64
        weights = {"w": floats(channels, each, window, window)(np.random.default_rng(1))}
        how = {"strides": [2, 2], "pads": [window // 2 - 1] * 4, "group": groups}
        of = f"{window}x{window}, stride 2, {channels} of 32x32, {groups} groups"
        yield Case("ConvTranspose", of, {"x": floats(1, channels, 32, 32)}, how, weights)
