"""Groups merge unless a third would wait for itself."""

import random

from tilewright.graph.fusion.groups import Groups


def test_merging_keeps_members_and_order() -> None:
    groups = Groups([[], [0], [0], [1, 2]])
    assert groups.merge(0, 1)
    assert groups.members[0] == [0, 1]
    assert groups.in_order() == [[0, 1], [2], [3]]


def test_a_third_between_two_refuses() -> None:
    groups = Groups([[], [0], [0, 1]])
    assert not groups.merge(0, 2)
    assert groups.in_order() == [[0], [1], [2]]


def test_what_the_last_waits_for_comes_first() -> None:
    groups = Groups([[], [], [0, 1]])
    assert groups.merge(0, 2)
    assert groups.in_order() == [[1], [0, 2]]


def test_groups_wait_as_a_whole() -> None:
    # 3 joins 0 and waits for 2; then 1, which waits for 0, cannot be with 2.
    groups = Groups([[], [0], [], [0, 2]])
    assert groups.merge(0, 3)
    assert not groups.merge(2, 1)


def test_random_merges_leave_an_order_without_circles() -> None:
    rng = random.Random(0)
    for _ in range(200):
        count = rng.randint(2, 20)
        depends = [sorted(rng.sample(range(at), min(at, rng.randint(0, 3)))) for at in range(count)]
        groups = Groups(depends)
        for _ in range(30):
            a, b = rng.sample(list(groups.members), 2) if len(groups.members) > 1 else (0, 0)
            if a != b:
                groups.merge(a, b)
        seen: set[int] = set()
        for members in groups.in_order():
            seen.update(members)
            assert all(needed in seen for node in members for needed in depends[node])
        assert seen == set(range(count))
