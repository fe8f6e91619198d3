"""Vocabularies of Hugging Face: tokenizer.json, and tokenizer_config.json beside it.

Owns what the parts of such a file mean here, and the rule of each field that is read. What
normalises text otherwise than SentencePiece does is refused, but for NFC, which is left to the
caller, as llama.cpp leaves it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.text.gguf import END_TEXTS
from aot.text.patterns import parse_pattern
from aot.text.vocabulary import (
    MOST_SCORE,
    MOST_SYMBOLS,
    SPACE,
    Cut,
    Scheme,
    SpacePrefix,
    Strip,
    TokenType,
    Vocabulary,
    WholeParts,
)

# The pattern of a ByteLevel, GPT-2's, and those of other parts.
_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}!-/:-@\[-`{-~]"
_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_MOST_DEPTH = 16  # of parts that are sequences of parts
_KINDS = ("BPE", "Unigram")


class _Part:
    """An object of a file, whose fields are read by their rules.

    Args:
        fields: what the file says.
        place: of the object in the file, for messages.
    """

    def __init__(self, fields: Any, place: str) -> None:
        self.place = place
        if not isinstance(fields, Mapping):
            raise self.fail("", "an object", fields)
        self.fields: Mapping[str, Any] = fields

    def fail(self, name: str, rule: str, found: Any) -> CompileError:
        """The error of a field that breaks its rule; "" for the object itself."""
        where = self.place + (f": {name}" if name else "")
        shown = ascii(found)
        return CompileError(
            f"{where}: expected {rule}, found {shown if len(shown) < 80 else shown[:77] + '...'}"
        )

    def text(self, name: str) -> str:
        """A string; "" where there is none."""
        found = self.fields.get(name)
        if found is not None and not isinstance(found, str):
            raise self.fail(name, "a string", found)
        return found or ""

    def flag(self, name: str, *, default: bool = False) -> bool:
        found = self.fields.get(name)
        if found is not None and not isinstance(found, bool):
            raise self.fail(name, "true or false", found)
        return default if found is None else found

    def token(self, name: str) -> int | None:
        """An id, of which there is a bound, since the tokens before it exist too."""
        found = self.fields.get(name)
        return None if found is None else self.checked_token(name, found)

    def checked_token(self, name: str, found: Any) -> int:
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < MOST_SYMBOLS:
            raise self.fail(name, f"a token's id, 0 to {MOST_SYMBOLS - 1}", found)
        return found

    def items(self, name: str) -> Sequence[Any]:
        """An array; an empty one where there is none."""
        found = self.fields.get(name)
        if found is not None and not isinstance(found, list | tuple):
            raise self.fail(name, "an array", found)
        return found or ()

    def parts(self, name: str) -> Iterator[_Part]:
        """The objects in an array field."""
        for number, found in enumerate(self.items(name)):
            yield _Part(found, f"{self.place}: {name}[{number}]")

    def part(self, name: str) -> _Part | None:
        """An object; None where there is none."""
        found = self.fields.get(name)
        return None if found is None else _Part(found, f"{self.place}: {name}")

    def kind(self) -> str:
        """The field that says what an object is."""
        found = self.text("type")
        if not found:
            raise self.fail("type", "a string", self.fields.get("type"))
        return found


def read_vocabulary(data: Any, config: Any = None) -> Vocabulary:
    """The vocabulary in a Hugging Face tokenizer.json.

    Args:
        data: what the file says.
        config: what tokenizer_config.json beside it says; None where there is none.

    Raises:
        UnsupportedError: it does what is not known here.
        CompileError: a field has no value that it may have, or the file contradicts itself.
    """
    file = _Part(data, _FILE)
    beside = _Part({} if config is None else config, _CONFIG)
    model = file.part("model")
    if model is None:
        raise CompileError("tokenizer.json has no model")
    kind = model.text("type") or ("BPE" if "merges" in model.fields else "Unigram")
    if kind not in _KINDS:
        raise UnsupportedError(f"the tokeniser {kind!r} is not supported, there are", _KINDS)
    text = _text_rules(file)
    own = _tokens(file, model, kind)
    scheme = Scheme.UNIGRAM if kind == "Unigram" else text.scheme
    if text.scheme is Scheme.BYTE_MERGES and scheme is Scheme.UNIGRAM:
        raise UnsupportedError("tokenizer.json is not supported:", ["Unigram of bytes"])
    ids = {content: i for i, content in enumerate(own.tokens)}
    bos, eos = (ids.get(_content(beside, f"{n}_token")) for n in ("bos", "eos"))
    first, last = _around(file, ids)
    ends = {ids[t] for t in END_TEXTS if t in ids} | ({eos} if eos is not None else set())
    unknown = ids.get(model.text("unk_token")) if kind == "BPE" else model.token("unk_id")
    return Vocabulary(
        scheme=scheme,
        tokens=tuple(own.tokens),
        types=tuple(own.types),
        scores=tuple(own.scores) if scheme is Scheme.UNIGRAM else (),
        merges=() if scheme is Scheme.UNIGRAM else tuple(_merges(model)),
        strips=own.strips,
        cuts=text.cuts,
        bos=first if bos is None else bos,
        eos=last if eos is None else eos,
        unknown=unknown,
        end_tokens=frozenset(ends),
        adds_bos=first is not None or (bos is not None and beside.flag("add_bos_token")),
        adds_eos=last is not None or (eos is not None and beside.flag("add_eos_token")),
        adds_space=text.adds_space,
        whole_parts=WholeParts.ALL if model.flag("ignore_merges") else WholeParts.NONE,
        escapes_spaces=scheme is not Scheme.BYTE_MERGES,
        trims_spaces=text.trims_spaces,
        replacements=text.replacements,
        chat_template=_chat_template(beside),
        name=kind,
    )


@dataclass
class _Tokens:
    tokens: list[str]
    types: list[TokenType]
    scores: list[float]
    strips: dict[int, Strip]


def _tokens(file: _Part, model: _Part, kind: str) -> _Tokens:
    added: dict[int, _Part] = {}
    for token in file.parts("added_tokens"):
        number = token.token("id")
        if number is None:
            raise token.fail("id", "a token's id", None)
        added[number] = token
    texts = _scored(model) if kind == "Unigram" else _numbered(model)
    texts |= {i: (token.text("content"), texts.get(i, ("", 0.0))[1]) for i, token in added.items()}
    count = max(texts, default=-1) + 1
    made = _Tokens([""] * count, [TokenType.UNUSED] * count, [0.0] * count, {})
    has_bytes, unknown = model.flag("byte_fallback"), model.fields.get("unk_id")
    for i, (text, score) in texts.items():
        made.tokens[i], made.scores[i] = text, score
        made.types[i] = TokenType.NORMAL
        if kind == "Unigram" and i == unknown:
            made.types[i] = TokenType.UNKNOWN
        elif has_bytes and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
            made.types[i] = TokenType.BYTE
    for i, token in added.items():
        made.types[i] = TokenType.CONTROL if token.flag("special") else TokenType.USER_DEFINED
        strip = Strip.LEFT if token.flag("lstrip") else Strip.NONE
        strip |= Strip.RIGHT if token.flag("rstrip") else Strip.NONE
        if strip:
            made.strips[i] = strip
    return made


def _scored(model: _Part) -> dict[int, tuple[str, float]]:
    """Texts and scores of Unigram: an array of pairs."""
    texts = {}
    for number, found in enumerate(model.items("vocab")):
        is_pair = isinstance(found, list | tuple) and len(found) == 2
        text, score = found if is_pair else (None, 0.0)
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not isinstance(text, str) or not is_number or not abs(score) <= MOST_SCORE:
            raise model.fail(f"vocab[{number}]", "a text and a score", found)
        texts[number] = text, float(score)
    return texts


def _numbered(model: _Part) -> dict[int, tuple[str, float]]:
    """Texts of BPE: an object of ids."""
    vocab = model.part("vocab")
    if vocab is None:
        return {}
    return {vocab.checked_token(repr(text), i): (text, 0.0) for text, i in vocab.fields.items()}


def _merges(model: _Part) -> Iterator[tuple[str, str]]:
    for number, merge in enumerate(model.items("merges")):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise model.fail(f"merges[{number}]", "a pair of texts", merge)
        yield pair[0], pair[1]


@dataclass
class _TextRules:
    """The normalisation of text before tokenisation."""

    scheme: Scheme = Scheme.CHARACTER_MERGES
    cuts: tuple[Cut, ...] = ()
    adds_space: SpacePrefix = SpacePrefix.NONE
    trims_spaces: bool = False
    replacements: bytes = b""


def _parts(part: _Part | None, inner: str, depth: int = 0) -> Iterator[_Part]:
    """The part itself, or the parts of a sequence."""
    if part is not None and part.kind() == "Sequence":
        if depth == _MOST_DEPTH:
            raise CompileError(f"{part.place}: sequences are nested deeper than {_MOST_DEPTH}")
        for each in part.parts(inner):
            yield from _parts(each, inner, depth + 1)
    elif part is not None:
        yield part


def _pattern(part: _Part) -> Mapping[str, Any]:
    """The pattern of a part: {"String": text} or {"Regex": pattern}."""
    pattern = part.part("pattern")
    if pattern is None:
        raise part.fail("pattern", "an object", None)
    for name in pattern.fields:
        pattern.text(name)
    return pattern.fields


def _text_rules(file: _Part) -> _TextRules:
    rules, unknown = _TextRules(), []
    for part in _parts(file.part("normalizer"), "normalizers"):
        match part.kind():
            case "NFC":
                pass
            case "Prepend" if part.text("prepend") == SPACE:
                rules.adds_space = SpacePrefix.EACH
            case "Replace" if _pattern(part) == {"String": " "} and part.text("content") == SPACE:
                pass
            case "Replace" if _pattern(part) == {"Regex": " {2,}"}:
                rules.trims_spaces = True
            case "Precompiled":
                rules.replacements = _replacements(part)
            case "Strip":
                rules.trims_spaces = True
            case kind:
                unknown.append(f"the normalizer {kind}")
    cuts = list(_parts(file.part("pre_tokenizer"), "pretokenizers"))
    if any(part.kind() == "ByteLevel" for part in cuts):
        rules.scheme = Scheme.BYTE_MERGES
        rules.cuts = _cuts(cuts, unknown)
    else:
        for part in cuts:
            if part.kind() == "WhitespaceSplit":
                rules.trims_spaces = True
            elif part.kind() == "Metaspace":
                rules.adds_space = rules.adds_space or _space_prefix(part)
            elif part.fields != {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            }:
                unknown.append(f"the pre-tokenizer {part.kind()}")
    if unknown:
        raise UnsupportedError("tokenizer.json is not supported:", unknown)
    if rules.trims_spaces and rules.adds_space:
        rules.adds_space = SpacePrefix.EACH  # what is trimmed begins with no space
    return rules


# By the prepend scheme of Metaspace: where the text begins with no space.
_PREFIXES = {
    "always": SpacePrefix.EACH_WORD,
    "first": SpacePrefix.FIRST_WORD,
    "never": SpacePrefix.NONE,
}


def _space_prefix(part: _Part) -> SpacePrefix:
    """Where a Metaspace puts a space; earlier files have a flag instead."""
    scheme = part.text("prepend_scheme") or "always"
    if scheme not in _PREFIXES:
        raise part.fail("prepend_scheme", "always, first or never", scheme)
    is_added = part.flag("add_prefix_space", default=True)
    return _PREFIXES[scheme] if is_added else SpacePrefix.NONE


def _replacements(part: _Part) -> bytes:
    """SentencePiece's table of replacements, decoded from base64."""
    name = "precompiled_charsmap"
    text = part.text(name)
    try:
        return base64.b64decode(text)
    except ValueError:
        raise part.fail(name, "base64", text) from None


def _cuts(parts: list[_Part], unknown: list[str]) -> tuple[Cut, ...]:
    """The patterns by which text is cut whose bytes are merged; unknown parts are added to
    `unknown`."""
    found = []
    for part in parts:
        match part.kind():
            case "Split":
                found += _split(part, unknown)
            case "Digits":
                found.append(Cut(r"\p{N}" if part.flag("individual_digits") else r"\p{N}+"))
            case "Punctuation" if part.text("behavior") in ("", "Isolated"):
                found.append(Cut(_PUNCTUATION))
            case "ByteLevel":
                if part.flag("add_prefix_space"):
                    unknown.append("the pre-tokenizer ByteLevel with add_prefix_space")
                if part.flag("use_regex", default=True):
                    found.append(Cut(_BYTE_LEVEL))
            case kind:
                unknown.append(f"the pre-tokenizer {kind}")
    for cut in found:
        try:
            parse_pattern(cut.pattern)
        except UnsupportedError as error:
            unknown += [f"the pre-tokenizer Split: {one}" for one in error.items]
    return tuple(found)


def _split(part: _Part, unknown: list[str]) -> list[Cut]:
    """The pattern of a Split, whose matches are parts."""
    pattern = _pattern(part)
    behavior, is_inverted = part.text("behavior"), part.flag("invert")
    if "String" in pattern:
        source = re.escape(pattern["String"])
    else:
        source = pattern.get("Regex") or ""
    # What is removed are the matches, or inverted, what stands between them.
    if behavior == "Isolated" or (behavior == "Removed" and is_inverted):
        return [Cut(source, drops_rest=behavior == "Removed")]
    unknown.append(f"the pre-tokenizer Split with the behavior {behavior!r}")
    return []


def _around(file: _Part, ids: Mapping[str, int]) -> tuple[int | None, int | None]:
    """The special tokens that begin and end a text."""
    first = last = None
    for part in _parts(file.part("post_processor"), "processors"):
        if part.kind() == "TemplateProcessing":
            tokens = [one.part("SpecialToken") for one in part.parts("single")]
            names = [token and token.text("id") for token in tokens]
            if names and names[0]:
                first = ids.get(names[0])
            if len(names) > 1 and names[-1]:
                last = ids.get(names[-1])
    return first, last


def _content(config: _Part, name: str) -> str:
    """A token of tokenizer_config.json: its text, or a record of it."""
    found = config.fields.get(name)
    if isinstance(found, Mapping):
        return _Part(found, f"{config.place}: {name}").text("content")
    return config.text(name)


def _chat_template(config: _Part) -> str:
    """One template, or several with names, of which the default one is meant, else the first."""
    name = "chat_template"
    if not isinstance(config.fields.get(name), list | tuple):
        return config.text(name)
    named = {entry.text("name"): entry.text("template") for entry in config.parts(name)}
    return named.get("default", next(iter(named.values()), ""))
