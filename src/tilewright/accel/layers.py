"""int8 layers of a model as operators of the accelerator: shapes, packed weights, parameters.

    kernel = kernel_of(node, constants, geometry, inputs)

A tensor (n, c, h, w) of a model is stored in DRAM as (n / batch, c / out, h, w, batch, out); a
matrix (m, k) as (k / out, m / batch, batch, out), that is as one row of an image. Channels are
padded to whole blocks, with zero weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.accel.build.pack import pack_parameters
from tilewright.accel.intrin import FACTOR_MAX
from tilewright.accel.operators import (
    Axis,
    Blend,
    Conv,
    Copy,
    Operator,
    Residual,
    Windows,
    ratio_of,
)
from tilewright.base.errors import Unsupported
from tilewright.base.geometry import ACC_BYTES, Geometry
from tilewright.graph.ir import Node, Value
from tilewright.graph.passes.decompose_quantized import LIMITS, given

Array = np.ndarray[Any, Any]
BYTE_MAX = 127


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor in DRAM; `depth` x `depth` positions of an image become channels."""

    shape: tuple[int, ...]
    depth: int = 1

    def packed_shape(self, g: Geometry) -> tuple[int, ...]:
        n, c, h, w = self.image
        far = self.depth
        blocks = -(-c * far * far // g.block_out)
        return (-(-n // g.batch), blocks, -(-h // far), -(-w // far), g.batch, g.block_out)

    @property
    def image(self) -> tuple[int, int, int, int]:
        """As images, channels, rows and columns; a matrix has its rows there as `batch` groups."""
        if len(self.shape) == 4:
            n, c, h, w = self.shape
            return n, c, h, w
        n, c = self.shape
        return n, c, 1, 1

    def size_bytes(self, g: Geometry) -> int:
        return int(np.prod(self.packed_shape(g)))

    def pack(self, array: Array, fill: int, g: Geometry) -> Array:
        """The bytes in the accelerator's layout."""
        images, blocks, h, w, batch, block = self.packed_shape(g)
        n, c, rows, columns = self.image
        far = self.depth
        whole = np.full((images * batch, c, h * far, w * far), fill, np.int8)
        whole[:n, :, :rows, :columns] = array.reshape(self.image)
        deep = whole.reshape(images * batch, c, h, far, w, far).transpose(0, 3, 5, 1, 2, 4)
        made = np.full((images * batch, blocks * block, h, w), fill, np.int8)
        made[:, : c * far * far] = deep.reshape(images * batch, -1, h, w)
        split = made.reshape(images, batch, blocks, block, h, w).transpose(0, 2, 4, 5, 1, 3)
        return np.ascontiguousarray(split.transpose(self.order))

    def unpack(self, packed: Array, g: Geometry) -> Array:
        images, blocks, h, w, batch, block = shape = self.packed_shape(g)
        split = packed.reshape([shape[at] for at in self.order]).transpose(self.order)
        whole = split.transpose(0, 4, 1, 5, 2, 3).reshape(images * batch, blocks * block, h, w)
        n, c, _, _ = self.image
        return np.ascontiguousarray(whole[:n, :c]).reshape(self.shape)

    @property
    def order(self) -> tuple[int, ...]:
        """In memory order: for a matrix, blocks of columns come first."""
        return (1, 0, 2, 3, 4, 5) if len(self.shape) == 2 else (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Factor:
    """An operand of a product of two tensors, (batch, rows, depth), as weights if it is the second.

    Zero points are subtracted by additional terms of the sums, so that the array multiplies bytes:
    (x - p) * (y - q) = x * y + x * -q + -p * y + p * q, the last of them a constant.
    """

    shape: tuple[int, int, int]
    zero: int
    other: int  # zero point of the other operand
    is_weights: bool = False

    @property
    def terms(self) -> list[int | None]:
        """The terms concatenated along the depth: the operand itself, or a number."""
        p, q = (self.other, self.zero) if self.is_weights else (self.zero, self.other)
        by_q, by_p = _parts(-q), _parts(-p)
        if self.is_weights:
            return [None, *by_q, *[None] * len(by_p)]
        return [None, *[None] * len(by_q), *by_p]

    def packed_shape(self, g: Geometry) -> tuple[int, ...]:
        batch, rows, depth = self.shape
        per = g.block_out if self.is_weights else g.batch
        blocks = -(-depth * len(self.terms) // g.block_out)
        return (batch, -(-rows // per), blocks, per, g.block_out)

    def size_bytes(self, g: Geometry) -> int:
        return int(np.prod(self.packed_shape(g)))

    def pack(self, array: Array, fill: int, g: Geometry) -> Array:
        batch, rows, depth = self.shape
        _, tall, blocks, per, block = self.packed_shape(g)
        own = array.transpose(0, 2, 1) if self.is_weights else array
        whole = np.zeros((batch, tall * per, blocks * block), np.int8)
        for at, term in enumerate(self.terms):
            whole[:, :rows, at * depth : (at + 1) * depth] = own if term is None else term
        if self.is_weights:
            return _pack_weights(whole.reshape(-1, blocks * block, 1, 1), batch, g, bits=8)
        split = whole.reshape(batch, tall, per, blocks, block).transpose(0, 3, 1, 2, 4)
        return np.ascontiguousarray(split)


def _parts(number: int) -> list[int]:
    """Bytes that add up to a number."""
    return [] if not number else [number] if number <= BYTE_MAX else [number // 2, number // 2]


@dataclass(frozen=True)
class Products:
    """The layout in DRAM of a batch of matrix products."""

    shape: tuple[int, int, int]

    def size_bytes(self, g: Geometry) -> int:
        batch, rows, columns = self.shape
        return batch * -(-rows // g.batch) * g.batch * -(-columns // g.block_out) * g.block_out

    def unpack(self, packed: Array, g: Geometry) -> Array:
        batch, rows, columns = self.shape
        split = packed.reshape(batch, -(-columns // g.block_out), -1, g.block_out)
        whole = split.transpose(0, 2, 1, 3).reshape(batch, split.shape[2], -1)
        return np.ascontiguousarray(whole[:, :rows, :columns])


Source = Layout | Factor  # layout of an operand in DRAM
Result = Layout | Products


@dataclass(frozen=True)
class Kernel:
    """One layer, ready to be scheduled: its operands by the names of the operator's parameters."""

    node: Node
    operator: Operator
    inputs: dict[str, tuple[Value, Source]]
    stored: dict[str, Array]  # weights and parameters, packed
    output: Result
    macs: int  # multiply-accumulates of the layer, without padding
    fused: tuple[Node, ...] = ()  # earlier layers fused into it
    others: tuple[Kernel, ...] = ()  # kernels that write the rest of the result

    @property
    def all(self) -> tuple[Kernel, ...]:
        return (self, *self.others)

    def fuse_sum(self, add: Kernel) -> Kernel:
        """The same convolution or matrix product, ending in the residual sum of its result."""
        assert isinstance(self.operator, Conv)
        assert isinstance(add.operator, Blend)
        factors = [add.operator.a, add.operator.b]
        z = add.inputs["z"]
        if z[0] is self.node.output:
            z, factors = add.inputs["x"], factors[::-1]
        residual = Residual(factors[0], factors[1], add.operator.limits)
        return Kernel(
            add.node, replace(self.operator, residual=residual), {**self.inputs, "z": z},
            {**self.stored, "r": add.stored["q"]}, add.output, self.macs, (self.node,),
        )  # fmt: skip


class _Refused(Unsupported):
    """A layer is not supported on the accelerator."""


def refused(why: str) -> _Refused:
    return _Refused("TW7044", f"the accelerator does not run it: {why}")


Constants = Mapping[Value, Array]


def kernel_of(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    """Convert a layer to an operator; rejected (TW7044) if unsupported. The host packs values in
    `outside`."""
    make = LAYERS.get(node.op)
    if make is None:
        raise refused(f"{node.op} is not an int8 layer")
    if g.block_out % g.block_in or (g.batch > 1 and ratio_of(g) > 1):
        raise refused("its geometry does not read what it has written")
    return make(node, constants, g, outside)


def _operands(node: Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _shape(value: Value | None) -> tuple[int, ...]:
    shape = None if value is None else value.tensor.static_shape
    if shape is None:
        raise refused("its sizes are not known")
    return shape


def _stored(constants: Constants, value: Value | None) -> Array:
    if value is None or value not in constants:
        raise refused("its weights are not constants")
    return constants[value]


def _limits(node: Node) -> tuple[int, int, int]:
    zero, low, high = (int(given(node, name)) for name in LIMITS)
    return zero, low, high


def _parameters(
    arrays: list[Array], channels: int, blocks: int, g: Geometry, fold: Array | int = 0
) -> Array:
    """Bias (with the zero points' contribution folded in), multiplier and shift per channel."""
    filled = []
    for array in arrays:
        whole = np.zeros(blocks * g.block_out, np.int64)
        whole[:channels] = array.reshape(-1)
        filled.append(whole)
    filled[0][:channels] -= fold
    bias = filled[0].astype(np.uint32).view(np.int32)  # wraps, as the sums do
    return pack_parameters(bias, filled[1], filled[2], g)


def _same_parameters(numbers: Iterable[int], blocks: int, g: Geometry) -> Array:
    """The same bias, multiplier and shift for every channel of `blocks` blocks."""
    every = blocks * g.block_out
    return _parameters([np.full(every, number) for number in numbers], every, blocks, g)


def _axes(node: Node, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[Axis, Axis]:
    strides, pads, dilations = (
        tuple(given(node, name)) for name in ("strides", "pads", "dilations")
    )
    rows, columns = (
        Axis(size[at], kernel[at], strides[at], pads[at], pads[at + 2], dilations[at], at == 0)
        for at in (0, 1)
    )
    return rows, columns


def _conv(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    x = _operands(node)[0]
    shape, out = _shape(x), _shape(node.output)
    if len(shape) != 4:
        raise refused(f"its input has {len(shape)} dimensions, not 4")
    w = _stored(constants, node.inputs[1])
    params = [_stored(constants, value) for value in node.inputs[2:5]]
    zero, groups = int(given(node, "x_zero")), int(given(node, "groups"))
    fold = zero * w.astype(np.int64).sum(axis=(1, 2, 3))
    kernel = (w.shape[2], w.shape[3])
    rows, columns = _axes(node, (shape[2], shape[3]), kernel)
    macs = int(np.prod(out)) * int(np.prod(w.shape[1:]))
    blocks = -(-out[1] // g.block_out)
    q = _parameters(params, out[1], blocks, g, fold)
    layout = Layout(shape)
    if groups == shape[1] == out[1] and groups > 1:
        images = layout.packed_shape(g)[0]
        columns, w = _pad_taps(columns, w, g.taps)
        operator = Windows(images, blocks, rows, columns, "mac", zero, _limits(node))
        stored = {"w": _pack_depthwise(w, g), "q": q}
        return Kernel(node, operator, {"x": (x, layout)}, stored, Layout(out), macs)
    if x in outside and groups == 1 and (deep := _s2d(shape, rows, columns, w, g)) is not None:
        layout, rows, columns, w = deep
    parts = groups
    if groups > 1 and (w.shape[1] % g.block_out or (out[1] // groups) % g.block_out):
        w, parts = _dense(w, groups), 1
    images, in_blocks = layout.packed_shape(g)[:2]
    bits = _weight_bits(w)
    made = Conv(
        images, parts, in_blocks // parts, blocks // parts, rows, columns, zero, _limits(node),
        weight_bits=bits,
    )  # fmt: skip
    stored = {"w": _pack_weights(w, parts, g, bits), "q": q}
    return Kernel(node, made, {"x": (x, layout)}, stored, Layout(out), macs)


def _s2d(
    shape: tuple[int, ...], rows: Axis, columns: Axis, w: Array, g: Geometry
) -> tuple[Layout, Axis, Axis, Array] | None:
    """Space to depth: turn a strided convolution of few channels into an unstrided one of more."""
    far = rows.stride
    if far == 1 or columns.stride != far or shape[1] * far * far > g.block_out:
        return None
    if rows.dilation > 1 or columns.dilation > 1:
        return None
    axes = []
    for axis in (rows, columns):
        spare = -axis.front % far
        kernel = -(-(axis.kernel + spare) // far)
        front, size = (axis.front + spare) // far, -(-axis.size // far)
        axes.append((spare, Axis(size, kernel, 1, front, axis.out - 1 + kernel - size - front)))
    outs, channels = w.shape[:2]
    (above, tall), (left, wide) = axes
    whole = np.zeros((outs, channels, tall.kernel * far, wide.kernel * far), np.int8)
    whole[:, :, above : above + rows.kernel, left : left + columns.kernel] = w
    split = whole.reshape(outs, channels, tall.kernel, far, wide.kernel, far)
    deep = split.transpose(0, 3, 5, 1, 2, 4).reshape(outs, -1, tall.kernel, wide.kernel)
    return Layout(shape, far), tall, wide, np.ascontiguousarray(deep)


def _dense(w: Array, groups: int) -> Array:
    """Weights of a grouped convolution as those of an ungrouped one, zero between groups."""
    outs, per = w.shape[:2]
    whole = np.zeros((outs, per * groups, *w.shape[2:]), np.int8)
    for group in range(groups):
        own = slice(group * outs // groups, (group + 1) * outs // groups)
        whole[own, group * per : (group + 1) * per] = w[own]
    return whole


def _pack_weights(w: Array, groups: int, g: Geometry, bits: int) -> Array:
    """(o, c, kh, kw) as (group, o / out, c / out, ratio, kh, kw, out, in); two of 4 bits a byte."""
    r = ratio_of(g)
    outs, ins, kh, kw = w.shape
    out_blocks, in_blocks = -(-outs // g.block_out), -(-ins // g.block_out)
    whole = np.zeros((out_blocks * g.block_out, in_blocks * g.block_out, kh, kw), np.int8)
    whole[:outs, :ins] = w
    split = whole.reshape(
        groups, out_blocks // groups, g.block_out, in_blocks, r, g.block_in, kh, kw
    )
    packed = np.ascontiguousarray(split.transpose(0, 1, 3, 4, 6, 7, 2, 5))
    if bits == 8:
        return packed
    pairs = packed.view(np.uint8).reshape(-1, 2) & 15
    return pairs[:, 0] | pairs[:, 1] << 4


def _weight_bits(w: Array) -> int:
    """Bits per weight: 4 if all weights are small, as in int4 models."""
    return 4 if w.min(initial=0) >= -8 and w.max(initial=0) <= 7 else 8


def _pad_taps(columns: Axis, w: Array, taps: int) -> tuple[Axis, Array]:
    """Pad windows to a multiple of `taps` columns, with zero weights."""
    if taps == 1:
        return columns, w
    reach = columns.reach
    spare = -reach % taps
    whole = np.zeros((*w.shape[:3], spare + reach), np.int8)
    whole[..., spare :: columns.dilation] = w
    front = columns.front + spare
    return replace(columns, kernel=spare + reach, front=front, dilation=1), whole


def _pack_depthwise(w: Array, g: Geometry) -> Array:
    """(c, 1, kh, kw) as (c / out, kh, kw / taps, batch, out); taps of a step are one number."""
    channels, _, kh, kw = w.shape
    blocks = -(-channels // g.block_out)
    whole = np.zeros((blocks * g.block_out, kh, kw), np.int8)
    whole[:channels] = w[:, 0]
    split = whole.reshape(blocks, g.block_out, kh, kw).transpose(0, 2, 3, 1)
    shape = (blocks, kh, kw, g.batch, g.block_out)
    packed = np.broadcast_to(split[:, :, :, None, :], shape)
    if g.taps == 1:
        return np.ascontiguousarray(packed)
    steps = packed.reshape(blocks, kh, kw // g.taps, g.taps, g.batch, g.block_out)
    made = np.zeros((*steps.shape[:3], g.batch, g.block_out, ACC_BYTES), np.int8)
    made[..., : g.taps] = np.moveaxis(steps, 3, -1)
    return made.view(np.int32)[..., 0]


def _matmul(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    x = _operands(node)[0]
    shape, (m, n) = _shape(x), _shape(node.output)
    w = _stored(constants, node.inputs[1])
    params = [_stored(constants, value) for value in node.inputs[2:5]]
    fold = int(given(node, "x_zero")) * w.astype(np.int64).sum(axis=0)
    blocks = -(-n // g.block_out)
    q = _parameters(params, n, blocks, g, fold)
    images = -(-m // g.batch)
    if len(shape) == 3:
        raise refused("its input has 3 dimensions")
    if len(shape) == 4:
        if images > 1:
            raise refused(f"an image becomes one of {m} rows of a matrix")
        kernel = w.reshape(shape[1], shape[2], shape[3], n).transpose(3, 0, 1, 2)
        rows, columns = Axis(shape[2], shape[2]), Axis(shape[3], shape[3])
    else:
        kernel = w.T.reshape(n, w.shape[0], 1, 1)
        rows, columns = Axis(1), Axis(images)
    layout = Layout(shape)
    in_blocks = layout.packed_shape(g)[1]
    bits = _weight_bits(kernel)
    operator = Conv(1, 1, in_blocks, blocks, rows, columns, 0, _limits(node), weight_bits=bits)
    stored = {"w": _pack_weights(kernel, 1, g, bits), "q": q}
    return Kernel(node, operator, {"x": (x, layout)}, stored, Layout((m, n)), m * w.size)


def _batch_matmul(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    """As groups of a convolution, whose weights the host packs like images."""
    x, y = _operands(node)
    if x not in outside or y not in outside or x in constants or y in constants:
        raise refused("its operands do not come from the host")
    (batch, m, depth), (_, _, n) = _shape(x), _shape(y)
    zeros = int(given(node, "x_zero")), int(given(node, "y_zero"))
    left = Factor((batch, m, depth), zeros[0], zeros[1])
    right = Factor((batch, n, depth), zeros[1], zeros[0], is_weights=True)
    _, columns, ins, _, _ = left.packed_shape(g)
    outs = right.packed_shape(g)[1]
    numbers = (depth * zeros[0] * zeros[1], int(node["multiplier"]), int(node["shift"]))
    q = _same_parameters(numbers, batch * outs, g)
    operator = Conv(1, batch, ins, outs, Axis(1), Axis(columns), 0, _limits(node))
    inputs: dict[str, tuple[Value, Source]] = {"x": (x, left), "w": (y, right)}
    return Kernel(node, operator, inputs, {"q": q}, Products((batch, m, n)), batch * m * n * depth)


def _add(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    x, y = _operands(node)
    layout = Layout(_shape(x))
    if len(layout.shape) not in (2, 4):
        raise refused(f"its input has {len(layout.shape)} dimensions")
    entries = layout.size_bytes(g) // (g.batch * g.block_out)
    q = _same_parameters([int(node[name]) for name in ("bias", "multiplier", "shift")], 1, g)
    a, b = int(node["a"]), int(node["b"])
    if not all(0 < abs(factor) <= FACTOR_MAX for factor in (a, b)):
        raise refused(f"it multiplies by {a} and {b}: from 1 to {FACTOR_MAX} can be")
    operator = Blend(entries, a, b, _limits(node))
    return Kernel(node, operator, {"x": (x, layout), "z": (y, layout)}, {"q": q}, layout, 0)


def _max_pool(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    x = _operands(node)[0]
    shape = _shape(x)
    if len(shape) != 4:
        raise refused(f"its input has {len(shape)} dimensions, not 4")
    layout = Layout(shape)
    images, blocks = layout.packed_shape(g)[:2]
    kernel = tuple(node["kernel"])
    rows, columns = _axes(node, (shape[2], shape[3]), (kernel[0], kernel[1]))
    q = _same_parameters((0, 1, 0), blocks, g)
    operator = Windows(images, blocks, rows, columns, "max", -128)
    return Kernel(node, operator, {"x": (x, layout)}, {"q": q}, Layout(_shape(node.output)), 0)


def _concat(node: Node, constants: Constants, g: Geometry, outside: set[Value]) -> Kernel:
    """Copy every operand to its part of the result."""
    out = Layout(_shape(node.output))
    rank = len(out.shape)
    if rank not in (2, 4):
        raise refused(f"its result has {rank} dimensions")
    axis = int(node["axis"]) % rank
    size = (g.batch, g.block_out, 1, 1)[axis]
    values = _operands(node)
    parts = [Layout(_shape(value)) for value in values]
    if any(part.shape[axis] % size for part in parts[:-1]):
        raise refused(f"sizes along axis {axis} are not multiples of {size}")
    order, axis_at = out.order[:4], out.order.index(axis)
    rows, *widths = (
        math.prod(part.packed_shape(g)[at] for at in some)
        for part, some in [(out, order[:axis_at]), *((p, order[axis_at:]) for p in (out, *parts))]
    )
    kernels, at = list[Kernel](), 0
    for number, (value, part) in enumerate(zip(values, parts, strict=True)):
        operator = Copy(rows, widths[1 + number], widths[0], at, _limits(node))
        at += operator.entries
        numbers = [node[name][number] for name in ("biases", "multipliers", "shifts")]
        stored = {"q": _same_parameters(numbers, 1, g)}
        kernels.append(Kernel(node, operator, {"x": (value, part)}, stored, out, 0))
    return replace(kernels[0], others=tuple(kernels[1:]))


LAYERS: dict[str, Callable[[Node, Constants, Geometry, set[Value]], Kernel]] = {
    "quantized_conv": _conv,
    "quantized_matmul": _matmul,
    "quantized_batch_matmul": _batch_matmul,
    "quantized_add": _add,
    "quantized_max_pool": _max_pool,
    "quantized_concat": _concat,
}
