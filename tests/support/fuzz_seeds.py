"""Seeds and modules of the runtime's fuzzers: small inputs that are whole, and get far.

What an input of each is, the fuzzer's own source says (runtime/tests/fuzz).
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import aot
from aot.link.template_compiler import compile_template
from aot.link.vocabulary import encode_vocabulary
from aot.text.gguf import read_vocabulary
from aot.text.vocabulary import Vocabulary
from tests.support.chat_templates import CONVERSATIONS, TEMPLATES
from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE, MIXED
from tests.support.jinja_snippets import SNIPPETS, VARIABLES
from tests.support.language_models import FORGETS, language_module
from tests.support.module_seeds import write_seeds
from tests.support.vocabularies import (
    CORPUS,
    TRAINED,
    byte_vocabulary,
    replacements,
    trained_metadata,
)

TEXTS = ((0, CORPUS[:150]), (7, "a <|im_end|> <think>x  \n\nthe 123 été"), (31, "the " * 30))
STATE_HEADER_BYTES = 48
CASES = tuple[list[int], tuple[bytes, ...], dict[str, Any]]


def module_seeds() -> Iterator[bytes]:
    """Modules that have every field and instruction, for CPUs and GPUs."""
    with TemporaryDirectory() as folder:
        for path in write_seeds(Path(folder)):
            yield path.read_bytes()


# ---- vocabularies and text ----


def trained(name: str) -> Vocabulary:
    """A vocabulary of a scheme, trained on a short text."""
    found = read_vocabulary(trained_metadata(name))
    assert found is not None
    return found


def text_input(options: int, text: bytes, segment: bytes) -> bytes:
    """An input of the fuzzer of text: options, a text and a vocabulary's bytes."""
    return bytes([options, *len(text).to_bytes(2, "little")]) + text + segment


def text_seeds() -> Iterator[bytes]:
    """Each scheme's vocabulary with each text."""
    segments = [encode_vocabulary(byte_vocabulary())]
    segments += [encode_vocabulary(trained(name)) for name in TRAINED]
    table = replacements({b"T": 2, "é".encode(): 0, b"over": 5}, "b\0é€\0".encode())
    segments.append(encode_vocabulary(replace(trained("t5"), replacements=table)))
    for segment, (options, text) in itertools.product(segments, TEXTS):
        yield text_input(options, text.encode(), segment)


# ---- chat templates ----


def template_input(words: list[int], texts: tuple[bytes, ...], variables: dict[str, Any]) -> bytes:
    """An input of the fuzzer of templates: code, its texts, and variables."""
    ends = list(itertools.accumulate(len(text) for text in texts))
    head = struct.pack("<HB", len(words), len(texts))
    numbers = struct.pack(f"<{len(words) + len(ends)}I", *words, *ends)
    return head + numbers + b"".join(texts) + b"\0" + json.dumps(variables).encode()


def template_cases() -> list[CASES]:
    """Code that an input holds, and variables that take it far."""
    conversation = CONVERSATIONS["a tool is called"]
    own = [(template, conversation) for template in TEMPLATES.values()]
    own += [(snippet, VARIABLES) for snippet in SNIPPETS]
    made = [(compile_template(template), variables) for template, variables in own]
    return [
        (list(code.words), code.texts, variables)
        for code, variables in made
        if len(code.texts) < 256 and b"\0" not in b"".join(code.texts)
    ]


def template_seeds() -> Iterator[bytes]:
    for case in template_cases():
        yield template_input(*case)


# ---- states ----


@cache
def growing_module() -> bytes:
    """A module whose state is rows that grow."""
    return compiled(CACHE).to_bytes()


@cache
def mixed_module() -> bytes:
    """A module whose state has scalars and blocks besides."""
    return compiled(MIXED).to_bytes()


def _states(module: bytes) -> Iterator[bytes]:
    """Files of no rows, of two, and of as many as the program has no room for."""
    files = []
    with TemporaryDirectory() as folder, aot.load(module) as program:
        path = Path(folder) / "state"
        for _ in range(2):
            program.save_state(path)
            files.append(path.read_bytes())
            shapes = [[d if isinstance(d, int) else 2 for d in t.dims] for t in program.inputs]
            program.run([np.zeros(shape, np.float32) for shape in shapes])
        room = program.state_capacity
    yield from files
    empty, two = files
    length = two.index((2).to_bytes(8, "little"), STATE_HEADER_BYTES)
    row = (len(two) - len(empty)) // 2
    for rows in (room, room + 1, 10 * room):
        head = empty[:length] + rows.to_bytes(8, "little") + empty[length + 8 :]
        yield head + bytes(rows * row)


def _state_seeds(module: bytes) -> Iterator[bytes]:
    for state, how in itertools.product(_states(module), range(8)):  # how much is made right
        yield bytes([how]) + state


def growing_state_seeds() -> Iterator[bytes]:
    return _state_seeds(growing_module())


def mixed_state_seeds() -> Iterator[bytes]:
    return _state_seeds(mixed_module())


# ---- conversations ----


@cache
def chat_module() -> bytes:
    """A language model of 14 tokens, whose template has a variable and forgets."""
    return language_module(32, template=FORGETS).to_bytes()


def _said(text: str) -> bytes:
    data = text.encode()
    return bytes([0, len(data)]) + data


def _reply(*tokens: int) -> bytes:
    """Steps after which each of these tokens was the likeliest."""
    rows = ([(255 if n == token else 129, 0) for n in range(14)] for token in tokens)
    return b"".join(bytes([4, 14, *itertools.chain(*row)]) for row in rows)


def chat_seeds() -> Iterator[bytes]:
    """Conversations of each way to make a chat."""
    settle, rewind, reset = b"\x02", b"\x23", b"\x0b"
    steps = [
        _said("ab") + _reply(1, 2, 5, 6, 7) + _said("abc é") + _reply(3, 7),
        _said("a") + _reply(1, 2) + settle + _said("<|e|>") + _reply(5),
        _said("b") + _reply(1) + rewind + _said("a") + _reply(2, 7) + reset + _said("u|y"),
        _said("abc" * 8) + _said("") + b"\x04\x00" * 35,
    ]
    for how, sampling in (
        (0, 0),
        (1, 31),
        (2, 33),
        (25, 109),
        (40, 130),
        (192, 0),
        (6, 129),
        (251, 127),
    ):
        for step in steps:
            yield bytes([how, sampling]) + step


# ---- files beside modules ----


def npy_seeds() -> Iterator[bytes]:
    """An array of each type, of each rank, and what is refused."""
    numbers = ["f4", "f2", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    types = [*numbers, "b1", "V2", ">f4", "c8", "U3"]
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 3), (1, 2, 1, 3)]
    for dtype, shape in itertools.product(types, shapes):
        stream = BytesIO()
        np.lib.format.write_array(stream, np.zeros(shape, dtype), version=(1, 0))
        yield stream.getvalue()
    for version in ((2, 0), (3, 0)):
        stream = BytesIO()
        array = np.asfortranarray(np.ones((2, 3), np.float32))
        np.lib.format.write_array(stream, array, version=version)
        yield stream.getvalue()


def cache_seeds() -> Iterator[bytes]:
    """Cache files with each part of the header right or wrong, and with marks of starts."""
    header = struct.pack("<II", 0x43544F41, 1) + bytes(56)
    marks = (b"", b"1 999999999 a fake\n", b"2 999999999 a fake\n", b"1 1 a fake\n", b"x")
    for mark, how, data in itertools.product(marks, (0, 7, 8, 15, 31), (b"", b"pipelines" * 8)):
        yield bytes([how, len(mark)]) + mark + header + data
