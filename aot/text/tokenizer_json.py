"""Vocabularies of Hugging Face: tokenizer.json, and tokenizer_config.json beside it.

Owns what the parts of such a file mean here. What normalises text otherwise than SentencePiece does
is refused, but for NFC, which is left to the caller, as llama.cpp leaves it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from aot.errors import CompileError, UnsupportedError
from aot.records import dataclass
from aot.text.gguf import END_TEXTS
from aot.text.vocabulary import SPACE, PreTokeniser, Scheme, Strip, TokenType, Vocabulary

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS: dict[str, PreTokeniser] = {
    _CONTRACTIONS + r"\p{N}{1,3}" + _REST: PreTokeniser.LLAMA3,
    _CONTRACTIONS + r"\p{N}" + _REST: PreTokeniser.QWEN2,
    _GPT2: PreTokeniser.GPT2,
}
Part = Mapping[str, Any]


def read_vocabulary(data: Part, config: Part | None = None) -> Vocabulary:
    """The vocabulary in a Hugging Face tokenizer.json.

    Args:
        data: what the file says.
        config: what tokenizer_config.json beside it says.

    Raises:
        UnsupportedError: it does what is not known here.
        CompileError: it contradicts itself.
    """
    config = config or {}
    model = data.get("model")
    if not isinstance(model, Mapping):
        raise CompileError("tokenizer.json has no model")
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram")
    if kind not in ("BPE", "Unigram"):
        raise UnsupportedError(f"the tokeniser {kind!r} is not supported, there are", _KINDS)
    text = _text_rules(data)
    own = _tokens(data, model, kind)
    scheme = Scheme.UNIGRAM if kind == "Unigram" else text.scheme
    if text.scheme is Scheme.BYTE_MERGES and scheme is Scheme.UNIGRAM:
        raise UnsupportedError("tokenizer.json is not supported:", ["Unigram of bytes"])
    ids = {content: i for i, content in enumerate(own.tokens)}
    bos, eos = (ids.get(_content(config.get(f"{n}_token"))) for n in ("bos", "eos"))
    first, last = _around(data, ids)
    ends = {ids[t] for t in END_TEXTS if t in ids} | ({eos} if eos is not None else set())
    unknown = model.get("unk_id")
    if kind == "BPE":
        unknown = ids.get(model.get("unk_token") or "")
    return Vocabulary(
        scheme=scheme,
        tokens=tuple(own.tokens),
        types=tuple(own.types),
        scores=tuple(own.scores) if scheme is Scheme.UNIGRAM else (),
        merges=() if scheme is Scheme.UNIGRAM else tuple(_merges(model)),
        strips=own.strips,
        pre_tokeniser=text.pre_tokeniser,
        bos=first if bos is None else bos,
        eos=last if eos is None else eos,
        unknown=unknown,
        end_tokens=frozenset(ends),
        adds_bos=first is not None or (bos is not None and bool(config.get("add_bos_token"))),
        adds_eos=last is not None or (eos is not None and bool(config.get("add_eos_token"))),
        adds_space=text.adds_space,
        ignores_merges=bool(model.get("ignore_merges")),
        escapes_spaces=scheme is not Scheme.BYTE_MERGES,
        trims_spaces=text.trims_spaces,
        replacements=text.replacements,
        chat_template=_chat_template(config),
        name=kind,
    )


_KINDS = ("BPE", "Unigram")


@dataclass
class _Tokens:
    tokens: list[str]
    types: list[TokenType]
    scores: list[float]
    strips: dict[int, Strip]


def _tokens(data: Part, model: Part, kind: str) -> _Tokens:
    added = {int(t["id"]): t for t in data.get("added_tokens") or ()}
    vocab = model.get("vocab") or {}
    if kind == "Unigram":
        texts = {i: (str(text), float(score)) for i, (text, score) in enumerate(vocab)}
    else:
        texts = {int(i): (text, 0.0) for text, i in vocab.items()}
    texts |= {i: (token["content"], texts.get(i, ("", 0.0))[1]) for i, token in added.items()}
    count = max(texts, default=-1) + 1
    made = _Tokens([""] * count, [TokenType.UNUSED] * count, [0.0] * count, {})
    for i, (text, score) in texts.items():
        made.tokens[i], made.scores[i] = text, score
        made.types[i] = TokenType.NORMAL
        if kind == "Unigram" and i == model.get("unk_id"):
            made.types[i] = TokenType.UNKNOWN
        elif re.fullmatch(r"<0x[0-9A-F]{2}>", text) and model.get("byte_fallback"):
            made.types[i] = TokenType.BYTE
    for i, token in added.items():
        made.types[i] = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
        strip = Strip.LEFT if token.get("lstrip") else Strip.NONE
        strip |= Strip.RIGHT if token.get("rstrip") else Strip.NONE
        if strip:
            made.strips[i] = strip
    return made


def _merges(model: Part) -> Iterator[tuple[str, str]]:
    for number, merge in enumerate(model.get("merges") or ()):
        pair = merge.split(" ") if isinstance(merge, str) else list(merge)
        if len(pair) != 2:
            raise CompileError(f"tokenizer.json: merge {number} is {merge!r}, which is no pair")
        yield pair[0], pair[1]


@dataclass
class _TextRules:
    """What happens to text before it becomes tokens."""

    scheme: Scheme = Scheme.CHARACTER_MERGES
    pre_tokeniser: PreTokeniser = PreTokeniser.NONE
    adds_space: bool = False
    trims_spaces: bool = False
    replacements: bytes = b""


def _parts(part: Part | None, inner: str) -> Iterator[Part]:
    """A part, or those of a sequence."""
    if part is not None and part["type"] == "Sequence":
        for each in part[inner]:
            yield from _parts(each, inner)
    elif part is not None:
        yield part


def _text_rules(data: Part) -> _TextRules:
    rules, unknown = _TextRules(), []
    for part in _parts(data.get("normalizer"), "normalizers"):
        match part["type"]:
            case "NFC":
                pass
            case "Prepend" if part["prepend"] == SPACE:
                rules.adds_space = True
            case "Replace" if part["pattern"] == {"String": " "} and part["content"] == SPACE:
                pass
            case "Replace" if part["pattern"] == {"Regex": " {2,}"}:
                rules.trims_spaces = True
            case "Precompiled":
                rules.replacements = base64.b64decode(part["precompiled_charsmap"] or "")
            case "Strip":
                rules.trims_spaces = True
            case kind:
                unknown.append(f"the normalizer {kind}")
    cuts = list(_parts(data.get("pre_tokenizer"), "pretokenizers"))
    if any(part["type"] == "ByteLevel" for part in cuts):
        rules.scheme = Scheme.BYTE_MERGES
        rules.pre_tokeniser = _cut(cuts, unknown)
    else:
        for part in cuts:
            if part["type"] == "WhitespaceSplit":
                rules.trims_spaces = True
            elif part["type"] == "Metaspace":
                scheme = part.get("prepend_scheme", "always")
                is_added = part.get("add_prefix_space", scheme != "never")
                rules.adds_space = rules.adds_space or is_added
            elif part != {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            }:
                unknown.append(f"the pre-tokenizer {part['type']}")
    if unknown:
        raise UnsupportedError("tokenizer.json is not supported:", unknown)
    return rules


def _cut(parts: list[Part], unknown: list[str]) -> PreTokeniser:
    """Where text is cut that is merged by bytes."""
    found: PreTokeniser | None = None
    has_digits = False
    for part in parts:
        match part["type"]:
            case "Split":
                pattern = part["pattern"].get("Regex", "")
                found = PATTERNS.get(pattern)
                if found is None:
                    unknown.append(f"the pre-tokenizer Split of {pattern!r}")
            case "Digits" if part.get("individual_digits"):
                has_digits = True
            case "ByteLevel":
                if part.get("add_prefix_space"):
                    unknown.append("the pre-tokenizer ByteLevel with add_prefix_space")
                if part.get("use_regex", True):
                    found = PreTokeniser.GPT2
            case kind:
                unknown.append(f"the pre-tokenizer {kind}")
    if has_digits and found is PreTokeniser.GPT2:
        return PreTokeniser.SMOLLM
    if has_digits or found is None:
        unknown.append("the pre-tokenizer of bytes without a pattern that is known")
    return found or PreTokeniser.NONE


def _around(data: Part, ids: Mapping[str, int]) -> tuple[int | None, int | None]:
    """The special tokens that begin and end a text."""
    first = last = None
    for part in _parts(data.get("post_processor"), "processors"):
        if part["type"] == "TemplateProcessing":
            names = [n.get("SpecialToken", {}).get("id") for n in part.get("single", ())]
            if names and names[0] is not None:
                first = ids.get(names[0])
            if len(names) > 1 and names[-1] is not None:
                last = ids.get(names[-1])
    return first, last


def _content(token: Any) -> str:
    """A token of tokenizer_config.json: its text, or a record of it."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _chat_template(config: Part) -> str:
    found = config.get("chat_template") or ""
    if isinstance(found, str):
        return found
    named = {entry["name"]: entry["template"] for entry in found}
    return str(named.get("default", next(iter(named.values()), "")))
