"""Speed of scheduling, lowering, printing and parsing programs.

    python bench/schedule.py [--json FILE]

The program is a matrix product as tensor cores want it: tiles of threads, operands through shared
memory into fragments, accumulators in registers, the innermost tiles handed to instructions. Its
schedule is a trace of over thirty steps, as a tuner replays them by the thousand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import report

from tilewright import te
from tilewright.sym import Expr
from tilewright.tensor import Function, parse
from tilewright.tensor.passes import lower
from tilewright.tensor.schedule import Schedule, Trace

SIZE = 1024


def matmul() -> Function:
    """C = A @ B for f16 operands, summed up in f32."""
    A, B = (te.placeholder((SIZE, SIZE), "f16", name=name) for name in "AB")
    k = te.reduce_axis((0, SIZE), name="k")
    C = te.compute(
        (SIZE, SIZE),
        lambda i, j: te.sum(te.cast(A[i, k], "f32") * te.cast(B[k, j], "f32"), axis=k),
        name="C",
    )
    return te.function([A, B, C], name="matmul")


def declare_intrinsics() -> None:
    """Tiles of 16 x 16: the product, the copy into a fragment, the copy out of one."""
    w, x = (te.placeholder((16, 16), "f16", name=name) for name in "wx")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute(
        (16, 16),
        lambda i, j: te.sum(te.cast(w[i, k], "f32") * te.cast(x[k, j], "f32"), axis=k),
        name="y",
    )

    def product(inputs: list[te.BufferView], outputs: list[te.BufferView]) -> tuple[Expr, ...]:
        tiles = [view.access_ptr("r") for view in inputs]
        out = outputs[0].access_ptr("rw")
        return (
            te.hardware_intrin("bench_mma_sync", *tiles, out),
            te.hardware_intrin("bench_fill", out),
            te.hardware_intrin("bench_mma_sync", *tiles, out),
        )

    te.decl_tensor_intrin(y.op, product, name="bench_mma")
    for name, dtype in (("bench_load", "f16"), ("bench_store", "f32")):
        a = te.placeholder((16, 16), dtype, name="a")
        b = te.compute((16, 16), lambda i, j, a=a: a[i, j], name="b")

        def copy(
            inputs: list[te.BufferView], outputs: list[te.BufferView], name: str = name
        ) -> Expr:
            pointers = (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"))
            return te.hardware_intrin(f"{name}_sync", *pointers)

        te.decl_tensor_intrin(b.op, copy, name=name)


def schedule(fn: Function) -> Schedule:
    """Blocks of 128 x 128, 2 x 4 warps of 64 x 32 each, steps of 32 along k, tiles of 16."""
    sch = Schedule(fn)
    C = sch.get_block("C")
    i, j, k = sch.get_loops(C)
    by, wy, ti, ii = sch.split(i, [None, 2, 4, 16])
    bx, wx, tj, jj = sch.split(j, [None, 4, 2, 16])
    ko, ki, kk = sch.split(k, [None, 2, 16])
    sch.reorder(by, bx, wy, wx, ko, ki, ti, tj, ii, jj, kk)
    out = sch.cache_write(C, 0, "local")
    sch.reverse_compute_at(out, wx)
    sch.bind(by, "blockIdx.y")
    sch.bind(bx, "blockIdx.x")
    sch.bind(wy, "threadIdx.z")
    sch.bind(wx, "threadIdx.y")
    for index in (0, 1):
        fragment = sch.cache_read(C, index, "local")
        shared = sch.cache_read(fragment, 0, "shared")
        sch.compute_at(fragment, ki)
        sch.compute_at(shared, ko)
        row, column = sch.get_loops(shared)[-2:]
        fused = sch.fuse(row, column)
        _, z, y, x, lanes = sch.split(fused, [None, 2, 4, 32, 4])
        sch.bind(z, "threadIdx.z")
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(lanes)
        sch.storage_align(shared, 0, 0, 32, 8)
        r, c = sch.get_loops(fragment)[-2:]
        _, _, ri, _ = sch.tile(r, c, 16, 16)
        sch.tensorize(ri, "bench_load")
    r, c = sch.get_loops(out)[-2:]
    _, _, ri, _ = sch.tile(r, c, 16, 16)
    sch.tensorize(ri, "bench_store")
    init = sch.decompose_reduction(C, ko)
    sch.tensorize(sch.get_loops(C)[-3], "bench_mma")
    sch.tensorize(sch.get_loops(init)[-2], "bench_mma")
    return sch


def measure(options: argparse.Namespace) -> list[report.Figure]:
    declare_intrinsics()
    fn = matmul()
    made = schedule(fn)
    scheduled, trace = made.function, Trace.from_json(made.trace.to_json())
    text = str(scheduled)
    again = Schedule(fn)
    trace.apply(again)
    assert again.function == scheduled
    assert parse(text) == scheduled
    primitives = sum(not step.primitive.startswith("get_") for step in trace.steps)
    runs = {
        f"apply {primitives} primitives": (lambda: schedule(fn), 40.0),
        "replay the trace": (lambda: trace.apply(Schedule(fn)), 40.0),
        "lower": (lambda: lower(scheduled, "gpu"), 60.0),
        "print": (lambda: str(scheduled), 10.0),
        "parse": (lambda: parse(text), 10.0),
    }
    return [
        report.at_most(name, milliseconds(run), "ms", limit) for name, (run, limit) in runs.items()
    ]


def milliseconds(run: Callable[[], object], times: int = 15) -> float:
    """The least processor time of a call: all is computed by one thread, and others may be busy."""
    run()
    taken = []
    for _ in range(times):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return min(taken) * 1e3


if __name__ == "__main__":
    report.run(__doc__, measure)
