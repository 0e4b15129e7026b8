"""The demo's picture: drawn, shown as blocks, given to a model, told from its scores."""

import numpy as np

from tilewright.cli.demo_text import HEIGHT, as_blocks, as_input, drawn, read


def test_a_line_is_drawn_in_black_on_white():
    picture = drawn("some text")
    assert picture.shape[0] == HEIGHT
    assert picture.max() == 1
    assert picture.min() < 0.2
    assert drawn("some more text").shape[1] > picture.shape[1]


def test_a_picture_becomes_blocks_of_two_pixels():
    picture = np.ones((4, 6))
    picture[0, 1], picture[1, 2], picture[2:4, 3] = 0, 0, 0
    assert as_blocks(picture, 80) == "▀▄\n  █"
    assert max(map(len, as_blocks(drawn("wide " * 20), 60).splitlines())) <= 60


def test_the_model_gets_three_channels_from_minus_one_to_one():
    given = as_input(drawn("x"))
    assert given.shape[:3] == (1, 3, HEIGHT)
    assert given.dtype == np.float32
    assert given.max() == 1
    assert given.min() < -0.5


def test_repeats_are_read_once_and_blanks_not_at_all():
    alphabet = ["", "a", "b"]
    scores = np.eye(3)[[1, 1, 0, 1, 2, 2, 0]]
    assert read(scores, alphabet) == "aab"
