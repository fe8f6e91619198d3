"""Bounds of dims: their text, the assumptions that they are, and what follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.ir import dims
from aot.ir.bounds import (
    SYNTAX,
    WantedDim,
    add_not_negative,
    assumptions_of,
    bounds_of,
    most_of,
    parse_shape,
    parse_wanted,
)
from aot.ir.dim_parser import parse
from aot.ir.dims import Dim, Interval, evaluate, maximum, minimum, narrow, symbol
from aot.ir.equalities import DimEqualities
from aot.ir.graph import Assumption

H, W = symbol("H"), symbol("W")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, WantedDim(None)),
        (7, WantedDim(7)),
        (-1, WantedDim(-1)),
        (H, WantedDim(H)),
        ("7", WantedDim(7)),
        ("H", WantedDim(H)),
        ("32*H", WantedDim(32 * H)),
        ("?", WantedDim(None)),
        ("H<=960", WantedDim(H, 0, 960)),
        ("960>=H", WantedDim(H, 0, 960)),
        ("H >= 32", WantedDim(H, 32)),
        ("32<=H", WantedDim(H, 32)),
        ("32<=32*H<=960", WantedDim(32 * H, 32, 960)),
        ("960>=H>=32", WantedDim(H, 32, 960)),
        ("?<=8", WantedDim(None, 0, 8)),
        ("H:32..960", WantedDim(H, 32, 960)),
        ("H:..960", WantedDim(H, 0, 960)),
        ("H:32..", WantedDim(H, 32)),
        (" 32*H : 32 .. 960 ", WantedDim(32 * H, 32, 960)),
        ("?:1..8", WantedDim(None, 1, 8)),
    ],
)
def test_items_of_a_shape(item: object, expected: WantedDim) -> None:
    assert parse_wanted(item) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["7", "H", "?", "H<=9", "3<=H", "3<=2*H<=9"])
def test_text_of_a_wanted_dim_reads_back(wanted: str) -> None:
    assert str(parse_wanted(wanted)) == wanted


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("H<=W", f"'H<=W' is no dim, expected {SYNTAX}"),
        ("H<=-1", f"'H<=-1' is no dim, expected {SYNTAX}"),
        ("1<=H>=3", f"'1<=H>=3' is no dim, expected {SYNTAX}"),
        ("1<=2<=H<=3", f"'1<=2<=H<=3' is no dim, expected {SYNTAX}"),
        ("9<=H<=3", "no dim satisfies '9<=H<=3'"),
        ("H<9", "expected the end, found '<' in dim 'H<9'"),
        ("<=9", "expected a number or a name, found the end in dim ''"),
        ("H:9..3", "no dim satisfies 'H:9..3'"),
        ("H:..", f"'H:..' is no dim, expected {SYNTAX}"),
        ("H:9", f"'H:9' is no dim, expected {SYNTAX}"),
        ("H:-1..3", f"'H:-1..3' is no dim, expected {SYNTAX}"),
        ("H:1..W", f"'H:1..W' is no dim, expected {SYNTAX}"),
        (":..3", "expected a number or a name, found the end in dim ''"),
        ("32<=H:..3", "expected the end, found '<' in dim '32<=H'"),
        (1.5, f"1.5 is no dim, expected {SYNTAX}"),
        (True, f"True is no dim, expected {SYNTAX}"),
    ],
)
def test_what_is_no_item_of_a_shape(item: object, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_wanted(item)  # type: ignore[arg-type]
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1x3xHx224", (1, 3, "H", 224)),
        ("1x?x32*hxW:..9", (1, None, "32*h", "W:..9")),
        ("N, xH:32..960 , ?:1..8", ("N", "xH:32..960", "?:1..8")),
        ("", ()),
    ],
)
def test_a_shape_as_text(text: str, expected: tuple[int | str | None, ...]) -> None:
    assert parse_shape(text) == expected


@pytest.mark.parametrize("text", ["1x", "1x-3", "2*3", "H:..", "1xxH"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError):
        parse_shape(text)


def assumed(*items: str) -> list[Assumption]:
    found: list[Assumption] = []
    for item in items:
        wanted = parse_wanted(item)
        assert wanted.dim is not None
        found += assumptions_of(wanted.dim, wanted, f"dim {wanted.dim}")
    return found


def test_bounds_are_assumptions() -> None:
    low, high = assumed("32<=H<=960")
    assert low == Assumption(dims.maximum(H, 32), H, "dim H must be at least 32")
    assert high == Assumption(dims.minimum(H, 960), H, "dim H must be at most 960")
    assert assumed("H", "7", "5<=7<=9") == []
    with pytest.raises(ValueError, match=r"dim 5 is 5, the bounds given for it are 7<=5"):
        assumed("7<=5")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((), {}),
        (("H<=960",), {"H": (0, 960)}),
        (("32<=H<=960", "H<=100", "W>=2"), {"H": (32, 100), "W": (2, None)}),
        (("33<=32*H<=95",), {"H": (2, 2)}),  # 2*32 alone lies between
        (("5<=4*H + 3<=12",), {"H": (1, 2)}),
        (("H*W<=100",), {}),  # says nothing of either alone
    ],
)
def test_bounds_of_symbols(
    items: tuple[str, ...], expected: dict[str, tuple[int | None, int | None]]
) -> None:
    assert bounds_of(assumed(*items)) == expected


def test_a_models_own_clipping_is_a_bound() -> None:
    for left, right in (("min(T, 512)", "T"), ("T", "min(T, 512)")):
        assert bounds_of([Assumption(parse(left), parse(right), "slice")]) == {"T": (0, 512)}


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_narrowed_dims_are_equal_within_the_bounds(a: int, b: int, c: int, value: int) -> None:
    low, high = min(a, b), max(a, b)
    dim = dims.maximum(dims.minimum(H, c), 2 * dims.floor_divide(H + 3, 4), W - 5)
    narrowed = narrow(dim, {"H": (low, high)})
    at = {"H": min(max(value, low), high), "W": c}
    assert evaluate(narrowed, at) == evaluate(dim, at)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("min(H, 1000)", "H"),
        ("min(H, 500)", "min(H, 500)"),
        ("max(H, 32) + 1", "H + 1"),
        ("H//961", "0"),
        ("3*min(H + 1, 2000)//4", "(3*H + 3)//4"),
    ],
)
def test_narrow(text: str, expected: str) -> None:
    assert str(narrow(parse(text), {"H": (32, 960)})) == expected


def test_equalities_know_bounds() -> None:
    equalities = DimEqualities(assumed("32<=H<=960"))
    assert equalities.are_equal(dims.minimum(H + 1, 961), H + 1)
    assert not equalities.are_equal(dims.minimum(H, 100), H)


def test_the_most_of_parts_that_move_together() -> None:
    n = symbol("n")
    last = maximum(n - 1, 0)
    some = minimum((n + 1) // 2, n)
    cases: list[tuple[Dim, int | None]] = [
        (5, 5),
        (n, None),
        (n - last, 1),
        (maximum(n - last, 0), 1),
        (n - maximum(n - 3, 0), 3),
        (some - maximum(minimum(n, some - 1), 0), 1),
        (2 * n - last, None),
        (minimum(n, 7) + last - n, 7),
    ]
    for dim, most in cases:
        assert most_of(dim) == most, dim
        assert most is None or all(evaluate(dim, {"n": at}) <= most for at in range(1, 12))


@pytest.mark.parametrize(
    "text", ["n - 2", "3*n - 7", "(n - 3)//2", "2*((n - 3)//2) - 5", "(n//4 - 3)//2 + 1", "7 - n"]
)
def test_what_is_not_negative_bounds_symbols(text: str) -> None:
    dim, known = parse(text), dict[str, Interval]()
    add_not_negative(known, dim)
    allowed = [n for n in range(100) if evaluate(dim, {"n": n}) >= 0]
    low, _ = known.get("n", (0, None))
    assert low == (min(allowed) if "7 -" not in text else 0)
