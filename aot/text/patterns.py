"""Regular expressions that text is cut by before its parts become tokens: their syntax.

Owns what a pattern may say; `aot.link.pattern_tables` makes tables of it for the runtime. The
syntax is that of Oniguruma as far as tokenisers use it: sets with `&&` and `\\p{...}`, groups,
`(?i:...)`, lookahead, greedy, lazy and possessive repetition, `$` and `\\z`. What matches is the
first alternative that does, as with backtracking.
"""

from __future__ import annotations

from typing import NoReturn

from aot.base.records import dataclass
from aot.errors import UnsupportedError
from aot.text import characters
from aot.text.characters import CharSet

_MOST_DEPTH = 32  # groups and sets inside each other
_MOST_REPEATS = 4  # repetitions of each other, without a group between
_MOST_COUNT = 1024  # of a repetition that is bounded
_MOST_CHARACTERS = 10_000


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    members: CharSet


@dataclass(frozen=True)
class Sequence:
    """Parts one behind the other; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """The first of several that matches."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part `least` to `most` times, None: without end; as often as possible, or as seldom."""

    part: Node
    least: int
    most: int | None
    is_lazy: bool = False


@dataclass(frozen=True)
class Ahead:
    """Nothing, where a part matches what follows, or does not."""

    part: Node
    is_negative: bool = False


Node = Chars | Sequence | Choice | Repeat | Ahead


def parse_pattern(pattern: str) -> Node:
    """The syntax tree of a regular expression.

    Raises:
        UnsupportedError: it says what is not known here, or is no regular expression.
    """
    if len(pattern) > _MOST_CHARACTERS:
        raise UnsupportedError("the pattern is not supported:", [f"{len(pattern)} characters"])
    parser = _Parser(pattern)
    found = parser.choice(is_folded=False, depth=0)
    if parser.at < len(pattern):
        parser.fail("a parenthesis that closes nothing")
    return found


def first_set(node: Node) -> CharSet:
    """The characters that what a node matches may begin with."""
    match node:
        case Chars():
            return node.members
        case Repeat():
            return first_set(node.part)
        case Choice():
            return characters.union([first_set(part) for part in node.parts])
        case Sequence():
            found = []
            for part in node.parts:
                found.append(first_set(part))
                if not may_be_empty(part):
                    break
            return characters.union(found)
    return characters.nothing()


def may_be_empty(node: Node) -> bool:
    """Whether a node may match no characters."""
    match node:
        case Chars():
            return False
        case Repeat():
            return node.least == 0 or may_be_empty(node.part)
        case Choice():
            return any(may_be_empty(part) for part in node.parts)
        case Sequence():
            return all(may_be_empty(part) for part in node.parts)
    return True


_ESCAPES = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "f": "\f",
    "0": "\0",
    "a": "\a",
    "e": "\x1b",
}
_CLASSES = {"s": characters.spaces, "w": characters.of_words}
_END = Ahead(Chars(characters.everything()), is_negative=True)
_LINE_END = Choice((_END, Ahead(Chars(characters.of_character("\n")))))


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        shown = self.pattern if len(self.pattern) <= 200 else self.pattern[:197] + "..."
        raise UnsupportedError(
            "the pattern is not supported:", [f"{what}, at {self.at} of {shown!a}"]
        )

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        """Whether a text is next, which is then behind."""
        is_next = self.peek(text)
        self.at += len(text) if is_next else 0
        return is_next

    def next(self, what: str) -> str:
        if self.at >= len(self.pattern):
            self.fail(f"an end inside {what}")
        self.at += 1
        return self.pattern[self.at - 1]

    def choice(self, *, is_folded: bool, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            self.fail("groups that are nested too deep")
        parts = [self.sequence(is_folded=is_folded, depth=depth)]
        while self.take("|"):
            parts.append(self.sequence(is_folded=is_folded, depth=depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def sequence(self, *, is_folded: bool, depth: int) -> Node:
        parts: list[Node] = []
        possessive: list[int] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            part, is_possessive = self.repeated(self.atom(is_folded, depth))
            if is_possessive:
                possessive.append(len(parts))
            parts.append(part)
        if possessive:
            self.check_possessive(parts, frozenset(possessive), depth)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def check_possessive(self, parts: list[Node], possessive: frozenset[int], depth: int) -> None:
        """Refuses possessive repetitions, by their places in a sequence, that are not what the
        greedy ones are."""
        following, is_end = characters.nothing(), True  # of the parts behind
        for number in reversed(range(len(parts))):
            part = parts[number]
            own = first_set(part)
            if number in possessive:
                assert isinstance(part, Repeat)
                is_one = isinstance(part.part, Chars) and not (is_end and depth > 0)
                if not is_one or own & following:
                    self.fail("a possessive repetition of what may be behind it too")
            is_optional = may_be_empty(part)
            following = own | following if is_optional else own
            is_end = is_end and is_optional

    def repeated(self, part: Node) -> tuple[Node, bool]:
        """(a part with its repetition, whether that is possessive)."""
        is_possessive = False
        depth = 0
        while (counts := self.counts()) is not None:
            if isinstance(part, Ahead):
                self.fail("a repetition of nothing")
            depth += 1
            if depth > _MOST_REPEATS:
                self.fail("repetitions that are nested too deep")
            is_lazy = self.take("?")
            is_possessive = not is_lazy and self.take("+")
            part = Repeat(part, *counts, is_lazy)
        return part, is_possessive

    def counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("?", (0, 1)), ("*", (0, None)), ("+", (1, None))):
            if self.take(sign):
                return counts
        if not self.peek("{"):
            return None
        end = self.pattern.find("}", self.at)
        least, comma, most = self.pattern[self.at + 1 : max(end, 0)].partition(",")
        is_count = least.isascii() and least.isdigit() and (most.isdigit() or not most)
        if not is_count or not most.isascii():
            self.fail("a brace that is no count")
        if max(len(least), len(most)) > len(str(_MOST_COUNT)):
            self.fail("such a count")
        found = int(least), int(most) if most else None if comma else int(least)
        if max(found[0], found[1] or 0) > _MOST_COUNT or (found[1] or found[0]) < found[0]:
            self.fail("such a count")
        self.at = end + 1
        return found

    def atom(self, is_folded: bool, depth: int) -> Node:
        character = self.next("a pattern")
        match character:
            case "(":
                return self.group(is_folded, depth)
            case "[":
                return Chars(self.bracket(is_folded, depth))
            case ".":
                return Chars(~characters.of_character("\n"))
            case "$":
                return _LINE_END
            case "\\" if self.take("z"):
                return _END
            case "\\":
                found = self.escape()
            case "^" | "*" | "+" | "?":
                self.fail(f"{character!r}")
            case _:
                found = characters.of_character(character)
        return Chars(characters.with_cases(found) if is_folded else found)

    def group(self, is_folded: bool, depth: int) -> Node:
        is_ahead = is_negative = False
        if self.take("?i:"):
            is_folded = True
        elif self.take("?=") or self.take("?!"):
            is_ahead, is_negative = True, self.pattern[self.at - 1] == "!"
        elif not self.take("?:") and self.peek("?"):
            self.fail("a group of this kind")
        found = self.choice(is_folded=is_folded, depth=depth + 1)
        if not self.take(")"):
            self.fail("a group without its end")
        return Ahead(found, is_negative) if is_ahead else found

    def bracket(self, is_folded: bool, depth: int) -> CharSet:
        """A set behind its `[`."""
        if depth > _MOST_DEPTH:
            self.fail("sets that are nested too deep")
        is_negative = self.take("^")
        whole = characters.everything()
        own: list[CharSet] = []
        is_begin = True
        while is_begin or not self.take("]"):
            if self.take("&&"):
                whole &= characters.union(own)
                own = []
            elif self.peek("[:"):
                self.fail("a set by name")
            elif self.take("["):
                own.append(self.bracket(is_folded, depth + 1))
            else:
                own.append(self.member(is_folded))
            is_begin = False
        whole &= characters.union(own)
        return ~whole if is_negative else whole

    def member(self, is_folded: bool) -> CharSet:
        """A character of a set, a class, or a range."""
        first = self.one_of_set()
        is_range = self.peek("-") and not self.peek("-]") and not self.peek("-[")
        low = first.single()
        if not is_range or low is None:
            return characters.with_cases(first) if is_folded else first
        self.at += 1
        last = self.one_of_set()
        high = last.single()
        if high is None or high < low:
            self.fail("such a range")
        found = characters.of_ranges([(low, high)])
        return characters.with_cases(found) if is_folded else found

    def one_of_set(self) -> CharSet:
        character = self.next("a set")
        return self.escape() if character == "\\" else characters.of_character(character)

    def escape(self) -> CharSet:
        r"""What is behind a `\`."""
        character = self.next("an escape")
        if character in "pP":
            return self.property_set(character == "P")
        if character in "dD":
            found = characters.of_property("Nd")
            assert found is not None
            return ~found if character == "D" else found
        if character.lower() in _CLASSES:
            found = _CLASSES[character.lower()]()
            return ~found if character.isupper() else found
        if character in "xu":
            return self.code_point(character)
        if character in _ESCAPES:
            return characters.of_character(_ESCAPES[character])
        if character.isalnum():
            self.fail(f"the escape \\{character}")
        return characters.of_character(character)

    def property_set(self, is_negative: bool) -> CharSet:
        if not self.take("{"):
            self.fail("a property without braces")
        end = self.pattern.find("}", self.at)
        name = self.pattern[self.at : max(end, self.at)]
        is_negative ^= name.startswith("^")
        found = characters.of_property(name.removeprefix("^"))
        if found is None:
            self.fail(f"the property {name[:32]!r}")
        self.at = end + 1
        return ~found if is_negative else found

    def code_point(self, kind: str) -> CharSet:
        if self.take("{"):
            end = self.pattern.find("}", self.at)
            digits = self.pattern[self.at : max(end, self.at)]
            self.at = end + 1
        else:
            digits = self.pattern[self.at : self.at + (4 if kind == "u" else 2)]
            self.at += len(digits)
        try:
            return characters.of_character(chr(int(digits, 16)))
        except (ValueError, OverflowError):
            self.fail("an escape of no character")
