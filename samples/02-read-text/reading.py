"""What stands between the three models of PP-OCR: boxes, crops, and letters, with numpy alone.

The steps and their numbers are those that the models were trained with, for lines that run across
the page; the models themselves also find lines that run askew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.float32]
Model = Callable[[Picture], Picture]

INK = 0.3  # of the detector's map: what may be text
CONFIDENCE = 0.5  # the least mean of a box that is text
MIN_PIXELS = 20
GROWTH = 1.6  # the detector finds the middle of lines; boxes grow by this over their perimeter
LINE_HEIGHT = 48  # what the other two models read
ORIENTATION_WIDTH = 192


@dataclass(frozen=True)
class Line:
    """A line of text: where it stands on the page, in pixels, and what it says."""

    top: int
    left: int
    bottom: int
    right: int
    text: str
    is_turned: bool


def read_page(
    page: Picture, detect: Model, orient: Model, recognise: Model, characters: Sequence[str]
) -> list[Line]:
    """The lines of a grey page, from top to bottom.

    Args:
        detect: f32[1, 3, H, W] to a map of text, f32[1, 1, H, W].
        orient: f32[N, 3, 48, 192] to f32[N, 2], upright and turned.
        recognise: f32[1, 3, 48, W] to a distribution over `characters` a step.
        characters: what the recogniser's classes mean; the first one is "nothing".
    """
    found: list[Line] = []
    for top, left, bottom, right in boxes_of(detect(to_input(page))[0, 0]):
        crop = page[top:bottom, left:right]
        width = max(LINE_HEIGHT, round(crop.shape[1] * LINE_HEIGHT / crop.shape[0]))
        line = resized(crop, LINE_HEIGHT, width)
        start = np.full((LINE_HEIGHT, ORIENTATION_WIDTH), 255, np.float32)
        start[:, :width] = line[:, :ORIENTATION_WIDTH]
        upright, turned = orient(to_input(start))[0]
        is_turned = bool(turned > upright)
        if is_turned:
            line = line[::-1, ::-1]
        text = spelled(recognise(to_input(line))[0], characters)
        found.append(Line(top, left, bottom, right, text, is_turned))
    return sorted(found, key=lambda each: (each.top, each.left))


def to_input(grey: Picture) -> Picture:
    """f32[1, 3, H, W] in -1..1 from a grey picture in 0..255."""
    return np.ascontiguousarray(np.repeat((grey / 127.5 - 1)[None, None], 3, axis=1), np.float32)


def resized(picture: Picture, height: int, width: int) -> Picture:
    """The picture in another size, each pixel from the four nearest."""
    (top, bottom, y), (left, right, x) = (
        _neighbours(old, new) for old, new in zip(picture.shape, (height, width), strict=True)
    )
    above = picture[top][:, left] * (1 - x) + picture[top][:, right] * x
    below = picture[bottom][:, left] * (1 - x) + picture[bottom][:, right] * x
    return np.asarray(above * (1 - y[:, None]) + below * y[:, None], np.float32)


def _neighbours(
    old: int, new: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For each new place the two old ones beside it, and how far it is on the way to the second."""
    places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    before = np.floor(places).astype(np.intp)
    return before, np.minimum(before + 1, old - 1), places - before


def boxes_of(probability: Picture) -> list[tuple[int, int, int, int]]:
    """Top, left, bottom and right of each connected area of text, grown to hold its letters."""
    found = []
    height, width = probability.shape
    for pixels in _areas(probability > INK):
        if len(pixels) < MIN_PIXELS or probability[tuple(pixels.T)].mean() < CONFIDENCE:
            continue
        (top, left), (bottom, right) = pixels.min(axis=0), pixels.max(axis=0) + 1
        tall, wide = bottom - top, right - left
        more = round(float(tall * wide * GROWTH / (2 * (tall + wide))))
        found.append(
            (
                max(int(top) - more, 0),
                max(int(left) - more, 0),
                min(int(bottom) + more, height),
                min(int(right) + more, width),
            )
        )
    return found


def _areas(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """The pixels of each area whose pixels touch along their sides."""
    left = set(zip(*(axis.tolist() for axis in np.nonzero(mask)), strict=True))
    areas = []
    while left:
        waiting = [left.pop()]
        area = []
        while waiting:
            y, x = waiting.pop()
            area.append((y, x))
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in left:
                    left.remove(near)
                    waiting.append(near)
        areas.append(np.array(area, np.intp))
    return areas


def spelled(steps: Picture, characters: Sequence[str]) -> str:
    """The text of a distribution a step: the likeliest, repeated ones once, "nothing" left out."""
    best = steps.argmax(axis=1)
    is_new = np.concatenate([[True], best[1:] != best[:-1]])
    return "".join(characters[int(n)] for n in best[is_new & (best != 0)])
