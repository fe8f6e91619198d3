"""Casts round once, to the nearest and halves to even, and saturate where they make integers of
floats, one by one and in a row: against exact fractions, on every kind of target."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from tests.support.plain_builder import plain
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
# bits of the mantissa with its first, the largest exponent
FLOATS = {"f16": (11, 15), "bf16": (8, 127), "f32": (24, 127)}
INTEGERS = ("i32", "u32", "i64", "u64")
# Integers become a float that not all of them are, and then integers again.
ROWS = [
    ("i16", "f32", "i8"),
    ("u8", "f32", "i8"),
    ("u8", "f16", "i8"),
    ("i8", "f16", "u8"),
    ("u16", "f32", "i16"),
    ("i16", "f32", "u16"),
    ("i32", "f32", "i32"),
]
DOUBLES = [
    ("i32", "f64", "i8"),
    ("i32", "f64", "u32"),
    ("i64", "f64", "i64"),
    ("u64", "f64", "u64"),
]


def rounded(value: Fraction, dtype: str) -> float:
    digits, most = FLOATS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, 1 - most) - digits + 1)
    found = round(size / unit) * unit
    result = math.inf if found >= Fraction(2) ** (most + 1) else float(found)
    return math.copysign(result, value)


def integers(dtype: str) -> Array:
    kind = DType(dtype).numpy
    info, rng = np.iinfo(kind), np.random.default_rng(3)
    if info.bits < 32:
        return np.arange(info.min, info.max + 1).astype(kind)
    bits = rng.integers(info.min, info.max, 400, kind, endpoint=True)
    sizes = rng.integers(0, info.bits, 400).astype(kind)
    ties = [
        (1 << top) + (1 << top - digits) + beside
        for top in range(13, info.bits - 1)
        for digits in (8, 11, 24)
        if top > digits
        for beside in (-1, 0, 1)
    ]
    signed = [-v for v in ties] if info.min < 0 else []
    edges = [info.min, info.max, 65519, 65520, 65521]
    return np.concatenate([bits >> sizes, np.array([*ties, *signed, *edges], kind)])


def doubles() -> Array:
    values = []
    for digits, most in FLOATS.values():
        for exponent in (0, 3, most, 1 - most, 2 - most - digits):
            unit = 2.0 ** (max(exponent, 1 - most) - digits + 1)
            for steps in (0, 1, 2):
                tie = 2.0**exponent + (steps + 0.5) * unit
                values += [tie, np.nextafter(tie, 0), np.nextafter(tie, np.inf)]
                values += [tie * (1 + 2.0**-40), tie * (1 - 2.0**-40)]
    rest = [0.0, 1e308, 5e-324, 65519.99999999999, 3.3961775e38]
    return np.array([*values, *(-v for v in values), *rest])


def saturated(values: list[int], dtype: str) -> list[int]:
    info = np.iinfo(DType(dtype).numpy)
    return [min(max(v, int(info.min)), int(info.max)) for v in values]


def module(*, has_f64: bool) -> Any:
    b = plain()
    names = {*INTEGERS, *(row[0] for row in ROWS)} | ({"f64"} if has_f64 else set())
    given = {name: b.b.input(f"x_{name}", f"{name}[{name.upper()}]") for name in sorted(names)}
    for name in (*INTEGERS, *(["f64"] if has_f64 else [])):
        for to in FLOATS:
            b.b.output(f"{name}_{to}", b.cast(given[name], DType(to)))
    for source, between, to in ROWS + (DOUBLES if has_f64 else []):
        through = b.cast(given[source], DType(between))
        b.b.output(f"{source}_{between}_{to}", b.cast(through, DType(to)))
    return b.b.module()


def feeds(m: Any) -> dict[str, Array]:
    names = [v.name for v in m.main.inputs]
    return {n: doubles() if n == "x_f64" else integers(n.removeprefix("x_")) for n in names}


def check(found: dict[str, Array], given: dict[str, Array]) -> None:
    for name, got in found.items():
        source, *types = name.split("_")
        values = given[f"x_{source}"].tolist()
        if len(types) == 1:
            wanted = [rounded(Fraction(v), types[0]) for v in values]
            np.testing.assert_array_equal(np.asarray(got).astype(np.float64), wanted, name)
            continue
        between, to = types
        if between == "f64":
            between_values = [float(v) for v in values]  # of Python: rounded to the nearest
        else:
            between_values = [rounded(Fraction(v), between) for v in values]
        wanted_integers = saturated([int(v) for v in between_values], to)
        np.testing.assert_array_equal(got, np.array(wanted_integers, got.dtype), name)


def test_interpreted() -> None:
    m = module(has_f64=True)
    given = feeds(m)
    found = run(m.main, [given[v.name] for v in m.main.inputs])
    check(dict(zip(m.main.result_names, found, strict=True)), given)


@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str) -> None:
    m = module(has_f64=True)
    given = feeds(m)
    with aot.load(aot.compile(m, targets=[target])) as program:
        check(program(given), given)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    m = module(has_f64=False)
    given = feeds(m)
    compiled = aot.compile(m, targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check(program(given), given)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_wide_integers_by_way_of_f64_on_a_gpu(driver: str, tmp_path: Path) -> None:
    """A GPU has f32 in its place."""
    b = plain()
    x = b.b.input("x", "i64[N]")
    wide = b.cast(x, DType.F64)
    b.b.output("back", b.cast(wide, DType.I64))
    b.b.output("twice", b.cast(b.emit("add", wide, wide), DType.F32))
    compiled = aot.compile(b.b.module(), targets=["vulkan-1.1"])
    values = np.array([2**33 + 5, -(2**35), 7, 2**24 + 1])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        found = program({"x": values})
    near = values.astype(np.float32)
    np.testing.assert_array_equal(found["back"], near.astype(np.int64))
    np.testing.assert_array_equal(found["twice"], near * 2)
