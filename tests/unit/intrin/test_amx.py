"""AMX tiles: what loads, products and stores declare, what matches them, what the machine does."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.target import Target
from tilewright.base.tiles import ROWS
from tilewright.runtime import _native
from tilewright.tensor.intrin import intrinsic

# name, types of A, B and C, elements of k in a group, a mnemonic of the product
PRODUCTS = [
    ("bf16", "bf16", "bf16", "f32", 2, "tdpbf16ps"),
    ("u8", "u8", "i8", "i32", 4, "tdpbusd"),
    ("i8", "i8", "i8", "i32", 4, "tdpbssd"),
]
every_product = pytest.mark.parametrize(
    ("name", "a", "b", "c", "group", "mnemonic"), PRODUCTS, ids=[p[0] for p in PRODUCTS]
)
RESULT = {"f32": np.float32, "i32": np.int32}
COPIES = [
    ("amx_load_bf16_rows", "bf16", (ROWS, 32)),
    ("amx_load_bf16_groups", "bf16", (16, 16, 2)),
    ("amx_load_u8_rows", "u8", (ROWS, 64)),
    ("amx_load_u8_groups", "u8", (16, 16, 4)),
    ("amx_load_i8_rows", "i8", (ROWS, 64)),
    ("amx_load_i8_groups", "i8", (16, 16, 4)),
    ("amx_store_f32", "f32", (16, 16)),
    ("amx_store_i32", "i32", (16, 16)),
]


def matmul(name, a, b, c, group, n=32, m=32, steps=2):
    """A product of whole tiles: one tile of each operand at a time."""
    depth = 16 * group
    k = steps * depth
    A, B = te.placeholder((n, k), a, name="A"), te.placeholder((k, m), b, name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (n, m), lambda i, j: te.sum(te.cast(A[i, r], c) * te.cast(B[r, j], c), axis=r), name="C"
    )
    sch = tw.Schedule(te.function([A, B, C], name="matmul"))
    block = sch.get_block("C")
    packed = sch.cache_read(block, 1, "global")
    a_tile = sch.cache_read(block, 0, "amx.tile")
    b_tile = sch.cache_read(block, 1, "amx.tile")
    c_tile = sch.cache_write(block, 0, "amx.tile")
    i, j, r = sch.get_loops(block)
    io, ii = sch.split(i, [None, 16])
    jo, ji = sch.split(j, [None, 16])
    ro, ri = sch.split(r, [None, depth])
    sch.reorder(jo, io, ro, ii, ji, ri)
    sch.reverse_compute_at(c_tile, io)
    sch.compute_at(a_tile, ro)
    sch.compute_at(b_tile, ro)
    groups = f"(k, j) -> (j // 16, k // {group}, j % 16, k % {group})"
    sch.transform_layout(packed, ("write", 0), groups)
    sch.transform_layout(b_tile, ("write", 0), groups)
    zero = sch.decompose_reduction(block, ro)
    sch.tensorize(ii, f"amx_{name}_dot")
    sch.tensorize(sch.get_loops(zero)[-2], f"amx_{name}_dot")
    sch.tensorize(sch.get_loops(a_tile)[-2], f"amx_load_{a}_rows")
    sch.tensorize(sch.get_loops(b_tile)[-2], f"amx_load_{b}_groups")
    sch.tensorize(sch.get_loops(c_tile)[-2], f"amx_store_{c}")
    return sch.function


@every_product
def test_a_product_means_what_numpy_says(name, a, b, c, group, mnemonic, tile):
    of = RESULT[c]
    left, right, out = tile(a, 16, 16 * group), tile(b, 16, 16, group), np.zeros((16, 16), of)
    tw.interpret(intrinsic(f"amx_{name}_dot").behavior, left, right, out)
    wide = right.astype(of).transpose(0, 2, 1).reshape(-1, 16)
    np.testing.assert_array_equal(out, left.astype(of) @ wide)


@pytest.mark.parametrize(("copy", "of", "shape"), COPIES, ids=[copy[0] for copy in COPIES])
def test_a_copy_means_what_numpy_says(copy, of, shape, tile):
    source = tile(of, *shape)
    target = np.zeros_like(source)
    tw.interpret(intrinsic(copy).behavior, source, target)
    np.testing.assert_array_equal(target, source)


@every_product
def test_a_product_of_tiles_is_the_product(name, a, b, c, group, mnemonic, tile):
    left, right = tile(a, 32, 32 * group), tile(b, 32 * group, 32)
    out = np.zeros((32, 32), RESULT[c])
    tw.interpret(matmul(name, a, b, c, group), left, right, out)
    np.testing.assert_array_equal(out, left.astype(RESULT[c]) @ right.astype(RESULT[c]))


@every_product
def test_it_becomes_instructions(name, a, b, c, group, mnemonic):
    built = tw.build(matmul(name, a, b, c, group), "x86_64-linux-gnu -mcpu=sapphirerapids")
    for instruction in (mnemonic, "tileloadd", "tilestored", "tilezero", "tilerelease"):
        assert instruction in built.assembly


@every_product
def test_the_machine_agrees(name, a, b, c, group, mnemonic, tile):
    feature = "amx-bf16" if name == "bf16" else "amx-int8"
    if not Target.host().has(feature) or not _native.request_tiles():
        pytest.skip(f"this machine has no {feature}, or its system does not grant tiles")
    left, right = tile(a, 32, 32 * group), tile(b, 32 * group, 32)
    out = np.zeros((32, 32), RESULT[c])
    tw.build(matmul(name, a, b, c, group))(left, right, out)
    np.testing.assert_array_equal(out, left.astype(RESULT[c]) @ right.astype(RESULT[c]))


@pytest.mark.parametrize(("of", "deep"), [("bf16", 32), ("u8", 64)])
@pytest.mark.parametrize(("apart", "rows"), [(6, 16), (1, 14), (40, 9)])
def test_windows_overlap_in_memory(of, deep, apart, rows, tile):
    line = tile(of, (rows - 1) * apart + deep, 1)
    seen = np.zeros((rows, deep), line.dtype)
    tw.interpret(intrinsic(f"amx_load_{of}_windows", stride=apart, rows=rows).behavior, line, seen)
    for row in range(rows):
        np.testing.assert_array_equal(seen[row], line[row * apart : row * apart + deep, 0])


def test_windows_that_do_not_move_are_unknown():
    with pytest.raises(tw.TilewrightError, match="stride=0") as caught:
        intrinsic("amx_load_bf16_windows", stride=0)
    assert caught.value.code == "TW2011"
