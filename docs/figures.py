"""Draws the README's and the site's figures, and the tables of the same numbers.

    python docs/figures.py [--check]

Owns docs/figures/*.svg, in light and dark. The numbers are those of benchmarks/peers/results.json,
which `benchmarks/peers/report.py --summary` writes; nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "figures"
SIZES = ROOT / "docs" / "internals" / "runtime-sizes.md"
RESULTS = ROOT / "benchmarks" / "peers" / "results.json"

NAMES = {
    "aotc": "aotc",
    "ov": "OpenVINO",
    "ort": "ONNX Runtime",
    "ncnn": "ncnn",
    "mnn": "MNN",
}
PANELS = {"steady": "one run", "cold": "cold start", "memory": "peak memory"}
UNITS = {"steady": ("ms", 3), "cold": ("ms", 1), "memory": ("MB", 1), "artifact": ("MB", 2)}
TITLES = {**PANELS, "artifact": "file"}


@dataclass(frozen=True)
class Palette:
    """The colours of a figure; the same as those of report pages."""

    ink: str
    soft: str
    line: str
    tile: str
    own: str
    other: str


PALETTES = {
    "light": Palette("#1c1c1a", "#5f5e5a", "#dddcd8", "#f3f2ef", "#2a78d6", "#b9b8b3"),
    "dark": Palette("#eeede9", "#a9a8a2", "#4b4b47", "#2a2a28", "#4f94e6", "#6d6c67"),
}
TIMES = "\N{MULTIPLICATION SIGN}"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


# ---- numbers ----


@cache
def results() -> Mapping[str, Any]:
    """What was measured: the medians of one interleaved run."""
    found: Mapping[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def mean_ratio(metric: str, peer: str) -> tuple[float, int]:
    """(geometric mean of the peer's figure over aotc's, the number of models it is over): of the
    models that both compute right."""
    found = results()
    ratios = [
        of[peer] / of["aotc"]
        for model, of in found["metrics"][metric].items()
        if {peer, "aotc"} <= set(found["right"][model]) and peer in of
    ]
    return math.exp(statistics.fmean(map(math.log, ratios))), len(ratios)


def conditions() -> str:
    """One sentence: machine, date, versions, and what a figure is."""
    found = results()
    versions = found["versions"]
    engines = ", ".join(f"{NAMES[p]} {versions[p]}" for p in NAMES if p in versions)
    thread = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
    machine = f"{found['cpu']} with AVX-512, a virtual machine with {found['cpus']} cores"
    rounds = f"medians of {found['rounds']} interleaved rounds of fresh processes"
    return f"{found['date']}, {machine}, {thread}, float32; {engines}; {rounds}."


def peers_table() -> str:
    """The README's table: each engine's geometric means over aotc's."""
    found = results()
    models = len(found["right"])
    rows = [
        f"| times aotc, mean of {models} models | one run | cold start | peak memory | library |",
        "|---|--:|--:|--:|--:|",
        f"| **aotc** | 1 | 1 | 1 | {library_text('aotc')} |",
    ]
    for peer, name in NAMES.items():
        if peer == "aotc":
            continue
        cells = [f"{mean_ratio(metric, peer)[0]:.1f} {TIMES}" for metric in PANELS]
        count = mean_ratio("steady", peer)[1]
        note = "" if count == models else f" ({count} models)"
        rows.append(f"| {name}{note} | {' | '.join(cells)} | {library_text(peer)} |")
    return "\n".join(rows)


def library_text(peer: str) -> str:
    """The size of an engine's library, where it was installed as one; aotc's is what an application
    is larger by, from the page of sizes."""
    if peer == "aotc":
        return f"{application_bytes() / 1e6:.2f} MB"
    size = results()["library_bytes"].get(peer)
    return "-" if size is None else f"{size / 1e6:.0f} MB"


def application_bytes() -> int:
    """Bytes of the smallest application with threads, from the page of sizes."""
    row = re.search(r"^\| an application, threads \|.*", SIZES.read_text(encoding="utf-8"), re.M)
    assert row is not None
    return int(row[0].split("|")[4].replace(",", ""))


def metric_tables() -> str:
    """A table of each metric, a row a model; wrong results are in brackets."""
    found = results()
    parts = []
    for metric, (unit, digits) in UNITS.items():
        lines = [f"### {TITLES[metric].capitalize()}, {unit}", ""]
        lines.append(f"| model | {' | '.join(NAMES.values())} |")
        lines.append(f"|---|{'--:|' * len(NAMES)}")
        for model, of in found["metrics"][metric].items():
            right = found["right"][model]
            cells = [_cell(of.get(peer), peer in right, digits) for peer in NAMES]
            lines.append(f"| {model} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(value: float | None, is_right: bool, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if is_right else f"({value:.{digits}f})"


# ---- drawing ----


class Drawing:
    """An SVG image; positions and sizes are in pixels."""

    def __init__(self, width: int, height: int, title: str, palette: Palette) -> None:
        self.size = width, height
        self.palette = palette
        self.parts = [f"<title>{escape(title)}</title>"]

    def box(self, x: float, y: float, width: float, height: float, fill: str, r: int = 3) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}"'
        self.parts.append(f'<rect {place} rx="{r}" fill="{fill}"/>')

    def text(
        self, x: float, y: float, text: str, fill: str, size: int = 13, style: str = ""
    ) -> None:
        place = f'x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}"'
        self.parts.append(f"<text {place}{style}>{escape(text)}</text>")

    def arrow(self, x: float, y: float, length: float) -> None:
        tip = x + length
        self.parts.append(
            f'<path d="M{x:g} {y:g}H{tip:g}m-7 -5l7 5l-7 5" fill="none" '
            f'stroke="{self.palette.soft}" stroke-width="1.5"/>'
        )

    def svg(self) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="{FONT}">'
        )
        return "\n".join([head, *self.parts, "</svg>", ""])


BOLD, END, MIDDLE = ' font-weight="600"', ' text-anchor="end"', ' text-anchor="middle"'


def peers_figure(palette: Palette) -> str:
    """Bars of each engine's geometric mean over aotc's, a panel for each metric."""
    title = "Time of a run, cold start and peak memory of engines, relative to aotc"
    drawing = Drawing(860, 216, title, palette)
    width, gap, names, row = 214, 22, 116, 30
    for column, (metric, what) in enumerate(PANELS.items()):
        left = names + column * (width + gap)
        drawing.text(left, 20, what, palette.ink, 14, BOLD)
        ratios = {p: 1.0 if p == "aotc" else mean_ratio(metric, p)[0] for p in NAMES}
        longest = max(ratios.values())
        for number, (peer, ratio) in enumerate(ratios.items()):
            top = 36 + number * row
            length = (width - 62) * ratio / longest
            drawing.box(left, top, length, 18, palette.own if peer == "aotc" else palette.other)
            label = "1" if peer == "aotc" else f"{ratio:.1f} {TIMES}"
            drawing.text(left + length + 7, top + 14, label, palette.ink, 13)
            if column == 0:
                weight = BOLD if peer == "aotc" else ""
                drawing.text(names - 12, top + 14, NAMES[peer], palette.ink, 13, END + weight)
    found = results()
    note = (
        f"shorter is better; geometric means of up to {len(found['right'])} models, "
        f"{found['cpu']}, one thread, {found['date']}"
    )
    drawing.text(names, 206, note, palette.soft, 12)
    return drawing.svg()


RUNTIME = "runtime"
# What a column of the flow has: a title, and boxes of lines.
FLOW: Sequence[tuple[str, Sequence[str]]] = (
    ("a model", ("ONNX", "PyTorch", "TFLite", "GGUF")),
    ("aotc compile", ("graph passes", "fused kernels", "LLVM, SPIR-V", "memory plan")),
    ("one .aotm file", ("machine code", "shaders", "weights, once", "program")),
    (RUNTIME, ("map", "verify", "bind", "run")),
    ("a device", ("phones", "boards", "browsers", "desktops")),
)


def flow_figure(palette: Palette) -> str:
    """The way of a model to a device, from left to right."""
    drawing = Drawing(860, 190, "A model is compiled to one file, which a runtime runs", palette)
    width, gap = 138, 42
    for column, (title, lines) in enumerate(FLOW):
        left = 1 + column * (width + gap)
        own = 0 < column < len(FLOW) - 1
        title = f"{application_bytes() / 1e3:.0f} KB {title}" if title == RUNTIME else title
        drawing.text(
            left + width / 2, 18, title, palette.own if own else palette.ink, 14, MIDDLE + BOLD
        )
        for number, line in enumerate(lines):
            top = 30 + number * 39
            drawing.box(left, top, width, 32, palette.tile, 6)
            drawing.text(left + width / 2, top + 21, line, palette.ink, 13, MIDDLE)
        if column:
            drawing.arrow(left - gap + 8, 104, gap - 16)
    return drawing.svg()


FIGURES: Mapping[str, Callable[[Palette], str]] = {"peers": peers_figure, "flow": flow_figure}


def drawn() -> Iterator[tuple[Path, str]]:
    """(path, content) of each figure in each palette."""
    for name, draw in FIGURES.items():
        for shade, palette in PALETTES.items():
            yield FOLDER / f"{name}-{shade}.svg", draw(palette)


def main() -> int:
    """Writes the figures, or with --check says which are out of date (exit status 1)."""
    parser = argparse.ArgumentParser(description="Draws the figures of the documentation.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    status = 0
    for path, made in drawn():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if made == old:
            continue
        if options.check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: python docs/figures.py\n")
            status = 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
