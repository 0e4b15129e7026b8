"""`tilewright doctor` and `tilewright cache`: what they tell, and what they remove."""

import json
import stat

from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.codegen import cache


def report(*args, code=0):
    done = CliRunner().invoke(app, [*args, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def findings(code=0):
    return {one["name"]: one for one in report("doctor", code=code)}


def test_doctor_looks_at_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    found = findings()
    assert {"Python", "LLVM", "processor", "caches", "machine model", "cache"} <= found.keys()
    assert found["native code"]["status"] == "ok"
    assert all(one["fix"] for one in found.values() if one["status"] != "ok")
    assert "ok" in CliRunner().invoke(app, ["doctor"]).output


def test_doctor_notes_that_there_is_no_cache(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "")
    assert findings()["cache"]["status"] == "note"


def test_a_cache_that_others_write_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects").chmod(0o777)
    found = findings(code=1)["cache"]
    assert found["status"] == "problem"
    assert found["fix"].startswith("chmod")
    (tmp_path / "objects").chmod(stat.S_IRWXU)


def test_a_check_that_fails_is_a_problem(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "lots")
    assert "lots" in findings(code=1)["cache"]["found"]
    monkeypatch.delenv("TILEWRIGHT_CACHE_MB")

    def broken():
        raise RecursionError

    monkeypatch.setattr("tilewright.cli.doctor.summary", broken)
    assert findings(code=1)["cache"]["found"] == "RecursionError"


def test_cache_is_shown_and_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert report("cache")["entries"] == 0
    cache.write("key", b"payload")
    told = report("cache")
    assert told["entries"] == 1
    assert told["bytes"] > len(b"payload")
    assert "kernels" in CliRunner().invoke(app, ["cache"]).output
    assert report("cache", "--clear")["entries"] == 0
    assert cache.try_read("key") is None


def test_the_shell_completes_commands_and_options():
    def completed(*words):
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        asked["_TILEWRIGHT_COMPLETE"] = "complete_bash"
        done = CliRunner().invoke(app, env=asked, prog_name="tilewright")
        return done.stdout.split()

    assert completed("tilewright", "rep") == ["report"]
    assert "--against" in completed("tilewright", "report", "--a")
