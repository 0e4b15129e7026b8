"""Damaged models are imported or refused: never a crash, never an error of Python's.

pytest -m fuzz tests/unit/frontends/onnx     more of them; make fuzz runs 10,000 in processes
"""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "fuzz"))

from onnx_mutate import damaged, sound

from tilewright.base.errors import CompilerBug, TilewrightError
from tilewright.frontends.onnx import import_model


def check(seed, folder):
    folder.mkdir()
    path = damaged(seed, folder)
    inside = folder / "model" / "model.onnx"
    try:
        import_model(inside if inside.exists() else path)
    except CompilerBug:
        raise
    except TilewrightError:
        pass  # refused, in our words


def test_sound_models_are_imported():
    for seed in range(20):
        import_model(sound(random.Random(seed)))


def test_damaged_models_are_imported_or_refused(tmp_path):
    for seed in range(120):
        check(seed, tmp_path / str(seed))


@pytest.mark.fuzz
def test_many_damaged_models_are_imported_or_refused(tmp_path):
    for seed in range(120, 3000):
        check(seed, tmp_path / str(seed))
