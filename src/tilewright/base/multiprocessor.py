"""The machine model of a GPU: its multiprocessors, their rates and memories. One record per target.

    multiprocessor_of(Target.parse("cuda -arch=sm_90a")).shared_bytes

All costs of GPU schedules are computed from these numbers, which appear in no rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.target import Target


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """One of a GPU's multiprocessors, and how many there are."""

    count: int
    warp: int  # threads per warp
    threads: int  # resident threads
    blocks: int  # resident blocks at most
    registers: int  # of 4 bytes, for all of them
    block_threads: int  # the most per block with 128 registers each
    fma_per_cycle: int  # f32, all lanes
    warps_issued_per_cycle: int
    division_instructions: int  # to divide an index by a constant, by multiplications and shifts
    shared_words_per_cycle: int  # of 4 bytes
    shared_bytes: int  # of one block at most
    static_shared_bytes: int  # per block, without opting in to more
    global_latency_cycles: int  # of loading a tile from memory
    l2_latency_cycles: int  # of loading what another kernel has just written
    dispatch_cycles: int  # between dispatches of two blocks to it
    launch_cycles: int  # of another kernel in a graph, with the round trip of its operands
    meeting_cycles: int  # of a grid barrier
    memory_bytes_per_cycle: float  # of the whole GPU
    own_memory_bytes_per_cycle: float  # of one multiprocessor at most
    evict_first_gain: float  # factor on these and L2's rate, with the evict-first policy
    l2_bytes_per_cycle: float  # from L2 to one multiprocessor
    copied_bytes_per_cycle: float  # the same by threads' copies, beside arithmetic
    step_cycles: int  # of a pipelined loop over tiles: a wait and a barrier
    cluster_bytes_per_cycle: float  # of one block, to and from distributed shared memory
    cluster_latency_cycles: int  # to start a cluster, synchronize twice, and end
    multicast_latency_cycles: int  # added per two more destination blocks
    tensor_fma_per_cycle: int  # 16-bit operands
    wgmma_latency_cycles: int  # from the last wgmma to its accumulators
    access_bytes: int  # the widest access of one thread
    sector_bytes: int  # of a memory sector

    @property
    def access_words(self) -> int:
        """4-byte words in the widest access of one thread."""
        return self.access_bytes // 4

    @property
    def kernel_cycles(self) -> int:
        """Cost of another kernel that waits for the previous one, then for memory."""
        return self.launch_cycles + self.global_latency_cycles

    @property
    def searches(self) -> int:
        """Interleaved binary searches per thread: each takes some four registers."""
        return self.accumulators // 4

    @property
    def accumulators(self) -> int:
        """Accumulators per thread of the largest block: half of its registers."""
        return self.registers // self.block_threads // 2


WARP = 32  # threads per warp, by the programming model
USUAL_THREADS = 256  # default threads per block
STATIC_SHARED_BYTES = 48 * 1024  # per block, without opting in to more
LINE_BYTES = 128  # cache line; alignment of buffers in shared memory
WINDOW_BYTES = 128  # channel bytes per pixel that an im2col copy takes
BULK_ROW_BYTES = 16  # row sizes that bulk copies read are a multiple of

# With programmatic dependent launch, blocks are placed where earlier kernels left room, unevenly: a
# memory-bound kernel gains the launch latency, a compute-bound one loses more, unless a
# multiprocessor has room for only one of its blocks.
EARLY_FLOPS_PER_BYTE = 4

# 16-byte steps of an epilogue whose loads are in flight, to cover the latency.
LOADS_AHEAD = 4

# 16-bit values that a thread keeps as f32 for reuse: half of its registers.
WIDE_NUMBERS = 64

# Weights, beyond its slots, that a block prefetches to L2 while it waits for preceding kernels.
NEAR_BYTES = 64 << 10

# Elements of a prologue that each block may recompute, in a third of its shared memory.
PROLOGUE_ELEMENTS = 4096

# Tile elements that saturate a multiprocessor's tensor cores: accumulators of two warpgroups.
FULL_TILE_ELEMENTS = 128 * 128

PRODUCT_ROWS = 64  # m of a wgmma

# Sizes that fit a warpgroup's registers in streaming attention.
STREAMED_FEATURES = (64, 128)  # head sizes
STREAMED_KEYS = 128  # keys per step
STREAMED_QUERIES = 64  # queries per warpgroup

# Blocks that may split the keys of few queries, with equal numbers of steps for dynamic lengths.
KEY_PARTS = 32


def multiprocessor_of(target: Target) -> Multiprocessor:
    """The record of a CUDA target."""
    number = int(target.mcpu.removeprefix("sm_").rstrip("af"))
    return Multiprocessor(
        count=target.cores,
        warp=WARP,
        threads=2048 if number in (70, 80, 90, 100) else 1536,
        blocks=32 if number in (70, 80, 90, 100) else 16,
        registers=65536,
        block_threads=512,
        fma_per_cycle=64 if number in (70, 75, 80) else 128,
        warps_issued_per_cycle=4,
        division_instructions=6,
        shared_words_per_cycle=32,
        shared_bytes=target.shared_bytes,
        static_shared_bytes=STATIC_SHARED_BYTES,
        global_latency_cycles=700,
        l2_latency_cycles=270,
        dispatch_cycles=141,
        launch_cycles=2500,
        meeting_cycles=1700,
        memory_bytes_per_cycle=2400.0 if number >= 90 else 1400.0,
        own_memory_bytes_per_cycle=18.0,
        evict_first_gain=1.045,
        l2_bytes_per_cycle=52.0,
        copied_bytes_per_cycle=30.0,
        step_cycles=150,
        cluster_bytes_per_cycle=24.0,
        cluster_latency_cycles=8000,
        multicast_latency_cycles=550,
        tensor_fma_per_cycle=2048 if number >= 90 else 1024,
        wgmma_latency_cycles=130,
        access_bytes=16,
        sector_bytes=32,
    )
