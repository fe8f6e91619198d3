"""Windows at borders: every kernel, stride, dilation and padding, on lines of every length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.ir import expr
from aot.ir.dims import multiply, symbol
from aot.ir.expr import Expr, Load, Var
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import BufferClass, For, If, KernelBuilder, LoopKind, Stmt, Store
from aot.kernels.lowering import lower
from aot.kernels.nest.borders import Borders, may_miss_taps
from aot.kernels.nest.tiles import Shape
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import outlined
from tests.support.lowering_checks import check

ROW, TAP, LINE = Var("row"), Var("tap"), Var("line")
WIDTH = symbol("W")
Enclosed = tuple[tuple[Stmt, ...], Stmt]
SOURCE = KernelBuilder("k").buffer("in", DType.F32, BufferClass.INPUTS, (WIDTH,), (1,))


def at_least(position: Expr) -> Expr:
    return expr.binary("ge", position, expr.index(0))


def below(position: Expr) -> Expr:
    return expr.binary("lt", position, expr.index(WIDTH))


def position(by_row: int, by_tap: int, pad: int) -> Expr:
    moved = expr.add(expr.mul(ROW, expr.index(by_row)), expr.mul(TAP, expr.index(by_tap)))
    return expr.sub(moved, expr.index(pad))


def summed(*guards: Expr, other: float = 0.0, op: str = "sum") -> expr.Reduce:
    load = Load(SOURCE, (ROW,), DType.F32, expr.all_of(guards), expr.const(other, DType.F32))
    return expr.Reduce(op, ((TAP, 3),), load, DType.F32)


def test_what_is_alike_for_all_of_a_tile_is_skipped() -> None:
    here, line = position(1, 1, 1), at_least(LINE)
    borders = Borders.of(summed(at_least(here), below(here), line), [ROW, TAP])
    assert repr(borders) == repr(Borders((line,), (at_least(here), below(here)), is_neutral=True))


def test_nothing_is_skipped_that_would_add_something() -> None:
    line = at_least(LINE)
    for reduce in (summed(line, other=1.0), summed(line, op="max")):
        assert repr(Borders.of(reduce, [ROW, TAP])) == repr(Borders((), (line,)))


@pytest.mark.parametrize(("by_row", "pad"), [(1, 1), (2, 1), (2, 0), (1, 3)])
def test_what_surely_holds_is_not_asked(by_row: int, pad: int) -> None:
    """Tiles of seven rows that are all there, of windows that keep a line's length or halve it."""
    rows, taps, lines = 7, 3, symbol("N")
    here = position(by_row, 1, pad)
    end = expr.binary("lt", here, expr.index(multiply(by_row, lines)))
    borders = Borders.of(summed(at_least(here), end), [ROW, TAP])
    shape = Shape(rows, 1, 16, has_all_rows=True, has_all_columns=True)
    asked = set()
    for row, tap in product(range(rows), range(taps)):
        place = {TAP: expr.index(tap)}
        if borders.unsure(ROW, shape.span_of(row, lines), place) is not None:
            asked.add(by_row * row + tap - pad)
        else:
            assert all(
                0 <= by_row * (first + row) + tap - pad < by_row * count
                for count in range(rows, 3 * rows)
                for first in range(count - rows + 1)
            )
        loose = replace(shape, has_all_rows=False).span_of(row, lines)
        assert borders.unsure(ROW, loose, place) is not None  # rows that may not be there
    outside = [at for at in range(-pad, by_row * rows + taps) if not 0 <= at < by_row * rows]
    assert asked <= set(outside)


def test_a_tile_is_inside_where_its_corners_are() -> None:
    """The first row and tap are the lowest position, the last ones the highest."""
    here = position(2, 1, 1)
    borders = Borders.of(summed(at_least(here), below(here)), [ROW, TAP])
    low, high = expr.index(4), expr.index(11)
    corners = {ROW: (low, high), TAP: (expr.index(0), expr.index(2))}
    assert borders.are_linear_in(corners)
    wanted = expr.all_of([at_least(expr.index(7)), below(expr.index(23))])
    assert repr(borders.inside(corners, {})) == repr(wanted)


@pytest.mark.parametrize("apart", [1, 2, 5, 12])
@pytest.mark.parametrize("step", [1, 2])
def test_a_tap_is_missed_where_no_row_of_a_tile_has_it(step: int, apart: int) -> None:
    rows, windows = 4, 11
    width = step * windows
    here = position(step, apart, apart)
    reduce = summed(at_least(here), expr.binary("lt", here, expr.index(width)))
    borders = Borders.of(reduce, [ROW, TAP])
    misses = set()
    for first, tap in product(range(windows - rows + 1), range(3)):
        corners = {ROW: (expr.index(first), expr.index(first + rows - 1))}
        found = borders.anywhere(corners, {TAP: expr.index(tap)})
        assert found is not None
        places = [step * (first + row) + apart * (tap - 1) for row in range(rows)]
        assert holds(found) is (max(places) >= 0 and min(places) < width)
        misses.add(not holds(found))
    assert may_miss_taps(reduce, ROW, rows) or misses == {False}


def test_no_tap_is_missed_that_would_add_something() -> None:
    here = position(1, 5, 5)
    corners = {ROW: (expr.index(0), expr.index(1))}
    for reduce in (summed(at_least(here), other=1.0), summed(at_least(here), op="max")):
        assert Borders.of(reduce, [ROW, TAP]).anywhere(corners, {TAP: expr.index(0)}) is None


def holds(e: Expr) -> bool:
    """Whether a condition on numbers holds."""
    assert isinstance(e, expr.Binary)
    if e.op == "and":
        return holds(e.a) and holds(e.b)
    a, b = expr.dim_of(e.a), expr.dim_of(e.b)
    assert isinstance(a, int) and isinstance(b, int)
    return {"ge": a >= b, "lt": a < b}[e.op]


def test_positions_are_told_by_steps() -> None:
    for by_row, by_tap in ((1, 1), (2, 1), (1, 2)):
        here = position(by_row, by_tap, 1)
        borders = Borders.of(summed(at_least(here), below(here)), [ROW, TAP])
        assert borders.steps(ROW, TAP) == (by_row, by_tap)
    here, other = position(1, 1, 1), position(2, 1, 1)
    assert Borders((), (at_least(here), below(other))).steps(ROW, TAP) is None


def test_rows_past_the_end_are_kept_from_reading_by_an_upper_bound_alone() -> None:
    here = position(1, 1, 1)
    both, lower = summed(at_least(here), below(here)), summed(at_least(here))
    assert Borders.of(both, [ROW, TAP]).keep(both.body, ROW)
    assert not Borders.of(lower, [ROW, TAP]).keep(lower.body, ROW)
    beside = expr.add(both.body, Load(SOURCE, (ROW,), DType.F32))
    assert not Borders.of(both, [ROW, TAP]).keep(beside, ROW)
    parts = summed(below(here)).body, lower.body
    either = replace(both, body=expr.add(*parts))
    assert not Borders.of(either, [ROW, TAP]).keep(either.body, ROW)
    of_taps = summed(at_least(here), below(TAP))
    assert not Borders.of(of_taps, [ROW, TAP]).keep(of_taps.body, ROW)
    other_axis = summed(below(expr.add(LINE, TAP)))
    assert not Borders.of(other_axis, [ROW, TAP]).keep(other_axis.body, ROW)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v4", "aarch64-generic", "vulkan-1.1"])
@pytest.mark.parametrize("extents", [(3, 11, 15, 4), (9, 1, 18, 32)])
def test_rows_past_the_end_read_nothing_of_a_last_part(
    target: str, extents: tuple[int, int, int, int]
) -> None:
    """A concat along a tile's rows has no upper bound on the index of its last part."""
    count, first, last, columns = extents
    b = Builder()
    shapes = [(count, rows, columns) for rows in (first, last)]
    parts = [b.input(f"x{n}", TensorType(DType.F32, shape)) for n, shape in enumerate(shapes)]
    b.output("y", b.op("reduce_sum", b.op("concat", *parts, axis=1), axes=(0,)))
    inputs = [np.ones(shape, np.float32) for shape in shapes]
    check(b.function(), inputs, target, 1)


@dataclass(frozen=True)
class Case:
    """A window over images of one height and several widths."""

    op: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    channels: int
    height: int
    widths: tuple[int, ...]

    @property
    def is_pool(self) -> bool:
        return self.op.endswith("pool")

    def fits(self, width: int) -> bool:
        """Whether there is a result, and in every pool's window something of the image."""
        extents = zip((self.height, width), self.kernel, self.dilations, strict=True)
        spans = [(n, (k - 1) * d + 1) for n, k, d in extents]
        if self.is_pool and any(p >= k for p, k in zip(self.pads, self.kernel * 2, strict=True)):
            return False
        if self.is_pool and any(n < span for n, span in spans):
            return False
        padded = zip(spans, self.pads, self.pads[2:], strict=False)
        return all(n + begin + end >= span for (n, span), begin, end in padded)

    def module(self, width: int | str) -> Module:
        b = Builder()
        x = b.op("relu", b.input("x", f"f32[1, {self.channels}, {self.height}, {width}]"))
        given: dict[str, Any] = {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
        }
        if self.is_pool:
            b.output("y", b.op(self.op, x, kernel=self.kernel, **given))
            return b.module()
        group = self.channels if self.op == "depthwise" else 1
        shape = (self.channels if group > 1 else 24, self.channels // group, *self.kernel)
        weight = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
        b.output("y", b.op("conv", x, b.constant(weight), **given, group=group))
        return b.module()


CASES = st.builds(
    Case,
    op=st.sampled_from(["conv", "depthwise", "max_pool", "average_pool"]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 8)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.sampled_from([1, 1, 2, 5, 9])),
    pads=st.tuples(*[st.sampled_from([0, 1, 2, 3, 9])] * 4),
    channels=st.integers(1, 40),
    height=st.integers(1, 4),
    widths=st.tuples(*[st.integers(1, 40)] * 3),
)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_vector_at_the_border_asks_guards_at_some_taps_only(stride: int) -> None:
    """Of open planes, which are not brought into scratch; all taps were once asked about."""
    b = Builder()
    x = b.input("x", "f32[1, 8, H, W]")
    weights = b.input("w", "f32[8, 1, 5, 5]")
    attrs = {"strides": [stride] * 2, "dilations": [1, 1], "pads": [2] * 4, "group": 8}
    b.output("y", b.op("conv", x, weights, **attrs))
    kernel = lower(outlined(b.function()), targets.load("x86-64-v3"))
    found = [outer for outer, stmt in enclosed(kernel.body) if is_guarded_vector(outer, stmt)]
    assert found
    assert all(isinstance(outer[-1], If) for outer in found)


def enclosed(stmts: Sequence[Stmt], outer: tuple[Stmt, ...] = ()) -> Iterator[Enclosed]:
    """Each statement with those that it stands in."""
    for stmt in stmts:
        yield outer, stmt
        if isinstance(stmt, For):
            yield from enclosed(stmt.body, (*outer, stmt))
        elif isinstance(stmt, If):
            yield from enclosed((*stmt.then, *stmt.otherwise), (*outer, stmt))


def is_guarded_vector(outer: tuple[Stmt, ...], stmt: Stmt) -> bool:
    """Whether a statement stores, in lanes, what it reads under a guard."""
    is_vector = any(isinstance(x, For) and x.kind is LoopKind.VECTOR for x in outer)
    return (
        is_vector
        and isinstance(stmt, Store)
        and any(load.guard is not None for load in expr.loads(stmt.value))
    )


@pytest.mark.parametrize("is_dynamic", [False, True])
@given(case=CASES)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_windows(case: Case, is_dynamic: bool) -> None:
    """One program for every width, or one for each, against the reference."""
    widths = [w for w in case.widths if case.fits(w)]
    assume(widths)
    target = native_targets()[-1]
    rng = np.random.default_rng(0)
    shared = is_dynamic and aot.compile(case.module("W"), targets=[target], disable=["fusion"])
    for width in widths if is_dynamic else widths[:1]:
        x = rng.integers(-3, 9, (1, case.channels, case.height, width)).astype(np.float32)
        (wanted,) = run(case.module(width).main, {"x": x})
        own = shared or aot.compile(case.module(width), targets=[target], disable=["fusion"])
        with aot.load(own, device="cpu") as program:
            got = program({"x": x})["y"]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=str(width))
