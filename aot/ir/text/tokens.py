"""The tokenizer of the text form, with positions and the errors that name them.

Owns lexical rules only; `aot.ir.text.parser` knows the grammar.
"""

from __future__ import annotations

import json
import re

from aot.errors import CompileError

_HALF = re.compile("[\\ud800-\\udfff]")  # of a surrogate pair, which has no UTF-8
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|\#[^\n]*)
  | (?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
  | (?P<value>%(?:[A-Za-z_][A-Za-z0-9_.]*|[0-9]+))
  | (?P<float>[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)
  | (?P<int>[0-9]+)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<punct>->|==|//|[()\[\]{}<>,:=@^*+/-])
""",
    re.VERBOSE,
)
END = "end"


class Tokens:
    """A text split into tokens, with a current position.

    Attributes:
        kinds, texts, starts: kind, text and offset of each token; the last is of kind `END`.
        at: number of the token that is next.
    """

    def __init__(self, text: str, source: str = "") -> None:
        self.text = text
        self.source = source
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.starts: list[int] = []
        self.at = 0
        offset = 0
        while offset < len(text):
            match = _TOKEN.match(text, offset)
            if match is None:
                found = text[offset]
                raise self.error_at(
                    offset,
                    "a closing quote on the same line, found none"
                    if found == '"'
                    else f"a token, found {found!r}",
                )
            kind = match.lastgroup or ""
            if kind != "space":
                self.kinds.append(kind)
                self.texts.append(match.group())
                self.starts.append(offset)
            offset = match.end()
        self.kinds.append(END)
        self.texts.append("")
        self.starts.append(len(text))

    def error_at(self, offset: int, wanted: str) -> CompileError:
        return self._located(offset, f"expected {wanted}")

    def _located(self, offset: int, message: str) -> CompileError:
        before = self.text[:offset]
        line = before.count("\n") + 1
        column = offset - (before.rfind("\n") + 1) + 1
        prefix = f"{self.source}: " if self.source else ""
        return CompileError(f"{prefix}line {line}, column {column}: {message}")

    def expected(self, wanted: str, at: int | None = None) -> CompileError:
        """An error that `wanted` was expected at token `at` (default: the next one)."""
        at = self.at if at is None else at
        found = "the end of the text" if self.kinds[at] == END else repr(_short(self.texts[at]))
        return self.error_at(self.starts[at], f"{wanted}, found {found}")

    def error(self, message: str, at: int | None = None) -> CompileError:
        """An error, other than of syntax, about token `at` (default: the next one)."""
        return self._located(self.starts[self.at if at is None else at], message)

    @property
    def kind(self) -> str:
        return self.kinds[self.at]

    @property
    def word(self) -> str:
        """The text of the next token."""
        return self.texts[self.at]

    def peek(self, ahead: int = 1) -> str:
        """The text of a later token; empty past the end."""
        at = self.at + ahead
        return self.texts[at] if at < len(self.texts) else ""

    def is_punct(self, text: str) -> bool:
        return self.kind == "punct" and self.word == text

    def take(self, text: str) -> bool:
        """Consumes punctuation or a keyword if it is next; returns whether it was."""
        if self.kind not in ("punct", "word") or self.word != text:
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.expected(repr(text))

    def next(self, kind: str, wanted: str) -> str:
        """Consumes the next token, which must be of `kind`, and returns its text."""
        if self.kind != kind:
            raise self.expected(wanted)
        self.at += 1
        return self.texts[self.at - 1]

    def string(self, wanted: str = "a quoted string") -> str:
        """Consumes a string and returns its contents."""
        text = self.next("string", wanted)
        try:
            value = json.loads(text)
        except ValueError:
            raise self.error(f"string {_short(text)} has a wrong escape", self.at - 1) from None
        if _HALF.search(value):
            raise self.error(f"string {_short(text)} has half of a surrogate pair", self.at - 1)
        return str(value)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
