"""Structures of functions that no rule knows, and their decisions."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sketch_programs as programs

from tilewright import te
from tilewright.base.errors import UserError
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.sketch.features import FEATURE_NAMES

# The answers are not to depend on the machine that runs the tests.
NARROW, WIDE = "aarch64-linux-gnu -mcpu=neoverse-n1", "x86_64-linux-gnu -mcpu=emeraldrapids"


def names(fn, threads=2):
    return [grid.name for grid in SketchSpace(fn, NARROW, threads=threads).grids]


@cache
def names_of(program):
    return names(programs.PROGRAMS[program]())


def test_the_default_is_what_the_rules_make():
    fn = programs.gemm()
    space = SketchSpace(fn, threads=2)
    assert space.choice(space.default(), 0) == "rules"
    assert space.estimate(space.default())[0] > 0


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("noisy_or", "y:tile@n"),  # multi-level tiles of any reducer
        ("gemm", "c:tile@j;d:follow"),  # what follows is fused
        ("gemm", "c:tile@j+b;d:follow"),  # an operand packed
        ("gemm", "c:tile@j;d:plain"),  # and not fused
        ("squares", "s:parts"),  # rfactor for threads
        ("squares", "s:rows"),  # rfactor for lanes
        ("stencil", "step1:under;step2:under;step3:tile@x"),  # producers inside of tiles
        ("stencil", "step1:plain;step2:plain;step3:plain"),
        ("convolution", "y:tile@out+k"),  # lanes along an axis that packing makes contiguous
        ("bit_convolution", "y:tile@out"),
        ("colours", "y:tile@column_c"),  # two axes as one, which is long enough for lanes
    ],
)
def test_structures(program, wanted):
    assert wanted in names_of(program)


def test_bytes_are_multiplied_by_the_instruction_for_it():
    fn = programs.bytes_gemm()
    space = SketchSpace(fn, "aarch64-linux-gnu -mcpu=neoverse-n1", threads=1)
    grid = next(grid for grid in space.grids if grid.name.startswith("c:dot("))
    rows = grid.drawn(6, np.random.default_rng(0))
    args = programs.arguments(fn)
    want = programs.answers(fn, args)[0]
    for row in rows:
        made = space.schedule(grid.text(row.tolist())).function
        assert "neon_sdot" in str(made)
        assert np.array_equal(programs.answers(made, args)[0], want)


def test_long_sums_can_be_taken_in_blocks():
    assert "c:blocks@j;d:follow" in names(programs.gemm(64, 64, 512))
    assert "c:blocks@j;d:follow" not in names(programs.gemm(64, 64, 9))


def test_cheap_producers_are_inlined_as_an_alternative():
    found = names(programs.stencil())
    assert "step3:tile@x" in found  # the steps before disappear into it


def test_a_space_says_its_size_without_listing_it():
    space = SketchSpace(programs.bit_convolution(28, 28, 8, 128), threads=2)
    assert space.size > 10**9
    assert space.enumerate(10**6) is None
    assert len(space.sample(2000, np.random.default_rng(0))) == 2000


def test_tiles_need_not_divide():
    space = SketchSpace(programs.gemm(13, 11, 9), "cpu", threads=1)
    points = space.sample(400, np.random.default_rng(0))
    inner = set()
    for row in range(len(points)):
        _, values = space.values(points, row)
        inner.add(values.get("c.i.inner"))
    assert {2, 3, 4, 5} <= inner  # of 13


@pytest.mark.parametrize("target", [NARROW, WIDE])
def test_text_of_a_point_is_read_back(target):
    space = SketchSpace(programs.gemm(), target, threads=2)
    points = space.sample(15, np.random.default_rng(3))
    for row in range(len(points)):
        text = space.choice(points, row)
        assert np.array_equal(space.point(text), points[row : row + 1])
        assert space.schedule(text).trace == space.schedule(text).trace


def test_text_of_no_point_is_refused():
    space = SketchSpace(programs.gemm(), threads=2)
    with pytest.raises(UserError, match="is no sketch of @gemm") as error:
        space.schedule("c:tile@j;d:follow c.i.inner=99")
    assert error.value.code == "TW5103"


@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_features_and_estimates_of_every_structure(program):
    space = SketchSpace(programs.PROGRAMS[program](), threads=2)
    points = space.sample(300, np.random.default_rng(0))
    features = space.features(points)
    assert features.shape == (len(points), len(space.feature_names))
    assert space.feature_names[: 1 + len(FEATURE_NAMES)] == ("log_ns", *FEATURE_NAMES)
    decided = dict(zip(space.feature_names, features.T, strict=True))
    for row in range(len(points)):
        for name, value in space.values(points, row)[1].items():
            told = decided[name][row] if isinstance(value, int) else decided[f"{name}={value}"][row]
            assert told == pytest.approx(np.log2(1 + abs(value)) if isinstance(value, int) else 1)
    assert np.isfinite(features).all()
    assert (space.estimate(points) > 0).all()


def test_the_estimate_prefers_tiles_that_fill_registers():
    space = SketchSpace(programs.gemm(256, 256, 256), WIDE, threads=1)
    text = (
        "c:tile@j;d:follow c.i.inner={} c.i.middle=1 c.i.block=1 c.j.inner={} c.j.middle=1 "
        "c.j.block=1 c.r.unroll=1 c.order=program"
    )
    few, many = (space.estimate(space.point(text.format(*tile)))[0] for tile in ((1, 1), (8, 2)))
    assert many < few / 3


def test_formulas_print():
    space = SketchSpace(programs.gemm(), threads=2)
    shown = str(space.model("c:tile@j;d:follow").formulas["c"])
    assert "trips/tile = " in shown
    assert "c.i.inner" not in shown
    assert "i.inner" in shown


def test_dynamic_sizes_have_sketches():
    fn = programs.dynamic_gemm()
    space = SketchSpace(fn, threads=2)
    args = programs.arguments(fn, sizes={"n": 7, "m": 18})
    want = programs.answers(fn, args)[0]
    points = space.sample(8, np.random.default_rng(0))
    for row in range(len(points)):
        made = space.schedule(space.choice(points, row)).function
        np.testing.assert_allclose(programs.answers(made, args)[0], want, rtol=1e-5)


def test_axes_that_are_one_have_a_plain_way_too():
    a = te.placeholder((32, 6), name="a")
    fn = te.function([a, te.compute((32, 6), lambda i, j: a[i, j] + 1.0, name="b")], name="f")
    space = SketchSpace(fn, threads=2)
    args = programs.arguments(fn)
    want = programs.answers(fn, args)[0]
    for grid in [each for each in space.grids if each.name.endswith(":plain")]:
        for row in grid.drawn(4, np.random.default_rng(0)):
            made = space.schedule(grid.text(row.tolist())).function
            assert np.array_equal(programs.answers(made, args)[0], want)
