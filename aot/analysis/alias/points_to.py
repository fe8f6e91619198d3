"""Points-to analysis: a constraint graph of values and memory locations, solved incrementally.

A node is one question on a value: what it may *be* (own), or what it may *keep* (held, for tuples).
A node's answer is its fixed locations and its sources' answers: the least such answers. Owns the
graph and both ways to solve it; what the edges are is `effects.py`'s, and nothing here knows ops.

Building solves all nodes by one pass over the strongly connected components, sources first.
Updating recomputes what is dirty and what depends on it, as far as answers change. Cycles (loops)
may support an answer that nothing else supports any more: where something was taken away from a
node on one, all that depends on it starts from nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from aot.analysis.alias.location_sets import EMPTY, Locations, is_subset, union

MAX_PATH = 32  # regions in regions; more need not be fast


class PointsTo:
    """The constraint graph. Node `2 * value` stands for the memory that a value may be, node `2 *
    value + 1` for what it may contain.

    Numbers of values and of locations only grow: one that is retired never comes back, so that
    nothing that was kept by number can come to mean something else.

    Attributes:
        changed: nodes whose answers changed in the last `settle`, with the answers before.
        work: sources that were looked at so far, which is what solving costs.
    """

    def __init__(self) -> None:
        self.answers: list[Locations] = []
        self._sources: list[Sequence[int]] = []
        self._fixed: list[Locations] = []
        self._dependents: list[dict[int, None] | None] = []
        self._dirty: dict[int, bool] = {}
        self.changed: dict[int, Locations] = {}
        self.work = 0
        self._locations = 0

    def new_value(self) -> int:
        """Allocates a number for a value, whose nodes have no answers yet."""
        number = len(self.answers) // 2
        self.answers += (EMPTY, EMPTY)
        self._sources += ((), ())
        self._fixed += (EMPTY, EMPTY)
        self._dependents += (None, None)
        return number

    def new_location(self) -> int:
        self._locations += 1
        return self._locations - 1

    def set_constraint(self, node: int, fixed: Locations, sources: Sequence[int]) -> None:
        """Sets the constraint of `node`: fixed locations and source nodes. Takes effect with
        `solve` or `settle`."""
        old = self._sources[node]
        is_less = not is_subset(self._fixed[node], fixed)
        if old != sources:
            kept = set(sources)
            for source in old:
                dependents = self._dependents[source]
                if source not in kept and dependents is not None:
                    dependents.pop(node, None)
                    is_less = True
            for source in sources:
                dependents = self._dependents[source]
                if dependents is None:
                    dependents = self._dependents[source] = {}
                dependents[node] = None
            self._sources[node] = sources
        elif self._fixed[node] == fixed:
            return
        self._fixed[node] = fixed
        if not sources and not self._dependents[node]:
            self.answers[node] = fixed
            self._dirty.pop(node, None)
        else:
            self._dirty[node] = is_less or self._dirty.get(node, False)

    def set_location(self, node: int, location: int) -> None:
        """Sets `node` to a single location, the common case."""
        if self._sources[node] or self._dependents[node] or self._fixed[node] != EMPTY:
            self.set_constraint(node, location, ())
        else:
            self._fixed[node] = self.answers[node] = location

    def set_empty(self, node: int) -> None:
        """Records that `node` points to no memory."""
        if self._sources[node] or self._fixed[node] != EMPTY:
            self.set_constraint(node, EMPTY, ())

    def retire(self, node: int) -> None:
        """Removes a node; the caller must update its dependents."""
        for source in self._sources[node]:
            dependents = self._dependents[source]
            if dependents is not None:
                dependents.pop(node, None)
        for dependent in self._dependents[node] or ():
            self._sources[dependent] = [s for s in self._sources[dependent] if s != node]
            self._dirty[dependent] = True
        self._sources[node], self._fixed[node], self._dependents[node] = (), EMPTY, None
        self.answers[node] = EMPTY
        self._dirty.pop(node, None)
        self.changed.pop(node, None)

    def is_only(self, node: int, location: int) -> bool:
        """Whether the node is exactly one location and has no sources."""
        return self._fixed[node] == location and not self._sources[node]

    def private_path(self, node: int) -> list[int]:
        """The path from `node` to a node without sources, if each node on it has one source and
        only the path depends on it; [] if there is no such path, or it is long.
        """
        path = [node]
        while self._sources[path[-1]]:
            sources = self._sources[path[-1]]
            if len(sources) != 1 or self._fixed[path[-1]] != EMPTY or len(path) > MAX_PATH:
                return []
            path.append(sources[0])
            if len(self._dependents[path[-1]] or ()) != 1:
                return []
        return path

    def swap_fixed(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Exchanges the locations at the ends of two private paths.

        What depends on the start of one and is changed to depend on the start of the other before
        the next `settle` keeps its answer then.
        """
        a, b = one[-1], other[-1]
        self._fixed[a], self._fixed[b] = self._fixed[b], self._fixed[a]
        for path in (one, other):
            for node in path:
                self.answers[node] = self._fixed[path[-1]]
            self._dirty.update(dict.fromkeys(self._dependents[path[0]] or (), True))

    # solving all

    def solve(self) -> None:
        """Computes all answers from scratch."""
        self._dirty.clear()
        for node, sources in enumerate(self._sources):
            self.answers[node] = EMPTY if sources else self._fixed[node]
        for component in self._components():
            inside = set(component)
            answer = union(
                [self._fixed[n] for n in component]
                + [self.answers[s] for n in component for s in self._sources[n] if s not in inside]
            )
            for node in component:
                self.answers[node] = answer
                self.work += len(self._sources[node])

    def _components(self) -> Iterable[list[int]]:
        """Strongly connected components of nodes with sources, sources first (Tarjan, without
        recursion)."""
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        is_open: set[int] = set()
        for root, root_sources in enumerate(self._sources):
            if not root_sources or root in order:
                continue
            work = [(root, 0)]
            while work:
                node, at = work.pop()
                if at == 0:
                    order[node] = low[node] = len(order)
                    stack.append(node)
                    is_open.add(node)
                sources = self._sources[node]
                descended = False
                for number in range(at, len(sources)):
                    source = sources[number]
                    if source not in order:
                        if self._sources[source]:
                            work += [(node, number + 1), (source, 0)]
                            descended = True
                            break
                    elif source in is_open:
                        low[node] = min(low[node], order[source])
                if descended:
                    continue
                if low[node] == order[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                    is_open.difference_update(component)
                    yield component
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])

    # solving what changed

    @property
    def is_settled(self) -> bool:
        return not self._dirty

    def settle(self, may_cycle: Callable[[int], bool]) -> None:
        """Updates the answers incrementally; `changed` then lists the nodes whose answers differ.

        Args:
            may_cycle: whether a node may be on a cycle; where it can't, nobody looks.
        """
        self.changed = {}
        queue = _Queue(self._dirty)
        self._dirty.clear()
        while queue.nodes:
            node, is_less = queue.pop()
            if is_less and may_cycle(node) and self._restart(node, queue):
                continue
            old = self.answers[node]
            answer = self._evaluate(node)
            if answer == old:
                continue
            self._set(node, answer)
            shrinks = not is_subset(old, answer)
            for dependent in self._dependents[node] or ():
                queue.add(dependent, shrinks)
        self.changed = {n: old for n, old in self.changed.items() if self.answers[n] != old}

    def _evaluate(self, node: int) -> Locations:
        sources = self._sources[node]
        self.work += len(sources)
        if len(sources) == 1 and self._fixed[node] == EMPTY:
            return self.answers[sources[0]]
        return union([self._fixed[node], *(self.answers[s] for s in sources)])

    def _set(self, node: int, answer: Locations) -> None:
        self.changed.setdefault(node, self.answers[node])
        self.answers[node] = answer

    def _restart(self, node: int, queue: _Queue) -> bool:
        """Clears and requeues all dependents of `node`, if the node is among them, that is on a
        cycle."""
        reached: dict[int, None] = {}
        stack = [node]
        while stack:
            for dependent in self._dependents[stack.pop()] or ():
                if dependent not in reached:
                    reached[dependent] = None
                    stack.append(dependent)
        if node not in reached:
            return False
        for member in reached:
            self._set(member, EMPTY)
            queue.add(member, False, is_reset=True)
        return True


class _Queue:
    """A first-in first-out queue of nodes, without duplicates.

    Attributes:
        nodes: those that wait, and whether something was taken away from them.
    """

    def __init__(self, dirty: Mapping[int, bool]) -> None:
        self.nodes = dict(dirty)
        self._order = deque(dirty)

    def pop(self) -> tuple[int, bool]:
        node = self._order.popleft()
        return node, self.nodes.pop(node)

    def add(self, node: int, is_less: bool, *, is_reset: bool = False) -> None:
        if node not in self.nodes:
            self._order.append(node)
            self.nodes[node] = is_less
        else:
            self.nodes[node] = is_less if is_reset else self.nodes[node] or is_less
