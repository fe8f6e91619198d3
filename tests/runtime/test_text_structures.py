"""Structures of the public headers begin with their size, or say that they never grow.

A caller's structures for text may come from an earlier header, or from a later one.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from aot.runtime.text_library import (
    SIGNATURES,
    CDecoder,
    CRendered,
    EncodeOptions,
    Info,
    RenderOptions,
)
from tests.support.header_calls import INCLUDE
from tests.support.runtime_api import Module, call, failure, library
from tests.support.sized import NO_SIZES, WORD, longer
from tests.support.stored_modules import FOLDER

# What the library makes and a caller sees through a pointer.
GIVEN = {"aot_launch_t", "aot_tensor_info_t"}
STRUCTURE = re.compile(
    r"((?://[^\n]*\n)*)typedef struct (aot_\w+) \{\n(.*?)\n\} aot_\w+;", re.DOTALL
)
HEADERS = sorted(path for path in INCLUDE.glob("*.h") if path.name != "abi.h")


def test_each_structure_can_grow_or_never_does() -> None:
    seen = set()
    for path in HEADERS:
        for comment, name, fields in STRUCTURE.findall(path.read_text()):
            seen.add(name)
            never = "Never" in comment and "grows" in comment
            begins = re.match(r"\s*(//[^\n]*\n\s*)*size_t size;", fields) is not None
            assert begins != (never or name in GIVEN), f"{path.name}: {name}"
    assert seen >= GIVEN and len(seen) > 20


@cache
def vocabulary() -> ctypes.c_void_p:
    """The vocabulary of a stored module, which stays open."""
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library(), name)
        function.restype, function.argtypes = result, arguments
    module = Module((FOLDER / "vocabulary-and-metadata.aotm").read_bytes())
    opened = ctypes.c_void_p()
    call("aot_vocabulary_open", module.handle, None, out=opened)
    opened.module = module  # type: ignore[attr-defined]
    return opened


def pointer(structure: Any, kind: type) -> Any:
    return ctypes.cast(structure, ctypes.POINTER(kind))


def encode(structure: Any) -> None:
    tokens, count = (ctypes.c_int32 * 8)(), ctypes.c_size_t()
    options = pointer(structure, EncodeOptions)
    call("aot_encode", vocabulary(), b"ab", 2, options, tokens, 8, out=count)
    assert count.value > 0


def decode(structure: Any) -> None:
    text, count = ctypes.create_string_buffer(8), ctypes.c_size_t()
    decoder = pointer(structure, CDecoder)
    call("aot_decode", vocabulary(), decoder, (ctypes.c_int32 * 1)(65), 1, text, 8, out=count)
    assert decoder.contents.is_begun
    assert library().aot_decode_end(decoder, text) == 0


def render(structure: Any) -> None:
    made, options = CRendered(), pointer(structure, RenderOptions)
    variables = b'{"messages": []}'
    call("aot_chat_render", vocabulary(), variables, len(variables), options, out=made)
    library().aot_rendered_release(vocabulary(), ctypes.byref(made))
    assert not made.text and made.size == ctypes.sizeof(CRendered)


TAKEN: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {
    "aot_encode_options_t": (encode, EncodeOptions),
    "aot_decoder_t": (decode, CDecoder),
    "aot_render_options_t": (render, RenderOptions),
}


@pytest.mark.parametrize("name", TAKEN)
def test_structures_of_callers(name: str) -> None:
    use, make = TAKEN[name]
    structure = make()
    size = ctypes.sizeof(structure)
    use(ctypes.byref(structure))
    use(longer(structure, bytes(40)))
    found = failure(lambda: use(longer(structure, bytes(9) + b"\1" + bytes(6))))
    expected = f"the {name} has a field at byte {size + 9}, which runtime 0.0.0 does not know"
    assert (found.status, found.message) == ("argument", expected)
    for none in NO_SIZES:
        structure.size = none
        found = failure(lambda: use(ctypes.byref(structure)))
        expected = f"the {name} has size {structure.size}, sizeof({name}) expected"
        assert (found.status, found.message) == ("argument", expected)


def test_an_info_is_filled_as_far_as_it_goes() -> None:
    whole = Info()
    call("aot_vocabulary_get_info", vocabulary(), out=whole)
    assert whole.token_count > 0
    short = ctypes.create_string_buffer(b"\xff" * ctypes.sizeof(Info), ctypes.sizeof(Info))
    room = Info.eos.offset  # type: ignore[attr-defined]
    ctypes.c_size_t.from_buffer(short).value = room
    call("aot_vocabulary_get_info", vocabulary(), out=pointer(short, Info).contents)
    assert short.raw[WORD:room] == bytes(whole)[WORD:room]
    assert short.raw[room:] == b"\xff" * (ctypes.sizeof(Info) - room)


def test_what_is_rendered_needs_room() -> None:
    for size in (*NO_SIZES, WORD, CRendered.bytes.offset):  # type: ignore[attr-defined]
        made = CRendered()
        made.size = size
        found = failure(lambda m=made: call("aot_chat_render", vocabulary(), b"{}", 2, None, out=m))  # type: ignore[misc]
        assert found.status == "argument"
        assert found.message.startswith("the aot_rendered_t has ")
