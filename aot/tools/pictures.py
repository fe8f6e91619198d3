"""Reads pictures as calibration data: common file formats to the array that a model's input takes.

Owns their size, the order of their dims and their numbers, none of which it guesses: what a model
was trained on is not in its file. Needs Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import CompileError, one_line
from aot.ir.types import Array
from aot.tools.engine_errors import first_line

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
LAYOUTS = ("nchw", "nhwc")
# of a picture's side: a damaged file may claim any
MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class Pictures:
    """How pixels become numbers: `(pixel - mean) * scale`, for pixels from 0 to 255.

    Attributes:
        mean, scale: one number, or one for each channel: red, green, blue.
        layout: "nchw" or "nhwc".
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    layout: str


def pictures_of(
    mean: Sequence[float] | None, scale: Sequence[float] | None, layout: str | None
) -> Pictures | None:
    """The conversion of pictures that options describe; None if no option mentions pictures.

    Raises:
        CompileError: one of them is missing, or has another form.
    """
    given = {"mean": mean, "scale": scale, "layout": layout}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if mean is None or scale is None or layout is None:
        raise CompileError(f"pictures need a {missing[0]}, too: {NEEDED}")
    if layout not in LAYOUTS:
        raise CompileError(f"layout is {one_line(layout)}, expected {' or '.join(LAYOUTS)}")
    for name, numbers in (("mean", mean), ("scale", scale)):
        if len(numbers) not in (1, 3) or not np.isfinite(numbers).all():
            raise CompileError(f"{name} has {len(numbers)} numbers, expected 1 or 3 finite ones")
    return Pictures(tuple(mean), tuple(scale), layout)


NEEDED = (
    "mean and scale, of (pixel - mean) * scale with pixels from 0 to 255, and layout, nchw or nhwc"
)


def array_of(file: Path, how: Pictures, dims: tuple[int | None, ...]) -> Array:
    """A picture as f32 with an input's dims and a batch of 1. It is resized if its height and width
    are known, and grey if there is one channel.

    Raises:
        CompileError: Pillow is missing, the file is no picture, or the input is none.
    """
    if find_spec("PIL") is None:
        raise CompileError("pictures need Pillow: pip install 'aotc[pictures]'")
    from PIL import Image

    order = how.layout.index("c"), how.layout.index("h"), how.layout.index("w")
    if len(dims) != 4 or dims[0] not in (1, None):
        raise CompileError(f"{file}: the input has rank {len(dims)}, expected one picture's 4")
    channels, height, width = (dims[d] for d in order)
    if channels not in (1, 3):
        shown = "an open number of" if channels is None else channels
        raise CompileError(
            f"{file}: the input has {shown} channels in layout {how.layout}, expected 1 or 3"
        )
    for name, numbers in (("mean", how.mean), ("scale", how.scale)):
        if len(numbers) > channels:
            raise CompileError(f"{name} has {len(numbers)} numbers, but the input has 1 channel")
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise CompileError(f"{file}: {opened.width}x{opened.height} pixels are too many")
            picture: Any = opened.convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise CompileError(f"{file} is no picture that Pillow reads: {first_line(error)}") from None
    size = width or picture.width, height or picture.height
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.float32).reshape(size[1], size[0], channels)
    mean, scale = (np.asarray(numbers, np.float32) for numbers in (how.mean, how.scale))
    found = (pixels - mean) * scale
    if how.layout == "nchw":
        found = found.transpose(2, 0, 1)
    return np.ascontiguousarray(found[None])
