"""What tuning found, on disk: nothing is lost, and what is wrong with a file is said."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.base.errors import UserError
from tilewright.tune.database import FORM, Database, Records, default_path
from tilewright.tune.record import Line, TaskKey, Time, Trial, Variant, Winner

KEY = TaskKey("graph @f", "cpu", 2)
TRIAL = Trial("y", "gemm mr=6", 10.0, 12.0, 9.0, "", (1.0, 2.5), ("log_ns", "gemm.mr"))
WINNER = Winner({"y": "gemm mr=6"}, 1.2, "matmul")


def test_what_was_written_is_read_again(tmp_path):
    with Database(tmp_path / "a.sqlite") as database:
        database.add(KEY, TRIAL)
        database.keep(KEY, WINNER)
    with Database(tmp_path / "a.sqlite") as database:
        assert database.trials(KEY) == [TRIAL]
        assert database.winner(KEY) == WINNER


def test_the_newest_outcome_of_a_choice_stays():
    database = Database()
    database.add(KEY, TRIAL)
    database.add(KEY, replace(TRIAL, ns=8.0))
    assert [each.ns for each in database.trials(KEY)] == [8.0]


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, text="graph @g"),
        replace(KEY, target="cuda"),
        replace(KEY, threads=1),
        replace(KEY, version="0.0"),
    ],
)
def test_a_task_is_another_where_any_part_of_its_key_is(other):
    database = Database()
    database.keep(KEY, WINNER)
    assert database.winner(other) is None


def test_a_digest_alone_finds_nothing(monkeypatch):
    database = Database()
    monkeypatch.setattr(TaskKey, "digest", property(lambda self: "same"))
    database.keep(KEY, WINNER)
    assert database.winner(replace(KEY, text="another")) is None
    assert database.winner(KEY) == WINNER


def test_a_winner_can_be_forgotten():
    database = Database()
    database.keep(KEY, WINNER)
    database.forget(KEY)
    assert database.winner(KEY) is None


def test_the_time_of_a_task_is_told_in_seconds_and_travels(tmp_path):
    database, other = Database(), Database()
    assert database.measured(KEY) is None
    database.time(KEY, Time(2500.0))
    assert database.measured(KEY) == 2.5e-6
    assert database.measured(replace(KEY, threads=1)) is None
    database.export(tmp_path / "records.jsonl")
    other.load(tmp_path / "records.jsonl")
    assert other.measured(KEY) == 2.5e-6


@pytest.mark.parametrize(
    ("form", "lost"),
    [
        (1, "DROP TABLE times; ALTER TABLE winners DROP COLUMN variants;"),
        (2, "ALTER TABLE winners DROP COLUMN variants;"),
    ],
)
def test_files_of_older_forms_get_what_they_lack(tmp_path, form, lost):
    path = tmp_path / "first.sqlite"
    with Database(path) as database:
        database.keep(KEY, WINNER)
    sql = sqlite3.connect(path)
    sql.executescript(f"{lost} PRAGMA user_version = {form};")
    sql.close()
    with Database(path) as database:
        assert database.winner(KEY) == WINNER
        database.time(KEY, Time(1.0))
        varied = replace(WINNER, variants=(Variant(0, 8, {"y": "gemm mr=1"}),))
        database.keep(KEY, varied)
        assert database.winner(KEY) == varied


def test_variants_travel_as_json_lines(tmp_path):
    varied = replace(WINNER, variants=(Variant(0, 8, {"y": "gemm mr=1"}), Variant(0, 9, {})))
    told = json.loads(json.dumps(Line(KEY, varied).told()))
    assert Line.parse(told) == (Line(KEY, varied), 0)
    told["variants"][0]["most"] = "many"
    assert Line.parse(told) is None
    told["variants"] = [{"most": 4}]
    assert Line.parse(told) is None


def test_records_travel_as_json_lines(tmp_path):
    database, other = Database(), Database()
    database.add(KEY, TRIAL)
    database.keep(KEY, WINNER)
    assert database.export(tmp_path / "records.jsonl") == 2
    taken = other.load(tmp_path / "records.jsonl")
    assert (taken.records, taken.unreadable, taken.unknown_fields) == (2, 0, 0)
    assert list(other.query()) == [Line(KEY, TRIAL), Line(KEY, WINNER)]


def test_what_a_line_has_too_much_or_too_little_is_counted(tmp_path):
    told = Line(KEY, TRIAL).told()
    lines = [
        json.dumps(told | {"colour": "blue"}),
        json.dumps(told | {"version": "0.0"}),
        json.dumps({"kind": "trial"}),
        json.dumps(told | {"ns": "fast"}),
        json.dumps([1]),
        "{",
    ]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    taken = Database().load(tmp_path / "records.jsonl")
    assert (taken.records, taken.other_version) == (1, 1)
    assert (taken.unreadable, taken.unknown_fields) == (4, 1)


@pytest.mark.parametrize(
    "odd",
    [
        {"features": 5},
        {"names": None},
        {"features": [float("nan")]},
        {"ns": float("nan")},
        {"ns": 10**400},
        {"threads": 1 << 63},
        {"threads": True},
        {"text": "\ud800"},
        {"names": [1]},
    ],
)
def test_lines_with_values_that_cannot_be_stored_are_skipped(tmp_path, odd):
    (tmp_path / "records.jsonl").write_text(json.dumps(Line(KEY, TRIAL).told() | odd))
    taken = Database().load(tmp_path / "records.jsonl")
    assert (taken.records, taken.unreadable) == (0, 1)


def test_databases_merge_and_the_greater_gain_wins():
    first, second = Database(), Database()
    first.keep(KEY, WINNER)
    second.keep(KEY, replace(WINNER, gain=1.5, choices={}))
    second.add(KEY, TRIAL)
    second.add(replace(KEY, version="0.0"), TRIAL)
    taken = first.merge(second)
    assert (taken.records, taken.other_version) == (2, 1)
    winner = first.winner(KEY)
    assert winner is not None
    assert winner.gain == 1.5


def test_pruning_removes_what_other_versions_left():
    database = Database()
    database.add(KEY, TRIAL)
    database.add(replace(KEY, version="0.0"), TRIAL)
    assert database.prune() == 1
    assert database.trials(KEY) == [TRIAL]
    assert len(database.versions) == 1


def test_a_database_that_nobody_closes_is_closed_with_its_last_reference(tmp_path):
    database = Database(tmp_path / "db")
    connection = database._sql
    del database
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_closed_database_is_not_called_damaged():
    database = Database()
    database.close()
    with pytest.raises(UserError, match="closed") as error:
        database.winner(KEY)
    assert error.value.code == "TW5005"


def test_a_database_serves_several_threads(tmp_path):
    with Database(tmp_path / "a.sqlite") as database, ThreadPoolExecutor(4) as pool:
        keys = [replace(KEY, threads=at) for at in range(1, 33)]
        list(pool.map(lambda key: database.keep(key, WINNER), keys))
        assert len(pool.submit(database.winners, keys).result()) == len(keys)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match="damaged") as caught:
        Database(path)
    assert caught.value.code == "TW5003"


def test_a_file_without_its_tables_is_damaged(tmp_path):
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as sql:
        sql.execute(f"PRAGMA user_version = {FORM}")
    sql.close()
    with Database(path) as database, pytest.raises(UserError) as caught:
        database.trials(KEY)
    assert caught.value.code == "TW5003"


def test_a_newer_form_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    with pytest.raises(UserError, match="newer") as caught:
        Database(path)
    assert caught.value.code == "TW5004"


def test_a_locked_file_is_waited_for_and_then_named(tmp_path):
    path = tmp_path / "a.sqlite"
    with Database(path, busy_s=0.05) as database:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="locked") as caught:
            database.add(KEY, TRIAL)
        assert caught.value.code == "TW5002"
        holder.execute("ROLLBACK")
        holder.close()
        database.add(KEY, TRIAL)  # nothing half-written is in the way
        assert database.trials(KEY) == [TRIAL]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        Database(tmp_path / "file" / "a.sqlite")
    assert caught.value.code == "TW5005"


def test_a_full_disk_is_named_and_tuning_goes_on(tmp_path):
    database = Database(tmp_path / "a.sqlite")
    (pages,) = database._sql.execute("PRAGMA page_count").fetchone()
    database._sql.execute(f"PRAGMA max_page_count = {pages}")
    many = [replace(TRIAL, choice=f"gemm mr={at} " + "x" * 4000) for at in range(50)]
    records = Records(database)
    records.add(KEY, *many)
    assert "TW5005" in records.notes[0]
    assert "in memory" in records.notes[0]
    assert len(records.trials(KEY)) == 50
    records.keep(KEY, WINNER)
    assert records.winners([KEY]) == {KEY: WINNER}


def test_records_of_a_damaged_file_are_kept_in_memory(tmp_path):
    (tmp_path / "a.sqlite").write_bytes(b"no database at all" * 100)
    records = Records.open(tmp_path / "a.sqlite")
    assert "in memory" in records.notes[0]
    records.add(KEY, TRIAL)
    assert records.trials(KEY) == [TRIAL]
    assert (tmp_path / "a.sqlite").read_bytes().startswith(b"no database")


WRITER = """
import sys
from tilewright.tune.database import Database
from tilewright.tune.record import TaskKey, Trial
with Database(sys.argv[1]) as database:
    for at in range(40):
        database.add(TaskKey("graph @f", "cpu", 2), Trial("y", f"{sys.argv[2]} {at}", 1.0))
        print(at, flush=True)
"""


def test_two_tuners_on_one_file_both_finish(tmp_path):
    path = tmp_path / "a.sqlite"
    both = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.DEVNULL)
        for name in ("a", "b")
    ]
    assert [each.wait(600) for each in both] == [0, 0]
    assert len(Database(path).trials(KEY)) == 80


def test_a_killed_tuner_loses_no_record_that_was_written(tmp_path):
    path = tmp_path / "a.sqlite"
    tuner = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "a"], stdout=subprocess.PIPE, text=True
    )
    assert tuner.stdout is not None
    for _ in range(5):
        line = tuner.stdout.readline()
    tuner.kill()
    written = max(int(each) for each in [line, *tuner.stdout])
    tuner.wait()
    tuner.stdout.close()
    choices = {each.choice for each in Database(path).trials(KEY)}
    assert {f"a {at}" for at in range(written + 1)} <= choices


def test_the_database_of_the_user_can_be_named_or_switched_off(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", "some.sqlite")
    assert default_path() == Path("some.sqlite")
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", "")
    assert default_path() is None
    monkeypatch.delenv("TILEWRIGHT_TUNING_DB")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "cache")
    assert default_path() == Path("cache/tuning.sqlite")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "")
    assert default_path() is None


def test_tasks_with_times_are_told_at_once():
    timed, winning = TaskKey("a", "cpu", 1), TaskKey("b", "cpu", 1)
    with Database() as database:
        assert database.timed() == frozenset()
        database.time(timed, Time(5.0))
        database.keep(winning, Winner({"y": "gemm mr=1"}, 1.1))
        assert database.timed() == {timed.digest}
