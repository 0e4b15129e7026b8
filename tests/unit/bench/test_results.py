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

SCHEDULE = "python bench/schedule.py"
SLOW = report.at_most("lower", 70.5, "ms", 60)
ZOO = "python bench/zoo.py --peers onnxruntime openvino"


def test_the_page_is_generated_from_the_figures():
    assert results.PAGE.read_text() == results.page(results.read())


def test_the_chart_is_drawn_from_the_figures_and_names_the_machines():
    drawn = results.chart(results.read())
    assert results.CHART.read_text() == drawn
    machines = results.measured(results.read())
    assert drawn.count("<title>") == len(results.SHOWN) * len(machines)
    assert {"Emerald Rapids", "Cascade Lake"} <= machines.keys()
    assert all(machine in drawn for machine in machines)


def test_the_file_is_written_as_scripts_write_it():
    assert report.RESULTS.read_text() == report.as_json(results.read())


def test_every_machine_is_described_and_every_script_exists():
    found = results.read()
    machines = {one["name"] for one in found["machines"]}
    for _, name, row in results.entries(found):
        assert row["machine"] in machines, name
        scripts = [w for w in row.get("command", "").split() if w.endswith(".py")]
        assert all((ROOT / script.strip("`")).exists() for script in scripts), name


def test_no_row_that_holds_says_why_it_does_not():
    for section in results.read()["sections"]:
        for row in section["rows"]:
            if "limit" in row:
                assert results.verdict(results.values(row)) == "**short**", row["figure"]


def test_what_limits_a_figure_is_kept_as_long_as_it_is_short():
    found = report.recorded(results.read(), SCHEDULE, "Skylake-SP", [SLOW])
    (row,) = (r for s in found["sections"] for r in s["rows"] if r["measured"] == SLOW.value)
    row["limit"] = "a reason"
    assert "- lower (Skylake-SP): a reason" in results.page(found)
    again = report.recorded(found, SCHEDULE, "Skylake-SP", [SLOW])
    assert "- lower (Skylake-SP): a reason" in results.page(again)
    mended = report.recorded(again, SCHEDULE, "Skylake-SP", [report.at_most("lower", 9, "ms", 60)])
    assert "a reason" not in results.page(mended)
    slow_again = report.recorded(mended, SCHEDULE, "Skylake-SP", [SLOW])
    assert "- lower (Skylake-SP): Not established." in results.page(slow_again)


@pytest.mark.parametrize(
    ("measured", "wanted", "holds"),
    [
        ("1.302 (0.9)", ">= 1.30", True),
        ("0.99, ResNet-50", ">= 1.0", False),
        ("0.88 to 1.2", ">= 1.0", False),
        ("1.29 and 1.25, 0.85 and 0.76", ">= 1.0", False),
        ("20:48", "<= 20:00", False),
        ("2,019 of 2,024", ">= 2,010", True),
        ("> 2.3", ">= 1.0", True),
        ("2e-6", "<= 1e-5", True),
        ("32 of 33", "all", False),
        ("all", "all", True),
        ("none", "none", True),
        ("two", "none", False),
        ("1.04", "", None),
        ("not measured", ">= 1.0", None),
    ],
)
def test_whether_a_figure_holds_is_computed(measured, wanted, holds):
    (value,) = results.values({"figure": "a", "measured": measured, "wanted": wanted})
    assert value.holds is holds


def test_a_text_without_a_number_is_told():
    (value,) = results.values({"figure": "a", "measured": "fast", "wanted": ">= 1.0"})
    with pytest.raises(ValueError, match="'fast' does not begin with a number"):
        _ = value.holds


def test_figures_take_the_place_of_older_ones_of_the_same_command_and_machine():
    before = results.read()
    made = [report.at_most("lower", 70.0, "ms", 60)]
    after = report.recorded(before, SCHEDULE, "Emerald Rapids", made)
    told = results.page(after)
    row = f"| lower | Emerald Rapids | **70 ms** | at most 60 ms | **short** | `{SCHEDULE}` |"
    assert row in told
    assert f"| lower | Emerald Rapids | **70 ms** | at most 60 ms | [{_title(after)}]" in told
    assert "replay the trace" not in told
    assert "replay the trace" in results.page(before)  # what is given stays as it is


def _title(found):
    rows = {row.get("command"): s["title"] for s in found["sections"] for row in s["rows"]}
    return rows[SCHEDULE]


def test_figures_of_another_machine_go_beside_those_there_are():
    made = [report.at_most("lower", 50.0, "ms", 60)]
    told = results.page(report.recorded(results.read(), SCHEDULE, "Skylake-SP", made))
    assert f"| lower | Skylake-SP | 50 ms | at most 60 ms | yes | `{SCHEDULE}` |" in told
    assert "| replay the trace | Emerald Rapids, version 0.1 | 33 ms |" in told


def test_figures_of_rows_and_columns_are_columns_of_a_table():
    made = [
        report.Figure("mlp: onnxruntime, 2 threads", 1.5, "ms"),
        report.at_least("mlp: 2 threads", 0.9, "x", 1.0),
        report.at_least("geometric mean, best peer / ours", 1.31, "x", 1.25),
    ]
    after = report.recorded(results.read(), ZOO, "Skylake-SP", made)
    told = results.page(after)
    assert "| geometric mean, best peer / ours | Skylake-SP | 1.31 | at least 1.25 | yes |" in told
    assert "| Skylake-SP: 2 threads |" in told
    assert "| mlp | 1.5 |" in told
    assert "Skylake-SP | mlp: **0.90** | at least 1 |" in told
    assert results.ratios(after, "Skylake-SP") == {"mlp": 0.9}


def test_figures_of_another_command_go_to_the_section_of_their_script():
    command = "python bench/gemm.py --only f64"
    figures = [report.Figure("a: b", 2, "x")]
    after = report.recorded(results.read(), command, "a machine", figures)
    (section,) = (s for s in after["sections"] if "GEMM" in s["title"] and "CPU" in s["title"])
    assert section["tables"][-1]["columns"][0]["values"] == {"a": 2}
    new = report.recorded(results.read(), "python bench/new.py", "a machine", [])
    assert new["sections"][-1]["title"] == "new: `python bench/new.py`"


@pytest.mark.parametrize("machine", [["--machine", "H200"], ["--machine=H200"]])
def test_a_script_records_when_asked(machine, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.json")
    report.RESULTS.write_text(report.as_json({"about": "", "machines": [], "sections": []}))
    given = ["bench/gemm.py", "--record", *machine, "--json", str(tmp_path / "x")]
    monkeypatch.setattr(sys, "argv", given)
    report.run("", lambda options: [report.Figure("speed", 3.0, "GFLOP/s")])
    capsys.readouterr()
    (section,) = json.loads(report.RESULTS.read_text())["sections"]
    (row,) = section["rows"]
    assert row["command"] == f"python bench/gemm.py --json {tmp_path / 'x'}"
    assert (row["machine"], row["measured"], row["unit"]) == ("H200", 3.0, "GFLOP/s")


def test_a_machine_is_told_by_its_processor(monkeypatch, tmp_path):
    named = {"name": "this one", "processor": report.described_machine().name, "is": ""}
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.json")
    report.RESULTS.write_text(report.as_json({"machines": [named], "sections": []}))
    assert report.machine() == "this one"
    report.RESULTS.write_text(report.as_json({"machines": [], "sections": []}))
    assert " cores of " in report.machine()
