"""A change for each rule of a vocabulary that breaks it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np

from aot.link.flatbuffer import read_structure
from aot.link.pattern_tables import encode_cuts
from aot.link.vocabulary import IDENTIFIER, encode_vocabulary
from aot.text.vocabulary import ALPHABET, Cut, byte_alphabet
from tests.support.vocabularies import byte_vocabulary, replacements

Change = Callable[[Any], None]


def with_table(change: Change) -> bytes:
    """The bytes of a small vocabulary after a change of its table."""
    table = read_structure(encode_vocabulary(byte_vocabulary()), IDENTIFIER, "Vocabulary")
    change(table)
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(table.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _put(**fields: Any) -> Change:
    def change(table: Any) -> None:
        for name, value in fields.items():
            assert hasattr(table, name)
            setattr(table, name, value)

    return change


def _cut(name: str, count: int) -> Change:
    return lambda table: setattr(table, name, getattr(table, name)[:count])


OF_RUNS = "Vocabulary.character_map must be ascending runs of characters, and characters"
RUNS = [
    [65, 65],
    [66, 65, 1],
    [65, 70, 97, 70, 71, 1],
    [65, 0x110000, 97],
    [65, 66, 0xD7FF],
    [65, 66, 0x10FFFF],
    [65, 65, 0xFFFFFFFE],
    [0, 70, 0xFFFFFFF0],
]
CUTS = encode_cuts((Cut("a"), Cut("b")))
# Words of those, and what may not be there: of the head, and of the first stage, which is behind a
# block and its index.
DAMAGE = [(0, 0), (0, 9), (1, 0), (1, 4), (2, 0), (3, 0), (4, 3)]
DAMAGE += [
    (6 + 1 + 64 + at, value) for at, value in ((0, 1), (1, 4), (2, 1), (3, 1), (3, 4), (4, 9))
]

BREAKS: dict[str, list[Change]] = {
    "Vocabulary.token_count must be greater than 0, with a text for each token": [
        _put(tokenCount=0),
        _put(tokenCount=259),
    ],
    **{
        f"Vocabulary.{name} must be -1 or a token": [_put(**{name: 258}), _put(**{name: -2})]
        for name in ("bos", "eos", "unknown")
    },
    "Vocabulary.end_tokens must be tokens": [_put(endTokens=[1, 258])],
    "Vocabulary.prefix_is_raw must be 0 or 1": [_put(prefixIsRaw=2)],
    "Vocabulary.prefix_tokens must be tokens": [_put(prefixTokens=[1, 258])],
    "Vocabulary.symbol_ends must be fewer than 2^21": [
        _put(symbolEnds=np.zeros(1 << 21, np.uint32), lookup=np.zeros(1 << 22, np.uint32))
    ],
    "Vocabulary.token_types must be one for each token": [_cut("tokenTypes", 257)],
    "Vocabulary.token_scores must be one for each token, or none where the scheme needs none": [
        _cut("tokenScores", 257),
        _put(tokenScores=None, scheme=2),
    ],
    "Vocabulary.token_scores must be finite": [
        _put(tokenScores=[0] * 257 + [0x7F800000]),
        _put(tokenScores=[0xFFC00000] + [0] * 257),
    ],
    "Vocabulary.byte_symbols must be 256, or none where the scheme needs none": [
        _cut("byteSymbols", 255),
        _put(byteSymbols=None),
    ],
    "Vocabulary.byte_symbols must be symbols, or 2^32 - 1 for none": [
        _put(byteSymbols=[258] * 256),
        _put(byteSymbols=[*range(255), 2**32 - 2]),
    ],
    "Vocabulary.lookup must be a power of two, and more than there are symbols": [
        _cut("lookup", 511),
        _cut("lookup", 256),
        _put(lookup=None),
    ],
    (
        "Vocabulary.merges must be a power of two, and more than there are results; or none, "
        "with no results"
    ): [
        _put(merges=[0] * 6),
        _put(merges=[0, 0]),
        _put(merges=None),
        _put(merges=[0]),
    ],
    "Vocabulary.specials must be no more than there are tokens": [_put(specials=[0] * 259)],
    "Vocabulary.specials must be tokens whose texts are UTF-8": [
        _put(specials=[258]),
        _put(specials=[list(ALPHABET).index(byte_alphabet(b"\xc3"))]),
    ],
    (
        "Vocabulary.sorted_tokens must be no more than there are tokens, and some where the scheme "
        "is UNIGRAM"
    ): [
        _put(sortedTokens=[0] * 259),
        _put(scheme=3),
    ],
    (
        "Vocabulary.replacements must be SentencePiece's table with texts of UTF-8 of at most 1024 "
        "bytes, or none"
    ): [
        _put(replacements=table)
        for table in (
            b"\0",
            b"\0\0\0\0",
            replacements({}, b"\xf0\0"),
            replacements({}, b"a\0b"),
            replacements({}, b"")[:-1],
            replacements({}, b"a" * 1025 + b"\0"),
            b"\2\0\0\0aaa\0",
            (1 << 31).to_bytes(4, "little") + bytes(5),
        )
    ],
    "Vocabulary.cuts must be there where the scheme is WORD_PIECES": [_put(scheme=4, cuts=None)],
    OF_RUNS: [_put(characterMap=runs) for runs in RUNS],
    "Vocabulary.cuts must be tables of patterns that fill it, or none": [
        _put(cuts=list(CUTS[:-2])),
        _put(cuts=list(CUTS + b"\0\0")),
        _put(cuts=list(CUTS[:-1])),
        *(
            _put(cuts=list(CUTS[: 2 * at] + bytes([value, 0]) + CUTS[2 * at + 2 :]))
            for at, value in DAMAGE
        ),
    ],
}
