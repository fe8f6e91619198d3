"""Functions of several numbers keep the bounds that `docs/use/numbers.md` states.

The oracle is double precision: PyTorch's for pairs, numpy's for rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser

import aot
from tests.support.samples_module import NATIVE
from tests.support.ulp import ulp_errors
from tests.support.unary_functions import FLUSHED
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
ULP = 2.0**-23  # of 1, and half an ulp of what is below 1 or more
# by the largest error in units in the last place
PAIRS: dict[str, tuple[Callable[..., Any], float]] = {
    "pow": (torch.pow, 2.0),
    "atan2": (torch.atan2, 4.0),
    "hypot": (torch.hypot, 3.0),
    "logaddexp": (torch.logaddexp, math.inf),
}
WIDTHS = (1, 2, 7, 64, 1000)
EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, 3e38, -3e38, 0.5, 3.0], np.float32
)


class _Pairs(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, y) for function, _ in PAIRS.values()]


@cache
def pairs_module(target: str) -> Any:
    count = torch.export.Dim("count", min=2)
    program = torch.export.export(
        _Pairs(), (torch.zeros(9), torch.zeros(9)), dynamic_shapes=[{0: count}, {0: count}]
    )
    return aot.compile(program, targets=[target])


@cache
def rows_module(target: str) -> Any:
    nodes = "a = Softmax<axis=1>(x) b = LogSoftmax<axis=1>(x) c = ReduceLogSumExp<axes=[1]>(x)"
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[M, N] x) => '
        f"(float[M, N] a, float[M, N] b, float[M, 1] c) {{ {nodes} }}"
    )
    return aot.compile(model, targets=[target])


def pairs(count: int, seed: int) -> tuple[Array, Array]:
    """Edges, any bits, numbers of like size, and numbers next to each other."""
    rng = np.random.default_rng(seed)
    edges = [v.ravel() for v in np.meshgrid(EDGES, EDGES)]
    any_bits = rng.integers(0, 1 << 32, (2, count), np.uint32).view(np.float32)
    like = rng.uniform(-20, 20, (2, count)).astype(np.float32)
    near = like[0] * (1 + rng.normal(0, 1e-3, count)).astype(np.float32)
    x = np.concatenate([edges[0], any_bits[0], like[0], like[0]])
    return x, np.concatenate([edges[1], any_bits[1], like[1], near])


def check_pairs(found: list[Array], x: Array, y: Array, *, flushes: bool = False) -> None:
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (x, y)]
    for (name, (function, bound)), got in zip(PAIRS.items(), found, strict=True):
        wanted = function(*wide).numpy()
        with np.errstate(all="ignore"):
            errors = ulp_errors(got, wanted)
            if name == "logaddexp":  # it cancels where its results are near 0
                size = np.maximum(np.abs(np.maximum(x, y)), np.abs(wanted))
                errors = np.abs(got - wanted) / np.spacing(np.maximum(size, 0.5).astype(np.float32))
                errors = np.where(np.isfinite(wanted), errors, 0)
                np.testing.assert_array_equal(
                    got[~np.isfinite(wanted)], wanted[~np.isfinite(wanted)]
                )
                bound = 4.0
            if flushes:
                tiny = [(a != 0) & (np.abs(a) < FLUSHED) for a in (x, y)]
                is_none = (np.abs(wanted) < FLUSHED) & (np.abs(got) < FLUSHED)
                errors = np.where(tiny[0] | tiny[1] | is_none, 0, errors)
        at = int(np.argmax(errors))
        what = f"{name}({x[at]!r}, {y[at]!r}) gave {got[at]!r}, is {wanted[at]!r}: {errors[at]} ulp"
        assert errors[at] <= bound, what


def rows(width: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    scales = np.array([0.01, 1, 10, 30, 80, 1000, 1e30])[:, None]
    x = (rng.standard_normal((len(scales), width)) * scales).astype(np.float32)
    return np.concatenate([x, x - np.float32(100), np.zeros((1, width), np.float32)])


def check_rows(found: dict[str, Array], x: Array) -> None:
    """What the difference to the largest is rounded by shows in its power, and as it is in its
    logarithm; a sum of n rounds at most n times."""
    wide = x.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    far = top - wide
    powers = np.exp(-far)
    total = powers.sum(axis=1, keepdims=True)
    width = x.shape[1]
    share = powers / total
    error = np.abs(found["a"] - share)
    # a power below 2^-126 may be 0
    allowed = share * ULP * (4 + far + width / 2) + 2.0**-126
    assert (error <= allowed).all(), ("softmax", width, float((error / allowed).max()))
    line = -far - np.log(total)
    error = np.abs(found["b"] - line)
    allowed = ULP * (2 * far + 2 * np.log(total) + 2 + width / 2)
    assert (error <= allowed).all(), ("log_softmax", width, float((error / allowed).max()))
    sum_ = top + np.log(total)
    error = np.abs(found["c"] - sum_)
    allowed = ULP * (2 * np.abs(top) + 2 * np.log(total) + 2 + width / 2)
    assert (error <= allowed).all(), ("logsumexp", width, float((error / allowed).max()))


def check_all(loaded: Any, kind: str, count: int, seed: int, *, flushes: bool = False) -> None:
    if kind == "pairs":
        x, y = pairs(count, seed)
        check_pairs(list(loaded({"x": x, "y": y}).values()), x, y, flushes=flushes)
        return
    for width in WIDTHS:
        x = rows(width, seed)
        check_rows(loaded({"x": x}), x)


MODULES = {"pairs": pairs_module, "rows": rows_module}
KIND = pytest.mark.parametrize("kind", MODULES)


@KIND
@pytest.mark.parametrize("target", NATIVE)
def test_on_a_cpu(target: str, kind: str) -> None:
    with aot.load(MODULES[kind](target)) as program:
        check_all(program, kind, 2000, 1)


@KIND
@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, kind: str, tmp_path: Path) -> None:
    compiled = MODULES[kind]("vulkan-1.1")
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check_all(program, kind, 2000, 1, flushes=True)


@KIND
@pytest.mark.sweep
@pytest.mark.parametrize("target", NATIVE)
def test_sweep_on_a_cpu(target: str, kind: str) -> None:
    with aot.load(MODULES[kind](target)) as program:
        for seed in range(20):
            check_all(program, kind, 200_000, seed)
