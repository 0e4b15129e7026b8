"""Minimum cuts of a network by maximum flow (Dinic's algorithm).

network = Network()
a, b = network.node(), network.node()
network.edge(a, b, 3.0)
network.cut(a, b)          the nodes on the side of `a`, as few as a cheapest cut allows
"""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")
_LEAST = 1e-9  # residual capacities below this are rounding errors


class Network:
    """Nodes are numbered; an edge has a capacity in each direction."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []  # of each node: indices in the lists below
        self._to: list[int] = []
        self._room: list[float] = []

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: float, back: float = 0.0) -> None:
        """`capacity` is the cost of a on the source's side with b on the sink's, `back` the
        reverse."""
        if a == b or (capacity <= 0 and back <= 0):
            return
        for start, end, room in ((a, b, capacity), (b, a, back)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of a minimum cut; consumes the capacities."""
        while True:
            levels = self._levels(source)
            if levels[sink] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            nexts = [0] * len(self._edges)
            while self._push(source, sink, levels, nexts):
                pass

    def _levels(self, source: int) -> list[int]:
        """Breadth-first distances from the source; -1 where no residual capacity leads."""
        levels = [-1] * len(self._edges)
        levels[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for at in self._edges[node]:
                if self._room[at] > _LEAST and levels[self._to[at]] < 0:
                    levels[self._to[at]] = levels[node] + 1
                    queue.append(self._to[at])
        return levels

    def _push(self, source: int, sink: int, levels: list[int], nexts: list[int]) -> bool:
        """Find an augmenting path along increasing levels; returns whether there was one."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self._edges[node]
            while nexts[node] < len(edges):
                at = edges[nexts[node]]
                if self._room[at] > _LEAST and levels[self._to[at]] == levels[node] + 1:
                    break
                nexts[node] += 1
            else:  # a dead end: backtrack and try the next edge
                if not path:
                    return False
                node = self._to[path.pop() ^ 1]
                nexts[node] += 1
                continue
            path.append(at)
            node = self._to[at]
        flow = min(self._room[at] for at in path)
        if flow == INFINITE:
            raise ValueError("source and sink are joined by edges that cannot be cut")
        for at in path:
            self._room[at] -= flow
            self._room[at ^ 1] += flow
        return True
