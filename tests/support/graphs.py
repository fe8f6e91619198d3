"""Graphs and arrays for tests: inputs for any function, and random graphs of simple ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, permutations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aot.builder import Builder
from aot.ir.dims import evaluate, symbols
from aot.ir.graph import Function, Module, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType, TensorType

Array = np.ndarray[Any, Any]


def symbol_values(function: Function, largest: int = 6) -> dict[str, int]:
    """Values of the inputs' symbols that satisfy the function's assumptions: different ones from 2
    on, where a few tries find such, as an extent of 1 and two equal ones hide what is wrong."""
    names = sorted({n for v in function.inputs for d in v.type.dims for n in symbols(d)})
    # of an extent that the function computes the interpreter asks
    asked = [a for a in function.assumptions if symbols(a.left) | symbols(a.right) <= set(names)]
    different = permutations(range(2, max(largest, len(names) + 2) + 1), len(names))
    for numbers in chain(
        islice(different, 5_000), product(range(1, largest + 1), repeat=len(names))
    ):
        values = dict(zip(names, numbers, strict=True))
        if all(evaluate(a.left, values) == evaluate(a.right, values) for a in asked):
            return values
    raise AssertionError(f"no values of {names} satisfy the assumptions")


def random_array(type: TensorType, values: dict[str, int], rng: np.random.Generator) -> Array:
    """Elements of `type`; integers are small and not negative, so that they can be indices."""
    shape = tuple(evaluate(d, values) for d in type.dims)
    if type.dtype is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), bool)
    if type.dtype.is_float:
        return np.asarray(rng.uniform(-2, 2, shape), type.dtype.numpy)
    return np.asarray(rng.integers(0, 9, shape), type.dtype.numpy)


def random_inputs(function: Function, seed: int = 0) -> dict[str, Array]:
    """Arrays for a function's inputs, which must have names."""
    rng = np.random.default_rng(seed)
    values = symbol_values(function)
    return {v.name: random_array(v.type, values, rng) for v in function.inputs}


HALVES = (-2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5)
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, -3.0, 1e-3, -1e4)


def special_inputs(function: Function, numbers: Sequence[float], seed: int) -> dict[str, Array]:
    """As `random_inputs`, of which floats are some of `numbers`."""
    rng = np.random.default_rng(seed)
    made = random_inputs(function, seed)
    for value in function.inputs:
        if value.type.dtype.is_float:
            array = np.resize(rng.permutation(numbers), made[value.name].shape)
            made[value.name] = np.asarray(array, value.type.dtype.numpy)
    return made


def assert_same_results(
    before: Module,
    after: Module,
    inputs: dict[str, Array] | None = None,
    fixed: dict[str, Array] | None = None,
    tolerance: float = 0,
) -> None:
    """Whether two modules' mains give the same values, on inputs of the second, and leave the same
    in these.

    Args:
        fixed: what the first needs besides.
        tolerance: difference that is allowed, relative to a result's largest finite magnitude or
            to 1, whichever is more.
    """
    given = random_inputs(after.main) if inputs is None else inputs
    ours, theirs = ({name: a.copy() for name, a in given.items()} for _ in "ab")
    expected = run(before.main, {**ours, **(fixed or {})}, module=before)
    found = run(after.main, theirs, module=after)
    found = found[: len(found) - len(after.main.updates)]
    expected, found = [*expected, *ours.values()], [*found, *theirs.values()]
    assert len(expected) == len(found)
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        magnitude = 0.0
        if tolerance:
            wide = a.astype(np.float64)
            magnitude = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=1))
        np.testing.assert_allclose(
            a, b, rtol=0, atol=tolerance * magnitude, err_msg=f"result {number}", strict=True
        )
        if not tolerance and a.dtype.kind == "f":  # which holds -0 equal to 0
            zeros = (a == 0) & (b == 0)
            np.testing.assert_array_equal(
                np.signbit(a[zeros]), np.signbit(b[zeros]), f"result {number}: signs of zeros"
            )


_UNARY = ("neg", "abs", "relu", "floor", "round", "sigmoid")
_BINARY = ("add", "sub", "mul", "minimum", "maximum")
# what a model may hold, and what passes form from it besides
MODEL_KINDS = ("unary", "binary", "constant", "cast", "transpose", "reshape", "shape", "slice")
KINDS = (*MODEL_KINDS, "region")
_SHAPES = ("[N, 4]", "[4]", "[1, 4]", "[]", "[N, 1]")


@st.composite
def modules(draw: st.DrawFn, max_ops: int = 12, kinds: Sequence[str] = KINDS) -> Module:
    """A random valid module: elementwise ops, movements and constants over f32, i32 and bool."""
    b = Builder()
    pool: list[Value] = [b.input("x", "f32[N, 4]"), b.input("odd name", "i32[N, 4]")]
    for _ in range(draw(st.integers(0, max_ops))):
        pool.append(_random_op(draw, b, pool, kinds))
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    for number, value in enumerate(outputs):
        b.output(f"out:{number}", value)
    return b.module()


def _random_op(draw: st.DrawFn, b: Builder, pool: list[Value], kinds: Sequence[str]) -> Value:
    kind = draw(st.sampled_from(kinds))
    origin = draw(st.sampled_from(("", "", "node/1", 'quote " \\ é')))
    hint = draw(st.sampled_from(("", "", "t", "a.b")))
    value = draw(st.sampled_from(pool))
    type = value.type
    number = type.dtype in (DType.F32, DType.I32)
    if kind == "unary" and number:
        names = _UNARY if type.dtype.is_float else ("neg", "abs", "relu")
        return _one(b.op(draw(st.sampled_from(names)), value, origin=origin, hint=hint))
    if kind == "binary" and number:
        others = [v for v in pool if v.type.dtype is type.dtype and _broadcast(v, value)]
        return _one(
            b.op(
                draw(st.sampled_from(_BINARY)),
                value,
                draw(st.sampled_from(others)),
                origin=origin,
                hint=hint,
            )
        )
    if kind == "cast":
        return _one(b.op("cast", value, to=draw(st.sampled_from(("f32", "i32", "i64", "bool")))))
    if kind == "transpose":
        perm = draw(st.permutations(range(type.rank)))
        return _one(b.op("transpose", value, perm=perm, hint=hint))
    if kind == "reshape":
        return _one(b.op("reshape", value, shape=(1, *type.dims), origin=origin))
    if kind == "shape":
        return _one(b.op("shape_of", value))
    if kind == "slice" and type.rank and isinstance(type.dims[-1], int) and type.dims[-1] > 0:
        begins = [0] * type.rank
        stops = list(type.dims)
        stops[-1] = draw(st.integers(0, type.dims[-1]))
        return _one(b.op("slice", value, starts=begins, stops=stops, steps=[1] * type.rank))
    if kind == "region" and number:
        return _one(
            b.op(
                "region",
                value,
                blocks=[
                    b.block(
                        [type],
                        lambda v: b.op(
                            "add", b.op("neg", v), 1 if type.dtype is DType.I32 else 0.5
                        ),
                    )
                ],
            )
        )
    floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
    data = draw(st.lists(floats, min_size=4, max_size=4) | floats.map(lambda f: [f] * 4))
    return b.constant(np.array(data, np.float32), name=hint)


def _one(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


def _broadcast(a: Value, b: Value) -> bool:
    pairs = zip(reversed(a.type.dims), reversed(b.type.dims), strict=False)
    return all(x == y or x == 1 or y == 1 for x, y in pairs)
