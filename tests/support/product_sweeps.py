"""Sweeps of products in f32: register tiles, lanes along rows, columns or sums, and rows and
columns that are turned or copied first."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from aot.kernels.rules.products.packed_rows import LEAST_COLUMNS, MOST_BYTES, ROWS
from tests.support.executables import (
    DEPTHWISE,
    LAST,
    NATIVE,
    PACKED,
    PLANES,
    PLANNED,
    Conv,
    Ops,
    Product,
)
from tests.support.sweeps import Sweep

V4, V3, V2 = ("x86-64-v4",), ("x86-64-v3",), ("x86-64-v2",)
ARM, GPU = ("aarch64-generic",), ("vulkan-1.1",)
SIDES, ENDS = (PLANES, LAST), ("", "residual", "sigmoid")
FIRST, WIDEST = NATIVE[:1], NATIVE[-1:]
Size = tuple[int, int, int, int]


def conv(size: Size, kernel: int = 1, stride: int = 1, pad: int = 0, **more: Any) -> Conv:
    """A convolution of channels-last images into such."""
    return Conv(size, kernel, stride, pad, **{"left": LAST, "result": LAST} | more)


def into_last(size: Size, *window: int, **more: Any) -> Conv:
    return Conv(size, *window, result=LAST, **more)


# What becomes of a tile's sums: of few terms, of as many as are few, and of more; columns that
# vectors divide, and others.
TILE_ENDS = Sweep(
    "ends of tiles",
    on=WIDEST,
    natively=[
        *(
            conv((channels, outputs, 2, width), kernel, end=end)
            for channels, kernel in ((3, 1), (3, 3), (64, 1), (65, 1))
            for outputs in (1, 7, 16, 26, 33, 48)
            for end in ENDS
            for width in (5, 14)
        ),
        *(conv((12, 26, 3, 17), end="residual", opened=opened) for opened in ("W", "O", "HW")),
    ],
)
# Lanes go along rows where both sides have them side by side, or a vector has no use for the few
# columns; these are stored interleaved, the last tile has fewer rows.
ROWS_IN_LANES = Sweep(
    "rows of planes",
    ("products/planes",),
    natively=[
        *(
            Conv(size, left=left, end=end)
            for size in (
                *((1, 8, 9, 11), (4, 3, 5, 7), (3, 1, 16, 16), (20, 150, 4, 8)),
                *((64, 13, 8, 8), (130, 5, 3, 21), (7, 40, 1, 19)),
            )
            for left in SIDES
            for end in ENDS
        ),
        *(
            into_last((channels, outputs, height, 11), end=end)
            for outputs in range(1, 18)
            for channels, height in ((3, 7), (4, 5), (9, 12))
            for end in ENDS
        ),
        *(
            into_last((9, outputs, 6, 11), opened=opened)
            for outputs in (3, 6, 12)
            for opened in ("H", "HW", "COHW", "C")
        ),
        *(Conv((12, 20, 32, width), 3, pad=1) for width in (32, 30)),
        *(Conv((24, 3, 150, 151), result=result) for result in SIDES),
    ],
    interpreted=[
        *(
            (Conv(size, left=left, end="residual"), V3 + V4 + ARM)
            for size in ((3, 9, 3, 7), (2, 1, 4, 4))
            for left in SIDES
        ),
        *(
            (into_last((9, n, 5, 13), end="residual"), (*V3, *V4, *ARM, "wasm32", "armv7-neon"))
            for n in (2, 3, 6, 7, 13)
        ),
        *((into_last((9, n, 5, 13), end="residual"), ("riscv64-v",)) for n in (2, 7)),
    ],
    built=[
        *((Conv((64, 32, 8, 8)), V3), (into_last((64, 3, 8, 8)), V3)),
        (into_last((16, 12, 8, 8)), V4),
    ],
    others=[
        *((into_last(size), V4) for size in ((4, 12, 8, 8), (16, 15, 8, 8))),
        *((replace(Conv((64, 32, 8, 8)), **{k: LAST}), V3) for k in ("result", "left")),
        *((Conv((64, 32, 8, 8), *window), V3) for window in ((3,), (1, 2))),
        *((Conv((64, 32, 1, 5)), V3), (Conv((64, 32, 8, 8)), GPU)),
    ],
    asks=[(Conv((24, 3, 150, 151), result=result), NATIVE) for result in SIDES],
    asks_not=[
        *((Conv((24, 3, 20, 21), result=result), NATIVE) for result in SIDES),
        *((Conv((24, 3, 150, 151), result=result), ("thumbv7em",)) for result in SIDES),
    ],
)
OTHER_ROWS = Sweep(
    "rows of open planes, and of others",
    on=FIRST,
    natively=[
        *(
            Conv(size, left=left, opened=opened)
            for size in ((20, 150, 4, 8), (4, 3, 5, 7))
            for opened in ("H", "HW", "OHW", "COHW", "C")
            for left in SIDES
        ),
        # taps are no neighbours of planes, and strides skip some: lanes stay along the outputs
        *(
            Conv((5, 20, 6, 7), *window, left=left)
            for window in ((3, 1, 1), (3, 1, 0), (1, 2, 0))
            for left in SIDES
        ),
    ],
)
# Rows that lie apart are turned in registers: whole squares and what is left of them, tiles of one
# to three vectors, tiles that move back, and lines that a tile fills just.
TURNED = [
    *((4, 2, 4, 4), (5, 8, 9, 11), (8, 12, 4, 12), (13, 3, 5, 7), (16, 10, 8, 8), (24, 6, 7, 9)),
    *((31, 9, 6, 8), (40, 4, 16, 5), (130, 8, 3, 21), (260, 5, 4, 9), (20, 18, 5, 8)),
    (33, 20, 6, 11),
]
MANY = (64, 8, 8, 8)
TURNED_ROWS = Sweep(
    "turned rows",
    ("products/planes",),
    natively=[
        *(Conv(size, 1, 1, 0, LAST, to, end=e) for size in TURNED for to in SIDES for e in ENDS),
        *(
            Conv(size, 1, 2, 0, LAST, result)
            for size in ((24, 8, 3, 21), (6, 3, 2, 16))
            for result in SIDES
        ),
        *(
            Product((rows, terms, columns), end="relu")
            for columns in (2, 5, 8, 11, 18)
            for rows, terms in ((50, 24), (16, 100), (33, 9), (130, 200))
        ),
    ],
    interpreted=[
        (Conv(size, left=LAST, end="residual"), V3 + V4) for size in ((5, 3, 3, 7), (17, 2, 4, 5))
    ],
    built=[
        *((Conv((64 if n > 2 else 24, n, 8, 8), left=LAST), V4) for n in (2, 5, 8, 12, 17)),
        *((Product((50, 64, n), PLANNED), V4) for n in (5, 8)),
    ],
    others=[
        *((Conv(at, left=LAST), V4) for at in ((64, 16, 8, 8), (64, 24, 8, 8), (64, 8, 1, 15))),
        *((Conv(at, left=LAST), V4) for at in ((3, 8, 8, 8), (512, 4, 8, 8))),
        *((Conv(MANY, 3, left=LAST), V4), (Conv(MANY, left=LAST), ARM + GPU + V2)),
    ],
    asks=[(Conv(MANY, left=LAST), V4)],
    asks_not=[(Conv((64, 8, 4, 16), 1, 2, left=LAST), V4)],
)
OPEN_TURNED_ROWS = Sweep(
    "turned rows of open extents",
    on=FIRST,
    natively=[
        Conv(size, 1, 1, 0, LAST, result, opened=opened)
        for size in ((20, 6, 4, 8), (5, 3, 5, 7))
        for opened in ("H", "HW", "OHW", "COHW", "C")
        for result in SIDES
    ],
)


# A transposed right side in place, whose columns are turned in scratch.
def turned_columns(batch: int, *size: int, end: str = "") -> Product:
    rows, terms, columns = size
    return Product((rows, terms, columns), "{order=0:2:1}", (batch,), end=end)


TURNED_COLUMNS = Sweep(
    "turned columns",
    ("products/turned_columns",),
    natively=[
        turned_columns(*size, end=end)
        for size in (
            *((1, 16, 64, 64), (3, 49, 32, 49), (2, 49, 49, 32), (1, 8, 516, 100)),
            *((2, 30, 21, 17), (1, 9, 6, 33), (1, 70, 7, 16), (1, 20, 3, 40)),
            *((2, 5, 32, 32), (1, 12, 1100, 20)),
        )
        for end in ("", "tanh")
    ],
    interpreted=[
        (turned_columns(*size), V4 + ARM)
        for size in ((2, 9, 10, 19), (1, 8, 16, 32), (1, 9, 5, 37))
    ],
    built=[(turned_columns(3, 49, 32, 49), V4 + ARM)],
    others=[  # rows that serve nobody, more than scratch holds
        *((turned_columns(3, 4, 32, 49), V4), (turned_columns(1, 12, 1100, 20), V4)),
        (turned_columns(3, 49, 32, 49), GPU),
    ],
)


# Fewer columns than lanes: lanes go along the sum, or vectors are narrower.
def few(size: Size, *window: int, **more: Any) -> Conv:
    return Conv(size, *window, **{"left": LAST, "weights": LAST, "result": LAST} | more)


NARROW: list[tuple[Size, tuple[int, ...], str]] = [
    *(((32, 1, 9, 11), (3, 1, 1), ""), ((37, 3, 6, 7), (3, 1, 1), "residual")),
    *(((16, 2, 5, 17), (3, 2), ""), ((64, 4, 4, 6), (), "sigmoid"), ((19, 1, 3, 2), (5, 1, 2), "")),
    *(((40, 3, 8, 8), (), "residual"), ((130, 6, 5, 6), (), "residual"), ((770, 8, 3, 5), (), "")),
]
ALONG_SUMS = Sweep(
    "few columns",
    ("products/inner",),
    natively=[
        *(few(n, *w, end=e, result=to) for n, w, e in NARROW for to in SIDES),
        *(
            Product((rows, terms, columns), PLANNED)
            for columns in (2, 3, 4)
            for rows in (1, 2, 3, 33)
            for terms in (36, 132, 140, 143)
        ),
        *(
            Product((rows, terms, columns), PLANNED)  # a vector's lanes are seldom added up
            for columns, terms in ((5, 131), (6, 300), (7, 800), (8, 771))
            for rows in (50, 5)
        ),
        *(
            few(size, end="residual")
            for columns in (2, 3, 5, 8)
            for size in ((24, columns, 3, 7), (40, columns, 1, 2))
        ),
        *(
            Product((rows, terms, 1), PLANNED, dtype="u8")
            for rows, terms in ((50, 24), (7, 130), (1, 256), (16, 9))
        ),
    ],
    interpreted=[
        (few((9, 2, 2, 5), 3, 1, 1, result=PLANES), V3 + ARM),
        *((Product((rows, 36, n), PLANNED), ARM) for rows in (1, 2, 3) for n in (2, 3, 4)),
        *(
            (Product((rows, terms, 1), PLANNED, dtype="u8"), ("aarch64-linux-i8mm",))
            for rows, terms in ((50, 24), (7, 130), (1, 256), (16, 9))
        ),
    ],
    built=[
        *((few((32, 1, 9, 7), 3, 1, 1, result=PLANES), V3), (few((32, 2, 1, 2)), V3)),
        *((Product((50, 1024, n), PLANNED), V4) for n in (5, 8)),
        *((Product((1, k, n), PLANNED), V4 + V3) for n, k in ((2, 100), (4, 1280), (3, 1000))),
        (Product((1, 100, 2), PLANNED), ARM),
    ],
    others=[
        (Conv((32, 1, 9, 7), 3, 1, 1), V3),  # planes have no neighbours along the sum
        *((few(size), V3) for size in ((32, 5, 9, 11), (5, 2, 9, 11), (32, 1, 1, 2))),
        (few((32, 1, 9, 11), 3, 1, 1, result=PLANES), GPU),
    ],
)
OF_PLANES = [  # a plane of the sum after the other
    *(((6, 3, 9, 11), 3, 1, 1), ((17, 1, 20, 33), 5, 1, 2), ((5, 2, 7, 8), 3, 2, 1)),
    ((3, 4, 30, 5), 5, 1, 1),
]
FEW_OF_PLANES = Sweep(
    "few columns of planes, and open ones",
    on=V3 if V3[0] in NATIVE else FIRST,
    natively=[
        *(few(n, *w, end=e, opened=o) for n, w, e in NARROW[:3] for o in ("W", "HW", "C", "OCHW")),
        *(
            Product((rows, terms, columns), end="relu")
            for columns in (1, 2, 4)
            for rows, terms in ((50, 24), (7, 100), (16, 9))
        ),
        *(
            Conv(*case, end=end, weights=weights, opened=opened)
            for case in OF_PLANES
            for end in ENDS
            for weights in (PLANES, PACKED)
            for opened in ("", "W", "HW", "C")
        ),
    ],
    interpreted=[(Conv((2, 1, 4, 5), 3, 1, 1, end=end), ARM) for end in ENDS],
)
# Tiles prefetch the weights that come next while they multiply by others.
AHEAD = Sweep(
    "weights that come next",
    natively=[
        conv(size, end="residual", opened=opened)
        for size in ((256, 160, 5, 9), (64, 40, 3, 5), (128, 264, 1, 2))
        for opened in ("", "O", "HW", "CO", "CHWO")
    ],
    interpreted=[(conv((128, 160, 5, 6), opened="HW"), V3)],
    asks=[(conv((128, 160, 5, 6), opened="HW"), V3)],
    asks_not=[
        (conv((512, 512, 1, 2)), V4),  # few rows: they would ask for all that they multiply by
        (conv((64, 64, 56, 56)), V4),  # no more weights than the nearest caches hold
        (conv((100, 512, 7, 7)), V4),  # terms that pieces do not divide
    ],
)
# Lanes of neighbouring rows, whose scalars are loaded a vector at a time: rows of a line that
# tiles divide, and that leave some; windows that overlap, touch, or leave a gap.
ROWS_TOGETHER = Sweep(
    "scalars of rows in vectors",
    interpreted=[
        (case, ARM)
        for case in (
            *(
                into_last(size, 3, 1, pad)
                for size in ((6, 17, 1, 26), (3, 8, 2, 13), (4, 9, 2, 7), (2, 33, 1, 16))
                for pad in (0, 1)
            ),
            *(
                into_last(size, *window)
                for size in ((3, 17, 2, 41), (6, 40, 3, 16), (1, 8, 2, 7), (4, 24, 1, 23))
                for window in ((3, 2, 1), (3, 2), (2, 2), (5, 3, 2), (2, 3), (7, 4, 3))
            ),
            *(
                into_last(size, 3, stride, 1, opened=opened)
                for size, stride in (((6, 17, 2, 26), 1), ((3, 17, 5, 26), 2))
                for opened in ("W", "HW", "C")
            ),
            *(
                into_last((3, 16, 2, width), 3, 2, 1, end=end)
                for end in ("residual", "sigmoid")
                for width in (7, 8, 23, 41)
            ),
        )
    ],
)
# Rows are copied first, scalars of neighbouring ones side by side: terms by fours and eights,
# columns that tiles divide and that leave some; windows whose terms lie in several runs.
LEAST = conv((8, LEAST_COLUMNS, 4, 4))
MOST = MOST_BYTES // 4 // ROWS
COPIED = [
    *(
        conv(size, end=end)
        for size in ((8, 192, 4, 4), (12, 203, 4, 9), (4, 200, 3, 13))
        for end in ("residual", "sigmoid")
    ),
    *(conv(size, 3, s) for size in ((4, 192, 1, 16), (8, 196, 1, 8)) for s in (1, 2)),
]
NOT_COPIED = [
    replace(LEAST, sizes=(8, LEAST_COLUMNS - 1, 4, 4)),
    replace(LEAST, sizes=(8, LEAST_COLUMNS, 3, 3)),
    replace(LEAST, kernel=3, pad=1),
    *(replace(LEAST, opened=opened) for opened in ("HW", "O")),
    replace(LEAST, sizes=(MOST + 4, LEAST_COLUMNS, 4, 4)),
]
COPIED_ROWS = Sweep("copied rows", interpreted=[(case, ARM) for case in COPIED])


# Groups of any number of columns where lanes multiply, and channels that a shuffle brought: shares
# that the shuffle's groups divide, and that leave some; tiles that begin earlier.
def shuffled(share: int, columns: int, groups: int, size: int, *, is_added: bool = False) -> Ops:
    whole, made = share * groups, columns * groups
    moved, result = (f"f32[1, {n}, {size}, {size}]{LAST}" for n in (whole, made))
    attrs = "strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]"
    inputs = [
        f"f32[1, {share}, {groups}, {size}, {size}]{{order=0:3:4:2:1}}",
        *(f"f32[{made}, {share}, 1, 1]{DEPTHWISE}", f"f32[{made}]"),
    ]
    ops = [
        f"%x = reshape(%0) {{ shape = [1, {whole}, {size}, {size}] }} : {moved}",
        f"%c = conv(%x, %1, %2) {{ {attrs}, group = {groups} }} : {result}",
        "relu(%c)",
    ]
    if is_added:
        inputs.append(result)
        ops[2:] = [f"%d = add(%c, %3) : {result}", "relu(%d)"]
    places = (2, 0, 0, *([2] if is_added else []), 3)
    return Ops(tuple(inputs), tuple(ops), result, bindings=places)


SHUFFLED = Sweep(
    "shuffled groups",
    interpreted=[
        *(
            (shuffled(share, 8, groups, 3), ARM)
            for share, groups in product((4, 15, 17, 18, 32, 34, 47), (2, 4))
        ),
        *(
            (shuffled(16, columns, 2, 4, is_added=is_added), ARM)
            for columns in (2, 8, 11, 12, 13, 20, 24, 27, 28, 34, 36, 45, 68)
            for is_added in (False, True)
        ),
    ],
)
# Columns are planes, whose lines are stored in parts.
ACROSS = Sweep(
    "results across",
    natively=[
        Conv((20, *size), kernel, 1, kernel // 2, LAST, end="residual", opened=opened)
        for size in ((17, 3, 5), (40, 2, 20), (16, 4, 32), (33, 32, 32), (5, 7, 7))
        for kernel in (1, 3)
        for opened in ("", "OW")
    ],
)

PRODUCTS = (
    *(TILE_ENDS, ROWS_IN_LANES, OTHER_ROWS, TURNED_ROWS, OPEN_TURNED_ROWS, TURNED_COLUMNS),
    *(ALONG_SUMS, FEW_OF_PLANES, AHEAD, ROWS_TOGETHER, COPIED_ROWS, SHUFFLED, ACROSS),
)
