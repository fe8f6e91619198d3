"""The vocabulary of a language model, as a compile carries it from a frontend to the module file.

Owns what a vocabulary is, whatever format it came in; `gguf` and `tokenizer_json` read it. How it
lies in a module is `aot.link.vocabulary`'s, and encoding is the runtime's (runtime/text).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import IntEnum, IntFlag
from functools import cached_property

from aot.base.records import dataclass
from aot.errors import CompileError

NO_SYMBOL = (1 << 32) - 1  # where a byte has no symbol
MOST_SYMBOLS = 1 << 21  # fewer than these: a pair of symbols and its rank are 64 bits
MOST_SCORE = 3.4028234663852886e38  # the largest f32
MOST_REPLACEMENT = 1024  # bytes of what replaces a character
SPACE = "\u2581"  # how SentencePiece writes a space


class Scheme(IntEnum):
    """How text becomes tokens; the values are `Scheme` of module.fbs."""

    BYTE_MERGES = 0
    CHARACTER_MERGES = 1
    SCORED_MERGES = 2
    UNIGRAM = 3
    WORD_PIECES = 4
    LONGEST = 5


@dataclass(frozen=True)
class Cut:
    """A pattern by which text is cut before its parts become tokens: each match is a part, and
    what stands between two is one.

    Attributes:
        pattern: a regular expression (`aot.text.patterns`).
        drops_rest: what stands between matches becomes no tokens.
    """

    pattern: str
    drops_rest: bool = False


class SpacePrefix(IntEnum):
    """Where a space is put before text: values are those of `adds_space` in module.fbs. EACH is
    before each text between special tokens, FIRST only at the start; the others only where that
    does not begin with a space."""

    NONE = 0
    EACH = 1
    FIRST = 2
    EACH_WORD = 3
    FIRST_WORD = 4


class WholeParts(IntEnum):
    """The parts of a text for which merges are skipped if the whole part is a token. Values are
    those of `ignores_merges` in module.fbs."""

    NONE = 0
    ALL = 1
    OF_LINE_ENDS = 2


class TokenType(IntEnum):
    """The purpose of a token; values are those of module.fbs and of GGUF."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Strip(IntFlag):
    """White space that a special token takes along, beside its type."""

    NONE = 0
    LEFT = 16
    RIGHT = 32


SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a language model, and how text becomes tokens.

    Attributes:
        tokens: the text of each as the model's file writes it: with BYTE_MERGES, normal tokens are
            in the alphabet of `byte_alphabet`.
        types: of each token.
        scores: of each token, or none where the scheme needs none.
        merges: pairs of texts, the first one first.
        strips: white space that tokens take along, by their ids.
        cuts: by what text is cut that is merged, each in the parts of those before it.
        end_tokens: all that end a reply.
        replacements: of UNIGRAM, SentencePiece's table of characters and what replaces them, or
            b"" (`is_replacement_table`).
        character_map: of WORD_PIECES, the characters that become others
            (`aot.text.word_pieces.character_map`).
        chat_template: Jinja, as the model has it; "" where it has none.
        name: what the pre-tokeniser or the scheme is called in the model's file, for people.

    The flags are those of the table `Vocabulary` of module.fbs.

    Raises:
        CompileError: it contradicts itself.
    """

    scheme: Scheme
    tokens: tuple[str, ...] = field(repr=False)
    types: tuple[TokenType, ...] = field(repr=False)
    scores: tuple[float, ...] = field(default=(), repr=False)
    merges: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    strips: Mapping[int, Strip] = field(default_factory=dict, repr=False)
    cuts: tuple[Cut, ...] = ()
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    end_tokens: frozenset[int] = frozenset()
    adds_bos: bool = False
    adds_eos: bool = False
    adds_space: SpacePrefix | bool = SpacePrefix.NONE
    whole_parts: WholeParts = WholeParts.NONE
    escapes_spaces: bool = False
    trims_spaces: bool = False
    space_is_suffix: bool = False
    replacements: bytes = field(default=b"", repr=False)
    character_map: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    chat_template: str = field(default="", repr=False)
    name: str = ""

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not count:
            raise CompileError("the vocabulary has no tokens")
        if len(self.types) != count:
            raise CompileError(f"the vocabulary has {count} tokens and {len(self.types)} types")
        if self.scores and len(self.scores) != count:
            raise CompileError(f"the vocabulary has {count} tokens and {len(self.scores)} scores")
        if not self.scores and self.scheme in (Scheme.SCORED_MERGES, Scheme.UNIGRAM):
            raise CompileError("the vocabulary has no scores, which its scheme needs")
        if count >= MOST_SYMBOLS:
            raise CompileError(f"the vocabulary has {count} tokens, expected at most 2^21 - 1")
        named = {"bos": self.bos, "eos": self.eos, "unknown": self.unknown}
        named |= {f"end token {number}": i for number, i in enumerate(sorted(self.end_tokens))}
        for what, token in named.items():
            if token is not None and not 0 <= token < count:
                raise CompileError(f"the vocabulary's {what} is token {token} of {count}")
        _check_texts("token {}", self.tokens)
        _check_texts("merge {}", map("".join, self.merges))
        _check_texts("chat template", [self.chat_template])
        if "\0" in self.chat_template:
            raise CompileError("the vocabulary's chat template has a zero character")
        for number, score in enumerate(self.scores):
            if not abs(score) <= MOST_SCORE:
                raise CompileError(f"the vocabulary's token {number} has the score {score}")
        if not is_replacement_table(self.replacements):
            raise CompileError(
                "the vocabulary's replacements of characters are not a table of SentencePiece's "
                f"whose texts are UTF-8 of at most {MOST_REPLACEMENT} bytes"
            )

    def __len__(self) -> int:
        """The number of tokens: the extent of a model's logits, or less where these are padded."""
        return len(self.tokens)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The token of a text as the file writes it; of several with one text, the last."""
        return {text: i for i, text in enumerate(self.tokens)}

    @cached_property
    def specials(self) -> tuple[int, ...]:
        """Tokens that are found in text before it is cut, in the order of their ids."""
        return tuple(i for i, t in enumerate(self.types) if t in SPECIAL_TYPES and self.tokens[i])

    def text(self, token: int) -> bytes:
        """The bytes of a token's text; for SentencePiece as the file has them."""
        text = self.tokens[token]
        if self.scheme is Scheme.LONGEST and self.types[token] not in SPECIAL_TYPES:
            return unescaped(text)
        if self.scheme is Scheme.BYTE_MERGES and self.types[token] not in SPECIAL_TYPES:
            return alphabet_bytes(text) or text.encode()
        return text.encode()


def _check_texts(what: str, texts: Iterable[str]) -> None:
    """Raises a CompileError where a text has no UTF-8: it has half of a surrogate pair, as texts
    have that were read from other bytes."""
    own = list(texts)
    try:
        "".join(own).encode()
        return
    except UnicodeEncodeError:
        pass
    number = next(i for i, text in enumerate(own) if any("\ud800" <= c <= "\udfff" for c in text))
    raise CompileError(f"the vocabulary's {what.format(number)} is not UTF-8: {own[number][:64]!a}")


def is_replacement_table(data: bytes) -> bool:
    """Whether this is no table of SentencePiece's, b"", or one whose texts are UTF-8: the size in
    bytes of an array of 32-bit words, the array, and texts of at most 1024 bytes that each end with
    a zero byte. aot_is_replacement_table of runtime/text/replacements.c is the same."""
    if not data:
        return True
    size = int.from_bytes(data[:4], "little")
    texts = bytes(data[4 + size :])
    if len(data) < 4 or size % 4 or not texts.endswith(b"\0"):
        return False
    if max(map(len, texts.split(b"\0"))) > MOST_REPLACEMENT:
        return False
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    return True


def unescaped(text: str) -> bytes:
    """The bytes of a token of RWKV: with `\\t`, `\\n`, `\\r`, `\\xHH`, and other characters behind
    a backslash, which are themselves."""
    return re.sub(rb"(?s)\\(x[0-9a-fA-F]{2}|.)", _unescape, text.encode())


def _unescape(found: re.Match[bytes]) -> bytes:
    own = found[1]
    if len(own) == 3:
        return bytes([int(own[1:], 16)])
    return {b"t": b"\t", b"n": b"\n", b"r": b"\r"}.get(own, own)


def _alphabet() -> tuple[str, ...]:
    """GPT-2's characters for the 256 bytes (bytes_to_unicode of its encoder.py): printable bytes
    map to themselves, others to U+0100 and on.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(b) if b in printed else chr(next(others)) for b in range(256))


ALPHABET = _alphabet()
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def byte_alphabet(data: bytes) -> str:
    """Bytes in GPT-2's characters for them."""
    return "".join(ALPHABET[b] for b in data)


def alphabet_bytes(text: str) -> bytes | None:
    """The bytes that a text in GPT-2's characters encodes; None if it has other characters."""
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:
        return None
