"""Remainders and quotients as compiled code, on CPUs and GPUs, against C's and exact integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.frontends.lib import quotients
from aot.ir.types import DType
from tests.support.plain_builder import plain
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
INTEGERS = (DType.I8, DType.I16, DType.I32, DType.U8, DType.U32)
WIDE = (*INTEGERS, DType.I64)
FLOATS = (DType.F16, DType.F32)
COUNT = 1003


def module(dtypes: tuple[DType, ...]) -> Any:
    """Both remainders and the quotient of two vectors of each type."""
    b = plain()
    for dtype in dtypes:
        x, y = (b.b.input(f"{n}_{dtype.value}", f"{dtype.value}[N]") for n in "xy")
        b.b.output(f"fmod_{dtype.value}", quotients.remainder(b, x, y, is_truncated=True))
        b.b.output(f"mod_{dtype.value}", quotients.remainder(b, x, y, is_truncated=False))
        b.b.output(f"div_{dtype.value}", quotients.floor_quotient(b, x, y))
    return b.b.module()


def integers(dtype: DType) -> tuple[Array, Array]:
    """Near the ends of the type, near halves of it and near 0; no divisor is 0."""
    rng = np.random.default_rng(dtype.bits)
    info = np.iinfo(dtype.numpy)
    near = np.array([info.min, info.min // 2, 0, info.max // 2, info.max], object)
    x, y = (
        np.clip(rng.choice(near, COUNT) + rng.integers(-9, 9, COUNT), info.min, info.max)
        for _ in range(2)
    )
    return x.astype(dtype.numpy), np.where(y == 0, 3, y).astype(dtype.numpy)


def floats(dtype: DType) -> tuple[Array, Array]:
    """Any bits; a third of them are numbers of like size, where quotients round to whole ones."""
    rng = np.random.default_rng(dtype.bits)
    x, y = (
        rng.integers(0, 1 << dtype.bits, COUNT, f"u{dtype.bytes}", endpoint=False).view(dtype.numpy)
        for _ in range(2)
    )
    third = COUNT // 3
    y[:third] = rng.uniform(0.01, 2, third) * rng.choice([-1, 1], third)
    x[:third] = (y[:third] * rng.integers(-900, 900, third)).astype(dtype.numpy)
    return x, y


def given(dtypes: tuple[DType, ...]) -> dict[str, Array]:
    feeds = {}
    for dtype in dtypes:
        x, y = floats(dtype) if dtype.is_float else integers(dtype)
        feeds |= {f"x_{dtype.value}": x, f"y_{dtype.value}": y}
    return feeds


def python_quotient(x: float, y: float) -> float:
    if not (np.isfinite(x) and y == y and y != 0):
        return float(np.divide(x, y)) if y == 0 else np.nan
    return x // y


def exact(dtype: DType, feeds: dict[str, Array]) -> dict[str, Array]:
    """By Python's integers, C's fmod, and Python's floats, which are wide enough for ours."""
    x, y = (feeds[f"{n}_{dtype.value}"] for n in "xy")
    if not dtype.is_float:
        pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
        wide = {"mod": [a % b for a, b in pairs], "div": [a // b for a, b in pairs]}
        wide["fmod"] = [abs(a) % abs(b) * (1 if a >= 0 else -1) for a, b in pairs]
        least = 1 << dtype.bits  # the least integer by -1 wraps
        return {k: (np.array(v, object) % least).astype(f"u{dtype.bytes}") for k, v in wide.items()}
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        is_unlike = (rest != 0) & ((rest < 0) != (y < 0))
        mod = np.where(is_unlike, rest + y, rest)
        div = [python_quotient(float(a), float(b)) for a, b in zip(x, y, strict=True)]
        return {"fmod": rest, "mod": mod, "div": np.array(div).astype(dtype.numpy)}


def check(found: dict[str, Array], dtypes: tuple[DType, ...], *, flushes: bool = False) -> None:
    """Compares with what is exact; where units flush, fmod alone of subnormal numbers."""
    feeds = given(dtypes)
    for dtype in dtypes:
        wanted = exact(dtype, feeds)
        tiny = [feeds[f"x_{dtype.value}"], feeds[f"y_{dtype.value}"], wanted["fmod"], wanted["mod"]]
        is_kept = ~np.any([is_subnormal(a) for a in tiny], axis=0)
        for name, right in wanted.items():
            got = found[f"{name}_{dtype.value}"]
            if flushes and name != "fmod":
                got, right = got[is_kept], right[is_kept]
            what = f"{name} of {dtype.value}"
            if not dtype.is_float:
                np.testing.assert_array_equal(got.view(right.dtype), right, what)
                continue
            # larger quotients are rounded, by way of another or not
            is_whole = np.full(right.shape, True)
            if name == "div":
                is_whole = ~(np.abs(right) >= 1 << np.finfo(dtype.numpy).nmant)
                np.testing.assert_allclose(got, right, rtol=2e-7, atol=0, err_msg=what)
            np.testing.assert_array_equal(got[is_whole], right[is_whole], what)


def is_subnormal(a: Array) -> Array:
    if a.dtype.kind != "f":
        return np.full(a.shape, False)
    with np.errstate(invalid="ignore"):  # NaN that signals
        return (a != 0) & (np.abs(a.astype(np.float64)) < np.finfo(np.float32).tiny)


@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str) -> None:
    dtypes = (*WIDE, *FLOATS, DType.F64)
    with aot.load(aot.compile(module(dtypes), targets=[target])) as program:
        check(program(given(dtypes)), dtypes)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    """Where units flush subnormal numbers, a comparison with 0 may take one for 0."""
    dtypes = (*INTEGERS, *FLOATS)
    compiled = aot.compile(module(dtypes), targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check(program(given(dtypes)), dtypes, flushes=True)
