"""How a convolution is cut: pixels and channels in registers, rows and channels in caches.

    for chunk                   channels whose weights fit into the second cache
      for n, block              rows of the image: what is read of it stays in the second cache
        for panel, tile         (or tiles outside) one tile of registers at a time
          for taps, c           pixels x vectors multiply-adds

The estimate counts cycles: of a step of the sum in a tile (multiply-adds, loads, latency, weights
that come from the second cache), and of what a tile costs besides its sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tilewright.base.machine import Cache
from tilewright.base.target import Target
from tilewright.rules.cpu.gemm_model import same_set_rows, step_cycles, unrolled_steps
from tilewright.rules.match.windows import Convolution
from tilewright.sym import Const

UNKNOWN_PLACES = 56  # of an image whose size is not known
FEW_PIXELS = 8  # with fewer in a tile, weights had better come from the first cache
SLOW_PIXELS = 2.5  # how many times longer those take that may not exist
SIDE_BY_SIDE = 1.05  # how much dearer sums side by side are than they seem
UNROLLED = 32  # multiply-adds in a tile's body, at most
AHEAD = 32  # steps of the sum that such weights are asked for


@dataclass(frozen=True, slots=True)
class Problem:
    """What the estimate knows of a convolution; sizes not known are guessed."""

    batch: int
    places: tuple[int, ...]  # of the result, per axis
    vectors: int  # of output channels, of one group
    depth: int  # steps of the sum
    side: int  # terms of a step, side by side in a vector
    open: tuple[bool, ...]  # per axis, whether its size is guessed
    whole: bool  # whether tiles must divide the channels, as those of a group must


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided."""

    lanes: int
    side: int  # terms of a step, side by side in a vector: it has lanes // side channels
    vectors: int  # of a tile
    pixels: tuple[int, ...]  # of a tile: batch, then places
    panels: int  # panels of channels in a chunk
    rows: int  # tiles along the first spatial axis in a block
    panel_outside: bool  # panels outside of tiles: their weights stay in the first cache
    chunked: bool  # several chunks
    steps: int  # of the sum over channels that are unrolled
    parallel: bool
    ahead: int  # steps that weights are asked for; 0: those of the next chunk are
    skew: int  # bytes of which no multiple shall lie between neighbouring pixels; 0: any may

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return self.vectors * self.channels

    @property
    def channels(self) -> int:
        """Channels of a vector."""
        return self.lanes // self.side


def plan_of(conv: Convolution, target: Target, threads: int) -> Plan | None:
    """The decisions for a convolution; None where tiles do not serve."""
    of = conv.nest.block.writes[0].buffer.dtype
    lanes = target.lanes(of.bits)
    channels = conv.out_channels_per_group or conv.size(conv.out_channels)
    if lanes < 2 or channels is None or conv.depth is None:
        return None
    if conv.out_channels_per_group:
        lanes = _divisor(channels, lanes)
    places = tuple(conv.size(at) or UNKNOWN_PLACES for at in conv.out_spatial)
    guessed = tuple(conv.size(at) is None for at in conv.out_spatial)
    whole = conv.out_channels_per_group > 0
    problems = [
        Problem(
            conv.size(conv.batch) or 1,
            places,
            -(-channels * side // lanes),
            conv.depth // side,
            side,
            guessed,
            whole,
        )
        for side in _sides(conv, channels, lanes)
    ]
    problem = min(problems, key=lambda each: _least_cycles(each, target, of.size_bytes))
    vectors, pixels = tile_of(problem, target, of.size_bytes)
    once = _is_once(problem, pixels, target)
    groups = (conv.size(conv.out_channels) or channels) // channels
    cycles = groups * _cycles(problem, (vectors, pixels), target, of.size_bytes)
    workers = threads if cycles > 2 * target.machine.wake_cycles else 1
    panel_bytes = problem.depth * vectors * lanes * of.size_bytes
    panels = -(-problem.vectors // vectors)
    most = max(1, target.l2_bytes // 2 // panel_bytes)
    chunked = most < panels
    weights, image = panels * panel_bytes, _image_bytes(conv)
    if weights > max(target.l2_bytes // 8, image // 2) and image < target.l2_bytes // 2:
        # The image stays in the cache; weights come by once, and while they do there is time to
        # ask for the next ones.
        chunked, most = panels > 1, 1
    in_chunk = even(panels, most, workers, groups) if chunked else panels
    if conv.out_channels_per_group:
        in_chunk = _divisor(panels, in_chunk)
    stack = problem.batch * groups * -(-panels // in_chunk)
    return Plan(
        lanes,
        problem.side,
        vectors,
        pixels,
        in_chunk,
        _rows(conv, pixels, target, workers, stack, of.size_bytes),
        panel_bytes <= target.l1d_bytes * 5 // 8 and math.prod(pixels) < FEW_PIXELS,
        chunked,
        unrolled_steps(
            (conv.size(conv.in_channels) or 1) // problem.side, vectors * math.prod(pixels)
        ),
        threads > 1 and cycles > 2 * target.machine.wake_cycles,
        AHEAD if once else 0,
        _crowd_bytes(conv, pixels, target.machine.l1d),
    )


def _least_cycles(problem: Problem, target: Target, item: int) -> float:
    """Of the best tile; what is not worth it is not summed side by side."""
    cycles = _cycles(problem, tile_of(problem, target, item), target, item)
    return cycles * (1 if problem.side == 1 else SIDE_BY_SIDE)


def _sides(conv: Convolution, channels: int, lanes: int) -> tuple[int, ...]:
    """How many terms of a sum may lie side by side in a vector, to be added up in the end.

    Two do where channels alone leave half of the last vector empty.
    """
    kinds = {load.buffer.dtype for load in (conv.x, conv.w)}
    is_plain = kinds == {conv.nest.block.writes[0].buffer.dtype} and not conv.out_channels_per_group
    is_even = (conv.size(conv.in_channels) or 1) % 2 == 0
    return (1, 2) if is_plain and is_even and 0 < channels % lanes <= lanes // 2 else (1,)


def _is_once(problem: Problem, pixels: tuple[int, ...], target: Target) -> bool:
    """Whether weights come from beyond the second cache, and one tile has all pixels."""
    whole = pixels == (problem.batch, *problem.places) and not any(problem.open)
    return whole and _weights_bytes(problem, target) > target.l2_bytes


def _weights_bytes(problem: Problem, target: Target) -> int:
    return problem.depth * problem.vectors * target.vector_bits // 8


def _crowd_bytes(conv: Convolution, pixels: tuple[int, ...], l1d: Cache) -> int:
    """What divides the distance between pixels, if too many of a tile fall into the same sets."""
    channels = conv.x.buffer.shape[-1]
    if not isinstance(channels, Const):
        return 0
    pixel_bytes = int(channels.value) * conv.x.buffer.dtype.size_bytes
    shared = math.gcd(pixel_bytes * conv.strides[-1], l1d.period_bytes)
    is_crowded = math.prod(pixels) * shared > same_set_rows(l1d) * l1d.period_bytes
    return math.gcd(pixel_bytes, l1d.period_bytes) if is_crowded else 0


def _image_bytes(conv: Convolution) -> int:
    """What is read of one image."""
    total = (conv.size(conv.in_channels) or 1) * conv.x.buffer.dtype.size_bytes
    for place, stride in zip(conv.out_spatial, conv.strides, strict=True):
        total *= (conv.size(place) or UNKNOWN_PLACES) * stride
    return total


def even(total: int, most: int, workers: int, stack: int = 1) -> int:
    """Parts of a total, none larger than `most`: large, but so that workers finish together."""
    best: tuple[float, int] | None = None
    for size in range(max(1, min(most, total)), 0, -1):
        rounds = -(-stack * -(-total // size) // workers) * size
        if best is None or rounds < 0.97 * best[0]:
            best = rounds, size
    assert best is not None
    return best[1]


def _divisor(total: int, most: int) -> int:
    """The largest divisor that is not above a number."""
    return next(n for n in range(min(total, most), 0, -1) if total % n == 0)


# ------------------------------------------------------------------------------------ tiles


@cache
def tile_of(problem: Problem, target: Target, item: int) -> tuple[int, tuple[int, ...]]:
    """Vectors of channels and pixels that take the fewest cycles."""
    best: tuple[float, tuple[int, tuple[int, ...]]] | None = None
    for tile in _candidates(problem, target.vector_registers):
        cost = _cycles(problem, tile, target, item)
        # Between equals: tiles that leave nothing over, since every tail is code of its own.
        dims = (problem.batch, *problem.places)
        tails = sum(size % part > 0 for size, part in zip(dims, tile[1], strict=True))
        cost *= 1 + 0.01 * tails + 0.01 * (problem.vectors % tile[0] > 0)
        if best is None or cost < best[0]:
            best = cost, tile
    assert best is not None
    return best[1]


def _candidates(problem: Problem, registers: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Tiles whose accumulators, a row of weights and one number fit into the registers."""
    for vectors in range(1, min(problem.vectors, 8) + 1):
        if problem.whole and problem.vectors % vectors:
            continue
        most = max(1, (registers - vectors - 1) // vectors)
        for pixels in _shapes(problem, min(most, UNROLLED // vectors)):
            yield vectors, pixels


def _shapes(problem: Problem, most: int) -> Iterator[tuple[int, ...]]:
    """Boxes of up to `most` pixels: along the last axis, and along others once it is full.

    An axis whose size is guessed may leave much over; then the one before serves as well.
    """
    dims = (problem.batch, *problem.places)
    if problem.open[-1]:
        tall = dims[-2] if len(dims) > 2 and not problem.open[-2] else 1
        for size in range(1, most + 1):
            for rows in range(1, min(tall, most // size) + 1):
                yield ((1,) * (len(dims) - 2)) + (rows, size)
        return
    full: tuple[int, ...] = ()
    for axis in reversed(range(len(dims))):
        room = most // math.prod(full)
        for size in range(1, min(room, dims[axis]) + 1):
            yield ((1,) * axis) + (size, *full)
        if dims[axis] > room or (axis > 0 and problem.open[axis - 1]):
            return
        full = (dims[axis], *full)


def _pieces(total: int, size: int) -> list[tuple[int, int]]:
    """What a dimension is cut into: (how many, how large)."""
    return [(n, s) for n, s in ((total // size, size), (1, total % size)) if n and s]


def _cycles(
    problem: Problem, tile: tuple[int, tuple[int, ...]], target: Target, item: int
) -> float:
    """Of all tiles."""
    vectors, pixels = tile
    machine = target.machine
    streamed = problem.depth * vectors * target.vector_bits // 8 > target.l1d_bytes * 5 // 8
    pieces = [(1, 1)]
    for total, size in zip((problem.batch, *problem.places), pixels, strict=True):
        pieces = [(n * m, s * t) for n, s in pieces for m, t in _pieces(total, size)]
    share = 1.0  # what is left over of a guessed size is slow: each pixel asks if it exists
    for guessed, size in zip(problem.open, pixels[1:], strict=True):
        share += guessed * SLOW_PIXELS * (size - 1) / 2 / UNKNOWN_PLACES
    cost = 0.0
    for count_v, v in _pieces(problem.vectors, vectors):
        for count_p, p in pieces:
            step = float(step_cycles(p, v, machine))
            if streamed:
                step = max(step, v * target.vector_bits / 8 / machine.l2.bytes_per_cycle)
            step += 0.25  # of the loop
            cost += count_v * count_p * (problem.depth * step + 2 * problem.side * p * v + 20)
    weights = _weights_bytes(problem, target)
    if weights > target.l2_bytes:
        once = _is_once(problem, pixels, target)
        once_rate, again_rate = machine.memory_bytes_per_cycle, machine.scattered_bytes_per_cycle
        cost = max(cost, weights / (once_rate if once else again_rate))
    return cost * share


# ------------------------------------------------------------------------------------ rows


def _rows(
    conv: Convolution,
    pixels: tuple[int, ...],
    target: Target,
    workers: int,
    stack: int,
    item: int,
) -> int:
    """Tiles along the first spatial axis in a block.

    Rows at its borders are padded, and come from memory, once more for the next block: few large
    blocks. But what a block reads shall stay in the second cache, and threads need some blocks.
    """
    total = conv.size(conv.out_spatial[0]) or UNKNOWN_PLACES
    row_bytes = (conv.size(conv.in_channels) or 1) * item
    for place, stride in zip(conv.out_spatial[1:], conv.strides[1:], strict=True):
        row_bytes *= (conv.size(place) or UNKNOWN_PLACES) * stride
    reach = ((conv.size(conv.kernel_spatial[0]) or 1) - 1) * conv.dilations[0] + 1
    room = target.l2_bytes // 4 // max(1, row_bytes)
    most = max(1, (room - reach) // (pixels[1] * conv.strides[0]) + 1)
    tiles = -(-total // pixels[1])
    if workers > 1:  # some blocks more than workers, for those that are held up
        most = min(most, max(1, tiles * stack // (2 * workers)))
    return even(tiles, most, workers, stack)
