"""The memory of an interpreted kernel: batches of iterations, buffers, scratch, addresses.

Owns bounds, alignment and definedness checks. A batch evaluates many iterations at once; every
value in it is an array of the batch's length or a scalar that all iterations share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.dims import Dim, evaluate
from aot.ir.expr import Var
from aot.ir.types import Array, DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel, Scratch, Space

if TYPE_CHECKING:
    from aot.kernels.ir.races import RaceChecker

# Not of any kernel: the workgroup's number within the scratch, and the lanes' coordinates.
GROUP_VAR = Var("workgroup")
LANE_VARS = (Var("lane_x"), Var("lane_y"), Var("lane_z"))


@dataclass(eq=False)
class Batch:
    """`count` iterations; element i descends from element `gather[i]` of `parent` (None: i).

    Attributes:
        values: of variables, as far as they were asked for here.
        rows: of scratch, likewise, by its space.
    """

    count: int
    parent: Batch | None = None
    gather: Array | None = None
    values: dict[Var, Array] = field(default_factory=dict)
    rows: dict[Space, Array] = field(default_factory=dict)

    @staticmethod
    def root() -> Batch:
        return Batch(1)

    def child(self, values: dict[Var, Array] | None = None) -> Batch:
        """A batch of the same iterations in a new scope for Lets and loop variables."""
        return Batch(self.count, self, None, values or {})

    def select(self, chosen: Array) -> Batch:
        """The batch that consists of the iterations numbered in `chosen`."""
        return Batch(len(chosen), self, chosen)

    def expand(self, var: Var, start: int, stop: int) -> Batch:
        """`stop - start` iterations of a loop for every iteration of this batch."""
        extent = stop - start
        inner = Batch(self.count * extent, self, np.repeat(np.arange(self.count), extent))
        inner.values[var] = np.tile(np.arange(start, stop, dtype=np.int64), self.count)
        return inner

    def lookup(self, var: Var) -> Array | None:
        """The value of `var`, expanded to this batch's length; None where it is not bound."""
        found = self.values.get(var)
        if found is not None:
            return found
        batch: Batch | None = self
        below: list[Batch] = []
        while batch is not None and var not in batch.values:
            below.append(batch)
            batch = batch.parent
        if batch is None:
            return None
        value = batch.values[var]
        for inner in reversed(below):
            if value.ndim and inner.gather is not None:
                value = value[inner.gather]
            inner.values[var] = value
        return value

    def elements_of(self, ancestor: Batch) -> Array:
        """For every iteration, the number of the one in `ancestor` that it descends from."""
        batch: Batch = self
        result: Array = np.arange(self.count)
        while batch is not ancestor:
            if batch.gather is not None:
                result = batch.gather[result]
            if batch.parent is None:
                raise InternalError("a batch does not descend from its loop")
            batch = batch.parent
        return result


def lane_of(batch: Batch, counts: tuple[int, int, int]) -> Array | None:
    """The number of each iteration's lane in its workgroup of `counts` lanes; None outside LANE
    loops."""
    total: Array | None = None
    step = 1
    for var, count in zip(LANE_VARS, counts, strict=True):
        value = batch.lookup(var)
        if value is not None:
            total = value * step if total is None else total + value * step
        step *= count
    return total


class Memory:
    """Buffers as bytes, scratch as typed arrays with a mask of what has been stored."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Array], params: Mapping[str, float | int]
    ) -> None:
        self.kernel = kernel
        self.races: RaceChecker | None = None
        by_class = not any(b.name in buffers for b in kernel.buffers)
        self.params = self._read_params(params, by_class)
        self._dims = {
            p.name: int(self.params[p.name]) for p in kernel.params if p.dtype is DType.INDEX
        }
        self.views = {b: self._view(b, buffers, by_class) for b in kernel.buffers}
        self.places: dict[Buffer | Scratch, _Place] = {}
        self.spaces: dict[Buffer, object] = {
            b: self._class_of(b) if by_class else b for b in kernel.buffers
        }
        self.lane_counts = kernel.workgroup_size
        self.values: dict[Scratch, Array] = {}
        self.defined: dict[Scratch, Array] = {}

    def fail(self, message: str) -> InternalError:
        return InternalError(f"kernel {self.kernel.name}: {message}")

    def _read_params(self, params: Mapping[str, float | int], by_class: bool) -> dict[str, Array]:
        offsets = {b.offset.name for b in self.kernel.buffers}
        values: dict[str, Array] = {}
        for param in self.kernel.params:
            if param.name not in params and (by_class or param.name not in offsets):
                raise self.fail(f"parameter {param.name} has no value")
            values[param.name] = np.array(params.get(param.name, 0), param.dtype.numpy)
        return values

    def _class_of(self, buffer: Buffer) -> BufferClass:
        if buffer.class_param is None:
            return buffer.binding
        return BufferClass(int(self.params[buffer.class_param.name]))

    def _view(self, buffer: Buffer, buffers: Mapping[str, Array], by_class: bool) -> Array:
        key = self._class_of(buffer).name.lower() if by_class else buffer.name
        if key not in buffers:
            raise self.fail(f"buffer {buffer.name} needs {key!r}, which was not given")
        array = buffers[key]
        if not array.flags.c_contiguous:
            raise self.fail(f"{key!r} is not contiguous")
        data = array.reshape(-1).view(np.uint8)
        size = buffer.dtype.bytes
        offset = int(self.params[buffer.offset.name])
        if offset % size or offset < 0:
            raise self.fail(f"offset {offset} of buffer {buffer.name} is not aligned to {size}")
        dtype = np.uint8 if buffer.dtype is DType.BOOL else buffer.dtype.numpy
        return data[: len(data) // size * size].view(dtype)

    # Scratch

    def allocate_scratch(self, workgroups: Batch) -> None:
        """Fresh, undefined scratch for every workgroup of the batch."""
        workgroups.values[GROUP_VAR] = np.arange(workgroups.count)
        for scratch in self.kernel.scratch:
            size = int(np.prod(scratch.shape, dtype=np.int64))
            rows = workgroups.count * prod(self._owners(scratch.space))
            self.values[scratch] = np.zeros((rows, size), scratch.dtype.numpy)
            self.defined[scratch] = np.zeros((rows, size), np.bool_)

    def _owners(self, space: Space) -> tuple[int, int, int]:
        """The number of separate copies of a memory space along each lane axis: 1 where lanes share
        it."""
        count_x, count_y, count_z = self.lane_counts
        if space is Space.WORKGROUP:
            return 1, 1, 1
        return 1 if space is Space.MATRIX else count_x, count_y, count_z

    def undefine(self, scratch: Scratch, addresses: Array) -> None:
        """Marks scratch elements, numbered over all rows, as undefined."""
        self.defined[scratch].reshape(-1)[addresses] = False

    def scratch_rows(self, space: Space, batch: Batch) -> Array:
        """The row of scratch that each iteration uses: shape (count, copies).

        REGISTER scratch has a row for every lane, MATRIX scratch for every subgroup; outside the
        LANE loops of some axis all lanes along that axis hold a copy.
        """
        rows = batch.rows.get(space)
        if rows is None:
            rows = batch.rows[space] = self._rows(space, batch)
        return rows

    def _rows(self, space: Space, batch: Batch) -> Array:
        parent = batch.parent
        if parent is not None and batch.gather is None and GROUP_VAR not in batch.values:
            return self.scratch_rows(space, parent)
        group = batch.lookup(GROUP_VAR)
        assert group is not None
        rows = group.reshape(-1, 1)
        owners = self._owners(space)
        if max(owners) == 1:
            return rows
        rows = rows * prod(owners)
        step = 1
        for var, count in zip(LANE_VARS, owners, strict=True):
            value = batch.lookup(var)
            if count == 1:
                continue
            if value is not None:
                rows = rows + value.reshape(-1, 1) * step
            else:
                copies = rows[:, :, None] + np.arange(count) * step
                rows = copies.reshape(copies.shape[0], -1)
            step *= count
        return rows

    # Addresses

    def _place_of(self, target: Buffer | Scratch) -> _Place:
        if isinstance(target, Scratch):
            return _Place(0, target.shape, _dense_strides(target.shape), None)
        start = int(self.params[target.offset.name]) // target.dtype.bytes
        strides = _numbers(target.strides, self._dims)
        return _Place(start, _numbers(target.shape, self._dims), strides, len(self.views[target]))

    def _positions(self, target: Buffer | Scratch, indices: Sequence[Array]) -> Array:
        """Element positions of a batch's indices, after a bounds check; a scalar where all
        iterations share one."""
        place = self.places.get(target)
        if place is None:
            place = self.places[target] = self._place_of(target)
        position: Any = place.start
        for dim, (index, extent, stride) in enumerate(
            zip(indices, place.shape, place.strides, strict=True)
        ):
            if index.ndim == 0:
                number = int(index)
                if not 0 <= number < extent:
                    raise self._outside(target, dim, number, extent)
                position = position + number * stride
            else:
                if index.dtype != np.int64:
                    index = index.astype(np.int64)
                if _is_outside(index, extent):
                    outside = (index < 0) | (index >= extent)
                    raise self._outside(target, dim, int(index[outside][0]), extent)
                position = position + (index if stride == 1 else index * stride)
        if place.limit is not None and _is_outside(position, place.limit):
            assert isinstance(target, Buffer)
            low, high = int(np.min(position)), int(np.max(position))
            size = target.dtype.bytes
            raise self.fail(
                f"an element of {target.name} at byte {(high if low >= 0 else low) * size} is "
                f"outside its {target.binding.name} buffer of {place.limit * size} bytes"
            )
        return np.asarray(position, np.int64)

    def _outside(self, target: Buffer | Scratch, dim: int, bad: int, extent: int) -> InternalError:
        return self.fail(f"index {bad} of dim {dim} of {target.name} is outside 0..{extent - 1}")

    def load(
        self,
        source: Buffer | Scratch,
        indices: Sequence[Array],
        batch: Batch,
        guard: Array | None,
        other: Array | None,
    ) -> Array:
        """Loads elements of `source`; iterations whose `guard` is false access nothing and get
        `other`."""
        if guard is None:
            return self._read(source, indices, batch)
        assert other is not None
        if guard.ndim == 0:
            return self._read(source, indices, batch) if guard else other
        chosen = np.flatnonzero(guard)
        result = np.array(np.broadcast_to(other, (batch.count,)))
        if len(chosen):
            picked = [i[chosen] if i.ndim else i for i in indices]
            result[chosen] = self._read(source, picked, batch.select(chosen))
        return result

    def _read(self, source: Buffer | Scratch, indices: Sequence[Array], batch: Batch) -> Array:
        positions = self._positions(source, indices)
        if isinstance(source, Scratch):
            return self._read_scratch(source, positions, batch)
        if self.races:
            self.races.access_buffer(source, self.spaces[source], positions, batch, False)
        found = np.asarray(self.views[source].take(positions))
        return found != 0 if source.dtype is DType.BOOL else found

    def _read_scratch(self, source: Scratch, positions: Array, batch: Batch) -> Array:
        rows = self.scratch_rows(source.space, batch)
        values = self.values[source]
        addresses = rows * values.shape[1] + positions.reshape(-1, 1)
        if not self.defined[source].take(addresses).all():
            raise self.fail(f"{source.name} is read where nothing was stored")
        found = values.take(addresses)
        if found.shape[1] > 1:
            raw = found.view(np.dtype(f"u{found.dtype.itemsize}"))
            if np.any(raw != raw[:, :1]):
                raise self.fail(f"{source.name} is read outside LANE loops but its lanes differ")
        if self.races:
            self.races.access_scratch(source, addresses[:, 0], batch, False)
        return np.asarray(found[:, 0])

    def store(
        self,
        target: Buffer | Scratch,
        indices: Sequence[Array],
        value: Array,
        batch: Batch,
        guard: Array | None = None,
    ) -> None:
        """Stores an element in every iteration of the batch whose `guard` holds."""
        if guard is not None:
            if guard.ndim == 0:
                if not guard:
                    return
            else:
                chosen = np.flatnonzero(guard)
                if not len(chosen):
                    return
                indices = [i[chosen] if i.ndim else i for i in indices]
                value = value[chosen] if value.ndim else value
                batch = batch.select(chosen)
        positions = self._positions(target, indices)
        if isinstance(target, Scratch):
            self._write_scratch(target, positions, value, batch)
            return
        if target.binding in (BufferClass.CONSTANTS, BufferClass.INPUTS):
            raise self.fail(f"store to {target.name}, which is never written")
        if self.races:
            self.races.access_buffer(target, self.spaces[target], positions, batch, True)
        self.views[target][np.broadcast_to(positions, (batch.count,))] = value

    def _write_scratch(self, target: Scratch, positions: Array, value: Array, batch: Batch) -> None:
        rows = self.scratch_rows(target.space, batch)
        addresses = rows * self.values[target].shape[1] + positions.reshape(-1, 1)
        self.values[target].reshape(-1)[addresses] = value.reshape(-1, 1)
        self.defined[target].reshape(-1)[addresses] = True
        if self.races:
            self.races.access_scratch(target, addresses[:, 0], batch, True)


@dataclass(frozen=True)
class _Place:
    """Layout of a buffer, or of a row of scratch, in elements: its start, shape and strides.

    Attributes:
        limit: how many elements its memory has; None where all of `shape` are inside.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    limit: int | None


def _is_outside(number: Any, limit: int) -> bool:
    """Whether any of the i64 numbers lies outside 0..limit-1."""
    if isinstance(number, int):
        return not 0 <= number < limit
    # what is negative is more than any limit without its sign
    return bool(number.size) and int(number.view(np.uint64).max()) >= limit


def _numbers(dims: tuple[Dim, ...], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, values) for d in dims)


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
