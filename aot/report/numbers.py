"""Formats numbers and names for the pages of reports."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable

from aot.base.records import dataclass

_BYTES = ("B", "kB", "MB", "GB", "TB")
_COUNTS = ("", " k", " M", " G", " T", " P")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
TIMES = "\N{MULTIPLICATION SIGN}"
LONGEST_NAME = 120


@dataclass(frozen=True)
class Figure:
    """A number together with its text."""

    value: float
    text: str


def count(value: float) -> Figure:
    """A count as text, such as 1,234."""
    return Figure(value, f"{value:,.0f}")


def size(value: float) -> Figure:
    """A size in bytes as text, such as 1.23 MB; a kB is 1000 bytes."""
    return Figure(value, _scaled(value, _BYTES, whole=True))


def amount(value: float, unit: str = "") -> Figure:
    """A number with a unit prefix, such as 1.23 G."""
    return Figure(value, _scaled(value, _COUNTS, whole=True) + unit)


def milliseconds(value: float) -> Figure:
    """A time as text with three significant digits, in a unit from nanoseconds to minutes."""
    if value <= 0:
        return Figure(value, "0 ms")
    if value < 1e-3:
        return Figure(value, f"{1e6 * value:.3g} ns")
    if value < 1:
        return Figure(value, f"{_digits(1e3 * value)} µs")
    return Figure(value, f"{_digits(value)} ms" if value < 1e3 else f"{_digits(value / 1e3)} s")


def seconds(value: float) -> Figure:
    """A time in seconds, formatted like `milliseconds`."""
    return milliseconds(1e3 * value)


def ratio(value: float, whole: float) -> Figure:
    """The ratio as a percentage, such as 34.5 %."""
    part = value / whole if whole else 0.0
    return Figure(part, f"{100 * part:.1f} %")


def _scaled(value: float, units: tuple[str, ...], *, whole: bool) -> str:
    step = 0
    while abs(value) >= 999.5 and step + 1 < len(units):
        value /= 1000
        step += 1
    digits = f"{value:,.0f}" if whole and step == 0 and value == int(value) else _digits(value)
    unit = units[step]
    return f"{digits} {unit}" if unit and not unit.startswith(" ") else f"{digits}{unit}"


def _digits(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0"
    exponent = int(f"{value:.2e}".split("e")[1])  # once rounded
    places = max(0, 2 - exponent)
    return f"{value:,.{places}f}"


def readable(text: str) -> str:
    """Text with characters that HTML cannot contain replaced: control characters and surrogates."""
    if text.isprintable():
        return text
    return "".join(_REPLACED if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs")


def extents(dims: Iterable[object]) -> str:
    """A shape as text, such as 1 x 3 x 224 x 224."""
    return f" {TIMES} ".join(map(str, dims))


def short(text: str) -> str:
    """A name shortened in the middle to a readable length."""
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[: LONGEST_NAME // 3]} … {text[-LONGEST_NAME // 2 :]}"
