"""Random modules of PyTorch: chains and joins of ops of any shapes, against torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.torch_modules import check

Step = Callable[[Any, Any], Any]

# Functions of torch and a tensor [n, C, H, W] whose results have four dims again.
STEPS: dict[str, Step] = {
    "relu": lambda t, x: t.relu(x),
    "gelu": lambda t, x: t.nn.functional.gelu(x),
    "scale": lambda t, x: x * 0.5 + 1,
    "halves": lambda t, x: t.cat([x[:, :1], x.flip(1)], 1),
    "swap": lambda t, x: x.transpose(2, 3),
    "rotate": lambda t, x: x.permute(0, 2, 3, 1),
    "flat": lambda t, x: x.flatten(2).unsqueeze(-1),
    "softmax": lambda t, x: x.softmax(1),
    "norm": lambda t, x: t.nn.functional.layer_norm(x, x.shape[2:]),
    "group": lambda t, x: t.nn.functional.group_norm(x, 1),
    "mean": lambda t, x: x - x.mean((2, 3), keepdim=True),
    "max": lambda t, x: x.amax(-1, keepdim=True) - x,
    "pool": lambda t, x: t.nn.functional.max_pool2d(x, 3, 1, 1),
    "average": lambda t, x: t.nn.functional.avg_pool2d(x, 2, 1, 1, count_include_pad=False),
    "pad": lambda t, x: t.nn.functional.pad(x, (1, 0, 0, 2)),
    "up": lambda t, x: t.nn.functional.interpolate(x[..., :3, :3], scale_factor=2.0),
    "gram": lambda t, x: x.flatten(2)[:, :, :4] @ x.flatten(2)[:, :, :4].transpose(1, 2)[:, None],
    "conv": lambda t, x: t.nn.functional.conv2d(x, t.ones(3, x.shape[1], 2, 1) / 4),
    "depthwise": lambda t, x: t.nn.functional.conv2d(
        x, t.ones(x.shape[1], 1, 1, 3) / 3, padding=(0, 1), groups=x.shape[1]
    ),
    "sum": lambda t, x: x.cumsum(2) / 4,
    "sort": lambda t, x: x.sort(-1).values,
    "roll": lambda t, x: x.roll(1, 2) * 0.5 + x,
    "write": lambda t, x: _written(x),
    "choose": lambda t, x: t.where(x > 0, x, x.abs().sqrt()),
    "gather": lambda t, x: x.index_select(2, x.new_zeros(2, dtype=t.int64)),
    "stack": lambda t, x: t.stack([x, -x], 2).flatten(1, 2),
    "chunks": lambda t, x: sum(x.tensor_split(2, 3)[:1], x[..., :1]),
}


def _written(x: Any) -> Any:
    y = x.clone()
    y[:, :, ::2] += 1
    y[:, 0] = y[:, -1] * 2
    return y


def _chain(t: Any, names: list[str]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for name in names:
            if x.shape[1] * x.shape[2] * x.shape[3] > 2000:
                x = x[:, :3, :5, :4]
            x = STEPS[name](t, x)
        return x

    return run


def _check(t: Any, chains: list[list[str]], shape: list[int]) -> None:
    functions: dict[str, Callable[..., Any]] = {}
    for names in chains:
        run = _chain(t, names)
        try:
            run(t.zeros(2, *shape))
        except RuntimeError:
            continue  # the shapes do not suit: a window is larger than its image, for example
        functions[" ".join(names)] = run
    if functions:
        x, other = t.randn(2, *shape), t.randn(3, *shape)
        check(functions, [x], {"x0": {0: "n"}}, [[other]], tolerance=1e-4)


CHAINS = st.lists(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6), max_size=6)
SHAPES = st.lists(st.integers(1, 6), min_size=3, max_size=3)
FUNCTION_SCOPED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=4, suppress_health_check=FUNCTION_SCOPED)
@given(chains=CHAINS, shape=SHAPES)
def test_random_modules(t: Any, chains: list[list[str]], shape: list[int]) -> None:
    _check(t, chains, shape)


@pytest.mark.sweep
@settings(max_examples=100, suppress_health_check=FUNCTION_SCOPED)
@given(chains=CHAINS, shape=SHAPES)
def test_many_random_modules(t: Any, chains: list[list[str]], shape: list[int]) -> None:
    _check(t, chains, shape)
