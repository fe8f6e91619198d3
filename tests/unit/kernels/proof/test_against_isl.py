"""The proof beside an independent judge: isl, which decides such accesses exactly.

Accesses of a few loops, by chance: extents that are numbers or open, guards, quotients and
remainders, in a buffer that just fits, or almost. Whatever is proved, isl must find inside; most of
what isl finds inside must be proved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import islpy
import pytest

from aot.ir import dims, expr
from aot.ir.dims import Dim, symbol
from aot.ir.expr import Expr, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel
from aot.kernels.proof.bounds import check_bounds
from tests.support.small_kernels import Kernels, loop, op, store

ACCESSES = 2_500
LEAST_PROVED = 0.94  # of what isl finds inside


@dataclass(frozen=True)
class Access:
    """One store, as a kernel, and the points at which it is outside, as isl reads them."""

    kernel: Kernel
    outside: str


@dataclass(frozen=True)
class Term:
    """An index, as an expression and as text."""

    e: Expr
    text: str


def random_access(rng: random.Random) -> Access:
    made = Kernels()
    names = ("N", "M")
    loops: list[tuple[Var, Dim, str]] = []
    for name in ("i", "j", "k")[: rng.choice((1, 2, 2, 3))]:
        number = rng.randrange(2, 12)
        extents: list[tuple[Dim, str]] = [(number, str(number)), *((symbol(n), n) for n in names)]
        extent, text = rng.choice(extents)
        by = rng.choice((1, 1, 2, 4))
        if by > 1:
            extent = dims.floor_divide(dims.add(extent, by - 1), by)
            text = f"floor(({text}+{by - 1})/{by})"
        loops.append((made.var(name), extent, text))
    terms = [Term(var, var.name) for var, _, _ in loops]
    index = _index(rng, terms)
    guard = _guard(rng, terms) if rng.random() < 0.6 else None
    extent, text = _extent(rng)
    held = [f"0 <= {var.name} < {bound}" for var, _, bound in loops]
    if guard is not None:
        held.append(guard.text)
    held += [f"{name} >= 0" for name in names]
    outside = f"({index.text} < 0 or {index.text} >= {text})"
    points = ", ".join(var.name for var, _, _ in loops)
    found = f"[N, M] -> {{ [{points}] : {' and '.join([*held, outside])} }}"
    target = made.buffer(DType.F32, extent, written=True)
    for name in names:
        made.builder.dim_param(name)
    body = store(target, index.e, guard=None if guard is None else guard.e)
    for var, bound, _ in reversed(loops):
        body = loop(var, bound, body)  # type: ignore[assignment]
    return Access(made.kernel(body), found)


def _index(rng: random.Random, terms: list[Term]) -> Term:
    total = Term(expr.index(0), "0")
    for term in terms:
        by = rng.choice((0, 1, 1, 2, 3, 8, -1))
        piece = term
        kind = rng.random()
        divisor = rng.choice((2, 3, 4, 8))
        if kind < 0.15:
            piece = Term(op("floordiv", term.e, divisor), f"floor(({term.text})/{divisor})")
        elif kind < 0.3:
            piece = Term(op("floormod", term.e, divisor), f"(({term.text}) mod {divisor})")
        total = Term(
            op("add", total.e, op("mul", piece.e, by)), f"{total.text} + {by}*{piece.text}"
        )
    shift = rng.choice((0, 0, 0, 1, -1, 2))
    total = Term(op("add", total.e, shift), f"{total.text} + {shift}")
    if rng.random() < 0.2:
        divisor = rng.choice((2, 4))
        total = Term(op("floordiv", total.e, divisor), f"floor(({total.text})/{divisor})")
    return Term(total.e, f"({total.text})")


def _guard(rng: random.Random, terms: list[Term]) -> Term:
    left = _index(rng, terms)
    right, text = rng.choice(
        [(expr.index(n), str(n)) for n in (0, 3, 7)] + [(expr.index(symbol("N")), "N")]
    )
    name, sign = rng.choice([("lt", "<"), ("le", "<="), ("ge", ">="), ("gt", ">"), ("eq", "=")])
    first = Term(op(name, left.e, right), f"{left.text} {sign} {text}")
    if rng.random() < 0.4:
        other = _guard(rng, terms)
        return Term(expr.binary("and", first.e, other.e), f"{first.text} and {other.text}")
    return first


def _extent(rng: random.Random) -> tuple[Dim, str]:
    more = rng.randrange(-2, 4)
    number = rng.choice((4, 8, 12, 16, 24, 40))
    by = rng.choice((1, 2, 3))
    name = rng.choice(("N", "M"))
    return rng.choice(
        [(number + more, str(number + more)), (by * symbol(name) + more, f"{by}*{name} + {more}")]
    )


def _check(seed: int, count: int) -> None:
    rng = random.Random(seed)
    inside = proved = 0
    for number in range(count):
        access = random_access(rng)
        is_proved = not check_bounds(access.kernel).unproved
        is_inside = islpy.Set(access.outside).is_empty()
        assert is_inside or not is_proved, f"access {number}: {access.outside}"
        inside += is_inside
        proved += is_proved
    print(f"{count} accesses, {inside} inside, {proved} of these proved")
    assert inside >= count // 10
    assert proved >= LEAST_PROVED * inside


def test_isl_finds_whatever_is_proved_inside() -> None:
    _check(7, ACCESSES)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_isl_finds_whatever_is_proved_inside_of_many(seed: int) -> None:
    _check(seed, 10_000)
