"""Roofline: the least time of a kernel by peak arithmetic and by bandwidth."""

from __future__ import annotations

from tilewright.base.dtype import DType
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.target import CUDA, Target
from tilewright.base.tiles import COLUMNS, ROWS, tile_product
from tilewright.graph.ir import Graph
from tilewright.graph.types import TensorType

DOTS = ("dotprod", "avx512vnni", "avxvnni")  # features with dot products of four bytes


def floor_ns(
    flops: int,
    size_bytes: int,
    element: DType | None,
    target: Target,
    threads: int,
    *,
    tiles: bool = True,
) -> float:
    """The roofline time by the machine model. A guide, not a strict bound: the model may be wrong.

    `tiles=False` disregards matrix units (AMX).
    """
    machine = target.machine
    if target.kind == CUDA:
        return _gpu_cycles(flops, size_bytes, element, target) * machine.cycle_ns
    cores = min(threads, machine.cores)
    peak = _flops_per_cycle(element, target, tiles) * cores
    in_l2 = size_bytes <= machine.l2.size_bytes
    rate = machine.l2.bytes_per_cycle if in_l2 else machine.memory_bytes_per_cycle
    cycles = max(flops / peak, size_bytes / (rate * cores))
    return cycles * machine.cycle_ns


def _gpu_cycles(flops: int, size_bytes: int, element: DType | None, target: Target) -> float:
    """Roofline cycles on a GPU; elements below 4 bytes are multiplied by tensor cores."""
    gpu = multiprocessor_of(target)
    is_short = element is not None and element.size_bytes < 4 and target.has("mma")
    peak = 2 * gpu.count * (gpu.tensor_fma_per_cycle if is_short else gpu.fma_per_cycle)
    in_l2 = size_bytes <= target.machine.l2.size_bytes
    rate = gpu.count * gpu.l2_bytes_per_cycle if in_l2 else gpu.memory_bytes_per_cycle
    return max(flops / peak, size_bytes / rate)


def _flops_per_cycle(element: DType | None, target: Target, tiles: bool) -> float:
    machine = target.machine
    name = "f32" if element is None else str(element)
    product = tile_product(target, name, "i8" if name == "u8" else name)
    if tiles and product is not None:
        return 2 * ROWS * COLUMNS * product.depth / machine.tile_cycles
    is_byte = element is not None and element.size_bytes == 1
    dots = 4 if is_byte and any(target.has(each) for each in DOTS) else 1
    return 2.0 * machine.fma_per_cycle * target.lanes(32) * dots


def element_of(graph: Graph) -> DType | None:
    """The narrowest element type among operands of rank 2 or more: what the kernel presumably
    multiplies."""
    found = [
        value.tensor.dtype
        for value in graph.params
        if isinstance(value.type, TensorType) and len(value.tensor.shape or ()) > 1
    ]
    return min(found, key=lambda dtype: dtype.size_bytes, default=None)
