"""Writes tests/golden/tokenizer_json_tokens.json: what Hugging Face's tokenizers make of text with
small tokenizer.json files of each prepend scheme, and of text and conversations with patterns that
models have.

    python -m tests.support.tokenizer_json_tokens

The Python package tokenizers must be there. Tests read what this wrote, and need it not.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.chat_templates import TEMPLATES
from tests.support.llama_tokens import CUT_LINES, conversation_texts, digest
from tests.support.llama_tokens import LINES as TEXT_LINES
from tests.support.paths import ROOT
from tests.support.vocabularies import SPECIALS, trained

GOLDEN = ROOT / "tests" / "golden" / "tokenizer_json_tokens.json"
LINES = (
    *("the inn", " the", "  the  inn ", "<s>the</s>the", "the<s> the</s>  the", "<s>", " "),
    *("a<s>b c</s>d", "\u2581the", "the\nthe", "<s> <s>", " <s>the", "the \u2581 the"),
)
_SPECIALS = ("<unk>", "<s>", "</s>")
_LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzHT.,\n</>"
_MERGES = (("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("\u2581", "H"), ("i", "n"))


def _file(model: dict[str, Any], normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": c, "special": True, **flags} for i, c in enumerate(_SPECIALS)]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": model,
    }


def files() -> dict[str, dict[str, Any]]:
    """tokenizer.json files by what they do with spaces."""
    texts = dict.fromkeys((*_SPECIALS, *_LETTERS, *map("".join, _MERGES)))
    merged = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "vocab": {text: i for i, text in enumerate(texts)},
        "merges": [list(pair) for pair in _MERGES],
    }
    scored = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[text, -1.0 - 1.5 / len(text)] for text in texts],
    }
    normalizers = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    made = {
        "merged, prepend": _file(merged, {"type": "Sequence", "normalizers": normalizers}, None)
    }
    for name, model in (("merged", merged), ("scored", scored)):
        for scheme in ("always", "first", "never"):
            space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme}
            made[f"{name}, {scheme}"] = _file(model, None, space | {"split": scheme != "first"})
    return made


_CASED = "".join(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    + first
    + r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    + last
    for first, last in (
        ("*", "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"),
        ("+", "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"),
    )
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    + _SPACES
)
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
_KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
# The pre-tokenizers of models' files, beside the bytes.
_CUTS: dict[str, tuple[Any, ...]] = {
    "gpt-2": (),
    "llama3": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace("{1,3}", ""),),
    "gpt-4o": (_CASED + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES,),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥\u3040-ゟ\u30a0-ヿ]+", _DEEPSEEK),
    "deepseek-llm": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\s+$", "[一-龥가-\ud7a3]+", r"\p{N}"),
    "kimi": (_KIMI,),
    "possessive": ({"regex": _POSSESSIVE, "behavior": "Removed", "invert": True},),
    "digits": ({"type": "Digits", "individual_digits": True},),
    "digits, punctuation": (
        {"type": "Digits", "individual_digits": False},
        {"type": "Punctuation", "behavior": "Isolated"},
    ),
    "groups of three": (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _LLAMA3),
}


def _cut(own: Any) -> dict[str, Any]:
    if isinstance(own, dict) and "type" in own:
        return dict(own)
    fields = own if isinstance(own, dict) else {"regex": own}
    return {
        "type": "Split",
        "pattern": {"Regex": fields["regex"]},
        "behavior": fields.get("behavior", "Isolated"),
        "invert": fields.get("invert", False),
    }


def byte_files() -> dict[str, dict[str, Any]]:
    """tokenizer.json files whose bytes are merged, by the models that cut text so."""
    metadata = trained("gpt2", "gpt-2")
    tokens, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    made = {}
    for name, cuts in _CUTS.items():
        has_regex = name == "gpt-2" or name.startswith("digits")
        level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "use_regex": has_regex,
            "trim_offsets": True,
        }
        made[name] = {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": text, "special": kind != 4, **flags}
                for i, (text, kind) in enumerate(SPECIALS.items())
            ],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(_cut, cuts), level]},
            "model": {
                "type": "BPE",
                "vocab": {text: i for i, text in enumerate(tokens)},
                "merges": [merge.split(" ", 1) for merge in merges],
            },
        }
    return made


def main() -> None:
    """Writes the file."""
    from tokenizers import Tokenizer

    found: dict[str, Any] = {}
    texts = {style: conversation_texts(template) for style, template in TEMPLATES.items()}
    for name, data in byte_files().items():
        own = Tokenizer.from_str(json.dumps(data))

        def encode(text: str, own: Any = own) -> list[int]:
            return list(own.encode(text, add_special_tokens=False).ids)

        found[f"cut as {name}"] = {
            "lines": [digest([encode(line)]) for line in (*TEXT_LINES, *CUT_LINES)],
            "conversations": {
                style: digest(map(encode, own_texts)) for style, own_texts in texts.items()
            },
        }
    for name, data in files().items():
        own = Tokenizer.from_str(json.dumps(data))
        found[name] = [own.encode(line, add_special_tokens=False).ids for line in LINES]
    GOLDEN.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
