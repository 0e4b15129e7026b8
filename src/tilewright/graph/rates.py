"""Rough cost model of nodes, from bytes moved and operations done, for fusion and rewrites.

    rates = rates_of(target)
    rates.byte_ns * size_bytes(value) + rates.launch_ns

Times are by the target's machine model, for values read from memory. Dynamic sizes have the likely
value in their range, if they have one. Whole kernels are priced by `graph/costs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.base.dtype import F32
from tilewright.base.extents import ASSUMED, likely_extent
from tilewright.base.machine import FUNCTION_CYCLES, KB, OPERATION_CYCLES
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, WASM, Target
from tilewright.graph.ir import Node, Value
from tilewright.graph.op import BROADCAST, COMPLEX, ELEMENTWISE, INJECTIVE, REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr, Var, evaluate, free_vars

Likely = Mapping[Var, int]  # values of dynamic sizes that have a range
NO_RANGES: Likely = {}


@dataclass(frozen=True)
class Rates:
    """Costs of bytes, operations and kernels, in nanoseconds."""

    byte_ns: float  # moved to memory or from it
    operation_ns: float  # of arithmetic, one lane of a vector
    shared_byte_ns: float  # per byte shared between cores: the minimum for any byte
    launch_ns: float  # per kernel: the call, and joining the threads
    kept_bytes: int = 512 * KB  # of a value that stays in a core's cache besides other data
    line_bytes: int = 64  # cache line, the unit of sharing between cores
    likely: Likely = field(default_factory=dict, hash=False)

    def elements(self, value: Value) -> int:
        """The number of elements of a tensor, for likely sizes."""
        return elements(value, self.likely)

    def size_bytes(self, value: Value) -> int:
        """The bytes of a tensor, for likely sizes."""
        return size_bytes(value, self.likely)

    def operations(self, node: Node) -> int:
        """Arithmetic of a whole node, for likely sizes."""
        return operations(node, self.likely)


# For an unknown processor, or none: a byte is the unit.
NOMINAL_RATES = Rates(byte_ns=1.0, operation_ns=0.25, shared_byte_ns=1.0, launch_ns=4096.0)


def rates_of(target: Any) -> Rates:
    """The rates of a target; nominal ones without a target."""
    if not isinstance(target, Target) or target.kind not in (CPU, WASM):
        return NOMINAL_RATES
    machine, memory = target.machine, target.machine.memory_bytes_per_cycle
    return Rates(
        byte_ns=machine.cycle_ns / memory,
        operation_ns=machine.cycle_ns / (target.lanes(32) * machine.fma_per_cycle),
        shared_byte_ns=machine.cycle_ns / max(machine.l3.bytes_per_cycle, memory),
        launch_ns=machine.kernel_call_ns,
        kept_bytes=machine.l2.block_bytes,
        line_bytes=machine.l2.line_bytes,
    )


def context_rates(ctx: PassContext) -> Rates:
    """The rates of a context's target, with the ranges of sizes that the context knows."""
    ranges = getattr(ctx.costs, "ranges", ())
    likely = {size: likely_extent(low, high) for size, low, high in ranges}
    return replace(rates_of(ctx.target), likely=likely)


# Operations per element, if not one: for functions, in proportion to their cycles.
_FUNCTIONS = {name: round(cycles / OPERATION_CYCLES) for name, cycles in FUNCTION_CYCLES.items()}
OPERATIONS: dict[str, int] = {
    **_FUNCTIONS,
    **dict.fromkeys(("reciprocal", "mod", "floordiv"), _FUNCTIONS["div"]),
    **dict.fromkeys(("quantize", "dequantize", "batch_norm", "random_bits"), 8),
    "lookup_bytes": 24,
    **dict.fromkeys(("reshape", "transpose", "slice", "expand"), 0),
}


def extent(dim: Expr, likely: Likely = NO_RANGES) -> int:
    """A dimension's value; of a dynamic one, for likely sizes."""
    if isinstance(dim, Const):
        return int(dim.value)
    sizes = {size: likely.get(size, ASSUMED.elements) for size in free_vars(dim)}
    return max(0, int(evaluate(dim, sizes)))


def elements(value: Value, likely: Likely = NO_RANGES) -> int:
    """The number of elements of a tensor."""
    of = value.type
    if not isinstance(of, TensorType) or of.shape is None:
        return ASSUMED.elements
    return math.prod([extent(dim, likely) for dim in of.shape])


def size_bytes(value: Value, likely: Likely = NO_RANGES) -> int:
    """The bytes of a tensor."""
    of = value.type
    return elements(value, likely) * (of.dtype.size_bytes if isinstance(of, TensorType) else 8)


def operations_per_element(node: Node) -> int:
    """Arithmetic per output element of an element-wise or injective node."""
    return OPERATIONS.get(node.op, 1)


def operations(node: Node, likely: Likely = NO_RANGES) -> int:
    """Arithmetic of a whole node."""
    op = OPS.get(node.op)
    pattern = None if op is None else op.pattern
    if pattern in (ELEMENTWISE, BROADCAST, INJECTIVE):
        return operations_per_element(node) * elements(node.outputs[0], likely)
    if pattern == COMPLEX:
        return 2 * elements(node.outputs[0], likely) * _reduced(node, likely)
    if pattern == REDUCTION:
        return 2 * max(elements(value, likely) for value in (*node.outputs, *_given(node.inputs)))
    return sum(elements(value, likely) for value in node.outputs)


def _given(values: Sequence[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]


def _reduced(node: Node, likely: Likely) -> int:
    """The length of the reduction of a GEMM-like operator."""
    first, second = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if first is None or second is None or not first.tensor.shape:
        return 1
    if node.op.startswith("conv"):
        return math.prod([extent(dim, likely) for dim in (second.tensor.shape or ())[1:]])
    if node.op == "attention":
        keys = second.tensor.shape or ()
        return extent(first.tensor.shape[-1], likely) + extent(keys[-2], likely)
    return extent(first.tensor.shape[-1], likely)


def has_few_rows(a: Value | None, rates: Rates, size_bytes: int) -> bool:
    """Whether there are so few rows that converting B from its element size for each of them takes
    no longer than reading it as f32."""
    shape = a.tensor.shape if a is not None and isinstance(a.type, TensorType) else None
    if shape is None or not all(isinstance(dim, Const) for dim in shape[:-1]):
        return False
    rows = math.prod(int(dim.value) for dim in shape[:-1] if isinstance(dim, Const))
    return rows * rates.operation_ns < (F32.size_bytes - size_bytes) * rates.byte_ns
