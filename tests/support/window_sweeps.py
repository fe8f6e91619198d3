"""Sweeps of convolutions in groups, of channels by themselves, of windows of few columns, and of
pools."""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.support.executables import DEPTHWISE, LAST, NATIVE, PACKED, PLANES, Conv, Pool
from tests.support.sweeps import Sweep

Window = tuple[Any, ...]
V4, V3, V2 = ("x86-64-v4",), ("x86-64-v3",), ("x86-64-v2",)
ARM, GPU = ("aarch64-generic",), ("vulkan-1.1",)
SHORT = ("x86-64-v4", "x86-64-v2", "aarch64-generic", "riscv64-v")

# Groups: their number, channels and columns of each; extents of the image, taps, strides,
# dilations, pads.


def grouped(
    groups: tuple[int, int, int], window: Window, layout: str = PLANES, **more: Any
) -> Conv:
    count, inner, columns = groups
    extents, kernel, strides, dilations, pads = window
    panels = layout == PLANES and columns % 16 == 0
    return Conv(
        *((count * inner, count * columns, *extents), kernel, strides, pads, layout, layout),
        **{"weights": PACKED if panels else DEPTHWISE, "end": "relu"} | more,
        apart=dilations,
        group=count,
        is_image=True,
    )


ONES, NONE, ALL = (1, 1), (0, 0, 0, 0), (1, 1, 1, 1)
THREE = ((7, 7), (3, 3), ONES, ONES, ALL)
HALVED = ((10, 33), (3, 3), (2, 2), ONES, ALL)
LARGE = ((33, 97), (3, 3), ONES, ONES, ALL)
WIDE = ((5, 300), (3, 3), ONES, (2, 2), (2, 2, 2, 2))
UNEVEN: list[Window] = [
    THREE,
    ((9, 20), (3, 5), ONES, ONES, (1, 2, 1, 2)),
    ((11, 13), (3, 3), (2, 1), (1, 2), (0, 2, 1, 3)),
    HALVED,
    ((6, 33), (2, 4), ONES, ONES, NONE),
    ((13, 22), (5, 2), (3, 2), (2, 3), (4, 1, 3, 2)),
    *(LARGE, WIDE),
    ((9, 261), (3, 3), (2, 2), ONES, (0, 20, 1, 30)),
]
POINTS = ((5, 6), (1, 1), ONES, ONES, NONE)
OF_PLANES = [
    *((8, 8, 8), (4, 24, 24), (5, 2, 2), (3, 3, 3), (6, 5, 4), (4, 3, 12), (2, 40, 40)),
    *((3, 16, 16), (2, 7, 13), (3, 2, 5), (4, 1, 2), (2, 1, 3)),
]


def over(extents: tuple[int, int], window: Window = THREE) -> Window:
    return extents, *window[1:]


def strided(inner: int, columns: int, extents: tuple[int, int], strides: tuple[int, int]) -> Conv:
    """Products at every so manyth place of planes, all channels one group."""
    return grouped((1, inner, columns), (extents, (1, 1), strides, ONES, NONE))


GROUPED_PLANES = Sweep(
    "grouped planes",
    ("windows/grouped_planes",),
    in_turn=True,
    interpreted=[
        (grouped(groups, window), SHORT)
        for groups in ((2, 3, 5), (2, 2, 2))
        for window in (THREE, HALVED, over((4, 90)))
    ],
    natively=[
        grouped(groups, window)
        for n, groups in enumerate(OF_PLANES)
        for window in (*UNEVEN[n % 9 :], *UNEVEN[: n % 9])
    ],
    built=[
        *((grouped((8, 8, 8), THREE), V3 + V4 + ARM), (grouped((4, 24, 24), LARGE), V3 + V4)),
        *((grouped((2, 40, 40), WIDE), V3 + V4), (grouped((3, 16, 16), HALVED), V3 + V4)),
        *((grouped((8, 3, 3), THREE), ("armv7-neon",)), (strided(64, 48, (64, 64), (2, 2)), V4)),
        *((grouped((2, 2, 2), over(at), opened="N"), V2) for at in ((9, 20), (500, 40))),
    ],
    others=[
        *((grouped((3, 16, 16), THREE), ARM), (grouped((8, 8, 8), POINTS), V4)),
        (grouped((8, 8, 8), THREE), ("armv7-neon", *GPU)),
        *((strided(1024, 48, (14, 14), (2, 2)), V4), (strided(64, 48, (64, 64), (2, 2)), V3)),
    ],
    asks=[
        *((grouped((2, 24, 6), over((70, 140))), V2), (grouped((2, 2, 2), over((500, 40))), V2)),
        (grouped((2, 2, 2), over((500, 40)), opened="N"), V2),  # an image as one of several
    ],
    asks_not=[(grouped((2, 2, 2), over((9, 20)), opened="N"), V2)],
)
STRIDED_POINTS = Sweep(
    "strided points",
    in_turn=True,
    on=NATIVE[-2:],
    natively=[
        strided(inner, columns, extents, strides)
        for columns in (3, 16, 48)
        for extents, strides, inner in (
            *(((33, 35), (2, 2), 24), ((40, 31), (1, 3), 7)),
            *(((13, 97), (3, 2), 64), ((9, 9), (2, 2), 5)),
        )
    ],
)
ASKED_PLANES = Sweep(
    "large planes in groups",
    natively=[case for case, _ in GROUPED_PLANES.asks[:2]],
    on=V2 if V2[0] in NATIVE else (),
)

# Channels last: columns of several groups side by side; lines that scratch does not hold.
LONG: list[Window] = [
    ((5, 171), (3, 3), ONES, ONES, ALL),
    ((7, 243), (3, 4), ONES, (1, 3), (1, 4, 1, 5)),
    ((6, 600), (3, 3), (2, 1), ONES, (0, 0, 1, 0)),
]
GROUPS = [(8, 8, 8), (4, 24, 24), (19, 8, 8), (3, 8, 8), (6, 5, 4), (4, 3, 12), (2, 40, 40)]
GROUPED = Sweep(
    "groups side by side",
    ("windows/grouped",),
    natively=[
        grouped(groups, window, LAST)
        for many, windows in (
            (GROUPS, [*UNEVEN[:3], over((10, 12), HALVED), UNEVEN[4], POINTS]),
            ([(4, 24, 24), (8, 8, 8), (6, 5, 4), (3, 40, 40)], LONG),
        )
        for groups, window in product(many, windows)
    ],
    interpreted=[(grouped(n, THREE, LAST), V4 + V3) for n in ((4, 8, 8), (6, 3, 4))],
    built=[
        *((grouped((8, 8, 8), THREE, LAST), V4), (grouped((4, 24, 24), THREE, LAST), V4)),
        (grouped((8, 4, 4), THREE, LAST), V3),
    ],
    others=[  # groups that fill vectors, or whose rows share no scalars, are products
        *((grouped((8, 8, 8), THREE, LAST), V3 + GPU), (grouped((4, 16, 16), THREE, LAST), V4)),
        (grouped((8, 8, 8), over((10, 12), HALVED), LAST), V4),
    ],
)


# Channels by themselves, over planes: kernel, stride, pad, distance of taps. Lines that groups
# divide and others; one, less and more vectors than one, whole or not.
def plane(extents: tuple[int, int], window: Window, end: str = "", channels: int = 3) -> Conv:
    kernel, stride, pad, apart = window
    sizes = (channels, channels, *extents)
    more: dict[str, Any] = {"weights": PLANES, "end": end, "apart": apart, "members": 1}
    return Conv(sizes, kernel, stride, pad, **more)


SLIDING = [
    *((3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 0, 1), (5, 2, 2, 1), (5, 1, 2, 1), (7, 1, 3, 1)),
    *((3, 1, 2, 2), (3, 1, 6, 6), (5, 2, 4, 2), (3, 3, 0, 1), (3, 2, 3, 3), (4, 3, 1, 2)),
    *((2, 1, 1, 1), (9, 1, 4, 1), (13, 1, 6, 1), (7, 4, 3, 1), (11, 2, 5, 1), (2, 5, 0, 3)),
]
IMAGES = [(5, 7), (8, 16), (9, 17), (14, 14), (17, 33), (33, 15), (21, 67), (47, 32)]
ENDS = ("", "residual")
BY_LINES = ("windows/plane_windows", "windows/by_planes")
PLANE_WINDOWS = Sweep(
    "depthwise planes",
    BY_LINES,
    in_turn=True,
    is_strict=True,
    natively=[
        plane(at, window, ENDS[(n + m) % 2])
        for m, window in enumerate(SLIDING)
        for n, at in enumerate(IMAGES)
    ],
    interpreted=[
        (plane(extents, window, channels=2), (*V4, *V2, "armv7-neon", "riscv64-v"))
        for window in SLIDING[::4]
        for extents in ((9, 19), (13, 6))
    ],
    asks=[(plane((130, 250), (5, 1, 2, 1), end, 12), NATIVE[-1:]) for end in ENDS],
)
PLANES_HERE = Sweep(
    "planes",
    natively=[
        *(plane((3, 2), window) for window in SLIDING),  # lines that share nothing
        # a workgroup has a band of a plane; the last has lines that aren't there
        *(
            plane(at, window, channels=2)
            for at in ((29, 600), (41, 255), (10, 1030))
            for window in ((3, 1, 1, 1), (5, 2, 2, 1), (7, 1, 3, 1))
        ),
    ],
)
LONG_ENDS = Sweep(  # a copy a line would be most of the code: there is one for all
    "planes with long ends",
    BY_LINES,
    [plane(at, w, "sigmoid") for w in SLIDING[:4] for at in ((14, 33), (16, 16), (11, 7))],
    is_strict=True,
)
LARGE_PLANES = Sweep(
    "large planes",
    natively=[
        *(plane((130, 250), (5, 1, 2, 1), end, 12) for end in ENDS),
        *(
            Conv((3, 3, 12, 35), 3, 1, 1, members=1, weights=PLANES, opened=opened)
            for opened in ("H", "W", "C")
        ),
    ],
    on=NATIVE[-1:],
)


# Channels by themselves, channels last: several filters each, and planes that are stored so.
def members(count: int, size: tuple[int, int, int], kernel: int, stride: int, **more: Any) -> Conv:
    channels, height, width = size
    weights = f"{{splits=0/{count} order=2:3:1:4:0}}" if count > 1 else DEPTHWISE
    known = {"left": LAST, "result": LAST, "weights": weights, "pad": kernel // 2, **more}
    sizes = (channels, count * channels, height, width)
    return Conv(sizes, kernel, stride, members=count, **known)


MEMBERS = Sweep(
    "several filters of a channel",
    natively=[
        *(
            members(count, size, kernel, stride)
            for count, kernel in ((2, 3), (2, 7), (3, 5), (5, 3))
            for stride in (1, 2)
            for size in ((48, 9, 11), (17, 4, 7), (3, 5, 5), (1, 6, 8))
        ),
        *(
            members(1, size, kernel, stride, left=PLANES, end="residual")
            for kernel in (3, 5, 7)
            for size in ((5, 7, 33), (19, 6, 16), (4, 9, 28), (8, 5, 5))
            for stride in (1, 2)
        ),
    ],
    interpreted=[(members(2, (10, 3, 6), 3, 2, end="residual"), V4 + ARM)],
)
OPEN_MEMBERS = Sweep(
    "open channels and images",
    on=NATIVE[:1],
    natively=[
        *(
            members(2, (20, 5, 9), 3, 1, opened=opened, end=end)
            for opened in ("C", "HW", "CHW")
            for end in ENDS
        ),
        *(members(1, (20, 6, 9), 9, 1, opened=opened) for opened in "HWC"),
    ],
)
STORED_BY_PLANES = Sweep(
    "planes that are stored channels last",
    ("windows/by_planes",),
    built=[(members(1, (64, 56, 56), 3, 1, left=PLANES), V4)],
    others=[  # neighbours lie in few sets of a cache; the second does not hold all lines
        (members(1, (256, 16, 16), 3, 1, left=PLANES), V4),
        (members(1, (64, 112, 112), 3, 1, left=PLANES), V4),
    ],
)
CHANNELS_IN_LANES = Sweep(
    "channels in lanes",
    ("windows/members",),
    built=[(members(2, (64, 8, 8), 7, 2, opened=opened), V4) for opened in ("", "C")],
)
# Many taps read lines in scratch; with a stride a line may be longer than the nearest cache.
MANY_TAPS = [
    (members(1, size, kernel, stride, pad=pad, end=end), stride)
    for kernel, stride, pad in ((9, 1, 4), (9, 2, 4), (11, 1, 5), (8, 1, 0))
    for end in ENDS
    for size in ((16, 7, 7), (17, 20, 9), (40, 5, 33), (3, 14, 13), (96, 6, 10))
]
TAPS_IN_SCRATCH = Sweep(
    "many taps",
    ("windows/packed",),
    [case for case, stride in MANY_TAPS if stride == 1],
    is_strict=True,
)
ASKED_LINES = [members(1, (66, 60, 70), k, s, end="residual") for k, s in ((3, 1), (5, 2), (4, 2))]
CHANNELS_LAST = Sweep(
    "channels last",
    natively=[
        *(case for case, stride in MANY_TAPS if stride > 1),
        # all rows pass some channels before the next ones, of which there may be fewer
        *(
            members(1, (channels, 20, 28), kernel, stride)
            for channels in (160, 168, 512, 72)
            for kernel, stride in ((3, 1), (5, 2))
        ),
        *ASKED_LINES,
    ],
    interpreted=[
        (members(1, (18, 4, 5), 9, 1), V4 + ARM),
        # tiles of two results have two vectors of columns, whose lines are twice as long
        *(
            (grouped((32, 1, 1), ((4, n + 1), (3, n), ONES, ONES, NONE), LAST, images=1), target)
            for target, n in ((V3, 400), (V4, 180))
        ),
    ],
    asks=[(case, V4) for case in ASKED_LINES],
    asks_not=[
        *((case, ARM) for case in ASKED_LINES),
        *(
            (members(1, (66, 12, 14), k, s, end="residual"), V4)
            for k, s in ((3, 1), (5, 2), (4, 2))
        ),
    ],
)


# The sums of each tap for all places of a line, then those of a window: lines of whole tiles, of
# one that moves back, of a vector beside tiles, and bands of unequal heights.
def tap_sums(size: tuple[int, int, int, int], **more: Any) -> Conv:
    return Conv(size, **{"kernel": 3, "pad": 1, "weights": LAST} | more)


TAPS = [
    *((12, 1, 9, 16), (16, 1, 70, 33), (13, 2, 7, 21), (32, 3, 33, 17), (20, 1, 5, 70)),
    *((24, 1, 1, 64), (130, 1, 3, 48)),
]
FEW = (32, 1, 16, 16)
TAP_SUMS = Sweep(
    "tap sums",
    ("windows/tap_sums",),
    built=[(tap_sums(FEW, left=left), V4) for left in (PLANES, LAST)],
    others=[
        *(
            (case, V4)
            for left in (PLANES, LAST)
            for case in (
                tap_sums(FEW, left=left, stride=2, kernel=4),
                *(tap_sums(at, left=left) for at in ((8, 1, 16, 16), (32, 4, 16, 16))),
                *(tap_sums(at, left=left) for at in ((32, 1, 16, 15), (32, 1, 16, 2000))),
                tap_sums(FEW, left=left, pad=0),
            )
        ),
        *((tap_sums(FEW, left=left), ARM + GPU + V2) for left in (PLANES, LAST)),
        (tap_sums((32, 2, 16, 16)), V3),
    ],
    natively=[
        case
        for left in (PLANES, LAST)
        for case in (
            *(tap_sums(at, left=left, result=y) for at in TAPS for y in (PLANES, LAST)),
            *(tap_sums(at, left=left, end=e) for at in TAPS for e in ("residual", "sigmoid")),
            *(
                tap_sums(at, kernel=kernel, pad=pad, left=left)
                for kernel, pad in ((5, 2), (5, 1), (3, 2), (2, 1))
                for at in ((16, 1, 9, 20), (16, 1, 40, 40))
            ),
        )
    ],
    interpreted=[
        (case, V3)
        for left in (PLANES, LAST)
        for case in (
            tap_sums((12, 2, 3, 17), left=left, end="residual"),
            tap_sums((12, 1, 34, 8), left=left),
        )
    ],
)
OTHER_TAP_SUMS = Sweep(
    "tap sums of open extents and any weights",
    on=NATIVE[:1],
    natively=[
        *(
            tap_sums((16, 1, 9, 20), left=left, opened=opened)
            for left in (PLANES, LAST)
            for opened in ("W", "HW", "C", "OCHW")
        ),
        *(tap_sums((16, 2, 9, 20), weights=weights) for weights in (PLANES, PACKED)),
    ],
)

# Pools of planes and of channels that lie side by side: lines of one tile and of several, one line
# and many, channels that fill no vector.
POOLED: list[Window] = [
    *(((3, 3), (1, 1), ALL), ((3, 3), (2, 2), ALL), ((2, 2), (2, 2), NONE)),
    *(((5, 5), (1, 1), (2, 2, 2, 2)), ((2, 3), (3, 1), (0, 2, 1, 0))),
    *(((3, 2), (1, 4), (2, 0, 0, 1)), ((7, 4), (2, 3), (0, 3, 5, 3))),
    ((13, 13), (1, 1), (6, 6, 6, 6)),
]
OPS = ("max_pool", "average_pool")
SHAPES = {
    LAST: ((2, 16, 13, 13), (1, 21, 14, 75), (1, 640, 13, 14)),
    PLANES: ((2, 3, 13, 13), (1, 1, 14, 275), (1, 2, 33, 33)),
}


def large_pool(op: str, layout: str, stride: int, *shape: int) -> Pool:
    return Pool(op, shape, (5, 3), stride, (2, 1, 2, 1), layout=layout)


LARGE_POOLS = [(op, layout, stride) for op in OPS for layout in (LAST, PLANES) for stride in (1, 2)]
POOLS = Sweep(
    "pools",
    ("windows/pools", "windows/plane_pools"),
    is_strict=True,
    arrays=("normal",),
    natively=[
        *(
            Pool(op, shape, *window, layout=layout)
            for layout, shapes in SHAPES.items()
            for op in OPS
            for window in POOLED
            for shape in shapes
        ),
        *(large_pool(*case, 1, 40, 191, 197) for case in LARGE_POOLS),
    ],
    interpreted=[
        (Pool(op, shape, *window, layout=layout), SHORT)
        for layout, shapes in ((LAST, [(1, 18, 5, 6)]), (PLANES, [(1, 2, 7, 18), (2, 1, 5, 13)]))
        for op in OPS
        for window in POOLED[:5]
        for shape in shapes
    ],
    asks=[(large_pool(*case, 1, 40, 191, 197), NATIVE) for case in LARGE_POOLS],
    asks_not=[
        *((large_pool(*case, 1, 16, 23, 29), NATIVE) for case in LARGE_POOLS),
        *((large_pool(*case, 1, 40, 191, 197), ("thumbv7em",)) for case in LARGE_POOLS),
    ],
)
OTHER_POOLS = Sweep(
    "other pools",
    arrays=("normal",),
    natively=[
        # the nearest place that is there may be none of a window's
        *(
            Pool(op, (1, 24, 12, 19), kernel, 1, pad, apart, layout)
            for layout in (LAST, PLANES)
            for op in OPS
            for pad in (1, 2, 0)
            for kernel, apart in (((3, 3), (2, 2)), ((2, 3), (3, 1)))
        ),
        Pool("average_pool", (2, 33, 9, 10), 3, (2, 1), 1, layout=LAST, counts=True),
        *(
            Pool("max_pool", shape, 3, (1, 2), 1, layout=layout, dtype=dtype)
            for layout, shape in ((LAST, (1, 70, 9, 40)), (PLANES, (1, 3, 9, 140)))
            for dtype in ("u8", "i8", "i32", "f64", "f16")
        ),
    ],
)
# Of planes: width, kernel, stride, dilation, pads before and after. What padding is for a maximum
# is not 0.
LINES = [
    *((8, 2, 2, 1, (0, 0)), (9, 2, 2, 1, (0, 0)), (17, 3, 1, 1, (1, 1)), (33, 3, 2, 1, (1, 0))),
    *((40, 5, 1, 1, (2, 2)), (35, 3, 1, 2, (2, 1)), (64, 3, 3, 1, (0, 1)), (7, 7, 1, 1, (3, 3))),
    *((21, 9, 2, 1, (4, 4)), (70, 2, 2, 1, (0, 0))),
]
BELOW_ZERO = Sweep(
    "pools of what is below zero",
    arrays=("negative",),
    # windows of many taps read lines in scratch
    natively=[Pool(op, (2, 24, 13, 19), 9, s, 4, layout=LAST) for op in OPS for s in (1, 2)],
    interpreted=[
        (Pool(op, (1, 1, k + 1, width), k, (1, s), (a, a, b, b), (1, apart)), V3 + ARM)
        for op in OPS
        for width, k, s, apart, (a, b) in LINES
    ],
)


def dense(extents: tuple[int, ...], kernel: Any, stride: Any, apart: Any, pads: Any) -> Conv:
    sizes = (3, 3, *extents)
    return Conv(
        *(sizes, kernel, stride, pads), members=1, weights=PLANES, apart=apart, is_image=True
    )


# Pads on any side, steps and distances along all axes, and rows of many blocks.
PADDED: list[Window] = [
    *(((40, 37), (3, 3), ONES, ONES, ALL), ((19, 70), (5, 3), (2, 3), (1, 2), (2, 0, 1, 3))),
    ((9, 33), (3, 7), (1, 4), (2, 1), (0, 3, 0, 3)),
    ((8, 21), (2, 4), (3, 2), (1, 3), (1, 0, 0, 5)),
    *(((6, 200), (1, 3), ONES, ONES, (0, 1, 0, 1)), ((75,), (9,), (2,), (1,), (4, 4))),
    *(((30, 3), (3, 3), ONES, ONES, ALL), ((31, 27), (9, 7), ONES, (1, 2), (4, 6, 3, 5))),
    ((40, 45), (7, 8), (2, 3), (2, 1), (6, 4, 5, 7)),
    ((11, 1030), (5, 5), ONES, ONES, (2, 2, 2, 2)),
    ((7, 9, 19), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1,) * 6),
    ((5, 8, 11), (2, 5, 5), (1, 1, 1), (3, 1, 1), (2, 2, 2, 1, 2, 2)),
]
PADDED_PLANES = Sweep(
    "padded planes",
    natively=[
        *(dense(*window) for window in PADDED),
        *(
            Pool(op, (2, 3, *extents), kernel, stride, pads, apart, end="relu")
            for op in OPS
            for extents, kernel, stride, apart, pads in PADDED
        ),
    ],
    interpreted=[
        (dense((k + 2, width), k, (1, s), (1, apart), (a, a, b, b)), V3)
        for width, k, s, apart, (a, b) in LINES[2:7]
    ],
)
# Rows past the end read nothing where only lines are padded.
PADDED_LINES = Sweep(
    "padded lines",
    interpreted=[
        (case, V2 + V4 + ARM)
        for sizes, kernel, stride, pad in [((16, 16, 5, 13), (3, 1), 1, (1, 0, 1, 0))]
        for case in (
            *(
                Conv(sizes, kernel, stride, pad, LAST, LAST, DEPTHWISE, members=1, **more)
                for more in ({}, {"dtype": "u8", "more": "pad_value = 3"})
            ),
            Conv(sizes, kernel, 1, pad, LAST, LAST, PLANES, dtype="u8", more="pad_value = 3"),
            *(Pool(op, (1, *sizes[1:]), kernel, 1, pad, layout=LAST) for op in OPS),
        )
    ],
)

WINDOWS = (
    *(GROUPED_PLANES, STRIDED_POINTS, ASKED_PLANES, GROUPED, PLANE_WINDOWS, PLANES_HERE),
    *(LONG_ENDS, LARGE_PLANES, MEMBERS, OPEN_MEMBERS, STORED_BY_PLANES, CHANNELS_IN_LANES),
    *(TAPS_IN_SCRATCH, CHANNELS_LAST, TAP_SUMS, OTHER_TAP_SUMS, POOLS, OTHER_POOLS),
    *(BELOW_ZERO, PADDED_PLANES, PADDED_LINES),
)
