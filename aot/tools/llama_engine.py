"""llama.cpp, a runtime for GGUF files, as an engine to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.errors import CompileError
from aot.tools.engine_errors import cannot_run

Arrays = Mapping[str, NDArray[Any]]
TOKENS, LOGITS = "tokens", "logits"


def open_llama(
    model: Path, context: int, *, all_logits: bool
) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Opens a GGUF model in llama.cpp, on one CPU thread; returns a function from tokens i32[T],
    which continue those of earlier calls, to logits f32[rows, vocabulary].

    Args:
        context: how many tokens all runs have together.
        all_logits: whether there is a row for each token of a run; else one, for the last.

    Raises:
        CompileError: llama-cpp-python is not installed, or can't read the model; or later can't
            run it.
    """
    try:
        from llama_cpp import Llama
    except ImportError as error:
        raise CompileError("llama.cpp is not installed: pip install llama-cpp-python") from error
    try:
        opened = Llama(
            str(model),
            n_ctx=context,
            n_batch=context,
            n_threads=1,
            n_threads_batch=1,
            n_gpu_layers=0,
            logits_all=True,
            verbose=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise cannot_run("llama.cpp", model, error) from error

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        tokens = inputs[TOKENS]
        if tokens.ndim != 1:
            raise CompileError(
                f"llama.cpp cannot run {model} with several sequences: compare with the reference"
            )
        first = opened.n_tokens if all_logits else opened.n_tokens + tokens.size - 1
        try:
            opened.eval(tokens.tolist())
        except (RuntimeError, ValueError) as error:
            raise cannot_run("llama.cpp", model, error) from error
        return {LOGITS: np.array(opened.scores[first : opened.n_tokens], np.float32)}

    return run
