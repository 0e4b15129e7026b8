"""Blocks and buffers that move keep the answer: programs before and after, interpreted."""

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import ScheduleError
from tilewright.tensor import interpret, parse, verify
from tilewright.tensor.schedule import Schedule, Trace


def integers(*shape):
    """Small integers, so that every order of summation gives the same."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def check(fn, schedule, shapes, out):
    """The scheduled program computes what the original one does, and its trace makes it again."""
    verify(schedule.function)
    arrays = [integers(*shape) for shape in shapes]
    wanted, found = np.full(out, 7, np.float32), np.full(out, 8, np.float32)
    interpret(fn, *arrays, wanted)
    interpret(schedule.function, *arrays, found)
    np.testing.assert_array_equal(found, wanted)
    again = Schedule(fn)
    Trace.parse(str(schedule.trace)).apply(again)
    assert again.function == schedule.function
    from_json = Schedule(fn)
    Trace.from_json(schedule.trace.to_json()).apply(from_json)
    assert from_json.function == schedule.function


SIZES = [
    *(((16, 32), symbolic) for symbolic in (False, True)),
    *(((13, 10), symbolic) for symbolic in (False, True)),
    *((sizes, True) for sizes in ((1, 1), (0, 5), (5, 0))),
]


def chain(n, m):
    A = te.placeholder((n, m), name="A")
    B = te.compute((n, m), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((n, m), lambda i, j: B[i, j] * 2.0, name="C")
    D = te.compute((n, m), lambda i, j: C[i, j] - B[i, j], name="D")
    return te.function([A, D], name="chain")


def blur(n, m):
    A = te.placeholder((n, m), name="A")

    def inside(i, j):
        return te.all(i >= 1, i < n + 1, j >= 1, j < m + 1)

    P = te.compute(
        (n + 2, m + 2),
        lambda i, j: te.if_then_else(inside(i, j), A[i - 1, j - 1], 0.0),
        name="P",
    )
    X = te.compute((n + 2, m), lambda i, j: P[i, j] + P[i, j + 1] + P[i, j + 2], name="X")
    Y = te.compute((n, m), lambda i, j: X[i, j] + X[i + 1, j] + X[i + 2, j], name="Y")
    Z = te.compute((n, m), lambda i, j: Y[i, j] * 2.0, name="Z")
    return te.function([A, Z], name="blur")


def matmul(n, m, k):
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    bias = te.placeholder((m,), name="bias")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    D = te.compute((n, m), lambda i, j: C[i, j] + bias[j], name="D")
    E = te.compute((n, m), lambda i, j: D[i, j] * 3.0, name="E")
    return te.function([A, B, bias, E], name="matmul")


def conv(n):
    A, W = te.placeholder((3, n, n), name="A"), te.placeholder((4, 3, 3, 3), name="W")
    P = te.compute(
        (3, n + 2, n + 2),
        lambda c, i, j: te.if_then_else(
            te.all(i >= 1, i < n + 1, j >= 1, j < n + 1), A[c, i - 1, j - 1], 0.0
        ),
        name="P",
    )
    c, p, q = (te.reduce_axis((0, 3), name=name) for name in "cpq")
    out = (n + 1) // 2
    C = te.compute(
        (4, out, out),
        lambda f, i, j: te.sum(P[c, i * 2 + p, j * 2 + q] * W[f, c, p, q], axis=(c, p, q)),
        name="C",
    )
    R = te.compute((4, out, out), lambda f, i, j: C[f, i, j] + 1.0, name="R")
    return te.function([A, W, R], name="conv")


def sized(make, sizes, symbolic):
    names = "nmk"
    return make(*(te.var(names[k]) if symbolic else size for k, size in enumerate(sizes)))


# --------------------------------------------------------------------------- schedules


def at_tiles(s):
    """Producers at tiles of the last consumer, last producer first."""
    i, j = s.get_loops(s.get_block("D"))
    _, jo, _, _ = s.tile(i, j, 4, 8)
    s.compute_at(s.get_block("C"), jo)
    s.compute_at(s.get_block("B"), jo)


def at_fused(s):
    i, j = s.get_loops(s.get_block("D"))
    outer, _ = s.split(s.fuse(i, j), [None, 5])
    s.compute_at(s.get_block("C"), outer)
    s.compute_at(s.get_block("B"), outer)


def behind(s):
    """Consumers behind the first producer, one after the other."""
    i, j = s.get_loops(s.get_block("B"))
    _, jo, _, _ = s.tile(i, j, 4, 8)
    s.reverse_compute_at(s.get_block("C"), jo)
    s.reverse_compute_at(s.get_block("D"), jo)


def inlined(s):
    s.compute_inline(s.get_block("B"))
    s.reverse_compute_inline(s.get_block("D"))


def cached(s):
    copy = s.cache_read(s.get_block("D"), 1, "local")
    back = s.cache_write(s.get_block("D"), 0, "local")
    i, _ = s.get_loops(s.get_block("D"))
    outer, _ = s.split(i, [None, 4])
    s.compute_at(copy, outer)
    s.reverse_compute_at(back, outer)
    s.set_scope(s.get_block("C"), 0, "shared")
    s.storage_align(s.get_block("C"), 0, -2, 8, 4)


@pytest.mark.parametrize(("sizes", "symbolic"), SIZES)
@pytest.mark.parametrize("steps", [at_tiles, at_fused, behind, inlined, cached])
def test_elementwise_chains(steps, sizes, symbolic):
    fn = sized(chain, sizes, symbolic)
    schedule = Schedule(fn)
    steps(schedule)
    check(fn, schedule, [sizes], sizes)


def rows(s):
    s.compute_at(s.get_block("X"), s.get_loops(s.get_block("Y"))[0])


def overlapping_tiles(s):
    i, j = s.get_loops(s.get_block("Y"))
    _, jo, _, _ = s.tile(i, j, 4, 8)
    s.compute_at(s.get_block("X"), jo)
    s.compute_at(s.get_block("P"), jo)
    s.reverse_compute_at(s.get_block("Z"), jo)


def sliding(s):
    """The window of the window, at different depths."""
    i, _ = s.get_loops(s.get_block("Z"))
    io, _ = s.split(i, [None, 3])
    s.compute_at(s.get_block("Y"), io)
    s.compute_at(s.get_block("X"), s.get_loops(s.get_block("Y"))[1])
    s.compute_inline(s.get_block("P"))


def parallel_tiles(s):
    s.parallel(s.get_loops(s.get_block("Y"))[0])
    jo, _ = s.split(s.get_loops(s.get_block("Y"))[1], [None, 8])
    s.reverse_compute_at(s.get_block("Z"), jo)
    s.compute_at(s.get_block("X"), jo)
    s.compute_at(s.get_block("P"), jo)
    s.cache_write(s.get_block("X"), 0, "local")


@pytest.mark.parametrize(("sizes", "symbolic"), SIZES)
@pytest.mark.parametrize("steps", [rows, overlapping_tiles, sliding, parallel_tiles])
def test_padded_stencils(steps, sizes, symbolic):
    fn = sized(blur, sizes, symbolic)
    schedule = Schedule(fn)
    steps(schedule)
    check(fn, schedule, [sizes], sizes)


def epilogue(s):
    i, j, r = s.get_loops(s.get_block("C"))
    _, jo, ii, ji = s.tile(i, j, 4, 8)
    s.reverse_compute_inline(s.get_block("E"))
    back = s.cache_write(s.get_block("C"), 0, "local")
    s.reverse_compute_at(back, jo)
    s.reverse_compute_at(s.get_block("D"), jo)
    ro, ri = s.split(r, [None, 4])
    s.reorder(ro, ri, ii, ji)
    for index, memory in enumerate(("shared", "local")):
        s.compute_at(s.cache_read(s.get_block("C"), index, memory), ro)


def under_the_consumer(s):
    i, j = s.get_loops(s.get_block("E"))
    _, jo, _, _ = s.tile(i, j, 4, 8)
    s.compute_at(s.get_block("D"), jo)
    s.compute_at(s.get_block("C"), s.get_loops(s.get_block("D"))[2])


@pytest.mark.parametrize(
    ("sizes", "symbolic"),
    [((8, 16, 8), False), ((9, 7, 5), False), ((9, 7, 5), True), ((0, 3, 2), True)],
)
@pytest.mark.parametrize("steps", [epilogue, under_the_consumer])
def test_matmul_with_an_epilogue(steps, sizes, symbolic):
    n, m, k = sizes
    fn = sized(matmul, sizes, symbolic)
    schedule = Schedule(fn)
    steps(schedule)
    check(fn, schedule, [(n, k), (k, m), (m,)], (n, m))


@pytest.mark.parametrize(("size", "symbolic"), [(9, False), (9, True), (4, True), (1, True)])
def test_a_strided_convolution(size, symbolic):
    fn = sized(conv, [size], symbolic)
    s = Schedule(fn)
    _, i, *_ = s.get_loops(s.get_block("C"))
    io, _ = s.split(i, [None, 2])
    s.compute_at(s.get_block("P"), io)
    s.reverse_compute_at(s.get_block("R"), io)
    out = (size + 1) // 2
    check(fn, s, [(3, size, size), (4, 3, 3, 3)], (4, out, out))


@pytest.mark.parametrize(("sizes", "symbolic"), SIZES)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.sampled
def test_overlapping_windows_in_parallel(place, fused, sizes, symbolic):
    """Each iteration of a parallel loop has the windows it computes to itself."""
    fn = sized(blur, sizes, symbolic)
    sch = Schedule(fn)
    sch.compute_inline(sch.get_block("P"))
    i, j = sch.get_loops(sch.get_block("Y"))
    io, ii = sch.split(i, [None, 3])
    jo, ji = sch.split(j, [None, 4])
    sch.reorder(io, jo, ii, ji)
    outer = (sch.fuse(io, jo),) if fused else (io, jo)
    sch.compute_at(sch.get_block("X"), (*outer, ii)[min(place, len(outer))])
    sch.parallel(outer[0])
    check(fn, sch, [sizes], sizes)


def test_both_results_of_a_reduction():
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    B = te.compute((n, m), lambda i, j: A[i, j] * 2.0, name="B")
    k = te.reduce_axis((0, m), name="k")
    R = te.compute((n,), lambda i: te.argmax(B[i, k], axis=k), name="R")
    out = te.compute((n,), lambda i: R[1][i] + te.cast(R[0][i], "f32"), name="out")
    fn = te.function([A, out])
    s = Schedule(fn)
    outer, _ = s.split(s.get_loops(s.get_block("out"))[0], [None, 4])
    s.cache_write(s.get_block("R"), 1, "local")
    s.compute_at(s.get_block("R.v1_local"), outer)
    s.compute_at(s.get_block("R"), outer)
    s.compute_at(s.get_block("B"), s.get_loops(s.get_block("R"))[1])
    check(fn, s, [(6, 9)], (6,))


def test_inputs_and_outputs_of_a_scan():
    n, m = te.var("n"), te.var("m")
    X, state = te.placeholder((n, m), name="X"), te.placeholder((n, m), name="state")
    Y = te.compute((n, m), lambda t, i: X[t, i] * 2.0, name="Y")
    first = te.compute((1, m), lambda _, i: X[0, i], name="first")
    step = te.compute((n, m), lambda t, i: state[t - 1, i] + Y[t, i], name="step")
    S = te.scan(first, step, state, inputs=[X], name="S")
    Z = te.compute((n, m), lambda t, i: S[t, i] + 1.0, name="Z")
    fn = te.function([X, Z])
    s = Schedule(fn)
    t, _ = s.get_loops(s.get_block("step"))
    s.compute_at(s.get_block("Y"), t)
    with pytest.raises(ScheduleError, match="TW2127"):
        s.reverse_compute_at(s.get_block("Z"), t)
    check(fn, s, [(7, 3)], (7, 3))


def test_threads_share_tiles():
    """The cooperative matmul: every step of the way is a program that can run."""
    fn = sized(matmul, (16, 16, 16), False)
    s = Schedule(fn)
    block = s.get_block("C")
    s.compute_inline(s.get_block("D"))
    s.set_scope(block, 0, "local")
    i, j = s.get_loops(s.get_block("E"))
    bi, ti, ii = s.split(i, [2, 4, 2])
    bj, tj, ji = s.split(j, [2, 4, 2])
    s.reorder(bi, bj, ti, tj, ii, ji)
    for loop, axis in ((bi, "blockIdx.y"), (bj, "blockIdx.x")):
        s.bind(loop, axis)
    for loop, axis in ((ti, "threadIdx.y"), (tj, "threadIdx.x")):
        s.bind(loop, axis)
    s.compute_at(block, tj)
    *_, ai, aj, r = s.get_loops(block)
    ro, ri = s.split(r, [None, 4])
    s.reorder(ro, ri, ai, aj)
    for index in (0, 1):
        shared = s.cache_read(block, index, "shared")
        s.compute_at(shared, ro)
        fused = s.fuse(*s.get_loops(shared)[-2:])
        _, y, x = s.split(fused, [None, 4, 4])
        s.bind(y, "threadIdx.y")
        s.bind(x, "threadIdx.x")
        s.double_buffer(shared)
        s.compute_at(s.cache_read(block, index, "local"), ri)
        check(fn, s, [(16, 16), (16, 16), (16,)], (16, 16))


def test_a_refusal_changes_nothing():
    fn = sized(matmul, (8, 8, 8), False)
    s = Schedule(fn)
    *_, r = s.get_loops(s.get_block("C"))
    before, trace = s.function, s.trace
    with pytest.raises(ScheduleError, match="TW2127"):
        s.reverse_compute_at(s.get_block("D"), r)
    assert s.function is before
    assert s.trace.steps[: len(trace)] == trace.steps
    assert all(step.primitive != "reverse_compute_at" for step in s.trace.steps)


def running(shape, copied):
    """Running sums along the second axis of a matrix, and what is copied of them."""
    rows, columns = shape
    A = te.placeholder((rows, columns), name="A")
    state = te.placeholder((columns, rows), name="state")
    begin = te.compute((1, rows), lambda t, i: A[i, 0], name="begin")
    step = te.compute((columns, rows), lambda t, i: state[t - 1, i] + A[i, t], name="step")
    return A, copied(te.scan(begin, step, state, name="S"))


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (4, 2)])
def test_a_scan_writes_what_copies_its_states(shape):
    A, C = running(shape, lambda S: te.compute(shape, lambda i, t: S[t, i], name="C"))
    s = Schedule(te.function([A, C]))
    s.reverse_compute_inline(s.get_block("C"))
    assert s.function.allocs == ()
    check(te.function([A, C]), s, [shape], shape)


@pytest.mark.parametrize(
    "copied",
    [
        lambda S: te.compute((4, 3), lambda i, t: S[t, i], name="C"),  # not all of it
        lambda S: te.compute((4, 5), lambda i, t: S[4 - t, i], name="C"),
        lambda S: te.compute((4, 5), lambda i, t: S[t, i] * 2.0, name="C"),
        lambda S: te.compute((4, 5, 2), lambda i, t, k: S[t, i], name="C"),
    ],
)
def test_a_scan_does_not_write_what_is_no_plain_copy(copied):
    A, C = running((4, 5), copied)
    s = Schedule(te.function([A, C]))
    with pytest.raises(ScheduleError):
        s.reverse_compute_inline(s.get_block("C"))


def test_a_scan_does_not_write_a_copy_that_comes_before_its_end():
    text = """func @f(%A: f32[4], %C: f32[4]) stage scheduled {
  alloc %B: f32[4]
  for %i in 0..4 {
    block @first(%v: spatial 4 = %i) {
      reads %A[%v]
      writes %B[%v]
      %B[%v] = %A[%v]
    }
  }
  for %j in 0..4 {
    block @C(%w: spatial 4 = %j) {
      reads %B[%w]
      writes %C[%w]
      %C[%w] = %B[%w]
    }
  }
  for %k in 0..4 {
    block @second(%u: spatial 4 = %k) {
      reads %A[%u]
      writes %B[%u]
      %B[%u] = %A[%u] + 1.0
    }
  }
}
"""
    s = Schedule(parse(text))
    with pytest.raises(ScheduleError):
        s.reverse_compute_inline(s.get_block("C"))
