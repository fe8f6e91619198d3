"""Embeddings of texts by a module that embeds them: tokens i32[T] in, one row f32[1, width] out.

Owns what is refused, and the scaling to length 1. What tokens are is the runtime's
(`aot.runtime.text`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aot.errors import RuntimeFailure
from aot.runtime.loader import Program
from aot.runtime.text import Tokeniser

Text = str | bytes | Sequence[int] | NDArray[np.int32]
Rows = NDArray[np.float32]


def embed(
    program: Program, texts: Text | Sequence[Text], *, is_scaled: bool = True
) -> NDArray[np.float32]:
    """The embeddings of texts, f32[texts, width].

    Args:
        program: of a module that was compiled from a model that embeds texts.
        texts: one or several, each a string, UTF-8, or the numbers of its tokens.
        is_scaled: to length 1, so that the product of two rows is the cosine of their angle; else
            they are as the model gives them.

    Raises:
        RuntimeFailure: the program embeds no texts, or a text is not UTF-8, has no tokens or more
            than the module was compiled for.
    """
    low, high = check_embedding_program(program)
    listed = [texts] if _is_one(texts) else list(texts)
    tokeniser = None
    rows = []
    for number, text in enumerate(listed):
        if isinstance(text, str | bytes):
            tokeniser = tokeniser or Tokeniser(program)
            tokens = tokeniser.encode(text)
        else:
            tokens = np.asarray(text, np.int32).reshape(-1)
        if not low <= tokens.size <= high:
            advice = "shorten it, or compile the model with a longer --context"
            raise RuntimeFailure(
                f"text {number + 1} has {tokens.size} tokens, expected {low} to {high}"
                + (f"; {advice}" if tokens.size else ""),
                "capacity",
            )
        (row,) = program.run([tokens])
        rows.append(np.array(row, np.float32)[0])
    width = program.outputs[0].dims[-1]
    found = np.stack(rows) if rows else np.empty((0, int(width)), np.float32)
    return scaled(found) if is_scaled else found


def scaled(rows: Rows) -> Rows:
    """Rows scaled to length 1; a row of zeros stays one."""
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(-1, keepdims=True))
    return np.asarray(rows / np.where(lengths == 0, 1, lengths), np.float32)


def check_embedding_program(program: Program) -> tuple[int, int]:
    """How many tokens a text has, at least and at most.

    Raises:
        RuntimeFailure: the program embeds no texts.
    """
    inputs, outputs = program.inputs, program.outputs
    fault = ""
    if [(t.dtype, len(t.dims)) for t in inputs] != [("i32", 1)]:
        fault = "it does not take one input, tokens i32[T]"
    elif program.state_capacity:
        fault = "it continues a text: `aotc generate` does that"
    elif len(outputs) != 1 or outputs[0].dtype != "f32" or len(outputs[0].dims) != 2:
        fault = "it does not give one output, an embedding f32[1, width]"
    elif outputs[0].dims[0] != 1:
        fault = "it gives a row for each token, and its model names no pooling of them"
    if fault:
        raise RuntimeFailure(
            f'entry point "{program.entry}" embeds no texts: {fault}', "unsupported"
        )
    low, high = inputs[0].bounds[0]
    return max(low, 1), high if high is not None else (1 << 31) - 1


def _is_one(texts: Text | Sequence[Text]) -> bool:
    """Whether it is one text: a string, or a sequence of numbers."""
    if isinstance(texts, str | bytes):
        return True
    if isinstance(texts, np.ndarray):
        return texts.ndim == 1
    return len(texts) > 0 and isinstance(texts[0], int | np.integer)
