"""Kernels that become one: what they compute, and who has to meet."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError
from tilewright.tensor import interpret, parse
from tilewright.tensor.ir import DEVICE, Function
from tilewright.tensor.join_kernels import join_kernels, stage_of
from tilewright.tensor.visit import kernels_of, replace_buffers

FIRST = """
func @first(%x: f32[24], %y: f32[24]) stage device {
  for %b in thread(blockIdx.x) 0..6 {
    for %t in thread(threadIdx.x) 0..4 {
      eval grid.launch()
      eval grid.wait()
      %y[%b * 4 + %t] = %x[%b * 4 + %t] + 1.0
    }
  }
}
"""
SECOND = """
func @second(%y: f32[24], %w: f32[6], %z: f32[6]) stage device {
  for %b in thread(blockIdx.x) 0..3 {
    alloc %s: f32[2] in shared
    for %t in thread(threadIdx.x) 0..2 {
      alloc %k: f32[1] in local
      eval grid.launch()
      %k[0] = %w[%b * 2 + %t]
      eval grid.wait()
      %s[%t] = %y[%b * 8 + %t * 3] * %k[0]
      eval barrier.shared()
      %z[%b * 2 + %t] = %s[1 - %t]
    }
  }
}
"""


X, W = np.arange(24, dtype=np.float32), np.linspace(1, 2, 6, dtype=np.float32)


def joined(meets=True, second=SECOND):
    """Both functions as one, in which the second reads what the first leaves."""
    before, after = parse(FIRST), parse(second)
    (x, y), (read, w, z) = before.buffers, after.buffers
    first, second = stage_of(before), stage_of(after)
    second = replace(second, kernel=replace_buffers(second.kernel, {read: y}))
    body = join_kernels([first, second], [False, meets])
    return Function("both", (x, w, y, z), body, stage=DEVICE)


def results(fn):
    y, z = np.zeros(24, np.float32), np.zeros(6, np.float32)
    interpret(fn, X, W, y, z)
    return y, z


def test_one_kernel_computes_what_two_computed():
    y, z = np.zeros(24, np.float32), np.zeros(6, np.float32)
    interpret(parse(FIRST), X, y)
    interpret(parse(SECOND), y, W, z)
    fn = joined()
    assert len(list(kernels_of(fn.body))) == 1
    for got, want in zip(results(fn), (y, z), strict=True):
        np.testing.assert_array_equal(got, want)
    assert parse(str(fn)) == fn


def test_weights_are_prefetched_before_blocks_meet():
    text = str(joined())
    assert text.index("%w[") < text.index("barrier.global") < text.index("* %k[0]")
    assert text.count("grid.wait") == text.count("grid.launch") == 1


def test_blocks_that_do_not_meet_are_found():
    with pytest.raises(ExecutionError) as caught:
        results(joined(meets=False))
    assert caught.value.code == "TW2305"


def test_what_a_name_stands_for_is_read_by_the_threads_of_its_stage_alone():
    """Blocks and threads that the second kernel does not have come by, and would read too far."""
    named = SECOND.replace(
        "%z[%b * 2 + %t] = %s[1 - %t]",
        "let %v: f32 = %w[%b * 2 + %t]\n      %z[%b * 2 + %t] = %s[1 - %t] * %v",
    )
    y, z = np.zeros(24, np.float32), np.zeros(6, np.float32)
    interpret(parse(FIRST), X, y)
    interpret(parse(named), y, W, z)
    np.testing.assert_array_equal(results(joined(second=named))[1], z)


def test_a_name_for_memory_around_a_meeting_is_not_joined():
    named = SECOND.replace("      eval grid.launch()\n", "      let %v: f32 = %w[%b * 2 + %t]\n", 1)
    assert stage_of(parse(named)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blockIdx.x", "blockIdx.y"),  # along another axis
        ("      eval grid.wait()\n", ""),  # nothing tells what may come early
        ("0..6", "1..6"),
    ],
)
def test_kernels_that_cannot_be_joined(old, new):
    assert stage_of(parse(FIRST.replace(old, new))) is None
