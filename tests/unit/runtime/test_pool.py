import os
import subprocess
import sys
import threading

import pytest

from tilewright.runtime import _native, set_threads, threads


def test_thread_default_can_be_set_and_restored():
    machine = threads()
    assert machine >= 1
    set_threads(3)
    assert threads() == 3
    set_threads(0)
    assert threads() == machine
    with pytest.raises(ValueError, match="TW4016"):
        set_threads(-1)


def test_environment_sets_the_default():
    code = "from tilewright.runtime import threads; print(threads())"
    environment = {**os.environ, "TILEWRIGHT_NUM_THREADS": "5"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "5\n"


@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
def test_every_index_is_visited_once(native, count):
    visits = []
    task = native.task(lambda _env, begin, end: visits.extend(range(begin, end)) or 0)
    assert native.tw_parallel_for(task, None, count, 3) == 0
    assert sorted(visits) == list(range(count))


def test_regions_use_several_threads(native):
    both = threading.Barrier(2, timeout=600)
    task = native.task(lambda _env, _begin, _end: both.wait() and 0)
    assert native.tw_parallel_for(task, None, 2, 2) == 0


def test_regions_of_many_python_threads_at_once(native):
    failures = []

    def caller():
        for count in range(30):
            visits = []
            task = native.task(lambda _e, begin, end, to=visits: to.extend(range(begin, end)) or 0)
            if native.tw_parallel_for(task, None, count, 2) or sorted(visits) != list(range(count)):
                failures.append(count)

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert failures == []


def test_workers_can_be_ended_and_come_back(native):
    task = native.task(lambda *_: 0)
    for _ in range(3):
        assert native.tw_parallel_for(task, None, 10, 2) == 0
        _native.shut_down()


@pytest.mark.parametrize("name", ["tw_parallel_for", "tw_check_args", "tw_workspace_alloc"])
def test_symbols_have_addresses(name):
    assert _native.symbols()[name] > 0
