"""A page with lines of text, drawn with a bitmap font; some lines stand on their head."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bitmap_font import blurred, glyphs_of

# Three times blurred, strokes are as soft as a camera makes those of print.
SCALE_Y, SCALE_X, BLUR_TIMES, MARGIN = 5, 4, 3, 8
STEP, INDENT = 88, 60  # pixels from a line to the next, and to where every second one begins
MAX_LETTERS = 24


def draw_page(lines: Sequence[str], turned: int = 1) -> NDArray[np.float32]:
    """Black on white, values from 0 (ink) to 255 (paper); sides are multiples of 32 pixels.

    Args:
        turned: the number of the line that stands on its head.

    Raises:
        ValueError: there is no line, a line is empty or too long, or the font lacks a character.
    """
    for line in lines:
        if len(line) > MAX_LETTERS:
            raise ValueError(f"{line!r} has {len(line)} characters, expected 1 to {MAX_LETTERS}")
    inks = [_ink(line) for line in lines]
    if not inks:
        raise ValueError("there is no line to draw")
    width = max(ink.shape[1] for ink in inks) + 2 * INDENT
    page = np.zeros((-(-(STEP * len(inks) + 32) // 32) * 32, -(-width // 32) * 32), np.float32)
    for number, ink in enumerate(inks):
        top, left = 32 + STEP * number, 32 + INDENT * (number % 2)
        placed = ink[::-1, ::-1] if number == turned else ink
        page[top : top + ink.shape[0], left : left + ink.shape[1]] = placed
    return 255 * (1 - page)


def _ink(line: str) -> NDArray[np.float32]:
    ink = np.kron(glyphs_of(line), np.ones((SCALE_Y, SCALE_X), np.float32))
    ink = np.pad(ink, MARGIN)
    for _ in range(BLUR_TIMES):
        ink = blurred(ink)
    return ink
