"""What is known of a GPU: its multiprocessors, their rates and memories. One record per target.

    multiprocessor_of(Target.parse("cuda -arch=sm_90a")).shared_bytes

Costs of GPU schedules are made of these numbers; none of them is written in a rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.target import Target


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """One of a GPU's multiprocessors, and how many there are."""

    count: int
    warp: int  # threads that run in step
    threads: int  # resident at once
    registers: int  # of 4 bytes, for all of them
    block_threads: int  # of one block, where each is to have 128 registers
    fma_per_cycle: int  # f32, all lanes
    warps_issued_per_cycle: int
    division_instructions: int  # of an index by a constant, as multiplications and shifts
    shared_words_per_cycle: int  # of 4 bytes
    shared_bytes: int  # of one block at most
    static_shared_bytes: int  # without asking the driver for more
    shared_latency_cycles: int  # of a warp alone, from asking for operands to having them
    global_latency_cycles: int  # from asking memory to having a tile
    l2_latency_cycles: int  # from asking for what another kernel has just written to having it
    dispatch_cycles: int  # from one block that it is given to the next
    launch_cycles: int  # of one more kernel in a graph, with the round trip of its operands
    meeting_cycles: int  # of all blocks of a kernel, until each knows that all have arrived
    memory_bytes_per_cycle: float  # of the whole GPU
    own_memory_bytes_per_cycle: float  # that one multiprocessor gets at most
    evict_first_gain: float  # of these and L2's rate, where what was read leaves L2 first
    l2_bytes_per_cycle: float  # that L2 hands to one multiprocessor
    cluster_bytes_per_cycle: float  # that one block of a cluster writes, and reads of others
    cluster_latency_cycles: int  # until blocks of a cluster have started, met twice and ended
    multicast_latency_cycles: int  # that a tile takes longer for two more blocks it is brought to
    tensor_fma_per_cycle: int  # 16-bit operands
    wgmma_latency_cycles: int  # from the last product of a warpgroup to having its sums
    access_bytes: int  # the widest access of one thread
    sector_bytes: int  # that memory is read in, of the programming model's guide

    @property
    def access_words(self) -> int:
        """Of 4 bytes, in the widest access of one thread."""
        return self.access_bytes // 4

    @property
    def kernel_cycles(self) -> int:
        """Of one more kernel that waits for the one before it, then for memory."""
        return self.launch_cycles + self.global_latency_cycles

    @property
    def searches(self) -> int:
        """Binary searches of a thread side by side: each has some four registers."""
        return self.accumulators // 4

    @property
    def accumulators(self) -> int:
        """Sums that a thread of the largest block keeps: half of its registers."""
        return self.registers // self.block_threads // 2


WARP = 32  # threads that run in step: of the programming model, not of one processor
USUAL_THREADS = 256  # of a block where nothing asks for more or fewer
STATIC_SHARED_BYTES = 48 * 1024  # of a block, without asking the driver for more
LINE_BYTES = 128  # of its caches, and what buffers in shared memory are aligned to
WINDOW_BYTES = 128  # of a pixel, of which copies of windows take as many at a time
BULK_ROW_BYTES = 16  # that rows of tensors are a multiple of, where bulk copies take parts of them

# A kernel that starts early finds its blocks where those before it left room, not spread evenly:
# one that waits for memory gains a launch by it, one that computes loses more, unless a
# multiprocessor has room for one of its blocks alone.
EARLY_FLOPS_PER_BYTE = 4

# Steps of an epilogue, of 16 bytes each, whose loads are under way: they cover a latency.
LOADS_AHEAD = 4

# Numbers of 16 bits that a thread keeps as f32 where it uses them again: half of its registers.
WIDE_NUMBERS = 64

# Of weights, beyond its slots, that a block has brought to L2 before it may read what others make:
# what memory hands it meanwhile.
NEAR_BYTES = 64 << 10

# What every block of a kernel may compute for itself, in a third of its shared memory.
PROLOGUE_ELEMENTS = 4096

# Of a product, that keep the tensor cores of a multiprocessor busy: two warpgroups' sums.
FULL_TILE_ELEMENTS = 128 * 128

PRODUCT_ROWS = 64  # of a product that a warpgroup starts

# What a warpgroup has registers for where attention takes keys some at a time.
STREAMED_FEATURES = (64, 128)  # of a head
STREAMED_KEYS = 128  # scores of a row, beside the sums of a head
STREAMED_QUERIES = 64  # rows of its tile

# Blocks that may share the keys of few queries: of a number that calls tell, as many steps each.
KEY_PARTS = 32


def multiprocessor_of(target: Target) -> Multiprocessor:
    """The record of a CUDA target."""
    number = int(target.mcpu.removeprefix("sm_").rstrip("af"))
    return Multiprocessor(
        count=target.cores,
        warp=WARP,
        threads=2048 if number in (70, 80, 90, 100) else 1536,
        registers=65536,
        block_threads=512,
        fma_per_cycle=64 if number in (70, 75, 80) else 128,
        warps_issued_per_cycle=4,
        division_instructions=6,
        shared_words_per_cycle=32,
        shared_bytes=target.shared_bytes,
        static_shared_bytes=STATIC_SHARED_BYTES,
        shared_latency_cycles=22,
        global_latency_cycles=700,
        l2_latency_cycles=270,
        dispatch_cycles=141,
        launch_cycles=2500,
        meeting_cycles=1700,
        memory_bytes_per_cycle=2400.0 if number >= 90 else 1400.0,
        own_memory_bytes_per_cycle=18.0,
        evict_first_gain=1.045,
        l2_bytes_per_cycle=52.0,
        cluster_bytes_per_cycle=24.0,
        cluster_latency_cycles=8000,
        multicast_latency_cycles=550,
        tensor_fma_per_cycle=2048 if number >= 90 else 1024,
        wgmma_latency_cycles=130,
        access_bytes=16,
        sector_bytes=32,
    )
