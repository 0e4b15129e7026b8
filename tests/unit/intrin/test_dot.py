"""Dot products of short groups: what they declare, what matches them, what the machine does."""

from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.tensor.intrin import intrinsic


@dataclass(frozen=True)
class Dot:
    name: str
    a: str
    b: str
    c: str
    lanes: int
    group: int
    target: str
    feature: str
    mnemonic: str

    def __str__(self):
        return self.name

    @property
    def result(self):
        return {"i32": np.int32, "f32": np.float32}[self.c]

    def product(self, a, b):
        """a of shape (n, k), b of shape (k / group, m, group)."""
        wide = b.astype(self.result).transpose(0, 2, 1).reshape(-1, b.shape[1])
        return a.astype(self.result) @ wide


CPU = "x86_64-linux-gnu -mcpu=sapphirerapids"
ARM = "aarch64-linux-gnu -mcpu=cortex-a76"
DOTS = [
    Dot("vnni_u8_dot", "u8", "i8", "i32", 16, 4, CPU, "avx512vnni", "vpdpbusd"),
    Dot("bf16_dot", "bf16", "bf16", "f32", 16, 2, CPU, "avx512bf16", "vdpbf16ps"),
    Dot("neon_sdot", "i8", "i8", "i32", 4, 4, ARM, "dotprod", "sdot"),
    Dot("neon_udot", "u8", "u8", "i32", 4, 4, ARM, "dotprod", "udot"),
]
every_dot = pytest.mark.parametrize("dot", DOTS, ids=str)


def matmul(dot, n=3, m=32, k=16, *, packed=True):
    """A product whose right operand holds groups side by side, by the intrinsic."""
    group = dot.group
    A = te.placeholder((n, k), dot.a, name="A")
    B = te.placeholder((k // group, m, group) if packed else (m, k), dot.b, name="B")
    o, r = te.reduce_axis((0, k // group), name="o"), te.reduce_axis((0, group), name="r")

    def element(i, j):
        b = B[o, j, r] if packed else B[j, o * group + r]
        return te.sum(te.cast(A[i, o * group + r], dot.c) * te.cast(b, dot.c), axis=[o, r])

    sch = tw.Schedule(te.function([A, B, te.compute((n, m), element, name="C")], name="matmul"))
    c = sch.get_block("C")
    _, j, o, r = sch.get_loops(c)
    _, inner = sch.split(j, [None, dot.lanes])
    sch.reorder(o, inner, r)
    zero = sch.decompose_reduction(c, o)
    sch.tensorize(inner, dot.name)
    sch.tensorize(sch.get_loops(zero)[-1], dot.name)
    return sch.function


@every_dot
def test_it_means_what_numpy_says(dot, tile):
    a, b = tile(dot.a, dot.group), tile(dot.b, dot.lanes, dot.group)
    c = np.zeros(dot.lanes, dot.result)
    tw.interpret(intrinsic(dot.name).behavior, a, b, c)
    np.testing.assert_array_equal(c, b.astype(dot.result) @ a.astype(dot.result))


@every_dot
def test_a_product_by_it_is_the_product(dot, tile):
    a, b = tile(dot.a, 3, 16), tile(dot.b, 16 // dot.group, 32, dot.group)
    c = np.zeros((3, 32), dot.result)
    function = matmul(dot)
    assert f"call {dot.name}.reset" in str(function)
    tw.interpret(function, a, b, c)
    np.testing.assert_array_equal(c, dot.product(a, b))


@every_dot
def test_it_becomes_the_instruction(dot):
    assert dot.mnemonic in tw.build(matmul(dot), dot.target).assembly


@every_dot
def test_the_machine_agrees(dot, tile):
    target, host = Target.parse(dot.target), Target.host()
    if target.arch != host.arch or not host.has(dot.feature):
        pytest.skip(f"this machine has no {dot.feature}")
    a, b = tile(dot.a, 3, 16), tile(dot.b, 16 // dot.group, 32, dot.group)
    c = np.zeros((3, 32), dot.result)
    run = tw.build(matmul(dot))
    run(a, b, c)
    np.testing.assert_array_equal(c, dot.product(a, b))


@every_dot
def test_groups_that_lie_apart_are_refused(dot):
    with pytest.raises(Unsupported) as caught:
        tw.build(matmul(dot, packed=False), dot.target)
    assert caught.value.code == "TW2206"
    assert f"along dimension 0 of %B they lie 16 apart, not {dot.group}" in caught.value.message
