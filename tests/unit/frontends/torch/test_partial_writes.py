"""Writes of elements in places, what is reduced where they meet, bags and bins, beside torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.torch_modules import Functions, check

REDUCTIONS = [
    (kind, reduce)
    for kind in ("float32", "int64", "bool")
    for reduce in ("sum", "prod", "mean", "amax", "amin")
    if (kind, reduce) != ("bool", "mean")  # which torch has not
]


@pytest.mark.parametrize(("kind", "reduce"), REDUCTIONS)
def test_scatters_that_reduce(t: Any, kind: str, reduce: str) -> None:
    t.manual_seed(6)
    x, source = ((t.randn(4, 5) * 4).to(getattr(t, kind)) for _ in range(2))
    at, row = t.randint(0, 4, (3, 5)), t.tensor([1, 3, 1, 1])
    functions: Functions = {
        "scatter": lambda x, source, at, row: tuple(
            t.scatter_reduce(x, 0, at, source, reduce, include_self=own) for own in (True, False)
        )
    }
    if kind != "bool" and reduce != "sum":
        functions["rows"] = lambda x, source, at, row: tuple(
            t.index_reduce(x, 0, row, source, reduce, include_self=own) for own in (True, False)
        )
        functions["columns"] = lambda x, source, at, row: t.index_reduce(
            x, 1, row, source[:, 1:], reduce, include_self=False
        )
    check(functions, [x, source, at, row], others=[[source, x, at * 0, row * 0]])


def test_writes(t: Any) -> None:
    t.manual_seed(7)
    x, y = t.randn(3, 4), t.randn(12)
    i, b = t.arange(12).reshape(3, 4), t.tensor([[True, False, False, True]] * 3)
    place = t.tensor([3, -1, 3])
    functions: Functions = {
        "masked": lambda x, y, i, b, p: (
            t.masked_scatter(x, b, y),
            t.masked_scatter(i, b[0], -i),
            t.masked_scatter(b, b, b.reshape(-1)[1:]),
        ),
        "put": lambda x, y, i, b, p: (
            t.put(x, p[:2], y[:2]),
            t.put(i, p, i[0, :3], accumulate=True),
            t.put(b, p, b[0, :3], accumulate=True),
        ),
        "diagonal": lambda x, y, i, b, p: (
            t.diagonal_scatter(x, y[:3]),
            t.diagonal_scatter(x, y[:2], -1),
            t.diagonal_scatter(i, i[0, :3], 1, 0, 1),
        ),
        "strided": lambda x, y, i, b, p: (
            t.as_strided_scatter(x, y.reshape(3, 4)[:2, :3], (2, 3), (5, 2), 1),
            t.as_strided_scatter(b, b[:2, :2], (2, 2), (4, 1)),
        ),
        "accumulated": lambda x, y, i, b, p: (
            b.index_put((p[:2] % 3, p[:2] % 4), b[0, :2], accumulate=True),
            x.index_put((x > 0,), y[0], accumulate=True),
            b.index_add(0, p[:2] % 3, b[:2], alpha=2),
        ),
        "nonzero": lambda x, y, i, b, p: (
            t.nonzero_static(b, size=4),
            t.nonzero_static(i, size=14, fill_value=-7),
        ),
    }
    others = [[-x, y, i, b.roll(1, 1), place], [x, y, i, b & False, place]]
    check(functions, [x, y, i, b, place], others=others)


def test_bags(t: Any) -> None:
    t.manual_seed(8)
    bag = t.nn.functional.embedding_bag
    w, i, offsets = t.randn(6, 3), t.tensor([1, 4, 4, 0, 5, 2, 2]), t.tensor([0, 3, 3, 7])
    factors = t.randn(7)
    functions: Functions = {
        **{
            mode: lambda w, i, o, f, mode=mode: (
                bag(i, w, o, mode=mode),
                bag(i, w, o, mode=mode, padding_idx=4),
                bag(i, w, o, mode=mode, include_last_offset=True),
                bag(i[:6].reshape(2, 3), w, mode=mode),
            )
            for mode in ("sum", "mean", "max")
        },
        "factors": lambda w, i, o, f: bag(i, w, o, mode="sum", per_sample_weights=f),
    }
    check(functions, [w, i, offsets, factors])


def test_searches_by_an_order(t: Any) -> None:
    x = t.tensor([[3.0, 1, 2], [5, 9, 7]])
    order = t.argsort(x, 1)
    functions: Functions = {
        "sorter": lambda x, o: t.searchsorted(x, x + 0.5, sorter=o),
        "right": lambda x, o: t.searchsorted(x, x, sorter=o, right=True),
    }
    check(functions, [x, order])


def test_poolings(t: Any) -> None:
    t.manual_seed(9)
    nn = t.nn.functional
    x = t.randn(2, 3, 7, 11)
    x[0, 0, 2, 3:5] = 9  # equal ones
    functions: Functions = {
        "adaptive": lambda x: nn.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        "regular": lambda x: nn.adaptive_max_pool2d(x[:, :, :6, :8], (3, 4), return_indices=True),
        "whole": lambda x: nn.adaptive_max_pool2d(x[0], 1, return_indices=True),
        "line": lambda x: nn.adaptive_max_pool1d(x[0], 4, return_indices=True),
        "cube": lambda x: nn.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True),
        "divisor": lambda x: (
            nn.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
            nn.avg_pool2d(x, (2, 3), (3, 2), ceil_mode=True, divisor_override=2),
            nn.avg_pool2d(x[0], 2, ceil_mode=True, divisor_override=3),
        ),
        "unbatched": lambda x: (
            nn.max_pool2d(x[0], 2, return_indices=True),
            nn.avg_pool2d(x[0], 2),
            nn.avg_pool1d(x[0, :, 0], 3),
            nn.max_pool1d(x[0, :, 0], 3),
            nn.lp_pool2d(x[0], 2, 3),
        ),
    }
    check(functions, [x])
