"""Helpers for tests of lowering: one op or a small graph as executables, run on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.analysis.memory.views import map_of
from aot.ir.builder import Builder
from aot.ir.dims import DimExpr, evaluate
from aot.ir.graph import Function, Op
from aot.ir.index_map import IndexMap
from aot.ir.record import OpRecord, Sample
from aot.ir.types import DType, TensorType, to_physical

Array = np.ndarray[Any, Any]


def sample_array(type: TensorType, sample: Sample, rng: np.random.RandomState) -> Array:
    """Contents for an operand of a sample."""
    if type.dtype is DType.BOOL:
        return rng.randint(0, 2, type.shape).astype(bool)
    if type.dtype.is_float:
        return rng.uniform(sample.low, sample.high, type.shape).astype(type.dtype.numpy)
    return rng.randint(int(sample.low), int(sample.high) + 1, type.shape).astype(type.dtype.numpy)


def sample_function(record: OpRecord, sample: Sample, *, is_packed: bool = False) -> Function:
    """A function of the one op; operands are inputs, or constants where the sample says so."""
    rng = np.random.RandomState(7)
    b = Builder()
    operands = []
    for number, type in enumerate(sample.operands):
        if type is None:
            operands.append(None)
        elif is_packed and number in sample.constant_operands:
            operands.append(b.constant(sample_array(type, sample, rng)))
        else:
            operands.append(b.input(f"x{number}", type))
    made = b.op(record.name, *operands, **dict(sample.attrs))
    results = made if isinstance(made, (list, tuple)) else [made]
    for number, value in enumerate(results):
        b.output(f"y{number}", value)
    return b.function()


def view_array(op: Op, array: Array, symbols: Mapping[str, int]) -> Array:
    """The logical elements of a view of `array`."""
    map = map_of(op)
    assert map is not None

    def known(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(known(v) for v in value)
        return evaluate(value, symbols) if isinstance(value, (int, DimExpr)) else value

    return IndexMap.of_attr(known(map.to_attr())).apply(array)


def element_numbers(type: TensorType, symbols: Mapping[str, int]) -> Array:
    """Where each element of a type lies, as a number of elements."""
    shape = [evaluate(d, symbols) for d in type.dims]
    strides = [evaluate(s, symbols) for s in type.physical_strides]
    splits = dict(type.layout.splits) if type.layout is not None else {}
    inner = {d: strides[type.rank + n] for n, d in enumerate(splits)}
    numbers = np.zeros(shape, np.int64)
    for axis, extent in enumerate(shape):
        index = np.arange(extent, dtype=np.int64)
        if axis in splits:
            pieces, within = np.divmod(index, splits[axis])
            steps = pieces * strides[axis] + within * inner[axis]
        else:
            steps = index * strides[axis]
        numbers = numbers + steps.reshape([-1 if d == axis else 1 for d in range(type.rank)])
    return numbers


def to_memory(array: Array, type: TensorType, symbols: Mapping[str, int]) -> Array:
    """The buffer in which a logical array lies as `type` says; what lies between is 77."""
    if type.layout is None:
        return np.ascontiguousarray(array).reshape(-1)
    if type.layout.splits:
        return to_physical(array, type).reshape(-1)
    numbers = element_numbers(type, symbols)
    flat = np.full(int(numbers.max(initial=-1)) + 1, 77, type.dtype.numpy)
    flat[numbers] = array
    return flat


def run_executable(
    function: Function,
    target: Any,
    inputs: Sequence[Array],
    dims: Sequence[int],
    engine: Callable[..., None],
    alignments: Sequence[int] = (),
) -> list[Array]:
    """One executable's results, logical; `inputs` are as they lie in memory.

    `engine(kernel, buffers, params)` runs the kernel in place, and puts each operand at a multiple
    of its number of `alignments`.
    """
    from aot.kernels.ir.verifier import verify
    from aot.kernels.lowering import lower

    kernel = lower(function, target, alignments)
    verify(kernel)
    env = dict(zip(function.dim_names, dims, strict=True))
    buffers: dict[str, Array] = {}
    count = len(inputs)
    for buffer, array in zip(kernel.buffers[:count], inputs, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1)
        # a kernel may know nothing but the bits of what it stores
        buffers[buffer.name] = flat.view(buffer.dtype.numpy)
    written = list(zip(kernel.buffers[count:], function.results, strict=True))
    for buffer, value in written:
        size = evaluate(value.type.bytes, env) // value.type.dtype.bytes
        # poison: what isn't written shows
        poison = np.full(size, 77, value.type.dtype.numpy)
        buffers[buffer.name] = poison.view(buffer.dtype.numpy)
    engine(kernel, buffers, {**env, **{p.name: 0 for p in kernel.params if p.name not in env}})
    results: list[Array] = []
    for buffer, value in written:
        flat = buffers[buffer.name].view(value.type.dtype.numpy)
        numbers = element_numbers(value.type, env)
        results.append(flat[numbers])
        between = np.delete(flat, numbers.reshape(-1))
        assert (between == np.asarray(77).astype(flat.dtype)).all(), "wrote between elements"
    return results
