"""Dot products of short groups: what they declare, what matches them, what the machine does."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.dots import CODE_DOTS, DOTS, ROW_DOTS, code_dots_of, dots_of, row_dot_of
from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.tensor.intrin import intrinsic

NUMPY = {"i32": np.int32, "f32": np.float32}
X86, ARM = "x86_64-linux-gnu -mcpu=sapphirerapids", "aarch64-linux-gnu -mcpu=neoverse-v1"
MNEMONICS = {
    "vnni_i8_dot": "vpdpbusd",
    "vnni_i8_dot_256": "vpdpbusd",
    "vnni_u8_dot": "vpdpbusd",
    "vnni_u8_dot_256": "vpdpbusd",
    "madd_i16_dot": "vpmaddwd",
    "madd_i16_dot_256": "vpmaddwd",
    "bf16_dot": "vdpbf16ps",
    "neon_sdot": "sdot",
    "neon_udot": "udot",
    "neon_usdot": "usdot",
    "neon_usdot_by_element": "sudot",
}
every_dot = pytest.mark.parametrize("dot", [*DOTS, *CODE_DOTS], ids=lambda dot: dot.name)


def target_of(dot):
    return ARM if dot.name.startswith("neon") else X86


def product(dot, a, b):
    """a of shape (n, k), b of shape (k / group, m, group)."""
    of = NUMPY[dot.c]
    return a.astype(of) @ b.astype(of).transpose(0, 2, 1).reshape(-1, b.shape[1])


def matmul(dot, n=3, m=32, k=16, *, packed=True):
    """A product whose right operand holds groups side by side, by the intrinsic."""
    group = dot.group
    A = te.placeholder((n, k), dot.a, name="A")
    B = te.placeholder((k // group, m, group) if packed else (m, k), dot.b, name="B")
    r = te.reduce_axis((0, k), name="r")

    def element(i, j):
        b = B[r // group, j, r % group] if packed else B[j, r]
        return te.sum(te.cast(A[i, r], dot.c) * te.cast(b, dot.c), axis=r)

    sch = tw.Schedule(te.function([A, B, te.compute((n, m), element, name="C")], name="matmul"))
    c = sch.get_block("C")
    _, j, r = sch.get_loops(c)
    _, inner = sch.split(j, [None, dot.lanes])
    o, r = sch.split(r, [None, dot.steps])
    sch.reorder(o, inner, r)
    zero = sch.decompose_reduction(c, o)
    sch.tensorize(inner, dot.name)
    sch.tensorize(sch.get_loops(zero)[-1], dot.name)
    return sch.function


@every_dot
def test_it_means_what_numpy_says(dot, tile):
    groups = (dot.groups,) if dot.groups > 1 else ()
    a, b = tile(dot.a, dot.steps), tile(dot.b, *groups, dot.lanes, dot.group)
    c = np.zeros(dot.lanes, NUMPY[dot.c])
    tw.interpret(intrinsic(dot.name).behavior, a, b, c)
    want = product(dot, a[None], b.reshape(dot.groups, dot.lanes, dot.group))
    np.testing.assert_array_equal(c, want[0])


@every_dot
def test_a_product_by_it_is_the_product(dot, tile):
    a, b = tile(dot.a, 3, 16), tile(dot.b, 16 // dot.group, 32, dot.group)
    c = np.zeros((3, 32), NUMPY[dot.c])
    function = matmul(dot)
    assert f"call {dot.name}.reset" in str(function)
    tw.interpret(function, a, b, c)
    np.testing.assert_array_equal(c, product(dot, a, b))


@every_dot
def test_it_becomes_the_instruction(dot):
    assembly = tw.build(matmul(dot), target_of(dot)).assembly
    short = dot.name.removesuffix("_by_element")
    assert MNEMONICS.get(dot.name, MNEMONICS[short]) in assembly
    assert not re.search(r"\b(call|bl)\s+llvm", assembly)  # a name that LLVM does not know


def test_elements_of_a_register_are_used_by_number():
    dot = next(dot for dot in DOTS if dot.name == "neon_sdot_by_element")
    assembly = tw.build(matmul(dot), ARM).assembly
    assert {re.search(rf"sdot.*\.4b\[{at}\]", assembly) is not None for at in range(4)} == {True}


@pytest.mark.parametrize(
    ("target", "types", "names"),
    [
        ("x86_64-linux-gnu -mcpu=cascadelake", "u8 i8 i32", ["vnni_u8_dot"]),
        ("x86_64-linux-gnu -mcpu=sapphirerapids", "u8 i8 i32", ["vnni_u8_dot"]),
        ("x86_64-linux-gnu -mcpu=alderlake", "u8 i8 i32", ["vnni_u8_dot_256"]),
        ("x86_64-linux-gnu -mcpu=cascadelake", "i8 i8 i32", []),
        ("x86_64-linux-gnu -mcpu=haswell", "i16 i16 i32", ["madd_i16_dot_256"]),
        ("x86_64-linux-gnu -mcpu=skylake-avx512", "i16 i16 i32", ["madd_i16_dot"]),
        ("x86_64-linux-gnu -mcpu=cooperlake", "bf16 bf16 f32", ["bf16_dot"]),
        (
            "aarch64-linux-gnu -mcpu=neoverse-n1",
            "i8 i8 i32",
            ["neon_sdot_by_element", "neon_sdot"],
        ),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", "u8 i8 i32", []),
        (
            "aarch64-linux-gnu -mcpu=neoverse-v1",
            "u8 i8 i32",
            ["neon_usdot_by_element", "neon_usdot"],
        ),
        ("aarch64-linux-gnu -mcpu=cortex-a53", "i8 i8 i32", []),
    ],
)
def test_a_target_has_the_widest(target, types, names):
    found = dots_of(Target.parse(target), *types.split())
    assert [dot.name for dot in found] == names


@pytest.mark.parametrize(
    ("target", "weights", "names"),
    [
        ("x86_64-linux-gnu -mcpu=cascadelake", "i8", []),
        ("x86_64-linux-gnu -mcpu=cascadelake", "u8", ["vnni_i8_dot"]),
        ("x86_64-linux-gnu -mcpu=alderlake", "u8", ["vnni_i8_dot_256"]),
        ("x86_64-linux-gnu -mcpu=haswell", "u8", []),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", "i8", ["neon_sdot_by_element", "neon_sdot"]),
    ],
)
def test_rows_with_a_sign_meet_weights_of_one_type(target, weights, names):
    assert [dot.name for dot in code_dots_of(Target.parse(target), weights)] == names


@every_dot
def test_the_machine_agrees(dot, tile):
    target, host = Target.parse(target_of(dot)), Target.host()
    if target.arch != host.arch or not all(map(host.has, dot.features)):
        pytest.skip(f"this machine has no {dot.features[-1]}")
    a, b = tile(dot.a, 3, 16), tile(dot.b, 16 // dot.group, 32, dot.group)
    c = np.zeros((3, 32), NUMPY[dot.c])
    run = tw.build(matmul(dot))
    run(a, b, c)
    np.testing.assert_array_equal(c, product(dot, a, b))


@pytest.mark.parametrize("dot", [dot for dot in DOTS if dot.groups == 1], ids=lambda dot: dot.name)
def test_groups_that_lie_apart_are_refused(dot):
    with pytest.raises(Unsupported) as caught:
        tw.build(matmul(dot, packed=False), target_of(dot))
    assert caught.value.code == "TW2206"
    assert f"along dimension 0 of %B they lie 16 apart, not {dot.group}" in caught.value.message


@pytest.mark.parametrize("dot", ROW_DOTS, ids=lambda dot: dot.name)
def test_dot_products_of_rows_are_what_they_declare(dot):
    random = np.random.default_rng(3)
    a, b = random.integers(-128, 128, (2, dot.lanes * dot.group)).astype(np.int8)
    found = np.ones(dot.lanes, np.int32)
    tw.interpret(intrinsic(dot.name).behavior, a, b, found)
    want = (a.astype(np.int32) * b).reshape(dot.lanes, dot.group).sum(1)
    np.testing.assert_array_equal(found, want)


def test_rows_need_an_instruction_that_divides_them():
    x86, arm = (Target.parse(one) for one in (X86, ARM))
    assert row_dot_of(x86, 32).name == "madd_i8_rows"
    assert row_dot_of(arm, 16).name == "neon_sdot_rows"
    assert row_dot_of(arm, 8) is None
    assert row_dot_of(Target.parse("riscv64-linux-gnu"), 16) is None
