"""The interpreter's model of memory: arrays of which several values can be views.

Only functions that write in place, keep state or call others need it; everywhere else a value is
an array of its own. Knows nothing of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.graph import Function
from aot.ir.types import Array, Layout, TensorType, to_logical


class Buffer:
    """A piece of memory: a flat array, which can grow.

    Attributes:
        length: of a growing state variable's memory: its extent along the dim that grows.
    """

    __slots__ = ("array", "length")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.length = 0


@dataclass(frozen=True)
class Place:
    """The memory locations of a value's elements.

    Attributes:
        buffers: what they are in; other places may share it.
        index: each element's number in its buffer.
        which: the number of each element's buffer, where there are several.
    """

    buffers: tuple[Buffer, ...]
    index: Array
    which: Array

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.buffers[0].array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.index.shape)

    @staticmethod
    def of(array: Array) -> Place:
        """A place in `array` itself, which must be contiguous."""
        index = np.arange(array.size, dtype=np.int64).reshape(array.shape)
        return Place((Buffer(array.reshape(-1)),), index, np.zeros_like(index))

    @staticmethod
    def joined(places: Sequence[Place], join: Callable[[list[Array]], Array]) -> Place:
        """A place over the buffers of several places, with elements ordered by `join`, which is
        applied to their index arrays.
        """
        first = [sum(len(p.buffers) for p in places[:n]) for n in range(len(places))]
        return Place(
            tuple(b for p in places for b in p.buffers),
            join([p.index for p in places]),
            join([p.which + n for p, n in zip(places, first, strict=True)]),
        )

    def read(self) -> Array:
        """A copy of the elements."""
        elements = np.empty(self.shape, self.dtype)
        for number, buffer in enumerate(self.buffers):
            inside = self.which == number
            elements[inside] = buffer.array[self.index[inside]]
        return elements

    def write(self, elements: Array) -> None:
        for number, buffer in enumerate(self.buffers):
            inside = self.which == number
            buffer.array[self.index[inside]] = elements[inside]

    def view(self, choose: Callable[[Array], Array]) -> Place:
        """The place of the elements that `choose` selects from an array of this place's shape."""
        return Place(self.buffers, choose(self.index), choose(self.which))


States = dict[str, Buffer]


def is_about_memory(function: Function) -> bool:
    """Whether the function has an op for which the identity of memory matters: writes, states or
    unknown effects."""
    return any(
        op.record.writes or op.record.is_state or op.record.has_unknown_effects
        for op in function.walk()
    )


def state_place(states: States, name: str, type: TensorType) -> Place:
    """The memory of state variable `name`, zero if it is new, as seen through `type`."""
    layout = type.layout or Layout()
    shape = type.shape
    if layout.strides:
        index = np.zeros(shape, np.int64)
        for axis, stride in enumerate(type.strides):
            steps = np.arange(shape[axis], dtype=np.int64) * int(stride)
            index = index + steps.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    else:
        dims = [int(d) for d in type.physical_dims]
        physical = np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims)
        index = to_logical(physical, type)
    count = int(index.max(initial=-1)) + 1
    memory = states.setdefault(name, Buffer(np.zeros(count, type.dtype.numpy)))
    if memory.array.dtype != type.dtype.numpy:
        raise CompileError(f"state {name!r} is {memory.array.dtype} and {type.dtype}")
    if memory.array.size < count:
        memory.array = np.append(
            memory.array, np.zeros(count - memory.array.size, memory.array.dtype)
        )
    return Place((memory,), index, np.zeros_like(index))
