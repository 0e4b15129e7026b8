"""A union of alternative spaces: plans of rules, and sketches.

    space = JoinedSpace("y", {"": RuleSpace(offers), "sketch": SketchSpace(fn)})
    space.choice(points, 3)          "sketch y:tile@j y.i.inner=4 ..."

A row holds the index of its member, then the member's own row, zero-padded. Texts of the first
member are unchanged, those of others have the member's name as a prefix. A cost model transfers
little between members, so each has its own feature columns; the estimate is a shared column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.tune.rows import Points, Random
from tilewright.tune.space import Column, TuneSpace


class JoinedSpace:
    """Several spaces as one; the default is that of the first, whose name in texts is empty."""

    def __init__(self, name: str, members: Mapping[str, TuneSpace]) -> None:
        assert next(iter(members)) == ""
        self._name = name
        self.members = dict(members)
        self._spaces = tuple(members.values())
        self._widths = [space.default().shape[1] for space in self._spaces]
        counts = [len(space.feature_names) - 1 for space in self._spaces]
        self._starts = np.cumsum([1, *counts])

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return sum(space.size for space in self._spaces)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return ("log_ns", *(name for space in self._spaces for name in space.feature_names[1:]))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Each member as a view in rows of this space: search drafts points from each."""
        return tuple(Part(self, at) for at in range(len(self._spaces)))

    # ------------------------------------------------------------------ rows

    def rows(self, at: int, own: Points) -> Points:
        """Rows of a member as rows of this space."""
        made = np.zeros((len(own), 1 + max(self._widths)), np.int32)
        made[:, 0] = at
        made[:, 1 : 1 + self._widths[at]] = own
        return made

    def _by_member(self, points: Points) -> Iterator[tuple[int, TuneSpace, Column, Points]]:
        """Each member with points: its index, the space, the mask of its points, their rows."""
        for at, space in enumerate(self._spaces):
            rows = np.flatnonzero(points[:, 0] == at)
            if len(rows):
                own = np.ascontiguousarray(points[rows, 1 : 1 + self._widths[at]])
                yield at, space, rows, own

    # ------------------------------------------------------------------ points

    def sample(self, count: int, random: Random) -> Points:
        found, left = [], count
        for at, space in enumerate(self._spaces):  # what one lacks, those after it have more of
            share = -(-left // (len(self._spaces) - at))
            found.append(self.rows(at, space.sample(share, random)))
            left -= len(found[-1])
        mixed = np.concatenate(found)
        return mixed[random.permutation(len(mixed))[:count]]

    def enumerate(self, limit: int) -> Points | None:
        found = []
        for at, space in enumerate(self._spaces):
            whole = space.enumerate(limit)
            if whole is None:
                return None
            found.append(self.rows(at, whole))
            limit -= len(whole)
        return np.concatenate(found)

    def estimate(self, points: Points) -> Column:
        found = np.zeros(len(points))
        for _, space, rows, own in self._by_member(points):
            found[rows] = space.estimate(own)
        return found

    def features(self, points: Points) -> Column:
        found = np.zeros((len(points), int(self._starts[-1])), np.float32)
        for at, space, rows, own in self._by_member(points):
            made = space.features(own)
            found[rows, 0] = made[:, 0]
            found[rows, self._starts[at] : self._starts[at + 1]] = made[:, 1:]
        return found

    def kinds(self, points: Points) -> Column:
        found = np.zeros(len(points), np.int64)
        for at, space, rows, own in self._by_member(points):
            found[rows] = space.kinds(own) * len(self._spaces) + at
        return found

    def mutate(self, points: Points, random: Random) -> Points:
        made = points.copy()
        for at, space, rows, own in self._by_member(points):
            made[rows] = self.rows(at, space.mutate(own, random))
        return made

    def crossover(self, first: Points, second: Points, random: Random) -> Points:
        made = first.copy()
        for at, space, rows, own in self._by_member(first):
            alike = second[rows, 0] == at
            other = second[rows[alike], 1 : 1 + self._widths[at]]
            mixed = space.crossover(own[alike], np.ascontiguousarray(other), random)
            made[rows[alike]] = self.rows(at, mixed)
        return made

    # ------------------------------------------------------------------ texts

    def choice(self, points: Points, row: int) -> str:
        at = int(points[row, 0])
        own = np.ascontiguousarray(points[row : row + 1, 1 : 1 + self._widths[at]])
        return f"{list(self.members)[at]} {self._spaces[at].choice(own, 0)}".strip()

    def point(self, choice: str) -> Points | None:
        at = self._member(choice)
        found = self._spaces[at].point(choice.partition(" ")[2] if at else choice)
        return None if found is None else self.rows(at, found)

    def _member(self, choice: str) -> int:
        word = choice.partition(" ")[0]
        return list(self.members).index(word) if word and word in self.members else 0

    def is_whole(self, choice: str) -> bool:
        """Whether a choice schedules the whole kernel, as those of all members but the first do."""
        return self._member(choice) > 0

    def default(self) -> Points:
        return self.rows(0, self._spaces[0].default())


class Part:
    """One member of a joined space: accepts any of its points, proposes the member's own."""

    def __init__(self, whole: JoinedSpace, at: int) -> None:
        self._whole, self._at = whole, at
        self._own = tuple(whole.members.values())[at]
        self.name, self.feature_names = whole.name, whole.feature_names
        self.estimate, self.features, self.kinds = whole.estimate, whole.features, whole.kinds
        self.mutate, self.crossover = whole.mutate, whole.crossover
        self.choice, self.point = whole.choice, whole.point

    @property
    def size(self) -> int:
        return self._own.size

    def sample(self, count: int, random: Random) -> Points:
        return self._whole.rows(self._at, self._own.sample(count, random))

    def enumerate(self, limit: int) -> Points | None:
        found = self._own.enumerate(limit)
        return None if found is None else self._whole.rows(self._at, found)

    def default(self) -> Points:
        return self._whole.rows(self._at, self._own.default())
