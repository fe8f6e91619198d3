"""Dot products of so few columns that lanes share one: sums are exact, for any rows and layouts."""

from __future__ import annotations

import pytest

from aot.ir.record import Sample
from aot.kernels.lowering import lower
from tests.support import cpu_running
from tests.support.byte_convolutions import LAST, check, conv, made, on_cpu
from tests.support.half_contractions import device
from tests.support.lowering_checks import on_interpreter

VNNI = "x86-64-v4+avx512vnni"
NATIVE = cpu_running.native_targets(strongest=True)


def pointwise(channels: int, filters: int, size: tuple[int, int] = (9, 13)) -> Sample:
    return conv((channels, *size), 1, filters, 1)


CASES = [
    *(pointwise(channels, filters) for channels in (8, 64, 100) for filters in (1, 2, 3, 4, 7, 8)),
    *(pointwise(64, filters, (4, 8)) for filters in (1, 2, 4, 8)),
    pointwise(600, 8),  # rows that are too long to be read in place
    pointwise(64, 8, (1, 1)),
    conv((16, 7, 9), 1, 8),
    conv((16, 7, 9), 1, 4, 3, 2),
    conv((8, 9, 8), 1, 8, 3, is_padded=False),
    pointwise(12, 8),  # an odd number of words
]


@pytest.mark.parametrize("last", [LAST, ""], ids=["pixels", "planes"])
@pytest.mark.parametrize("sample", CASES, ids=range(len(CASES)))
def test_sums_are_exact_in_machine_code(sample: Sample, last: str) -> None:
    target = NATIVE[-1]
    for how in ("random", "extremes"):
        check(sample, how, target, on_cpu(target), last)


@pytest.mark.parametrize("last", [LAST, ""], ids=["pixels", "planes"])
@pytest.mark.parametrize("sample", [pointwise(16, 8, (3, 7)), pointwise(32, 4, (2, 8))])
def test_sums_are_exact_in_the_kernel_interpreter(sample: Sample, last: str) -> None:
    check(sample, "extremes", VNNI, on_interpreter, last)


@pytest.mark.parametrize(
    ("sample", "lanes"),
    [
        (pointwise(64, 8), 16),
        (pointwise(64, 4), 16),
        (pointwise(64, 2), 16),
        (pointwise(12, 8), 8),  # no two words of each lane
    ],
)
def test_vectors_are_full(sample: Sample, lanes: int) -> None:
    scratch = lower(made(sample, VNNI)[0], device(VNNI)).scratch
    (acc,) = (s for s in scratch if s.name == "acc")
    assert acc.shape[-1] == lanes
