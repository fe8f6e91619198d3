"""Contractions of integers whose weights lie in groups, as the plan for a target has them.

Sizes, layouts and dtypes are swept; the operands are extremes as well as random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.ir.interpreter.interpreter import run
from tests.support.executables import LAST, PLANES, PLANNED, Array, Conv, Product

EXTREMES = ("random", "least", "most", "extremes")
U8, I8, I16 = "u8", "i8", "i16"


def _attrs(max_weight: int, pad_value: int | None = None) -> dict[str, Any]:
    padded = "" if pad_value is None else f", pad_value = {pad_value}"
    return {"more": f"max_weight = {max_weight}{padded}", "largest": max_weight}


def conv(
    left: str,
    channels: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    pad_value: int = 0,
    layout: str = LAST,
    dilation: int = 1,
    group: int = 1,
    max_weight: int = 128,
    is_padded: bool = True,
) -> Conv:
    """Of an image of 6 by 7 places, in the layout."""
    pad = dilation * (kernel // 2) if is_padded else 0
    sizes = (channels, filters, 6, 7)
    more = {"apart": dilation, "group": group, "dtype": left, "is_image": True}
    known = {"weights": PLANNED, **more, **_attrs(max_weight, pad_value)}
    return Conv(sizes, kernel, stride, pad, layout, PLANES, **known)


def matmul(left: str, rows: int, depth: int, columns: int, max_weight: int = 128) -> Product:
    return Product((rows, depth, columns), PLANNED, dtype=left, **_attrs(max_weight))


CASES: dict[str, Conv | Product] = {
    "three-channels": conv(U8, 3, 20, pad_value=113),
    "four-channels": conv(I8, 4, 5, pad_value=-128),
    "uneven": conv(U8, 37, 33, pad_value=255),
    "dense": conv(U8, 19, 16, pad_value=7, layout=PLANES),
    "pointwise": conv(I8, 70, 40, kernel=1),
    "in-place": conv(U8, 72, 40, kernel=1),
    "in-place-strided": conv(U8, 24, 100, kernel=1, stride=2),
    "in-place-windows": conv(U8, 4, 20, stride=2, is_padded=False),
    "in-place-dilated": conv(U8, 8, 33, dilation=2, is_padded=False),
    "strided": conv(U8, 16, 100, kernel=1, stride=2),
    "dilated": conv(U8, 8, 17, stride=2, dilation=2, pad_value=1),
    "wide": conv(I16, 9, 18, pad_value=-300),
    "groups": conv(U8, 15, 51, group=3, pad_value=9),
    "groups-strided": conv(I8, 36, 32, kernel=1, stride=2, group=4),
    "groups-of-words": conv(I8, 8, 34, group=2, pad_value=-128),
    "groups-dilated": conv(U8, 70, 22, dilation=2, group=2, pad_value=255),
    "groups-wide": conv(I16, 22, 40, kernel=1, group=2, pad_value=-300),
    "row": matmul(U8, 1, 300, 33),
    "rows": matmul(I8, 17, 519, 16),
    "columns": matmul(U8, 5, 5, 200),
    "short": matmul(I16, 29, 3, 48),
    "narrow": conv(U8, 37, 33, pad_value=255, max_weight=64),
    "narrow-signed": conv(I8, 37, 33, pad_value=-128, max_weight=127),
    "narrow-groups": conv(U8, 15, 51, group=3, pad_value=9, max_weight=64),
    "narrow-groups-signed": conv(I8, 36, 32, stride=2, group=4, max_weight=127),
    "narrow-rows": matmul(U8, 17, 519, 40, max_weight=64),
    "narrow-rows-signed": matmul(I8, 17, 519, 40, max_weight=127),
    "narrow-columns": matmul(U8, 5, 5, 40, max_weight=64),
    "narrow-columns-signed": matmul(I8, 5, 6, 40, max_weight=127),
    "not-narrow": matmul(U8, 9, 64, 40, max_weight=65),
}


@dataclass(frozen=True)
class Requantized(Conv):
    """A convolution of bytes whose sums become bytes again, by a scale a channel."""

    def operands(self) -> list[tuple[str, int]]:
        filters = self._channels()[3]
        return [*super().operands(), (f"f32[{filters}, 1, 1]", 0), ("u8[]", 0)]

    def body(self) -> tuple[list[str], str]:
        (sums,), type = super().body()
        wide, narrow = type.replace("i32", "f32"), type.replace("i32", "u8")
        return [
            sums.replace("%y", "%s", 1),
            *(f"%f = cast(%s) {{ to = f32 }} : {wide}", f"%m = mul(%f, %3) : {wide}"),
            f"%y = quantize(%m, _, %4) {{ to = u8 }} : {narrow}",
        ], narrow

    def arrays(self, how: str = "small", seed: int = 5) -> list[Array]:
        """The scales spread the sums over bytes."""
        plain = Conv(**vars(self))
        made = plain.arrays(how, seed)
        (sums,) = run(plain.function(), [*made])
        spread = 100 / max(1, int(np.abs(sums).max()))
        rng = np.random.default_rng(seed)
        scales = (spread * rng.uniform(0.5, 1.5, (sums.shape[1], 1, 1))).astype(np.float32)
        return [*made, scales, np.array(120, np.uint8)]


def requantized(
    size: tuple[int, int, int],
    group: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    *,
    is_padded: bool = True,
    layout: str = LAST,
    last: str = LAST,
) -> Requantized:
    """Channels, height and width are the size; `layout` and `last` are the image's and the
    result's."""
    pad = dilation * (kernel // 2) if is_padded else 0
    channels, height, width = size
    weights = "{order=2:3:1:0}" if group == channels else PLANNED
    more: dict[str, Any] = {"dtype": U8, "is_image": True, "apart": dilation, "group": group}
    sizes = (channels, filters, height, width)
    known = {**more, "more": "pad_value = 113"}
    return Requantized(sizes, kernel, stride, pad, layout, last, weights, **known)
