"""Drawings in a report, as inline SVG: the arena, and a roofline.

Everything is written through elements, never as text, so that no name can end one. Colours are
classes of the page's stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from aot.base.records import dataclass
from aot.report.numbers import readable, short, size

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 64, 14, 14, 36
MOST_BOXES = 3000

Scale = Callable[[float], float]  # from what is shown to where it is drawn


@dataclass(frozen=True)
class Box:
    """A rectangle in the arena's drawing: a range of memory in use for some positions.

    Attributes:
        first, last: positions, both included.
        kind: `buffer`, `state` or `scratch`.
        number: that is written on it.
        what: said of it.
    """

    first: int
    last: int
    offset: int
    size_bytes: int
    kind: str
    number: int | None
    what: str


@dataclass(frozen=True)
class Point:
    """A dispatch in a roofline; `share` is its fraction of the total time."""

    intensity: float
    gflops: float
    share: float
    what: str


class _Picture:
    """An SVG drawing that scales to the width of the page."""

    def __init__(self, height: int, label: str, kind: str) -> None:
        self.height = height
        self.root = Element(
            "svg",
            {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "class": kind},
        )
        self.root.set("aria-label", label)

    def add(self, tag: str, text: str = "", **attributes: float | str) -> Element:
        """Adds an element. In names of attributes `_` stands for a hyphen, and `class_` for
        class."""
        made = SubElement(
            self.root,
            tag,
            {
                name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else _at(value)
                for name, value in attributes.items()
            },
        )
        made.text = readable(text) or None
        return made

    def text(self, x: float, y: float, text: str, class_: str = "", anchor: str = "start") -> None:
        self.add("text", text, x=x, y=y, class_=class_ or "axis", text_anchor=anchor)

    def markup(self) -> Markup:
        # tostring has escaped what is not ours
        return Markup(tostring(self.root, encoding="unicode"))


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def arena(
    boxes: Sequence[Box], positions: int, ticks: Sequence[tuple[int, int]], lower_bound: int
) -> Markup:
    """A drawing of the arena's use: time from left to right, addresses from the bottom up.

    Args:
        ticks: position and number of each dispatch.
        lower_bound: bytes that live at once at least; 0 where that is not known.
    """
    total = max((b.offset + b.size_bytes for b in boxes), default=0) or 1
    height = 380
    picture = _Picture(height, "where the arena's buffers lie, and when", "arena")
    floor, room = height - BOTTOM, height - BOTTOM - TOP
    step = (WIDTH - LEFT - RIGHT) / max(positions, 1)

    def x(position: float) -> float:
        return LEFT + position * step

    def y(address: float) -> float:
        return floor - address * room / total

    for mark in _round_steps(total, 5):
        picture.add("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(mark), y2=y(mark), class_="grid")
        picture.text(LEFT - 6, y(mark) + 4, size(mark).text, anchor="end")
    drawn = sorted(boxes, key=lambda b: -b.size_bytes * (b.last - b.first + 1))[:MOST_BOXES]
    for box in drawn:
        _draw_box(picture, box, x, y, step)
    _draw_live(picture, boxes, positions, x, y)
    if lower_bound:
        at = y(lower_bound)
        picture.add("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="bound")
        text = f"lower bound, {size(lower_bound).text}"
        picture.text(WIDTH - RIGHT - 4, max(at - 4, TOP - 3), text, "bound-name", "end")
    every = max(1, math.ceil(len(ticks) / 24))
    for position, number in ticks[::every]:
        picture.text(x(position + 0.5), floor + 15, str(number), anchor="middle")
    picture.text(x(positions / 2), height - 4, "dispatch", anchor="middle")
    return picture.markup()


def _draw_box(picture: _Picture, box: Box, x: Scale, y: Scale, step: float) -> None:
    left, right = x(box.first), x(box.last + 1)
    top, bottom = y(box.offset + box.size_bytes), y(box.offset)
    kind = f"{box.kind} b{(box.number or 0) % 6}" if box.kind == "buffer" else box.kind
    rect = picture.add(
        "rect", x=left, y=top, width=right - left, height=max(bottom - top, 0.5), class_=kind
    )
    needed = f"needed at {box.first}" if box.first == box.last else f"{box.first} to {box.last}"
    SubElement(rect, "title").text = readable(
        f"{short(box.what)}: {box.size_bytes:,} bytes at {box.offset:,}, {needed}"
    )
    if box.number is not None and right - left > 22 and bottom - top > 13:
        picture.text((left + right) / 2, (top + bottom) / 2 + 4, str(box.number), "name", "middle")


def _draw_live(picture: _Picture, boxes: Sequence[Box], positions: int, x: Scale, y: Scale) -> None:
    """Draws the number of live bytes, of buffers and state, at each position."""
    changes = [0] * (positions + 1)
    for box in boxes:
        if box.kind != "scratch":
            changes[box.first] += box.size_bytes
            changes[min(box.last + 1, positions)] -= box.size_bytes
    points = []
    for position, live in enumerate(list(accumulate(changes))[:positions]):
        points += [f"{_at(x(position))},{_at(y(live))}", f"{_at(x(position + 1))},{_at(y(live))}"]
    picture.add("polyline", points=" ".join(points), class_="live")


def _round_steps(total: float, most: int) -> list[float]:
    """Round numbers from 0 to `total`, about `most` of them, for an axis."""
    step = 10.0 ** math.floor(math.log10(max(total, 1)))
    for factor in (0.1, 0.2, 0.5, 1.0):
        if total / (step * factor) <= most:
            step *= factor
            break
    return [n * step for n in range(int(total / step) + 1)]


def roofline(
    points: Sequence[Point], peak_gflops: float | None, memory_gbs: float | None
) -> Markup | None:
    """A roofline chart: dispatches by flops per byte and per second, below the machine's limits; a
    point's area is its share of the time. None if there are no points."""
    points = [p for p in points if p.intensity > 0 and p.gflops > 0]
    if not points:
        return None
    height = 400
    picture = _Picture(height, "arithmetic by bytes moved, of each dispatch", "roofline")
    most = max([p.gflops for p in points] + ([peak_gflops] if peak_gflops else []))
    xs = _decades([p.intensity for p in points], at_least=2)
    ys = _decades([p.gflops for p in points] + [most], at_least=2)
    floor = height - BOTTOM

    def x(value: float) -> float:
        return LEFT + _log_part(value, xs) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return floor - _log_part(value, ys) * (floor - TOP)

    for power in range(xs[0], xs[1] + 1):
        at = x(10.0**power)
        picture.add("line", x1=at, x2=at, y1=TOP, y2=floor, class_="grid")
        picture.text(at, floor + 15, _power(power), anchor="middle")
    for power in range(ys[0], ys[1] + 1):
        at = y(10.0**power)
        picture.add("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid")
        picture.text(LEFT - 6, at + 4, _power(power), anchor="end")
    if peak_gflops and memory_gbs:
        _draw_roof(picture, peak_gflops, memory_gbs, xs, ys, x, y)
    for point in sorted(points, key=lambda p: -p.share):
        radius = 3 + 26 * math.sqrt(max(point.share, 0))
        dot = picture.add(
            "circle", cx=x(point.intensity), cy=y(point.gflops), r=radius, class_="dot"
        )
        SubElement(dot, "title").text = readable(point.what)
    picture.text(WIDTH / 2, height - 4, "operations a byte", anchor="middle")
    picture.text(LEFT, TOP - 3, "Gop/s")
    return picture.markup()


def _draw_roof(
    picture: _Picture,
    peak: float,
    memory: float,
    xs: tuple[int, int],
    ys: tuple[int, int],
    x: Scale,
    y: Scale,
) -> None:
    """Draws the roof: the memory bound, up to the point where arithmetic limits."""
    low, high = 10.0 ** xs[0], 10.0 ** xs[1]
    knee = min(max(peak / memory, low), high)
    start = max(low, 10.0 ** ys[0] / memory)
    corners = [(start, min(start * memory, peak)), (knee, min(knee * memory, peak))]
    corners.append((high, min(high * memory, peak)))
    line = " ".join(f"{_at(x(a))},{_at(y(b))}" for a, b in corners)
    picture.add("polyline", points=line, class_="roof")
    picture.text(x(high) - 4, y(peak) - 5, f"{peak:.0f} Gop/s", "roof-name", "end")


def _decades(values: Sequence[float], at_least: int) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)) + 1e-9)
    high = math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + at_least)


def _log_part(value: float, decades: tuple[int, int]) -> float:
    low, high = decades
    return min(max((math.log10(value) - low) / (high - low), 0.0), 1.0)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"
