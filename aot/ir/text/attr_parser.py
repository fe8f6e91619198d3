"""Parses values of the text form: dims, types, attributes, contents of constants, and blobs.

Owns the grammar inside one op's braces and types; `aot.ir.text.parser` owns what is around it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from typing import Any

import numpy as np

from aot.ir.dim_parser import parse
from aot.ir.dims import Dim
from aot.ir.graph import Attr, ConstantData, FunctionRef
from aot.ir.text.tokens import END, Tokens
from aot.ir.types import DType, Layout, TensorType

MAX_TUPLE_DEPTH = 32
MAX_RANK = 64
MAX_SPLAT_BYTES = 1 << 30  # of all splats of a text together

_DTYPES = {str(d): d for d in DType if d.is_stored}
_DIM_TYPES = frozenset({"dim", "dims", "int", "ints"})
_OPERATORS = frozenset({"+", "-", "*", "//"})


def read_blobs(tokens: Tokens) -> dict[str, bytes | None]:
    """Contents of the blobs at the end of a text, by digest; None for elided ones. They are read
    first, as constants need them.

    Blobs stand at the end but constants need them, so that they are read first.
    """
    blobs: dict[str, bytes | None] = {}
    depth = 0
    start = tokens.at
    for at, (kind, text) in enumerate(zip(tokens.kinds, tokens.texts, strict=True)):
        if kind == "punct" and text in ("{", "}"):
            depth += 1 if text == "{" else -1
        if depth == 0 and kind == "word" and text == "blob" and tokens.kinds[at + 1] == "string":
            tokens.at = at + 1
            digest = tokens.string()
            blobs[digest] = _blob_bytes(tokens, digest)
    tokens.at = start
    return blobs


def _blob_bytes(tokens: Tokens, digest: str) -> bytes | None:
    if tokens.take("elided"):
        return None
    tokens.expect("=")
    start = tokens.at
    try:
        contents = base64.b64decode(tokens.string("the blob's base64 in quotes"), validate=True)
    except (binascii.Error, ValueError):
        raise tokens.error("blob is not base64", start) from None
    if hashlib.blake2b(contents, digest_size=16).hexdigest() != digest:
        raise tokens.error(f"blob has not the digest {digest!r} that it is named by", start)
    return contents


class AttrParser:
    """Reads values from `tokens`; `blobs` are the contents that constants name."""

    def __init__(self, tokens: Tokens, blobs: dict[str, bytes | None]) -> None:
        self.tokens = tokens
        self.blobs = blobs
        self.depth = 0
        self.splat_bytes = 0

    def skip_blob(self) -> None:
        """Skips `blob "digest" = "base64"` or `blob "digest" elided N bytes`."""
        tokens = self.tokens
        tokens.expect("blob")
        tokens.string("the blob's digest in quotes")
        if tokens.take("elided"):
            tokens.next("int", "a number of bytes")
            tokens.expect("bytes")
        else:
            tokens.expect("=")
            tokens.string("the blob's base64 in quotes")

    def function_name(self) -> str:
        """Parses `@name` or `@"any name"`."""
        self.tokens.expect("@")
        if self.tokens.kind == "string":
            return self.tokens.string()
        return self.tokens.next("word", "the name of a function")

    def dim(self) -> Dim:
        """Parses a dim: as many tokens as one expression has."""
        tokens = self.tokens
        start, depth, wants_operand = tokens.at, 0, True
        while tokens.kind != END:
            text = tokens.word
            if tokens.kind in ("int", "word"):
                if not wants_operand:
                    break
                wants_operand = tokens.peek() == "(" and text in ("max", "min")
            elif text == "(" and wants_operand:
                depth += 1
            elif text == ")" and depth and not wants_operand:
                depth -= 1
            elif (text in _OPERATORS and not wants_operand) or (
                text == "," and depth and not wants_operand
            ):
                wants_operand = True
            elif not (text == "-" and wants_operand):
                break
            tokens.at += 1
        if tokens.at == start or wants_operand or depth:
            raise tokens.expected("')'" if depth and not wants_operand else "a dim")
        begin, end = tokens.starts[start], tokens.starts[tokens.at - 1]
        try:
            return parse(tokens.text[begin : end + len(tokens.texts[tokens.at - 1])])
        except ValueError as error:
            raise tokens.error(str(error), start) from None

    def type(self) -> TensorType:
        """Parses `dtype[dims]` and an optional layout in braces."""
        tokens = self.tokens
        start = tokens.at
        if tokens.kind != "word" or tokens.word not in _DTYPES:
            raise tokens.expected("a type such as 'f32[N, 3]'")
        dtype = _DTYPES[tokens.word]
        tokens.at += 1
        tokens.expect("[")
        extents: list[Dim] = []
        while not tokens.take("]"):
            if extents:
                tokens.expect(",")
            extents.append(self.dim())
        if len(extents) > MAX_RANK:
            raise tokens.error(
                f"type has {len(extents)} dims, at most {MAX_RANK} are allowed", start
            )
        layout = self.layout() if tokens.is_punct("{") else None
        found = TensorType(dtype, tuple(extents), layout)
        if found.problem:
            raise tokens.error(f"type {found} is wrong: {found.problem}", start)
        return found

    def layout(self) -> Layout:
        tokens = self.tokens
        start = tokens.at
        while not tokens.take("}"):
            if tokens.kind == END:
                raise tokens.expected("'}'")
            tokens.at += 1
        begin, end = tokens.starts[start], tokens.starts[tokens.at - 1] + 1
        try:
            return Layout.parse(tokens.text[begin:end])
        except ValueError as error:
            raise tokens.error(str(error), start) from None

    def attr(self, declared: str) -> Attr:
        """An attribute's value; `declared` is the attribute's type, or "" if unknown."""
        tokens = self.tokens
        if tokens.kind == "string":
            return tokens.string()
        if tokens.is_punct("["):
            return self.items(declared)
        if tokens.is_punct("{"):
            return self.layout()
        if tokens.is_punct("@"):
            return FunctionRef(self.function_name())
        if declared not in _DIM_TYPES:
            number = self.number()
            if number is not None:
                return number
            if tokens.kind == "word" and tokens.word in ("true", "false"):
                tokens.at += 1
                return tokens.texts[tokens.at - 1] == "true"
            if tokens.kind == "word" and tokens.word in _DTYPES:
                if tokens.peek() == "[":
                    return self.constant()
                tokens.at += 1
                return _DTYPES[tokens.texts[tokens.at - 1]]
        if tokens.kind not in ("int", "word") and tokens.word not in ("-", "("):
            raise tokens.expected("an attribute's value")
        return self.dim()

    def number(self) -> float | None:
        """Parses a float if one is next: it has a point, an exponent, or is inf or nan."""
        tokens = self.tokens
        skip = 1 if tokens.is_punct("-") else 0
        at = tokens.at + skip
        kind, text = tokens.kinds[at], tokens.texts[at]
        if kind != "float" and not (kind == "word" and text in ("inf", "nan")):
            return None
        if kind == "float" and math.isinf(float(text)):
            raise tokens.error(f"{text} does not fit a float", at)
        tokens.at = at + 1
        return -float(text) if skip else float(text)

    def items(self, declared: str) -> tuple[Attr, ...]:
        self.tokens.expect("[")
        self.depth += 1
        if self.depth > MAX_TUPLE_DEPTH:
            raise self.tokens.error(f"lists are nested deeper than {MAX_TUPLE_DEPTH}")
        items: list[Attr] = []
        while not self.tokens.take("]"):
            if items:
                self.tokens.expect(",")
            items.append(self.attr(declared))
        self.depth -= 1
        return tuple(items)

    def constant(self) -> ConstantData:
        """Parses `type <elements>`, `type <splat element>` or `type <blob "digest">`."""
        tokens = self.tokens
        start = tokens.at
        type = self.type()
        if not type.is_static or (type.layout is not None and type.layout.strides):
            raise tokens.error(
                f"a constant cannot have type {type}: it needs numbers as dims and no strides",
                start,
            )
        shape = tuple(int(d) for d in type.physical_dims)
        count = math.prod(shape)
        tokens.expect("<")
        if tokens.take("splat"):
            self.splat_bytes += type.dtype.storage_bytes(count)
            if self.splat_bytes > MAX_SPLAT_BYTES:
                raise tokens.error(
                    f"constants with 'splat' take more than {MAX_SPLAT_BYTES} bytes", start
                )
            array = np.full(shape, self.element(type.dtype), type.dtype.numpy)
        elif tokens.take("blob"):
            array = self.blob(type, shape, count)
        else:
            array = self.elements(type.dtype, count, start).reshape(shape)
        tokens.expect(">")
        return ConstantData(array, type)

    def elements(self, dtype: DType, count: int, start: int) -> np.ndarray[Any, Any]:
        values: list[Any] = []
        while not self.tokens.is_punct(">"):
            if values:
                self.tokens.expect(",")
            values.append(self.element(dtype))
        if len(values) != count:
            raise self.tokens.error(f"expected {count} elements, found {len(values)}", start)
        return np.array(values, dtype.numpy)

    def blob(self, type: TensorType, shape: tuple[int, ...], count: int) -> np.ndarray[Any, Any]:
        tokens = self.tokens
        start = tokens.at
        digest = tokens.string("the digest of a blob in quotes")
        if digest not in self.blobs:
            raise tokens.error(f"there is no blob {digest!r}", start)
        contents = self.blobs[digest]
        if contents is None:
            raise tokens.error(
                f"blob {digest!r} is elided: text printed without its blobs is for "
                "reading only; print it with them",
                start,
            )
        taken = type.dtype.storage_bytes(count)
        if len(contents) != taken:
            raise tokens.error(
                f"blob {digest!r} has {len(contents)} bytes, a constant of type {type} has {taken}",
                start,
            )
        little = type.dtype.numpy.newbyteorder("<")
        if type.dtype is DType.BOOL and contents.strip(b"\0\1"):
            raise tokens.error(f"blob {digest!r} holds bytes that are no bool", start)
        return np.frombuffer(contents, little).astype(type.dtype.numpy).reshape(shape)

    def element(self, dtype: DType) -> Any:
        """Parses one element of a constant."""
        tokens = self.tokens
        start = tokens.at
        if dtype is DType.BOOL:
            if tokens.kind != "word" or tokens.word not in ("true", "false"):
                raise tokens.expected("'true' or 'false'")
            tokens.at += 1
            return np.bool_(tokens.texts[start] == "true")
        sign = -1 if tokens.take("-") else 1
        is_word = tokens.kind == "word" and tokens.word in ("inf", "nan") and dtype.is_float
        if not is_word and tokens.kind not in (("int", "float") if dtype.is_float else ("int",)):
            raise tokens.expected(f"a number of {dtype}")
        text = tokens.word
        tokens.at += 1
        if not dtype.is_float:
            info = np.iinfo(dtype.numpy)
            if len(text) > 20 or not info.min <= sign * int(text) <= info.max:
                raise tokens.error(f"{'-' if sign < 0 else ''}{text} does not fit {dtype}", start)
            return dtype.numpy.type(sign * int(text))
        with np.errstate(over="ignore"):
            value = dtype.numpy.type(sign * float(text))
        if np.isinf(value) and not is_word:
            raise tokens.error(f"{text} does not fit {dtype}", start)
        return value
