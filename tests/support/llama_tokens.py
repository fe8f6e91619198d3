"""Writes tests/golden/llama_tokens.json: what llama.cpp makes of text with small vocabularies.

    python -m tests.support.llama_tokens FOLDER

FOLDER has the libraries of llama.cpp, as the npm package @node-llama-cpp/linux-x64 has them in
bins/linux-x64; the Python package gguf must be there. Tests read what this wrote, and need neither.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.chat_templates import CONVERSATIONS, TEMPLATES
from tests.support.jinja_oracle import expected
from tests.support.paths import ROOT
from tests.support.vocabularies import PRE_TOKENISERS, TRAINED, trained, trained_metadata

GOLDEN = ROOT / "tests" / "golden" / "llama_tokens.json"
VOCAB_ONLY = 72  # the offset of `vocab_only` in llama_model_params, 80 bytes, of version 0.5.0

LINES = (
    "",
    " ",
    "  a   b \n\n c\t\td  ",
    "The quick brown fox",
    "it's IT'S we'Re they'll 'S 'sa 've",
    "1 12 123 1234 12345, 3.14 ١٢٣ Ⅷ½²",
    "x=1;y=22;  z+=333\r\n\r\n  if (a[0] != b) {",
    "naïve Straße été Öfen",
    "Привет, мир! שלום مرحبا नमस्ते",
    "你好,世界。日本語のテスト 한국어",
    "😀👍🏽 👩‍👩‍👧 e\u0301 a\u0300\u0301",
    "\u00a0\u2003x\u3000y\u0085z\u200bw\ufeff \u2028 \u180e",
    "\x00\x01\x1b[0m\x7f\u0080\ue000\U0010ffff\u0378",
    "<|im_start|>user\nhi<|im_end|>\n<think>a</think>",
    "<|im<|im_end|><|im_start<|im_start|>|><|im|>",
    " <think> <think>  <|im_end|>  x <unk>y",
    "      x       y\n\n\n   \n z",
    "<0x0A> ▁a ▁▁ <s>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaathethethethethetheing",
    '!?...,,,;;--==++ ~~``^^ "q" (p) [b]',
    "end ",
    " \n",
    "\ufb01 \u212b ㍿ ﷺ \uff21\uff42",
    "helloWorld HTTPServer ÉÀ ÉcoleA ABÉ aBÉc Éa ÑandÚ iPhone's JSON'LL xÉA'd été's I'm",
    "a/b//c/\n/ //\r\n/x ---/\n\n  /usr/bin!/ ?\n",
)
# Beside those, where the patterns of pre-tokenisers differ.
CUT_LINES = (
    "12345678 1234567, 123456 x 1234- 12 1234567é ١٢٣٤٥٦٧ a 1234 b 5678 c",
    "<sentinel:12><sentinel:> IMGIMGABCZ IMGIMGZ IMGIMGABCDEZ <sentinel:3",
    "한국어ㄱㄴ ㄅㄆ 、。〈〉…“x” 漢字かなカナ｡ｱ ก ა 가나다 !abc #Tag \r\n.",
    f"{' ' * 700}x{' ' * 600}\n{chr(9) * 9}y{' ' * 300}",
    "a b cd  e f\n g x\n\n\n\ny\n z\r\n\r\n  \r w (a,b) |.,!?…。\uff0c、।\u06d4، {c}",
    "\u0301x e\u0301e 1\u0301 नमस्ते ก็ আমি \U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8"
    " ǅ ʰa ªº ⅫⅷA \uff11\uff12\uff13 \uff21\uff22\uff43 \U00010400",
    "漢字abc漢字's 漢'S 漢 's \u3000\u00a0 \u2028x\u0085\n\u0085 \ufeff\u200d",
)


class _Params(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * 256),)  # no less than the structure's own


def open_library(folder: Path) -> ctypes.CDLL:
    """llama.cpp's library, and those that it needs, which stay."""
    library = None
    for name in ("libggml-base", "libggml", "libllama"):
        (path,) = [p for p in folder.glob(f"{name}*.so") if p.name[len(name)] == "."]
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    assert library is not None
    library.llama_model_default_params.restype = _Params
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_load_from_file.argtypes = (ctypes.c_char_p, _Params)
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
    library.llama_tokenize.argtypes = (
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_bool, ctypes.c_bool),
    )
    return library


def tokeniser(library: ctypes.CDLL, path: Path) -> Callable[..., list[int]]:
    """What encodes a text, and parses control tokens or not, with the vocabulary of a file."""
    params = library.llama_model_default_params()
    params.data[VOCAB_ONLY] = 1
    model = library.llama_model_load_from_file(str(path).encode(), params)
    vocabulary = library.llama_model_get_vocab(model)

    def encode(text: str, parses_control: bool, is_part: bool = False) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (4 * len(data) + 16))()
        size = len(tokens)
        count = library.llama_tokenize(
            vocabulary, data, len(data), tokens, size, not is_part, parses_control
        )
        return list(tokens[:count])

    return encode


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    """A file that has no more than a vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{name}", 64)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def conversation_texts(template: str) -> list[str]:
    """The conversations in which nobody writes the name of a control token, as Jinja renders them;
    those that it refuses are left out."""
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    texts = (
        expected(template, {**variables, **tokens})
        for name, variables in CONVERSATIONS.items()
        if name != "control tokens"
    )
    return [text for text in texts if text is not None]


def digest(lists: Iterable[list[int]]) -> str:
    """A digest of lists of tokens."""
    return hashlib.sha256(json.dumps(list(lists)).encode()).hexdigest()[:16]


def main(folder: Path) -> None:
    """Writes the file."""
    library = open_library(folder)
    found: dict[str, Any] = {"lines": LINES, "tokens": {}, "conversations": {}, "cuts": {}}
    for name in TRAINED:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "vocabulary.gguf"
            write_gguf(path, trained_metadata(name))
            encode = tokeniser(library, path)
            found["tokens"][name] = [
                [encode(line, parses_control) for line in LINES] for parses_control in (False, True)
            ]
            found["conversations"][name] = {
                style: digest(
                    encode(text, True, is_part=True) for text in conversation_texts(template)
                )
                for style, template in TEMPLATES.items()
            }
    for name in PRE_TOKENISERS:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "vocabulary.gguf"
            write_gguf(path, trained("gpt2", name))
            encode = tokeniser(library, path)
            found["cuts"][name] = [digest([encode(line, False)]) for line in (*LINES, *CUT_LINES)]
    text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
    GOLDEN.write_text(text + "\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
