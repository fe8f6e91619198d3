"""Integers divided by 0, and the least one by -1, on every target: as `docs/use/numbers.md` says.

The quotient by 0 is 0, of which the remainder is the dividend; the least integer by -1 is itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.frontends.lib import quotients
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from tests.support.cross import run_module
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.plain_builder import plain
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
NARROW = (DType.I8, DType.I16, DType.I32, DType.U8, DType.U16, DType.U32)
ALL = (*NARROW, DType.I64, DType.U64)
CROSS = {"aarch64-generic": "aarch64", "armv7-neon": "arm", "riscv64": "riscv64"}
COUNT = 37  # vectors, and what is left of them


def module(dtypes: Sequence[DType]) -> Any:
    """By divisors that are data, and by a constant 0."""
    b = plain()
    for dtype in dtypes:
        name = dtype.value
        x, y = (b.b.input(f"{n}_{name}", f"{name}[N]") for n in "xy")
        for way, divisor in {"data": y, "zero": b.scalar(0, dtype)}.items():
            rests = {
                "fmod": quotients.remainder(b, x, divisor, is_truncated=True),
                "mod": quotients.remainder(b, x, divisor, is_truncated=False),
            }
            found = {
                **rests,
                "div": b.emit("div", x, divisor),
                "floor": quotients.floor_quotient(b, x, divisor),
            }
            for what, value in found.items():
                b.b.output(f"{what}_{way}_{name}", value)
    return b.b.module()


def given(dtypes: Sequence[DType]) -> dict[str, Array]:
    feeds = {}
    for dtype in dtypes:
        info = np.iinfo(dtype.numpy)
        x = np.resize(np.array([info.min, info.max, 0, 7, 1], dtype.numpy), COUNT)
        by = [0, -1, 0, 1, info.max, 0, 3] if info.min else [0, info.max, 0, 1, 0, 3]
        y = np.resize(np.array(by, dtype.numpy), COUNT)
        feeds |= {f"x_{dtype.value}": x, f"y_{dtype.value}": y}
    return feeds


def right(x: int, y: int) -> dict[str, int]:
    if y == 0:
        return {"fmod": x, "mod": x, "div": 0, "floor": 0}
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return {"fmod": x - quotient * y, "mod": x % y, "div": quotient, "floor": x // y}


def check(found: dict[str, Array], dtypes: Sequence[DType]) -> None:
    feeds = given(dtypes)
    for dtype in dtypes:
        x, y = (feeds[f"{n}_{dtype.value}"].tolist() for n in "xy")
        for way, divisors in {"data": y, "zero": [0] * COUNT}.items():
            wanted = [right(a, b) for a, b in zip(x, divisors, strict=True)]
            for what in ("fmod", "mod", "div", "floor"):
                got = found[f"{what}_{way}_{dtype.value}"]
                # the least integer by -1 wraps
                exact = np.array([w[what] % (1 << dtype.bits) for w in wanted], object)
                exact = exact.astype(f"u{dtype.bytes}").view(got.dtype)
                np.testing.assert_array_equal(got, exact, f"{what} by {way} of {dtype.value}")


def test_interpreted() -> None:
    m = module(ALL)
    feeds = given(ALL)
    found = run(m.main, [feeds[str(v.name)] for v in m.main.inputs])
    check(dict(zip(m.main.result_names, found, strict=True)), ALL)


@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str) -> None:
    with aot.load(aot.compile(module(ALL), targets=[target])) as program:
        check(program(given(ALL)), ALL)


@pytest.mark.qemu
@pytest.mark.parametrize("target", CROSS)
def test_under_qemu(target: str, tmp_path: Path) -> None:
    """Armv7 has neither integers of 64 bits nor an instruction that divides."""
    dtypes = NARROW if target == "armv7-neon" else ALL
    file = aot.compile(module(dtypes), targets=[target]).to_bytes()
    found, _ = run_module(CROSS[target], tmp_path, file, given(dtypes))
    check(found, dtypes)


def test_under_node(tmp_path: Path) -> None:
    """An instruction of WebAssembly that divides by 0 traps."""
    require_node()
    require_toolchain()
    path = tmp_path / "zero.aotm"
    path.write_bytes(aot.compile(module(ALL), targets=["wasm32"]).to_bytes())
    (outcome,) = run_calls(make_package(path, tmp_path / "package"), [Call(given(ALL))])
    assert not outcome.message
    check(outcome.outputs, ALL)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    compiled = aot.compile(module(NARROW), targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check(program(given(NARROW)), NARROW)
