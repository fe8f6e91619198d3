"""Dims: the algebra agrees with Python's integers, has one form for equals, and reads back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aot.ir import dims
from aot.ir.dim_limits import OversizedDimError
from aot.ir.dim_parser import parse
from aot.ir.dims import Dim, DimExpr, symbol

NAMES = ("N", "M", "W")
N, M, W = map(symbol, NAMES)
Values = Mapping[str, int]
Pair = tuple[Dim, Callable[[Values], int]]

values = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


def _leaf() -> st.SearchStrategy[Pair]:
    names = st.sampled_from(NAMES).map(lambda n: (symbol(n), lambda v: v[n]))
    numbers = st.integers(-4, 7).map(lambda k: (k, lambda v: k))
    return names | numbers


def _compound(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def combine(
        dim: Callable[[Dim, Dim], Dim],
        number: Callable[[int, int], int],
        right: st.SearchStrategy[Pair],
    ) -> st.SearchStrategy[Pair]:
        return st.tuples(inner, right).map(
            lambda ab: (dim(ab[0][0], ab[1][0]), lambda v: number(ab[0][1](v), ab[1][1](v)))
        )

    divisors = (
        st.integers(1, 6).map(lambda k: (k, lambda v: k))
        | st.integers(-4, -1).map(lambda k: (k, lambda v: k))
        | st.sampled_from(NAMES).map(lambda n: (symbol(n) + 1, lambda v: v[n] + 1))
    )
    return (
        combine(dims.add, lambda a, b: a + b, inner)
        | combine(lambda a, b: dims.add(a, dims.multiply(b, -1)), lambda a, b: a - b, inner)
        | combine(dims.multiply, lambda a, b: a * b, inner)
        | combine(dims.floor_divide, lambda a, b: a // b, divisors)
        | combine(dims.ceil_divide, lambda a, b: -(-a // b), divisors)
        | combine(dims.modulo, lambda a, b: a % b, divisors)
        | combine(dims.maximum, max, inner)
        | combine(dims.minimum, min, inner)
    )


pairs = st.recursive(_leaf(), _compound, max_leaves=6)
dim_only = pairs.map(lambda p: p[0])


@given(pairs, values)
@example((dims.ceil_divide(N, -1), lambda v: -v["N"]), {"N": 3, "M": 0, "W": 0})
def test_evaluates_as_python_does(pair: Pair, at: dict[str, int]) -> None:
    dim, expected = pair
    assert dims.evaluate(dim, at) == expected(at)


@given(dim_only)
def test_reads_back(dim: Dim) -> None:
    assert parse(str(dim)) == dim


@given(dim_only, values)
def test_substituting_some_and_then_the_rest(dim: Dim, at: dict[str, int]) -> None:
    halfway = dims.substitute(dim, {"N": at["N"]})
    assert "N" not in dims.symbols(halfway)
    assert dims.evaluate(halfway, at) == dims.evaluate(dim, at)


@given(dim_only, values)
def test_bounds_hold(dim: Dim, at: dict[str, int]) -> None:
    known = {name: (value - 1, value + 2) for name, value in at.items() if value % 2}
    low, high = dims.bounds(dim, known)
    found = dims.evaluate(dim, at)
    assert low is None or low <= found
    assert high is None or found <= high


@given(dim_only, dim_only, dim_only, st.integers(1, 5), st.integers(-3, 3))
def test_equal_things_have_one_form(a: Dim, b: Dim, c: Dim, k: int, m: int) -> None:
    assert dims.add(a, b) == dims.add(b, a)
    assert dims.add(dims.add(a, b), c) == dims.add(a, dims.add(b, c))
    assert dims.multiply(a, b) == dims.multiply(b, a)
    assert dims.multiply(a, dims.add(b, c)) == dims.add(dims.multiply(a, b), dims.multiply(a, c))
    assert dims.add(a, dims.multiply(a, -1)) == 0
    assert dims.maximum(a, b) == dims.maximum(b, a)
    assert dims.floor_divide(dims.multiply(a, k), k) == a
    assert dims.floor_divide(dims.add(a, m * k), k) == dims.add(dims.floor_divide(a, k), m)


@given(dim_only, dim_only)
def test_equal_dims_have_equal_hashes_and_text(a: Dim, b: Dim) -> None:
    if a == b:
        assert hash(a) == hash(b)
    assert (a == b) == (str(a) == str(b))


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (2 * N + 3, "2*N + 3"),
        (N * M - W, "M*N - W"),
        ((N + 1) // 2, "(N + 1)//2"),
        (-(N // 2), "-(N//2)"),
        (3 * (N // 2) - 1, "3*(N//2) - 1"),
        (N // M, "N//M"),
        (5 // N, "5//N"),
        ((4 * N + 6) // 4, "N + 1"),
        ((N // 2 + 1) // 3, "(N + 2)//6"),
        (dims.maximum(N, 3), "max(N, 3)"),
        (dims.minimum(N, N + 1), "N"),
        (dims.maximum(N - 1, 0, dims.maximum(N - 1, M)), "max(M, N - 1)"),
    ],
)
def test_canonical_text(dim: Dim, text: str) -> None:
    assert str(dim) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a number or a name, found the end in dim ''"),
        ("N +", "expected a number or a name, found the end in dim 'N +'"),
        ("N M", "expected the end, found 'M' in dim 'N M'"),
        ("(N", "expected ')', found the end in dim '(N'"),
        ("N // 0", "division by zero in dim 'N // 0'"),
        ("N / 2", "expected the end, found '/' in dim 'N / 2'"),
        ("max(N", "expected ')', found the end in dim 'max(N'"),
        ("é", "expected a number or a name, found 'é' in dim 'é'"),
        ("9999999999999999999", "number 9999999999999999999 is too large for a dim"),
        ("(" * 40 + "N" + ")" * 40, f"dim {'(' * 40 + 'N' + ')' * 39!r} is nested too deeply"),
        ("a//b//c" + "//d//e" * 40, f"dim {('a//b//c' + '//d//e' * 40)[:80]!r} is too large"),
        (
            "(a+b+c+d+e+f)" + "*(a+b+c+d+e+f)" * 9,
            f"dim {('(a+b+c+d+e+f)' + '*(a+b+c+d+e+f)' * 9)[:80]!r} is too large",
        ),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value)[:100] == message[:100]


def test_hostile_length() -> None:
    with pytest.raises(ValueError, match="is longer than 4096 characters$"):
        parse("-" * 5000 + "1")
    assert parse("-" * 4000 + "1") == 1


def _squared(x: Dim) -> Dim:
    return x * x


def _at_least(x: Dim) -> Dim:
    return dims.maximum(x, 9) * 3 // 2


def _divided(x: Dim) -> Dim:
    return x // 2 + symbol("n")


def _multiplied(x: Dim) -> Dim:
    return x * (symbol("a") + symbol("b") + symbol("c") + 1)


def _doubled(x: Dim) -> Dim:
    return x * ((1 << 62) - 57)


ADVICE = "give the extents of the model's inputs as numbers (--input-shape, input_shapes)"


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (_squared, "of more than 64 factors"),
        (_at_least, "of more than 131072 characters"),
        (_divided, "of more than 96 divisions in one another"),
        (_multiplied, "of more than 131072 characters"),
        (_doubled, "with numbers of more than 4096 bits"),
    ],
)
def test_what_grows_without_end_is_refused(step: Callable[[Dim], Dim], what: str) -> None:
    """Long before it takes time or memory, and before Python's own limits end it."""
    found: Dim = symbol("n")
    with pytest.raises(OversizedDimError) as raised:
        for _ in range(3000):
            found = step(found)
    assert str(raised.value) == f"an extent would be an expression {what}: {ADVICE}"


def test_an_extremum_of_many_is_refused() -> None:
    """Each of its arguments is compared with each."""
    names = [symbol(f"n{number}") for number in range(65)]
    assert dims.maximum(*names[:64]) is not None
    with pytest.raises(OversizedDimError, match="an extremum of more than 64 others"):
        dims.maximum(*names)


def test_symbols_are_identifiers() -> None:
    with pytest.raises(ValueError, match=r"^'a b' cannot name a dim: use letters, digits and _"):
        symbol("a b")


def test_symbolic_dims_have_no_truth_and_no_int() -> None:
    assert isinstance(N, DimExpr)
    with pytest.raises(TypeError, match="^the truth of symbolic dim N is not known$"):
        bool(N)
    with pytest.raises(TypeError, match="^dim N is symbolic$"):
        int(N)


def test_evaluate_names_what_is_missing() -> None:
    with pytest.raises(KeyError, match="M, W"):
        dims.evaluate(N + M * W, {"N": 1})


def test_a_guess_makes_all_extents_at_least_one() -> None:
    frames = parse("(N + 240) // 320 - 1")
    assert dims.estimate(frames, 256) == 0
    assert dims.estimate(parse("N // ((N + 240) // 320 - 1)"), 256) is None
    assert dims.guess([N, frames, 3], 256) == 512
    assert dims.guess([N, 0, -5], 256) == 256
    assert dims.estimate(-2 * N, 256) == -512


def test_parts_that_are_shared_are_substituted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents of one layer after another name those before them several times."""
    n = symbol("n")
    dim: Dim = n
    for depth in range(10):
        dim = dims.maximum((dim + 1) // 2 - dim // (depth + 3), 0)
    calls = []
    divide = dims.floor_divide
    monkeypatch.setattr(dims, "floor_divide", lambda a, b: calls.append(1) or divide(a, b))
    assert dims.evaluate(dim, {"n": 1000}) == dims.estimate(dim, 1000)
    assert len(calls) == 2 * 2 * 10
    assert dims.estimate(dim, 1000) == dims.evaluate(dim, {"n": 1000})
    assert len(calls) == 3 * 2 * 10
    assert dims.symbols(dim) == {"n"}
    pairs = []
    multiply = dims.interval_product
    monkeypatch.setattr(dims, "interval_product", lambda a, b: pairs.append(1) or multiply(a, b))
    low, high = dims.bounds(dim, {"n": (4, 4000)})
    assert low is not None and high is not None and low <= dims.evaluate(dim, {"n": 99}) <= high
    assert len(pairs) < 10 * 10  # a few for each layer


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 2), st.integers(1, 2)), max_size=40))
def test_a_sum_is_the_same_however_it_is_built(terms: list[tuple[int, int, int]]) -> None:
    """Term by term, by halves and backwards; long sums and short ones are added apart."""
    parts = [
        dims.multiply(dims.product([symbol(f"n{first}"), symbol(f"n{first * 7 % 10}")][:count]), c)
        for first, c, count in terms
    ]

    def halves(row: list[Dim]) -> Dim:
        if len(row) < 2:
            return row[0] if row else 0
        return dims.add(halves(row[: len(row) // 2]), halves(row[len(row) // 2 :]))

    forwards, backwards = (reduce(dims.add, row, 3) for row in (parts, parts[::-1]))
    assert forwards == backwards == dims.add(halves(parts), 3)
    assert str(forwards) == str(backwards)
    difference = reduce(dims.add, (dims.multiply(p, -1) for p in parts), forwards)
    assert difference == 3
