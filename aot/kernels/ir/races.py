"""Checks, in an interpreted kernel, that iterations of independent loops do not conflict.

Owns the record of which iteration and which lane touched which element, and the rules for when two
of them must not meet. Decides nothing about values; the interpreter and its memory report to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import cached_property

import numpy as np

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.expr import Var
from aot.ir.types import Array
from aot.kernels.ir.memory import GROUP_VAR, Batch, lane_of
from aot.kernels.ir.nodes import Buffer, For, Kernel, LoopKind, Scratch, Space


class _Access:
    """The elements that one access touches in all iterations of a batch.

    Attributes:
        positions: elements, for each iteration or for all of them together, in units of
            `per_element` addresses.
        addresses: of shape (count or 1, per_element).
    """

    def __init__(
        self, batch: Batch, positions: Array, per_element: int, when: int, is_write: bool
    ) -> None:
        self.batch = batch
        self.positions = positions
        self.per_element = per_element
        self.when = when
        self.is_write = is_write

    @cached_property
    def addresses(self) -> Array:
        column = self.positions.reshape(-1, 1)
        if self.per_element == 1:
            return column
        return column * self.per_element + np.arange(self.per_element)


# who makes the accesses of a batch: owners (outer iterations) and doers, as columns
Makers = tuple[Array, Array]


@dataclass
class _Events:
    """The accesses to one memory space, tabulated only on demand: spaces that nobody writes need no
    check.
    """

    name: str
    has_writes: bool = False
    accesses: list[tuple[Callable[[Batch], Makers], _Access]] = field(default_factory=list)

    def add(self, makers: Callable[[Batch], Makers], access: _Access) -> None:
        self.accesses.append((makers, access))
        self.has_writes |= access.is_write

    def table(self) -> Array:
        """A table with one column per event. Rows: owner, address, iteration or lane, time,
        is_write."""
        columns: list[tuple[Array, Array, Array]] = []
        counts: list[tuple[int, int]] = []
        for makers, access in self.accesses:
            owner, who = makers(access.batch)
            columns.append((owner, access.addresses, who))
            counts.append((access.batch.count, access.per_element))
        table = np.empty((5, sum(a * b for a, b in counts)), np.int64)
        at = 0
        for shape, parts, (_, access) in zip(counts, columns, self.accesses, strict=True):
            count = shape[0] * shape[1]
            part = table[:, at : at + count]
            for row, column in zip(part, parts, strict=False):
                row.reshape(shape)[...] = column
            part[3], part[4] = access.when, access.is_write
            at += count
        return table

    def sorted(self) -> tuple[Array, Array]:
        """The event table sorted by (owner, address, iteration, time), and the column where each
        (owner, address) begins."""
        table = self.table()
        table = table[:, np.lexsort((table[3], table[2], table[1], table[0]))]
        is_start = np.ones(table.shape[1], np.bool_)
        is_start[1:] = np.any(table[:2, 1:] != table[:2, :-1], axis=0)
        return table, np.flatnonzero(is_start)


@dataclass(eq=False)
class LoopLog:
    """The accesses made in one execution of a loop whose iterations are independent."""

    loop: For
    parent: Batch
    makers: Callable[[Batch], Makers] | None = None
    events: dict[object, _Events] = field(default_factory=dict)

    def begin(self, inner: Batch, var: Var) -> None:
        """Attributes the accesses that follow to the iterations of `inner`."""
        found: dict[Batch, Makers] = {}

        def makers(batch: Batch) -> Makers:
            made = found.get(batch)
            if made is None:
                assert inner.gather is not None
                elements = batch.elements_of(inner)
                owner, who = inner.gather[elements], inner.values[var][elements]
                made = found[batch] = owner.reshape(-1, 1), who.reshape(-1, 1)
            return made

        self.makers = makers

    def record(self, space: object, name: str, access: _Access) -> None:
        assert self.makers is not None
        events = self.events.get(space)
        if events is None:
            events = self.events[space] = _Events(name)
        events.add(self.makers, access)

    def stored_by_several(self) -> list[tuple[Scratch, Array]]:
        """Scratch elements that more than one iteration stored."""
        found: list[tuple[Scratch, Array]] = []
        for space, events in self.events.items():
            if isinstance(space, Scratch) and events.has_writes:
                table, starts = events.sorted()
                low, high = _writers(table, starts)
                found.append((space, table[1, starts[low < high]]))
        return found


class RaceChecker:
    """Collects accesses while a kernel runs; raises InternalError where two of them conflict."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lane_counts = kernel.workgroup_size
        self.has_lanes = max(self.lane_counts) > 1
        self.unit = min((b.dtype.bytes for b in kernel.buffers), default=1)
        self.loops: list[LoopLog] = []
        self.lanes: dict[object, _Events] = {}
        self.epoch = 0
        self.buffer_epoch = 0
        self.clock = 0

    def fail(self, message: str) -> InternalError:
        return InternalError(f"kernel {self.kernel.name}: {message}")

    def enter_loop(self, loop: For, batch: Batch) -> LoopLog:
        self.loops.append(LoopLog(loop, batch))
        return self.loops[-1]

    def leave_loop(self, log: LoopLog) -> None:
        assert self.loops.pop() is log
        for space, events in log.events.items():
            is_private = log.loop.kind is LoopKind.PARALLEL and isinstance(space, Scratch)
            clash = _private_clash(events) if is_private else _clash(events)
            if clash is not None:
                raise self.fail(
                    f"iterations {clash[0]} and {clash[1]} of {log.loop.kind.value} loop "
                    f"{log.loop.var.name} are not independent: both touch {events.name}"
                )

    def enter_workgroups(self, workgroups: Batch) -> None:
        self.lanes = {}

    def leave_workgroups(self) -> None:
        for events in self.lanes.values():
            clash = _clash(events)
            if clash is not None:
                raise self.fail(
                    f"lanes {clash[0]} and {clash[1]} of a workgroup race: both touch "
                    f"{events.name} with no barrier between (-1: all lanes)"
                )

    def barrier(self, *, orders_buffers: bool) -> None:
        self.epoch += 1
        self.buffer_epoch += orders_buffers

    def finish(self) -> None:
        assert not self.loops

    def access_buffer(
        self, buffer: Buffer, space: object, positions: Array, batch: Batch, is_write: bool
    ) -> None:
        """Records an access to elements `positions` of a buffer, counted in the buffer's dtype."""
        per_element = buffer.dtype.bytes // self.unit
        access = self._record_loops(space, buffer.name, positions, batch, per_element, is_write)
        if self.has_lanes:
            self._record_lanes(space, buffer.name, access, self.buffer_epoch)

    def access_scratch(
        self, scratch: Scratch, addresses: Array, batch: Batch, is_write: bool
    ) -> None:
        """Records an access to scratch elements `addresses`, numbered over all rows of the
        scratch."""
        access = self._record_loops(scratch, scratch.name, addresses, batch, 1, is_write)
        if self.has_lanes and scratch.space is Space.WORKGROUP:
            self._record_lanes(scratch, scratch.name, access, self.epoch)

    def _record_loops(
        self,
        space: object,
        name: str,
        positions: Array,
        batch: Batch,
        per_element: int,
        is_write: bool,
    ) -> _Access:
        self.clock += 1
        access = _Access(batch, positions, per_element, self.clock, is_write)
        for log in self.loops:
            # A workgroup has scratch of its own.
            if log.loop.kind is not LoopKind.WORKGROUP or not isinstance(space, Scratch):
                log.record(space, name, access)
        return access

    def _record_lanes(self, space: object, name: str, access: _Access, epoch: int) -> None:
        key = (space, epoch)
        if key not in self.lanes:
            self.lanes[key] = _Events(name)
        self.lanes[key].add(self._lanes_of, access)

    def _lanes_of(self, batch: Batch) -> Makers:
        """The workgroups and the lanes of a batch's iterations; -1 is all lanes."""
        group = batch.lookup(GROUP_VAR)
        assert group is not None
        lane = lane_of(batch, self.lane_counts)
        who = np.full((1, 1), -1) if lane is None else lane.reshape(-1, 1)
        return group.reshape(-1, 1), who


def _clash(events: _Events) -> tuple[int, int] | None:
    """Two iterations that touch one element, where at least one writes it; None if there are
    none."""
    if not events.has_writes:
        return None
    owner, address, who, _, is_write = events.table()
    if (who == who[:1]).all():
        return None
    element = owner * (address.max() + 1) + address
    order = np.argsort(element, kind="stable")
    element, who = element[order], who[order]
    starts = np.flatnonzero(np.concatenate(([True], element[1:] != element[:-1])))
    if len(starts) == len(element):
        return None
    low, high = np.minimum.reduceat(who, starts), np.maximum.reduceat(who, starts)
    is_written = np.maximum.reduceat(is_write[order], starts) > 0
    bad = np.flatnonzero(is_written & (low != high))
    if not len(bad):
        return None
    return int(low[bad[0]]), int(high[bad[0]])


def _writers(table: Array, starts: Array) -> tuple[Array, Array]:
    """The lowest and the highest writer of each element; low > high where nobody writes it."""
    far = int(table[2].max()) + 1
    who = table[2]
    low = np.minimum.reduceat(np.where(table[4] != 0, who, far), starts)
    high = np.maximum.reduceat(np.where(table[4] != 0, who, -2), starts)
    return low, high


def _private_clash(events: _Events) -> tuple[int, int] | None:
    """(reader, writer): an iteration that reads an element it has not yet stored, and another one
    that stores it; None if there are none."""
    if not events.has_writes:
        return None
    table, starts = events.sorted()
    is_first = np.ones(table.shape[1], np.bool_)
    is_first[1:] = np.any(table[:3, 1:] != table[:3, :-1], axis=0)
    low, high = _writers(table, starts)
    element = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, table.shape[1])))
    is_stored = low <= high
    others = is_stored[element] & ((low[element] != table[2]) | (high[element] != table[2]))
    bad = np.flatnonzero(is_first & (table[4] == 0) & others)
    if not len(bad):
        return None
    reader, at = int(table[2, bad[0]]), element[bad[0]]
    return reader, int(low[at] if low[at] != reader else high[at])
