"""Parses the text form of dims, as printed by `str` or written by users."""

from __future__ import annotations

import re

from aot.ir.dims import (
    Dim,
    DimExpr,
    Extremum,
    FloorDiv,
    add,
    floor_divide,
    is_symbol_name,
    maximum,
    minimum,
    multiply,
    symbol,
)


def parse(text: str) -> Dim:
    """Parses a dim as printed by `str`.

    Raises:
        ValueError: `text` is not a dim.
    """
    return _Parser(text).parse()


class _Parser:
    """A recursive-descent parser for `+ - * // max(...) min(...)`, with bounded size and
    nesting."""

    MAX_LENGTH = 4096
    MAX_DEPTH = 32
    MAX_TERMS = 256

    def __init__(self, text: str) -> None:
        if len(text) > self.MAX_LENGTH:
            raise ValueError(f"dim {text[:40]!r}... is longer than {self.MAX_LENGTH} characters")
        self.text = text
        self.tokens = re.findall(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|//|\S", text)
        self.at = 0
        self.depth = 0

    def parse(self) -> Dim:
        value = self.expression()
        if self.at != len(self.tokens):
            raise self.unexpected("the end")
        return value

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def unexpected(self, wanted: str) -> ValueError:
        found = repr(self.peek()) if self.peek() else "the end"
        return ValueError(f"expected {wanted}, found {found} in dim {self.text[:80]!r}")

    def bounded(self, dim: Dim) -> Dim:
        if isinstance(dim, DimExpr) and (
            len(dim.terms) > self.MAX_TERMS or _nesting(dim) > self.MAX_DEPTH
        ):
            raise ValueError(f"dim {self.text[:80]!r} is too large")
        return dim

    def expression(self) -> Dim:
        self.depth += 1
        if self.depth > self.MAX_DEPTH:
            raise ValueError(f"dim {self.text[:80]!r} is nested too deeply")
        value = self.term()
        while self.peek() in ("+", "-"):
            sign = 1 if self.take("+") else -1
            self.at += sign < 0
            value = self.bounded(add(value, multiply(self.term(), sign)))
        self.depth -= 1
        return value

    def term(self) -> Dim:
        value = self.factor()
        while self.peek() in ("*", "//"):
            if self.take("*"):
                value = self.bounded(multiply(value, self.factor()))
                continue
            self.at += 1
            divisor = self.factor()
            if divisor == 0:
                raise ValueError(f"division by zero in dim {self.text[:80]!r}")
            value = self.bounded(floor_divide(value, divisor))
        return value

    def factor(self) -> Dim:
        sign = 1
        while self.take("-"):
            sign = -sign
        return multiply(self.primary(), sign)

    def primary(self) -> Dim:
        if self.take("("):
            value = self.expression()
            self.expect(")")
            return value
        word = self.peek()
        if word.isdecimal():
            self.at += 1
            if len(word) > 18:
                raise ValueError(f"number {word[:24]} is too large for a dim")
            return int(word)
        if not is_symbol_name(word):
            raise self.unexpected("a number or a name")
        self.at += 1
        if word in ("max", "min") and self.take("("):
            args = [self.expression()]
            while self.take(","):
                args.append(self.expression())
            self.expect(")")
            if len(args) > self.MAX_DEPTH:
                raise ValueError(f"dim {self.text[:80]!r} is too large")
            return self.bounded(maximum(*args) if word == "max" else minimum(*args))
        return symbol(word)

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.unexpected(repr(token))


def _nesting(dim: Dim) -> int:
    """The nesting depth of floor divisions and extrema in a dim."""
    if isinstance(dim, int):
        return 0
    deepest = 0
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                inner = max(_nesting(atom.numerator), _nesting(atom.denominator))
            elif isinstance(atom, Extremum):
                inner = max(map(_nesting, atom.args))
            else:
                continue
            deepest = max(deepest, inner + 1)
    return deepest
