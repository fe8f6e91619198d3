"""Times dispatches by themselves: their operands filled, in rounds beside what the machine can do.

A batch of dispatches is timed together: in each round the machine is measured and then each
dispatch has its turn, by the CPU time of the thread. The least of the rounds counts, of both. So a
neighbour that slows the machine for a while slows what is compared alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.backends.cpu.codegen import object_key
from aot.backends.cpu.compile import compile_kernel
from aot.backends.cpu.object_cache import ObjectCache
from aot.ir import dims
from aot.ir.graph import Function, Value
from aot.ir.record import Kind
from aot.ir.types import DType, DTypeKind
from aot.kernels.ir.nodes import Kernel
from aot.target.model import Target
from benchmarks.kernels.bounds import bound_seconds, work_of
from benchmarks.kernels.dispatches import Dispatch, key
from benchmarks.kernels.kinds import dtype_of, kind_of, root_of
from benchmarks.kernels.machine import Machine, Peaks
from tests.support.dispatch_timing import Timed

# memory and dispatches of a batch
BATCH_BYTES, BATCH = 256 << 20, 24
# seconds of one dispatch above which fewer rounds do
SLOW = 0.02
MOST_INDEX = 100


@dataclass(frozen=True)
class Settings:
    """Attributes:
    rounds: how often each dispatch is timed.
    least: seconds that a turn takes at least.
    """

    rounds: int = 7
    least: float = 3e-4


@dataclass(frozen=True)
class Result:
    """A dispatch that was timed.

    Attributes:
        kind, dtype: what it is counted as.
        text: what it computes, with extents.
        key: the kernel and its extents.
        model, node: where it was met first.
        count: how many such dispatches there are.
        seconds, bound: of one.
    """

    kind: str
    dtype: str
    text: str
    key: str
    model: str
    node: str
    count: int
    seconds: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.bound


def cached_compile(cache: ObjectCache, kernel: Kernel, target: Target) -> bytes:
    """A kernel's object, from the compiler's own cache where it has been compiled."""
    known = object_key(kernel, target)
    found = cache.get(known)
    if found is None:
        found = compile_kernel(kernel, target)
        cache.put(known, found)
    return found


class Prepared:
    """A dispatch with its code and operands."""

    def __init__(self, dispatch: Dispatch, target: Target, cache: ObjectCache) -> None:
        self.dispatch = dispatch
        self.timed = Timed(
            dispatch.function,
            dispatch.dims,
            target,
            lambda kernel, target: cached_compile(cache, kernel, target),
        )
        self.key = key(dispatch, self.timed.kernel)
        self.work = work_of(dispatch.function, dispatch.dims, dispatch.bytes)
        self.memory_bytes = sum(len(m) for m in self.timed.memory)

    def fill(self) -> None:
        """Gives operands their values: as the model has them where they are integers that it keeps,
        else random ones that no kernel reads anything by that is not there."""
        random = np.random.default_rng(1)
        function = self.dispatch.function
        limits = index_limits(function, self.dispatch.dims)
        kernel = self.timed.kernel
        for number, (buffer, raw) in enumerate(
            zip(kernel.buffers, self.timed.buffers, strict=True)
        ):
            known = self.dispatch.integers.get(number)
            data = raw[: len(raw) // buffer.dtype.numpy.itemsize * buffer.dtype.numpy.itemsize]
            view = data.view(buffer.dtype.numpy)
            if known is not None and len(known) == len(view):
                view[:] = known
                continue
            low, high = limits.get(number, (0, MOST_INDEX))
            fill(view, buffer.dtype, low, high, random)


def fill(
    view: np.ndarray[Any, Any],
    dtype: DType,
    low: int,
    high: int,
    random: np.random.Generator,
) -> None:
    """Positive floats, of which roots and logarithms are numbers; integers in [low, high)."""
    if dtype.is_float:
        view[:] = random.uniform(0.0625, 1.0, len(view)).astype(view.dtype)
    elif dtype.kind is DTypeKind.BOOL:
        view[:] = random.integers(0, 2, len(view)).astype(view.dtype)
    elif dtype.bits <= 8:
        info = np.iinfo(view.dtype)
        view[:] = random.integers(info.min, info.max, len(view), view.dtype, endpoint=True)
    else:
        view[:] = random.integers(low, max(high, low + 1), len(view)).astype(view.dtype)


def index_limits(function: Function, values: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """The range of each operand that may hold positions or lengths: positions are in all of what
    they may be positions in; a recurrence's lengths are whole."""
    least, steps = MOST_INDEX, 0
    for op in function.block:
        operands = [v for v in op.operands if v is not None]
        if op.record.kind is Kind.RECURRENCE:
            steps = dims.evaluate(operands[0].type.dims[0], values)
        if len(operands) < 2 or not any(map(_may_be_index, operands)):
            continue
        if op.record.kind in (Kind.MOVEMENT, Kind.SCATTER, Kind.REDUCTION):
            axis = op.attrs.get("axis")
            type = operands[0].type
            chosen = (type.dims[axis],) if isinstance(axis, int) else type.dims
            least = min([least, *(dims.evaluate(d, values) for d in chosen)])
    range_ = (steps, steps + 1) if steps else (0, least)
    return {n: range_ for n, v in enumerate(function.inputs) if _may_be_index(v)}


def _may_be_index(value: Value) -> bool:
    dtype = value.type.dtype
    return dtype.kind in (DTypeKind.SIGNED, DTypeKind.UNSIGNED) and dtype.bits >= 32


def batches(prepared: Iterator[Prepared]) -> Iterator[list[Prepared]]:
    """Dispatches that are timed together, in the order they come."""
    found: list[Prepared] = []
    size = 0
    for one in prepared:
        if found and (size + one.memory_bytes > BATCH_BYTES or len(found) == BATCH):
            yield found
            found, size = [], 0
        found.append(one)
        size += one.memory_bytes
    if found:
        yield found


def time_batch(
    batch: Sequence[Prepared], machine: Machine, settings: Settings
) -> tuple[list[Result], Peaks]:
    """Times of a batch, and what the machine could do meanwhile."""
    times = []
    for one in batch:
        one.fill()
        one.timed.run(1)
        first = max(one.timed.seconds(1), 1e-8)
        if first < settings.least:
            first = max(one.timed.seconds(max(1, int(settings.least / 8 / first))), 1e-9)
        times.append((max(1, int(settings.least / first)), first))
    least = [first for _, first in times]
    peaks = machine.sample()
    for turn in range(settings.rounds):
        for number, (one, (count, first)) in enumerate(zip(batch, times, strict=True)):
            if turn < 2 or first < SLOW:
                least[number] = min(least[number], one.timed.seconds(count))
        peaks = peaks.best(machine.sample())
    results = []
    for one, seconds in zip(batch, least, strict=True):
        dispatch = one.dispatch
        function, values = dispatch.function, dispatch.dims
        results.append(
            Result(
                kind_of(function, values),
                dtype_of(root_of(function, values)).value,
                dispatch.text,
                one.key,
                dispatch.model,
                dispatch.node,
                dispatch.count,
                seconds,
                bound_seconds(one.work, peaks, machine.lanes),
            )
        )
    return results, peaks
