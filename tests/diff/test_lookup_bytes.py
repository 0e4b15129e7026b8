"""Bytes looked up in tables: NumPy's, by the instructions that each target has for it."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.target import Target
from tilewright.rules import default_schedule

INSTRUCTIONS = {
    "x86_64-linux-gnu -mcpu=emeraldrapids": "vpermt2b",
    "x86_64-linux-gnu -mcpu=znver4": "vpermt2b",
    "x86_64-linux-gnu -mcpu=cascadelake": "vpshufb",
    "x86_64-linux-gnu -mcpu=haswell": "vpshufb",
    "aarch64-linux-gnu -mcpu=neoverse-n1": "tbl",
    "aarch64-linux-gnu -mcpu=cortex-a53": "tbl",
}
HERE = ["cpu"]
if Target.host().has("avx512vbmi"):
    HERE += ["cpu -mattr=-avx512vbmi", "cpu -mattr=-avx512f"]


def lookup(rows, columns, of="u8"):
    x = te.placeholder((rows, columns), "u8", name="x")
    table = te.placeholder((256,), of, name="table")
    y = te.compute((rows, columns), lambda i, j: table[te.cast(x[i, j], "i64")], name="y")
    return te.function([x, table, y], name="lookup")


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("of", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [1, 7, 16, 40, 64, 65, 200])
def test_entries_are_those_of_numpy(target, of, columns):
    random = np.random.default_rng(columns)
    x = random.integers(0, 256, (9, columns)).astype(np.uint8)
    x.reshape(-1)[: min(x.size, 256)] = np.arange(min(x.size, 256))
    table = random.permutation(256).astype(np.uint8).view(of)
    y = np.zeros(x.shape, of)
    made = default_schedule(lookup(9, columns, "u8" if of is np.uint8 else "i8"), target, threads=1)
    tw.build(made.function, target)(x, table, y)
    np.testing.assert_array_equal(y, table[x])


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_the_instruction_is_in_the_code(target):
    made = default_schedule(lookup(8, 256), target, threads=1)
    assert INSTRUCTIONS[target] in tw.build(made.function, target).assembly
