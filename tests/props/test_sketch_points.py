"""Any point of a sketch keeps the interpreter's answer; native code has it too."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/tune"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import sketch_programs as programs
from tolerances import check_close

import tilewright as tw
from tilewright.tune.sketch import SketchSpace


@cache
def space_of(program: str, threads: int) -> SketchSpace:
    return SketchSpace(programs.PROGRAMS[program](), threads=threads)


@pytest.mark.parametrize("program", programs.PROGRAMS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), threads=st.sampled_from((1, 2)))
def test_any_point_keeps_the_answer(program, seed, threads):
    space, outputs = space_of(program, threads), programs.OUTPUTS.get(program, 1)
    fn = space.function
    args = programs.arguments(fn, seed)
    want = programs.answers(fn, args, outputs)
    points = space.sample(1, np.random.default_rng(seed))
    made = space.schedule(space.choice(points, 0)).function
    for got, right in zip(programs.answers(made, args, outputs), want, strict=True):
        check_close(got, right, reduction=128)


@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_native_code_of_some_points_has_the_answer(program):
    space, outputs = space_of(program, 2), programs.OUTPUTS.get(program, 1)
    fn = space.function
    args = programs.arguments(fn)
    want = programs.answers(fn, args, outputs)
    points = space.sample(4, np.random.default_rng(11))
    for row in range(len(points)):
        run = tw.build(space.schedule(space.choice(points, row)).function)
        own = [each.copy() for each in args]
        run(*own, threads=2)
        for got, right in zip(own[-outputs:], want, strict=True):
            check_close(got, right, reduction=128)
