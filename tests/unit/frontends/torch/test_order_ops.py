"""Order statistics, running extrema and distinct elements beside torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.torch_modules import Functions, check


def _numbers(t: Any, *shape: int) -> Any:
    """Different numbers in no order."""
    return (t.randperm(t.Size(shape).numel()).reshape(shape) - 5).float() / 4


def _with_nan(t: Any, x: Any, *places: tuple[int, ...]) -> Any:
    for at in places:
        x[at] = t.nan
    return x


def test_order_statistics(t: Any) -> None:
    t.manual_seed(1)
    x, i = _numbers(t, 3, 6, 5), t.randperm(60).reshape(4, 15) - 9
    functions: Functions = {
        "median": lambda x, i: (t.median(x), t.median(i)),
        "median along": lambda x, i: (*t.median(x, 1), *t.median(i, -1, keepdim=True)),
        "of an odd count": lambda x, i: (*t.median(x, 2), *t.median(i, 1)),
        "nanmedian": lambda x, i: (t.nanmedian(x), *t.nanmedian(x, 0), *t.nanmedian(i, 1)),
        "kthvalue": lambda x, i: (*t.kthvalue(x, 2, 1), *t.kthvalue(i, 15, 1, keepdim=True)),
        "quantile": lambda x, i: t.quantile(x, 0.3, dim=1),
    }
    check(functions, [x, i])


def test_order_statistics_of_nan(t: Any) -> None:
    t.manual_seed(2)
    x = _with_nan(t, _numbers(t, 4, 6), (0, 1), (1, 0), (1, 4), (2, slice(None)))
    functions: Functions = {
        "median": lambda x: (t.median(x), t.median(x, 1)[0], t.median(x[3:], 1)),
        "nanmedian": lambda x: (t.nanmedian(x), t.nanmedian(x, 1)[0], t.nanmedian(x[:2], 1)),
        "kthvalue": lambda x: t.kthvalue(x, 6, 1)[0],
    }
    check(functions, [x])


def test_order_statistics_of_equal_elements(t: Any) -> None:
    """Their places are of any of them, so that the elements there are compared."""
    t.manual_seed(3)
    i = t.randint(0, 4, (5, 9))
    b = i > 1

    def of(call: Any, x: Any) -> Any:
        values, places = call(x)
        return values, x.gather(-1, places[:, None])

    functions: Functions = {
        "median": lambda i, b: of(lambda x: t.median(x, -1), i),
        "kthvalue": lambda i, b: of(lambda x: t.kthvalue(x, 4, -1), i.float()),
        "mode": lambda i, b: of(lambda x: t.mode(x, -1), i),
        "mode of floats": lambda i, b: of(lambda x: t.mode(x, -1), i / 2),
        "mode of truths": lambda i, b: t.mode(b, -1)[0],
        "mode of columns": lambda i, b: t.mode(i, 0, keepdim=True)[0],
    }
    check(functions, [i, b])


def test_a_number_is_its_own_statistic(t: Any) -> None:
    functions: Functions = {
        "median": lambda x: (t.median(x), *t.median(x, 0), *t.kthvalue(x, 1, 0)),
        "mode": lambda x: (*t.mode(x, 0), *t.cummax(x, 0), t.logcumsumexp(x, 0)),
    }
    check(functions, [t.tensor(2.5)])


def test_medians_of_open_extents(t: Any) -> None:
    t.manual_seed(4)
    functions: Functions = {
        "median": lambda x: (t.median(x), *t.median(x, 0), *t.median(x, 1)),
        "nanmedian": lambda x: (t.nanmedian(x), *t.nanmedian(x, 0)),
    }
    others = [[_numbers(t, n, 3)] for n in (2, 3, 8)]
    check(functions, [_numbers(t, 5, 3)], {"x0": {0: "rows"}}, others)


def test_running_extrema_of_open_extents(t: Any) -> None:
    t.manual_seed(4)
    functions: Functions = {
        "cummax": lambda x: (*t.cummax(x, 0), *t.cummin(x, 0)),
        "logcumsumexp": lambda x: t.logcumsumexp(x, 0),
        "mode": lambda x: t.mode((x > 0).int(), 0)[0],
    }
    others = [[t.randn(n, 3)] for n in (2, 3, 8, 17)]
    rows = t.export.Dim("rows", min=2, max=20)
    check(functions, [t.randn(5, 3)], {"x0": {0: rows}}, others)
    check(functions, [t.randn(5, 3)], {"x0": {0: "rows"}}, others)


@pytest.mark.parametrize("extent", [1, 2, 7, 8])
def test_running_extrema(t: Any, extent: int) -> None:
    t.manual_seed(extent)
    x, i = t.randn(3, extent), t.randint(-3, 3, (extent, 4))
    functions: Functions = {
        "cummax": lambda x, i: (*t.cummax(x, 1), *t.cummax(i, 0), *t.cummax(i > 0, 0)),
        "cummin": lambda x, i: (*t.cummin(x, -1), *t.cummin(i, 0), *t.cummin(i, 1)),
        "logcumsumexp": lambda x, i: (t.logcumsumexp(x, 1), t.logcumsumexp(x * 40, 1)),
    }
    check(functions, [x, i])


def test_running_extrema_of_nan_and_infinity(t: Any) -> None:
    inf, nan = t.inf, t.nan
    x = t.tensor([[1.0, nan, 3, nan], [-inf, -inf, 2, inf], [inf, -inf, nan, 0], [0.0, -0, -1, 5]])
    functions: Functions = {
        "cummax": lambda x: t.cummax(x, 1),
        "cummin": lambda x: t.cummin(x, 1),
        "logcumsumexp": lambda x: t.logcumsumexp(x, 1),
    }
    check(functions, [x])


def test_distinct_elements(t: Any) -> None:
    i = t.tensor([[3, 3, 1, 1], [1, 3, 3, 3], [1, 3, 3, 3]])
    x = t.tensor([2.0, 2, t.nan, t.nan, -1, 2])
    functions: Functions = {
        "unique": lambda i, x: t.unique(i, return_inverse=True, return_counts=True),
        "of truths": lambda i, x: t.unique(i > 1, return_counts=True),
        "of rows": lambda i, x: t.unique(i, dim=0, return_inverse=True, return_counts=True),
        "in runs": lambda i, x: t.unique_consecutive(i, return_inverse=True, return_counts=True),
        "rows in runs": lambda i, x: t.unique_consecutive(i, True, True, dim=0),
        "columns in runs": lambda i, x: t.unique_consecutive(i[1:], True, True, dim=1),
        "nan in runs": lambda i, x: t.unique_consecutive(x, True, True),
    }
    others = [[i * 0, x * 0 + 1], [t.arange(12).reshape(3, 4), t.arange(6.0)]]
    check(functions, [i, x], others=others)


def test_counts_of_numbers(t: Any) -> None:
    i, w = t.tensor([3, 0, 3, 1]), t.tensor([0.5, 1, 2, -1])
    functions: Functions = {
        "bincount": lambda i, w: t.bincount(i),
        "at least": lambda i, w: t.bincount(i, minlength=7),
        "weights": t.bincount,
        "integers": lambda i, w: t.bincount(i, i),
    }
    check(functions, [i, w], others=[[t.tensor([0, 0, 0, 0]), w], [t.tensor([9, 2, 2, 5]), w]])
