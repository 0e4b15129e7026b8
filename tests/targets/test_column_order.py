"""Rows of right operands that copies put in another order: which, and what threads hold then."""

import re

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.column_order import AXES, GROUP, reordered
from tilewright.codegen.launches import box_of, matrix_of
from tilewright.codegen.nvptx import device_code
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.runtime.cuda import grouped_axes
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
PLAN = "groups=1 block_n={n} slots=4 span=1 split_k=1 boxes=1 cluster={cluster} along={along}"
REST = "resident=1 pingpong=0 evict_first=0"


def gemm(m, n, k, *, along_n=False, batch=0, result="bf16", bias=False):
    outer = (batch,) if batch else ()
    a = te.placeholder((*outer, m, k), "bf16", name="a")
    b = te.placeholder((*outer, k, n) if along_n else (*outer, n, k), "bf16", name="b")
    r = te.reduce_axis((0, k), name="r")

    def element(*at):
        *which, i, j = at
        right = b[(*which, r, j)] if along_n else b[(*which, j, r)]
        return te.sum(te.cast(a[(*which, i, r)], "f32") * te.cast(right, "f32"), axis=r)

    c = te.compute((*outer, m, n), element, name="c")
    if result == "f32" and not bias:
        return te.function([a, b, c], name="f")
    row = te.placeholder((n,), "f32", name="row")

    def finished(*at):
        return te.cast(c[at] + row[at[-1]] if bias else c[at], result)

    d = te.compute((*outer, m, n), finished, name="d")
    return te.function([a, b, *([row] if bias else []), d], name="f")


def kernel(fn, n=64, cluster=1, along="k"):
    plan = f"{PLAN.format(n=n, cluster=cluster, along=along)} {REST}"
    made = schedule(fn, TARGET, choices={"c": Choice("gemm_hopper", plan)})
    return lower(made.schedule.function, "gpu")


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (gemm(256, 256, 128), {}),
        (gemm(256, 256, 128, bias=True), {}),
        (gemm(256, 256, 128, result="f32", bias=True), {"n": 96}),
        (gemm(256, 256, 128), {"cluster": 2, "along": "n"}),
    ],
)
def test_a_right_operand_whose_sums_leave_as_rows_is_reordered(fn, options):
    made = kernel(fn, **options)
    names = {buffer.name.split("_")[0] for buffer in reordered(made.body)}
    assert "b" in names
    assert "a" not in names
    code = device_code(made, TARGET)
    assert ".tensor.5d." in code.ptx
    assert "shfl" not in code.ptx  # nothing is exchanged
    (moved,) = [each for each in code.kernels[0].maps if each.is_reordered]
    assert moved.buffer.name == "b"


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (gemm(256, 1000, 128), {}),  # the last group is not whole
        (gemm(256, 256, 128, along_n=True), {}),  # rows are along the sum
        (gemm(256, 256, 128, batch=2), {}),  # an axis more than maps have
        (gemm(256, 256, 128, result="f32"), {}),  # stored by pairs
        (gemm(256, 256, 512), {"n": 128, "cluster": 2, "along": "k"}),  # others add to the sums
    ],
)
def test_all_others_stay_in_order(fn, options):
    made = kernel(fn, **options)
    assert not reordered(made.body)
    ptx = device_code(made, TARGET).ptx
    assert ".tensor.5d." not in ptx


def test_threads_hold_neighbours_of_a_row():
    """What a copy by the map brings, and what a product then leaves each of four threads."""
    code = device_code(kernel(gemm(256, 256, 128)), TARGET)
    (moved,) = [each for each in code.kernels[0].maps if each.is_reordered]
    shape, box = matrix_of(moved, {}), box_of(moved)
    assert np.prod(box[:-1]) == moved.rows
    extents, apart = grouped_axes(shape, box)
    rows = np.arange(shape[0])
    item = rows.itemsize
    seen = np.lib.stride_tricks.as_strided(rows, extents[:0:-1], [a * item for a in apart[::-1]])
    tile = seen[: box[0]].reshape(-1)  # the matrix's row of each row of a tile
    assert sorted(tile) == list(range(moved.rows))
    for group in range(moved.rows // GROUP):
        for thread in range(4):
            held = [GROUP * group + 8 * j + 2 * thread + e for j in range(4) for e in range(2)]
            assert list(tile[held]) == list(
                range(GROUP * group + 8 * thread, GROUP * group + 8 * thread + 8)
            )
    assert np.prod(AXES) == GROUP


def test_addresses_of_a_group_count_groups():
    ptx = device_code(kernel(gemm(256, 256, 128)), TARGET).ptx
    places = re.findall(r"\.tensor\.5d\.\S+ \[[^\]]+\], \[[^{]+\{([^}]+)\}", ptx)
    assert places
    assert all(len(set(place.split(", ")[1:4])) == 1 for place in places)  # j, q and e begin at 0
