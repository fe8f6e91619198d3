"""Strings as numbers: the model's strings are numbered by a table, and the caller gives any other a
negative number.

A tensor of strings is one of i64 (`Strings` of aot/ir/graph.py), noted in `Node.kinds`. Nothing
computes with strings: they are compared, moved, and looked up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import TensorProto

from aot.frontends.onnx.stored import MOVING
from aot.ir.types import Array

STRING = int(TensorProto.STRING)
# Ops whose entries know strings, or that look at nothing but shapes.
KNOWING = frozenset(
    {
        "ArrayFeatureExtractor",
        "CategoryMapper",
        "Equal",
        "LabelEncoder",
        "OneHotEncoder",
        "Shape",
        "Size",
        "StringNormalizer",
        "TfIdfVectorizer",
        "Where",
    }
)
# Ops that make strings of strings.
COMPUTING = frozenset({"RegexFullMatch", "StringConcat", "StringSplit", "Tokenizer"})
REASON = (
    "programs only compare, move and look up strings; compute this before the model, and "
    "make its result an input"
)
# The operand whose strings an op's first result has.
SOURCE = {"ArrayFeatureExtractor": 0, "Where": 1, **dict.fromkeys(MOVING, 0)}


class StringTable:
    """The table of strings that a model names, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Array:
        """The numbers of strings, i64[n]; adds new strings to the table."""
        known = self._numbers
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)

    def text(self, number: int) -> str:
        return self.texts[number]


def texts_of(tensor: Any) -> list[str]:
    """The contents of a TensorProto of strings."""
    return [decoded(text) for text in tensor.string_data]


def decoded(text: bytes) -> str:
    return bytes(text).decode("utf-8", "replace")
