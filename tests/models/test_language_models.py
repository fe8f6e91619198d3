"""A real language model of a GGUF file, whose answer llama.cpp agrees with, token by token."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from tests.support.models import model_path

# "What is the capital of France?" as a chat, and the answer's first tokens, as llama.cpp reads them
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531]
ANSWER = [198, 504, 3575, 282, 4649, 314, 7042]  # "\nThe capital of France is Paris"


@pytest.mark.slow
@pytest.mark.models
def test_smollm2_answers() -> None:
    path = model_path("smollm2_135m")
    module = aot.compile(path, context=64, jobs=1)
    data = module.to_bytes()
    assert len(data) <= 1.03 * path.stat().st_size
    with aot.load(data) as program:
        tokens, said = PROMPT, []
        for _ in ANSWER:
            logits = program(np.asarray(tokens, np.int32))["logits"]
            assert logits.shape == (1, 49152)
            said.append(int(logits.argmax()))
            tokens = said[-1:]
    assert said == ANSWER
