"""An index of memory writes: ops by location, and locations by op.

Owns nothing but that register. It is kept apart from what values may alias, because most changes
of a function touch one of the two only.
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.analysis.alias.location_sets import EMPTY, Locations, members
from aot.ir.graph import Op


class WriteDb:
    """Ops that write memory, nested ones included, each with the locations that it may write.

    An op of unknown effect also writes all *outside* memory: that is not listed by location, so
    that new outside memory is written by it at once.
    """

    def __init__(self) -> None:
        self._locations: dict[Op, Locations] = {}
        self._writers: dict[int, dict[Op, None]] = {}
        self._unknown: dict[Op, None] = {}

    def __len__(self) -> int:
        return len(self._locations)

    def ops(self) -> Iterator[Op]:
        """All ops that write memory, in the order in which they were added."""
        return iter(self._locations)

    def set(self, op: Op, locations: Locations, *, is_unknown: bool) -> None:
        """Sets the locations that `op` writes, replacing earlier ones."""
        old = self._locations.get(op, EMPTY)
        if op in self._locations and old == locations:
            return
        self._forget(op, old)
        self._locations[op] = locations
        for location in members(locations):
            self._writers.setdefault(location, {})[op] = None
        if is_unknown:
            self._unknown[op] = None

    def remove(self, op: Op) -> None:
        if op in self._locations:
            self._forget(op, self._locations.pop(op))
            self._unknown.pop(op, None)

    def _forget(self, op: Op, locations: Locations) -> None:
        for location in members(locations):
            writers = self._writers[location]
            writers.pop(op, None)
            if not writers:
                del self._writers[location]

    def written_by(self, op: Op) -> Locations:
        """The locations that `op` itself writes, without its blocks and without memory outside the
        function.
        """
        return self._locations.get(op, EMPTY)

    def is_unknown(self, op: Op) -> bool:
        return op in self._unknown

    def writers(self, locations: Locations, *, is_outside: bool) -> Iterator[Op]:
        """Ops that may write any of `locations`; some may come twice.

        Args:
            is_outside: whether outside memory is among them.
        """
        if is_outside:
            yield from self._unknown
        for location in members(locations):
            yield from self._writers.get(location, ())
