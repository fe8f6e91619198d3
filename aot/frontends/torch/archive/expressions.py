"""Parses symbolic sizes in files: calls of known functions on symbols and numbers.

The grammar is what sympy's `srepr` prints of sizes, and no more:

    expression = NAME "(" [argument {"," argument}] ")" | "true" | "false" | INTEGER
    argument   = expression | TEXT | NAME "=" ("True" | "False" | INTEGER)

Each function is built here from a table; nothing is evaluated as Python. Numbers, exponents, depth
and length are bounded, since sympy computes with numbers of any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
from torch.utils._sympy import functions

MOST_TEXT = 1 << 14  # characters of an expression
MOST_DEPTH = 64
MOST_INTEGER = 1 << 63
MOST_EXPONENT = 32

_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|(-?\d+)|'([^'\\]*)'|([(),=]))")
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,63}")
_ASSUMPTIONS = frozenset({"integer", "positive", "nonnegative", "real"})
_COMPARISONS = {
    "Equality": sympy.Equality,
    "Unequality": sympy.Unequality,
    "StrictLessThan": sympy.StrictLessThan,
    "StrictGreaterThan": sympy.StrictGreaterThan,
    "LessThan": sympy.LessThan,
    "GreaterThan": sympy.GreaterThan,
}
_COUNTS = {  # functions of torch, by how many arguments they take
    **dict.fromkeys(("FloorDiv", "CleanDiv", "CeilDiv", "Mod", "PythonMod"), 2),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv", "PowByNatural"), 2),
    **dict.fromkeys(("ToFloat", "Identity", "FloorToInt", "TruncToInt", "CeilToInt"), 1),
    **dict.fromkeys(("RoundToInt", "TruncToFloat"), 1),
    **dict.fromkeys(("ModularIndexing", "Where"), 3),
}
_ANY = 1 << 30
# Functions by name: what builds them, and how many arguments they take.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    **{name: (getattr(functions, name), count, count) for name, count in _COUNTS.items()},
    **{name: (build, 2, 2) for name, build in _COMPARISONS.items()},
    "Add": (sympy.Add, 1, _ANY),
    "Mul": (sympy.Mul, 1, _ANY),
    "Max": (functions.Max, 1, 64),
    "Min": (functions.Min, 1, 64),
    "Pow": (sympy.Pow, 2, 2),
    "And": (sympy.And, 0, 64),
    "Or": (sympy.Or, 0, 64),
    "Not": (sympy.Not, 1, 1),
    "floor": (sympy.floor, 1, 1),
    "ceiling": (sympy.ceiling, 1, 1),
}
Named = Callable[[str, dict[str, bool]], Any]  # the symbol of a name and its assumptions


class ExpressionError(Exception):
    """A text that is not a valid size expression."""


def expression(text: str, symbol: Named) -> Any:
    """The sympy expression that a text represents.

    Args:
        symbol: gives the symbol for a name and its assumptions.

    Raises:
        ExpressionError: it is none.
    """
    if len(text) > MOST_TEXT:
        raise ExpressionError(f"has {len(text)} characters, expected at most {MOST_TEXT}")
    try:
        return _Parser(text, symbol).whole()
    except (ExpressionError, MemoryError, RecursionError):
        raise
    except Exception as error:  # sympy's own checks have no common base
        raise ExpressionError(f"is no size: {error}") from error


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ExpressionError(f"is no size: {text[at : at + 20]!r} is not understood")
        at = found.end()
        kind = ("name", "integer", "text", "sign")[(found.lastindex or 1) - 1]
        yield kind, found[found.lastindex or 0]
    yield "end", ""


class _Parser:
    def __init__(self, text: str, symbol: Named) -> None:
        self._tokens = _tokens(text)
        self._symbol = symbol
        self._kind, self._text = next(self._tokens)

    def _next(self) -> str:
        text = self._text
        self._kind, self._text = next(self._tokens, ("end", ""))
        return text

    def _take(self, sign: str) -> None:
        if self._kind != "sign" or self._text != sign:
            raise ExpressionError(f"is no size: {self._text!r}, expected {sign!r}")
        self._next()

    def whole(self) -> Any:
        found = self._expression(0)
        if self._kind != "end" or not isinstance(found, sympy.Basic):
            raise ExpressionError(f"is no size: {self._text!r} behind its end")
        return found

    def _expression(self, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise ExpressionError(f"is nested more than {MOST_DEPTH} deep")
        if self._kind in ("integer", "text"):
            kind, text = self._kind, self._next()
            return text if kind == "text" else _integer(text)
        if self._kind != "name":
            raise ExpressionError(f"is no size: {self._text!r}, expected a function")
        name = self._next()
        if name in ("true", "false"):
            return sympy.true if name == "true" else sympy.false
        if name in ("True", "False"):
            return name == "True"
        if self._kind != "sign" or self._text not in "(=":
            raise ExpressionError(f"is no size: {name!r} is no function")
        arguments, options = self._arguments(depth)
        return self._called(name, arguments, options)

    def _arguments(self, depth: int) -> tuple[list[Any], dict[str, Any]]:
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        self._take("(")
        while not (self._kind == "sign" and self._text == ")"):
            if arguments or options:
                self._take(",")
            if self._kind == "name" and self._text in (*_ASSUMPTIONS, "precision"):
                name = self._next()
                self._take("=")
                options[name] = self._expression(depth + 1)
            else:
                arguments.append(self._expression(depth + 1))
        self._take(")")
        return arguments, options

    def _called(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        if name == "Symbol":
            if [type(a) for a in arguments] != [str] or not _SYMBOL.fullmatch(arguments[0]):
                raise ExpressionError("has a symbol without a name")
            if not set(options) <= _ASSUMPTIONS or any(
                type(v) is not bool for v in options.values()
            ):
                raise ExpressionError(f"has a symbol {arguments[0]!r} of unknown assumptions")
            return self._symbol(arguments[0], options)
        if name == "Float":
            return _float(arguments, options)
        if options:
            raise ExpressionError(f"is no size: {name} takes no {next(iter(options))!r}")
        if name in ("Integer", "Rational"):
            return _rational(name, arguments)
        if name not in _FUNCTIONS:
            raise ExpressionError(f"is no size: there is no function {name!r}")
        build, least, most = _FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            raise ExpressionError(f"is no size: {name} of {len(arguments)} arguments")
        if not all(isinstance(a, sympy.Basic) for a in arguments):
            raise ExpressionError(f"is no size: {name} of something else than sizes")
        if name == "Pow":
            _check_power(arguments[1])
        return _bounded(build(*arguments))


def _integer(text: str) -> int:
    if len(text) > len(str(MOST_INTEGER)) or abs(int(text)) > MOST_INTEGER:
        raise ExpressionError(f"has an integer of {len(text)} digits, expected 64 bits")
    return int(text)


def _rational(name: str, arguments: Sequence[Any]) -> Any:
    count = 1 if name == "Integer" else 2
    if [type(a) for a in arguments] != [int] * count or (count == 2 and arguments[1] == 0):
        raise ExpressionError(f"is no size: {name} of something else than integers")
    return sympy.Rational(*arguments)


def _float(arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    precision = options.get("precision", 53)
    if [type(a) for a in arguments] != [str] or set(options) > {"precision"} or precision != 53:
        raise ExpressionError("is no size: Float of something else than digits of a float64")
    try:
        number = float(arguments[0])
    except ValueError:
        raise ExpressionError(f"has a number {arguments[0][:20]!r}") from None
    return sympy.Float(number, precision=precision)


def _check_power(exponent: Any) -> None:
    if not exponent.is_Integer or abs(int(exponent)) > MOST_EXPONENT:
        raise ExpressionError(f"has an exponent that is no integer up to {MOST_EXPONENT}")


def _bounded(found: Any) -> Any:
    """Checks that a sympy expression has not grown beyond bounds, as powers of powers do; returns
    it.
    """
    for part in (found, *found.args):
        if part.is_Rational and max(abs(part.p), part.q) > MOST_INTEGER:
            raise ExpressionError("has a number of more than 64 bits")
        if part.is_Pow:
            _check_power(part.exp)
    if found in (sympy.zoo, sympy.nan):
        raise ExpressionError("is no number")
    return found
