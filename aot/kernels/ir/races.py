"""Holds an interpreted kernel to the independence that its loop kinds promise.

Owns the record of which iteration and which lane touched which element, and the rules for when two
of them must not meet. Decides nothing about values; the interpreter and its memory report to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from aot.errors import InternalError
from aot.ir.expr import Var
from aot.ir.types import Array
from aot.kernels.ir.memory import GROUP_VAR, Batch
from aot.kernels.ir.nodes import Buffer, For, Kernel, LoopKind, Scratch, Space


@dataclass
class _Events:
    """Columns of an access log: owner (an outer iteration), address, who, when, whether a write."""

    name: str
    rows: list[tuple[Array, Array, Array, int, bool]] = field(default_factory=list)

    def add(self, owner: Array, address: Array, who: Array, when: int, is_write: bool) -> None:
        """Logs accesses of `address`; the other columns are of its shape or broadcast to it."""
        self.rows.append((owner, address, who, when, is_write))

    @property
    def has_writes(self) -> bool:
        return any(is_write for *_, is_write in self.rows)

    def sorted(self) -> tuple[Array, Array]:
        """Events by (owner, address, who, when), and where each (owner, address) begins."""
        shapes = [np.broadcast_shapes(o.shape, a.shape, w.shape) for o, a, w, _, _ in self.rows]
        counts = [math.prod(shape) for shape in shapes]
        table = np.empty((5, sum(counts)), np.int64)
        at = 0
        for (*columns, when, is_write), shape, count in zip(self.rows, shapes, counts, strict=True):
            part = table[:, at : at + count]
            for row, column in zip(part, columns, strict=False):
                row.reshape(shape)[...] = column
            part[3], part[4] = when, is_write
            at += count
        table = table[:, np.lexsort((table[3], table[2], table[1], table[0]))]
        is_start = np.ones(table.shape[1], np.bool_)
        is_start[1:] = np.any(table[:2, 1:] != table[:2, :-1], axis=0)
        return table, np.flatnonzero(is_start)


@dataclass
class LoopLog:
    """Accesses of one execution of a loop whose iterations are independent."""

    loop: For
    parent: Batch
    inner: Batch | None = None
    iterations: Array | None = None
    events: dict[object, _Events] = field(default_factory=dict)

    def begin(self, inner: Batch, var: Var) -> None:
        """Accesses that follow are made by the iterations of `inner`."""
        self.inner = inner
        self.iterations = inner.values[var]

    def record(
        self, space: object, name: str, addresses: Array, batch: Batch, when: int, is_write: bool
    ) -> None:
        assert self.inner is not None and self.inner.gather is not None
        assert self.iterations is not None
        elements = batch.elements_of(self.inner)
        log = self.events.setdefault(space, _Events(name))
        log.add(
            self.inner.gather[elements].reshape(-1, 1),
            addresses,
            self.iterations[elements].reshape(-1, 1),
            when,
            is_write,
        )

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
        self.has_lanes = max(kernel.workgroup_size) > 1
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
        self.loops.remove(log)
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
        self,
        buffer: Buffer,
        space: object,
        positions: Array,
        batch: Batch,
        is_write: bool,
        lane: Array | None,
    ) -> None:
        """An access of element `positions` (counted in the buffer's dtype) of its class."""
        per_element = buffer.dtype.bytes // self.unit
        addresses = np.broadcast_to(positions, (batch.count,)).reshape(
            -1, 1
        ) * per_element + np.arange(per_element)
        self._record_loops(space, buffer.name, addresses, batch, is_write)
        if self.has_lanes:
            epoch = self.buffer_epoch
            self._record_lanes(space, buffer.name, addresses, batch, is_write, lane, epoch)

    def access_scratch(
        self, scratch: Scratch, addresses: Array, batch: Batch, is_write: bool, lane: Array | None
    ) -> None:
        """An access of the elements `addresses`, numbered over all rows of the scratch."""
        addresses = np.broadcast_to(addresses, (batch.count, 1))
        self._record_loops(scratch, scratch.name, addresses, batch, is_write)
        if self.has_lanes and scratch.space is Space.WORKGROUP:
            self._record_lanes(scratch, scratch.name, addresses, batch, is_write, lane, self.epoch)

    def _record_loops(
        self, space: object, name: str, addresses: Array, batch: Batch, is_write: bool
    ) -> None:
        self.clock += 1
        for log in self.loops:
            # A workgroup has scratch of its own.
            if log.loop.kind is not LoopKind.WORKGROUP or not isinstance(space, Scratch):
                log.record(space, name, addresses, batch, self.clock, is_write)

    def _record_lanes(
        self,
        space: object,
        name: str,
        addresses: Array,
        batch: Batch,
        is_write: bool,
        lane: Array | None,
        epoch: int,
    ) -> None:
        group = batch.lookup(GROUP_VAR)
        assert group is not None
        owner = group.reshape(-1, 1)
        who = np.full((1, 1), -1) if lane is None else lane.reshape(-1, 1)
        key = (space, epoch)
        self.lanes.setdefault(key, _Events(name)).add(owner, addresses, who, self.clock, is_write)


def _clash(events: _Events) -> tuple[int, int] | None:
    """Two that touch one element, one of them writing."""
    if not events.has_writes:
        return None
    table, starts = events.sorted()
    ends = np.append(starts[1:], table.shape[1]) - 1
    is_written = np.logical_or.reduceat(table[4] != 0, starts)
    bad = np.flatnonzero(is_written & (table[2, starts] != table[2, ends]))
    if not len(bad):
        return None
    return int(table[2, starts[bad[0]]]), int(table[2, ends[bad[0]]])


def _writers(table: Array, starts: Array) -> tuple[Array, Array]:
    """For each element, the lowest and the highest that write it (low > high: nobody)."""
    far = int(table[2].max()) + 1
    who = table[2]
    low = np.minimum.reduceat(np.where(table[4] != 0, who, far), starts)
    high = np.maximum.reduceat(np.where(table[4] != 0, who, -2), starts)
    return low, high


def _private_clash(events: _Events) -> tuple[int, int] | None:
    """One that reads an element before storing it itself, and another that stores it."""
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
