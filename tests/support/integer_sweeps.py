"""Sweeps of convolutions of bytes that give bytes again: windows in scratch, depthwise and of small
groups, planes that are brought as words, and sums of few columns whose lanes share one."""

from __future__ import annotations

from typing import Any

from tests.support.dot_products import Requantized, requantized
from tests.support.executables import LAST, PLANES, STRONGEST
from tests.support.sweeps import Sweep

Size = tuple[int, int, int]
VNNI = ("x86-64-v4+avx512vnni",)
HERE: dict[str, Any] = {"on": STRONGEST[-1:]}
BOTH = ("random", "extremes")


def depthwise(size: Size, *rest: int, is_padded: bool = True) -> Requantized:
    return requantized(size, size[0], size[0], *rest, is_padded=is_padded)


def pointwise(channels: int, filters: int, *size: int, **more: Any) -> Requantized:
    height, width = size or (9, 13)
    return requantized((channels, height, width), 1, filters, 1, **more)


RINGS = [  # of lines, in pieces, by several workgroups
    (size, kernel, padded)
    for kernel in (5, 6)
    for size, padded in (((64, 67, 130), True), ((20, 90, 35), False))
]
WINDOWS = Sweep(
    "windows of bytes",
    ("windows/byte_depthwise", "windows/byte_groups"),
    **HERE,
    arrays=BOTH,
    natively=[
        *(
            depthwise(size, kernel, stride, dilation)
            for size in (
                *((64, 9, 11), (16, 4, 7), (20, 5, 5), (96, 3, 40), (150, 6, 3), (130, 2, 2)),
            )
            for kernel, stride, dilation in (
                *((3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (3, 1, 2)),
            )
        ),
        *(depthwise((32, 12, 13), 7, stride) for stride in (1, 2)),
        *(depthwise((16, n, 300), n, stride) for n, stride in ((3, 1), (5, 2))),
        *(depthwise(size, kernel, 2, is_padded=padded) for size, kernel, padded in RINGS),
        *(
            depthwise((channels, 8, 9), kernel, stride, is_padded=False)
            for channels, kernel in ((48, 3), (48, 4), (24, 2))
            for stride in (1, 2)
        ),
        *(
            requantized((members * count, 5, 9), count, members * count)
            for members in (4, 8, 16, 24, 32, 12, 64)
            for count in (2, 4, 6, 8)
        ),
        *(
            requantized((members * 4, 7, 15), 4, filters * 4, 3, stride, dilation)
            for members, filters in ((8, 16), (16, 8), (4, 8), (8, 4), (24, 8), (32, 16))
            for stride, dilation in ((1, 1), (2, 1), (1, 2))
        ),
        *(requantized((64, 9, 12), 8, 64, kernel) for kernel in (1, 2, 5)),
        *(requantized((64, 9, 12), 16, 64, k, 2, is_padded=False) for k in (1, 2, 5)),
        requantized((128, 2, 300), 16, 128),
        requantized((15, 4, 4), 3, 51),  # no whole words
    ],
    interpreted=[
        *((depthwise((20, 3, 6)), VNNI), (depthwise((36, 5, 6), 5, 2), VNNI)),
        *((requantized((16, 3, 5), 2, 16), VNNI), (requantized((16, 3, 5), 4, 32, 3, 2), VNNI)),
        (requantized((24, 2, 4), 2, 24), VNNI),
    ],
    built=[
        *((depthwise((64, 8, 8), 3, stride), VNNI) for stride in (1, 2)),
        *((depthwise((20, 8, 8), 5, *rest), VNNI) for rest in ((1,), (2,), (2, 2))),
        *((requantized((64, 8, 8), group, 64), VNNI) for group in (8, 16)),
    ],
    others=[  # fewer channels than a vector has, no whole words, other vectors
        *((depthwise((12, 8, 8)), VNNI), (requantized((15, 8, 8), 3, 51), VNNI)),
        *((case, ("x86-64-v3",)) for case in (depthwise((64, 8, 8)), depthwise((20, 8, 8), 5, 2))),
        (requantized((64, 8, 8), 8, 64), ("x86-64-v3",)),
    ],
)
BYTE_PLANES = Sweep(
    "planes of bytes",
    **HERE,
    arrays=("extremes",),
    natively=[
        pointwise(channels, filters, *size, layout=PLANES, last=last)
        for channels, filters, size in (
            *(
                (4, filters, size)
                for filters in (1, 3, 8, 16, 32, 64, 96)
                for size in ((8, 8), (5, 13), (9, 31), (40, 64), (33, 33))
            ),
            *((channels, filters, (9, 31)) for channels in (8, 32) for filters in (2, 3, 48, 128)),
            (4, 3, (7, 9)),  # fewer places than a vector has
        )
        for last in (LAST, PLANES)
    ],
    interpreted=[
        (pointwise(4, 16, 5, 14, layout=PLANES), VNNI),
        (pointwise(8, 3, 5, 13, layout=PLANES, last=PLANES), VNNI),
        (pointwise(4, 2, 8, 8, layout=PLANES, last=PLANES), VNNI),
    ],
)
DOTS_IN_PARTS = Sweep(
    "dot products in parts",
    **HERE,
    arrays=BOTH,
    natively=[
        case
        for last in (LAST, PLANES)
        for case in (
            *(pointwise(n, m, last=last) for n in (8, 64, 100) for m in (1, 2, 3, 4, 7, 8)),
            *(pointwise(64, filters, 4, 8, last=last) for filters in (1, 2, 4, 8)),
            pointwise(600, 8, last=last),  # rows that are too long to be read in place
            pointwise(64, 8, 1, 1, last=last),
            requantized((16, 7, 9), 1, 8, last=last),
            requantized((16, 7, 9), 1, 4, 3, 2, last=last),
            requantized((8, 9, 8), 1, 8, 3, is_padded=False, last=last),
            pointwise(12, 8, last=last),  # an odd number of words
        )
    ],
    interpreted=[
        (pointwise(*sizes, last=last), VNNI)
        for sizes in ((16, 8, 3, 7), (32, 4, 2, 8))
        for last in (LAST, PLANES)
    ],
)
INTEGERS = (WINDOWS, BYTE_PLANES, DOTS_IN_PARTS)
