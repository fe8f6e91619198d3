"""Windows of convolutions and pools: what kernels keep in scratch, load and leave out, and numbers
that are none. What they compute else is test_sweeps.py's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.few_columns import lines_of_band
from aot.ir import expr
from aot.kernels.ir.nodes import Buffer, For, If, Kernel, LoopKind, Prefetch, Stmt, Store, walk
from tests.support.executables import LAST, PLANES, Array, Pool
from tests.support.window_sweeps import POOLED, grouped, members, plane, tap_sums

POOLS = ("max_pool", "average_pool")


def vectors(kernel: Kernel) -> list[For]:
    return [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]


def test_long_lines_are_in_scratch_in_parts() -> None:
    """The lines that some lines of the result read, with what they share of their neighbours."""
    for groups, width in (((4, 24, 24), 128), ((4, 24, 24), 320), ((8, 8, 8), 1024)):
        window = (12, width), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)
        kernel = grouped(groups, window, LAST).lowered("x86-64-v4")
        (held,) = (s for s in kernel.scratch if s.name == "held")
        assert held.shape[0] > 3
        assert held.shape[1] < width


def test_lines_share_what_they_load() -> None:
    """Of each place that a vector begins at, a load serves all lines whose windows it is in."""
    text = plane((16, 64), (3, 1, 1, 1)).assembly("x86-64-v4")
    products = re.findall(r"vfmadd\w+\s+(.*zmm.*)", text)
    of_memory = [p for p in products if "(" in p]
    assert len(products) >= 9 * 8 and len(of_memory) < len(products) / 4


@pytest.mark.parametrize("opened", ["", "C"])
def test_lanes_go_along_channels(opened: str) -> None:
    """Elements one by one would gather the channels."""
    kernel = members(2, (64, 8, 8), 7, 2, opened=opened).lowered("x86-64-v4")
    assert {loop.extent for loop in vectors(kernel)} >= {16}


def test_what_the_cache_holds_is_not_taken_apart() -> None:
    def together(size: tuple[int, int, int]) -> set[object]:
        body = members(1, size, 3, 1).lowered("x86-64-v4").body
        return {s.extent for s in walk(body) if isinstance(s, For) and s.var.name[:2] == "nt"}

    assert together((384, 14, 14)) == {2}
    assert together((64, 14, 14)) == {4}


@pytest.mark.parametrize("left", [PLANES, LAST], ids=["planes", "last"])
def test_next_places_are_asked_for(left: str) -> None:
    """Of the image: the lines of a cache that later tiles read."""
    body = tap_sums((32, 1, 16, 64), left=left).lowered("x86-64-v4").body
    asked = {s.source for s in walk(body) if isinstance(s, Prefetch)}
    assert [b.name for b in asked if isinstance(b, Buffer)] == ["in"]


def test_bands() -> None:
    """As many lines in each as scratch holds, at most 32; none where it holds few."""
    for places, columns, lines, expected in (
        *((34, 32, 32, 32), (34, 32, 33, 17), (514, 512, 512, 17)),
        *((1602, 1600, 512, 0), (1302, 1300, 1, 1)),
    ):
        assert lines_of_band(9 * 4 * places, 4 * columns, lines, 65536) == expected
    assert lines_of_band(70000, 64, 4, 65536) == 0


def pool(layout: str, kernel: Any = 3, stride: Any = 1, pad: Any = 1) -> tuple[Pool, Array]:
    case = Pool("max_pool", (1, 24, 17, 41), kernel, stride, pad, layout=layout)
    return case, np.random.default_rng(3).uniform(-9, 9, case.shape).astype(np.float32)


@pytest.mark.parametrize("layout", [LAST, PLANES])
@pytest.mark.parametrize("stride", [1, 2])
def test_nan_and_infinities(stride: int, layout: str) -> None:
    """Infinities of both signs add up to NaN, and no result is one for that."""
    random = np.random.default_rng(5)
    for special in (np.nan, -np.nan, np.inf, -np.inf):
        for chance in (1e-4, 0.02, 1.0):
            case, data = pool(layout, stride=stride)
            data[random.random(data.shape) < chance] = special
            data[0, 3, 4, 5] = -np.inf
            case.natively([data])


@pytest.mark.parametrize("at", [(0, 0), (16, 40), (8, 32)])
@pytest.mark.parametrize("layout", [LAST, PLANES])
def test_one_nan(at: tuple[int, int], layout: str) -> None:
    for window in POOLED[1:4:2]:
        case, data = pool(layout, *window)
        data[0, 17, at[0], at[1]] = np.nan
        case.natively([data])


def test_results_over_an_operand() -> None:
    """An operand that results overwrite is read once at each place, be lines ever so odd."""
    case = Pool("max_pool", (1, 2, 9, 37), 3, 1, 1, end="residual", bindings=(2, 1, 1))
    case.natively("normal")


@pytest.mark.parametrize(
    "case",
    [
        *(
            Pool("average_pool", (1, 2, 33, width), taps, 1, taps // 2)
            for width, taps in ((33, 3), (511, 5), (1024, 5))
        ),
        Pool("max_pool", (1, 4, 16, 28, 28), (3, 3, 3), 2, 1),
    ],
)
def test_taps_of_padded_planes_are_not_asked(case: Pool) -> None:
    """Vectors at borders once asked of each tap in each lane whether it was padding; later, those
    of lines of which the nearest cache does not hold as many as a window has."""
    stores = [s for s in walk(case.lowered("x86-64-v3").body) if isinstance(s, Store)]
    assert not any(load.guard is not None for s in stores for load in expr.loads(s.value))


@pytest.mark.parametrize("name", POOLS)
def test_wide_windows_combine_rows_first(name: str) -> None:
    """A window of 13 by 13 taps once loaded all of them for each element."""
    kernel = Pool(name, (1, 1, 64, 64), 13, 1, 6).lowered("x86-64-v3")
    assert loads_run(kernel.body) <= 80 * 64 * 64


def loads_run(body: tuple[Stmt, ...], times: int = 1) -> int:
    """How many elements are loaded where every condition holds."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            assert isinstance(stmt.extent, int)
            total += loads_run(stmt.body, times * stmt.extent)
        elif isinstance(stmt, If):
            total += loads_run(stmt.then, times)
        elif isinstance(stmt, Store):
            total += times * len(list(expr.loads(stmt.value)))
    return total


def test_no_vector_is_as_narrow_as_a_window() -> None:
    """A window of two taps once had vectors of two, each of which was added up by itself."""
    kernel = Pool("max_pool", (1, 2, 64, 64), 2, 2).lowered("x86-64-v3")
    widths = {
        loop.extent
        for loop in vectors(kernel)
        if any(isinstance(x, Store) and isinstance(x.target, Buffer) for x in loop.body)
    }
    assert widths == {8, 32}  # the narrow ones where an element is NaN
