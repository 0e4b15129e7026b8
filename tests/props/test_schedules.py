"""Any legal schedule keeps the interpreter's answer: some of what `make fuzz` runs thousands of."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import check
import programs
import traces


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_schedules_keep_the_answer(first: int) -> None:
    for seed in range(first, first + 10):
        program = programs.random_program(seed)
        outcome = traces.random_trace(program.function, seed)
        schedule = outcome.schedule
        failure = check.check_function(
            program, schedule.function, schedule.trace, seed=seed, built=seed % 10 == 0
        )
        assert failure is None, f"python tests/fuzz/run.py --seed {seed}\n{failure.story}"


def test_rings_of_warp_roles_keep_the_answer() -> None:
    """Few of the programs above are products in tiles: these all are."""
    drawn = 0
    for seed in range(3):
        program = programs.tiles(programs.Draw(random.Random(seed)))
        outcome = traces.random_trace(program.function, seed)
        schedule = outcome.schedule
        failure = check.check_function(program, schedule.function, schedule.trace, seed=seed)
        assert failure is None, failure.story
        assert outcome.applied["specialize"] >= 1
        drawn += outcome.applied["specialize"] > 1  # the rule's ring, and one drawn anew
    assert drawn
