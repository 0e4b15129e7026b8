"""Records as compilations read them."""

import sqlite3

import pytest

from tilewright.base.errors import UserError
from tilewright.tune import database as databases
from tilewright.tune.database import Database
from tilewright.tune.reader import Reader
from tilewright.tune.record import TaskKey, Time, Winner

KEY, OTHER = TaskKey("one", "cpu", 2), TaskKey("other", "cpu", 2)


@pytest.fixture
def path(tmp_path):
    with Database(tmp_path / "records.sqlite") as database:
        database.keep(KEY, Winner({"C": "gemm mr=6"}, 1.2))
        database.time(KEY, Time(1500.0))
    return tmp_path / "records.sqlite"


def asked(path):
    with Reader(path) as records:
        found = records.winners([KEY, OTHER])
        return found, records.timed(), records.measured(KEY), records.measured(OTHER)


def test_a_reader_tells_what_the_database_tells(path):
    with Database(path) as database:
        told = database.winners([KEY, OTHER]), database.timed(), 1.5e-6, None
    assert asked(path) == told
    assert asked(path) == told


def test_a_file_that_did_not_change_is_not_opened_again(path, monkeypatch):
    first = asked(path)
    monkeypatch.setattr(databases.sqlite3, "connect", None)
    assert asked(path) == first


@pytest.mark.parametrize("is_open", [True, False])
def test_what_a_writer_adds_is_seen(path, is_open):
    asked(path)
    with Database(path) as database:
        database.keep(OTHER, Winner({"C": "gemm mr=4"}, 1.1))
        found = asked(path)[0] if is_open else {}
    found = found or asked(path)[0]
    assert found[OTHER].gain == 1.1


def test_another_file_of_the_same_name_is_another_file(path):
    asked(path)
    path.unlink()
    with Database(path) as database:
        database.keep(OTHER, Winner({}, 1.3))
    assert set(asked(path)[0]) == {OTHER}


def test_a_damaged_file_is_a_typed_error_when_it_is_asked(tmp_path):
    path = tmp_path / "records.sqlite"
    path.write_bytes(b"no database" * 100)
    with Reader(path) as records, pytest.raises(UserError, match="TW5003"):
        records.winners([KEY])


def test_a_file_that_cannot_be_opened_is_tried_once(tmp_path, monkeypatch):
    path, tried = tmp_path / "records.sqlite", []

    def locked(*args, **options):
        tried.append(args)
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(databases.sqlite3, "connect", locked)
    with Reader(path) as records:
        for ask in (lambda: records.winners([KEY]), records.timed, lambda: records.measured(KEY)):
            with pytest.raises(UserError, match="TW500"):
                ask()
    assert len(tried) == 1


def test_answers_are_remembered_without_texts(path):
    asked(path)
    answers = Reader(path)._answers
    assert set(answers.winners) == set(answers.seconds) == {KEY.digest, OTHER.digest}
