"""Language models of GGUF files: llama.cpp's format of weights, without a graph.

Owns the way from a file to a module. `reader` and `splits` read files; `block_types`,
`block_fields`, `grid_types` and `grids` decode their blocks; `parts` and `architectures` are the
table of architectures; `keys`, `layers` and `model` read a model's numbers by it; `checks` refuses
what it does not have; `weights`, `caches`, `layer_graph`, `streams`, `decoder` and `encoder` make
the graph.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial

from aot.errors import CompileError, UnsupportedError
from aot.frontends.gguf.checks import EMBEDDING, checked
from aot.frontends.gguf.decoder import MOST_TOKENS, DecoderBuilder
from aot.frontends.gguf.encoder import EncoderBuilder
from aot.frontends.gguf.model import Model, model_of
from aot.frontends.gguf.reader import GgufFile
from aot.frontends.gguf.splits import read_gguf
from aot.frontends.gguf.weights import Weights, ends_of
from aot.frontends.lib.metadata import taken
from aot.ir.graph import Module
from aot.options import Progress, no_progress
from aot.text.gguf import read_vocabulary
from aot.text.vocabulary import Vocabulary

__all__ = ["DEFAULT_CONTEXT", "context_of", "import_gguf", "read_gguf"]

GENERAL = "general."  # what begins keys about the model: its name, author and licence
DEFAULT_CONTEXT = 2048  # tokens, where the model was made for more
DEFAULT_TEXT = 512  # tokens of a text that is embedded, likewise


def import_gguf(
    source: str | os.PathLike[str] | bytes,
    *,
    context: int = 0,
    all_logits: bool = False,
    cache_type: str = "f16",
    sequences: int = 1,
    progress: Progress = no_progress,
) -> Module:
    """A module whose function "main" takes tokens i32[T] and gives logits f32[1, vocabulary], or of
    a model that embeds texts, one text's tokens i32[T] and gives its embedding f32[1, width], or
    embeddings f32[T, width] where the file names no pooling.

    Args:
        source: a path, or the bytes of a file.
        context: tokens that its states hold; 0 is the model's number, at most DEFAULT_CONTEXT.
        all_logits: gives the logits f32[T, vocabulary] of all tokens, not of the last one only.
        sequences: that are continued at once. With more than one it takes tokens
            i32[sequences, T] and starts i32[sequences], the rows of each at its start that are
            padding, and gives f32[sequences, vocabulary].
        cache_type: how keys and values are kept: "f16", "int8" with a scale for each row, or
            "int4", which keeps values in 4 bits.
        progress: called with the number of tensors that were read, and of all.

    Raises:
        CompileError: the file is broken, or its contents contradict each other.
        UnsupportedError: its architecture is not supported, or it has keys, tensors or block types
            that nothing reads; all of them are named.
    """
    if sequences > MOST_TOKENS:
        raise CompileError(f"sequences is {sequences}, expected {MOST_TOKENS} at most")
    file = read_gguf(source)
    model = model_of(file)
    exact = () if model.pooling else ends_of(model.matrices)
    weights = Weights(file, checked(file, model), partial(progress, "import"), exact)
    _check_vocabulary(file)
    if model.pooling:
        return _encoder(file, model, weights, context, all_logits, cache_type, sequences)
    builder = DecoderBuilder(
        *(model, weights, context_of(model, _checked_context(file, model, context))),
        all_logits=all_logits,
        cache=cache_type,
        sequences=max(sequences, 1),
    )
    module = builder.build()
    module.vocabulary = _vocabulary(file)
    general = ((k, v) for k, v in file.metadata.items() if k.startswith(GENERAL))
    module.metadata = taken((k, v) for k, v in general if isinstance(v, str))
    return module


def _encoder(
    file: GgufFile,
    model: Model,
    weights: Weights,
    context: int,
    all_logits: bool,
    cache_type: str,
    sequences: int,
) -> Module:
    """The module of a model that embeds texts."""
    for flag, is_set in (
        ("--all-logits", all_logits),
        ("--cache-type", cache_type != "f16"),
        ("--sequences", sequences > 1),
    ):
        if is_set:
            raise CompileError(
                f"{file.where}: {flag} is for models that continue texts, and this one embeds them"
            )
    module = EncoderBuilder(model, weights, _text_length(file, model, context)).build()
    with suppress(UnsupportedError):  # a tokeniser that is not supported leaves one without text
        module.vocabulary = _vocabulary(file)
    return module


def _text_length(file: GgufFile, model: Model, wanted: int) -> int:
    """The most tokens of a text that is embedded."""
    return _checked_context(file, model, wanted) or min(model.context, DEFAULT_TEXT)


def _checked_context(file: GgufFile, model: Model, wanted: int) -> int:
    """The context that was asked for; 0 where none was.

    Raises:
        CompileError: the model has not so many positions.
    """
    if model.architecture.embedding.has_positions and wanted > model.context:
        raise CompileError(
            f"{file.where}: --context is {wanted}, expected {model.context} at most, the positions "
            "that the model has"
        )
    return wanted


def context_of(model: Model, wanted: int) -> int:
    """How many tokens the states of a model hold."""
    return wanted or min(model.context, DEFAULT_CONTEXT)


def _vocabulary(file: GgufFile) -> Vocabulary | None:
    """The file's vocabulary; None where it has none."""
    try:
        return read_vocabulary(file.metadata)
    except UnsupportedError as error:
        summary = str(error).partition("\n")[0]
        raise UnsupportedError(f"{file.where}: {summary}", error.items) from error
    except CompileError as error:
        raise CompileError(f"{file.where}: {error}") from error


def _check_vocabulary(file: GgufFile) -> None:
    """Raises a CompileError where the tokens are not as many as the embedding's rows."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    embedding = file.tensors.get(EMBEDDING)
    if not isinstance(tokens, list) or embedding is None:
        return
    if len(tokens) != embedding.dims[0]:
        raise CompileError(
            f"{file.where}: the vocabulary has {len(tokens)} tokens, and tensor "
            f"{EMBEDDING!r} has {embedding.dims[0]} rows"
        )
