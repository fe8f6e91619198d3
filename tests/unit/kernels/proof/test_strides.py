"""Addresses of open extents are proved by the indices of the layout that they were made of."""

from __future__ import annotations

import itertools
import random

import pytest

from aot.kernels.proof.inequalities import Inequalities
from aot.kernels.proof.polynomials import Polynomial, combined, constant, product, scaled
from aot.kernels.proof.strides import indices_of


class Space:
    """A memory of extents n, h, w and some channels, and loops over them."""

    def __init__(self, channels: int = 3) -> None:
        self.facts = Inequalities()
        self.n, self.h, self.w = (self.facts.variable(name, 0, of=()) for name in "nhw")
        self.channels = channels
        self.row = scaled(self.w, channels)
        self.image = product(self.row, self.h)
        self.size = product(self.image, self.n)

    def loop(self, name: str, extent: Polynomial) -> Polynomial:
        _, high = self.facts.interval(extent)
        var = self.facts.variable(name, 0, None if high is None else high - 1)
        self.facts.assume(combined(combined(extent, var, -1), constant(-1)))
        return var

    def address(self, *indices: Polynomial) -> Polynomial:
        strides = self.image, self.row, constant(self.channels), constant(1)
        total: Polynomial = {}
        for stride, index in zip(strides, indices, strict=True):
            total = combined(total, product(stride, index))
        return total


def test_the_indices_of_an_address_are_found() -> None:
    space = Space()
    i, y, x = space.loop("i", space.n), space.loop("y", space.h), space.loop("x", space.w)
    found, by_channels = indices_of(space.address(i, y, x, constant(2)), space.size)
    assert [index.value for index in found] == [i, y, combined(scaled(x, 3), constant(2))]
    assert [index.extent for index in found] == [space.n, space.h, space.row]
    assert [index.value for index in by_channels] == [i, y, x, constant(2)]
    assert by_channels[-1].extent == constant(3)


def test_strides_of_another_layout_are_refused() -> None:
    space = Space()
    i = space.loop("i", space.n)
    assert not list(indices_of(product(i, product(space.w, space.w)), space.size))


@pytest.mark.parametrize("window", [0, 1])
def test_a_row_of_a_window_needs_its_guard(window: int) -> None:
    space = Space()
    i, y, x = space.loop("i", space.n), space.loop("y", space.h), space.loop("x", space.w)
    above = combined(y, constant(-1))
    address = space.address(i, above, x, constant(2))
    if window:
        space.facts.assume(above)
    assert space.facts.proves_inside(address, space.size, 1) == bool(window)
    assert not space.facts.proves_inside(address, space.size, 2)


def test_a_position_of_all_dims_is_one_of_each() -> None:
    space = Space()
    facts = space.facts
    positions = product(product(space.n, space.h), space.w)
    m = space.loop("m", positions)
    facts.assume(*(combined(extent, constant(-1)) for extent in (space.n, space.h, space.w)))
    lines = facts.quotient(m, space.w)
    assert lines is not None
    images = facts.quotient(lines[0], space.h)
    assert images is not None
    below = combined(m, space.w)  # the next row
    address = combined(scaled(below, 3), constant(1))
    assert not facts.proves_inside(address, space.size, 1)
    facts.assume(combined(combined(space.h, images[1], -1), constant(-2)))
    assert facts.proves_inside(address, space.size, 1)


def test_a_stride_that_may_be_negative_proves_nothing() -> None:
    facts = Inequalities()
    n, w = facts.variable("n", 0, of=()), facts.variable("w", None, of=())
    i = facts.variable("i", 0)
    facts.assume(combined(combined(n, i, -1), constant(-1)))
    assert not facts.proves_inside(product(i, w), product(n, w), 1)


def test_what_is_proved_holds_for_numbers() -> None:
    rng = random.Random(5)
    proved = 0
    for _ in range(300):
        space = Space(rng.choice((1, 2, 4)))
        loops = [
            space.loop(name, e) for name, e in zip("iyx", (space.n, space.h, space.w), strict=True)
        ]
        shifts = [rng.choice((-1, 0, 0, 0, 1)) for _ in range(4)]
        guards = [rng.choice((-1, 0, 0, 1)) for _ in range(3)]
        for loop, guard, extent in zip(loops, guards, (space.n, space.h, space.w), strict=True):
            if guard < 0:
                space.facts.assume(combined(loop, constant(-1)))
            elif guard > 0:
                space.facts.assume(combined(combined(extent, loop, -1), constant(-2)))
        indices = [combined(v, constant(s)) for v, s in zip(loops, shifts, strict=False)]
        address = space.address(*indices, constant(max(0, shifts[3])))
        if not space.facts.proves_inside(address, space.size, 1):
            continue
        proved += 1
        for n, h, w in itertools.product((1, 2, 3), repeat=3):
            ranges = [
                range(1 if guard < 0 else 0, extent - (guard > 0))
                for guard, extent in zip(guards, (n, h, w), strict=True)
            ]
            for i, y, x in itertools.product(*ranges):
                c = space.channels
                at = [p + s for p, s in zip((i, y, x), shifts, strict=False)]
                number = ((at[0] * h + at[1]) * w + at[2]) * c + max(0, shifts[3])
                assert 0 <= number < n * h * w * c
    assert proved > 20
