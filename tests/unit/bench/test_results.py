"""RESULTS.md and the chart of README.md are what RESULTS.json says; scripts record into it."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="rich is not installed (extra: bench)")

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "bench"))

import report  # noqa: E402
import results  # noqa: E402


def test_the_page_is_generated_from_the_figures():
    assert results.PAGE.read_text() == results.page(results.read())


def test_the_chart_is_drawn_from_the_figures_and_names_the_machine():
    drawn = results.chart(results.read())
    assert results.CHART.read_text() == drawn
    assert drawn.count("x</tspan>") == len(results.SHOWN)
    assert "Emerald Rapids" in drawn


def test_the_file_is_written_as_scripts_write_it():
    assert report.RESULTS.read_text() == report.as_json(results.read())


def test_figures_take_the_place_of_older_ones_of_the_same_command():
    before = results.read()
    command = "python bench/schedule.py"
    made = [report.at_most("lower", 70.0, "ms", 60)]
    after = report.recorded(before, command, "8 cores of a machine", made)
    told = results.page(after)
    assert "`python bench/schedule.py`, 8 cores of a machine:" in told
    assert "| lower | 70 ms, short | at most 60 |" in told
    assert "replay the trace" not in told
    assert "replay the trace" in results.page(before)  # what is given stays as it is


def test_figures_of_another_command_go_to_the_section_of_their_script():
    after = report.recorded(
        results.read(),
        "python bench/gemm.py --only f64",
        "a machine",
        [report.Figure("a: b", 2, "x")],
    )
    (section,) = (s for s in after["sections"] if "bench/gemm.py" in s["title"])
    assert section["parts"][-1]["figures"][0]["name"] == "a: b"
    new = report.recorded(results.read(), "python bench/new.py", "a machine", [])
    assert new["sections"][-1]["title"] == "new: `python bench/new.py`"


def test_a_script_records_when_asked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.json")
    report.RESULTS.write_text(report.as_json({"about": "", "sections": []}))
    monkeypatch.setattr(sys, "argv", ["bench/gemm.py", "--record", "--json", str(tmp_path / "x")])
    report.run("", lambda options: [report.Figure("speed", 3.0, "GFLOP/s")])
    capsys.readouterr()
    (section,) = json.loads(report.RESULTS.read_text())["sections"]
    (run,) = section["parts"]
    assert run["command"] == f"python bench/gemm.py --json {tmp_path / 'x'}"
    assert run["figures"][0]["value"] == 3.0
