"""GEMM by Hopper's tensor cores: warp-specialized, bulk tensor copies (TMA) and `wgmma`.

    for tile in blockIdx.x { for group in threadIdx.y {
      clear; for ko [specialize = (slots, blocks)] { copy A, B; sums += A B^T }; epilogue } }

A producer warp issues bulk copies; consumer warpgroups multiply. Operands are contiguous along k
(16-bit A also along m, B along n), in rows of whole 16 bytes. Any other operand is repacked first,
a weight at compile time, where the GEMM is large enough. Tiles are `64 * groups` by `block_n`, with
`slots` of them in flight. Blocks are persistent, one wave of them, and load the next tile while
they store the last; `span` tiles along m precede the next column, so that B stays in L2.

Sizes that tiles do not divide are padded: copies fill with zeros, the epilogue masks its stores.
Where there are too few tiles, k is split: `split_k` parts are added by a further kernel, blocks of
a `cluster` exchange theirs in distributed shared memory, and "stream_k" splits the steps of all
tiles evenly over all blocks.

A convolution is an implicit GEMM: bulk copies read windows from the image, without im2col.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import Multiprocessor, multiprocessor_of
from tilewright.graph.rates import OPERATIONS
from tilewright.intrin import hopper
from tilewright.intrin.cluster import CLUSTER_SCOPE, MAX_BLOCKS, SUM_BYTES, keep_of, sum_of
from tilewright.intrin.hopper import WHOLE
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.gemm import splits
from tilewright.rules.gpu.parts import (
    ceildiv,
    contraction_of,
    depth_of,
    is_matrix,
    is_unit,
    padded,
    parts_along,
    spread_runs,
)
from tilewright.rules.match.contraction import Contraction, contraction, multiplies_tf32
from tilewright.rules.match.epilogue import epilogue_blocks
from tilewright.rules.match.nest import block_of, is_expression, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings
from tilewright.sym import Cast, Const
from tilewright.tensor.bulk_copies import ALIGN_BYTES, can_copy
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import CLUSTER_AXIS, Call, Load, Store
from tilewright.tensor.passes.fold_windows import windows_of
from tilewright.tensor.roles import SWIZZLED, consumer_registers
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs, output_buffers

FEATURE = "wgmma"
BLOCK_COLUMNS = (64, 256, 192, 128, 96, 32)  # candidates for the columns of a tile (n of a wgmma)
SLOTS = (4, 5, 6, 3, 2, 7, 8, 12)  # candidates for pipeline stages in shared memory
BOXES = (1, 2, 4)  # candidates for 128-byte boxes along k per slot
STREAM_K = "stream_k"
SPAN_TILES = (1, 16, 8, 4, 2)  # candidates for tiles along m before the next column


@dataclass(frozen=True)
class Plan:
    """The tile of a block, and the order of blocks."""

    groups: int  # consumer warpgroups, of 64 rows each
    block_n: int
    slots: int  # pipeline stages
    span: int  # tiles along m before the next column of tiles
    split_k: int = 1  # parts of k that a further kernel adds up
    boxes: int = 1  # boxes along k per slot, with one barrier for all of them
    cluster: int = 1  # blocks per cluster
    # The axis that a cluster splits: "k", or "m" or "n", whose blocks multicast B or A. Without
    # clusters, "stream_k" splits the steps of all tiles evenly over all blocks.
    along: str = "k"
    resident: int = 1  # blocks per multiprocessor, leaving room for the next kernel's
    pingpong: int = 0  # whether two consumers alternate: one stores while the other multiplies
    evict_first: int = 0  # whether B is evicted from L2 first, where one wave reads all of it

    @property
    def rows(self) -> int:
        return hopper.M * self.groups

    @property
    def parts(self) -> int:
        """Blocks of a cluster that split a tile's k."""
        return self.cluster if self.along == "k" else 1


@dataclass(frozen=True)
class Found:
    """A GEMM whose operands bulk copies can read, as they are or once repacked."""

    reference: BlockRef
    dtype: str
    batch: int  # independent GEMMs, with the outer axes of m
    m: int
    n: int
    k: int
    m_axis: int  # positions of the block's iterators
    n_axis: int
    k_axis: int
    a_index: int  # of the block's reads
    b_index: int
    turned: tuple[int, ...]  # the reads that are repacked with k contiguous
    along_n: bool  # B is [k, n], and read in place
    along_m: bool  # A is [k, m], and read in place
    is_open: bool  # m or batch is dynamic
    windows: str = ""  # the im2col block that makes A; copies read the image instead
    is_indexed: bool = False  # A is indexed by windows: the im2col block has to be made
    epilogue: int = 0  # epilogue operations per result
    stored_bytes: int = 0  # of operands that each call repacks
    stored_count: int = 0  # operands that each call repacks

    @property
    def depth(self) -> int:
        """Elements of k in a box."""
        return hopper.OPERANDS[self.dtype].columns


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    if not context.target.has(FEATURE):
        return None
    return found_in(sch, reference, context, takes_km=True)


def found_in(
    sch: Schedule, reference: BlockRef, context: RuleContext, *, takes_km: bool
) -> Found | None:
    """The GEMM C[m, n] = sum of A[m, k] B[n, k] that a block computes, in a type of the tensor
    cores, with static n and k. `takes_km` says whether the instructions can read A as [k, m]."""
    nest = nest_of(sch, reference)
    if nest is None or not nest.reduce or not is_expression(nest.block):
        return None
    found = contraction(nest)
    if found is None or not found.m or len(nest.reduce) != 1 or len(found.n) != 1:
        return None
    if nest.is_dynamic([*found.n, *found.k]):
        return None
    kind = found.a.buffer.dtype.name
    if kind != found.b.buffer.dtype.name or kind not in hopper.OPERANDS:
        return None
    operand = hopper.OPERANDS[kind]
    if kind == "f32" and not multiplies_tf32(nest.block):
        return None
    if nest.block.writes[0].buffer.dtype.name != operand.sums:
        return None
    m, (n,), (k,) = found.m[-1], found.n, found.k
    sizes = {at: nest.guess(at) for at in (m, n, k)}
    a_turned = is_matrix(found.a, nest.var(k), nest.var(m))
    is_indexed = not a_turned and not is_matrix(found.a, nest.var(m), nest.var(k))
    windows = "" if a_turned else _im2col_block(sch, reference, found, is_indexed)
    if is_indexed and not windows:
        return None
    if windows and sizes[k] * operand.bytes % hopper.ROW_BYTES:
        return None
    along_n = not is_matrix(found.b, nest.var(n), nest.var(k))
    if along_n and not is_matrix(found.b, nest.var(k), nest.var(n)):
        return None
    is_weight = found.b.buffer.rank == 2 and found.b.buffer.name in context.constants
    b_turned = along_n and (is_weight or not operand.is_half or not can_copy(found.b.buffer))
    # Tile rows of A are then k: with a shorter k, the rest of the tile would not be zero.
    along_m = a_turned and takes_km and operand.is_half and sizes[k] >= operand.columns
    along_m &= can_copy(found.a.buffer)
    a_turned &= not along_m
    whole = found.guess(tuple(nest.spatial))
    # Rows along k that bulk copies cannot read are repacked with padding.
    is_whole = sizes[k] * operand.bytes % ALIGN_BYTES == 0
    anew = [
        found.guess((*found.batch, *rows, *found.k)) * operand.bytes
        for load, rows, is_anew in (
            (found.a, found.m, a_turned or not (is_whole or along_m)),
            (found.b, found.n, b_turned or not (is_whole or along_n)),
        )
        if is_anew and load.buffer.name not in context.constants
    ]
    if anew and not _is_repacking_worthwhile(whole * sizes[k], sum(anew), len(anew), context):
        return None
    turned = [
        found.read_index(load)
        for load, is_turned in ((found.a, a_turned), (found.b, b_turned))
        if is_turned
    ]
    return Found(
        reference,
        kind,
        whole // (sizes[m] * sizes[n]),
        sizes[m],
        sizes[n],
        sizes[k],
        m,
        n,
        k,
        found.read_index(found.a),
        found.read_index(found.b),
        tuple(turned),
        along_n and not b_turned,
        along_m,
        nest.is_dynamic(list(nest.loops)),
        windows,
        is_indexed,
        sum(_operations(sch, each) for each in epilogue_blocks(sch, reference)),
        sum(anew),
        len(anew),
    )


def _is_repacking_worthwhile(
    products: int, size_bytes: int, count: int, context: RuleContext
) -> bool:
    """Whether repacking operands of so many bytes takes less time than multiplying without tensor
    cores."""
    sm = multiprocessor_of(context.target)
    return products > sm.fma_per_cycle * sm.count * _repack_cycles(size_bytes, count, sm)


def _repack_cycles(size_bytes: int, count: int, sm: Multiprocessor) -> float:
    """Cycles of the kernels that repack operands."""
    return count * sm.launch_cycles + 2 * size_bytes / sm.memory_bytes_per_cycle


def _operations(sch: Schedule, reference: BlockRef) -> int:
    """Operations per result of an epilogue's block."""
    nodes = exprs(block_of(sch.function, reference.name).body)
    made = [node for node in nodes if node.dtype.is_float and not isinstance(node, (Load, Const))]
    return sum(OPERATIONS.get(node.op, 1) if isinstance(node, Call) else 1 for node in made)


def _im2col_block(sch: Schedule, reference: BlockRef, found: Contraction, is_indexed: bool) -> str:
    """The im2col block whose rows are A; "" if there is none."""
    if is_indexed:
        sch = sch.copy()
        if not sch.attempt(sch.reindex_read, reference, found.read_index(found.a), "global"):
            return ""
    for producer in sch.get_producers(reference):
        made = windows_of(block_of(sch.function, producer.name), sch.function)
        if made is None or made.geometry.channels * made.image.dtype.size_bytes % hopper.ROW_BYTES:
            continue
        if is_indexed or made.rows is found.a.buffer:
            return producer.name
    return ""


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """Tiles that fit registers and shared memory."""
    sm = multiprocessor_of(context.target)

    def legal(c: Columns) -> Column:
        rows = hopper.M * c["groups"]
        # With fewer rows than a wgmma has, tiles of A are lower; the memory behind them is
        # reserved, in whole slots. Copies of windows always fill whole tiles.
        is_low = not (found.is_open or found.windows or found.along_m)
        low = -(-found.m // SWIZZLED) * SWIZZLED if is_low else 0
        stored = np.where((c["groups"] == 1) & (low > 0), np.minimum(rows, low), rows)
        behind = ceildiv(rows - stored, c["boxes"] * stored)
        slots = c["slots"] + behind
        ring = c["boxes"] * (slots * stored + c["slots"] * c["block_n"])
        kept = np.where(_parts(c) > 1, rows * c["block_n"] * SUM_BYTES, 0)
        each = sm.shared_bytes // c["resident"]
        fits = ring * hopper.ROW_BYTES + kept + hopper.BESIDE_BYTES <= each
        # Registers for accumulators and addresses.
        groups = c["groups"] * (1 + c["pingpong"])
        fits &= c["block_n"] // 2 + sm.operand_registers <= consumer_registers(
            groups, c["resident"]
        )
        whole = ceildiv(found.m, rows) % c["span"] == 0
        whole &= (c["span"] == 1) | (not found.is_open)
        step = found.depth * c["boxes"]
        parts = (c["split_k"] == 1) | (found.k % (c["split_k"] * step) == 0)
        if found.windows:  # k must not run beyond the last kernel position
            parts = found.k % (c["split_k"] * step) == 0
        boxes = ((c["block_n"] % found.depth == 0) & (c["boxes"] == 1)) | (not found.along_n)
        boxes &= (c["boxes"] == 1) | (not found.along_m)
        # Every box starts inside of a row.
        deep = ceildiv(found.k, found.depth) % (c["boxes"] * _parts(c)) == 0
        clustered = _clusters(found, c, sm)
        # Ping-pong overlaps stores with another tile, so blocks need several tiles.
        tiles = _tiles(found, c) * c["split_k"] // c["cluster"]
        taken = (c["groups"] == 1) & (_parts(c) == 1) & (c["along"] != STREAM_K) & (c["slots"] > 2)
        taken &= (found.m >= hopper.M) & (not found.is_open) & (tiles > sm.count // c["cluster"])
        result: Column = fits & whole & parts & boxes & deep & clustered
        result &= (c["pingpong"] == 0) | taken
        result &= (c["evict_first"] == 0) | _streams_b(found, c["groups"], c["span"])
        return result

    return Space(Plan, _candidates(found, sm), legal)


def _candidates(found: Found, sm: Multiprocessor) -> dict[str, Sequence[int | str]]:
    """The candidates of each field, without those that the sizes alone rule out."""
    # Beside producers, consumer warpgroups have half of a block's threads.
    several = doublings(sm.block_threads // hopper.THREADS // 2)
    heights = [ceildiv(found.m, hopper.M * groups) for groups in several]
    spans = [
        span for span in SPAN_TILES if not found.is_open and any(h % span == 0 for h in heights)
    ]
    boxes = ceildiv(found.k, found.depth)
    meets = not (found.is_open or found.windows)
    once = any(_streams_b(found, groups, span) for groups in several for span in spans)
    return {
        "groups": several,
        "block_n": BLOCK_COLUMNS,
        "slots": SLOTS,
        "span": spans or SPAN_TILES[:1],
        "split_k": [s for s in splits(sm) if s == 1 or found.k % (s * found.depth) == 0],
        "boxes": [at for at in BOXES if boxes % at == 0]
        if not (found.along_n or found.along_m)
        else BOXES[:1],
        "cluster": doublings(MAX_BLOCKS) if meets else (1,),
        "along": ("k", "m", "n", STREAM_K) if meets else ("k", STREAM_K),
        "resident": (1, 2),
        "pingpong": (0, 1) if found.m >= hopper.M and not found.is_open else (0,),
        "evict_first": (0, 1) if once else (0,),
    }


def _streams_b(found: Found, groups: Any, span: Any) -> Any:
    """Whether B, the larger operand, is read by concurrent blocks only and never again; takes
    numbers or columns."""
    streams = found.m < found.n and found.batch == 1 and not found.is_open
    return (ceildiv(found.m, hopper.M * groups) == span) & streams


def _parts(c: Columns) -> Column:
    """Blocks of a cluster that split k."""
    found: Column = np.where(c["along"] == "k", c["cluster"], 1)
    return found


def _clusters(found: Found, c: Columns, sm: Multiprocessor) -> Column:
    """Which plans have tiles that clusters can split along k, or share along m or n."""
    rows, count = hopper.M * c["groups"], c["cluster"]
    # Epilogue threads own contiguous runs in each part of a tile's columns.
    sums = (c["block_n"] % (count * WHOLE.multiple) == 0) & (c["split_k"] == 1)
    low = rows if found.is_open else np.minimum(rows, -(-found.m // SWIZZLED) * SWIZZLED)
    low = found.depth if found.along_m else low
    a_shared = (low % (count * SWIZZLED) == 0) & (ceildiv(found.n, c["block_n"]) % count == 0)
    columns = found.depth if found.along_n else np.minimum(c["block_n"], found.n)
    b_shared = (columns % (count * SWIZZLED) == 0) & (c["span"] % count == 0)
    along = c["along"]
    fits = np.where(along == "k", sums, np.where(along == "m", b_shared, a_shared))
    fits &= (not found.is_open) & (not found.windows) & (along != STREAM_K)
    result: Column = np.where(count == 1, (along == "k") | _stream_k(found, c, sm), fits)
    return result


def _stream_k(found: Found, c: Columns, sm: Multiprocessor) -> Column:
    """Which plans may split steps by stream-K: the last wave of tiles is partial, and blocks have
    more than one step."""
    tiles = _tiles(found, c)
    shares = (c["along"] == STREAM_K) & (c["split_k"] == 1) & (c["resident"] == 1)
    steps = ceildiv(found.k, found.depth * c["boxes"])
    shares &= (tiles % sm.count != 0) & (tiles * steps >= 2 * sm.count) & (not found.is_open)
    result: Column = shares
    return result


def _tiles(found: Found, c: Columns) -> Column:
    rows = hopper.M * c["groups"]
    tiles: Column = found.batch * ceildiv(found.m, rows) * ceildiv(found.n, c["block_n"])
    return tiles


def _sector_overhead(apart_bytes: int, unit_bytes: int) -> float:
    """Bytes that L2 reads in aligned units for a tile's row, relative to the row, on average over
    rows of this stride."""
    is_aligned = gcd(apart_bytes, unit_bytes) / unit_bytes
    return 1.0 + (1.0 - is_aligned) * unit_bytes / hopper.ROW_BYTES


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of tiles: tensor cores, tiles from L2, or operands from memory, whichever
    is largest; the last store; adding up the parts of k."""
    sm = multiprocessor_of(context.target)
    size = hopper.OPERANDS[found.dtype].bytes
    rows, split, cluster = hopper.M * c["groups"], c["split_k"], _parts(c)
    tiles = _tiles(found, c)
    depth = found.depth * c["boxes"]
    steps = ceildiv(found.k // split // cluster, depth)
    shares = c["along"] == STREAM_K
    blocks = np.where(shares, sm.count, tiles * split * cluster)
    waves = np.where(shares, tiles / sm.count, ceildiv(tiles * split, sm.count // cluster))
    # Between two slots a warpgroup waits; another one can use the tensor cores then.
    busy_units = rows * c["block_n"] * depth / sm.tensor_fma_per_cycle * (size / 2)
    # With ping-pong, one has them exclusively and issues the next slot's before the last finish.
    waits = np.where(c["pingpong"] > 0, 0, sm.wgmma_latency_cycles)
    per_step = np.maximum(busy_units, busy_units / c["groups"] / (1 + c["pingpong"]) + waits)
    # The padding is not loaded.
    tall, wide = np.minimum(rows, found.m), np.minimum(c["block_n"], found.n)
    slot = c["boxes"] * (tall + wide) * hopper.ROW_BYTES
    # The bandwidth into one multiprocessor, tiles that are multicast to it included.
    narrow = slot / sm.l2_bytes_per_cycle
    # The bandwidth out of L2: multicast tiles once, and whole units for unaligned rows.
    across = 2 * sm.sector_bytes  # L2's unit of transfer
    a_rows = tall * _sector_overhead((found.m if found.along_m else found.k) * size, across)
    a_rows = a_rows / np.where(c["along"] == "n", c["cluster"], 1)
    b_rows = wide * _sector_overhead((found.n if found.along_n else found.k) * size, across)
    b_rows = b_rows / np.where(c["along"] == "m", c["cluster"], 1)
    busy = np.minimum(blocks, sm.count)
    handed = c["boxes"] * (a_rows + b_rows) * hopper.ROW_BYTES * busy
    gain = np.where(c["evict_first"], sm.evict_first_gain, 1.0)
    narrow = np.maximum(narrow, handed / (sm.l2_bytes_per_cycle * sm.count)) / gain
    # Multicast waits until all blocks have freed the slot: hardly with two, more so with more.
    brings = c["cluster"] > cluster
    meets = np.where(brings, c["cluster"] // 2 - 1, 0) * sm.multicast_latency_cycles
    # One slot is in use while the others are filled; barriers between roles add latency.
    waiting = sm.slot_latency_cycles / (c["slots"] - 1)
    flying = busy * c["slots"] * slot
    rate = np.minimum(sm.memory_bytes_per_cycle, busy * sm.own_memory_bytes_per_cycle)
    rate = np.minimum(rate * gain, flying / sm.global_latency_cycles)
    operands = size * found.batch * found.m * found.k + size * found.n * found.k
    # Partial sums are written a quarter of a line at a time, as if twice, and read again.
    parts = (2.0 + 1.0) * SUM_BYTES * found.batch * found.m * found.n * split
    through_tiles = waves * steps * (np.maximum(np.maximum(per_step, narrow), waiting) + meets)
    brought = waves * steps * (narrow + meets)
    kept = SUM_BYTES * rows * c["block_n"] / sm.cluster_bytes_per_cycle
    # Stream-K: partial sums of a shared tile go through memory, after a flag, from each other
    # block.
    others = np.minimum(np.ceil(sm.count / tiles), steps)
    handed_on = (1 + others) * SUM_BYTES * rows * c["block_n"]
    given = sm.handover_cycles + handed_on / sm.l2_bytes_per_cycle
    # Stream-K blocks are at different steps of k, so they do not reuse each other's tiles in L2.
    alone = np.where(shares, waves, waves / c["span"])
    follows = 1.0 * rows * c["block_n"] * found.epilogue / sm.fma_per_cycle
    # When memory or L2 is the bottleneck, jitter stalls the tensor cores: less with more slots.
    late = sm.jitter_cycles * steps / c["slots"]
    return Cost.of(
        products=np.maximum(through_tiles, np.maximum(brought, operands / rate) + late),
        start=sm.global_latency_cycles,
        store=1.0 * rows * c["block_n"] / sm.stored_elements_per_cycle / cluster,
        exchange=np.where(cluster > 1, waves * (sm.cluster_latency_cycles + kept), 0.0)
        + np.where(shares, given, 0.0)
        + np.where(brings, sm.global_latency_cycles, 0.0),
        epilogue=np.where(c["pingpong"] > 0, 1.0, np.ceil(waves)) * follows / cluster,
        l2=alone * steps * c["boxes"] * sm.l2_step_cycles,
        split=np.where(split > 1, sm.launch_cycles + parts / sm.memory_bytes_per_cycle, 0.0),
        anew=_repack_cycles(found.stored_bytes, found.stored_count, sm),
    )


# ------------------------------------------------------------------------------------ schedule


@dataclass(frozen=True)
class Unit:
    """The intrinsics that copy and multiply tiles, and how they overlap."""

    copy_of: Callable[..., TensorIntrin]  # by type, rows and eviction policy
    dot_of: Callable[..., TensorIntrin]
    # By loop over k, plan and number of blocks.
    overlap: Callable[[Schedule, LoopRef, Plan, int], None]


def _specialize(sch: Schedule, ko: LoopRef, plan: Plan, blocks: int) -> None:
    sch.specialize(
        ko,
        plan.slots,
        blocks,
        resident=plan.resident,
        stream_k=plan.along == STREAM_K,
        pingpong=bool(plan.pingpong),
    )


HOPPER = Unit(hopper.load_of, hopper.dot_of, _specialize)


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    return schedule_gemm(sch, found, plan, context, HOPPER)


def schedule_gemm(
    sch: Schedule, found: Found, plan: Plan, context: RuleContext, unit: Unit
) -> tuple[BlockRef, ...]:
    """Schedule by a plan, with the epilogue fused where possible."""
    done: list[BlockRef] = []
    c = found.reference
    if found.is_indexed:
        done.append(sch.reindex_read(c, found.a_index, "global"))
    elif found.windows:
        done.append(sch.get_block(found.windows))
    for index in found.turned:
        done += _repack(sch, c, index, context)
    tiled = _tile_with_cluster_k if plan.cluster > 1 and plan.along == "k" else _tiled
    if plan.split_k > 1:
        k = sch.get_loops(c)[found.k_axis]
        part, _ = sch.split(k, [plan.split_k, found.k // plan.split_k])
        c = parts_along(sch, part)
        return (*done, *_tiled(sch, c, found, plan, context, unit, []))
    consumers = _epilogue_of(sch, c)
    if consumers:
        point = sch.checkpoint()
        try:
            return (*done, *tiled(sch, c, found, plan, context, unit, consumers))
        except ScheduleError:
            sch.restore(point)
    return (*done, *tiled(sch, c, found, plan, context, unit, []))


def _repack(sch: Schedule, c: BlockRef, index: int, context: RuleContext) -> list[BlockRef]:
    """Repack an operand with k contiguous: a weight at compile time, another by a kernel of its
    own, which is left to other rules."""
    source = block_of(sch.function, c.name).reads[index].buffer
    copy = sch.cache_read(c, index, "global")
    *outer, row, column = [f"d{at}" for at in range(source.rank)]
    before, after = (*outer, row, column), (*outer, column, row)
    sch.transform_layout(copy, ("write", 0), f"({', '.join(before)}) -> ({', '.join(after)})")
    return _as_constant(sch, copy, context)


def _as_constant(sch: Schedule, copy: BlockRef, context: RuleContext) -> list[BlockRef]:
    """Mark a repacking block as constant, if its operand is a weight; [] if other rules schedule
    it."""
    reads = block_of(sch.function, copy.name).reads
    if any(read.buffer.name not in context.constants for read in reads):
        return []
    sch.annotate(copy, CONSTANT, True)
    return [copy]


def _tile_with_cluster_k(
    sch: Schedule,
    c: BlockRef,
    found: Found,
    plan: Plan,
    context: RuleContext,
    unit: Unit,
    consumers: list[BlockRef],
) -> list[BlockRef]:
    """Split k over the blocks of a cluster: each keeps its partial sums in distributed shared
    memory, then finishes some of the columns."""
    sums, share = hopper.OPERANDS[found.dtype].sums, plan.block_n // plan.cluster
    stores, done, is_exact = _pad_to_tiles(sch, c, found, plan, consumers, context)
    k = sch.get_loops(c)[contraction_of(sch, c).k[-1]]
    partial = parts_along(sch, sch.split(k, [plan.cluster, None])[0])
    operands = contraction_of(sch, partial)
    reads = operands.read_index(operands.a), operands.read_index(operands.b)
    copies, kind = _sums_to_memory(sch, c, found, stores, is_exact=is_exact)
    *outer, m, n, parts = sch.get_loops(c)
    far, near, group, ii = sch.split(m, [None, plan.span, plan.groups, hopper.M])
    column, piece, jj = sch.split(n, [None, plan.cluster, share])
    once, parts = sch.split(parts, [1, None])
    sch.reorder(*outer, far, column, near, piece, group, once, ii, jj, parts)
    tile = sch.fuse(*outer, far, column, near)
    sch.compute_at(partial, tile)
    kept = sch.cache_write(partial, 0, hopper.SUM_SCOPE)
    sch.set_scope(kept, 0, CLUSTER_SCOPE)
    _, part, *units, m, n, k = sch.get_loops(partial)
    among, ii = sch.split(m, [plan.groups, hopper.M])
    sch.reorder(part, *units, among, ii, n, k)
    sch.reverse_compute_at(kept, among)
    sch.tensorize(sch.get_loops(kept)[-2], keep_of(sums, plan.block_n))
    _store(sch, copies, stores, group, kind, share)
    start = sch.decompose_reduction(c, once)
    gathered = sum_of(sums, plan.cluster, share)
    sch.tensorize(sch.get_loops(c)[-3], gathered)
    sch.tensorize(sch.get_loops(start)[-2], gathered)
    sch.bind(tile, "blockIdx.x")
    for rank, warpgroup in ((part, among), (piece, group)):
        sch.bind(rank, CLUSTER_AXIS)
        sch.bind(warpgroup, "threadIdx.y")
    made = _pipeline_tile(sch, partial, reads, found, plan, context, unit)
    return [*done, c, start, partial, kept, *made, *copies, *stores]


def _epilogue_of(sch: Schedule, c: BlockRef) -> list[BlockRef]:
    """The elementwise consumers of the sums, chains of them inlined into one."""
    outputs = output_buffers(sch.function)
    made = block_of(sch.function, c.name).writes[0].buffer
    found = [] if made in outputs else epilogue_blocks(sch, c)
    while len(found) == 1:
        point = sch.checkpoint()
        result = block_of(sch.function, found[0].name).writes[0].buffer
        later = [] if result in outputs else epilogue_blocks(sch, found[0])
        if not later or not sch.attempt(sch.compute_inline, found[0]):
            return found
        after = epilogue_blocks(sch, c)
        if not after:
            sch.restore(point)
            return found
        found = after
    return found


def _tiled(
    sch: Schedule,
    c: BlockRef,
    found: Found,
    plan: Plan,
    context: RuleContext,
    unit: Unit,
    consumers: list[BlockRef],
) -> list[BlockRef]:
    stores, done, is_exact = _pad_to_tiles(sch, c, found, plan, consumers, context)
    operands = contraction_of(sch, c)
    m, n, k = operands.m[-1], operands.n[-1], operands.k[-1]
    reads = operands.read_index(operands.a), operands.read_index(operands.b)
    copies, kind = _sums_to_memory(sch, c, found, stores, is_exact=is_exact)
    loops = sch.get_loops(c)
    outer = [loop for at, loop in enumerate(loops) if at not in (m, n, k)]
    units = [loop for loop in outer if is_unit(sch, loop)]
    outer = [loop for loop in outer if loop not in units]
    beside = {axis: plan.cluster if plan.along == axis else 1 for axis in "mn"}
    span = plan.span // beside["m"]
    far, near, below, group, ii = sch.split(
        loops[m], [None, span, beside["m"], plan.groups, hopper.M]
    )
    column, right, jj = sch.split(loops[n], [None, beside["n"], plan.block_n])
    sch.reorder(*units, *outer, far, column, near, below, right, group, ii, jj, loops[k])
    _store(sch, copies, stores, group, kind, plan.block_n)
    sch.bind(group, "threadIdx.y")
    made = _pipeline_tile(sch, c, reads, found, plan, context, unit)
    rank = sch.fuse(below, right)
    if plan.cluster > 1:
        sch.bind(rank, CLUSTER_AXIS)
    sch.bind(sch.fuse(*outer, far, column, near), "blockIdx.x")
    return [*done, c, *made, *copies, *stores]


def _pad_to_tiles(
    sch: Schedule,
    c: BlockRef,
    found: Found,
    plan: Plan,
    consumers: list[BlockRef],
    context: RuleContext,
) -> tuple[list[BlockRef], list[BlockRef], bool]:
    """Pad sizes to whole tiles. Returns the blocks that store results, those that pad operands, and
    whether no padding was needed."""
    operands = contraction_of(sch, c)
    m, n, k = operands.m[-1], operands.n[-1], operands.k[-1]
    tiles = {m: plan.rows, n: plan.block_n, k: found.depth * plan.boxes * plan.parts}
    nest = operands.nest
    if not any(nest.is_dynamic([at]) or nest.guess(at) % by for at, by in tiles.items()):
        return consumers, [], True
    copies, stores = padded(sch, c, tiles, consumers)
    done = []
    for copy in copies:
        done += _pad_operand(sch, copy, context)
    return stores, done, False


def _pad_operand(sch: Schedule, copy: BlockRef, context: RuleContext) -> list[BlockRef]:
    """The block that pads an operand, if it needs no schedule: bulk copies pad by themselves, where
    they can read its rows."""
    source = block_of(sch.function, copy.name).reads[0].buffer
    if can_copy(source):
        return [copy]
    for producer in sch.get_producers(copy):  # one copy is enough
        sch.compute_inline(producer)
    return _as_constant(sch, copy, context)


def _sums_to_memory(
    sch: Schedule, c: BlockRef, found: Found, stores: list[BlockRef], *, is_exact: bool
) -> tuple[list[BlockRef], str | None]:
    """The blocks that move sums out of registers, and the type they store; None where the epilogue
    stores."""
    rounded = _cast_only_type(sch, stores, c) if is_exact else None
    if rounded is not None:
        sch.set_scope(c, 0, hopper.SUM_SCOPE)
        return stores, rounded
    copies = [sch.cache_write(c, 0, hopper.SUM_SCOPE)]
    if not stores:
        return copies, hopper.OPERANDS[found.dtype].sums
    sch.set_scope(copies[0], 0, hopper.WIDE_SCOPE)
    return copies, None


def _store(
    sch: Schedule,
    copies: list[BlockRef],
    stores: list[BlockRef],
    group: LoopRef,
    kind: str | None,
    width: int,
) -> None:
    """Store the accumulators of a warpgroup, `width` columns wide."""
    sums = block_of(sch.function, copies[0].name).reads[0].buffer.dtype.name
    sch.reverse_compute_at(copies[0], group)
    for store in stores if kind is None else ():
        sch.reverse_compute_at(store, group)
        _rows_inside(sch, store, group)
        spread_runs(sch, store)
    instruction = hopper.rows_of(width, sums) if kind is None else hopper.store_of(kind, width)
    sch.tensorize(sch.get_loops(copies[0])[-2], instruction)


def _rows_inside(sch: Schedule, store: BlockRef, group: LoopRef) -> None:
    """Loops of one iteration go outside of a tile's: of a transposed result, a batch may be between
    rows and columns."""
    *others, column = sch.get_loops(store)[depth_of(sch, store, group) :]
    rows = [loop for loop in others if not is_unit(sch, loop)]
    if len(rows) == 1 and is_unit(sch, others[-1]):
        sch.reorder(*[loop for loop in others if loop is not rows[0]], rows[0], column)


def _pipeline_tile(
    sch: Schedule,
    c: BlockRef,
    reads: tuple[int, int],
    found: Found,
    plan: Plan,
    context: RuleContext,
    unit: Unit,
) -> list[BlockRef]:
    """The innermost loops, over a tile and k: pipelined copies and multiplications."""
    depth = found.depth
    a, b = (sch.cache_read(c, index, hopper.TILE_SCOPE) for index in reads)
    *_, ii, jj, k = sch.get_loops(c)
    ko, box, ki = sch.split(k, [None, plan.boxes, depth])
    sch.reorder(ko, box, ii, jj, ki)
    sch.compute_at(a, ko)
    sch.compute_at(b, ko)
    start = sch.decompose_reduction(c, ko)
    for copy, is_turned in ((a, found.along_m), (b, found.along_n)):
        if is_turned or plan.boxes > 1:
            _in_boxes(sch, copy, depth)
    sch.unroll(box)
    form = {"along_m": True} if found.along_m else {}
    product = unit.dot_of(found.dtype, plan.block_n, along_n=found.along_n, **form)
    sch.tensorize(sch.get_loops(c)[-3], product)
    sch.tensorize(sch.get_loops(start)[-2], product)
    height = depth if found.along_m else plan.rows
    columns = depth if found.along_n else plan.block_n
    once = {"evict_first": True} if plan.evict_first else {}
    for copy, rows, apart, policy in ((a, height, "n", {}), (b, columns, "m", once)):
        copied = hopper.multicast_of if plan.along == apart else unit.copy_of
        sch.tensorize(sch.get_loops(copy)[-2], copied(found.dtype, rows, **policy))
    tiles = ceildiv(found.m, plan.rows) * ceildiv(found.n, plan.block_n)
    tiles = tiles * found.batch * plan.split_k * plan.parts // plan.cluster
    count = multiprocessor_of(context.target).count // plan.cluster
    stay = found.is_open or plan.along == STREAM_K
    unit.overlap(sch, ko, plan, count if stay else min(tiles, count))
    return [start, a, b]


def _in_boxes(sch: Schedule, b: BlockRef, width: int) -> None:
    """Lay a tile out as consecutive boxes of a swizzled row's width."""
    *_, row, column = sch.get_loops(b)
    box, inner = sch.split(column, [None, width])
    sch.reorder(box, row, inner)
    rank = block_of(sch.function, b.name).writes[0].buffer.rank
    *outer, k, n = [f"d{at}" for at in range(rank)]
    inside = ", ".join((*outer, f"{n} // {width}", k, f"{n} % {width}"))
    sch.transform_layout(b, ("write", 0), f"({', '.join((*outer, k, n))}) -> ({inside})")


def _cast_only_type(sch: Schedule, stores: list[BlockRef], c: BlockRef) -> str | None:
    """The type of the results, if the epilogue is a cast only."""
    if len(stores) != 1:
        return None
    made = block_of(sch.function, c.name).writes[0].buffer
    body = block_of(sch.function, stores[0].name).body
    if not isinstance(body, Store) or not isinstance(body.value, Cast):
        return None
    (value,) = body.value.children()
    plain = isinstance(value, Load) and value.buffer is made and value.index == body.index
    return body.buffer.dtype.name if plain and body.buffer.dtype.name in hopper.HALVES else None


GEMM_HOPPER = Rule("gemm_hopper", Plan, match, plans, cost, apply)
