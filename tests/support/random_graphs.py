"""Random graphs over the whole op table, from the records' samples alone; no op is named here.

An op's operands are values of the graph where its rules allow that, else what its sample wants:
floats are brought to the sample's type by movements, all else is an input of its own, drawn from
the sample's range, so that indices stay indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aot.builder import Builder
from aot.errors import CompileError
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Kind, OpRecord, Sample
from aot.ir.types import DType, TensorType
from tests.support.op_samples import draw as drawn

Array = np.ndarray[Any, Any]

_KINDS = set(Kind) - {Kind.STRUCTURE, Kind.SHAPE}
MAX_ELEMENTS = 4096
_SHAPES = ((3, 4), (1, 4), (2, 33), (5, 1, 7), (2, 3, 4, 5), (17,), (64,), (1,), (), (0, 4))
MANY_RUNS = 16
NOISE = 2e-6  # what an op's float result may be off by, relative
TOLERANCE = 2e-5


def _is_usable(record: OpRecord, sample: Sample) -> bool:
    types = [t for t in sample.operands if t is not None]
    return (
        record.kind in _KINDS
        and record.reference is not None
        and not record.writes
        and "layout" not in sample.attrs
        and DType.F64 not in sample.attrs.values()
        and all(t.is_static and t.dtype is not DType.F64 and t.layout is None for t in types)
    )


CALLS = {
    name: numbers
    for name, record in sorted(REGISTRY.items())
    if (
        numbers := [
            number for number, sample in enumerate(record.samples) if _is_usable(record, sample)
        ]
    )
}


@dataclass
class Graph:
    """A module and inputs for its one function.

    Attributes:
        ranges: low and high of each input's elements.
    """

    module: Module
    ranges: dict[str, tuple[float, float]]

    def inputs(self, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {v.name: drawn(v.type, *self.ranges[v.name], rng) for v in self.module.main.inputs}


@dataclass
class _State:
    builder: Builder
    pool: list[Value] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def input(self, type: TensorType, low: float, high: float) -> Value:
        name = f"x{len(self.ranges)}"
        self.ranges[name] = (low, high)
        return self.builder.input(name, type)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 8) -> Graph:
    """A random valid graph of static shapes."""
    state = _State(Builder())
    for _ in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from((DType.F32, DType.F32, DType.F16)))
        state.pool.append(state.input(TensorType(dtype, draw(st.sampled_from(_SHAPES))), -2, 2))
    for _ in range(draw(st.integers(1, max_ops))):
        state.pool += _apply(draw, state)
    used = [v for v in state.pool if not v.uses] or state.pool[-1:]
    for number, value in enumerate(used[:4]):
        state.builder.output(f"y{number}", value)
    return Graph(state.builder.module(), state.ranges)


def _apply(draw: st.DrawFn, state: _State) -> list[Value]:
    """The results of one more op."""
    name = draw(st.sampled_from(list(CALLS)))
    record = REGISTRY[name]
    sample = record.samples[draw(st.sampled_from(CALLS[name]))]
    if draw(st.booleans()):
        made = _on_pool(draw, state, record, sample)
        if made:
            return made
    rng = np.random.default_rng(draw(st.integers(0, 3)))
    operands = [
        None if type is None else _operand(draw, state, sample, position, type, rng)
        for position, type in enumerate(sample.operands)
    ]
    return _kept(state.builder.op(name, *operands, **dict(sample.attrs)))


def _on_pool(draw: st.DrawFn, state: _State, record: OpRecord, sample: Sample) -> list[Value]:
    """The op with the sample's attributes on values that are there; nothing if its rules refuse.

    Only floats: integers may be indices, whose range the types do not tell.
    """
    values = [v for v in state.pool if v.type.dtype in (DType.F32, DType.F16)]
    if not values or any(t is None or not t.dtype.is_float for t in sample.operands):
        return []
    operands = [draw(st.sampled_from(values)) for _ in sample.operands]
    try:
        call = record.call([v.type for v in operands], sample.attrs)
    except CompileError:
        return []
    if any(np.prod(t.shape) > MAX_ELEMENTS for t in call.result_types):
        return []
    return _kept(state.builder.op(record.name, *operands, **dict(sample.attrs)))


def _kept(made: Any) -> list[Value]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _operand(
    draw: st.DrawFn,
    state: _State,
    sample: Sample,
    position: int,
    type: TensorType,
    rng: np.random.Generator,
) -> Value:
    if position in sample.constant_operands:
        return state.builder.constant(drawn(type, sample.low, sample.high, rng))
    floats = [v for v in state.pool if v.type.dtype.is_float]
    is_plain = type.dtype.is_float and (sample.low, sample.high) == (-2.0, 2.0)
    if is_plain and floats and draw(st.booleans()):
        return _brought_to(state.builder, draw(st.sampled_from(floats)), type)
    if draw(st.integers(0, 3)) == 0:
        return state.builder.constant(drawn(type, sample.low, sample.high, rng))
    return state.input(type, sample.low, sample.high)


def _brought_to(b: Builder, value: Value, wanted: TensorType) -> Value:
    """`value` with another dtype and other dims, by cast, reshape, slice and pad."""
    if value.type.dtype is not wanted.dtype:
        value = b.op("cast", value, to=wanted.dtype)
    if value.type.dims == wanted.dims:
        return value
    have, need = int(np.prod(value.type.shape)), int(np.prod(wanted.shape))
    value = b.op("reshape", value, shape=(have,))
    if have > need:
        value = b.op("slice", value, starts=(0,), stops=(need,), steps=(1,))
    elif have < need:
        value = b.op("pad", value, pads=(0, need - have), mode="constant", value=0.5)
    return b.op("reshape", value, shape=wanted.dims)


# comparing


class _Noise:
    """Every float result is a little off, as it may be on a backend: a `Disturbance`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nan_sign = (-1.0) ** seed

    def before(self, op: Op, operands: Sequence[Array | None]) -> Sequence[Array | None]:
        if op.record.kind is not Kind.REDUCTION:
            return operands
        # what is cancelled inside it is off as well
        return [x if x is None else self.nudged(x) for x in operands]

    def after(self, op: Op, results: list[Array]) -> list[Array]:
        if op.record.kind in (Kind.MOVEMENT, Kind.VIEW, Kind.STRUCTURE):
            return results  # moved elements are the same bits
        return [self.disturbed(a) for a in results]

    def nudged(self, array: Array) -> Array:
        """Floats of 32 bits and more, each off by its last bit."""
        if array.dtype.kind != "f" or array.dtype.itemsize <= 2:
            return array
        last = np.finfo(array.dtype).eps
        return np.asarray(array * (1 + last * self.rng.uniform(-1, 1, array.shape)), array.dtype)

    def disturbed(self, array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        noise = NOISE if array.dtype.itemsize > 2 else 1e-3
        scale = float(np.max(np.abs(array[np.isfinite(array)]), initial=0))
        factor = 1 + noise * self.rng.uniform(-1, 1, array.shape)
        apart = self.rng.uniform(-1, 1, array.shape) + self.rng.uniform(-0.1, 0.1)  # and together
        off = np.asarray(array * factor + noise * scale * apart, array.dtype)
        # which NaN it is says nothing either
        return np.where(np.isnan(off), np.copysign(off, self.nan_sign), off)


def noisy_run(function: Function, inputs: Mapping[str, Array], seed: int) -> list[Array]:
    """The function's results where each op's floats are off by as much as is allowed."""
    copies = {v.name: inputs[v.name].copy() for v in function.inputs}  # it may write them
    return run(function, copies, disturbance=_Noise(seed))


def difference(
    function: Function,
    inputs: Mapping[str, Array],
    expected: Sequence[Array],
    found: Sequence[Array],
) -> str:
    """Where results differ by more than noise explains; "" if nowhere.

    An element that noise alone changes (a rounding, a comparison, a cancellation) says nothing
    of the backend, and is left out.
    """
    noisy = [noisy_run(function, inputs, seed) for seed in range(3)]
    is_coarse = any(
        v.type.dtype in (DType.F16, DType.BF16) for op in function.walk() for v in op.results
    )
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        if wanted.shape != got.shape or wanted.dtype != got.dtype:
            return f"result {number}: {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}"
        off = _off(wanted, got, [run[number] for run in noisy], is_coarse=is_coarse)
        if off.any() and len(noisy) < MANY_RUNS:  # a tie may fall to one side a few times
            noisy += [noisy_run(function, inputs, n) for n in range(len(noisy), MANY_RUNS)]
            off = _off(wanted, got, [run[number] for run in noisy], is_coarse=is_coarse)
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0]) if off.ndim else ()
            return (
                f"result {number} at {at}: {got[at]}, expected {wanted[at]} "
                f"({int(off.sum())} of {off.size} are off)"
            )
    return ""


def _off(wanted: Array, got: Array, others: Sequence[Array], *, is_coarse: bool) -> Array:
    if wanted.dtype.kind != "f":
        steady = np.logical_and.reduce([o == wanted for o in others])
        return np.asarray(steady & (wanted != got))
    with np.errstate(all="ignore"):
        a, b = wanted.astype(np.float64), got.astype(np.float64)
        spread = np.maximum.reduce([np.abs(o.astype(np.float64) - a) for o in others])
        usable = np.isfinite(a) & np.isfinite(spread)
        scale = float(np.max(np.abs(a[usable]), initial=0))
        noise = TOLERANCE if wanted.dtype.itemsize > 2 else 5e-3
        # a few runs may leave one element as it was, unlike most others; rounding to 16 bits many
        part = 0.5 if is_coarse else 0.1
        usual = np.quantile(spread[usable], part, method="lower") if usable.any() else 0.0
        allowed = 30 * np.maximum(spread, usual) + noise * scale + 1e-30
        return np.asarray(usable & ~(np.abs(a - b) <= allowed))
