"""What rules share: how windows slide, parts of an extent, lines of a plane in scratch."""

from __future__ import annotations

from itertools import product

import pytest

from aot.ir import expr
from aot.ir.expr import Const, Expr, Var
from aot.kernels.ir.nodes import If, Let, Stmt
from aot.kernels.match.slides import Slide
from aot.kernels.nest.nest import Axis
from aot.kernels.stage.tails import even, shifted, where, whole_or_rest, widest, within


def slide(results: int, taps: int, step: int, apart: int, pad: int = 0) -> Slide:
    """Windows over as many places as they read, of which `pad` at either end are padding."""
    made = Slide(Axis(Var("x"), results), Axis(Var("k"), taps), step, apart, 1, pad, 0)
    return Slide(made.at, made.tap, step, apart, 1, pad, made.count - pad)


SLIDES = list(product((1, 2, 5, 9), (1, 2, 5), (1, 2, 3), (1, 2)))


@pytest.mark.parametrize(("results", "taps", "step", "apart"), SLIDES)
def test_places_of_windows(results: int, taps: int, step: int, apart: int) -> None:
    """By counting: places that neighbours read, and neighbours that read no more than some."""
    windows = slide(results, taps, step, apart)
    read = [{step * x + apart * k for k in range(taps)} for x in range(results)]
    spans = [max(set().union(*read[: n + 1])) + 1 for n in range(results)]
    assert [windows.places(n + 1) for n in range(results)] == spans
    for places in range(30):
        assert windows.results(places, results) == sum(span <= places for span in spans)
    assert windows.phases == sorted({place % step for place in read[0]})
    found = {
        (step * (taps_.ahead + apart * n) + taps_.phase, taps_.first + step * n)
        for taps_ in windows.by_phase()
        for n in range(taps_.count)
    }
    assert found == {(apart * k, k) for k in range(taps)}


@pytest.mark.parametrize(
    ("step", "pad", "first", "end"), list(product((1, 2, 3), (0, 1, 4), (0, 3), (4, 9)))
)
def test_what_is_no_padding_of_a_phase(step: int, pad: int, first: int, end: int) -> None:
    windows = slide(7, 3, step, 1, pad)
    inside = range(windows.begin, windows.end)
    for phase in range(step):
        places = [n for n in range(end) if step * (n + first) + phase in inside]
        assert list(range(*windows.inside(phase, end, first))) == places


def test_who_asks_for_padding() -> None:
    place = Var("p")
    assert slide(4, 3, 1, 1).is_there(place, place, 6) is None
    padded = slide(4, 3, 1, 1, 1)
    asked = padded.conditions(place, place, 6)
    assert [(c.op, c.b.value) for c in asked if isinstance(c, expr.Binary)] == [
        ("ge", 1),
        ("lt", 5),
    ]  # type: ignore[union-attr]
    assert len(padded.conditions(place, place, 5)) == 1  # none of these is behind the end


def named(value: int) -> list[Stmt]:
    return [Let(Var(f"v{value}"), expr.index(value))]


def test_parts_of_an_extent() -> None:
    """They cover it, and only those ask that may go beyond it."""
    for extent, most in product(range(1, 20), range(1, 8)):
        size = even(extent, most)
        assert size <= most and -(-extent // size) == -(-extent // most)
        at = Var("n")
        assert (within(at, extent, size) is None) == (extent % size == 0)
        covered = set[int]()
        for n in range(-(-extent // size)) if size <= extent else ():
            begin = shifted(expr.index(n), size, extent)
            assert isinstance(begin, Const)
            covered |= set(range(int(begin.value), int(begin.value) + size))
        assert covered == set(range(extent))
        assert widest(8, extent) == max(w for w in (1, 2, 4, 8) if w <= extent)


def test_statements_of_a_part() -> None:
    assert where(None, named(1), named(2))[0].var.name == "v1"  # type: ignore[union-attr]
    condition: Expr = expr.binary("lt", Var("n"), expr.index(3))
    (chosen,) = where(condition, named(1), lambda: named(2))
    assert isinstance(chosen, If) and len(chosen.then) == len(chosen.otherwise) == 1
    (whole,) = whole_or_rest(Var("n"), 8, 4, named)
    assert isinstance(whole, Let)
    (either,) = whole_or_rest(Var("n"), 10, 4, named)
    assert isinstance(either, If)
    sizes = [s.var.name for part in (either.then, either.otherwise) for s in part]  # type: ignore[union-attr]
    assert sizes == ["v4", "v2"]


def test_sums_of_index_terms() -> None:
    x, y = Var("x"), Var("y")
    assert expr.linear(x) is x
    assert expr.dim_of(expr.linear((expr.index(3), 4), 5, (expr.index(2), 1))) == 19
    made = expr.linear(x, (y, 6), 7)
    assert [expr.coefficient(made, v) for v in (x, y)] == [1, 6]
    at = {x: expr.index(2), y: expr.index(3)}
    assert expr.dim_of(expr.substitute(made, at)) == 27
