"""The stream on the page about accelerators runs."""

import re
from pathlib import Path

import numpy as np

from tilewright.accel.isa import parse, print_stream
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify

PAGE = Path(__file__).parents[3] / "docs/internals/accelerators.md"


def test_the_stream_on_the_page_multiplies():
    (text,) = re.findall(r"```text\n(target .*?)```", PAGE.read_text(), re.DOTALL)
    stream = parse(text)
    assert print_stream(stream) == text
    verify(stream)
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, 16).astype(np.int8)
    w = random.integers(-128, 128, (16, 16)).astype(np.int8)
    made = simulate(stream, {"x": x, "w": w})["y"].view(np.int32)
    np.testing.assert_array_equal(made, w.astype(int) @ x)
