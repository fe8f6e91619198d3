"""Encodes and reads a vocabulary in a module file: a FlatBuffer that the runtime uses in place.

Owns the tables that encoding looks things up in, and the hashes by which they are found:
runtime/text/vocabulary.c has the same. The same vocabulary gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link import module_fbs as fbs
from aot.link.cut_layout import cut_count
from aot.link.flatbuffer import Malformed, read_structure
from aot.link.module_schema import RULES
from aot.link.pattern_tables import encode_cuts
from aot.link.template_code import TemplateCode
from aot.link.template_compiler import Unkept, compile_template
from aot.text.vocabulary import (
    ALPHABET,
    MOST_SYMBOLS,
    NO_SYMBOL,
    Scheme,
    Strip,
    TokenType,
    Vocabulary,
    alphabet_bytes,
    byte_alphabet,
)

IDENTIFIER = b"AOTV"
VERSION = 1

Words = NDArray[np.uint32]

_FLAGS = (
    *("adds_bos", "adds_eos", "adds_space", "ignores_merges", "escapes_spaces", "trims_spaces"),
    "space_is_suffix",
)
_MOST_STATE_BYTES = 1 << 30
_FREE = (1 << 64) - 1  # a slot of merges without one
_SYMBOL_BITS = MOST_SYMBOLS.bit_length() - 1


@dataclass(frozen=True)
class StoredPrefix:
    """A text that conversations begin with, and what programs keep that have read it.

    Attributes:
        text: the system message, or with `is_raw` text that prompts continue.
        tokens: that conversations begin with, whatever is said.
        states: by target of a variant: what a state file has behind its header.
    """

    text: str
    is_raw: bool
    tokens: tuple[int, ...]
    states: Mapping[str, bytes]

    def fields(self) -> dict[str, Any]:
        """The fields of the table that hold it."""
        return {
            "prefix": self.text,
            "prefixIsRaw": int(self.is_raw),
            "prefixTokens": _words(self.tokens),
            "prefixStates": [
                fbs.PrefixStateT(target, _vector(_bytes(state)))
                for target, state in self.states.items()
            ]
            or None,
        }


def encode_vocabulary(vocabulary: Vocabulary, prefix: StoredPrefix | None = None) -> bytes:
    """The bytes of the vocabulary segment.

    Raises:
        CompileError: merges make more symbols than a module holds.
        UnsupportedError: a pattern by which text is cut is not supported.
    """
    symbols = _Symbols(vocabulary)
    merges, results = _merges(vocabulary, symbols)
    texts = symbols.texts
    if len(texts) >= MOST_SYMBOLS:
        raise CompileError(f"the vocabulary has {len(texts)} symbols, expected at most 2^21 - 1")
    types = [t | vocabulary.strips.get(i, Strip.NONE) for i, t in enumerate(vocabulary.types)]
    code, refusal = chat_code(vocabulary)
    cuts = encode_cuts(vocabulary.cuts)
    table = fbs.VocabularyT(
        version=VERSION,
        scheme=vocabulary.scheme,
        tokenCount=len(vocabulary),
        bos=_id(vocabulary.bos),
        eos=_id(vocabulary.eos),
        unknown=_id(vocabulary.unknown),
        endTokens=_optional(_words(sorted(vocabulary.end_tokens))),
        addsBos=vocabulary.adds_bos,
        addsEos=vocabulary.adds_eos,
        addsSpace=int(vocabulary.adds_space),
        ignoresMerges=int(vocabulary.whole_parts),
        escapesSpaces=vocabulary.escapes_spaces,
        trimsSpaces=vocabulary.trims_spaces,
        spaceIsSuffix=vocabulary.space_is_suffix,
        symbolText=_vector(_bytes(b"".join(texts))),
        symbolEnds=_vector(_words(np.cumsum([len(t) for t in texts]))),
        tokenTypes=_vector(_bytes(bytes(types))),
        tokenScores=_optional(np.array(vocabulary.scores, np.float32).view(np.uint32)),
        byteSymbols=_optional(_words(symbols.of_bytes())),
        lookup=_vector(_lookup(texts, symbols.found)),
        merges=_optional(merges),
        mergeResults=_optional(results),
        specials=_optional(_words(_by_bytes(vocabulary.specials, texts))),
        sortedTokens=_optional(_words(_pieces(vocabulary, texts))),
        replacements=_optional(_bytes(vocabulary.replacements)),
        cuts=_optional(_bytes(cuts)),
        characterMap=_optional(_words(np.ravel(vocabulary.character_map))),
        chatTemplate=vocabulary.chat_template or None,
        chatCode=_optional(_words(code.words)),
        chatTexts=_optional(_bytes(b"".join(code.texts))),
        chatTextEnds=_optional(_words(np.cumsum([len(t) for t in code.texts]))),
        chatRefusal=refusal or None,
        **({} if prefix is None else prefix.fields()),
    )
    states = () if prefix is None else prefix.states.values()
    size = sum(map(len, states))
    if size >= _MOST_STATE_BYTES:
        raise CompileError(f"the states of the prefix take {size:,} bytes, a module holds 2^30")
    builder = flatbuffers.Builder((1 << 20) + size)
    builder.Finish(table.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def chat_code(vocabulary: Vocabulary) -> tuple[TemplateCode, str]:
    """(the code of a vocabulary's chat template, why there is none for one that is there)."""
    if not vocabulary.chat_template:
        return TemplateCode((), ()), ""
    try:
        return compile_template(vocabulary.chat_template), ""
    except Unkept as reason:
        return TemplateCode((), ()), str(reason)


def read_vocabulary(data: bytes) -> fbs.VocabularyT:
    """Reads the table in a segment's bytes; fields are checked as in the runtime.

    Raises:
        Malformed: the first thing that is wrong.
    """
    table: fbs.VocabularyT = read_structure(data, IDENTIFIER, "Vocabulary")
    if table.version > VERSION:
        raise Malformed(
            f"the vocabulary has version {table.version}, this aotc reads up to {VERSION}"
        )
    for rule in RULES["Vocabulary"]:
        if not rule.holds(None, table):
            raise Malformed(f"the vocabulary: {rule.message}")
    return table


def describe_vocabulary(data: bytes) -> dict[str, Any]:
    """Facts about a vocabulary for `aotc inspect`, as plain data."""
    table = read_vocabulary(data)
    return {
        "scheme": Scheme(table.scheme).name.lower(),
        "patterns": cut_count(_data(table.cuts)),
        "tokens": table.tokenCount,
        "merges": len(table.mergeResults) if table.mergeResults is not None else 0,
        "bos": _token(table.bos),
        "eos": _token(table.eos),
        "unknown": _token(table.unknown),
        "end_tokens": [int(t) for t in table.endTokens] if table.endTokens is not None else [],
        "flags": [flag for flag in _FLAGS if getattr(table, _camel(flag))],
        "chat_template": table.chatTemplate or "",
        "keeps_chat": table.chatCode is not None,
        "chat_refusal": table.chatRefusal or "",
        **({"prefix": _describe_prefix(table)} if table.prefixTokens else {}),
    }


def _describe_prefix(table: fbs.VocabularyT) -> dict[str, Any]:
    return {
        "text": table.prefix or "",
        "is_raw": bool(table.prefixIsRaw),
        "tokens": len(table.prefixTokens or ()),
        "state_bytes": {str(s.target): len(_data(s.bytes)) for s in table.prefixStates or ()},
    }


def _data(vector: Any) -> bytes:
    return b"" if vector is None else bytes(vector)


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _id(token: int | None) -> int:
    return -1 if token is None else token


def _token(number: int) -> int | None:
    return None if number < 0 else number


class _Symbols:
    """The texts of tokens, and of the intermediate results of merges.

    Attributes:
        texts: in bytes that text has.
        found: those whose text leads to them; of several tokens with one text, the last.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.is_bytes = vocabulary.scheme is Scheme.BYTE_MERGES
        self.texts = [vocabulary.text(i) for i in range(len(vocabulary))]
        self._ids = dict(vocabulary.ids)
        # A text that no alphabet of bytes writes so is found as a special token, or not at all.
        self.found = {
            self.texts[i]: i
            for text, i in vocabulary.ids.items()
            if text and (not self.is_bytes or byte_alphabet(self.texts[i]) == text)
        }

    def of(self, text: str) -> int:
        """The symbol of a text as spelled in the model's file; added if no token has this text."""
        symbol = self._ids.get(text)
        if symbol is None:
            symbol = self._ids[text] = len(self.texts)
            self.texts.append(self._bytes(text))
        return symbol

    def _bytes(self, text: str) -> bytes:
        if not self.is_bytes:
            return text.encode()
        return b"".join(alphabet_bytes(character) or character.encode() for character in text)

    def of_bytes(self) -> list[int]:
        """The symbol of each byte: the first symbol for merging where bytes are merged, else the
        byte's token.
        """
        if self.is_bytes:
            return [self._ids.get(character, NO_SYMBOL) for character in ALPHABET]
        ids = self.vocabulary.ids
        names = [(f"<0x{byte:02X}>", bytes([byte])) for byte in range(256)]
        own = [ids.get(name, ids.get(raw.decode("latin-1"), NO_SYMBOL)) for name, raw in names]
        own[128:] = [ids.get(name, NO_SYMBOL) for name, _ in names[128:]]
        return own if any(symbol != NO_SYMBOL for symbol in own) else []


def _merges(vocabulary: Vocabulary, symbols: _Symbols) -> tuple[Words, Words]:
    """(hash slots of merges, symbol that each rank produces). Of several merges of a pair, the
    first counts."""
    if vocabulary.scheme is Scheme.BYTE_MERGES:
        for character in ALPHABET:
            symbols.of(character)
    pairs: dict[tuple[int, int], int] = {}
    for left, right in vocabulary.merges:
        pair = symbols.of(left), symbols.of(right)
        if pair not in pairs:
            pairs[pair] = symbols.of(left + right)
    if not pairs:
        return _words([]), _words([])
    keys = np.array([left | right << _SYMBOL_BITS for left, right in pairs], np.uint64)
    slots = np.full(_slot_count(len(pairs)), _FREE, np.uint64)
    entries = keys | np.arange(len(pairs), dtype=np.uint64) << np.uint64(2 * _SYMBOL_BITS)
    _fill(slots, hash_pairs(keys), entries, _FREE)
    return slots.view(np.uint32), _words(list(pairs.values()))


def _lookup(texts: Sequence[bytes], found: dict[bytes, int]) -> Words:
    slots = np.zeros(_slot_count(len(texts) + 1), np.uint32)
    order = sorted(found.values())
    _fill(slots, hash_texts([texts[i] for i in order]), _words(order) + np.uint32(1), 0)
    return slots


def _slot_count(count: int) -> int:
    """The number of slots of a hash table for `count` entries: a power of two, with a load of at
    most four fifths."""
    return max(2, 1 << (count * 5 // 4).bit_length())


def _fill(slots: NDArray[Any], hashes: Words, entries: NDArray[Any], free: int) -> None:
    """Puts each entry into the slot of its hash, or into the next free one."""
    own = slots.tolist()
    mask = len(own) - 1
    for place, entry in zip((hashes & np.uint32(mask)).tolist(), entries.tolist(), strict=True):
        while own[place] != free:
            place = place + 1 & mask
        own[place] = entry
    slots[:] = own


def hash_texts(texts: Sequence[bytes]) -> Words:
    """The hash of each text: FNV-1a with mixed bits, as aot_vocabulary_hash in
    runtime/text/vocabulary.c."""
    lengths = np.array([len(t) for t in texts], np.int64)
    order = np.argsort(-lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[order]
    data = np.frombuffer(b"".join(texts), np.uint8)
    hashes = np.full(len(texts), 2166136261, np.uint32)
    for at in range(int(lengths.max(initial=0))):
        longer = int(np.count_nonzero(lengths > at))  # they stand first
        hashes[:longer] = (hashes[:longer] ^ data[starts[:longer] + at]) * np.uint32(16777619)
    hashes ^= hashes >> np.uint32(15)
    hashes *= np.uint32(0x2C1B3C6D)
    hashes ^= hashes >> np.uint32(12)
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def hash_pairs(keys: NDArray[np.uint64]) -> Words:
    """The Fibonacci hash of two symbols, given as left | right << 21."""
    return (keys * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)


def _pieces(vocabulary: Vocabulary, texts: Sequence[bytes]) -> list[int]:
    """The pieces that text becomes, in the order of their bytes; of several with one text, the
    last."""
    if vocabulary.scheme not in (Scheme.UNIGRAM, Scheme.WORD_PIECES, Scheme.LONGEST):
        return []
    is_scored = vocabulary.scheme is Scheme.UNIGRAM
    kinds = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED) if is_scored else TokenType
    own = {texts[i]: i for i, kind in enumerate(vocabulary.types) if kind in kinds and texts[i]}
    return _by_bytes(list(own.values()), texts)


def _by_bytes(tokens: Sequence[int], texts: Sequence[bytes]) -> list[int]:
    return sorted(tokens, key=lambda i: (texts[i], i))


def _words(values: Sequence[int] | NDArray[Any]) -> Words:
    return np.array(values, np.uint32)


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _vector(vector: NDArray[Any]) -> Any:
    return vector  # which flatbuffers takes as well as the lists that its types say


def _optional(vector: NDArray[Any]) -> Any:
    return vector if len(vector) else None
