"""Dot products along a column: what they declare, what the machine does."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.dots import TAP_DOTS, tap_dot_of
from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.build import emit_module, lower_for
from tilewright.intrin.taps import spare_places
from tilewright.tensor.intrin import intrinsic

NUMPY = {"u8": np.uint8, "i8": np.int8}
X86, ARM = "x86_64-linux-gnu -mcpu=sapphirerapids", "aarch64-linux-gnu -mcpu=neoverse-v1"
MNEMONICS = {
    "vnni_u8_taps": "vpdpbusd",
    "vnni_u8_taps_256": "vpdpbusd",
    "madd_u8_taps": "vpmaddwd",
    "madd_u8_taps_256": "vpmaddwd",
    "neon_sdot_taps": "sdot",
    "neon_usdot_taps": "usdot",
}
every_dot = pytest.mark.parametrize("dot", TAP_DOTS, ids=lambda dot: dot.name)
every_size = pytest.mark.parametrize("rows", [2, 3, 4, 5, 8])


def bytes_of(name, *shape):
    limits = np.iinfo(NUMPY[name])
    found = np.random.default_rng(0).integers(limits.min, limits.max, shape, endpoint=True)
    return found.astype(NUMPY[name])


def packed(dot, rows, b):
    """Weights [lane, row] as groups per lane; what no row fills holds anything."""
    spare = spare_places(dot, rows)
    full = np.full((b.shape[0], rows + spare), 77, b.dtype)
    full[:, spare:] = b
    if full.shape[1] == dot.group:
        return full
    return np.ascontiguousarray(full.reshape(b.shape[0], -1, dot.group).transpose(1, 0, 2))


def sums(dot, rows, vectors):
    """Windows along rows of an image, by the intrinsic."""
    width, spare = dot.lanes * vectors, spare_places(dot, rows)
    groups = (rows + spare) // dot.group
    A = te.placeholder((7 + rows, 3, width), dot.a, name="A")
    shape = (width, dot.group) if groups == 1 else (groups, width, dot.group)
    B = te.placeholder(shape, dot.b, name="B")
    r, one = te.reduce_axis((0, rows), name="r"), te.reduce_axis((0, 1), name="one")

    def element(i, x, j):
        place = r + spare
        at = (j, place) if groups == 1 else (place // dot.group, j, place % dot.group)
        return te.sum(te.cast(A[i + r, x + one, j], dot.c) * te.cast(B[at], dot.c), axis=[one, r])

    sch = tw.Schedule(te.function([A, B, te.compute((8, 3, width), element, name="C")], name="f"))
    block = sch.get_block("C")
    _, _, lane, one, taps = sch.get_loops(block)
    sch.reorder(one, lane, taps)
    zero = sch.decompose_reduction(block, one)
    column = intrinsic(dot.name, rows=rows, vectors=vectors)
    sch.tensorize(lane, column)
    sch.tensorize(sch.get_loops(zero)[-1], column)
    return sch.function


def check(dot, rows, vectors, run):
    width = dot.lanes * vectors
    a, b = bytes_of(dot.a, 7 + rows, 3, width), bytes_of(dot.b, width, rows)
    got = np.ones((8, 3, width), np.int32)
    run(a, packed(dot, rows, b), got)
    windows = np.lib.stride_tricks.sliding_window_view(a.astype(np.int32), rows, axis=0)
    np.testing.assert_array_equal(got, (windows * b.astype(np.int32)).sum(-1))


@every_dot
@every_size
def test_columns_are_what_they_declare(dot, rows):
    fn = sums(dot, rows, 2)
    check(dot, rows, 2, lambda *args: tw.interpret(fn, *args))


@every_dot
@every_size
@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.sampled
def test_columns_agree_natively(dot, rows, vectors):
    target = Target.parse("cpu")
    fn = sums(dot, rows, vectors)
    if all(map(target.has, dot.features)):
        check(dot, rows, vectors, tw.build(fn, target))
    named = Target.parse(ARM if dot.name.startswith("neon") else X86)
    machine = llvm.machine_of(named)
    module = llvm.parse(emit_module(lower_for(fn, named), machine))
    llvm.optimize(module, machine)
    assert f"\t{MNEMONICS[dot.name]}\t" in llvm.to_assembly(module, machine)


def test_targets_have_the_first_that_they_can():
    found = {
        "x86_64-linux-gnu -mcpu=emeraldrapids": "vnni_u8_taps",
        "x86_64-linux-gnu -mcpu=skylake-avx512": "madd_u8_taps",
        "x86_64-linux-gnu -mcpu=haswell": "madd_u8_taps_256",
        "aarch64-linux-gnu -mcpu=neoverse-v1": "neon_usdot_taps",
    }
    for text, name in found.items():
        assert tap_dot_of(Target.parse(text), "u8", "i8").name == name
    n1 = Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1")
    assert tap_dot_of(n1, "u8", "i8") is None
    assert tap_dot_of(n1, "i8", "i8").name == "neon_sdot_taps"
    assert tap_dot_of(Target.parse("cuda -arch=sm_90a"), "i8", "i8") is None
