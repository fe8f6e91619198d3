"""Writes tests/golden/llama_samplers.json: what llama.cpp's samplers leave of logits.

    python -m tests.support.llama_samplers FOLDER

FOLDER has the libraries of llama.cpp, as the npm package @node-llama-cpp/linux-x64 has them in
bins/linux-x64; the Python package gguf must be there. Tests read what this wrote, and need neither.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.llama_tokens import VOCAB_ONLY, open_library, write_gguf
from tests.support.paths import ROOT
from tests.support.vocabularies import trained_metadata

GOLDEN = ROOT / "tests" / "golden" / "llama_samplers.json"
VOCABULARY = "gpt-2"
SEEDS = range(3)  # of the logits of each case
FIRST = 20  # so many of the most probable tokens are told, and all that came before
BREAKERS = ("\n", ":", '"', "*")

# Options of `aot.runtime.sampling.Sampler`; `text` is what came before, its tokens the history.
REPEATED = 'the cat sat on the mat; the cat sat on the hat; "the cat sat on the mat; the cat sat on'
CASES: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 7, "temperature": 0.7},
    "top_p": {"top_p": 0.8, "temperature": 1.3},
    "min_p": {"min_p": 0.05, "temperature": 1.0},
    "typical": {"typical_p": 0.5, "temperature": 1.0},
    "typical, nearly all": {"typical_p": 0.97, "temperature": 0.9},
    "typical, little": {"typical_p": 0.05, "temperature": 1.0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.1, "temperature": 1.0},
    "xtc, few": {"xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 0.8},
    "xtc, none": {"xtc_probability": 1.0, "xtc_threshold": 0.49, "temperature": 1.0},
    "chain": {
        "top_k": 60,
        "typical_p": 0.9,
        "top_p": 0.85,
        "min_p": 0.02,
        "temperature": 1.5,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.05,
    },
    "mirostat": {"mirostat_tau": 2.0, "mirostat_eta": 0.1, "temperature": 1.0},
    "mirostat, warm": {"mirostat_tau": 1.2, "mirostat_eta": 0.2, "temperature": 2.0},
    "biases": {"logit_bias": {3: -100.0, 5: 4.0, 9: -2.5}, "temperature": 1.0},
    "repetition": {"repetition_penalty": 1.3, "text": REPEATED, "temperature": 1.0},
    "frequency": {"frequency_penalty": 0.7, "text": REPEATED, "temperature": 1.0},
    "presence": {"presence_penalty": 1.1, "text": REPEATED, "temperature": 1.0},
    "penalties, negative": {
        "frequency_penalty": -0.2,
        "presence_penalty": -0.4,
        "repetition_penalty": 0.9,
        "penalty_window": 9,
        "text": REPEATED,
        "temperature": 1.0,
    },
    "dry": {"dry_multiplier": 0.8, "text": REPEATED, "temperature": 1.0},
    "dry, short": {
        "dry_multiplier": 0.5,
        "dry_base": 1.2,
        "dry_allowed_length": 1,
        "dry_window": 12,
        "text": "aaaaaaaaaaaa aaaaa aaaaaaaa",
        "temperature": 1.0,
    },
    "dry, broken": {
        "dry_multiplier": 2.0,
        "text": REPEATED + ":\n the cat sat",
        "temperature": 1.0,
    },
    "dry, no end": {"dry_multiplier": 3.0, "dry_base": 3.0, "text": " ab" * 90, "temperature": 1.0},
    "all penalties": {
        "logit_bias": {2: 1.0},
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "penalty_window": 30,
        "dry_multiplier": 0.8,
        "text": REPEATED,
        "top_p": 0.9,
        "temperature": 0.8,
    },
}


def logits_of(seed: int, count: int) -> NDArray[np.float32]:
    """The logits of a case: f32[count]."""
    return (np.random.default_rng(seed).standard_normal(count) * 3).astype(np.float32)


class _Data(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Bias(ctypes.Structure):
    _fields_ = (("token", ctypes.c_int32), ("bias", ctypes.c_float))


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(_Data)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Llama:
    """llama.cpp's samplers on a vocabulary."""

    def __init__(self, folder: Path, metadata: dict[str, Any]) -> None:
        self.library = open_library(folder)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "vocabulary.gguf"
            write_gguf(path, metadata)
            params = self.library.llama_model_default_params()
            params.data[VOCAB_ONLY] = 1
            model = self.library.llama_model_load_from_file(str(path).encode(), params)
        self.vocabulary = self.library.llama_model_get_vocab(model)
        self.count = len(metadata["tokenizer.ggml.tokens"])

    def tokens(self, text: str) -> list[int]:
        found = (ctypes.c_int32 * (4 * len(text) + 16))()
        data = text.encode()
        count = self.library.llama_tokenize(
            self.vocabulary, data, len(data), found, len(found), False, False
        )
        return list(found[:count])

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        function = getattr(self.library, f"llama_sampler_init_{name}")
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    def chain(self, options: Mapping[str, Any]) -> Iterator[ctypes.c_void_p]:
        """The samplers of options, in the order of llama.cpp's own programs but for the biases."""
        number = ctypes.c_float
        if biases := options.get("logit_bias"):
            array = (_Bias * len(biases))(*(_Bias(t, b) for t, b in biases.items()))
            yield self._made("logit_bias", self.count, len(array), array)
        names = "repetition_penalty", "frequency_penalty", "presence_penalty"
        if any(name in options for name in names):
            default = (1.0, 0.0, 0.0)
            given = [number(options.get(n, d)) for n, d in zip(names, default, strict=True)]
            yield self._made("penalties", self.count, options.get("penalty_window", 64), *given)
        if multiplier := options.get("dry_multiplier"):
            breakers = (ctypes.c_char_p * len(BREAKERS))(*(text.encode() for text in BREAKERS))
            yield self._made(
                *("dry", ctypes.c_void_p(self.vocabulary), number(multiplier)),
                *(number(options.get("dry_base", 1.75)), options.get("dry_allowed_length", 2)),
                *(options.get("dry_window", 4096), breakers, ctypes.c_size_t(len(BREAKERS))),
            )
        one = ctypes.c_size_t(1)
        if "top_k" in options:
            yield self._made("top_k", options["top_k"])
        for name, key in (("typical", "typical_p"), ("top_p", "top_p"), ("min_p", "min_p")):
            if key in options:
                yield self._made(name, number(options[key]), one)
        if "xtc_probability" in options:
            given = [number(options[f"xtc_{name}"]) for name in ("probability", "threshold")]
            yield self._made("xtc", *given, one, 1)
        yield self._made("temp", number(options["temperature"]))
        if "mirostat_tau" in options:
            given = [number(options[f"mirostat_{name}"]) for name in ("tau", "eta")]
            yield self._made("mirostat_v2", 1, *given)

    def left(
        self, options: Mapping[str, Any], history: list[int], logits: NDArray[np.float32]
    ) -> list[tuple[int, float]]:
        """The tokens that samplers leave, the most probable first, with their probabilities."""
        data = (_Data * len(logits))(*(_Data(i, x, 0) for i, x in enumerate(logits.tolist())))
        array = _Array(data, len(logits), -1, False)
        for sampler in self.chain(options):
            for token in history:
                self.library.llama_sampler_accept(sampler, token)
            self.library.llama_sampler_apply(sampler, ctypes.byref(array))
        found = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
        weights = np.exp(np.array([x for _, x in found]) - max(x for _, x in found))
        shares = (weights / weights.sum()).tolist()
        own = [(token, share) for (token, _), share in zip(found, shares, strict=True)]
        return sorted(own, key=lambda pair: (-pair[1], pair[0]))


def main(folder: Path) -> None:
    """Writes the file."""
    llama = Llama(folder, trained_metadata(VOCABULARY))
    found: dict[str, Any] = {}
    for name, options in CASES.items():
        history = llama.tokens(options.get("text", ""))
        left = [llama.left(options, history, logits_of(s, llama.count)) for s in SEEDS]
        texts = [
            {
                "count": len(one),
                "told": [
                    [token, float(f"{share:.5g}")]
                    for place, (token, share) in enumerate(one)
                    if place < FIRST or token in history
                ],
            }
            for one in left
        ]
        found[name] = {"history": history, "left": texts}
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in CASES]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
