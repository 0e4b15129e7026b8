"""Groups of nodes that grow by merging and never wait for each other in a circle.

Each node starts as a group of its own. All groups stand in an order in which each comes after
those it depends on; `merge` keeps such an order, or refuses. Nodes are known by their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence


class Groups:
    """A partition of the nodes 0..n-1 of a graph, in an order that respects dependences."""

    def __init__(self, depends: Sequence[Sequence[int]]) -> None:
        """`depends[n]` are the nodes that node n waits for, all of lower number."""
        self.depends = depends
        self.group_of = list(range(len(depends)))
        self.members: dict[int, list[int]] = {at: [at] for at in range(len(depends))}
        self.order: list[int | None] = [*range(len(depends))]  # of groups; None: merged away
        self.position = list(range(len(depends)))  # of each group in the order

    def merge(self, a: int, b: int) -> bool:
        """Make one group of two, `a` the one that stays; False if a third stood between them."""
        first, last = (a, b) if self.position[a] < self.position[b] else (b, a)
        between = self._before(last, first)
        if between is None:
            return False
        # What the last waits for goes before the first; the rest, which may wait for the first,
        # stays behind it.
        low, high = self.position[first], self.position[last]
        region = [group for group in self.order[low + 1 : high] if group is not None]
        front = [group for group in region if group in between]
        back = [group for group in region if group not in between]
        self.members[a] = sorted(self.members[a] + self.members.pop(b))
        for node in self.members[a]:
            self.group_of[node] = a
        moved = [*front, a, *back]
        self.order[low : high + 1] = moved + [None] * (high + 1 - low - len(moved))
        for at, group in enumerate(moved, low):
            self.position[group] = at
        return True

    def in_order(self) -> list[list[int]]:
        """The members of each group."""
        return [self.members[group] for group in self.order if group is not None]

    def _before(self, group: int, first: int) -> set[int] | None:
        """The groups behind `first` that a group waits for; None if one of them waits for it."""
        low = self.position[first]
        found: set[int] = set()
        stack = [group]
        while stack:
            current = stack.pop()
            for node in self.members[current]:
                for needed in self.depends[node]:
                    other = self.group_of[needed]
                    if other in (current, group) or other in found:
                        continue
                    if other == first:
                        if current != group:
                            return None
                    elif self.position[other] > low:
                        found.add(other)
                        stack.append(other)
        return found
