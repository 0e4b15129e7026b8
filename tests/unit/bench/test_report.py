"""The status that a benchmark script ends with."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich", reason="rich is not installed (extra: bench)")


@pytest.fixture
def report(monkeypatch):
    path = Path(__file__).parents[3] / "bench/report.py"
    spec = importlib.util.spec_from_file_location("bench_report", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_report", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("value", [3.0, np.float64(3)])
def test_a_figure_that_falls_short_is_told_by_the_status(
    report, monkeypatch, tmp_path, capsys, value
):
    written = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(written)])
    with pytest.raises(SystemExit) as ended:
        report.run("", lambda options: [report.at_least("speed", value, "x", 4)])
    assert ended.value.code == 1
    assert "short" in capsys.readouterr().out
    assert [figure["ok"] for figure in json.loads(written.read_text())] == [False]


def test_figures_that_are_met_or_ask_for_nothing_are_fine(report, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench"])
    report.run(
        "", lambda options: [report.at_most("time", 3, "us", 4), report.Figure("size", 1, "B")]
    )


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [
        ([[1.0, 2.0]], [[1.0, 4.0]], 0.5),
        ([[0.0, 1.0], [2.0]], [[0.0, 1.0], [1.0]], 1.0),
        ([[1.0], [np.nan]], [[1.0], [1.0]], np.inf),
        ([[np.nan], [1.0]], [[1.0], [1.0]], np.inf),
        ([[np.inf]], [[1.0]], np.inf),
        ([[1.0]], [[1.0, 1.0]], np.inf),
        ([[]], [[]], 0.0),
    ],
)
def test_the_error_of_what_is_not_finite_is_infinite(report, found, wanted, error):
    assert report.error_of(found, wanted) == error


def test_an_output_that_is_missing_is_an_error(report):
    with pytest.raises(ValueError, match="argument 2 is longer"):
        report.error_of([[1.0]], [[1.0], [2.0]])
