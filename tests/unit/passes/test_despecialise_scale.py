"""Outlining and despecialising take work linear in the dispatches, and in the executables."""

from __future__ import annotations

import pytest

from aot.passes.fusion.outline import outline
from aot.passes.specialise.despecialise import FEW, despecialise
from tests.support.despecialise_scale import TARGET, regions
from tests.support.scaling import MOST, growth, lines_run

SIZE = 4 * FEW  # far more than are tried each with each


def work(count: int, different: int) -> tuple[float, float]:
    """Lines of outlining and of despecialising."""
    module = regions(count, different)
    first = lines_run(lambda: outline(module))
    return first, lines_run(lambda: despecialise(module, TARGET, 0.05))


@pytest.mark.parametrize("share", [1, 8])
def test_work_is_linear(share: int) -> None:
    work(SIZE, SIZE // share)  # what is remembered from then on
    found = [work(SIZE * times, SIZE * times // share) for times in (1, 2, 4)]
    for costs in zip(*found, strict=True):
        assert growth(costs) < MOST


def test_dispatches_of_few_executables_are_cheap() -> None:
    """What is outlined equal is looked at once."""
    many, few = work(8 * SIZE, SIZE)[1], work(SIZE, SIZE)[1]
    assert many < 2 * few
