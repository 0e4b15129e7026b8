"""Element by element: chunks, lanes, unrolling."""

import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule
from tilewright.rules.cpu.elementwise import ELEMENTWISE

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"
OLDER = "x86_64-linux-gnu -mcpu=cascadelake"  # of slow gathers


def scaled(*shape):
    a = te.placeholder(shape, name="a")
    b = te.compute(shape, lambda *at: a[at] * 2.0 + 1.0, name="b")
    return te.function([a, b], name="scaled")


@pytest.mark.parametrize("shape", [(6, 50), (3, 4, 5)])
def test_every_plan_keeps_the_answer(check_plans, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check_plans(scaled(*shape), ELEMENTWISE, SERVER, [x], [(shape, np.float32)])


def test_a_pattern_of_short_rows_is_unrolled_whole(check_plans):
    a, c = te.placeholder((40, 3), name="a"), te.placeholder((3,), name="c")
    b = te.compute((40, 3), lambda i, j: a[i, j] * c[j], name="b")
    fn = te.function([a, c, b], name="scaled")
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    _, plan = check_plans(fn, ELEMENTWISE, SERVER, [x, x[0]], [((40, 3), np.float32)])
    assert plan.startswith("unroll=3 ")


def test_little_work_stays_on_one_thread_and_much_does_not():
    small = schedule(scaled(64, 64), SERVER, threads=2).decisions[0]
    large = schedule(scaled(1024, 1024), SERVER, threads=2).decisions[0]
    assert "parallel=none" in small.plan
    assert "parallel=inner chunk=4096" in large.plan


def test_functions_are_work_enough_for_a_turn():
    a = te.placeholder((64, 64), name="a")
    b = te.compute((64, 64), lambda i, j: te.exp(a[i, j]), name="b")
    made = schedule(te.function([a, b], name="f"), SERVER)
    assert made.decisions[0].plan.startswith("unroll=1 ")


def test_a_vector_is_as_long_as_a_row_of_windows(check_plans):
    """Rows of 9 bytes, each from another place: no lane is masked."""
    x = te.placeholder((9, 9, 3), dtype="u8", name="x")
    shape = (4, 4, 3, 9)
    y = te.compute(shape, lambda i, j, k, at: x[2 * i + k, 2 * j + at // 3, at % 3], name="y")
    fn = te.function([x, y], name="windows")
    image = np.arange(243, dtype=np.uint8).reshape(9, 9, 3)
    check_plans(fn, ELEMENTWISE, SERVER, [image], [(shape, np.uint8)])
    text = str(schedule(fn, SERVER).schedule.function)
    assert "vector 0..9" in text
    assert "where" not in text


def test_gathers_by_joined_loops_are_priced():
    """Pixels of three channels at positions that are loaded: no vector is contiguous."""

    def nanoseconds(are_loaded):
        x = te.placeholder((8192, 3), name="x")
        at = te.placeholder((4800,), dtype="i64", name="at")

        def pixel(i, c):
            place = te.max(te.min(at[i], 8191), 0) if are_loaded else i + 1
            return x[place, c] * 2.0

        y = te.compute((4800, 3), pixel, name="y")
        fn = te.function([x, at, y] if are_loaded else [x, y], name="pixels")
        return schedule(fn, OLDER).decisions[0].predicted_ns

    assert nanoseconds(are_loaded=True) > 2 * nanoseconds(are_loaded=False)


def test_elements_that_repeat_are_loaded_once_and_shuffled() -> None:
    """Nearest interpolation by a whole factor: not by elements, which would be gathered."""
    x = te.placeholder((64, 128), name="x")
    nearest = te.compute((64, 256), lambda i, j: x[i, j // 2], name="y")
    gathered = te.compute((64, 256), lambda i, j: x[i, (j * j) % 128], name="y")
    near, far = (
        schedule(te.function([x, y], name="layer"), "x86_64-linux-gnu -mcpu=cascadelake")
        for y in (nearest, gathered)
    )
    assert 2 * near.decisions[0].predicted_ns < far.decisions[0].predicted_ns
