"""Small vocabularies of each scheme, with every field that it has."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from functools import cache
from typing import Any

from aot.text.pre_tokenisers import CUTS
from aot.text.vocabulary import (
    ALPHABET,
    Scheme,
    TokenType,
    Vocabulary,
    byte_alphabet,
)


def byte_vocabulary(**fields: Any) -> Vocabulary:
    """All bytes, the merge "a b" and a control token."""
    given: dict[str, Any] = {
        "scheme": Scheme.BYTE_MERGES,
        "tokens": (*ALPHABET, "ab", "<s>"),
        "types": (*[TokenType.NORMAL] * 257, TokenType.CONTROL),
        "scores": (0.0,) * 258,
        "merges": (("a", "b"),),
        "cuts": CUTS["gpt-2"],
        "bos": 257,
        "end_tokens": frozenset({257}),
        "chat_template": "{{ messages }}",
    }
    return Vocabulary(**given | fields)


GPT2_METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*ALPHABET, "ab", "Ġab", "<|im_end|>", "<|im_start|>"],
    "tokenizer.ggml.token_type": [1] * 258 + [4, 3],
    "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    "tokenizer.ggml.bos_token_id": 259,
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}


def replacements(places: dict[bytes, int], texts: bytes) -> bytes:
    """SentencePiece's table: by key, no two of which begin alike, where its replacement begins in
    `texts`. A node's children have 256 words of their own."""
    nodes, used = [0] * 256, 256
    for key, place in places.items():
        base = 0
        for number, byte in enumerate(key):
            at, base, used = base ^ byte, used, used + 256
            is_end = number + 1 == len(key)
            nodes[at] = byte | is_end << 8 | (at ^ base) << 10
            nodes += [0] * 256
        nodes[base] = 0x80000000 | place
    return struct.pack(f"<I{used}I", 4 * used, *nodes) + texts


# ---- vocabularies that were trained, on little ----

CORPUS = (
    "The quick brown fox jumps over the lazy dog. It's what they'll say: we've got 12 or 1234 "
    "dogs, I'M sure!  for (int i = 0; i < n; ++i) {\n    sum += x[i];\n}\n\n\tréseau naïf à côté "
    "de l'été; Straße über größere Öfen. Привет, мир! שלום עולם. مرحبا بالعالم. 你好,世界。"
    "日本語のテスト。한국어 시험. नमस्ते दुनिया. 😀👍🏽 👩‍👩‍👧 the the the and and ing ing  \r\n"
)
SPECIALS = {"<|im_start|>": 3, "<|im_end|>": 3, "<|im": 3, "<think>": 4, "  ": 4, "<unk>": 2}


def _words(text: str) -> list[str]:
    """Stretches of letters and of others, each with a space before it."""
    words: list[str] = []
    for character in text:
        joins = words and words[-1] and character.isalpha() == words[-1][-1].isalpha()
        if joins or (words and words[-1] == " "):
            words[-1] += character
        else:
            words.append(character)
    return words


def _trained_merges(words: list[list[str]], count: int) -> list[tuple[str, str]]:
    """Byte pair encoding: the most frequent pair, of equal ones the first in order of text."""
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        counts = Counter(pair for word in words for pair in itertools.pairwise(word))
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        merges.append(pair)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = ["".join(pair)]
                at += 1
    return merges


@cache
def trained(model: str, pre: str = "") -> dict[str, Any]:
    """GGUF's metadata of a small vocabulary, of one of its models: gpt2, gemma4, llama, t5, bert or
    rwkv."""
    if model == "gpt2":
        words = [list(byte_alphabet(w.encode())) for w in _words(CORPUS)]
    else:
        words = [list(w) for w in _words("▁" + CORPUS.replace(" ", "▁"))]
    own = _trained_merges(words, 220)
    made = ["".join(pair) for pair in own]
    if model == "gpt2":
        tokens = [*ALPHABET, *dict.fromkeys(made)]
        types = [1] * len(tokens)
    else:
        letters = sorted({c for text in made for c in text} | set("▁abcdefghijklmnopqrstuvwxyz.,"))
        if model == "bert":
            letters += [*"▁.", "▁,", "▁#", "re", "se", "au", "ue", "▁f", "▁s", "日", "▁日", "ing"]
            letters += [f"▁{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789'ßж日"]
        names = [f"<0x{b:02X}>" for b in range(256)] if model in ("gemma4", "llama") else []
        if model == "rwkv":
            made = [text.replace("▁", " ").replace("\n", "\\n") for text in made]
            made = [text for text in made if text not in SPECIALS]
            letters = [f"\\x{b:02x}" for b in range(256)] + ["\\\\n", "\\t\\t", "é\\'"]
        letters += ["\n", "\n\n"] if model == "gemma4" else []
        tokens = [*names, *dict.fromkeys([*made, *letters])]
        types = [6] * len(names) + [1] * (len(tokens) - len(names))
    tokens, types = [*SPECIALS, *tokens], [*SPECIALS.values(), *types]
    metadata: dict[str, Any] = {"model": model, "tokens": tokens, "token_type": types}
    metadata |= {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 5}
    if model in ("gpt2", "gemma4"):
        metadata |= {"pre": pre, "merges": [" ".join(pair) for pair in own]}
    elif model in ("bert", "rwkv"):
        metadata |= {"seperator_token_id": 1}
    else:
        first = tokens.index(made[0])
        metadata["scores"] = [
            0.0 if kind != 1 else -0.5 * (i - first) - 1.0 for i, kind in enumerate(types)
        ]
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value != ""}


# A name of each pre-tokeniser that merges bytes.
PRE_TOKENISERS = sorted({own: name for name, own in reversed(CUTS.items()) if name}.values())
PRE_TOKENISERS.remove("gemma4")

# What the cases of tests/golden/llama_tokens.json are made for; and some flags of SentencePiece.
TRAINED: dict[str, dict[str, Any]] = {
    "gpt-2": {"model": "gpt2", "pre": "gpt-2"},
    "llama-bpe": {"model": "gpt2", "pre": "llama-bpe"},
    "qwen2": {"model": "gpt2", "pre": "qwen2"},
    "smollm": {"model": "gpt2", "pre": "smollm"},
    "gpt-4o": {"model": "gpt2", "pre": "gpt-4o"},
    "tekken": {"model": "gpt2", "pre": "tekken"},
    "seed-coder": {"model": "gpt2", "pre": "seed-coder"},
    "bailingmoe": {"model": "gpt2", "pre": "bailingmoe"},
    "chatglm-bpe": {"model": "gpt2", "pre": "chatglm-bpe"},
    "gemma4": {"model": "gemma4"},
    "bert": {"model": "bert"},
    "bert-cased": {"model": "bert"},
    "rwkv": {"model": "rwkv"},
    "llama": {"model": "llama"},
    "t5": {"model": "t5"},
    "t5-without-flags": {"model": "t5"},
}
FLAGS: dict[str, dict[str, bool]] = {
    "t5": {"tokenizer.ggml.remove_extra_whitespaces": True, "tokenizer.ggml.add_bos_token": True},
    "bert-cased": {"tokenizer.ggml.normalizer.lowercase": False},
}


def trained_metadata(name: str) -> dict[str, Any]:
    """The metadata of one of `TRAINED`."""
    return trained(**TRAINED[name]) | FLAGS.get(name, {})
