"""Regions of blocks: one box per buffer, never smaller than what is touched."""

import pytest

from tilewright import sym
from tilewright.sym import Context
from tilewright.tensor import parse
from tilewright.tensor.intrin import TensorIntrin, declare
from tilewright.tensor.ir import Block, Range, Region
from tilewright.tensor.printer import Printer
from tilewright.tensor.regions import (
    access_regions,
    are_disjoint,
    clipped,
    contains,
    region_over,
    stop_of,
    union,
    whole,
)
from tilewright.tensor.visit import blocks


def regions_of(text: str) -> tuple[str, str]:
    """The reads and writes derived for the last block of a function, as text."""
    fn = parse(text)
    block: Block = list(blocks(fn.body))[-1]
    reads, writes = access_regions(block.body, block.init, block.iters)
    return shown(*reads), shown(*writes)


def shown(*regions: Region) -> str:
    printer = Printer()
    return ", ".join(printer.region(region) for region in regions)


def body_of(block: str, params: str = "%A: f32[n], %B: f32[n]") -> str:
    return f"func @f({params}) stage scheduled {{ {block} }}"


def test_points_have_extent_one():
    text = body_of("""
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[%vi] * 2.0 }
        }""")
    assert regions_of(text) == ("%A[%vi]", "%B[%vi]")


def test_a_stencil_becomes_one_box():
    text = body_of("""
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[%vi - 1] + %A[%vi] + %A[%vi + 1] }
        }""")
    assert regions_of(text) == ("%A[%vi - 1 +: 3]", "%B[%vi]")


def test_a_stencil_is_found_in_any_order():
    text = body_of("""
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[%vi + 1] + %A[%vi - 1] }
        }""")
    assert regions_of(text)[0] == "%A[%vi - 1 +: 3]"


def test_a_distance_that_is_a_size_is_kept():
    text = body_of(
        """
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[%vi] + %A[%vi + n] }
        }""",
        "%A: f32[m], %B: f32[n]",
    )
    assert regions_of(text)[0] == "%A[%vi +: n + 1]"


def test_a_distance_that_varies_takes_the_whole_dimension():
    text = body_of(
        """
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[%vi, 3] + %A[%vi * 2, 4] }
        }""",
        "%A: f32[m, 8], %B: f32[n]",
    )
    assert regions_of(text)[0] == "%A[0 +: m, 3 +: 2]"


def test_an_index_read_from_memory_takes_the_whole_dimension():
    text = body_of(
        """
        for %i in 0..n {
          block @B(%vi: spatial n = %i) { %B[%vi] = %A[index(%I[%vi]), %vi] }
        }""",
        "%A: f32[m, n], %I: i32[n], %B: f32[n]",
    )
    assert regions_of(text) == ("%A[0 +: m, %vi], %I[%vi]", "%B[%vi]")


def test_an_update_does_not_list_the_read_of_its_own_output():
    text = body_of(
        """
        for %i in 0..n {
          for %k in 0..m {
            block @B(%vi: spatial n = %i, %vk: reduce m = %k) {
              init { %B[%vi] = 0.0 }
              %B[%vi] sum= %A[%vi, %vk]
            }
          }
        }""",
        "%A: f32[n, m], %B: f32[n]",
    )
    assert regions_of(text) == ("%A[%vi, %vk]", "%B[%vi]")


def test_a_reduction_written_out_does_not_list_it_either():
    text = body_of(
        """
        for %i in 0..n {
          for %k in 0..m {
            block @B(%vi: spatial n = %i, %vk: reduce m = %k) {
              init { %B[%vi] = 0.0 }
              %B[%vi] = %B[%vi] + %A[%vi, %vk]
            }
          }
        }""",
        "%A: f32[n, m], %B: f32[n]",
    )
    assert regions_of(text) == ("%A[%vi, %vk]", "%B[%vi]")


def test_a_recurrence_does_list_the_earlier_step():
    text = body_of("""
        for %i in 0..n - 1 {
          block @B(%vi: scan n - 1 = %i) { %B[%vi + 1] = %B[%vi] + %A[%vi + 1] }
        }""")
    assert regions_of(text) == ("%B[%vi], %A[%vi + 1]", "%B[%vi + 1]")


def test_what_init_reads_comes_last():
    text = body_of(
        """
        for %i in 0..n {
          for %k in 0..m {
            block @B(%vi: spatial n = %i, %vk: reduce m = %k) {
              init { %B[%vi] = %C[%vi] }
              %B[%vi] sum= %A[%vi, %vk]
            }
          }
        }""",
        "%A: f32[n, m], %C: f32[n], %B: f32[n]",
    )
    assert regions_of(text) == ("%A[%vi, %vk], %C[%vi]", "%B[%vi]")


def test_loops_and_lets_inside_a_block_are_eliminated():
    text = body_of(
        """
        for %i in 0..n {
          block @B(%vi: spatial n = %i) {
            for %j in 0..4 {
              let %p: index = %vi * 4 + %j
              %B[%p] = %A[%p + 1]
            }
          }
        }""",
        "%N: f32[n], %A: f32[m], %B: f32[n * 4]",
    )
    assert regions_of(text) == ("%A[%vi * 4 + 1 +: 4]", "%B[%vi * 4 +: 4]")


def test_a_block_inside_counts_by_its_regions():
    text = body_of(
        """
        for %i in 0..4 {
          block @outer(%vi: spatial 4 = %i) {
            for %j in 0..8 {
              block @inner(%vj: spatial 32 = %vi * 8 + %j) {
                reads %A[%vj]
                writes %B[%vj]
                %B[%vj] = %A[%vj]
              }
            }
          }
        }""",
        "%A: f32[32], %B: f32[32]",
    )
    fn = parse(text)
    block = next(iter(blocks(fn.body)))
    reads, writes = access_regions(block.body, block.init, block.iters)
    assert (shown(*reads), shown(*writes)) == ("%A[%vi * 8 +: 8]", "%B[%vi * 8 +: 8]")


def test_external_calls_count_by_their_regions():
    text = body_of(
        """
        block @C() {
          extern sgemm(%A[0 +: n, 0 +: n], %B[0 +: n, 0 +: n]) -> (%C[0 +: n, 0 +: n])
        }""",
        "%A: f32[n, n], %B: f32[n, n], %C: f32[n, n]",
    )
    assert regions_of(text) == (
        "%A[0 +: n, 0 +: n], %B[0 +: n, 0 +: n]",
        "%C[0 +: n, 0 +: n]",
    )


@pytest.mark.parametrize(
    ("phase", "reads"),
    [("compute", "%A[0 +: 4]"), ("update", "%A[0 +: 4]"), ("reset", "")],
)
def test_calls_of_intrinsics_count_by_their_regions(phase, reads):
    behavior = parse(
        body_of(
            """
            for %i in 0..4 {
              block @total(%vi: reduce 4 = %i) {
                writes %o[]
                init { %o[] = 0.0 }
                %o[] sum= %a[%vi]
              }
            }""",
            "%a: f32[4], %o: f32[]",
        )
    )
    declare(TensorIntrin("regions_test_total", behavior))
    text = body_of(
        f"block @B() {{ call regions_test_total.{phase}(%A[0 +: 4], %B[]) }}",
        "%A: f32[8], %B: f32[]",
    )
    assert regions_of(text) == (reads, "%B[]")


def test_no_dimensions_no_ranges():
    text = body_of("block @B() { %B[] = %A[] }", "%A: f32[], %B: f32[]")
    assert regions_of(text) == ("%A[]", "%B[]")


# --------------------------------------------------------------------------- helpers


@pytest.fixture
def buffer():
    return parse(body_of("%B[0] = 1.0", "%B: f32[n], %C: f32[n, 64]")).buffers[1]


def box(buffer, *ranges):
    return Region(buffer, tuple(Range(sym.as_expr(a), sym.as_expr(b)) for a, b in ranges))


def test_region_over_runs_variables(buffer):
    i, j = sym.var("i"), sym.var("j")
    region = box(buffer, (i, 1), (j * 8, 8))
    over = region_over(region, {j: (sym.ZERO, sym.const(4))}, Context())
    assert shown(over) == "%C[%i, 0 +: 32]"


def test_region_over_runs_inner_before_outer(buffer):
    i, j = sym.var("i"), sym.var("j")
    region = box(buffer, (0, 1), (j, 1))
    loops = {i: (sym.ZERO, sym.const(4)), j: (i * 8, i * 8 + 8)}
    assert shown(region_over(region, loops, Context())) == "%C[0, 0 +: 32]"


def test_region_over_takes_the_whole_dimension_where_no_bound_is_known(buffer):
    i = sym.var("i")
    region = box(buffer, (i * i - i * 7, 1), (i, 2))
    n = buffer.shape[0]
    over = region_over(region, {i: (sym.ZERO, n)}, Context())
    assert shown(over) == "%C[0 +: n, 0 +: n + 1]"


def test_union_of_overlapping_boxes(buffer):
    i = sym.var("i")
    ctx = Context().bind(i, sym.ZERO, buffer.shape[0])
    a, b = box(buffer, (i, 1), (0, 8)), box(buffer, (i, 2), (4, 16))
    assert shown(union(a, b, ctx)) == "%C[%i +: 2, 0 +: 20]"


def test_union_keeps_the_box_that_holds_the_other(buffer):
    a, b = whole(buffer), box(buffer, (0, 1), (4, 16))
    assert shown(union(a, b, Context())) == shown(a)


def test_union_of_boxes_that_cannot_be_compared(buffer):
    i, j = sym.var("i"), sym.var("j")
    a, b = box(buffer, (i, 1), (0, 1)), box(buffer, (j, 1), (0, 1))
    assert shown(union(a, b, Context())) == "%C[0 +: n, 0]"


def test_clipped_stays_inside_the_buffer(buffer):
    i = sym.var("i")
    ctx = Context().bind(i, sym.ZERO, sym.const(8))
    region = clipped(box(buffer, (0, 1), (i * 8 - 1, 10)), ctx)
    start, stop = region.ranges[1].start, stop_of(region.ranges[1])
    for value in range(8):
        first, last = (sym.evaluate(x, {i: value}) for x in (start, stop))
        assert (first, last) == (max(0, value * 8 - 1), min(64, value * 8 + 9))


def test_containment_and_disjointness(buffer):
    i = sym.var("i")
    ctx = Context().bind(i, sym.ZERO, sym.const(4))
    inner, outer = box(buffer, (0, 1), (i * 8 + 2, 2)), box(buffer, (0, 1), (i * 8, 8))
    beside = box(buffer, (0, 1), (i * 8 + 8, 8))
    assert contains(outer, inner, ctx)
    assert not contains(inner, outer, ctx)
    assert are_disjoint(outer, beside, ctx)
    assert not are_disjoint(outer, inner, ctx)
