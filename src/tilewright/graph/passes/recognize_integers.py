"""recognize_integers: QDQ layers as int8 layers, without floats in between.

    quantize(conv(dequantize(%x), dequantize(%w), %b))   ->   quantized_conv(%x, %w, ...)

Scales become fixed-point numbers: a multiplier of 31 bits and a shift, per output channel. Unsigned
bytes become signed, which shifts their zero points by 128. Average pools become depthwise
convolutions with ones; an addition multiplies both operands by small integers whose ratio is that
of their scales; concatenations and requantizations copy their operands to the new scale. It runs
before constants are folded, for targets that compute with integers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.base.dtype import F32, I8, I32, I64, U8
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node, store_constant
from tilewright.graph.definitions import Array
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.sym import Const, Expr

MULTIPLIER_BITS = I32.bits - 1  # of a scale as a fixed-point number
MAX_SHIFT = I64.bits - 2  # bits that a product may be shifted: it has 64
LOW, HIGH = int(np.iinfo(np.int8).min), int(np.iinfo(np.int8).max)  # of bytes
MAX_FACTORS = (HIGH, HIGH * -LOW + HIGH // 2)  # of the operands of an addition: 7 or 14 bits
PRODUCTS = ("conv", "matmul", "max_pool", "avg_pool")  # reasons are given for those that stay
INTEGER_PRODUCTS = ("conv_integer", "matmul_integer")
NOT_AROUND = "only quantize and dequantize around operators on floats are recognized"
NO_BYTES = "it does not become an int8 layer"


def recognize_integers(module: Module, ctx: PassContext) -> Module:
    """Before: quantize(conv(dequantize(%x), ...)).   After: quantized_conv(%x, ...)."""
    made = _Recognizer(module.main, dict(module.constants))
    graph = made.graph()
    made.explain(graph, ctx.reasons)
    if not made.changed:
        return module
    return replace(module, graphs={**module.graphs, "main": graph}, constants=made.constants)


def fixed_point(ratios: Array) -> tuple[Array, Array] | None:
    """Multipliers and shifts with ratio ~ multiplier / 2**shift; None out of range."""
    if not bool((ratios > 0).all()) or not bool(np.isfinite(ratios).all()):
        return None
    mantissa, exponent = np.frexp(ratios.astype(np.float64))
    multiplier = np.rint(mantissa * 2.0**MULTIPLIER_BITS).astype(np.int64)
    shift = MULTIPLIER_BITS - exponent.astype(np.int64)
    over = multiplier == 1 << MULTIPLIER_BITS
    multiplier, shift = (
        np.where(over, multiplier >> 1, multiplier),
        np.where(over, shift - 1, shift),
    )
    spare = np.maximum(0, shift - MAX_SHIFT)
    multiplier, shift = multiplier >> np.minimum(spare, I64.bits - 1), shift - spare
    if bool((shift < 0).any()):
        return None
    return multiplier.astype(np.int32), shift.astype(np.int32)


def factors(first: float, second: float) -> tuple[int, int]:
    """Two integers whose ratio is nearest to that of two scales: of 7 bits if that is as accurate
    as f32, otherwise of 14."""
    if first < second:
        return factors(second, first)[::-1]
    ratio = second / first
    for most in MAX_FACTORS:
        greater = np.arange(1, most + 1, dtype=np.float64)
        others = np.rint(greater * ratio)
        errors = np.abs(others / greater - ratio)
        at = int(np.argmin(errors + 1e-12 * greater))
        if errors[at] <= ratio * np.finfo(np.float32).eps:
            break
    return int(greater[at]), int(others[at])


def _dims(value: Value) -> tuple[int | Expr, ...]:
    """The shape with static sizes as numbers; empty if the rank is unknown."""
    shape = value.tensor.shape or ()
    return tuple([int(dim.value) if isinstance(dim, Const) else dim for dim in shape])


def _known(dims: Sequence[int | Expr]) -> tuple[int, ...]:
    """The static ones."""
    return tuple([dim for dim in dims if isinstance(dim, int)])


@dataclass(frozen=True)
class _Bytes:
    """A dequantized tensor: signed bytes, their scale and zero point."""

    value: Value
    scale: float
    zero: int


@dataclass(frozen=True)
class _Weights:
    """Constant weights: signed bytes, one scale or one per output channel."""

    array: Array
    scales: Array


@dataclass
class _Limits:
    zero: int
    low: int = LOW
    high: int = HIGH

    def attributes(self) -> dict[str, Attribute]:
        return {"zero": self.zero, "low": self.low, "high": self.high}


@dataclass
class _Recognizer:
    main: Graph
    constants: dict[str, Array]
    nodes: list[Node] = field(default_factory=list)
    changed: bool = False
    layers: int = 0
    instead: dict[Value, Value] = field(default_factory=dict)
    moved: dict[Value, int] = field(default_factory=dict)  # values whose zero points moved, by
    signed: set[Value] = field(default_factory=set)  # those that moved at all
    flat: dict[Value, Value] = field(default_factory=dict)  # what matrices were before reshaping
    of_layers: set[Value] = field(default_factory=set)  # results of int8 layers

    def __post_init__(self) -> None:
        self.makers = {value: node for node in self.main.nodes for value in node.outputs}
        self.users: dict[Value, list[Node]] = {}
        for node in self.main.nodes:
            for value in node.inputs:
                if value is not None:
                    self.users.setdefault(value, []).append(node)

    def graph(self) -> Graph:
        for node in self.main.nodes:
            if node.op == "quantize" and self._quantize(node):
                self.changed = True
            elif node.op == "dequantize" and node.inputs[0] in self.signed:
                self._dequantize(node)
            else:
                inputs = tuple(v if v is None else self.instead.get(v, v) for v in node.inputs)
                self.nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        results = tuple(self.instead.get(value, value) for value in self.main.results)
        return replace(self.main, nodes=tuple(self.nodes), results=results)

    # ----------------------------------------------------------------------- helpers

    def maker(self, value: Value | None, op: str) -> Node | None:
        node = None if value is None else self.makers.get(value)
        return node if node is not None and node.op == op else None

    def constant(self, value: Value | None) -> Array | None:
        node = self.maker(value, "constant")
        data = None if node is None else node["data"]
        if isinstance(data, np.ndarray):
            return data
        return self.constants.get(data) if isinstance(data, str) else None

    def store(self, array: Array, hint: str, like: Node) -> Value:
        node = store_constant(self.constants, array, hint, like.loc)
        self.nodes.append(node)
        return node.output

    def add(self, op: str, like: Node, *inputs: Value, **attributes: Attribute) -> Value:
        is_layer = op.startswith("quantized_")
        name = f"layer{self.layers}" if is_layer else op
        self.layers += is_layer
        node = make_node(op, inputs, attributes, like.loc, hints=(name,))
        self.nodes.append(node)
        if is_layer or (op == "reshape" and inputs[0] in self.of_layers):
            self.of_layers.add(node.output)
        return node.output

    def zero_of(self, node: Node) -> Array | None:
        """The zero point of a quantize or dequantize node; 0 if it has none."""
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return np.zeros((), np.int8)
        return self.constant(node.inputs[2])

    def scalar(self, node: Node) -> tuple[float, int] | None:
        """The scalar scale and zero point of a quantize or dequantize node."""
        scale = self.constant(node.inputs[1])
        zero = self.zero_of(node)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        return float(scale.reshape(())), int(zero.reshape(()))

    def wants_sign_kept(self, value: Value) -> bool:
        """Whether bytes are read other than by dequantization, so that their zero point is
        fixed."""
        return value in self.main.results or any(
            user.op != "dequantize" or self.zero_of(user) is None
            for user in self.users.get(value, ())
        )

    def bytes_of(self, value: Value | None) -> _Bytes | None:
        """The bytes that a value was dequantized from."""
        node = self.maker(value, "dequantize")
        found = None if node is None else self.scalar(node)
        if node is None or found is None or node.inputs[0] is None:
            return None
        source = node.inputs[0]
        if source in self.moved:
            return _Bytes(self.instead[source], found[0], found[1] - self.moved[source])
        if source.tensor.dtype is I8 and self.constant(source) is None:
            return _Bytes(self.instead.get(source, source), *found)
        return None

    def weights_of(self, value: Value | None, channel: int) -> _Weights | None:
        """Constant weights as signed bytes around 0, scales along the axis `channel`."""
        perm: tuple[int, ...] | None = None
        turned = self.maker(value, "transpose")
        if turned is not None:
            perm, value = tuple(turned["perm"]), turned.inputs[0]
        node = self.maker(value, "dequantize")
        if node is None or node.get("block_size", 0):
            return None
        array, scale = self.constant(node.inputs[0]), self.constant(node.inputs[1])
        zero = self.zero_of(node)
        if array is None or scale is None or zero is None or array.dtype.itemsize != 1:
            return None
        axis = node.get("axis", 1) % array.ndim
        if zero.size > 1:
            zero = zero.reshape([-1 if at == axis else 1 for at in range(array.ndim)])
        around = array.astype(np.int16) - zero.astype(np.int16)
        if perm is not None:
            around, axis = around.transpose(perm), perm.index(axis)
        if (around < LOW).any() or (around > HIGH).any():
            return None
        if scale.size > 1 and axis != channel:
            return None
        scales = np.broadcast_to(scale.reshape(-1).astype(np.float64), (around.shape[channel],))
        return _Weights(np.ascontiguousarray(around.astype(np.int8)), scales)

    def bias_of(self, value: Value | None, scales: Array) -> Array | None:
        """A constant bias as integers in the scale of the sums."""
        if value is None:
            return np.zeros(len(scales), np.int32)
        node = self.maker(value, "dequantize")
        if node is not None:
            stored, scale = (self.constant(one) for one in node.inputs[:2])
            if stored is None or scale is None:
                return None
            known = stored.astype(np.float64) * scale.reshape(-1).astype(np.float64)
        else:
            array = self.constant(value)
            if array is None:
                return None
            known = array.astype(np.float64)
        if known.size != 1 and known.shape != (*[1] * (known.ndim - 1), len(scales)):
            return None
        made = np.rint(known.reshape(-1) / scales)
        if (np.abs(made) >= 2.0**MULTIPLIER_BITS).any():
            return None
        return np.broadcast_to(made, scales.shape).astype(np.int32)

    # ----------------------------------------------------------------------- reasons

    def explain(self, graph: Graph, reasons: dict[str, str]) -> None:
        """Reasons why the remaining contractions did not become int8 layers, by location."""
        used = set(graph.results)
        for node in reversed(graph.nodes):
            if used.isdisjoint(node.outputs):
                continue
            used.update(value for value in node.inputs if value is not None)
            if node.op in PRODUCTS:
                why, where = self.why_left(node), str(node.loc)
                if reasons.setdefault(where, why) != why:
                    reasons[where] = NO_BYTES  # several nodes of one origin

    def why_left(self, node: Node) -> str:
        """Why a contraction did not become an int8 layer."""
        for value in node.inputs[: 2 if node.op == "matmul" else 1]:
            maker = None if value is None else self.makers.get(value)
            while maker is not None and maker.op == "transpose":
                maker = None if maker.inputs[0] is None else self.makers.get(maker.inputs[0])
            if maker is None or maker.op != "dequantize":
                return "an operand is not dequantized"
            source = maker.inputs[0]
            is_unsigned = source is not None and source.tensor.dtype is U8
            if is_unsigned and source not in self.moved and self.constant(source) is None:
                return "an operand is of u8 that the model is given, or reads elsewhere"
        rank = len(node.output.tensor.shape or ())
        if node.op != "matmul" and rank != 4:
            return f"its images have {max(rank - 2, 0)} dimensions, not 2"
        if node.op == "conv" and self.weights_of(node.inputs[1], 0) is None:
            return "its weights are no constant bytes with a scale per output channel"
        ends = self._ends(node.output)
        if not ends or any(end.op != "quantize" for end in ends):
            return "its result is not quantized"
        if any(end.output.tensor.dtype is U8 and self.wants_sign_kept(end.output) for end in ends):
            return "its result is of u8 that the model gives, or reads elsewhere"
        return "its shape, bias or scales have no such layer"

    def _ends(self, value: Value) -> list[Node]:
        """The readers of a value after bias and clamps."""
        found: list[Node] = []
        for user in self.users.get(value, ()):
            is_step = user.op in ("add", "relu", "clip")
            found += self._ends(user.output) if is_step else [user]
        return found

    # ----------------------------------------------------------------------- nodes

    def _dequantize(self, node: Node) -> None:
        """Dequantize the signed bytes instead."""
        source = node.inputs[0]
        assert source is not None
        zero = self.zero_of(node)
        assert zero is not None
        assert node.inputs[1] is not None
        signed = self.store((zero.astype(np.int16) - self.moved[source]).astype(np.int8), "z", node)
        inputs = (self.instead[source], node.inputs[1], signed)
        self.nodes.append(replace(node, inputs=inputs))

    def _quantize(self, node: Node) -> bool:
        """Replace a quantized layer by an int8 layer; otherwise quantize to signed bytes."""
        output, source = node.output, node.inputs[0]
        found = self.scalar(node) if len(node.inputs) > 1 else None
        if found is None or source is None or source.tensor.dtype is not F32:
            return False
        if output.tensor.dtype not in (I8, U8):
            return False
        by = -LOW if output.tensor.dtype is U8 else 0
        if by and self.wants_sign_kept(output):
            return False
        scale, zero = found
        value = self._layer(node, source, scale, _Limits(zero - by))
        if value is None:
            if not by:
                return False
            signed = self.store(np.array(zero - by, np.int8), "zero", node)
            attributes = {**dict(node.attributes), "to": I8}
            assert node.inputs[1] is not None
            value = self.add("quantize", node, source, node.inputs[1], signed, **attributes)
        self.instead[output], self.moved[output] = value, by
        if by:
            self.signed.add(output)
        return True

    def _layer(self, node: Node, source: Value, scale: float, limits: _Limits) -> Value | None:
        source = self._clamps(source, scale, limits)
        maker = self.makers.get(source)
        rule = None if maker is None else LAYERS.get(maker.op)
        if maker is None or rule is None or len(maker.outputs) != 1:
            return None
        return rule(self, node, maker, scale, limits)

    def _clamps(self, value: Value, scale: float, limits: _Limits) -> Value:
        """What is clamped, and the limits of its bytes."""
        while len(self.users.get(value, ())) == 1:
            node = self.makers.get(value)
            if node is None or node.inputs[0] is None:
                break
            if node.op == "relu":
                limits.low = max(limits.low, min(limits.zero, limits.high))
            elif node.op == "clip":
                ends = [self.constant(one) for one in (*node.inputs[1:], None, None)[:2]]
                if any(
                    given is not None and end is None
                    for given, end in zip(node.inputs[1:], ends, strict=False)
                ):
                    break
                low, high = (
                    None if end is None else np.rint(float(end) / scale) + limits.zero
                    for end in ends
                )
                if low is not None:
                    limits.low = max(limits.low, int(np.clip(low, LOW, HIGH)))
                if high is not None:
                    limits.high = min(limits.high, int(np.clip(high, LOW, HIGH)))
            else:
                break
            value = node.inputs[0]
        return value

    def requantization(
        self, node: Node, bias: Array, ratios: Array
    ) -> tuple[Value, Value, Value] | None:
        found = fixed_point(ratios)
        if found is None:
            return None
        arrays = (bias.astype(np.int32), *found)
        a, b, c = (
            self.store(np.ascontiguousarray(array), name, node)
            for array, name in zip(arrays, ("bias", "multiplier", "shift"), strict=True)
        )
        return a, b, c


def _conv(made: _Recognizer, node: Node, conv: Node, scale: float, limits: _Limits) -> Value | None:
    x, w = made.bytes_of(conv.inputs[0]), made.weights_of(conv.inputs[1], 0)
    if x is None or w is None or w.array.ndim != 4 or conv.get("layout", "") not in ("", "NCHW"):
        return None
    sums = w.scales * x.scale
    bias = made.bias_of(conv.inputs[2] if len(conv.inputs) > 2 else None, sums)
    given = None if bias is None else made.requantization(node, bias, sums / scale)
    if given is None:
        return None
    weights = made.store(w.array, "w", node)
    kept = {name: conv[name] for name in ("strides", "pads", "dilations", "groups")}
    return made.add(
        "quantized_conv", node, x.value, weights, *given, **kept, x_zero=x.zero,
        **limits.attributes(),
    )  # fmt: skip


def _matmul(
    made: _Recognizer, node: Node, last: Node, scale: float, limits: _Limits
) -> Value | None:
    """matmul, or matmul + bias; of two tensors of bytes, in batches."""
    product, bias_value = last, None
    if last.op == "add":
        for at in (0, 1):
            found = made.maker(last.inputs[at], "matmul")
            if found is not None and found.output.type == last.output.type:
                product, bias_value = found, last.inputs[1 - at]
        if product is last:
            return None
    x, w = made.bytes_of(product.inputs[0]), made.weights_of(product.inputs[1], 1)
    y = made.bytes_of(product.inputs[1])
    if x is not None and y is not None and product is last:
        return _batch_matmul(made, node, (x, y), scale, limits)
    if x is None or w is None or w.array.ndim != 2:
        return None
    of = _dims(x.value)
    if len(of) < 2 or not _known(of[-1:]):
        return None
    sums = w.scales * x.scale
    bias = made.bias_of(bias_value, sums)
    given = None if bias is None else made.requantization(node, bias, sums / scale)
    if given is None:
        return None
    weights = made.store(w.array, "w", node)
    value = made.flat.get(x.value, x.value)
    if len(of) > 2:
        value = made.add("reshape", node, value, shape=(-1, of[-1]))
    product_value = made.add(
        "quantized_matmul", node, value, weights, *given, x_zero=x.zero, **limits.attributes()
    )
    if len(of) == 2:
        return product_value
    return made.add("reshape", node, product_value, shape=(*of[:-1], w.array.shape[1]))


def _batch_matmul(
    made: _Recognizer, node: Node, operands: tuple[_Bytes, _Bytes], scale: float, limits: _Limits
) -> Value | None:
    """A batched GEMM, with all batch axes as one."""
    x, y = operands
    of_x, of_y = (_dims(one.value) for one in operands)
    found = fixed_point(np.array(x.scale * y.scale / scale))
    if len(of_x) < 3 or of_x[:-2] != of_y[:-2] or found is None:
        return None
    if len(_known((*of_x[-2:], *of_y[-2:]))) < 4:
        return None
    a, b = (
        made.add("reshape", node, one.value, shape=(-1, *of[-2:]))
        for one, of in ((x, of_x), (y, of_y))
    )
    product = made.add(
        "quantized_batch_matmul", node, a, b, x_zero=x.zero, y_zero=y.zero,
        multiplier=int(found[0]), shift=int(found[1]), **limits.attributes(),
    )  # fmt: skip
    return made.add("reshape", node, product, shape=(*of_x[:-1], of_y[-1]))


def _add(made: _Recognizer, node: Node, add: Node, scale: float, limits: _Limits) -> Value | None:
    x, y = (made.bytes_of(value) for value in add.inputs[:2])
    if x is None or y is None:
        return _matmul(made, node, add, scale, limits)
    if x.value.type != y.value.type or not {x.value, y.value} <= made.of_layers:
        return None  # floats exist anyway, and their sum is more accurate
    a, b = factors(x.scale, y.scale)
    shares = [part / factor for part, factor in ((x.scale, a), (y.scale, b)) if factor]
    found = fixed_point(np.array(sum(shares) / len(shares) / scale))
    if found is None or not a or not b:
        return None
    bias = -(x.zero * a + y.zero * b)
    return made.add(
        "quantized_add", node, x.value, y.value, a=a, b=b, bias=bias, multiplier=int(found[0]),
        shift=int(found[1]), **limits.attributes(),
    )  # fmt: skip


def _max_pool(
    made: _Recognizer, node: Node, pool: Node, scale: float, limits: _Limits
) -> Value | None:
    x = made.bytes_of(pool.inputs[0])
    same = x is not None and x.scale == scale and x.zero == limits.zero
    if x is None or not same or (limits.low, limits.high) != (LOW, HIGH):
        return None
    if _rounds_up(pool) or pool.get("layout", "") not in ("", "NCHW"):
        return None
    kept = {name: pool[name] for name in ("kernel", "strides", "pads", "dilations")}
    return made.add("quantized_max_pool", node, x.value, **kept)


def _rounds_up(pool: Node) -> bool:
    """Whether windows may run past the end."""
    return bool(pool.get("ceil_mode", False) or pool.get("overhang", False))


def _mean(made: _Recognizer, node: Node, mean: Node, scale: float, limits: _Limits) -> Value | None:
    """A mean over windows, or over the whole image, as a convolution with ones."""
    x = made.bytes_of(mean.inputs[0])
    dims = () if x is None else _known(_dims(x.value)[1:])
    if x is None or len(dims) != 3:
        return None
    strides, pads, dilations = (1, 1), (0, 0, 0, 0), (1, 1)
    if mean.op == "avg_pool":
        kernel, strides, pads, dilations = (
            tuple(mean[name]) for name in ("kernel", "strides", "pads", "dilations")
        )
        if _rounds_up(mean) or (any(pads) and not mean.get("include_pad", False)):
            return None
        if mean.get("layout", "") not in ("", "NCHW"):
            return None
    else:
        axes = mean.get("axes", None)
        if axes is None or sorted(int(at) % 4 for at in axes) != [2, 3]:
            return None
        if not mean.get("keepdims", True):
            return None
        kernel = dims[1:]
    channels = dims[0]
    ratios = np.full(channels, x.scale / scale / (kernel[0] * kernel[1]))
    given = made.requantization(node, np.zeros(channels, np.int32), ratios)
    if given is None:
        return None
    ones = made.store(np.ones((channels, 1, *kernel), np.int8), "ones", node)
    return made.add(
        "quantized_conv", node, x.value, ones, *given, strides=strides, pads=pads,
        dilations=dilations, groups=channels, x_zero=x.zero, **limits.attributes(),
    )  # fmt: skip


def _reshape(
    made: _Recognizer, node: Node, reshape: Node, scale: float, limits: _Limits
) -> Value | None:
    """A reshape of the bytes."""
    x = made.bytes_of(reshape.inputs[0])
    if x is None or x.scale != scale or x.zero != limits.zero or len(reshape.inputs) != 1:
        return None
    if (limits.low, limits.high) != (LOW, HIGH):
        return None
    value = made.add("reshape", node, x.value, **dict(reshape.attributes))
    before, after = x.value.tensor.shape, value.tensor.shape
    if before is not None and after is not None and len(after) == 2 and before[:1] == after[:1]:
        made.flat[value] = x.value
    return value


def _concat(
    made: _Recognizer, node: Node, concat: Node, scale: float, limits: _Limits
) -> Value | None:
    """A concatenation, each operand rescaled to the result's scale."""
    return _copies(made, node, concat.inputs, int(concat["axis"]), scale, limits)


def _rescale(
    made: _Recognizer, node: Node, dequantize: Node, scale: float, limits: _Limits
) -> Value | None:
    """A requantization to another scale, or a clamp."""
    return _copies(made, node, dequantize.outputs, 0, scale, limits)


def _copies(
    made: _Recognizer, node: Node, values: Sequence[Value | None], axis: int, scale: float,
    limits: _Limits,
) -> Value | None:  # fmt: skip
    operands = [one for value in values if (one := made.bytes_of(value)) is not None]
    found = fixed_point(np.array([one.scale / scale for one in operands]))
    if len(operands) < len(values) or found is None:
        return None
    multipliers, shifts = (tuple(map(int, numbers)) for numbers in found)
    return made.add(
        "quantized_concat", node, *(one.value for one in operands), axis=axis,
        biases=tuple([-one.zero for one in operands]), multipliers=multipliers, shifts=shifts,
        **limits.attributes(),
    )  # fmt: skip


def why_no_layer(nodes: Sequence[Node], reasons: Mapping[str, str]) -> list[str]:
    """Why contractions among nodes are not int8 layers, by the reasons of `recognize_integers`."""
    found = [reasons.get(str(one.loc), NO_BYTES) for one in nodes if one.op in PRODUCTS]
    found += [reasons.get(str(one.loc), NOT_AROUND) for one in nodes if one.op in INTEGER_PRODUCTS]
    return list(dict.fromkeys(found))


Rule = Callable[[_Recognizer, Node, Node, float, _Limits], Value | None]
LAYERS: dict[str, Rule] = {
    "conv": _conv,
    "matmul": _matmul,
    "add": _add,
    "max_pool": _max_pool,
    "avg_pool": _mean,
    "reduce_mean": _mean,
    "reshape": _reshape,
    "concat": _concat,
    "dequantize": _rescale,
}
