"""Partition of a graph into groups of nodes, merged without creating dependence cycles.

Each node starts as its own group. Groups are kept in topological order; `merge` maintains it, or
fails. Nodes are numbered.
"""

from __future__ import annotations

from collections.abc import Sequence


class Groups:
    """A partition of the nodes 0..n-1 of a graph, in topological order."""

    def __init__(self, depends: Sequence[Sequence[int]]) -> None:
        """`depends[n]` are the nodes that node n depends on, all of lower number."""
        self.depends = depends
        self.group_of = list(range(len(depends)))
        self.members: dict[int, list[int]] = {at: [at] for at in range(len(depends))}
        self.order: list[int | None] = [*range(len(depends))]  # groups; None: merged into another
        self.position = list(range(len(depends)))  # index of each group in the order

    def merge(self, a: int, b: int) -> bool:
        """Merge two groups into `a`; False if a third one is both after and before them."""
        first, last = (a, b) if self.position[a] < self.position[b] else (b, a)
        between = self._dependences_after(last, first)
        if between is None:
            return False
        # What the later group depends on moves before the earlier one; the rest, which may depend
        # on the earlier one, stays after it.
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

    def _dependences_after(self, group: int, first: int) -> set[int] | None:
        """The groups after `first` that a group depends on; None if one of them depends on
        `first`."""
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
