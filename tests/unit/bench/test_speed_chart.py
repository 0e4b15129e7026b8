"""The chart of README.md shows what bench/RESULTS.md says."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from speed_chart import CHART, FIGURES, SHOWN, as_json, chart, read_results  # noqa: E402


def test_the_figures_are_those_of_the_results():
    assert FIGURES.read_text() == as_json(read_results())


def test_the_chart_is_drawn_from_the_figures():
    assert CHART.read_text() == chart(json.loads(FIGURES.read_text()))
    assert chart(read_results()).count("x</text>") == len(SHOWN)
