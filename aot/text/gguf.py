"""Vocabularies of GGUF files: what the keys `tokenizer.*` say, as llama.cpp reads them.

Owns the names of schemes, and what a key that is absent means; `pre_tokenisers` has the patterns.
Reads no files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aot.errors import CompileError, UnsupportedError
from aot.text import pre_tokenisers, word_pieces
from aot.text.vocabulary import (
    Cut,
    Scheme,
    Strip,
    TokenType,
    Vocabulary,
    WholeParts,
)

# By `tokenizer.ggml.model`: the scheme, and the ids of bos, eos and unknown where no key says them.
MODELS: dict[str, tuple[Scheme, int | None, int | None, int | None]] = {
    "gpt2": (Scheme.BYTE_MERGES, 11, 11, None),
    "gemma4": (Scheme.CHARACTER_MERGES, None, None, None),
    "llama": (Scheme.SCORED_MERGES, 1, 2, 0),
    "t5": (Scheme.UNIGRAM, None, 1, 2),
    "bert": (Scheme.WORD_PIECES, 101, None, 100),
    "rwkv": (Scheme.LONGEST, None, None, None),
}
_SEPARATOR = 102  # of bert, where no key says it
# Texts of tokens that end a reply, whatever keys say of them.
END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    *("<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>"),
    *("<|end_of_text|>", "<end_of_utterance>", "</s>", "<turn|>", "<|tool_response>"),
    "[e~[",
)
_STRIPPING = ("jina-v2-de", "jina-v2-es", "jina-v2-code")  # pre-tokenisers
_FIRST_END = "<｜end▁of▁sentence｜>"  # where no key names another
# Texts of tokens around the middle that a model fills in; the last three kinds end a reply.
_MIDDLE_TEXTS: dict[str, tuple[str, ...]] = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary | None:
    """The vocabulary in a GGUF file's metadata, by key; None where there is none.

    Raises:
        UnsupportedError: its scheme or pre-tokeniser is not known here; the message has the list
            of those that are.
        CompileError: a key is missing, or has a value that means nothing.
    """
    keys = _Keys(metadata)
    model = keys.text("tokenizer.ggml.model")
    if model in ("", "none", "no_vocab"):
        return None
    if model not in MODELS:
        raise UnsupportedError(
            f"the tokeniser {model!r} is not supported, there are", sorted(MODELS)
        )
    scheme, bos, eos, unknown = MODELS[model]
    tokens = keys.texts("tokens")
    types = _types(keys.numbers("token_type", len(tokens), int), len(tokens))
    ids = {text: i for i, text in enumerate(tokens)}
    named = {"bos": bos, "eos": eos, "unknown": unknown}
    named |= {n: keys.token(k, len(tokens), named.get(n)) for n, k in _NAMED.items()}
    ends = _end_tokens(ids, types, named)
    is_words = scheme is Scheme.WORD_PIECES
    is_scored = scheme in (Scheme.SCORED_MERGES, Scheme.UNIGRAM)
    is_merged = scheme in (Scheme.BYTE_MERGES, Scheme.CHARACTER_MERGES)
    pre_name = keys.text("tokenizer.ggml.pre") if scheme is Scheme.BYTE_MERGES else model
    if scheme is Scheme.BYTE_MERGES and pre_name in pre_tokenisers.OF_CHARACTERS:
        scheme = Scheme.CHARACTER_MERGES
    bos, eos = named["bos"], named["eos"]
    if is_words:
        eos = keys.token("seperator_token_id", len(tokens), _SEPARATOR)
    adds_bos, adds_eos = _around(keys, scheme, pre_name)
    return Vocabulary(
        scheme=scheme,
        tokens=tokens,
        types=tuple(types),
        scores=tuple(map(float, keys.numbers("scores", len(tokens), float))) if is_scored else (),
        merges=keys.merges() if is_merged else (),
        strips=_strips(metadata, tokens, types),
        cuts=_cuts(pre_name) if is_merged else word_pieces.CUTS if is_words else (),
        character_map=_character_map(keys) if is_words else (),
        bos=_inside(bos, tokens),
        eos=_inside(eos, tokens),
        unknown=_inside(named["unknown"], tokens),
        end_tokens=frozenset(ends),
        adds_bos=adds_bos and _inside(bos, tokens) is not None,
        adds_eos=adds_eos and _inside(eos, tokens) is not None,
        adds_space=is_scored and keys.flag("add_space_prefix", scheme is not Scheme.UNIGRAM),
        whole_parts=_whole_parts(pre_name) if is_merged else WholeParts.NONE,
        escapes_spaces=scheme not in (Scheme.BYTE_MERGES, Scheme.LONGEST),
        trims_spaces=scheme is Scheme.UNIGRAM and keys.flag("remove_extra_whitespaces", False),
        replacements=keys.data("precompiled_charsmap"),
        chat_template=keys.text("tokenizer.chat_template"),
        name=pre_name or model,
    )


_NAMED = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unknown": "unknown_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    **{name: f"{name}_token_id" for name in _MIDDLE_TEXTS},
}


class _Keys:
    """The keys `tokenizer.ggml.*`, whose values may be of any type, and what is wrong with them."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def text(self, key: str) -> str:
        """A text by its whole key; "" where it is absent."""
        found = self.metadata.get(key, "")
        if not isinstance(found, str):
            raise _wrong_type(key, found, "a text")
        return _text(found, key)

    def sequence(self, key: str) -> Sequence[Any]:
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            raise CompileError(f"the file has no tokenizer.ggml.{key}, which its tokeniser needs")
        if isinstance(found, str) or not hasattr(found, "__len__"):
            raise _wrong_type(f"tokenizer.ggml.{key}", found, "an array")
        return found  # type: ignore[no-any-return]

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(_text(t, f"tokenizer.ggml.{key}") for t in self.sequence(key))

    def numbers(self, key: str, count: int, kind: type[int] | type[float]) -> Sequence[Any]:
        """One for each token, with float any number; none where the key is absent and may be."""
        if key == "token_type" and f"tokenizer.ggml.{key}" not in self.metadata:
            return ()
        found = self.sequence(key)
        if len(found) != count:
            raise CompileError(f"tokenizer.ggml.{key} has {len(found)} elements for {count} tokens")
        return self._checked(key, found, kind)

    def data(self, key: str) -> bytes:
        """An array of bytes, of signed ones too; b"" where it is absent."""
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is None or isinstance(found, bytes):
            return found or b""
        numbers = self._checked(key, self.sequence(key), int)
        if any(not -128 <= n <= 255 for n in numbers):
            raise CompileError(f"tokenizer.ggml.{key} is no array of bytes")
        return bytes(n & 0xFF for n in numbers)

    def _checked(
        self, key: str, found: Sequence[Any], kind: type[int] | type[float]
    ) -> Sequence[Any]:
        for number, value in enumerate(found):
            if not isinstance(value, (int, kind)):
                expected = "a number" if kind is float else "an integer"
                raise _wrong_type(f"tokenizer.ggml.{key}: element {number}", value, expected)
        return found

    def merges(self) -> tuple[tuple[str, str], ...]:
        made = []
        for number, text in enumerate(self.texts("merges")):
            space = text.find(" ", 1)
            if space < 0 or space + 1 == len(text):
                raise CompileError(f"tokenizer.ggml.merges: {number} is {text!r}, which is no pair")
            made.append((text[:space], text[space + 1 :]))
        return tuple(made)

    def token(self, key: str, count: int, absent: int | None) -> int | None:
        """A token; as llama.cpp has it, what is no token says nothing."""
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is not None and not isinstance(found, int):
            raise _wrong_type(f"tokenizer.ggml.{key}", found, "a token")
        return absent if found is None or not 0 <= found < count else int(found)

    def flag(self, key: str, absent: bool) -> bool:
        found = self.metadata.get(f"tokenizer.ggml.{key}", absent)
        if not isinstance(found, int):
            raise _wrong_type(f"tokenizer.ggml.{key}", found, "true or false")
        return bool(found)


def _text(found: Any, key: str) -> str:
    """A text; what the file's reader found to be no UTF-8 is bytes, or has them as surrogates."""
    if not isinstance(found, (str, bytes)):
        raise _wrong_type(key, found, "a text")
    try:
        return found.decode() if isinstance(found, bytes) else found.encode().decode()
    except UnicodeError as error:
        shown = found[:64] if isinstance(found, bytes) else _bytes(found[:64])
        raise CompileError(f"{key}: {shown!r} is not UTF-8") from error


def _bytes(text: str) -> bytes:
    """The bytes of a text with surrogates: the file's bytes, where its reader kept them."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _wrong_type(key: str, found: Any, expected: str) -> CompileError:
    if isinstance(found, (str, bytes)):
        shown = ascii(found[:64])
    elif hasattr(found, "__len__"):
        shown = f"an array of {len(found)} elements"
    else:
        shown = ascii(found)
    return CompileError(f"{key} is {shown}, expected {expected}")


def _types(numbers: Sequence[Any], count: int) -> list[TokenType]:
    known = {int(t): t for t in TokenType}
    if not len(numbers):
        return [TokenType.NORMAL] * count
    return [known.get(int(n), TokenType.UNDEFINED) for n in numbers]


def _inside(token: int | None, tokens: Collection[str]) -> int | None:
    return token if token is not None and token < len(tokens) else None


def _around(keys: _Keys, scheme: Scheme, pre_name: str) -> tuple[bool, bool]:
    """Whether text begins with bos, and whether it ends with eos, which is the separator where
    words become pieces."""
    if scheme in (Scheme.WORD_PIECES, Scheme.LONGEST):
        return scheme is Scheme.WORD_PIECES, scheme is Scheme.WORD_PIECES
    begins = scheme is Scheme.SCORED_MERGES or pre_name in pre_tokenisers.BEGINS_WITH_BOS
    adds_bos = keys.flag("add_bos_token", begins) or pre_name in pre_tokenisers.GEMMA4
    return adds_bos, keys.flag("add_eos_token", scheme is Scheme.UNIGRAM)


def _cuts(name: str) -> tuple[Cut, ...]:
    found = pre_tokenisers.CUTS.get(name)
    if found is None:
        known = sorted(name for name in pre_tokenisers.CUTS if name)
        raise UnsupportedError(f"the pre-tokeniser {name!r} is not supported, there are", known)
    return found


def _character_map(keys: _Keys) -> tuple[tuple[int, int, int], ...]:
    lowers = keys.flag("normalizer.lowercase", True)
    return word_pieces.character_map(
        lowers=lowers, strips=keys.flag("normalizer.strip_accents", lowers)
    )


def _whole_parts(name: str) -> WholeParts:
    if name in pre_tokenisers.TAKES_WHOLE_PARTS:
        return WholeParts.ALL
    return WholeParts.OF_LINE_ENDS if name in pre_tokenisers.GEMMA4 else WholeParts.NONE


def _end_tokens(
    ids: Mapping[str, int], types: list[TokenType], named: dict[str, int | None]
) -> set[int]:
    """All tokens that end a reply; tokens that look like control tokens become some."""
    ends = {ids[text] for text in END_TEXTS if text in ids}
    for kind, texts in _MIDDLE_TEXTS.items():
        if named[kind] is None:
            named[kind] = next((ids[text] for text in texts if text in ids), None)
            if named[kind] is not None:
                types[named[kind]] = TokenType.CONTROL  # type: ignore[index]
    if named.get("eot") is None and not ends and _FIRST_END in ids:
        named["eot"] = ids[_FIRST_END]
        types[ids[_FIRST_END]] = TokenType.CONTROL
    for end in ends:
        types[end] = TokenType.CONTROL
    ends |= {token for kind in _ENDS if (token := named[kind]) is not None and token < len(types)}
    found = {text: ids[text] for text in END_TEXTS if ids.get(text) in ends}
    called = "<|call|>" in found or "<|calls|>" in found
    if "<|end|>" in found and called and ("<|return|>" in found or "<|flush|>" in found):
        ends.discard(found["<|end|>"])  # it ends a message, of which a reply has several
    if "<|tool_response>" in found and "</s>" in found:
        ends.discard(found["</s>"])  # Gemma 4's, a tag of its text
    return ends


def _strips(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[TokenType]
) -> dict[int, Strip]:
    """The tokens that strip adjacent white space, by number: Phi-3's special tokens strip it on the
    right, masks of some encoders on the left. GGUF has no key for that; llama.cpp goes by names as
    well.
    """
    found = metadata.get("general.name")
    name = found.lower() if isinstance(found, str) else ""
    if metadata.get("tokenizer.ggml.pre") in _STRIPPING:
        return {i: Strip.LEFT for i, text in enumerate(tokens) if text == "<mask>"}
    if "phi-3" in name or "phi3" in name:
        kept = ("<unk>", "<s>", "<|endoftext|>")
        special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        own = {
            i: Strip.RIGHT for i, t in enumerate(types) if t in special and tokens[i] not in kept
        }
        return own | {i: Strip.RIGHT for i, text in enumerate(tokens) if text == "</s>"}
    if "modern-bert" in name:
        return {i: Strip.LEFT for i, text in enumerate(tokens) if text == "[MASK]"}
    return {}
