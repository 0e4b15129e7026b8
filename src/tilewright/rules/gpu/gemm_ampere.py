"""GEMM by the tensor cores of sm_80: asynchronous copies and warp-level `mma`.

    for tile in blockIdx.x { for group in threadIdx.y {
      clear; for ko [software_pipeline] { copy A, B; sums += A B^T }; epilogue } }

Tiles, layouts, padding and epilogues are those of the Hopper rule. The difference is who copies and
multiplies: all threads issue `cp.async` for the tile `slots - 1` steps ahead, then each warp of a
group multiplies 16 rows. On Hopper it serves operands that bulk copies cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.base.multiprocessor import WORD_BYTES, multiprocessor_of
from tilewright.intrin import ampere, hopper
from tilewright.rules.context import RuleContext
from tilewright.rules.gpu.gemm import splits
from tilewright.rules.gpu.gemm_hopper import (
    BLOCK_COLUMNS,
    SLOTS,
    SPAN_TILES,
    Found,
    Plan,
    Unit,
    found_in,
    schedule_gemm,
)
from tilewright.rules.gpu.parts import ceildiv
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule

FEATURES = ("mma", "ldmatrix", "cp.async", "bf16")


def match(sch: Schedule, reference: BlockRef, context: RuleContext) -> Found | None:
    """A GEMM of 16-bit operands; windows of images are laid out as rows first."""
    has_all = all(context.target.has(feature) for feature in FEATURES)
    found = found_in(sch, reference, context, takes_km=False) if has_all else None
    if found is None or found.dtype not in hopper.HALVES or found.is_indexed:
        return None
    return replace(found, windows="")


def plans(found: Found, context: RuleContext) -> Space[Plan]:
    """Tiles that fit registers and shared memory."""
    sm = multiprocessor_of(context.target)

    def legal(c: Columns) -> Column:
        rows = hopper.M * c["groups"]
        whole = ceildiv(found.m, rows) % c["span"] == 0
        whole &= (c["span"] == 1) | (not found.is_open)
        parts = (c["split_k"] == 1) | (found.k % (c["split_k"] * found.depth) == 0)
        boxes = (c["block_n"] % found.depth == 0) | (not found.along_n)
        result: Column = (_tile_bytes(c) <= sm.shared_bytes) & whole & parts & boxes
        return result

    candidates: dict[str, Sequence[int | str]] = {
        "groups": doublings(sm.block_threads // hopper.THREADS),
        "block_n": [n for n in BLOCK_COLUMNS if n <= 2 * sm.accumulators],
        "slots": SLOTS,
        "span": SPAN_TILES,
        "split_k": splits(sm),
        "boxes": (1,),
        "cluster": (1,),
        "along": ("k",),
        "resident": (1,),
        "pingpong": (0,),
        "evict_first": (0,),
    }
    return Space(Plan, candidates, legal)


def _tile_bytes(c: Columns) -> Column:
    found: Column = c["slots"] * (hopper.M * c["groups"] + c["block_n"]) * hopper.ROW_BYTES
    return found


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles of all waves of tiles: tensor cores, operands from shared memory, or tiles from L2,
    whichever is largest."""
    sm = multiprocessor_of(context.target)
    rows, split = hopper.M * c["groups"], c["split_k"]
    tiles = found.batch * ceildiv(found.m, rows) * ceildiv(found.n, c["block_n"])
    blocks = tiles * split
    threads = hopper.THREADS * c["groups"]
    # Per thread: accumulators, operands, addresses.
    registers = np.minimum(c["block_n"] / 2 + sm.operand_registers, sm.thread_registers)
    resident = np.minimum(sm.shared_bytes // _tile_bytes(c), sm.registers // (threads * registers))
    resident = np.clip(resident, 1, ceildiv(blocks, sm.count))
    waves = ceildiv(blocks, sm.count * resident)
    steps = ceildiv(found.k // split, found.depth)
    per_step = rows * c["block_n"] * found.depth / sm.tensor_fma_per_cycle
    # Each warp reads its own rows of A, and all of B.
    words = (rows + threads // sm.warp * c["block_n"]) * hopper.ROW_BYTES / WORD_BYTES
    read = words / sm.shared_words_per_cycle
    # The padding is not loaded.
    there = np.minimum(rows, found.m) + np.minimum(c["block_n"], found.n)
    narrow = there * hopper.ROW_BYTES / sm.l2_bytes_per_cycle
    waiting = sm.global_latency_cycles / (c["slots"] - 1)
    size = hopper.OPERANDS[found.dtype].bytes
    operands = size * (found.batch * found.m * found.k + found.n * found.k)
    parts = 2.0 * WORD_BYTES * found.batch * found.m * found.n * split  # written, and read again
    busy = resident * np.maximum(np.maximum(per_step, read), narrow)
    return Cost.of(
        products=waves * steps * np.maximum(busy, waiting),
        # Loads that are far ahead hide half of what others would not.
        memory=operands / sm.memory_bytes_per_cycle * sm.unhidden_share / 2,
        start=sm.global_latency_cycles,
        store=waves * rows * c["block_n"] / sm.stored_elements_per_cycle,
        l2=waves * steps * sm.l2_step_cycles / c["span"],
        split=np.where(split > 1, sm.launch_cycles + parts / sm.memory_bytes_per_cycle, 0.0),
    )


def _pipeline(sch: Schedule, ko: LoopRef, plan: Plan, blocks: int) -> None:
    """Software-pipeline the copies of both tiles ahead of the multiplication, one slot per
    stage."""
    ahead = plan.slots - 1
    sch.software_pipeline(ko, [0, 0, ahead], [0, 1, 2])


AMPERE = Unit(ampere.copy_of, ampere.dot_of, _pipeline)


def apply(sch: Schedule, found: Found, plan: Plan, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule by a plan."""
    return schedule_gemm(sch, found, plan, context, AMPERE)


GEMM_AMPERE = Rule("gemm_ampere", Plan, match, plans, cost, apply)
