"""Writes tests/golden/tokenizer_json_tokens.json: what Hugging Face's tokenizers make of text with
small tokenizer.json files of each prepend scheme.

    python -m tests.support.tokenizer_json_tokens

The Python package tokenizers must be there. Tests read what this wrote, and need it not.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.paths import ROOT

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


def main() -> None:
    """Writes the file."""
    from tokenizers import Tokenizer

    found = {}
    for name, data in files().items():
        own = Tokenizer.from_str(json.dumps(data))
        found[name] = [own.encode(line, add_special_tokens=False).ids for line in LINES]
    GOLDEN.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
