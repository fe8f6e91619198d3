"""A line of text as a picture, drawn with a 5x7 bitmap font and numpy alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bitmap_font import blurred, glyphs_of

HEIGHT, WIDTH = 48, 192
MAX_LETTERS = 10
# Thin strokes, twice blurred, are closest to what a camera makes of print.
SCALE_Y, SCALE_X, BLUR_TIMES = 5, 3, 2


def draw_line(text: str) -> NDArray[np.float32]:
    """Black on white, [48, 192], values from 0 (ink) to 255 (paper).

    Raises:
        ValueError: the text is empty, too long, or has a character that the font lacks.
    """
    if not 0 < len(text) <= MAX_LETTERS:
        raise ValueError(f"{len(text)} characters, expected 1 to {MAX_LETTERS}")
    glyphs = glyphs_of(text)
    ink = np.kron(glyphs, np.ones((SCALE_Y, SCALE_X), np.float32))
    picture = np.zeros((HEIGHT, WIDTH), np.float32)
    top, left = (HEIGHT - ink.shape[0]) // 2, (WIDTH - ink.shape[1]) // 2
    picture[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    for _ in range(BLUR_TIMES):
        picture = blurred(picture)
    return 255 * (1 - picture)


def to_terminal(picture: NDArray[np.float32]) -> str:
    """The picture in characters, one for 3 columns and 6 rows of pixels."""
    cells = picture.reshape(HEIGHT // 6, 6, WIDTH // 3, 3).mean(axis=(1, 3))
    shades = np.array(list("@%#*+=-. "))
    levels = (cells / 256 * len(shades)).astype(int)
    return "\n".join("".join(shades[row]).rstrip() for row in levels)
