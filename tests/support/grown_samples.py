"""The op table's samples with one of their extents made long, whichever loop it becomes.

Owns which dims, attributes and operands grow together: every choice that the op's own rules accept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aot.errors import AotError
from aot.ir.builder import Builder
from aot.ir.dims import Dim, symbol
from aot.ir.graph import Attr, Function
from aot.ir.interpreter.interpreter import bind_symbols
from aot.ir.record import OpRecord, Sample
from aot.ir.types import TensorType
from tests.support.lowering import Array, sample_array

MOST_ELEMENTS = 1 << 23  # of an operand or a result


def function_of(record: OpRecord, sample: Sample) -> Function:
    """A function of the one op, whose operands are inputs but those that models have constant.

    Raises:
        AotError: the op doesn't take such operands.
    """
    b = Builder()
    operands: list[Any] = []
    for number, type in enumerate(sample.operands):
        if type is None:
            operands.append(None)
        elif number in sample.constant_operands and type.is_static:
            operands.append(b.constant(sample_array(type, sample, np.random.RandomState(7))))
        else:
            operands.append(b.input(f"x{number}", type))
    made = b.op(record.name, *operands, **dict(sample.attrs))
    for number, value in enumerate(made if isinstance(made, (list, tuple)) else [made]):
        b.output(f"y{number}", value)
    return b.function()


def grown(record: OpRecord, sample: Sample, extent: int) -> Iterator[Sample]:
    """The sample with `extent` in place of one of its extents: of one dim alone, and of all that
    have it, in attributes that are extents as well."""
    seen = set[str]()
    places = [
        (number, axis)
        for number, type in enumerate(sample.operands)
        if type is not None and type.layout is None
        for axis in range(type.rank)
    ]
    for number, axis in places:
        first = sample.operands[number]
        assert first is not None
        old = first.dims[axis]
        alike = [p for p in places if _dim(sample, p) == old]
        for chosen in ([(number, axis)], alike):
            for attrs in (sample.attrs, _with_extent(sample.attrs, old, extent)):
                made = replace(_with_dims(sample, chosen, extent), attrs=attrs)
                key = f"{[str(t) for t in made.operands]} {dict(attrs)}"
                if key not in seen and _is_good(record, made):
                    seen.add(key)
                    yield made


def opened(record: OpRecord, sample: Sample, extent: int) -> Function | None:
    """The op where only the device knows an extent; None where the op must know it."""
    places = [
        (number, axis)
        for number, type in enumerate(sample.operands)
        if type is not None and number not in sample.constant_operands
        for axis in range(type.rank)
        if type.dims[axis] == extent
    ]
    try:
        function = function_of(record, _with_dims(sample, places, symbol("N")))
        shapes = [t.shape for t in sample.operands if t is not None and t.is_static]
        inputs = [s for n, s in enumerate(shapes) if n not in sample.constant_operands]
        bind_symbols(function, inputs)
    except (AotError, KeyError, AssertionError, TypeError):
        return None
    return function


def arrays_of(record: OpRecord, sample: Sample, function: Function) -> list[Array]:
    """The inputs; positions reach over both ends of what they choose from."""
    rng = np.random.RandomState(11)
    found: list[Array] = []
    most = max((d for t in sample.operands if t is not None for d in t.shape), default=1)
    for number, type in enumerate(sample.operands):
        if type is None or not any(v.name == f"x{number}" for v in function.inputs):
            continue
        operand = record.operands[min(number, len(record.operands) - 1)]
        if operand.clamps and not type.dtype.is_float:
            low = -most - 2 if type.dtype.is_signed else 0
            info = np.iinfo(type.dtype.numpy)
            drawn = rng.randint(max(low, int(info.min)), min(most + 2, int(info.max)), type.shape)
            found.append(drawn.astype(type.dtype.numpy))
        else:
            found.append(sample_array(type, sample, rng))
    return found


def _dim(sample: Sample, place: tuple[int, int]) -> Dim:
    type = sample.operands[place[0]]
    assert type is not None
    return type.dims[place[1]]


def _with_dims(sample: Sample, places: list[tuple[int, int]], extent: Dim) -> Sample:
    def changed(number: int, type: TensorType | None) -> TensorType | None:
        if type is None:
            return None
        dims = (extent if (number, d) in places else n for d, n in enumerate(type.dims))
        return type.with_dims(tuple(dims))

    return replace(sample, operands=tuple(changed(n, t) for n, t in enumerate(sample.operands)))


def _with_extent(attrs: Mapping[str, Attr], old: Dim, extent: int) -> dict[str, Attr]:
    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return extent if type(value) is int and value == old and value > 1 else value

    return {n: changed(value) if n in ("shape", "k") else value for n, value in attrs.items()}


def _is_good(record: OpRecord, sample: Sample) -> bool:
    """Whether the op takes such operands, and neither they nor its results are too large."""
    if not all(_is_small(type) for type in sample.operands if type is not None):
        return False
    try:
        function = function_of(record, sample)
    except (AotError, AssertionError, ValueError):
        return False
    return all(_is_small(v.type) for v in function.results)


def _is_small(type: TensorType) -> bool:
    return type.is_static and math.prod(type.shape) <= MOST_ELEMENTS
