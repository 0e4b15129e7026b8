"""tilewright tune"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from onnx import numpy_helper, parser, save_model
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.cli.records import skipped_note
from tilewright.cli.tune import opened_fleet
from tilewright.driver.tuning import lab
from tilewright.tune import Database, TaskKey, Trial
from tilewright.tune.cost.choose import choose

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[16, 64] x) => (float[16, 48] y) {
  h = MatMul (x, w)
  y = Relu (h)
}"""


@pytest.fixture
def model(tmp_path):
    made = parser.parse_model(TEXT)
    w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    path = tmp_path / "net.onnx"
    save_model(made, path)
    return path


@pytest.fixture(autouse=True)
def _one_checker(monkeypatch):
    """One process that checks candidates: each loads the compiler."""
    monkeypatch.setattr(lab, "host_cores", lambda: 1)


def run(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


@pytest.mark.parametrize("budget", ["5", "0s", "soon"])
def test_a_budget_is_a_duration(model, budget):
    done = run(model, "--budget", budget)
    assert done.exit_code == 1
    assert "TW5001" in done.stderr


def test_a_library_is_no_model(tmp_path):
    done = run(tmp_path / "net.so", "--budget", "1s")
    assert done.exit_code == 1
    assert "TW5012" in done.stderr


def test_a_target_that_does_not_run_here_is_refused(model):
    done = run(model, "--budget", "1s", "--target", "riscv64-linux-gnu")
    assert done.exit_code == 1
    assert "TW5010" in done.stderr


def test_a_database_that_cannot_be_read_is_no_reason_to_stop(model, tmp_path):
    path = tmp_path / "records.sqlite"
    path.write_bytes(b"no database" * 100)
    done = run(model, "--budget", "1s", "--threads", "1", "--db", path)
    assert done.exit_code == 0, done.stderr
    assert "in memory" in done.stdout
    assert "cost model" in done.stdout


@pytest.mark.slow
def test_what_was_found_is_told_and_kept(model, tmp_path):
    path = tmp_path / "records.sqlite"
    done = run(
        model, "--budget", "1s", "--threads", "1", "--db", path, "--json",
        "--cost-model", "estimate",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["model"] == choose("estimate").name
    assert told["database"] == str(path)
    assert told["kernels"][0]["label"] == "matmul_relu"
    assert told["trials"] == sum(each["trials"] for each in told["kernels"])
    with Database(path) as database:
        assert sum(database.versions.values()) >= told["trials"]


@pytest.mark.slow
def test_ctrl_c_says_what_is_kept_and_ends_the_command(model, tmp_path):
    """As a terminal sends it: to all processes of the group."""
    command = [
        sys.executable, "-c", TOLD, "tune", model, "--budget", "10m", "--threads", "1",
        "--db", tmp_path / "r.sqlite",
    ]  # fmt: skip
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, start_new_session=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout
    assert "are kept" in done.stdout
    assert "Traceback" not in done.stderr


def test_records_are_shown_merged_pruned_and_exported(tmp_path):
    here, there = tmp_path / "here.sqlite", tmp_path / "there.sqlite"
    trial = Trial("gemm", "mr=6", 10.0, 12.0)
    with Database(there) as database:
        database.add(TaskKey("one", "cpu", 1), trial)
        database.add(TaskKey("old", "cpu", 1, version="0.0.1"), trial)

    def records(*arguments):
        done = CliRunner().invoke(app, ["records", "--db", str(here), *map(str, arguments)])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    assert json.loads(records("--json"))["trials"] == {}
    assert not here.exists()
    (first,) = json.loads(records("--merge", there, "--json"))["merged"]
    assert (first["records"], first["other_version"]) == (1, 1)
    assert "1 records from" in records("--merge", there)
    lines = tmp_path / "lines.jsonl"
    assert "1 records written" in records("--export", lines)
    lines.write_text(lines.read_text() + "nothing\n")
    (again,) = json.loads(records("--merge", lines, "--json"))["merged"]
    assert (again["records"], again["unreadable"]) == (1, 1)
    assert skipped_note(here) == ""
    assert "1 trials of other versions" in skipped_note(there)
    here = there
    assert "0.0.1" in records()
    assert json.loads(records("--prune", "--json"))["pruned_kernels"] == 1
    assert skipped_note(there) == ""


def test_records_of_nothing_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", "")
    done = CliRunner().invoke(app, ["records"])
    assert done.exit_code == 2
    assert "name a file" in done.stderr
    missing = ["records", "--db", str(tmp_path / "a"), "--merge", str(tmp_path / "none.jsonl")]
    done = CliRunner().invoke(app, missing)
    assert done.exit_code == 1
    assert "TW5003" in done.stderr


# At a stage: Python loses an interruption that comes while it runs a finalizer.
TOLD = """
import os, signal, sys
from tilewright.cli import app, tune
from contextlib import contextmanager
def heard(snapshot):
    if snapshot.stage == "building the untuned model":
        os.killpg(0, signal.SIGINT)
@contextmanager
def live(quiet):
    yield heard
tune._live = live
app(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_page_with_curves_and_choices_is_written(model, tmp_path):
    page = tmp_path / "tuning.html"
    done = run(
        model, "--budget", "1s", "--threads", "1", "--db", tmp_path / "r.sqlite",
        "--html", page, "--compare", "random",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "random" in done.stdout
    text = page.read_text()
    assert text.count("<svg") >= 1
    assert "matmul" in text
    assert not re.search(r'(src|href)="https?:|url\(https?:', text)
    assert "<script" not in text


def test_a_page_that_cannot_be_drawn_is_told_before_anything_is_tuned(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    database = tmp_path / "r.sqlite"
    done = run(model, "--budget", "1s", "--db", database, "--html", tmp_path / "tuning.html")
    assert done.exit_code == 1
    assert "TW9001" in done.stderr
    assert "tilewright[report]" in done.stderr
    assert not database.exists()


def test_a_cost_model_is_one_by_name(model):
    done = run(model, "--budget", "5s", "--cost-model", "oracle")
    assert done.exit_code == 1
    assert "TW5007" in done.stderr


def test_a_search_to_compare_with_is_known(model):
    done = run(model, "--budget", "5s", "--compare", "luck")
    assert done.exit_code == 1
    assert "TW5008" in done.stderr


def test_a_fleet_that_cannot_be_reached_is_an_error(model, tmp_path):
    path = tmp_path / "r.sqlite"
    done = run(model, "--budget", "5s", "--db", path, "--fleet", "false")
    assert done.exit_code == 1
    assert "TW5203" in done.stderr
    assert not path.exists()


def test_a_cluster_without_a_token_is_refused(model, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    done = run(model, "--budget", "5s", "--fleet", "ray://127.0.0.1:1")
    assert done.exit_code == 1
    assert "TW5206" in done.stderr


def test_workers_on_a_cluster_have_a_core_for_each_thread(monkeypatch):
    asked = []

    @contextmanager
    def fleet(address, **options):
        asked.append((address, options["cores"]))
        yield

    monkeypatch.setattr("tilewright.tune.fleet.cluster.ray_fleet", fleet)
    with opened_fleet(["ray://127.0.0.1:1?workers=3"], 4):
        assert asked == [("127.0.0.1:1?workers=3", 4)]
