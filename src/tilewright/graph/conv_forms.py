"""Forms of a convolution of few bits, and the cheapest of them.

    as it is        conv(x, w) in wider types, where these are an alternative
    direct          conv(x, w)
    channels of c   conv(x with zeros up to a multiple of c channels, w alike)
    lines           conv(x as lines of one channel, w as lines, zero-padded); not of bytes
    rows + e        conv(rows of patches(x and e more lines) along lines, w of one axis); for tiles
    im2col          matmul(rows of patches(x), matrix of w)

A form takes what its contraction takes, by the first schedule rule that matches it, and what the
copies before it take (`graph/costs.py`): which instructions it runs on is up to the rules. Numbers
in forms, such as multiples of channels, are those of the target's instructions, as values to try.

A dynamic batch counts as one image, as rules assume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tilewright.base.dots import dots_of, multiplies
from tilewright.base.dtype import I16, DType, from_numpy
from tilewright.base.machine import LOOP_CYCLES
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tiles import tile_product
from tilewright.graph.build import make_node
from tilewright.graph.costs import (
    AT_LEAST,
    ESTIMATED,
    LEAST_SPEEDUP,
    MEASURED,
    Candidate,
    Price,
    alone,
    candidate_of,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.im2col import as_single_channel_rows, im2col, partial_im2col, with_channels
from tilewright.graph.ir import Attribute, Graph, Module, Node, Value
from tilewright.graph.match import Array, Scope, Steps, shape_of
from tilewright.graph.rates import elements, extent, rates_of, size_bytes
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, Const, const, free_vars

KEPT, DIRECT, LINES, ROWS, IM2COL = "as it is", "direct", "lines", "rows", "im2col"
GEMMS = {"conv": "matmul", "conv_integer": "matmul_integer"}
SUMS = {"conv": "f32", "conv_integer": "i32"}


@dataclass(frozen=True, eq=False)
class Problem:
    """A convolution channels last by constant weights; operands have the types that are
    multiplied."""

    node: Node
    x: Value
    weights: Array
    bias: Value | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)  # of the contraction
    wide: Node | None = None  # the convolution in wider types, which may stay

    @property
    def operands(self) -> tuple[Node, Value, Array, Value | None]:
        return self.node, self.x, self.weights, self.bias

    @property
    def is_matrix(self) -> bool:
        """Whether windows are pixels of the image: then it is a GEMM as it is."""
        return all(each == 1 for each in (*self.weights.shape[2:], *self.node["strides"]))

    @property
    def key(self) -> object:
        """Equal for problems with the same prices."""
        shape = (shape_of(self.x) or ())[1:]
        given = (*self.node.attributes, *self.attributes.items(), self.wide is None)
        return shape, self.x.tensor.dtype, self.weights.shape, self.weights.dtype, given

    @property
    def is_static(self) -> bool:
        """Whether sizes and pads of the image are static."""
        dims = [*(shape_of(self.x) or ())[1:], *(shape_of(self.node.output) or ())[1:]]
        pads_known = all(isinstance(pad, int) for pad in self.node["pads"])
        return pads_known and all(isinstance(dim, Const) for dim in dims)


Nodes = Sequence[Node] | None
Maker = Callable[[Steps, Problem], Nodes]


# --------------------------------------------------------------------------- the forms


def forms_of(problem: Problem, target: Target) -> dict[str, Maker]:
    """The forms of a convolution that a target may run, by name."""
    tile, group = _depths(problem, target)
    if problem.wide is not None and not tile and not group:
        return {KEPT: _kept}  # every load would widen its operands
    if problem.node.get("groups", 1) > 1:
        return {DIRECT: _direct}
    if problem.is_matrix:
        return {IM2COL: _im2col}
    forms: dict[str, Maker] = {} if problem.wide is None else {KEPT: _kept}
    forms[DIRECT] = _direct
    inner = problem.weights.shape[1]
    for depth in dict.fromkeys((group, tile)):
        if depth and inner % depth:
            forms[f"channels of {depth}"] = partial(_whole_channels, depth=depth)
    if tile and inner < tile and problem.node.op == "conv" and _has_lines(problem):
        forms[LINES] = partial(_lines, depth=tile)
    if tile and _has_rows(problem):
        forms[ROWS] = partial(_rows, extra=0)
        for extra in _extra_lines(problem):
            forms[f"{ROWS} + {extra}"] = partial(_rows, extra=extra)
    return {**forms, IM2COL: _im2col}


def _depths(problem: Problem, target: Target) -> tuple[int, int]:
    """How many channels a matrix tile and a dot product take of these types; 0 for none."""
    a, b = problem.x.tensor.dtype.name, from_numpy(problem.weights.dtype).name
    tile, dots = tile_product(target, a, b), dots_of(target, a, b, SUMS[problem.node.op])
    return tile.depth if tile else 0, dots[0].group if dots else 0


def _has_lines(problem: Problem) -> bool:
    """Whether windows overlap along lines of adjacent pixels."""
    taps, node = problem.weights.shape[2:], problem.node
    overlaps = len(taps) > 1 and node["strides"][-1] < taps[-1]
    return overlaps and node["dilations"][-1] == 1 and problem.is_static


def _has_rows(problem: Problem) -> bool:
    """Whether windows that are unfolded along lines go on from one line to the next."""
    taps, strides = problem.weights.shape[2:], problem.node["strides"]
    return problem.is_static and len(taps) == 2 and taps[0] > 1 and strides[0] == 1


def _extra_lines(problem: Problem) -> list[int]:
    """Numbers of lines to add, of which tiles may cover the positions exactly."""
    height = (shape_of(problem.node.output) or (ONE, ONE))[1]
    assert isinstance(height, Const)
    most = max(1, int(height.value) // 4)
    return [1 << at for at in range(most.bit_length())]


def _kept(steps: Steps, problem: Problem) -> Nodes:
    return None if problem.wide is None else [problem.wide]


def _direct(steps: Steps, problem: Problem) -> Nodes:
    if problem.x is problem.node.inputs[0]:
        return [problem.node]
    return _conv(steps, problem, problem.x, problem.weights, dict(problem.node.attributes))


def _whole_channels(steps: Steps, problem: Problem, *, depth: int) -> Nodes:
    missing = -problem.weights.shape[1] % depth
    x, weights, attributes = with_channels(steps, problem.node, problem.x, problem.weights, missing)
    return _conv(steps, problem, x, weights, attributes)


def _conv(
    steps: Steps, problem: Problem, x: Value, weights: Array, attributes: dict[str, Attribute]
) -> Nodes:
    op, bias = problem.node.op, problem.bias
    factor = steps.scope.new_constant(weights, "w", problem.node)
    steps.nodes.append(factor)
    attributes |= _of_conv(problem)
    if op == "conv_integer" and bias is not None:
        steps.add(op, x, factor.output, None, None, bias, **attributes)
        return steps.done()
    sums = steps.add(op, x, factor.output, **attributes)
    if bias is not None:
        steps.add("add", sums, bias)
    return steps.done()


def _of_conv(problem: Problem) -> dict[str, Attribute]:
    more: dict[str, Attribute] = {"winograd": 0} if problem.node.op == "conv" else {}
    return {**problem.attributes, **more}


def _lines(steps: Steps, problem: Problem, *, depth: int) -> Nodes:
    node, x, weights, bias = problem.operands
    more = _of_conv(problem)
    return as_single_channel_rows(steps, node, x, weights, bias, node.op, deep=depth, **more)


def _rows(steps: Steps, problem: Problem, *, extra: int) -> Nodes:
    node, x, weights, bias = problem.operands
    more = _of_conv(problem)
    return partial_im2col(steps, node, x, weights, bias, node.op, extra=extra, **more)


def _im2col(steps: Steps, problem: Problem) -> Nodes:
    node, x, weights, bias = problem.operands
    more = problem.attributes
    return im2col(steps, node, x, weights, bias, GEMMS[node.op], multiple=1, **more)


# --------------------------------------------------------------------------- their prices


@dataclass(frozen=True)
class _Parts:
    """What a form consists of, as far as forms differ."""

    copies: tuple[Node, ...]
    contraction: Node


class FormPrices:
    """The cheapest form of each convolution that a pass meets."""

    def __init__(self, module: Module, ctx: PassContext, step: str) -> None:
        self.ctx, self.step, self.costs = ctx, step, costs_of(ctx)
        self.in_cache = weights_stay(module, ctx.target)
        self.known: dict[object, tuple[Price, ...]] = {}

    def cheapest(self, steps: Steps, problem: Problem) -> Nodes:
        """The nodes of the cheapest form; im2col without prices."""
        target, node = self.ctx.target, problem.node
        if not isinstance(target, Target) or self.costs is None:
            return _im2col(steps, problem)
        forms = forms_of(problem, target)
        prices = self.prices(problem, target) if len(forms) > 1 else ()
        default = IM2COL if IM2COL in forms else next(iter(forms))
        chosen = _cheapest(prices, problem).name if prices else default
        if len(forms) > 1:
            note_choice(self.ctx, self.step, node, "convolution", chosen, prices)
        return forms[chosen](steps, problem)

    def least_ns(self, problem: Problem) -> float | None:
        """The price of the cheapest form; None without prices."""
        target = self.ctx.target
        if not isinstance(target, Target) or self.costs is None:
            return None
        prices = self.prices(problem, target)
        return _cheapest(prices, problem).ns if prices else None

    def prices(self, problem: Problem, target: Target) -> tuple[Price, ...]:
        """The prices of all forms: measured, or else estimated."""
        if problem.key not in self.known:
            estimated = self._estimates(problem, target)
            self.known[problem.key] = self._measured(problem, target, estimated) or estimated
        return self.known[problem.key]

    def _measured(
        self, problem: Problem, target: Target, estimated: Sequence[Price]
    ) -> tuple[Price, ...] | None:
        """Measured times of the forms that may be the fastest, if all of them are known."""
        if self.costs is None or not self.costs.has_times:
            return None
        forms, candidates = forms_of(problem, target), []
        for price in estimated:
            if price.source == ESTIMATED:
                nodes = forms[price.name](_scratch(problem.node), problem)
                candidates += [] if nodes is None else [_whole(price.name, nodes, problem.node)]
        return self.costs.measured(candidates)

    def _estimates(self, problem: Problem, target: Target) -> tuple[Price, ...]:
        """Prices of all forms. Copies are priced only where the contraction alone, and a lower
        bound of them, do not exceed the cheapest form so far."""
        priced = _stand_in(problem, target)
        sums: dict[str, tuple[float, _Parts]] = {}
        for name, make in forms_of(priced, target).items():
            parts = None if _is_vain(name, sums) else _parts(make(_scratch(priced.node), priced))
            if parts is not None:
                kernel = alone(parts.contraction)
                ns = self._ns(_candidate(name, kernel, priced, self.in_cache))
                sums |= {} if ns is None else {name: (ns, parts)}
        found: list[Price] = []
        for name, (ns, parts) in sorted(sums.items(), key=lambda item: item[1][0]):
            least = ns + self._least_ns(parts.copies, target)
            if any(least >= price.ns for price in found):
                found.append(Price(name, least, AT_LEAST))
                continue
            copied = self._copies_ns(parts.copies, priced, target)
            if copied is not None:
                found.append(Price(name, ns + copied, ESTIMATED))
        return tuple(found)

    def _ns(self, candidate: Candidate) -> float | None:
        return None if self.costs is None else self.costs.estimated(candidate)

    def _copies_ns(self, copies: Sequence[Node], problem: Problem, target: Target) -> float | None:
        if not copies:
            return 0.0
        kernel = candidate_of("copies", copies).kernel
        copied = self._ns(_candidate("copies", kernel, problem))
        if copied is None:
            return None
        threads = self.costs.threads if self.costs else 1
        least = _run_cycles(copies[-1], target) * target.machine.cycle_ns / threads
        return max(copied, least) + rates_of(target).launch_ns

    def _least_ns(self, copies: Sequence[Node], target: Target) -> float:
        """A lower bound of copies: writing and reading what they make in a core's cache."""
        if not copies:
            return 0.0
        machine, threads = target.machine, self.costs.threads if self.costs else 1
        moved = 2 * size_bytes(copies[-1].output) / machine.l2.bytes_per_cycle / threads
        return moved * machine.cycle_ns + rates_of(target).launch_ns


def _run_cycles(node: Node, target: Target) -> float:
    """Cycles of copying runs of adjacent elements one by one: the rest of a run beyond whole
    vectors is copied in pieces whose sizes are powers of two. Lines of windows overlap, so that
    each needs two addresses besides."""
    x, made = node.inputs[0], node.output
    assert x is not None
    *_, width, channels = map(extent, shape_of(x) or ())
    run, addresses = channels, 0
    if node.op == "patches":
        addresses = 2
        run = node["kernel"][-1] * channels if node["dilations"][-1] == 1 else channels
    elif len(shape_of(x) or ()) - 1 not in node["axes"]:
        run = width * channels
    size, vector = run * x.tensor.dtype.size_bytes, target.lanes(8)
    pieces = size // vector + bin(size % vector).count("1")
    return elements(made) / max(1, run) * (addresses + pieces) * LOOP_CYCLES


def _is_vain(name: str, sums: Mapping[str, tuple[float, _Parts]]) -> bool:
    """Whether a form has more lines than others that already took no less for having more."""
    tried = [ns for other, (ns, _) in sums.items() if other.startswith(ROWS)]
    return name.startswith(ROWS) and len(tried) > 1 and tried[-1] >= tried[-2]


def _candidate(name: str, kernel: Graph, problem: Problem, in_cache: bool = True) -> Candidate:
    """A kernel of an image, and of weights if it takes two operands."""
    dims = [*(shape_of(problem.x) or ())[1:], *(shape_of(problem.node.output) or ())[1:]]
    weights = frozenset(range(1, len(kernel.params)))
    return Candidate(
        name,
        kernel,
        weights,
        in_cache,
        spatial=frozenset(free_vars(*dims)),
        extents=frozenset(dims),
    )


def _whole(name: str, nodes: Sequence[Node], node: Node) -> Candidate:
    """A form as one candidate; in the direct form, weights are an operand."""
    found = candidate_of(name, nodes)
    at = [at for at, value in enumerate(found.kernel.params) if value is node.inputs[1]]
    return replace(found, weights=found.weights | frozenset(at))


def _cheapest(prices: Sequence[Price], problem: Problem) -> Price:
    """The cheapest form. Windows that overlap are stored several times, which takes the cache from
    other kernels: their estimates, which are inexact, have to be lower by a margin."""
    taps, strides = problem.weights.shape[2:], problem.node["strides"]
    overlap = any(tap > stride for tap, stride in zip(taps, strides, strict=True))

    def weighed(price: Price) -> float:
        is_stored = overlap and price.name.startswith((IM2COL, ROWS))
        return price.ns * (LEAST_SPEEDUP if is_stored and price.source != MEASURED else 1.0)

    return min(prices, key=weighed)


def _scratch(like: Node) -> Steps:
    """Steps whose constants nobody keeps."""
    return Steps(like, Scope({}, {}, {}))


def _stand_in(problem: Problem, target: Target) -> Problem:
    """A problem with the same prices: one image where the batch is dynamic, no bias, weights of
    zeros, and bytes as i16 where the target multiplies those (`upcast_bytes`)."""
    of, weights = problem.x.tensor.dtype, problem.weights.dtype
    is_widened = not of.is_float and multiplies(target, "i16", "i16")
    if is_widened and not multiplies(target, of.name, from_numpy(weights).name):
        of, weights = I16, np.dtype(np.int16)
    zeros: Array = np.broadcast_to(np.zeros((), weights), problem.weights.shape)
    attributes = {**dict(problem.node.attributes), **_of_conv(problem)}
    node = _alike(problem, of, from_numpy(weights), attributes)
    (x, _), wide = node.inputs, problem.wide
    assert x is not None
    if wide is not None:
        sums = wide.output.tensor.dtype
        wide = _alike(problem, sums, sums, dict(wide.attributes))
    return Problem(node, x, zeros, None, problem.attributes, wide)


def _alike(problem: Problem, x: DType, w: DType, attributes: Mapping[str, Attribute]) -> Node:
    """The convolution of one image, if the batch is dynamic, in other types."""
    first, *rest = shape_of(problem.x) or ()
    images = first if isinstance(first, Const) else ONE
    dims = tuple(map(const, problem.weights.shape))
    operands = Value("x", TensorType(x, (images, *rest))), Value("w", TensorType(w, dims))
    return make_node(problem.node.op, operands, attributes, problem.node.loc)


def _parts(nodes: Nodes) -> _Parts | None:
    """The copies and the contraction of a form."""
    inside = [node for node in nodes or () if node.op != "constant"]
    at = next((at for at, node in enumerate(inside) if node.op in (*GEMMS, *GEMMS.values())), None)
    if at is None:
        return None
    copies = inside[:at]
    while copies and copies[-1].op == "reshape":  # a view
        copies.pop()
    return _Parts(tuple(copies), inside[at])
