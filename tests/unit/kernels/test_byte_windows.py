"""Windows of bytes in scratch, depthwise and of small groups: sums are exact everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aot.ir.record import Sample
from aot.kernels.lowering import lower
from tests.support import cpu_running
from tests.support.byte_convolutions import Size, check, conv, made, on_cpu
from tests.support.half_contractions import device
from tests.support.lowering_checks import on_interpreter

VNNI = "x86-64-v4+avx512vnni"
NAMES = {"column_words", "square_words", "image_rows"}
NATIVE = cpu_running.native_targets(strongest=True)


def depthwise(size: Size, *rest: int, is_padded: bool = True) -> Sample:
    return conv(size, size[0], size[0], *rest, is_padded=is_padded)


def scratch_of(sample: Sample, target: str) -> set[str]:
    return {s.name for s in lower(made(sample, target)[0], device(target)).scratch}


def depthwise_cases() -> Iterator[Sample]:
    for size in ((64, 9, 11), (16, 4, 7), (20, 5, 5), (96, 3, 40), (150, 6, 3), (130, 2, 2)):
        for kernel, stride, dilation in ((3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (3, 1, 2)):
            yield depthwise(size, kernel, stride, dilation)
    yield depthwise((32, 12, 13), 7, 1)
    yield depthwise((32, 12, 13), 7, 2)
    yield depthwise((16, 3, 300), 3, 1)
    yield depthwise((16, 5, 300), 5, 2)
    for kernel in (5, 6):  # rings of lines, in pieces, by several workgroups
        yield depthwise((64, 67, 130), kernel, 2)
        yield depthwise((20, 90, 35), kernel, 2, is_padded=False)
    for stride in (1, 2):
        yield depthwise((48, 8, 9), 3, stride, is_padded=False)
        yield depthwise((48, 8, 9), 4, stride, is_padded=False)
        yield depthwise((24, 8, 9), 2, stride, is_padded=False)


def grouped_cases() -> Iterator[Sample]:
    for members in (4, 8, 16, 24, 32, 12, 64):
        for count in (2, 4, 6, 8):
            yield conv((members * count, 5, 9), count, members * count)
    for members, filters in ((8, 16), (16, 8), (4, 8), (8, 4), (24, 8), (32, 16)):
        for stride, dilation in ((1, 1), (2, 1), (1, 2)):
            yield conv((members * 4, 7, 15), 4, filters * 4, 3, stride, dilation)
    for kernel in (1, 2, 5):
        yield conv((64, 9, 12), 8, 64, kernel)
        yield conv((64, 9, 12), 16, 64, kernel, 2, is_padded=False)
    yield conv((128, 2, 300), 16, 128)
    yield conv((15, 4, 4), 3, 51)  # no whole words


CASES = [*depthwise_cases(), *grouped_cases()]


@pytest.mark.parametrize("sample", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("target", NATIVE[-1:])
def test_sums_are_exact_in_machine_code(sample: Sample, target: str) -> None:
    for how in ("random", "extremes"):
        check(sample, how, target, on_cpu(target))


@pytest.mark.parametrize(
    "sample",
    [
        depthwise((20, 3, 6)),
        depthwise((36, 5, 6), 5, 2),
        conv((16, 3, 5), 2, 16),
        conv((16, 3, 5), 4, 32, 3, 2),
        conv((24, 2, 4), 2, 24),
    ],
)
def test_sums_are_exact_in_the_kernel_interpreter(sample: Sample) -> None:
    check(sample, "extremes", VNNI, on_interpreter)


@pytest.mark.parametrize(
    ("sample", "scratch"),
    [
        (depthwise((64, 8, 8)), "column_words"),
        (depthwise((64, 8, 8), 3, 2), "column_words"),
        (depthwise((20, 8, 8), 5, 1), "column_words"),
        (depthwise((20, 8, 8), 5, 2), "square_words"),
        (depthwise((20, 8, 8), 5, 2, 2), "column_words"),
        (depthwise((12, 8, 8)), ""),  # fewer channels than a vector has
        (conv((64, 8, 8), 8, 64), "image_rows"),
        (conv((64, 8, 8), 16, 64), "image_rows"),
        (conv((15, 8, 8), 3, 51), ""),  # no whole words
    ],
)
def test_where_rows_are_brought_into_scratch(sample: Sample, scratch: str) -> None:
    found = scratch_of(sample, VNNI) & NAMES
    assert found == ({scratch} if scratch else set())
    # other vectors have the schedules of pairs of 16 bits
    assert not scratch_of(sample, "x86-64-v3") & NAMES


def test_rows_that_share_words_are_as_many_as_fit() -> None:
    """Four rows of an image have all taps of two rows of 3 x 3 windows, eight of four of 5 x 5."""
    for kernel, stride, rows in ((3, 1, 2), (3, 2, 1), (5, 1, 4), (7, 1, 2), (4, 1, 1)):
        function, _ = made(depthwise((16, 9, 9), kernel, stride), VNNI)
        scratch = lower(function, device(VNNI)).scratch
        (weights,) = (s for s in scratch if s.name == "column_weights")
        assert weights.shape[0] == rows


def test_lines_of_squares_are_as_many_as_a_window_has() -> None:
    """Words of two by two places serve all windows that begin at every other place."""
    for kernel, lines in ((4, 2), (5, 3), (7, 4)):
        function, _ = made(depthwise((16, 19, 19), kernel, 2), VNNI)
        scratch = {s.name: s for s in lower(function, device(VNNI)).scratch}
        assert scratch["square_words"].shape[0] == lines
        assert scratch["square_weights"].shape[:2] == (lines, lines)
