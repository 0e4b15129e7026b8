"""An axis without elements has nothing to be read from: the call is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.graph import parse

IMAGE = "%x: f32[2, h, w]"
EMPTY = ((2, 0, 5), (2, 3, 0))


def text(body: str, params: str) -> str:
    return f"graph @main({params}) {{\n{body}\n  return %y\n}}\n"


def resize(mode: str) -> str:
    return f'  %y = resize(%x) {{axes = (1, 2), mode = "{mode}", sizes = (4, 6)}}'


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_an_image_without_rows_is_not_resized_to_some(mode):
    model = tw.compile(parse(text(resize(mode), IMAGE)), threads=1)
    (y,) = model(np.ones((2, 3, 5), np.float32))
    assert np.asarray(y) == pytest.approx(np.ones((2, 4, 6)))
    for shape in EMPTY:
        with pytest.raises(UserError, match=r"TW4012.*resize.*requirement 1 <= [hw]"):
            model(np.ones(shape, np.float32))


def test_an_image_known_to_be_empty_is_refused_when_compiled():
    with pytest.raises(UserError, match=r"TW1212.*axis 1 from 0 elements to 4"):
        parse(text(resize("linear"), "%x: f32[2, 0, 5]"))
    params = "%x: f32[1, 1, 0, 5], %grid: f32[1, 3, 3, 2]"
    with pytest.raises(UserError, match=r"TW1213.*without pixels"):
        parse(text("  %y = grid_sample(%x, %grid)", params))


def test_sizes_of_nothing_are_left_empty():
    body = '  %y = resize(%x, none, none, %sizes) {axes = (1, 2), mode = "linear"}'
    model = tw.compile(parse(text(body, f"{IMAGE}, %sizes: i64[2]")), threads=1)
    (y,) = model(np.ones((2, 0, 5), np.float32), np.array([0, 7]))
    assert np.asarray(y).shape == (2, 0, 7)
    (y,) = model(np.ones((2, 3, 5), np.float32), np.array([0, 7]))
    assert np.asarray(y).shape == (2, 0, 7)
    with pytest.raises(UserError, match="TW4012"):
        model(np.ones((2, 0, 5), np.float32), np.array([1, 7]))


def test_scales_leave_nothing_as_it_is():
    body = '  %y = resize(%x) {axes = (1, 2), mode = "linear", scales = (2.0, 2.0)}'
    model = tw.compile(parse(text(body, IMAGE)), threads=1)
    (y,) = model(np.ones((2, 0, 5), np.float32))
    assert np.asarray(y).shape == (2, 0, 10)


def test_an_image_without_pixels_is_not_sampled():
    body = "  %y = grid_sample(%x, %grid)"
    model = tw.compile(parse(text(body, "%x: f32[1, 1, h, w], %grid: f32[1, g, 3, 2]")), threads=1)
    image, grid = np.ones((1, 1, 0, 5), np.float32), np.zeros((1, 2, 3, 2), np.float32)
    with pytest.raises(UserError, match=r"TW4012.*grid_sample"):
        model(image, grid)
    (y,) = model(image, grid[:, :0])
    assert np.asarray(y).shape == (1, 1, 0, 3)


@pytest.mark.parametrize("index", [0, -1])
def test_nothing_has_neither_a_first_nor_a_last_element(index):
    body = f"  %i = dims() {{values = {index}}}\n  %y = gather(%x, %i) {{axis = 1}}"
    model = tw.compile(parse(text(body, IMAGE)), threads=1)
    (y,) = model(np.full((2, 3, 5), 7, np.float32))
    assert np.asarray(y) == pytest.approx(np.full((2, 5), 7))
    with pytest.raises(UserError, match="TW4012"):
        model(np.ones((2, 0, 5), np.float32))
