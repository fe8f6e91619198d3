"""Tokenisers and samplers of the runtime that tests build, with its internals visible."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from aot.link.vocabulary import encode_vocabulary
from aot.runtime import loader, text
from aot.runtime.text import Tokeniser
from aot.text.gguf import read_vocabulary
from aot.text.vocabulary import Vocabulary
from tests.support import runtime_api
from tests.support.vocabularies import trained_metadata


@contextmanager
def own_library() -> Iterator[None]:
    """The binding with the library of the checkout."""
    before = os.environ.get(loader.LIBRARY_VARIABLE)
    os.environ[loader.LIBRARY_VARIABLE] = str(runtime_api.library_path())
    try:
        yield
    finally:
        if before is None:
            del os.environ[loader.LIBRARY_VARIABLE]
        else:
            os.environ[loader.LIBRARY_VARIABLE] = before


@cache
def trained_tokeniser(name: str, **flags: bool) -> Tokeniser:
    """The tokeniser of one of `TRAINED` of tests.support.vocabularies."""
    metadata = trained_metadata(name)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in flags.items()}
    found = read_vocabulary(metadata)
    assert found is not None
    return opened(found)


def opened(vocabulary: Vocabulary | bytes) -> Tokeniser:
    """The tokeniser of a vocabulary, or of a segment's bytes."""
    data = vocabulary if isinstance(vocabulary, bytes) else encode_vocabulary(vocabulary)
    with own_library():
        return Tokeniser(data, is_segment=True)


def native() -> ctypes.CDLL:
    """The library, with the functions of text.h."""
    library = runtime_api.library()
    for name, (result, *arguments) in text.SIGNATURES.items():
        function: Any = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
