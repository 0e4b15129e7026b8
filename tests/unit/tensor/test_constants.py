"""Work on weights alone is taken out of a kernel."""

import numpy as np

import tilewright as tw
from tilewright import te, tensor
from tilewright.tensor.constants import Given, Packed, split_constant_blocks


def matmul(k=7, n=20, m=5, residual=False):
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    if not residual:
        return tw.Schedule(te.function([A, B, C], name="matmul"))
    D = te.compute((m, n), lambda i, j: C[i, j] + B[0, j], name="D")
    return tw.Schedule(te.function([A, B, D], name="matmul"))


def packed(sch):
    """The schedule with B in panels of eight columns, marked constant."""
    panels = sch.cache_read(sch.get_block("C"), 1, "global")
    sch.transform_layout(panels, ("write", 0), "(k, j) -> (j // 8, k, j % 8)")
    sch.annotate(panels, "constant", True)
    return sch


def run(split, *args):
    """Pack, then call the kernel, with the original function's arguments."""
    results = [np.zeros([int(d.value) for d in b.shape], np.float32) for b in split.results]
    if split.packer is not None:
        tensor.verify(split.packer)
        tensor.interpret(split.packer, *(args[at] for at in split.weights), *results)
    tensor.verify(split.kernel)
    tensor.interpret(
        split.kernel,
        *(args[p.position] if isinstance(p, Given) else results[p.position] for p in split.params),
    )


def arguments(sch):
    random = np.random.default_rng(0)
    return [
        random.standard_normal([int(d.value) for d in b.shape], dtype=np.float32)
        for b in sch.function.buffers
    ]


def test_a_packed_weight_takes_the_place_of_the_weight():
    sch = packed(matmul())
    split = split_constant_blocks(sch.function)
    assert split.packer.name == "matmul_constants"
    assert split.params == (Given(0), Packed(0), Given(2))
    assert split.weights == (1,)
    a, b, c = arguments(sch)
    run(split, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_a_weight_still_read_stays_beside_what_was_packed():
    sch = packed(matmul(residual=True))
    split = split_constant_blocks(sch.function)
    assert split.params == (Given(0), Given(1), Packed(0), Given(2))
    a, b, d = arguments(sch)
    run(split, a, b, d)
    np.testing.assert_allclose(d, a @ b + b[0], rtol=1e-5, atol=1e-5)


def test_steps_that_lead_to_what_is_packed_move_with_it():
    sch = matmul()
    first = sch.cache_read(sch.get_block("C"), 1, "global")
    second = sch.cache_read(sch.get_block("C"), 1, "global")
    for block in (first, second):
        sch.annotate(block, "constant", True)
    split = split_constant_blocks(sch.function)
    assert len(split.packer.allocs) == 1
    assert split.params == (Given(0), Packed(0), Given(2))
    a, b, c = arguments(sch)
    run(split, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_nothing_marked_leaves_the_function_alone():
    fn = matmul().function
    split = split_constant_blocks(fn)
    assert split.packer is None
    assert split.kernel is fn
    assert split.params == (Given(0), Given(1), Given(2))


def test_a_marked_block_inside_loops_of_others_stays():
    sch = matmul()
    copy = sch.cache_read(sch.get_block("C"), 1, "global")
    sch.compute_at(copy, sch.get_loops(sch.get_block("C"))[0])
    sch.annotate(copy, "constant", True)
    assert split_constant_blocks(sch.function).packer is None


def test_a_block_that_reads_what_is_computed_stays_though_marked():
    sch = matmul(residual=True)
    copy = sch.cache_read(sch.get_block("D"), 0, "global")
    sch.annotate(copy, "constant", True)
    assert split_constant_blocks(sch.function).packer is None


def test_a_block_of_a_size_known_only_at_the_call_stays():
    sch = matmul(n=te.var("n"))
    copy = sch.cache_read(sch.get_block("C"), 1, "global")
    sch.annotate(copy, "constant", True)
    assert split_constant_blocks(sch.function).packer is None


def test_sizes_and_the_order_of_others_are_kept():
    sch = packed(matmul(m=te.var("m")))
    split = split_constant_blocks(sch.function)
    assert split.params == (Given(0), Packed(0), Given(2))
    a, b = np.ones((3, 7), np.float32), np.ones((7, 20), np.float32)
    c = np.zeros((3, 20), np.float32)
    run(split, a, b, c)
    np.testing.assert_allclose(c, a @ b)


def test_a_prefetch_alone_is_no_constant_work():
    """A nest that writes nothing has no result to hand over, and names its buffer by address."""
    text = """
func @f(%A: f32[16], %B: f32[16]) stage scheduled {
  for %i in 0..4 {
    block @ahead(%vi: spatial 4 = %i) {
      annotate constant = true
      eval prefetch(address(%A[%vi]))
    }
  }
  for %j in 0..16 {
    block @B(%vj: spatial 16 = %j) {
      reads %A[%vj]
      writes %B[%vj]
      %B[%vj] = %A[%vj]
    }
  }
}
"""
    assert split_constant_blocks(tensor.parse(text)).packer is None


def test_a_weight_that_is_still_prefetched_stays():
    sch = matmul()
    block = sch.get_block("C")
    sch.prefetch(block, 1, sch.get_loops(block)[2], 2)
    split = split_constant_blocks(packed(sch).function)
    assert split.params == (Given(0), Given(1), Packed(0), Given(2))
    a, b, c = arguments(sch)
    run(split, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
