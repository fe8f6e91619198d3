"""Pointwise convolutions of planes of bytes, brought into scratch as words: sums are exact."""

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


def pointwise(channels: int, filters: int, size: tuple[int, int]) -> Sample:
    return conv((channels, *size), 1, filters, 1, layout=None)


SIZES = ((8, 8), (5, 13), (9, 31), (40, 64), (33, 33))
CASES = [
    *(pointwise(4, filters, size) for filters in (1, 3, 8, 16, 32, 64, 96) for size in SIZES),
    *(pointwise(channels, filters, (9, 31)) for channels in (8, 32) for filters in (2, 3, 48, 128)),
    pointwise(4, 3, (7, 9)),  # fewer places than a vector has
]


@pytest.mark.parametrize("last", [LAST, ""], ids=["pixels", "planes"])
@pytest.mark.parametrize("sample", CASES, ids=range(len(CASES)))
def test_sums_are_exact_in_machine_code(sample: Sample, last: str) -> None:
    target = NATIVE[-1]
    check(sample, "extremes", target, on_cpu(target), last)


@pytest.mark.parametrize(
    ("sample", "last"),
    [
        (pointwise(4, 16, (5, 14)), LAST),
        (pointwise(8, 3, (5, 13)), ""),
        (pointwise(4, 2, (8, 8)), ""),
    ],
)
def test_sums_are_exact_in_the_kernel_interpreter(sample: Sample, last: str) -> None:
    check(sample, "random", VNNI, on_interpreter, last)


@pytest.mark.parametrize(
    ("sample", "last", "names"),
    [
        (pointwise(4, 64, (9, 31)), LAST, {"staged"}),
        (pointwise(4, 3, (9, 31)), "", {"words"}),
    ],
)
def test_many_places_are_brought_together(sample: Sample, last: str, names: set[str]) -> None:
    scratch = lower(made(sample, VNNI, last)[0], device(VNNI)).scratch
    assert {s.name for s in scratch if 64 in s.shape or 256 in s.shape} >= names
