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
    fma_latency_cycles: int  # from a multiply-add to one that takes its result
    warps_issued_per_cycle: int
    division_instructions: int  # to divide an index by a constant, by multiplications and shifts
    access_instructions: int  # the address of an access, and the access
    turn_instructions: int  # of a loop around accesses: its count, tests, and masks of tails
    element_instructions: int  # of an elementwise stage: conversions and two operations
    copy_instructions: int  # per element that threads copy to shared memory one by one
    start_instructions: int  # of a thread that owns a tile: its addresses
    softmax_instructions: float  # per score: mask, maximum, difference, power, sum, rounding
    address_registers: int  # per thread, for counters and addresses
    operand_registers: int  # beside accumulators of tensor cores: operands and addresses
    thread_registers: int  # that one thread can have
    load_registers: float  # per word in flight to a thread: the word, and some of its address
    shared_words_per_cycle: int  # of 4 bytes
    shared_latency_cycles: int  # of a load from shared memory
    barrier_cycles: int  # of a block's barrier
    shared_bytes: int  # of one block at most
    static_shared_bytes: int  # per block, without opting in to more
    global_latency_cycles: int  # of loading a tile from memory
    slot_latency_cycles: float  # of a pipeline: a barrier of another warp, a tile's load, another
    jitter_cycles: float  # by which a tile's load from memory is late, where that is saturated
    l2_jitter_cycles: float  # the same of loads that L2 serves
    l2_step_cycles: float  # by which a step's load is late where no neighbour reads its tile
    l2_latency_cycles: int  # of loading what another kernel has just written
    dispatch_cycles: int  # between dispatches of two blocks to it
    launch_cycles: int  # of another kernel in a graph, with the round trip of its operands
    meeting_cycles: int  # of a grid barrier
    handover_cycles: int  # from sums that a block stores to another that adds them, by a flag
    memory_bytes_per_cycle: float  # of the whole GPU
    own_memory_bytes_per_cycle: float  # of one multiprocessor at most
    evict_first_gain: float  # factor on these and L2's rate, with the evict-first policy
    unhidden_share: float  # of the shorter of memory and arithmetic, beside the other
    prefetch_share: float  # of memory's time, to request lines twice
    mask_ratio: float  # of a loop's time with masked accesses, to one without
    lone_sector_ratio: float  # of a lone sector's time in memory, to that of one of a pair
    l2_bytes_per_cycle: float  # from L2 to one multiprocessor
    l2_to_memory_ratio: int  # of that to what loads in flight of one multiprocessor take of memory
    stored_elements_per_cycle: int  # by an epilogue of tensor cores
    # Of the arithmetic of one warp per scheduler, by which the latency of its loads is longer.
    lone_warp_share: float
    step_cycles: int  # of a pipelined loop over tiles: a wait and a barrier
    cluster_bytes_per_cycle: float  # of one block, to and from distributed shared memory
    cluster_latency_cycles: int  # to start a cluster, synchronize twice, and end
    multicast_latency_cycles: int  # added per two more destination blocks
    tensor_fma_per_cycle: int  # 16-bit operands
    wgmma_latency_cycles: int  # from the last wgmma to its accumulators
    # With programmatic dependent launch, blocks are placed where earlier kernels left room,
    # unevenly: a memory-bound kernel gains the launch latency, a compute-bound one loses more,
    # unless a multiprocessor has room for only one of its blocks.
    early_flops_per_byte: int  # of a kernel at most that starts before earlier ones end
    loads_ahead: int  # of a thread, in flight to cover the latency: accesses of an epilogue
    near_bytes: int  # of weights, beyond its slots, that a waiting block prefetches to L2
    access_bytes: int  # the widest access of one thread
    sector_bytes: int  # of a memory sector

    @property
    def access_words(self) -> int:
        """Words in the widest access of one thread."""
        return self.access_bytes // WORD_BYTES

    @property
    def kernel_cycles(self) -> int:
        """Cost of another kernel that waits for the previous one, then for memory."""
        return self.launch_cycles + self.global_latency_cycles

    @property
    def searches(self) -> int:
        """Interleaved binary searches per thread: each takes some four registers."""
        return self.accumulators // 4

    @property
    def issuing_threads(self) -> int:
        """Threads of the warps that issue in one cycle."""
        return self.warp * self.warps_issued_per_cycle

    @property
    def accumulators(self) -> int:
        """Accumulators per thread of the largest block: half of its registers."""
        return self.registers // self.block_threads // 2

    @property
    def full_tile_elements(self) -> int:
        """Tile elements that saturate the tensor cores: accumulators of two warpgroups."""
        return self.block_threads // 2 * self.accumulators

    @property
    def prologue_elements(self) -> int:
        """f32 elements that each block may compute for itself: a third of its shared memory."""
        return self.static_shared_bytes // (3 * WORD_BYTES)


WARP = 32  # threads per warp, by the programming model
USUAL_TARGET = "cuda -arch=sm_90a"  # of passes that run without one
WORD_BYTES = 4  # of a register, and of a bank of shared memory
USUAL_THREADS = 256  # default threads per block
MAX_THREADS = 1024  # per block, by the programming model
STATIC_SHARED_BYTES = 48 * 1024  # per block, without opting in to more
LINE_BYTES = 128  # cache line; alignment of buffers in shared memory
WINDOW_BYTES = 128  # channel bytes per pixel that an im2col copy takes
BULK_ROW_BYTES = 16  # row sizes that bulk copies read are a multiple of

PRODUCT_ROWS = 64  # m of a wgmma

# Sizes that fit a warpgroup's registers in streaming attention.
STREAMED_FEATURES = (64, 128)  # head sizes
STREAMED_KEYS = 128  # keys per step
STREAMED_QUERIES = 64  # queries per warpgroup

# Blocks that may split the keys of few queries, with equal numbers of steps for dynamic lengths.
KEY_PARTS = 32


def multiprocessor_of(target: Target | None) -> Multiprocessor:
    """The record of a CUDA target; a usual one for passes that run without a target."""
    target = target or Target.parse(USUAL_TARGET)
    number = int(target.mcpu.removeprefix("sm_").rstrip("af"))
    return Multiprocessor(
        count=target.cores,
        warp=WARP,
        threads=2048 if number in (70, 80, 90, 100) else 1536,
        blocks=32 if number in (70, 80, 90, 100) else 16,
        registers=65536,
        block_threads=512,
        fma_per_cycle=64 if number in (70, 75, 80) else 128,
        fma_latency_cycles=4,
        warps_issued_per_cycle=4,
        division_instructions=6,
        access_instructions=2,
        turn_instructions=4,
        element_instructions=4,
        copy_instructions=10,
        start_instructions=400,
        softmax_instructions=6.0,
        address_registers=24,
        operand_registers=64,
        thread_registers=255,
        load_registers=1.3,
        shared_words_per_cycle=32,
        shared_latency_cycles=30,
        barrier_cycles=20,
        shared_bytes=target.shared_bytes,
        static_shared_bytes=STATIC_SHARED_BYTES,
        global_latency_cycles=700,
        slot_latency_cycles=1680.0,
        jitter_cycles=280.0,
        l2_jitter_cycles=30.0,
        l2_step_cycles=40.0,
        l2_latency_cycles=270,
        dispatch_cycles=141,
        launch_cycles=2500,
        meeting_cycles=1700,
        handover_cycles=6800,
        memory_bytes_per_cycle=2400.0 if number >= 90 else 1400.0,
        own_memory_bytes_per_cycle=18.0,
        evict_first_gain=1.045,
        unhidden_share=0.25,
        prefetch_share=0.1,
        mask_ratio=1.05,
        lone_sector_ratio=1.2,
        l2_bytes_per_cycle=52.0,
        l2_to_memory_ratio=3,
        stored_elements_per_cycle=64,
        lone_warp_share=0.15,
        step_cycles=150,
        cluster_bytes_per_cycle=24.0,
        cluster_latency_cycles=8000,
        multicast_latency_cycles=550,
        tensor_fma_per_cycle=2048 if number >= 90 else 1024,
        wgmma_latency_cycles=130,
        early_flops_per_byte=4,
        loads_ahead=4,
        near_bytes=64 << 10,
        access_bytes=16,
        sector_bytes=32,
    )
