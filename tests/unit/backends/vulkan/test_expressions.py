"""Random expressions and every transcendental give what the kernel interpreter gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import InternalError
from aot.ir.dims import evaluate, symbol
from aot.ir.expr import (
    BINARY_OPS,
    COMPARE_OPS,
    Binary,
    Bitcast,
    Const,
    Expr,
    Param,
    Size,
    binary,
    cast,
    const,
    index,
    select,
    unary,
)
from aot.ir.types import DType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Store
from aot.kernels.transcendentals.expansion import ULP_BOUNDS, expand
from tests.support import vulkan_device, vulkan_running
from tests.support.vulkan_case import Array, load, spread, tensor

pytestmark = pytest.mark.vulkan

F32, I32, U32, BOOL, INDEX = DType.F32, DType.I32, DType.U32, DType.BOOL, DType.INDEX
NARROW = (DType.I8, DType.U8, DType.I16, DType.U16)
COUNT = 48
OUTPUT_TYPES = (F32, I32, U32, BOOL)
Step = Callable[[st.DataObject, dict[DType, list[Expr]]], Expr]


def pick(data: st.DataObject, pool: dict[DType, list[Expr]], dtype: DType) -> Expr:
    return data.draw(st.sampled_from(pool[dtype]))


def of_two(names: str, *dtypes: DType) -> Step:
    def step(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
        dtype = data.draw(st.sampled_from(dtypes))
        op = data.draw(st.sampled_from(names.split()))
        return binary(op, pick(data, pool, dtype), pick(data, pool, dtype))

    return step


def of_one(names: str, *dtypes: DType) -> Step:
    def step(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
        return unary(
            data.draw(st.sampled_from(names.split())),
            pick(data, pool, data.draw(st.sampled_from(dtypes))),
        )

    return step


def by_number(names: str, low: int, high: int, *dtypes: DType) -> Step:
    """Shifts and divisions, whose right side has limits."""

    def step(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
        dtype = data.draw(st.sampled_from(dtypes))
        number = data.draw(st.integers(low, high).filter(lambda n: n not in (0, -1)))
        return binary(
            data.draw(st.sampled_from(names.split())), pick(data, pool, dtype), const(number, dtype)
        )

    return step


def converted(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
    source = data.draw(st.sampled_from((F32, I32, U32, BOOL, INDEX)))
    target = data.draw(st.sampled_from((F32, I32, U32, BOOL)))
    by_way = data.draw(st.sampled_from((target, *NARROW)))
    return cast(cast(pick(data, pool, source), by_way), target)


def chosen(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
    dtype = data.draw(st.sampled_from((F32, I32, U32, INDEX)))
    return select(pick(data, pool, BOOL), pick(data, pool, dtype), pick(data, pool, dtype))


def reinterpreted(data: st.DataObject, pool: dict[DType, list[Expr]]) -> Expr:
    source, target = data.draw(st.sampled_from(((F32, I32), (I32, U32), (U32, I32))))
    value = pick(data, pool, source)
    if source is F32:  # which NaN it is differs from machine to machine
        value = select(unary("isnan", value), const(0.0, F32), value)
    return Bitcast(value, target)


STEPS: tuple[Step, ...] = (
    of_two("add sub mul div min max", F32),
    of_two("add sub mul min max and or xor", I32, U32),
    of_two("and or xor eq ne", BOOL),
    of_two(" ".join(sorted(COMPARE_OPS)), F32, I32, U32, INDEX),
    of_two("add sub min max", INDEX),
    by_number("mul floordiv floormod", 1, 40, INDEX),
    by_number("div floordiv floormod", -20, 20, I32),
    by_number("div floordiv floormod", 1, 99, U32),
    by_number("shl shr", 1, 31, I32, U32),
    of_one("neg abs floor ceil trunc round isnan", F32),
    of_one("neg abs bitnot", I32),
    of_one("not", BOOL),
    converted,
    chosen,
    reinterpreted,
)


def random_kernel(data: st.DataObject) -> Kernel:
    """Twelve steps over two floats, two integers, the lane's index and a dim."""
    b = KernelBuilder("random")
    b.dim_param("n")
    shift = b.scalar_param("shift", I32)
    floats = [tensor(b, f"f{i}", F32, BufferClass.INPUTS, COUNT) for i in range(2)]
    wholes = [tensor(b, f"w{i}", I32, BufferClass.CONSTANTS, COUNT) for i in range(2)]
    outputs = {t: tensor(b, f"to_{t}", t, BufferClass.OUTPUTS, COUNT) for t in OUTPUT_TYPES}

    def body(i: Expr, inside: Expr) -> tuple[Store, ...]:
        pool: dict[DType, list[Expr]] = {
            F32: [load(f, i) for f in floats],
            I32: [load(w, i) for w in wholes],
            INDEX: [i, Size(symbol("n")), index(-3)],
        }
        pool[I32].append(Param(shift.name, I32))
        pool[U32] = [cast(pool[I32][0], U32), const(3_000_000_000, U32)]
        pool[BOOL] = [binary("gt", *pool[F32])]
        for _ in range(12):
            made = data.draw(st.sampled_from(STEPS))(data, pool)
            pool[made.dtype].append(made)
        return tuple(Store(outputs[t], (i,), pool[t][-1]) for t in OUTPUT_TYPES)

    return b.build(spread(b, COUNT, 16, body))


def arguments(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for i in range(2):
        # Multiples of 1/8: sums and products of them are never denormal, which drivers may flush.
        made[f"f{i}"] = (rng.integers(-400, 400, COUNT) / 8).astype(np.float32)
        made[f"f{i}"][:4] = [np.nan, np.inf, -np.inf, 3e9]
        rng.shuffle(made[f"f{i}"])
        made[f"w{i}"] = np.where(
            rng.random(COUNT) < 0.5,
            rng.integers(-99, 99, COUNT),
            rng.integers(-(2**31), 2**31, COUNT),
        ).astype(np.int32)
    return made


def interpreted(
    kernel: Kernel, arrays: dict[str, Array], params: dict[str, float], *, fused: bool = True
) -> dict[str, Array]:
    buffers = {
        b.name: arrays[b.name].copy()
        if b.name in arrays
        else np.zeros(evaluate(b.shape[0], {}), b.dtype.numpy)
        for b in kernel.buffers
    }
    interpreter.run(kernel, buffers, params, fused=fused)
    return {b.name: buffers[b.name] for b in kernel.buffers if b.is_written}


def is_tiny(values: Array) -> Array:
    return np.asarray((values != 0) & (np.abs(values) < np.finfo(np.float32).tiny))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_random_expressions_match_the_interpreter(data: st.DataObject) -> None:
    kernel = random_kernel(data)
    arrays = arguments(3)
    params: dict[str, float] = {"n": 29, "shift": 5}
    expected = interpreted(kernel, arrays, params)
    shader = vulkan_running.build(kernel)
    for driver in vulkan_device.DRIVERS:
        actual = vulkan_running.run_on(driver, kernel, arrays, params, shader=shader)
        for name, values in expected.items():
            if values.dtype.kind == "f" and is_tiny(values).any():
                values = np.where(is_tiny(values), actual[name], values)
            np.testing.assert_array_equal(actual[name], values, err_msg=f"{driver} {name}")


def function_kernel(op: str, count: int, *, is_expanded: bool = False) -> Kernel:
    """`op` of every element; expanded, the interpreter computes the formula and not `op`."""
    b = KernelBuilder(op)
    x, y = (
        tensor(b, n, F32, c, count)
        for n, c in (("x", BufferClass.INPUTS), ("y", BufferClass.OUTPUTS))
    )
    second = tensor(b, "z", F32, BufferClass.INPUTS, count) if op in BINARY_OPS else None

    def body(i: Expr, inside: Expr) -> tuple[Store, ...]:
        value = load(x, i)
        made = unary(op, value) if second is None else binary(op, value, load(second, i))
        return (Store(y, (i,), expand(made) if is_expanded else made),)

    return b.build(spread(b, count, 64, body))


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("op", sorted(ULP_BOUNDS))
def test_transcendentals_match_the_interpreter_bit_for_bit(op: str, driver: str) -> None:
    """With Fma rounded once or twice; so their stated bounds hold on a GPU too."""
    count = 64 * 40
    rng = np.random.default_rng(6)
    xs = (rng.standard_normal(count) * np.exp2(rng.integers(-12, 8, count))).astype(np.float32)
    arrays: dict[str, Array] = {"x": np.abs(xs) if op in ("log", "log1p", "pow") else xs}
    if op in BINARY_OPS:
        arrays["z"] = rng.uniform(-8, 8, count).astype(np.float32)
    kernel = function_kernel(op, count)
    actual = vulkan_running.run_on(driver, kernel, arrays)["y"]
    fused, unfused = (
        interpreted(function_kernel(op, count, is_expanded=True), arrays, {}, fused=f)["y"]
        for f in (True, False)
    )
    # A driver may flush denormal results, and denormals on the way to small ones.
    is_small = np.abs(fused) < 1e-36
    assert np.count_nonzero(is_small) < count // 8
    matches = max(
        np.count_nonzero(actual[~is_small] == expected[~is_small]) for expected in (fused, unfused)
    )
    assert matches == np.count_nonzero(~is_small)
    np.testing.assert_allclose(actual[is_small], fused[is_small], atol=1e-36)


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("op", sorted(ULP_BOUNDS))
def test_transcendentals_of_special_values(op: str, driver: str) -> None:
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 200.0, -200.0, 0.5]
    if op == "exp_nonpositive":
        special = [x for x in special if not x > 0]
    pairs = (
        [(x, z) for x in special for z in special]
        if op in BINARY_OPS
        else [(x, 0.0) for x in special]
    )
    xs, zs = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    arrays: dict[str, Array] = {"x": np.resize(xs, 128), "z": np.resize(zs, 128)}
    kernel = function_kernel(op, 128)
    if op not in BINARY_OPS:
        del arrays["z"]
    actual = vulkan_running.run_on(driver, kernel, arrays)["y"]
    expected = interpreted(kernel, arrays, {})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_remainders_are_those_of_c_bit_for_bit(driver: str) -> None:
    """Subnormal numbers too, whatever the driver makes of these elsewhere."""
    count = 64 * 40
    rng = np.random.default_rng(5)
    xs, ys = rng.integers(0, 1 << 32, (2, count), np.uint32).view(np.float32)
    xs[::3] = rng.integers(0, 1 << 23, len(xs[::3]), np.uint32).view(np.float32)
    ys[::5] = rng.integers(1, 1 << 9, len(ys[::5]), np.uint32).view(np.float32)
    ys[-100:] = xs[-100:] / np.float32(3)
    actual = vulkan_running.run_on(driver, function_kernel("fmod", count), {"x": xs, "z": ys})["y"]
    with np.errstate(all="ignore"):
        expected = np.fmod(xs, ys)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), ~is_number)
    np.testing.assert_array_equal(
        actual[is_number].view(np.uint32), expected[is_number].view(np.uint32)
    )


def wide_kernel(value: Callable[[Expr], Expr], dtype: DType) -> Kernel:
    b = KernelBuilder("wide")
    x, y = (
        tensor(b, "x", dtype, BufferClass.INPUTS, 8),
        tensor(b, "y", dtype, BufferClass.OUTPUTS, 8),
    )
    return b.build(spread(b, 8, 8, lambda i, inside: (Store(y, (i,), value(load(x, i))),)))


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (DType.I64, lambda x: Binary("pow", x, x, DType.I64), "pow of i64 cannot be a shader"),
        (DType.F64, lambda x: x, "a load of f64 x cannot be a shader"),
        (BOOL, lambda x: binary("lt", x, x), "lt of bool cannot be a shader"),
        (I32, lambda x: Binary("pow", x, x, I32), "pow of i32 cannot be a shader"),
    ],
)
def test_what_legalisation_should_have_removed(
    dtype: DType, value: Callable[[Any], Expr], message: str
) -> None:
    from aot.backends.vulkan.emit import compile_kernel

    with pytest.raises(InternalError, match=message):
        compile_kernel(wide_kernel(value, dtype), vulkan_running.vulkan_target())


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_wide_integers_pass_through(driver: str) -> None:
    """Moved, chosen and narrowed int64 values keep all their bits."""
    small = const(5, DType.I64)
    kernel = wide_kernel(
        lambda x: select(cast(x, BOOL), x, Const(DType.I64, -(2**40) - 3)), DType.I64
    )
    xs = np.array([0, 1, -1, 2**40 + 7, -(2**63), 2**63 - 1, 2**32, small.value], np.int64)
    actual = vulkan_running.run_on(driver, kernel, {"x": xs})["y"]
    np.testing.assert_array_equal(actual, np.where(xs != 0, xs, -(2**40) - 3))


def cast_kernel(source: DType, target: DType, count: int) -> Kernel:
    b = KernelBuilder("casts")
    x = tensor(b, "x", source, BufferClass.INPUTS, count)
    y = tensor(b, "y", target, BufferClass.OUTPUTS, count)
    return b.build(
        spread(b, count, 64, lambda i, inside: (Store(y, (i,), cast(load(x, i), target)),))
    )


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_every_half_is_read_and_written_exactly(driver: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    floats = vulkan_running.run_on(driver, cast_kernel(DType.F16, F32, 65536), {"x": halves})["y"]
    np.testing.assert_array_equal(floats, halves.astype(np.float32))
    again = vulkan_running.run_on(driver, cast_kernel(F32, DType.F16, 65536), {"x": floats})["y"]
    np.testing.assert_array_equal(again, halves)


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
def test_halves_round_to_nearest_even(driver: str) -> None:
    """Half way between each two neighbours, and one f32 on either side of it."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    xs = np.concatenate(
        [
            middles,
            np.nextafter(middles, np.float32(np.inf)),
            -np.nextafter(middles, np.float32(0)),
            np.array([65519.99, 65520, 1e10, -1e10], np.float32),
        ]
    )
    xs = np.resize(xs, -(-len(xs) // 64) * 64)
    actual = vulkan_running.run_on(driver, cast_kernel(F32, DType.F16, len(xs)), {"x": xs})["y"]
    with np.errstate(over="ignore"):
        expected = xs.astype(np.float16)
    np.testing.assert_array_equal(actual, expected)
