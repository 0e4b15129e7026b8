"""What a kernel takes at least: its arithmetic at the processor's peak, its bytes from memory."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.graph.ir import Graph
from tilewright.graph.types import TensorType

TILE_FLOPS = {2: 2 * 16 * 16 * 32, 1: 2 * 16 * 16 * 64}  # of a tile multiply-add, by element bytes


def floor_ns(
    flops: int, size_bytes: int, element: DType | None, target: Target, threads: int
) -> float:
    """By the machine model, which may be wrong: a direction, not a bound."""
    machine = target.machine
    cores = min(threads, machine.cores)
    peak = _flops_per_cycle(element, target) * cores
    in_l2 = size_bytes <= machine.l2.size_bytes
    rate = machine.l2.bytes_per_cycle if in_l2 else machine.memory_bytes_per_cycle
    cycles = max(flops / peak, size_bytes / (rate * cores))
    return cycles * machine.cycle_ns


def _flops_per_cycle(element: DType | None, target: Target) -> float:
    machine = target.machine
    size = 4 if element is None else element.size_bytes
    features = target.features
    if size in TILE_FLOPS and "amx-tile" in features:
        return TILE_FLOPS[size] / machine.tile_cycles
    lanes = target.lanes(32)
    dots = 4 if size == 1 and {"dotprod", "avx512vnni", "avxvnni"} & set(features) else 1
    return 2.0 * machine.fma_per_cycle * lanes * dots


def element_of(graph: Graph) -> DType | None:
    """The shortest float or whole number that a kernel multiplies, as far as its inputs tell."""
    found = [
        value.tensor.dtype
        for value in graph.params
        if isinstance(value.type, TensorType) and len(value.tensor.shape or ()) > 1
    ]
    return min(found, key=lambda dtype: dtype.size_bytes, default=None)
