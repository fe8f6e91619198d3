"""Minimum cuts: the cheapest assignment of one of two labels to each of many items.

Owns the maximum flow (Dinic's, without recursion) and the reduction of labelling to it. Integers
in, so that the answer is the same everywhere. Knows nothing of graphs of ops.
"""

from __future__ import annotations

from collections import deque

Table = tuple[tuple[int, int], tuple[int, int]]
"""Costs of a pair: `table[a][b]` for labels a and b of the first and the second."""


class Network:
    """A flow network with numbered nodes; each edge has a capacity in either direction."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int] = []

    def connect(self, a: int, b: int, forward: int, back: int = 0) -> None:
        """Adds an edge from `a` to `b` with capacity `forward`, and one back with capacity
        `back`."""
        for source, target, capacity in ((a, b, forward), (b, a, back)):
            self.edges[source].append(len(self.head))
            self.head.append(target)
            self.room.append(capacity)

    def reachable(self, source: int, sink: int) -> list[bool]:
        """Computes a maximum flow, and returns which nodes are on the source's side of the minimum
        cut, the smallest one if there are several."""
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return [found >= 0 for found in level]
            self._push_all(source, sink, level)

    def _levels(self, source: int, sink: int) -> list[int]:
        """The distance of each node from the source over unsaturated edges; -1 if unreachable."""
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if node == sink:
                break
            for edge in self.edges[node]:
                to = self.head[edge]
                if self.room[edge] and level[to] < 0:
                    level[to] = level[node] + 1
                    queue.append(to)
        return level

    def _push_all(self, source: int, sink: int, level: list[int]) -> None:
        """Sends a blocking flow: saturates an edge on each shortest path."""
        edges, head, room = self.edges, self.head, self.room
        following = [0] * len(edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(room[edge] for edge in path)
                first_full = len(path)
                for number, edge in enumerate(path):
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                    if not room[edge] and number < first_full:
                        first_full = number
                node = head[path[first_full] ^ 1]
                del path[first_full:]
                continue
            while following[node] < len(edges[node]):
                edge = edges[node][following[node]]
                if room[edge] and level[head[edge]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if node == source:
                    return
                node = head[path.pop() ^ 1]
                following[node] += 1
                continue
            path.append(edge)
            node = head[edge]


class Labelling:
    """Items to label 0 or 1, with the costs of labels and of pairs of labels."""

    def __init__(self, count: int) -> None:
        self.alone = [[0, 0] for _ in range(count)]
        self.pairs: dict[tuple[int, int], list[int]] = {}

    def add(self, thing: int, costs: tuple[int, int]) -> None:
        """Adds the costs of the two labels of one item."""
        self.alone[thing][0] += costs[0]
        self.alone[thing][1] += costs[1]

    def add_pair(self, first: int, second: int, table: Table) -> None:
        """Adds the costs of each pair of labels of two items.

        Where equal labels cost more than unequal ones the problem is no cut: the unequal ones are
        taken to cost as much.
        """
        (same0, up), (down, same1) = table
        if first == second:
            self.add(first, (same0, same1))
            return
        # same0 + (down - same0) * a + (same1 - down) * b + excess * [a = 0 and b = 1]
        self.add(first, (same0, down))
        self.add(second, (0, same1 - down))
        excess = max(0, up + down - same0 - same1)
        if excess:
            both = self.pairs.setdefault((min(first, second), max(first, second)), [0, 0])
            both[first > second] += excess

    def solve(self) -> list[int]:
        """The labels with the least total cost; 0 where both are equal."""
        count = len(self.alone)
        source, sink = count, count + 1
        network = Network(count + 2)
        for thing, (zero, one) in enumerate(self.alone):
            # things on the source's side have label 1 and pay for it on their edge to the sink
            if zero > one:
                network.connect(source, thing, zero - one)
            elif one > zero:
                network.connect(thing, sink, one - zero)
        for (first, second), (up, down) in self.pairs.items():
            # up is paid where first is 0 and second is 1
            network.connect(second, first, up, down)
        side = network.reachable(source, sink)
        return [int(side[thing]) for thing in range(count)]
