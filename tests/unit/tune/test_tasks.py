"""Where the minutes go."""

from __future__ import annotations

from tilewright.tune.tasks import Progress, allot, is_enough, left


def task(name, ns, floor):
    return Progress(name, name, ns, floor)


def test_candidates_go_where_there_is_room():
    shares = allot([task("far", 900, 100), task("near", 900, 890), task("small", 20, 1)], 20)
    assert shares["far"] > 3 * shares["near"]
    assert sum(shares.values()) <= 20


def test_small_tasks_wait_for_their_turn():
    tasks = [task("large", 1000, 10), task("small", 10, 1)]
    assert "small" not in allot(tasks, 1)
    for _ in range(20):
        tasks[0].tried(4, False)
    assert "small" in allot(tasks, 4)


def test_what_a_task_may_not_have_others_get():
    tasks = [task("large", 10000, 10), task("small", 1000, 10)]
    assert allot(tasks, 10)["large"] == 9
    assert allot(tasks, 10, most=4) == {"large": 4, "small": 1}


def test_no_kernel_counts_as_perfect():
    assert task("perfect", 100, 200).room_ns > 0


def test_hope_shrinks_without_wins_and_grows_with_them():
    one = task("a", 100, 10)
    one.tried(4, False)
    less = one.hope
    assert less < 1.0
    one.tried(4, True)
    assert one.hope > less


def test_it_is_enough_when_less_than_a_percent_is_left():
    tasks = [task("a", 100, 50)]
    assert left(tasks, 100) == 0.5
    assert not is_enough(tasks, 100)
    tasks[0].exhausted = True
    assert is_enough(tasks, 100)
    assert is_enough([], 0)
