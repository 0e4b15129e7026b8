"""Attention by Hopper's tensor cores (FlashAttention): K and V stream, scores stay in registers.

    for tile of queries in blockIdx.x { for group in threadIdx.y {
      copy Q; reset; for keys [specialize = (slots, 0)] { copy K, V; S = Q K^T; mask S; attend }
      values over their sums } }

Each warpgroup takes 64 queries; the groups of a block share the K and V tiles that a producer warp
copies. `attend` is a step of the reduction `online_softmax` over a tile of keys: exponentials of
scores are the left operand of the product with V, from registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.base.errors import ScheduleError
from tilewright.base.multiprocessor import (
    KEY_PARTS,
    STREAMED_KEYS,
    WORD_BYTES,
    multiprocessor_of,
)
from tilewright.intrin import hopper
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.parts import ceildiv, contraction_of, spread_runs
from tilewright.rules.gpu.threads import bind_flat, units_first
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import assumed, block_of, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings
from tilewright.sym import Expr, Lt, Select
from tilewright.tensor.ir import REDUCE, Block, Buffer, Load, Store, Update
from tilewright.tensor.passes.fold_padding import padding_of
from tilewright.tensor.passes.stagger_attention import LEAST_SLOTS
from tilewright.tensor.roles import consumer_registers
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import output_buffers

FEATURE, REDUCER = "wgmma", "online_softmax"
STATE = (hopper.ROW_SCOPE, hopper.ROW_SCOPE, hopper.SUM_SCOPE)  # of a row: maximum, sum, values
KEYS = (STREAMED_KEYS, STREAMED_KEYS // 2)  # candidates for keys per step
SLOTS = (2, 3, 4)  # candidates for pipeline stages: K and V tiles in shared memory
# Plans for long sequences lose little on short ones, but not vice versa.
DYNAMIC_POSITIONS = 16 * STREAMED_KEYS  # assumed queries or keys, of an unbounded length


@dataclass(frozen=True)
class Plan:
    """The tile of queries, the keys per step, and how blocks cover them."""

    groups: int
    keys: int
    slots: int
    stays: int = 0  # whether blocks are persistent: one per multiprocessor, tile after tile
    queries: int = 1  # Q tiles in shared memory: 2 loads the next one while one is in use
    resident: int = 1  # blocks per multiprocessor
    splits: int = 1  # blocks that split the keys of a tile (as in FlashDecoding)


@dataclass(frozen=True)
class Found:
    """The blocks of attention, and its sizes."""

    scores: BlockRef  # masks Q K^T
    products: BlockRef
    values: BlockRef  # the reduction over keys
    result: BlockRef
    dtype: str
    batch: int  # times heads
    rows: int  # queries, padded to whole tiles
    results: int  # queries without padding
    keys: int  # without padding
    features: int
    steps: tuple[int, ...]  # candidates for keys per step
    parts: tuple[int, ...]  # candidates for splits, with equal steps each
    is_open: bool  # the number of sequences, heads or queries is dynamic


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A reduction `online_softmax` over scores and values, a GEMM under the scores, one result."""
    body = block_of(sch.function, reference.name).body
    if not context.target.has(FEATURE) or not isinstance(body, Update):
        return None
    nest = nest_of(sch, reference)
    if body.reducer.name != REDUCER or nest is None:
        return None
    score, *_ = body.values
    results = sch.get_consumers(reference)
    if not isinstance(score, Load) or len(results) != 1 or len(nest.loops) != 5:
        return None
    scores = _maker(sch, reference, score.buffer)
    products = None if scores is None else _gemm_of_scores(sch, scores)
    if scores is None or products is None:
        return None
    batch_at, heads_at, rows_at, features_at, keys_at = range(len(nest.loops))
    batch, heads, features = (nest.guess(at) for at in (batch_at, heads_at, features_at))
    rows = nest.assumed(rows_at, DYNAMIC_POSITIONS)
    kind = products.a.buffer.dtype.name
    read = {region.buffer.dtype.name for region in nest.block.reads}
    if kind not in hopper.HALVES or kind not in read or products.b.buffer.dtype.name != kind:
        return None
    made = BlockRef(products.nest.name)
    results_of, keys_of = (
        assumed(_unpadded_extent(sch, made, load, nest.extent(at)), DYNAMIC_POSITIONS, nest.likely)
        for load, at in ((products.a, rows_at), (products.b, keys_at))
    )
    whole = nest.extent(keys_at)
    return Found(
        scores,
        made,
        reference,
        results[0],
        kind,
        batch * heads,
        rows,
        results_of,
        keys_of,
        features,
        tuple([keys for keys in KEYS if _divides(keys, whole)]),
        tuple([n for n in doublings(KEY_PARTS) if n == 1 or _divides(n * KEYS[0], whole)]),
        nest.is_dynamic(nest.spatial),
    )


def _divides(by: int, extent: Expr) -> bool:
    return sym.prove(sym.eq(sym.floormod(extent, by), 0))


def _unpadded_extent(sch: Schedule, product: BlockRef, load: Load, whole: Expr) -> Expr:
    """The rows of an operand before padding to tiles."""
    maker = _maker(sch, product, load.buffer)
    block = None if maker is None else block_of(sch.function, maker.name)
    if block is None or not isinstance(block.body, Store):
        return whole
    if isinstance(block.body.value, Select):
        condition, *_ = block.body.value.children()
        for part in sym.conjuncts(condition):
            if isinstance(part, Lt) and part.a is block.body.index[2]:
                return part.b
    return whole


def _maker(sch: Schedule, reference: BlockRef, buffer: Buffer) -> BlockRef | None:
    """The producer of a buffer that a block reads."""
    for producer in sch.get_producers(reference):
        if block_of(sch.function, producer.name).writes[0].buffer is buffer:
            return producer
    return None


def _gemm_of_scores(sch: Schedule, scores: BlockRef) -> Contraction | None:
    """The GEMM that computes the scores."""
    for producer in sch.get_producers(scores):
        nest = nest_of(sch, producer)
        found = contraction(nest) if nest is not None and nest.reduce else None
        if found is not None:
            return found
    return None


def plans(found: Found, context: RuleContext) -> Space[Plan] | None:
    sm = multiprocessor_of(context.target)
    width = found.features * hopper.OPERANDS[found.dtype].bytes
    if width % hopper.ROW_BYTES or not found.steps:
        return None

    def legal(c: Columns) -> Column:
        rows = hopper.M * c["groups"] * c["queries"] + 2 * c["slots"] * c["keys"]
        whole = found.rows % (hopper.M * c["groups"]) == 0
        fits = rows * width + hopper.BESIDE_BYTES // 2 <= sm.shared_bytes // c["resident"]
        needed = hopper.attend_registers(c["keys"], found.features)
        fits &= needed <= consumer_registers(c["groups"], c["resident"])
        result: Column = whole & fits & ((c["queries"] == 1) | (c["stays"] == 1))
        return result

    candidates = {"groups": (2, 1), "keys": found.steps, "slots": SLOTS, "stays": (1, 0),
                  "queries": (*SLOTS[:-1], 1), "resident": (1, *SLOTS[:-1]),
                  "splits": found.parts}  # fmt: skip
    return Space(Plan, candidates, legal)


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of Q tiles: both GEMMs and the exponentials beside them, K and V from L2,
    or all operands from memory; latency that no other tile hides; combining splits of the keys."""
    sm = multiprocessor_of(context.target)
    queries, width = hopper.M * c["groups"], found.features * hopper.OPERANDS[found.dtype].bytes
    blocks = found.batch * (found.rows // queries) * c["splits"]
    waves = -(-blocks // sm.count)
    steps = ceildiv(found.keys, c["keys"] * c["splits"])
    products = 2.0 * queries * c["keys"] * found.features / sm.tensor_fma_per_cycle
    lanes = sm.warp * sm.warps_issued_per_cycle
    powers = sm.softmax_instructions * queries * c["keys"] + 1.0 * queries * found.features
    powers = powers / lanes
    resident = np.minimum(c["resident"], waves)  # no more than there are
    waiting = sm.global_latency_cycles / c["slots"] / resident
    # With enough slots, GEMMs of one step overlap the exponentials of the next.
    beside = np.minimum(resident, 2)  # more do not help
    apart = products + powers / np.minimum(c["groups"] * beside, 2)
    together = np.maximum(products, powers) + sm.wgmma_latency_cycles
    each = np.where(c["slots"] >= LEAST_SLOTS, np.minimum(apart, together), apart)
    each = np.maximum(each, 2.0 * c["keys"] * width / sm.l2_bytes_per_cycle)
    moved = 2.0 * found.batch * (found.results + found.keys) * width
    rate = np.minimum(
        sm.memory_bytes_per_cycle, np.minimum(blocks, sm.count) * sm.own_memory_bytes_per_cycle
    )
    latency = sm.global_latency_cycles
    # Each split writes its state per result, which is read again. Threads that combine them have a
    # few loads in flight.
    states = found.batch * found.results * found.features * c["splits"]
    stored = 2.0 * WORD_BYTES * len(STATE) * states
    combined = sm.launch_cycles + stored / sm.memory_bytes_per_cycle
    combined = combined + c["splits"] * latency / sm.loads_ahead
    combined = combined + len(STATE) * (waves - 1) * latency
    # A lone block waits for both GEMMs of a step.
    rounds = -(-blocks // (sm.count * c["resident"]))
    alone = (products + powers) / c["groups"] + 2 * sm.wgmma_latency_cycles
    busy = steps * np.maximum(waves * np.maximum(each, waiting), rounds * alone)
    return Cost.of(
        steps=np.maximum(busy, moved / rate),
        # Persistent blocks start once; with two Q tiles, the next tile's loads are already in
        # flight.
        start=(1 + (waves - 1) * (2 - c["stays"]) * (c["queries"] == 1)) * latency,
        # After its last scores a tile leaves memory idle, unless another block is resident.
        ends=waves * latency / beside + steps * each,
        late=waves * steps * sm.l2_jitter_cycles / c["slots"],
        parts=np.where(c["splits"] > 1, combined, 0),
    )


# ------------------------------------------------------------------------------------ schedule


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    point = sch.checkpoint()
    try:
        return _schedule_stream(sch, found, plan, context, _absorb_producers(sch, found))
    except ScheduleError:
        sch.restore(point)
    return _schedule_stream(sch, found, plan, context, _copy_from_memory(sch, found))


@dataclass(frozen=True)
class Copies:
    """The blocks that copy tiles, and those that were folded into them."""

    queries: BlockRef
    keys: BlockRef
    values: BlockRef
    folded: tuple[BlockRef, ...] = ()


def _schedule_stream(
    sch: Schedule, found: Found, plan: Plan, context: RuleContext, copies: Copies
) -> tuple[BlockRef, ...]:
    s, t, o = found.products, found.scores, found.values
    q, k, v = copies.queries, copies.keys, copies.values
    result = _inline_consumer(sch, found.result)
    *_, j = sch.get_loops(o)
    parts = [plan.splits] if plan.splits > 1 else []
    step, *of, ji = sch.split(j, [None, *parts, plan.keys])
    stores, ends = [result], list[BlockRef]()
    for part in of:
        o, stores, ends = _split_keys(sch, o, part, result)
    for at, scope in enumerate(STATE):
        sch.set_scope(o, at, scope)
    for block in (s, t):
        sch.set_scope(block, 0, hopper.SUM_SCOPE)
    b, h, i, f, *_ = sch.get_loops(o)
    tile, group, ii = sch.split(i, [None, plan.groups, hopper.M])
    sch.reorder(b, h, tile, *of, group, step, ii, f, ji)
    sums = block_of(sch.function, o.name).writes[2].buffer
    last = next(each for each in stores if _reads(sch, each, sums))
    rows = sch.cache_read(last, _read_of(sch, last, sums), hopper.WIDE_SCOPE)
    for block in (rows, *stores):  # whole tiles, also where there are fewer results
        sch.reverse_compute_at(block, group)
    for store in stores if of else ():
        *_, row, column, part = sch.get_loops(store)
        sch.reorder(part, row, column)
    sch.bind(sch.fuse(b, h, tile, *of), "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    for block in (t, s, v, k):
        sch.compute_at(block, step)
    sch.compute_at(q, group)
    *_, row, column, d = sch.get_loops(s)
    wide, narrow = sch.split(d, [None, _columns(found)])
    sch.reorder(wide, row, column, narrow)
    for copy, count in ((q, hopper.M * plan.groups), (k, plan.keys), (v, plan.keys)):
        _copy(sch, copy, found, count)
    start = sch.decompose_reduction(s, wide)
    sch.unroll(wide)
    dot = hopper.dot_of(found.dtype, plan.keys)
    sch.tensorize(sch.get_loops(s)[-3], dot)
    sch.tensorize(sch.get_loops(start)[-2], dot)
    _bind_to_fragments(sch, t)
    for store in stores:
        spread_runs(sch, store)
    first = sch.decompose_reduction(o, step)
    attend = hopper.attend_of(found.dtype, plan.keys, found.features)
    sch.tensorize(sch.get_loops(o)[-3], attend)
    sch.tensorize(sch.get_loops(first)[-2], attend)
    sch.tensorize(sch.get_loops(rows)[-2], hopper.rows_of(found.features))
    blocks = multiprocessor_of(context.target).count * plan.resident
    if not found.is_open:
        blocks = min(blocks, found.batch * (found.rows // (hopper.M * plan.groups)) * plan.splits)
    sch.specialize(step, plan.slots, blocks * plan.stays, plan.queries, plan.resident)
    return (*copies.folded, s, t, o, q, k, v, start, first, rows, *stores, *ends)


def _split_keys(
    sch: Schedule, whole: BlockRef, part: LoopRef, result: BlockRef
) -> tuple[BlockRef, list[BlockRef], list[BlockRef]]:
    """Split the keys: returns the block of one split, those that store its results, and those that
    combine them in a further kernel, a thread per result."""
    partial = sch.rfactor(part, 0)
    sch.crop(whole)  # padded queries are not stored
    stores = [
        sch.reindex_read(whole, at, "global")
        for at in range(len(block_of(sch.function, whole.name).reads))
    ]
    for store in stores:
        sch.transform_layout(store, ("write", 0), "(b, h, i, f, part) -> (part, b, h, i, f)")
    nest = nest_of(sch, result)
    if nest is None:
        raise ScheduleError("TW2705", f"the loops of @{result.name} are not its own")
    units, loops = units_first(nest, nest.spatial)
    sch.reorder(*units, *loops)
    _, thread = bind_flat(sch, loops)
    sch.compute_at(whole, thread)
    for at in range(len(block_of(sch.function, whole.name).writes)):
        sch.set_scope(whole, at, "local")
    sch.unroll(sch.get_loops(whole)[-1])
    return partial, stores, [whole, result]


def _reads(sch: Schedule, reference: BlockRef, buffer: Buffer) -> bool:
    return any(read.buffer is buffer for read in block_of(sch.function, reference.name).reads)


def _columns(found: Found) -> int:
    return hopper.OPERANDS[found.dtype].columns


def _absorb_producers(sch: Schedule, found: Found) -> Copies:
    """Turn the blocks that lowering made for Q, K and V into the copies into tiles, which then read
    the operands wherever they are. Zero padding is folded into the copies."""
    product = contraction_of(sch, found.products)
    operands = (
        (found.products, product.a.buffer),
        (found.products, product.b.buffer),
        (found.values, _values_of(sch, found)),
    )
    copies, folded = [], []
    for user, buffer in operands:
        maker = _maker(sch, user, buffer)
        if maker is None:
            raise ScheduleError("TW2102", f"%{buffer.name} is a parameter")
        block = block_of(sch.function, maker.name)
        if isinstance(block.body, Store) and isinstance(block.body.value, Load):
            sch.set_scope(maker, 0, hopper.TILE_SCOPE)
            copies.append(maker)
        elif padding_of(block, sch.function) is not None:
            copies.append(sch.cache_read(user, _read_of(sch, user, buffer), hopper.TILE_SCOPE))
            folded.append(maker)
        else:
            raise ScheduleError("TW2102", f"@{maker.name} does more than copy")
    queries, keys, values = copies
    return Copies(queries, keys, values, tuple(folded))


def _copy_from_memory(sch: Schedule, found: Found) -> Copies:
    """Copy tiles from memory: zero padding of operands is folded into the copies, other producers
    are left to rules of their own."""
    s, o = found.products, found.values
    folded = []
    for user in (s, o):
        for producer in sch.get_producers(user):
            block = block_of(sch.function, producer.name)
            if any(it.kind == REDUCE for it in block.iters) or producer == found.scores:
                continue
            if padding_of(block, sch.function) is not None:
                folded.append(producer)
            elif _is_plain_copy(block):
                sch.attempt(sch.compute_inline, producer)
    product = contraction_of(sch, s)
    return Copies(
        sch.cache_read(s, product.read_index(product.a), hopper.TILE_SCOPE),
        sch.cache_read(s, _read_of(sch, s, product.b.buffer), hopper.TILE_SCOPE),
        sch.cache_read(o, _read_of(sch, o, _values_of(sch, found)), hopper.TILE_SCOPE),
        tuple(folded),
    )


def _is_plain_copy(block: Block) -> bool:
    body = block.body
    return (
        isinstance(body, Store)
        and isinstance(body.value, Load)
        and body.value.index == body.index == tuple([it.var for it in block.iters])
    )


def _inline_consumer(sch: Schedule, result: BlockRef) -> BlockRef:
    """Inline the result's elementwise consumer."""
    while True:
        made = block_of(sch.function, result.name).writes[0].buffer
        consumers = sch.get_consumers(result)
        if len(consumers) != 1 or made in output_buffers(sch.function):
            return result
        block = block_of(sch.function, consumers[0].name)
        simple = isinstance(block.body, Store) and not any(it.kind == REDUCE for it in block.iters)
        if not simple or not sch.attempt(sch.reverse_compute_inline, consumers[0]):
            return result


def _read_of(sch: Schedule, reference: BlockRef, buffer: Buffer) -> int:
    reads = block_of(sch.function, reference.name).reads
    return next(at for at, read in enumerate(reads) if read.buffer is buffer)


def _values_of(sch: Schedule, found: Found) -> Buffer:
    reads = block_of(sch.function, found.values.name).reads
    return next(read.buffer for read in reads if read.buffer.dtype.name == found.dtype)


def _copy(sch: Schedule, copy: BlockRef, found: Found, rows: int) -> None:
    """Lay a tile out as consecutive boxes of 64 columns."""
    *_, row, column = sch.get_loops(copy)
    box, inner = sch.split(column, [None, _columns(found)])
    sch.reorder(box, row, inner)
    width = _columns(found)
    index_map = f"(b, h, i, d) -> (b, h, d // {width}, i, d % {width})"
    sch.transform_layout(copy, ("write", 0), index_map)
    sch.unroll(box)
    sch.tensorize(sch.get_loops(copy)[-2], hopper.load_of(found.dtype, rows))


def _bind_to_fragments(sch: Schedule, block: BlockRef) -> None:
    """Bind loops over a tile to the threads that hold it as `wgmma` leaves it: pairs of
    neighbours."""
    ii, jj = sch.get_loops(block)[-2:]
    warp, half, row = sch.split(ii, hopper.ROW_DIGITS)
    run, part, pair = sch.split(jj, [None, hopper.QUAD, hopper.PAIR])
    sch.reorder(warp, row, part, run, half, pair)
    sch.bind(sch.fuse(warp, row, part), "threadIdx.x")
    for loop in (run, half):
        sch.unroll(loop)
    sch.vectorize(pair)


ATTENTION_HOPPER = Rule("attention_hopper", Plan, match, plans, cost, apply)
