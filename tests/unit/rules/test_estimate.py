"""What kernels are expected to take in either layout: the order is that of measured times.

Times were measured on a Neoverse N1, one thread, both forms in turns.
"""

from __future__ import annotations

import pytest

from tilewright.base.target import Target
from tilewright.graph import parse
from tilewright.lower.graph import lower_graph
from tilewright.rules.estimate import estimate_ns

ARM = Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1")
AVX512 = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
FIRST, LAST = "channels_first", "channels_last"


def shape(channels: int, size: int, layout: str) -> str:
    dims = [1, channels, size, size] if layout == FIRST else [1, size, size, channels]
    return f"f32{dims}"


def conv(layout: str, cin: int, size: int, cout: int, k: int, stride: int = 1, groups: int = 1):
    return f"""graph @main(%x: {shape(cin, size, layout)}, %w: f32{[cout, cin // groups, k, k]}) {{
      %y = conv(%x, %w) {{strides = {(stride,) * 2}, pads = {(k // 2,) * 4}, dilations = (1, 1),
                          groups = {groups}, layout = "{layout}"}}
      return %y
    }}"""


def pool(layout: str, channels: int, size: int, k: int, stride: int):
    return f"""graph @main(%x: {shape(channels, size, layout)}) {{
      %y = max_pool(%x) {{strides = {(stride,) * 2}, pads = {(k // 2,) * 4}, dilations = (1, 1),
                          kernel = {(k, k)}, layout = "{layout}"}}
      return %y
    }}"""


def transpose(layout: str, channels: int, size: int):
    perm = "(0, 2, 3, 1)" if layout == FIRST else "(0, 3, 1, 2)"
    return f"""graph @main(%x: {shape(channels, size, layout)}) {{
      %y = transpose(%x) {{perm = {perm}}}
      return %y
    }}"""


def microseconds(text: str, target: Target = ARM) -> float:
    fn = lower_graph(parse(text).main, "kernel")
    found = estimate_ns(fn, target, constants=("w",))
    assert found is not None
    return found / 1e3


# What is asked for, and microseconds measured channels first and last.
MEASURED = {
    "strides": ((conv, 64, 56, 128, 3, 2), (5892, 3449)),
    "strides, one pixel": ((conv, 64, 56, 128, 1, 2), (699, 364)),
    "rows of 7": ((conv, 960, 7, 320, 1), (1702, 933)),
    "rows of 14": ((conv, 256, 14, 256, 3), (9296, 6428)),
    "whole vectors": ((conv, 128, 28, 128, 3), (8613, 7090)),
    "planes": ((conv, 32, 112, 32, 3, 1, 32), (445, 300)),
    "planes, strides": ((conv, 96, 112, 96, 3, 2, 96), (933, 487)),
    "planes of 7": ((conv, 960, 7, 960, 3, 1, 960), (115, 43)),
    "windows that overlap": ((pool, 64, 112, 3, 2), (307, 271)),
    "transposes": ((transpose, 64, 56), (160, 83)),
}


@pytest.mark.parametrize("case", MEASURED.values(), ids=MEASURED)
def test_estimates_of_both_layouts_are_near_what_was_measured(case):
    (make, *sizes), measured = case
    first, last = (microseconds(make(layout, *sizes)) for layout in (FIRST, LAST))
    assert first > last
    for found, want in zip((first, last), measured, strict=True):
        assert want / 1.45 < found < want * 1.45


def test_rows_that_fill_no_vector_cost_little_where_loads_are_masked():
    ragged, whole = (microseconds(conv(FIRST, 64, n, 64, 1), AVX512) / n**2 for n in (31, 32))
    assert ragged < 1.2 * whole
    ragged, whole = (microseconds(conv(FIRST, 64, n, 64, 1)) / n**2 for n in (31, 32))
    assert ragged > 1.2 * whole


def test_places_that_only_indices_tell_are_no_gathers():
    text = f"""graph @main(%x: {shape(64, 28, LAST)}) {{
      %y = resize(%x) {{axes = (1, 2), sizes = (56, 56), mode = "nearest"}}
      return %y
    }}"""
    moved = (28 * 28 + 56 * 56) * 64 * 4
    assert microseconds(text) < 2 * moved / ARM.machine.memory_bytes_per_cycle / 2.6e3
