"""The memory of an interpreted kernel: batches of iterations, buffers, scratch, addresses.

Owns bounds, alignment and definedness checks. A batch evaluates many iterations at once; every
value in it is an array of the batch's length or a scalar that all iterations share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

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


@dataclass
class Batch:
    """`count` iterations; element i descends from element `gather[i]` of `parent` (None: i)."""

    count: int
    parent: Batch | None = None
    gather: Array | None = None
    values: dict[Var, Array] = field(default_factory=dict)

    @staticmethod
    def root() -> Batch:
        return Batch(1)

    def child(self, values: dict[Var, Array] | None = None) -> Batch:
        """The same iterations, with a scope of their own for Lets and loop variables."""
        return Batch(self.count, self, None, values or {})

    def select(self, chosen: Array) -> Batch:
        """The iterations numbered `chosen`."""
        return Batch(len(chosen), self, chosen)

    def expand(self, var: Var, start: int, stop: int) -> Batch:
        """`stop - start` iterations of a loop for every iteration of this batch."""
        extent = stop - start
        inner = Batch(self.count * extent, self, np.repeat(np.arange(self.count), extent))
        inner.values[var] = np.tile(np.arange(start, stop, dtype=np.int64), self.count)
        return inner

    def lookup(self, var: Var) -> Array | None:
        """The value of `var`, brought to this batch's length; None where it is not bound."""
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


class Memory:
    """Buffers as bytes, scratch as typed arrays with a mask of what has been stored."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Array], params: Mapping[str, float | int]
    ) -> None:
        self.kernel = kernel
        self.races: RaceChecker | None = None
        by_class = not any(b.name in buffers for b in kernel.buffers)
        self.params = self._read_params(params, by_class)
        dims = {p.name: int(self.params[p.name]) for p in kernel.params if p.dtype is DType.INDEX}
        self.views = {b: self._view(b, buffers, by_class) for b in kernel.buffers}
        self.shapes = {b: _numbers(b.shape, dims) for b in kernel.buffers}
        self.strides = {b: _numbers(b.strides, dims) for b in kernel.buffers}
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
        lanes = self.lane_counts[0] * self.lane_counts[1] * self.lane_counts[2]
        for scratch in self.kernel.scratch:
            size = int(np.prod(scratch.shape, dtype=np.int64))
            rows = workgroups.count * (1 if scratch.space is Space.WORKGROUP else lanes)
            self.values[scratch] = np.zeros((rows, size), scratch.dtype.numpy)
            self.defined[scratch] = np.zeros((rows, size), np.bool_)

    def undefine(self, scratch: Scratch, addresses: Array) -> None:
        """Forgets elements, numbered over all rows."""
        self.defined[scratch].reshape(-1)[addresses] = False

    def lane(self, batch: Batch) -> Array | None:
        """The lane's number within the workgroup; None outside LANE loops."""
        if max(self.lane_counts) == 1:
            return None
        total: Array | None = None
        step = 1
        for var, count in zip(LANE_VARS, self.lane_counts, strict=True):
            value = batch.lookup(var)
            if value is not None:
                total = value * step if total is None else total + value * step
            step *= count
        return total

    def scratch_rows(self, scratch: Scratch, batch: Batch) -> Array:
        """Rows for every iteration: shape (count, copies).

        REGISTER scratch has a row for every lane; outside the LANE loops of some axis all lanes
        along that axis hold a copy.
        """
        group = batch.lookup(GROUP_VAR)
        assert group is not None
        rows = group.reshape(-1, 1)
        if scratch.space is Space.WORKGROUP:
            return rows
        count_x, count_y, count_z = self.lane_counts
        if max(self.lane_counts) == 1:
            return rows
        rows = rows * (count_x * count_y * count_z)
        step = 1
        for var, count in zip(LANE_VARS, self.lane_counts, strict=True):
            value = batch.lookup(var)
            if value is not None:
                rows = rows + value.reshape(-1, 1) * step
            else:
                copies = rows[:, :, None] + np.arange(count) * step
                rows = copies.reshape(copies.shape[0], -1)
            step *= count
        return rows

    # Addresses

    def _positions(self, target: Buffer | Scratch, indices: list[Array]) -> Array:
        """Element positions, bounds checked; a scalar where all iterations share one."""
        if isinstance(target, Buffer):
            shape, strides = self.shapes[target], self.strides[target]
            position: Array = np.asarray(
                int(self.params[target.offset.name]) // target.dtype.bytes, np.int64
            )
        else:
            shape, strides = target.shape, _dense_strides(target.shape)
            position = np.asarray(0, np.int64)
        for dim, (index, extent, stride) in enumerate(zip(indices, shape, strides, strict=True)):
            if index.size and (int(index.min()) < 0 or int(index.max()) >= extent):
                outside = (index < 0) | (index >= extent)
                bad = int(index[outside][0]) if index.ndim else int(index)
                raise self.fail(
                    f"index {bad} of dim {dim} of {target.name} is outside 0..{extent - 1}"
                )
            position = np.asarray(position + index * stride)
        if isinstance(target, Buffer) and position.size:
            low, high = int(position.min()), int(position.max())
            if low < 0 or high >= len(self.views[target]):
                raise self.fail(
                    f"an element of {target.name} at byte "
                    f"{(high if low >= 0 else low) * target.dtype.bytes} is outside "
                    f"its {target.binding.name} buffer of "
                    f"{len(self.views[target]) * target.dtype.bytes} bytes"
                )
        return position

    def load(
        self,
        source: Buffer | Scratch,
        indices: list[Array],
        batch: Batch,
        guard: Array | None,
        other: Array | None,
    ) -> Array:
        """Elements of `source`; where `guard` is false, `other` and no access."""
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

    def _read(self, source: Buffer | Scratch, indices: list[Array], batch: Batch) -> Array:
        positions = self._positions(source, indices)
        if isinstance(source, Scratch):
            return self._read_scratch(source, positions, batch)
        if self.races:
            self.races.access_buffer(
                source, self.spaces[source], positions, batch, False, self.lane(batch)
            )
        found = np.asarray(self.views[source][positions])
        return found != 0 if source.dtype is DType.BOOL else found

    def _read_scratch(self, source: Scratch, positions: Array, batch: Batch) -> Array:
        rows = self.scratch_rows(source, batch)
        values = self.values[source]
        columns = positions.reshape(-1, 1)
        if not np.all(self.defined[source][rows, columns]):
            raise self.fail(f"{source.name} is read where nothing was stored")
        found = np.asarray(values[rows, columns])
        raw = found.view(np.dtype(f"u{found.dtype.itemsize}"))
        if found.shape[1] > 1 and np.any(raw != raw[:, :1]):
            raise self.fail(f"{source.name} is read outside LANE loops but its lanes differ")
        if self.races:
            self.races.access_scratch(
                source, rows[:, :1] * values.shape[1] + columns, batch, False, self.lane(batch)
            )
        return np.broadcast_to(found[:, 0], (batch.count,))

    def store(
        self,
        target: Buffer | Scratch,
        indices: list[Array],
        value: Array,
        batch: Batch,
        guard: Array | None = None,
    ) -> None:
        """Writes where `guard` holds, every iteration of the batch."""
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
            self.races.access_buffer(
                target, self.spaces[target], positions, batch, True, self.lane(batch)
            )
        self.views[target][np.broadcast_to(positions, (batch.count,))] = value

    def _write_scratch(self, target: Scratch, positions: Array, value: Array, batch: Batch) -> None:
        rows = self.scratch_rows(target, batch)
        columns = positions.reshape(-1, 1)
        self.values[target][rows, columns] = value.reshape(-1, 1)
        self.defined[target][rows, columns] = True
        if self.races:
            addresses = rows[:, :1] * self.values[target].shape[1] + columns
            self.races.access_scratch(target, addresses, batch, True, self.lane(batch))


def _numbers(dims: tuple[Dim, ...], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, values) for d in dims)


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
