"""Small vocabularies of each scheme, with every field that it has."""

from __future__ import annotations

from typing import Any

from aot.text.vocabulary import (
    ALPHABET,
    ChatForm,
    PreTokeniser,
    Scheme,
    TokenType,
    Vocabulary,
)


def byte_vocabulary(**fields: Any) -> Vocabulary:
    """All bytes, the merge "a b" and a control token."""
    given: dict[str, Any] = {
        "scheme": Scheme.BYTE_MERGES,
        "tokens": (*ALPHABET, "ab", "<s>"),
        "types": (*[TokenType.NORMAL] * 257, TokenType.CONTROL),
        "scores": (0.0,) * 258,
        "merges": (("a", "b"),),
        "pre_tokeniser": PreTokeniser.GPT2,
        "bos": 257,
        "end_tokens": frozenset({257}),
        "chat_template": "{{ messages }}",
        "chat_form": ChatForm({"user": ("<s>", "\n")}, "<s>", "a", "b"),
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
