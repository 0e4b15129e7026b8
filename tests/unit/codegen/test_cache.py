"""The object cache: exact keys, damage noticed, shared by processes."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.base.host import host_arch
from tilewright.base.processors import BASELINE
from tilewright.base.target import Target
from tilewright.codegen import cache, llvm
from tilewright.codegen.build import Options, build, compile_object, object_key
from tilewright.tensor import parse

FN = """
func @twice(%x: f32[n], %y: f32[n]) stage flat {
  for %i in 0..n {
    %y[%i] = %x[%i] * 2
  }
}"""


def entries():
    folder = cache.cache_folder()
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """An empty one for every test here."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_what_was_written_is_read_back():
    assert cache.try_read("key") is None
    cache.write("key", b"payload")
    assert cache.try_read("key") == b"payload"
    cache.write("key", b"other")
    assert cache.try_read("key") == b"other"
    assert len(entries()) == 1


def test_the_whole_key_is_compared_not_only_its_hash():
    cache.write("key", b"payload")
    (path,) = entries()
    cache._path("another").write_bytes(path.read_bytes())
    assert cache.try_read("another") is None
    assert cache.try_read("key") == b"payload"


@pytest.mark.parametrize("cut", [0, 1, 10, 30, 60, -1])
def test_a_truncated_file_is_a_miss_and_goes(cut):
    cache.write("key", b"payload" * 100)
    (path,) = entries()
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.try_read("key") is None
    assert entries() == []


def test_a_damaged_file_is_a_miss():
    cache.write("key", b"payload" * 100)
    (path,) = entries()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    assert cache.try_read("key") is None


def test_no_folder_means_no_cache(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "")
    cache.write("key", b"payload")
    assert cache.try_read("key") is None
    assert cache.cache_folder() is None


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(blocked))
    cache.write("key", b"payload")
    assert cache.try_read("key") is None


def test_pruning_keeps_what_was_used_last():
    for name in ("old", "used", "new"):
        cache.write(name, bytes(1000))
    for at, name in enumerate(("used", "old", "new")):
        os.utime(cache._path(name), (at, at))
    assert cache.try_read("used") is not None
    cache.prune(limit_bytes=2500)
    assert cache.try_read("old") is None
    assert cache.try_read("used") is not None
    assert cache.try_read("new") is not None


def test_pruning_is_due_as_often_as_a_part_of_the_limit_is_written(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "64")
    monkeypatch.setattr(cache, "_chance", random.Random(0))
    small = sum(cache.is_pruning_due(1 << 14) for _ in range(1 << 14))  # 256 MB in small pieces
    large = sum(cache.is_pruning_due(1 << 18) for _ in range(1 << 10))  # the same in large ones
    whole = 4 * cache._PRUNINGS
    assert 0.8 * whole < small < 1.2 * whole
    assert 0.8 * whole < large < 1.2 * whole


def test_a_full_cache_is_pruned_while_it_is_written(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "0")
    cache.write("key", b"payload")
    assert entries() == []


@pytest.mark.parametrize("told", ["2GB", "-1", "²"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, told):
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", told)
    with pytest.raises(UserError, match="is not a number of megabytes"):
        cache.allowed_bytes()


def test_the_limit_may_be_left_out(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "")
    assert cache.allowed_bytes() == 2048 << 20


def test_nothing_half_written_is_left_behind(monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    cache.write("key", b"payload")
    assert entries() == []


def test_a_program_is_compiled_once(monkeypatch):
    first = compile_object(parse(FN), Target.host())
    monkeypatch.setattr(llvm, "parse", lambda text: pytest.fail("compiled again"))
    assert compile_object(parse(FN), Target.host()) == first


def test_the_key_depends_on_program_machine_and_options():
    host, other = Target.host(), Target.parse(f"cpu -mcpu={BASELINE[host_arch()]}")
    l2 = replace(host.machine.l2, size_bytes=2 * host.l2_bytes)
    other_l2 = replace(host, machine=replace(host.machine, l2=l2))
    changed = parse(FN.replace("* 2", "* 3"))
    keys = {
        object_key(parse(FN), host, Options()),
        object_key(changed, host, Options()),
        object_key(parse(FN), other, Options()),
        object_key(parse(FN), other_l2, Options()),
        object_key(parse(FN), host, Options(optimize=False)),
    }
    assert len(keys) == 5


def test_damaged_objects_are_compiled_again():
    build(parse(FN))
    (path,) = entries()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    build(parse(FN))(x, y)
    assert (y == 2).all()


def test_processes_share_the_cache():
    code = (
        "import sys\n"
        "from tilewright.codegen.build import build\n"
        "from tilewright.tensor import parse\n"
        "for k in range(6):\n"
        "    build(parse(sys.argv[1].replace('* 2', f'* {k % 3}')))\n"
    )
    command = [sys.executable, "-c", code, FN]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()
    assert len(entries()) == 3
